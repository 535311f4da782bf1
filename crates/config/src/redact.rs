//! Secrets out of sight: a copy of a configuration with its secrets replaced.

use crate::{
    document::Document,
    documents::Documents,
    v1alpha1::Config,
    values::{PemBytes, PemPair},
};

impl Documents {
    /// A copy in which every secret that is set is replaced by a text.
    pub fn redacted(&self, replacement: &str) -> Self {
        let mut copy = self.clone();
        for document in copy.documents_mut() {
            redact(document, replacement);
        }
        copy
    }
}

fn redact(document: &mut Document, replacement: &str) {
    match document {
        Document::Config(config) => redact_root(config, replacement),
        Document::SideroLinkConfig(config) => config.api_url.redact_query("jointoken", replacement),
        Document::WireguardConfig(config) => {
            hide(&mut config.private_key, replacement);
            for peer in config.peers.items_mut() {
                hide(&mut peer.preshared_key, replacement);
            }
        }
        Document::RegistryAuthConfig(config) => {
            hide(&mut config.password, replacement);
            hide(&mut config.auth, replacement);
            hide(&mut config.identity_token, replacement);
        }
        Document::RegistryTLSConfig(config) => {
            if let Some(identity) = &mut config.client_identity {
                hide(&mut identity.key, replacement);
            }
            hide(&mut config.ca, replacement);
        }
        // The other kinds hold nothing that the original hides.
        _ => {}
    }
}

fn redact_root(config: &mut Config, replacement: &str) {
    if let Some(machine) = &mut config.machine {
        hide(&mut machine.token, replacement);
        hide_key(machine.ca.as_mut(), replacement);
    }
    let Some(cluster) = &mut config.cluster else { return };
    for secret in [
        &mut cluster.secret,
        &mut cluster.token,
        &mut cluster.aescbc_encryption_secret,
        &mut cluster.secretbox_encryption_secret,
    ] {
        hide(secret, replacement);
    }
    hide_key(cluster.ca.as_mut(), replacement);
    hide_key(cluster.aggregator_ca.as_mut(), replacement);
    hide_key(cluster.etcd.as_mut().and_then(|etcd| etcd.ca.as_mut()), replacement);
    if let Some(account) = &mut cluster.service_account {
        hide_bytes(&mut account.key, replacement);
    }
}

fn hide(secret: &mut String, replacement: &str) {
    if !secret.is_empty() {
        *secret = replacement.to_owned();
    }
}

fn hide_bytes(secret: &mut PemBytes, replacement: &str) {
    if !secret.0.is_empty() {
        *secret = replacement.into();
    }
}

fn hide_key(pair: Option<&mut PemPair>, replacement: &str) {
    if let Some(pair) = pair {
        hide_bytes(&mut pair.key, replacement);
    }
}
