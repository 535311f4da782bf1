//! Keys, certificate authorities, requests, roles; the only crate that names the crypto provider.
