//! Image registries: mirrors, credentials, TLS.

use crate::{
    model::{List, section},
    values::Url,
};

section! {
    /// Mirrors of an image registry.
    pub struct RegistryMirrorConfig {
        /// Host of the registry; `*` stands for all others.
        @always
        "name" => name: String,
        /// URLs that are tried in order.
        @example("endpoints:\n    - url: https://mirror.example.com")
        "endpoints" => endpoints: List<RegistryEndpoint>,
        /// Do not fall back to the registry itself.
        @default("false")
        "skipFallback" => skip_fallback: Option<bool>,
    }
}

section! {
    /// A mirror.
    pub struct RegistryEndpoint {
        /// Its URL.
        @always
        "url" => url: Url,
        /// Use the path of the URL as it is.
        @default("false")
        "overridePath" => override_path: Option<bool>,
    }
}

section! {
    /// Credentials of an image registry.
    pub struct RegistryAuthConfig {
        /// Host of the registry or mirror, perhaps with a port.
        @always
        "name" => name: String,
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

section! {
    /// TLS settings of an image registry.
    pub struct RegistryTLSConfig {
        /// Host of the registry or mirror, perhaps with a port.
        @always
        "name" => name: String,
        /// Client certificate.
        "clientIdentity" => client_identity: Option<ClientIdentity>,
        /// Certificate authority as PEM text.
        "ca" => ca: String,
        /// Do not check the certificate of the registry.
        @default("false")
        "insecureSkipVerify" => insecure_skip_verify: Option<bool>,
    }
}

section! {
    /// A client certificate as PEM text.
    pub struct ClientIdentity {
        /// The certificate.
        "cert" => cert: String,
        /// Its private key.
        "key" => key: String,
    }
}
