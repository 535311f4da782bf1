//! Image registries of a new configuration: documents of their own, or a section for older releases.

use std::collections::BTreeMap;

use super::{GenerateError, Input};
use crate::{
    document::Document,
    kinds::registry::{RegistryEndpoint, RegistryMirrorConfig, RegistryTLSConfig},
    model::Map,
    v1alpha1::{
        Config,
        registries::{Registries, RegistryConfig, RegistryMirror, RegistryTls},
    },
    values::{Base64, Url},
};

pub(super) fn documents(input: &Input, root: &mut Config) -> Result<Vec<Document>, GenerateError> {
    if !input.options.contract.since(12) {
        if let Some(machine) = &mut root.machine {
            machine.registries = section(input);
        }
        return Ok(Vec::new());
    }
    let mut documents = Vec::new();
    for (host, endpoints) in &input.options.registry_mirrors {
        let parse = |endpoint: &String| match Url::parse(endpoint) {
            Ok(url) => Ok(RegistryEndpoint { url, override_path: None }),
            Err(source) => Err(GenerateError::Mirror { endpoint: endpoint.clone(), source }),
        };
        let mirror = RegistryMirrorConfig {
            name: host.clone(),
            endpoints: endpoints.iter().map(parse).collect::<Result<Vec<_>, _>>()?.into(),
            skip_fallback: None,
        };
        documents.push(Document::RegistryMirrorConfig(Box::new(mirror)));
    }
    let mut tls: BTreeMap<&String, RegistryTLSConfig> = BTreeMap::new();
    for (host, ca) in &input.options.registry_cas {
        tls.entry(host).or_default().ca.clone_from(ca);
    }
    for host in &input.options.registry_insecure {
        tls.entry(host).or_default().insecure_skip_verify = Some(true);
    }
    documents.extend(tls.into_iter().map(|(host, config)| {
        Document::RegistryTLSConfig(Box::new(RegistryTLSConfig { name: host.clone(), ..config }))
    }));
    Ok(documents)
}

fn section(input: &Input) -> Registries {
    let options = &input.options;
    let mut mirrors: BTreeMap<String, RegistryMirror> = BTreeMap::new();
    let mirror =
        |endpoints: &[String]| RegistryMirror { endpoints: endpoints.to_vec().into(), ..Default::default() };
    // One release moved from the old Kubernetes registry to the new one and kept both.
    if options.contract.since(2) && !options.contract.since(3) {
        let both = ["https://registry.k8s.io".to_owned(), "https://k8s.gcr.io".to_owned()];
        mirrors.insert("k8s.gcr.io".to_owned(), mirror(&both));
    }
    mirrors.extend(options.registry_mirrors.iter().map(|(host, urls)| (host.clone(), mirror(urls))));
    let mut config: BTreeMap<String, RegistryConfig> = BTreeMap::new();
    for (host, ca) in &options.registry_cas {
        let tls = config.entry(host.clone()).or_default().tls.get_or_insert_default();
        tls.ca = Base64(Some(ca.clone().into_bytes()));
    }
    for host in &options.registry_insecure {
        let tls: &mut RegistryTls = config.entry(host.clone()).or_default().tls.get_or_insert_default();
        tls.insecure_skip_verify = Some(true);
    }
    Registries { mirrors: Map(Some(mirrors)), config: Map(Some(config)) }
}
