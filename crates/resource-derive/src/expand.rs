//! Writes the impls.

use proc_macro2::TokenStream;
use quote::quote;
use syn::Error;

use crate::attributes::{Field, Struct};

/// The impls for a message, and for a resource on top of it.
pub(crate) fn expand(parsed: &Struct, resource: bool) -> Result<TokenStream, Error> {
    let message = message(parsed);
    let value = value(parsed);
    let spec = if resource { spec(parsed)? } else { TokenStream::new() };
    Ok(quote! { #message #value #spec })
}

fn message(parsed: &Struct) -> TokenStream {
    let name = &parsed.name;
    let proto = parsed.proto.as_ref().map_or_else(String::new, syn::LitStr::value);
    let names: Vec<_> = parsed.fields.iter().map(|field| &field.name).collect();

    let infos = parsed.fields.iter().map(|Field { ty, tag, key, omit, .. }| {
        let key = key.as_ref().map_or_else(String::new, syn::LitStr::value);
        quote! {
            ::ichor_resource::value::FieldInfo {
                tag: #tag,
                key: #key,
                omit: #omit,
                proto_type: <#ty as ::ichor_resource::value::Value>::proto_type(),
            }
        }
    });

    // Number 0 is a field that only YAML has.
    let mut by_tag: Vec<_> = parsed.fields.iter().filter(|field| field.tag != 0).collect();
    by_tag.sort_by_key(|field| field.tag);
    let encodes = by_tag.iter().map(|Field { name, tag, .. }| {
        quote! { ::ichor_resource::value::Value::encode(&self.#name, #tag, out); }
    });
    let merges = by_tag.iter().map(|Field { name, tag, .. }| {
        quote! { #tag => ::ichor_resource::value::Value::merge(&mut self.#name, field), }
    });

    let entries = parsed.fields.iter().map(|Field { name, key, omit, .. }| {
        let Some(key) = key else {
            return quote! { ::ichor_resource::value::Message::yaml_fields(&self.#name, yaml, frame); };
        };
        let entry = quote! {
            yaml.key(frame, #key);
            ::ichor_resource::value::Value::yaml(&self.#name, yaml);
        };
        if *omit {
            quote! { if !::ichor_resource::value::Value::is_empty(&self.#name) { #entry } }
        } else {
            entry
        }
    });
    let whole = parsed.transparent.then(|| {
        quote! {
            fn yaml_message(&self, yaml: &mut ::ichor_resource::value::Yaml<'_>) {
                #(::ichor_resource::value::Value::yaml(&self.#names, yaml);)*
            }
        }
    });

    quote! {
        #[automatically_derived]
        impl ::ichor_resource::value::Message for #name {
            const NAME: &'static str = #proto;

            fn fields() -> ::std::vec::Vec<::ichor_resource::value::FieldInfo> {
                ::std::vec![#(#infos),*]
            }

            fn all_zero(&self) -> bool {
                true #(&& ::ichor_resource::value::Value::is_zero(&self.#names))*
            }

            fn all_empty(&self) -> bool {
                true #(&& ::ichor_resource::value::Value::is_empty(&self.#names))*
            }

            #[allow(unused_variables)]
            fn encode_message(&self, out: &mut ::std::vec::Vec<u8>) {
                #(#encodes)*
            }

            #[allow(unused_variables)]
            fn merge_field(
                &mut self,
                tag: u32,
                field: ::ichor_resource::value::Field<'_>,
            ) -> ::std::result::Result<(), ::ichor_resource::value::WireError> {
                match tag {
                    #(#merges)*
                    _ => ::std::result::Result::Ok(()),
                }
            }

            #[allow(unused_variables)]
            fn yaml_fields(
                &self,
                yaml: &mut ::ichor_resource::value::Yaml<'_>,
                frame: &mut ::ichor_resource::value::Frame,
            ) {
                #(#entries)*
            }

            #whole

            #[allow(unused_variables)]
            fn sample_message(sampler: &mut ::ichor_resource::value::Sampler) -> Self {
                Self { #(#names: ::ichor_resource::value::Value::sample(sampler)),* }
            }
        }
    }
}

fn value(parsed: &Struct) -> TokenStream {
    let name = &parsed.name;
    quote! {
        #[automatically_derived]
        impl ::ichor_resource::value::Value for #name {
            fn proto_type() -> ::std::string::String {
                <Self as ::ichor_resource::value::Message>::NAME.into()
            }

            fn is_zero(&self) -> bool {
                ::ichor_resource::value::Message::all_zero(self)
            }

            fn is_empty(&self) -> bool {
                ::ichor_resource::value::Message::all_empty(self)
            }

            fn put(&self, tag: u32, out: &mut ::std::vec::Vec<u8>) {
                ::ichor_resource::value::wire::put_nested(tag, out, |out| {
                    ::ichor_resource::value::Message::encode_message(self, out);
                });
            }

            fn merge(
                &mut self,
                field: ::ichor_resource::value::Field<'_>,
            ) -> ::std::result::Result<(), ::ichor_resource::value::WireError> {
                ::ichor_resource::value::Message::merge_message(self, field.bytes()?)
            }

            fn yaml(&self, yaml: &mut ::ichor_resource::value::Yaml<'_>) {
                ::ichor_resource::value::Message::yaml_message(self, yaml);
            }

            fn sample(sampler: &mut ::ichor_resource::value::Sampler) -> Self {
                ::ichor_resource::value::Message::sample_message(sampler)
            }
        }
    }
}

fn spec(parsed: &Struct) -> Result<TokenStream, Error> {
    let name = &parsed.name;
    let missing = |what: &str| Error::new_spanned(name, format!("a resource needs `{what}`"));
    let type_name = parsed.type_name.as_ref().ok_or_else(|| missing("type_name"))?;
    let namespace = parsed.namespace.as_ref().ok_or_else(|| missing("namespace"))?;
    let proto = parsed.proto.as_ref().map_or_else(String::new, syn::LitStr::value);
    let Struct { aliases, sensitive, skip_automatic_aliases, .. } = parsed;
    let columns = parsed.columns.iter().map(|(heading, path)| quote! { (#heading, #path) });
    Ok(quote! {
        #[automatically_derived]
        impl ::ichor_resource::Spec for #name {
            fn encode_proto(&self, out: &mut ::std::vec::Vec<u8>) {
                ::ichor_resource::value::Message::encode_message(self, out);
            }

            fn encode_yaml(&self, out: &mut ::std::string::String) {
                ::ichor_resource::value::Message::yaml_message(
                    self,
                    &mut ::ichor_resource::value::Yaml::new(out),
                );
            }

            fn same(&self, other: &dyn ::ichor_resource::Spec) -> bool {
                other.as_any().downcast_ref::<Self>() == ::std::option::Option::Some(self)
            }

            fn as_any(&self) -> &dyn ::std::any::Any {
                self
            }
        }

        #[automatically_derived]
        impl ::ichor_resource::TypedSpec for #name {
            fn definition() -> &'static ::ichor_resource::Definition {
                static DEFINITION: ::ichor_resource::Definition = ::ichor_resource::Definition {
                    type_name: #type_name,
                    default_namespace: #namespace,
                    aliases: &[#(#aliases),*],
                    columns: &[#(#columns),*],
                    sensitive: #sensitive,
                    skip_automatic_aliases: #skip_automatic_aliases,
                    proto: #proto,
                };
                &DEFINITION
            }

            fn decode_proto(bytes: &[u8]) -> ::std::result::Result<Self, ::ichor_resource::DecodeError> {
                ::ichor_resource::spec::decode(bytes)
            }
        }
    })
}
