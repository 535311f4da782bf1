//! What the documents of a configuration say of registries, as one.

use ichor_config::{Document, Documents};
use ichor_resource::cri::{
    RegistryAuthConfig, RegistryConfig, RegistryEndpointConfig, RegistryMirrorConfig, RegistryTLSConfig,
};
use ichor_resource::value::{Base64Bytes, PemCertificateAndKey};

/// Where the node's own image cache is served.
const CACHE: &str = "http://127.0.0.1:3172";

/// Registries of a configuration; with `cached`, the node's cache is asked first for everything.
pub(super) fn of(config: &Documents, cached: bool) -> RegistryConfig {
    let mut all = RegistryConfig::default();
    if let Some(machine) = config.machine() {
        let registries = &machine.registries;
        for (host, mirror) in registries.mirrors.0.iter().flatten() {
            let override_path = mirror.override_path.unwrap_or_default();
            let endpoints = mirror.endpoints.iter();
            let endpoints = endpoints
                .map(|endpoint| RegistryEndpointConfig { endpoint: endpoint.clone(), override_path });
            let skip_fallback = mirror.skip_fallback.unwrap_or_default();
            let mirror = RegistryMirrorConfig { endpoints: endpoints.collect(), skip_fallback };
            all.mirrors.insert(host.clone(), mirror);
        }
        for (host, one) in registries.config.0.iter().flatten() {
            if let Some(auth) = &one.auth {
                let auth = RegistryAuthConfig {
                    username: auth.username.clone(),
                    password: auth.password.clone(),
                    auth: auth.auth.clone(),
                    identity_token: auth.identity_token.clone(),
                };
                all.auths.insert(host.clone(), auth);
            }
            if let Some(tls) = &one.tls {
                let pair = tls.client_identity.as_ref().map(|pair| PemCertificateAndKey {
                    crt: pair.crt.0.clone().into(),
                    key: pair.key.0.clone().into(),
                });
                let tls = RegistryTLSConfig {
                    client_identity: pair,
                    ca: Base64Bytes(tls.ca.0.clone().unwrap_or_default().into()),
                    insecure_skip_verify: tls.insecure_skip_verify.unwrap_or_default(),
                };
                all.tls.insert(host.clone(), tls);
            }
        }
    }
    for document in config.iter() {
        match document {
            Document::RegistryMirrorConfig(mirror) => {
                let endpoints = mirror.endpoints.iter().map(|endpoint| RegistryEndpointConfig {
                    endpoint: endpoint.url.to_string(),
                    override_path: endpoint.override_path.unwrap_or_default(),
                });
                let skip_fallback = mirror.skip_fallback.unwrap_or_default();
                let one = RegistryMirrorConfig { endpoints: endpoints.collect(), skip_fallback };
                all.mirrors.insert(mirror.name.clone(), one);
            }
            Document::RegistryAuthConfig(auth) => {
                let one = RegistryAuthConfig {
                    username: auth.username.clone(),
                    password: auth.password.clone(),
                    auth: auth.auth.clone(),
                    identity_token: auth.identity_token.clone(),
                };
                all.auths.insert(auth.name.clone(), one);
            }
            Document::RegistryTLSConfig(tls) => {
                let pair = tls.client_identity.as_ref().map(|pair| PemCertificateAndKey {
                    crt: pair.cert.clone().into(),
                    key: pair.key.clone().into(),
                });
                let one = RegistryTLSConfig {
                    client_identity: pair,
                    ca: Base64Bytes(tls.ca.clone().into()),
                    insecure_skip_verify: tls.insecure_skip_verify.unwrap_or_default(),
                };
                all.tls.insert(tls.name.clone(), one);
            }
            _ => {}
        }
    }
    if cached {
        all.mirrors.entry("*".to_owned()).or_default();
        for mirror in all.mirrors.values_mut() {
            let cache = RegistryEndpointConfig { endpoint: CACHE.to_owned(), override_path: false };
            mirror.endpoints.insert(0, cache);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = "\
version: v1alpha1
machine:
  type: worker
  registries:
    mirrors:
      docker.io: {endpoints: [http://old], overridePath: true}
      ghcr.io: {endpoints: [http://g], skipFallback: true}
    config:
      h:1: {auth: {username: u}, tls: {insecureSkipVerify: true}}
cluster: {}
---
apiVersion: v1alpha1
kind: RegistryMirrorConfig
name: docker.io
endpoints:
  - url: http://new/v2
    overridePath: true
  - url: http://second
";

    #[test]
    fn a_document_of_its_own_replaces_the_section_of_the_same_name() {
        let config = Documents::load(CONFIG.as_bytes()).unwrap();
        let all = of(&config, false);
        let docker: Vec<_> = all.mirrors["docker.io"]
            .endpoints
            .iter()
            .map(|e| (e.endpoint.as_str(), e.override_path))
            .collect();
        assert_eq!(docker, [("http://new/v2", true), ("http://second", false)]);
        assert!(all.mirrors["ghcr.io"].skip_fallback);
        assert_eq!(all.auths["h:1"].username, "u");
        assert!(all.tls["h:1"].insecure_skip_verify);
    }

    #[test]
    fn the_cache_is_asked_first_for_everything() {
        let all = of(&Documents::load(CONFIG.as_bytes()).unwrap(), true);
        for host in ["*", "docker.io", "ghcr.io"] {
            assert_eq!(all.mirrors[host].endpoints[0].endpoint, CACHE, "{host}");
        }
    }
}
