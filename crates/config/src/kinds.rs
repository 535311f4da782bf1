//! The documents with a `kind` of their own.

pub mod block;
pub mod bond;
pub mod firewall;
pub mod link;
pub mod registry;
pub mod runtime;
pub mod service;

use crate::model::section;

section! {
    /// Binds a PCI device to another driver.
    pub struct PCIDriverRebindConfig {
        /// PCI address of the device.
        @always
        @example("name: \"0000:04:00.00\"")
        "name" => name: String,
        /// The driver it gets.
        @always
        "targetDriver" => target_driver: String,
    }
}

section! {
    /// Certificate authorities that every program on the machine trusts.
    pub struct TrustedRootsConfig {
        /// Name of the set; becomes a header in the bundle.
        @always
        "name" => name: String,
        /// One or more certificates as PEM text.
        @always
        "certificates" => certificates: String,
    }
}

section! {
    /// Remote management through a SideroLink tunnel.
    pub struct SideroLinkConfig {
        /// Where the management API is: `https://` or `grpc://`.
        @always
        @example("apiUrl: https://siderolink.api/join?token=secret")
        "apiUrl" => api_url: crate::values::Url,
        /// Token that marks this machine.
        "uniqueToken" => unique_token: String,
    }
}
