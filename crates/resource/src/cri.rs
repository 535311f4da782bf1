//! Container runtime.

use std::collections::BTreeMap;

use ichor_resource_derive::{ResourceSpec, SpecMessage};

use crate::value::enums::spec_enum;
use crate::value::{Base64Bytes, Object, PemCertificateAndKey};

spec_enum! {
    /// State of the image cache.
    pub enum ImageCacheStatus = "talos.resource.definitions.enums.CriImageCacheStatus" {
        #[default]
        Unknown = 0 => "unknown",
        Disabled = 1 => "disabled",
        Preparing = 2 => "preparing",
        Ready = 3 => "ready",
    }
}

spec_enum! {
    /// State of copying the image cache.
    pub enum ImageCacheCopyStatus = "talos.resource.definitions.enums.CriImageCacheCopyStatus" {
        #[default]
        Unknown = 0 => "unknown",
        Skipped = 1 => "skipped",
        Pending = 2 => "copying",
        Ready = 3 => "ready",
    }
}

/// State of the local image cache and its roots.
///
/// Id: `image-cache`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "ImageCacheConfigs.cri.talos.dev", namespace = "cri")]
#[resource(proto = "talos.resource.definitions.cri.ImageCacheConfigSpec")]
#[resource(columns(("Status", "{.status}"), ("CopyStatus", "{.copyStatus}"), ("Roots", "{.roots}")))]
pub struct ImageCacheConfig {
    #[spec(1, "status")]
    pub status: ImageCacheStatus,
    #[spec(3, "copyStatus")]
    pub copy_status: ImageCacheCopyStatus,
    #[spec(2, "roots")]
    pub roots: Vec<String>,
}

/// Registry mirrors, credentials and TLS settings after merging all configuration documents. Holds passwords and keys,
/// hence sensitive.
///
/// Id: `registries`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "RegistryConfigs.cri.talos.dev", namespace = "cri")]
#[resource(proto = "talos.resource.definitions.cri.RegistriesConfigSpec")]
#[resource(sensitive)]
pub struct RegistryConfig {
    #[spec(1, "mirrors", omit)]
    pub mirrors: BTreeMap<String, RegistryMirrorConfig>,
    #[spec(2, "auths", omit)]
    pub auths: BTreeMap<String, RegistryAuthConfig>,
    #[spec(3, "tls", omit)]
    pub tls: BTreeMap<String, RegistryTLSConfig>,
}

/// Part of a spec: `cri.RegistryMirrorConfig`.
#[derive(Debug, Clone, Default, PartialEq, SpecMessage)]
#[resource(proto = "talos.resource.definitions.cri.RegistryMirrorConfig")]
pub struct RegistryMirrorConfig {
    #[spec(1, "endpoints")]
    pub endpoints: Vec<RegistryEndpointConfig>,
    #[spec(3, "skipFallback", omit)]
    pub skip_fallback: bool,
}

/// Part of a spec: `cri.RegistryEndpointConfig`.
#[derive(Debug, Clone, Default, PartialEq, SpecMessage)]
#[resource(proto = "talos.resource.definitions.cri.RegistryEndpointConfig")]
pub struct RegistryEndpointConfig {
    #[spec(1, "endpoint")]
    pub endpoint: String,
    #[spec(2, "overridePath")]
    pub override_path: bool,
}

/// Part of a spec: `cri.RegistryAuthConfig`.
#[derive(Debug, Clone, Default, PartialEq, SpecMessage)]
#[resource(proto = "talos.resource.definitions.cri.RegistryAuthConfig")]
pub struct RegistryAuthConfig {
    #[spec(1, "username", omit)]
    pub username: String,
    #[spec(2, "password", omit)]
    pub password: String,
    #[spec(3, "auth", omit)]
    pub auth: String,
    #[spec(4, "identityToken", omit)]
    pub identity_token: String,
}

/// Part of a spec: `cri.RegistryTLSConfig`.
#[derive(Debug, Clone, Default, PartialEq, SpecMessage)]
#[resource(proto = "talos.resource.definitions.cri.RegistryTLSConfig")]
pub struct RegistryTLSConfig {
    #[spec(1, "clientIdentity", omit)]
    pub client_identity: Option<PemCertificateAndKey>,
    #[spec(2, "ca", omit)]
    pub ca: Base64Bytes,
    #[spec(3, "insecureSkipVerify", omit)]
    pub insecure_skip_verify: bool,
}

/// A seccomp profile from the machine configuration.
///
/// Id: profile name.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "SeccompProfiles.cri.talos.dev", namespace = "cri")]
#[resource(proto = "talos.resource.definitions.cri.SeccompProfileSpec")]
pub struct SeccompProfile {
    #[spec(1, "name")]
    pub name: String,
    #[spec(2, "value")]
    pub value: Object,
}
