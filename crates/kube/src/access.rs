//! Kubeconfigs: where the server is, how it proves itself, how we do.

use std::io::Read as _;
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::HeaderValue;
use ichor_rpc::tls::ClientTlsError;
use ichor_rpc::{ClientTls, Dialer, Endpoint};
use ichor_yaml::Node;

use crate::http2::Http2;

/// The largest file that a kubeconfig can name.
const FILE_MAX: u64 = 1 << 20;

/// A kubeconfig that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AccessError {
    /// No YAML.
    #[error("kubeconfig")]
    Yaml(#[source] ichor_yaml::Error),
    /// Something it needs is not there, or not as it must be.
    #[error("kubeconfig: {0}")]
    Field(&'static str),
    /// A file it names cannot be read.
    #[error("kubeconfig: read {}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// Certificates or keys that make no sense.
    #[error("kubeconfig: TLS")]
    Tls(#[source] ClientTlsError),
}

/// How to reach a server.
#[derive(Clone)]
pub struct Access {
    /// Where it is.
    pub endpoint: Endpoint,
    /// The name in its certificate, where that is not the host.
    pub server_name: Option<String>,
    /// Who may have signed its certificate: PEM.
    pub authorities: Vec<u8>,
    /// Our certificate and key: PEM.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
    /// Our bearer token.
    pub token: Option<String>,
}

impl Access {
    /// Reads a kubeconfig, and the files that it names: those of its current context.
    ///
    /// # Errors
    /// When it is none, or something is missing.
    pub fn from_kubeconfig(text: &str) -> Result<Self, AccessError> {
        let documents = ichor_yaml::parse(text).map_err(AccessError::Yaml)?;
        let root = &documents.first().ok_or(AccessError::Field("it is empty"))?.root;
        let context = match text_of(root, "current-context") {
            Some(name) => entry(root, "contexts", Some(name), "context"),
            None => entry(root, "contexts", None, "context"),
        };
        let context = context.ok_or(AccessError::Field("the current context is not there"))?;
        let cluster = entry(root, "clusters", text_of(context, "cluster"), "cluster");
        let cluster = cluster.ok_or(AccessError::Field("the cluster of the current context is not there"))?;
        let user = entry(root, "users", text_of(context, "user"), "user");
        let server = text_of(cluster, "server").ok_or(AccessError::Field("cluster.server is missing"))?;
        let authorities = material(cluster, "certificate-authority")?
            .ok_or(AccessError::Field("cluster.certificate-authority is missing"))?;
        let certificate = user.map(|user| material(user, "client-certificate")).transpose()?.flatten();
        let key = user.map(|user| material(user, "client-key")).transpose()?.flatten();
        let identity = match (certificate, key) {
            // One file may hold both, as the kubelet's does.
            (Some(certificate), Some(key)) => {
                Some((blocks(&certificate, "CERTIFICATE"), blocks(&key, "PRIVATE KEY")))
            }
            (None, None) => None,
            _ => {
                return Err(AccessError::Field(
                    "a client certificate needs its key, and a key its certificate",
                ));
            }
        };
        let token = match user.and_then(|user| text_of(user, "token")) {
            Some(token) => Some(token.to_owned()),
            None => match user.and_then(|user| text_of(user, "tokenFile")) {
                Some(path) => Some(String::from_utf8_lossy(&read(path)?).trim().to_owned()),
                None => None,
            },
        };
        Ok(Self {
            endpoint: endpoint(server)?,
            server_name: text_of(cluster, "tls-server-name").map(str::to_owned),
            authorities,
            identity,
            token,
        })
    }

    pub(crate) fn transport(&self) -> Result<Http2, AccessError> {
        let identity = self.identity.as_ref().map(|(crt, key)| (crt.as_slice(), key.as_slice()));
        let tls = ClientTls::verified(&self.authorities, identity).map_err(AccessError::Tls)?;
        let dialer = Dialer::tls_named([self.endpoint.clone()], tls, self.server_name.clone());
        let token = match &self.token {
            None => None,
            Some(token) => {
                let value = HeaderValue::try_from(format!("Bearer {token}"));
                let mut value =
                    value.map_err(|_| AccessError::Field("the token has characters it cannot have"))?;
                value.set_sensitive(true);
                Some(value)
            }
        };
        Ok(Http2::new(self.endpoint.clone(), dialer, token))
    }
}

impl std::fmt::Debug for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Access").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

/// The entry of that name (without a name, the first) in a list of named entries.
fn entry<'a>(root: &'a Node, list: &str, name: Option<&str>, key: &str) -> Option<&'a Node> {
    let mut entries = root.get(list)?.as_seq()?.iter();
    let found = match name {
        Some(name) => entries.find(|entry| text_of(entry, "name") == Some(name)),
        None => entries.next(),
    };
    found?.get(key)
}

fn text_of<'a>(node: &'a Node, key: &str) -> Option<&'a str> {
    node.get(key)?.as_str().filter(|text| !text.is_empty())
}

/// The bytes of `<key>-data`, or of the file that `<key>` names.
fn material(node: &Node, key: &str) -> Result<Option<Vec<u8>>, AccessError> {
    if let Some(data) = text_of(node, &format!("{key}-data")) {
        let bytes = STANDARD.decode(data.trim());
        return bytes.map(Some).map_err(|_| AccessError::Field("embedded data is no base64"));
    }
    text_of(node, key).map(read).transpose()
}

/// The PEM blocks whose label ends like this.
fn blocks(pem: &[u8], label: &str) -> Vec<u8> {
    let (mut out, mut within) = (Vec::new(), false);
    for line in pem.split_inclusive(|byte| *byte == b'\n') {
        let text = std::str::from_utf8(line).unwrap_or_default().trim();
        if text.starts_with("-----BEGIN ") {
            within = text.trim_end_matches('-').ends_with(label);
        }
        if within {
            out.extend_from_slice(line);
        }
        if text.starts_with("-----END ") {
            within = false;
        }
    }
    out
}

fn read(path: &str) -> Result<Vec<u8>, AccessError> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(FILE_MAX).read_to_end(&mut bytes))
        .map_err(|source| AccessError::File { path: path.into(), source })?;
    Ok(bytes)
}

fn endpoint(server: &str) -> Result<Endpoint, AccessError> {
    let bad = AccessError::Field("cluster.server must be https://host[:port]");
    let Some(rest) = server.strip_prefix("https://") else { return Err(bad) };
    let authority = rest.trim_end_matches('/');
    if authority.is_empty() || authority.contains('/') {
        return Err(bad);
    }
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') && (!host.contains(':') || host.starts_with('[')) => {
            (host, port.parse().map_err(|_| bad)?)
        }
        _ => (authority, 443),
    };
    Ok(Endpoint::new(host.trim_start_matches('[').trim_end_matches(']'), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_hosts_and_ports() {
        let parse = |text: &str| endpoint(text).map(|endpoint| endpoint.to_string()).ok();
        assert_eq!(parse("https://10.5.0.2:6443").as_deref(), Some("10.5.0.2:6443"));
        assert_eq!(parse("https://[fd00::1]:6443/").as_deref(), Some("[fd00::1]:6443"));
        assert_eq!(parse("https://[fd00::1]").as_deref(), Some("[fd00::1]:443"));
        assert_eq!(parse("https://api.example").as_deref(), Some("api.example:443"));
        assert_eq!(parse("http://localhost:1"), None);
        assert_eq!(parse("https://a/b"), None);
        assert_eq!(parse("https://a:b"), None);
    }

    #[test]
    fn the_current_context_is_followed_and_files_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pair.pem");
        let pem = |label: &str| format!("-----BEGIN {label}-----\nQUJD\n-----END {label}-----\n");
        std::fs::write(&file, pem("CERTIFICATE") + &pem("EC PRIVATE KEY")).unwrap();
        let path = file.display();
        let text = format!(
            "apiVersion: v1
kind: Config
clusters:
- name: other
  cluster: {{server: https://nowhere}}
- name: mine
  cluster: {{server: https://127.0.0.1:7445, certificate-authority-data: Q0E=, tls-server-name: kubernetes}}
users:
- name: node
  user: {{client-certificate: {path}, client-key: {path}}}
contexts:
- name: default
  context: {{cluster: mine, user: node, namespace: default}}
current-context: default
"
        );
        let access = Access::from_kubeconfig(&text).unwrap();
        assert_eq!(access.endpoint.port, 7445);
        assert_eq!(access.server_name.as_deref(), Some("kubernetes"));
        assert_eq!(access.authorities, b"CA");
        let identity = (pem("CERTIFICATE").into_bytes(), pem("EC PRIVATE KEY").into_bytes());
        assert_eq!(access.identity, Some(identity), "one file may hold both");

        let gone = text.replace("pair.pem", "gone.pem");
        let error = Access::from_kubeconfig(&gone).unwrap_err().to_string();
        assert!(error.starts_with("kubeconfig: read ") && error.ends_with("gone.pem"), "{error}");
        let error = Access::from_kubeconfig(&text.replace("cluster: mine", "cluster: lost")).unwrap_err();
        assert_eq!(error.to_string(), "kubeconfig: the cluster of the current context is not there");
    }
}
