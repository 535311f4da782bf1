//! `machine.registries`: the older way to describe image registries.

use crate::{
    model::{List, Map, section},
    values::{Base64, PemPair},
};

section! {
    /// Mirrors and credentials of image registries.
    pub struct Registries {
        /// Mirrors by registry host; `*` stands for all others.
        "mirrors" => mirrors: Map<RegistryMirror>,
        /// TLS settings and credentials by host.
        "config" => config: Map<RegistryConfig>,
    }
}

section! {
    /// Mirrors of a registry.
    pub struct RegistryMirror {
        /// URLs that are tried in order.
        @always
        "endpoints" => endpoints: List<String>,
        /// Use the path of the URLs as it is.
        @default("false")
        "overridePath" => override_path: Option<bool>,
        /// Do not fall back to the registry itself.
        @default("false")
        "skipFallback" => skip_fallback: Option<bool>,
    }
}

section! {
    /// How to talk to a registry.
    pub struct RegistryConfig {
        /// TLS settings.
        "tls" => tls: Option<RegistryTls>,
        /// Credentials.
        "auth" => auth: Option<RegistryAuth>,
    }
}

section! {
    /// TLS settings of a registry.
    pub struct RegistryTls {
        /// Client certificate.
        "clientIdentity" => client_identity: Option<PemPair>,
        /// Certificate authority.
        "ca" => ca: Base64,
        /// Do not check the certificate of the registry.
        @default("false")
        "insecureSkipVerify" => insecure_skip_verify: Option<bool>,
    }
}

section! {
    /// Credentials of a registry.
    pub struct RegistryAuth {
        /// User name.
        "username" => username: String,
        /// Password.
        "password" => password: String,
        /// Ready-made value of the authorization header.
        "auth" => auth: String,
        /// Identity token.
        "identityToken" => identity_token: String,
    }
}
