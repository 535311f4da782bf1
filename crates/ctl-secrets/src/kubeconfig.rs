//! Kubeconfigs: who may do what where, in one file. Pure but for the key that is made.

use std::time::Duration;

use ichor_pki::{Leaf, PkiError};
use ichor_resource::value::binary::base64;
use ichor_resource::value::{PemCertificate, PemCertificateAndKey};
use jiff::Timestamp;

use crate::issue::{enciphering, issue};

/// Certificates start to be valid a little earlier: clocks of machines differ.
const SKEW: Duration = Duration::from_secs(10);

/// Whose kubeconfig it is, and of which cluster.
#[derive(Debug, Clone)]
pub struct Kubeconfig<'a> {
    /// Name of the cluster.
    pub cluster: &'a str,
    /// Where its API server answers.
    pub server: &'a str,
    /// Authorities that may vouch for it.
    pub accepted: &'a [PemCertificate],
    /// Subject CN of the client certificate.
    pub common_name: &'a str,
    /// Subject O of it.
    pub organization: &'a str,
    /// How long it lives.
    pub lifetime: Duration,
    /// Name of the user, without the cluster.
    pub user: &'a str,
    /// Name of the context, without the cluster.
    pub context: &'a str,
}

impl Kubeconfig<'_> {
    /// Has a client certificate signed, and writes the file.
    pub async fn issue(&self, authority: &PemCertificateAndKey, now: Timestamp) -> Result<String, PkiError> {
        let leaf = enciphering(Leaf::client(self.common_name, [self.organization]), self.lifetime);
        let pair = issue(authority, vec![Leaf { backdate: SKEW, ..leaf }], now).await?.pop();
        Ok(self.text(&pair.unwrap_or_default()))
    }

    fn text(&self, pair: &PemCertificateAndKey) -> String {
        let ca = base64(&bundle(self.accepted));
        let (crt, key) = (base64(&pair.crt), base64(&pair.key));
        let cluster = scalar(self.cluster);
        let server = scalar(self.server);
        let user = scalar(&format!("{}@{}", self.user, self.cluster));
        let context = scalar(&format!("{}@{}", self.context, self.cluster));
        format!(
            "apiVersion: v1
clusters:
- cluster:
    certificate-authority-data: {ca}
    server: {server}
  name: {cluster}
contexts:
- context:
    cluster: {cluster}
    namespace: default
    user: {user}
  name: {context}
current-context: {context}
kind: Config
users:
- name: {user}
  user:
    client-certificate-data: {crt}
    client-key-data: {key}
"
        )
    }
}

/// All authorities in one text, each on lines of its own.
pub fn bundle(authorities: &[PemCertificate]) -> Vec<u8> {
    let mut all = Vec::new();
    for authority in authorities {
        all.extend_from_slice(&authority.crt);
        if !authority.crt.ends_with(b"\n") {
            all.push(b'\n');
        }
    }
    all
}

/// A text as YAML reads it back: as it is where that is safe, else in quotes.
fn scalar(text: &str) -> String {
    let plain = text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"@:/._-[]".contains(&b))
        && !text.ends_with(':')
        && !["y", "n", "yes", "no", "on", "off", "true", "false", "null"]
            .iter()
            .any(|word| text.eq_ignore_ascii_case(word));
    if plain { text.to_owned() } else { serde_json::Value::from(text).to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_as_they_are() {
        for plain in ["lab", "admin@lab", "system:kube-scheduler@lab", "https://[fd00::1]:6443"] {
            assert_eq!(scalar(plain), plain);
        }
        for (text, quoted) in
            [("123", "\"123\""), ("No", "\"No\""), ("a b", "\"a b\""), ("", "\"\""), ("a: b", "\"a: b\"")]
        {
            assert_eq!(scalar(text), quoted);
        }
    }
}
