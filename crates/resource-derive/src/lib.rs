//! Derives the encodings and the definition of a resource spec from its struct.
//!
//! ```ignore
//! #[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
//! #[resource(type_name = "HostnameStatuses.net.talos.dev", namespace = "network")]
//! #[resource(proto = "talos.resource.definitions.network.HostnameStatusSpec")]
//! #[resource(aliases("hostname"), columns(("Hostname", "{.hostname}")))]
//! pub struct HostnameStatus {
//!     #[spec(1, "hostname")]
//!     pub hostname: String,
//!     #[spec(2, "domainname", omit)]
//!     pub domainname: String,
//! }
//! ```
//!
//! `#[spec(number, "key")]` gives a field its protobuf number and YAML key; fields stand in YAML order.
//! Number 0 keeps a field off the wire.
//! `omit` leaves the key out when the value is empty, `inline` writes the entries of a nested message in
//! its place. `#[resource(transparent)]` makes the YAML of the one field that of the whole spec.
//! `SpecMessage` is for messages inside specs and takes `proto` and `transparent` alone.

mod attributes;
mod expand;

use proc_macro::TokenStream;
use syn::{DeriveInput, parse_macro_input};

/// Derives `Message`, `Value`, `Spec` and `TypedSpec` for a resource spec.
#[proc_macro_derive(ResourceSpec, attributes(resource, spec))]
pub fn resource_spec(input: TokenStream) -> TokenStream {
    expand_with(input, true)
}

/// Derives `Message` and `Value` for a message inside a spec.
#[proc_macro_derive(SpecMessage, attributes(resource, spec))]
pub fn spec_message(input: TokenStream) -> TokenStream {
    expand_with(input, false)
}

fn expand_with(input: TokenStream, resource: bool) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    attributes::Struct::parse(&input)
        .and_then(|parsed| expand::expand(&parsed, resource))
        .unwrap_or_else(syn::Error::into_compile_error)
        .into()
}
