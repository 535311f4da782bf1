//! The real kube-apiserver on the real etcd, alone on loopback: what the client of the Kubernetes API is tried against.

use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::process::Child;

use anyhow::{Context, Result};
use base64::Engine as _;
use ichor_pki::{Authority, KeyAlgorithm, Leaf, PrivateKey};
use jiff::Timestamp;

use crate::{free_port, programs};

/// Where the server says that it is; nobody is there.
pub const ADVERTISED: &str = "10.254.0.1";

/// A server; it ends with the value.
pub struct ApiServer {
    dir: tempfile::TempDir,
    authority: Authority,
    port: u16,
    etcd: Child,
    server: Option<Child>,
}

impl ApiServer {
    /// Starts etcd and the server. It takes some seconds until it answers.
    ///
    /// # Errors
    /// When the components are not built, or do not start.
    pub fn start() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let now = Timestamp::now();
        let authority =
            Authority::generate(KeyAlgorithm::EcdsaP256, "kubernetes", now, Authority::TEN_YEARS)?;
        let mut leaf = Leaf::server("kube-apiserver");
        leaf.dns_names = vec!["localhost".into(), "kubernetes".into()];
        leaf.addresses = vec![IpAddr::from([127, 0, 0, 1])];
        let pair = authority.issue(&leaf, now)?;
        let accounts = PrivateKey::generate(KeyAlgorithm::EcdsaP256)?;
        for (name, text) in [
            ("ca.crt", authority.crt_pem()),
            ("server.crt", &pair.crt),
            ("server.key", &pair.key),
            ("accounts.key", &accounts.to_pem()),
            ("accounts.pub", &accounts.public_pem()),
        ] {
            fs::write(dir.path().join(name), text)?;
        }
        let [client, peer, port] = [free_port()?, free_port()?, free_port()?];
        let etcd = programs::component(
            "etcd",
            dir.path(),
            &[
                format!("--data-dir={}", dir.path().join("etcd").display()),
                format!("--listen-client-urls=http://127.0.0.1:{client}"),
                format!("--advertise-client-urls=http://127.0.0.1:{client}"),
                format!("--listen-peer-urls=http://127.0.0.1:{peer}"),
                format!("--initial-advertise-peer-urls=http://127.0.0.1:{peer}"),
                format!("--initial-cluster=default=http://127.0.0.1:{peer}"),
                "--unsafe-no-fsync".to_owned(),
            ],
        )?;
        fs::write(dir.path().join("etcd.port"), client.to_string())?;
        let mut this = Self { dir, authority, port, etcd, server: None };
        this.begin()?;
        Ok(this)
    }

    /// Starts the server, after [`ApiServer::stop`].
    ///
    /// # Errors
    /// When it does not start.
    pub fn begin(&mut self) -> Result<()> {
        let file = |name: &str| self.dir.path().join(name).display().to_string();
        let etcd = fs::read_to_string(self.dir.path().join("etcd.port"))?;
        let args = [
            format!("--etcd-servers=http://127.0.0.1:{etcd}"),
            format!("--secure-port={}", self.port),
            "--bind-address=127.0.0.1".to_owned(),
            format!("--advertise-address={ADVERTISED}"),
            format!("--cert-dir={}", file("certs")),
            format!("--tls-cert-file={}", file("server.crt")),
            format!("--tls-private-key-file={}", file("server.key")),
            format!("--client-ca-file={}", file("ca.crt")),
            format!("--service-account-key-file={}", file("accounts.pub")),
            format!("--service-account-signing-key-file={}", file("accounts.key")),
            "--service-account-issuer=https://localhost".to_owned(),
            "--service-cluster-ip-range=10.96.0.0/12".to_owned(),
            "--allow-privileged=true".to_owned(),
            "--authorization-mode=Node,RBAC".to_owned(),
            "--enable-admission-plugins=NodeRestriction".to_owned(),
        ];
        self.server = Some(programs::component("kube-apiserver", self.dir.path(), &args)?);
        Ok(())
    }

    /// Ends the server at once; etcd stays.
    pub fn stop(&mut self) {
        if let Some(mut server) = self.server.take() {
            end(&mut server);
        }
    }

    /// A kubeconfig of a user in groups.
    ///
    /// # Errors
    /// When no certificate can be made.
    pub fn kubeconfig(&self, user: &str, groups: &[&str]) -> Result<String> {
        let leaf = Leaf::client(user, groups.iter().copied());
        let pair = self.authority.issue(&leaf, Timestamp::now())?;
        let encode = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
        Ok(format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: a\n\
             clusters: [{{name: a, cluster: {{server: \"https://127.0.0.1:{}\", certificate-authority-data: {}}}}}]\n\
             users: [{{name: a, user: {{client-certificate-data: {}, client-key-data: {}}}}}]\n\
             contexts: [{{name: a, context: {{cluster: a, user: a}}}}]\n",
            self.port,
            encode(self.authority.crt_pem()),
            encode(&pair.crt),
            encode(&pair.key),
        ))
    }

    /// A kubeconfig as kubelets write theirs: it names one file that holds both certificate and key, which is written
    /// to `pair`.
    ///
    /// # Errors
    /// As [`ApiServer::kubeconfig`].
    pub fn kubelet(&self, node: &str, pair: &Path) -> Result<String> {
        let leaf = Leaf::client(format!("system:node:{node}"), ["system:nodes"]);
        let issued = self.authority.issue(&leaf, Timestamp::now())?;
        fs::write(pair, issued.crt + &issued.key)?;
        let (text, path) = (self.admin()?, pair.display());
        let user = text.find("client-certificate-data").zip(text.find("}}]\ncontexts"));
        let (from, to) = user.context("a kubeconfig of ours")?;
        let files = format!("client-certificate: {path}, client-key: {path}");
        Ok(format!("{}{files}{}", &text[..from], &text[to..]))
    }

    /// A kubeconfig that may do everything.
    ///
    /// # Errors
    /// As [`ApiServer::kubeconfig`].
    pub fn admin(&self) -> Result<String> {
        self.kubeconfig("admin", &["system:masters"])
    }

    /// What the server last said, for messages.
    pub fn log(&self) -> String {
        let text = fs::read_to_string(self.dir.path().join("kube-apiserver.log")).unwrap_or_default();
        text.lines().rev().take(20).collect::<Vec<_>>().join("\n")
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        self.stop();
        end(&mut self.etcd);
    }
}

fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}
