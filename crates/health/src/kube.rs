//! The way to the Kubernetes of a cluster: a kubeconfig from one of its control planes, fetched when needed.

use std::io::Read as _;
use std::path::Path;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use ichor_kube::{Client, Kind, Select};
use ichor_rpc::Endpoint;
use serde_json::Value;
use tokio::sync::Mutex;
use tokio::time::{sleep, timeout};
use tonic::body::Body;
use tonic::client::GrpcService;
use tonic::codegen::StdError;

use crate::access::{Access, Kubernetes, Objects};

/// The most a kubeconfig may take.
const KUBECONFIG_MAX: u64 = 1024 * 1024;
/// A server that is there answers at once.
const CONNECT_MAX: Duration = Duration::from_secs(2);
/// Before other places are tried, the first one has this long.
const HEAD_START: Duration = Duration::from_millis(300);
/// The namespace of the system.
pub const SYSTEM: &str = "kube-system";
/// Daemon sets.
pub const DAEMON_SETS: Kind = Kind::known("apps", "v1", "daemonsets", true);
/// Deployments.
pub const DEPLOYMENTS: Kind = Kind::known("apps", "v1", "deployments", true);

/// A client that is made on the first call and kept.
pub struct Lazy<S> {
    access: Access<S>,
    control_planes: Vec<String>,
    /// Places to try before the one of the kubeconfig.
    forced: Option<Endpoint>,
    /// Places to try after it.
    others: Vec<Endpoint>,
    client: Mutex<Option<Client>>,
}

impl<S> Lazy<S>
where
    S: GrpcService<Body> + Clone + Send + Sync,
    S::Future: Send,
    S::Error: Into<StdError>,
    S::ResponseBody: http_body::Body<Data = bytes::Bytes> + Send + 'static,
    <S::ResponseBody as http_body::Body>::Error: Into<StdError> + Send,
{
    /// Asks the first of `control_planes` that answers. The server is where the kubeconfig says, unless
    /// `forced` names another place; `others` are tried when nothing is there.
    pub fn new(
        access: Access<S>,
        control_planes: Vec<String>,
        forced: Option<Endpoint>,
        others: Vec<Endpoint>,
    ) -> Self {
        Self { access, control_planes, forced, others, client: Mutex::default() }
    }

    /// The client.
    ///
    /// # Errors
    /// A sentence: no control plane hands out a kubeconfig, or it leads nowhere.
    pub async fn client(&self) -> Result<Client, String> {
        let mut kept = self.client.lock().await;
        if let Some(client) = &*kept {
            return Ok(client.clone());
        }
        let text = self.kubeconfig().await?;
        let mut access = ichor_kube::Access::from_kubeconfig(&text).map_err(|error| text_of(&error))?;
        if let Some(endpoint) = &self.forced {
            access.endpoint.clone_from(endpoint);
        }
        let made = |access: &ichor_kube::Access| Client::new(access).map_err(|error| text_of(&error));
        let mut clients = vec![made(&access)?];
        if self.forced.is_none() {
            for endpoint in &self.others {
                access.endpoint.clone_from(endpoint);
                clients.push(made(&access)?);
            }
        }
        let client = first_that_answers(clients).await.ok_or("there is no place to ask")?;
        *kept = Some(client.clone());
        Ok(client)
    }

    /// Forgets the client; the next call fetches a new kubeconfig.
    pub async fn forget(&self) {
        *self.client.lock().await = None;
    }

    /// The administrator's kubeconfig.
    ///
    /// # Errors
    /// Why no control plane handed one out.
    pub async fn kubeconfig(&self) -> Result<String, String> {
        let mut last = "there is no control plane to ask for a kubeconfig".to_owned();
        for node in &self.control_planes {
            match self.access.kubeconfig(node).await {
                Ok(packed) => {
                    let content =
                        unpack(&packed).map_err(|error| format!("unpack the kubeconfig: {error}"))?;
                    return String::from_utf8(content).map_err(|_| "the kubeconfig is no text".to_owned());
                }
                Err(status) => last = format!("{node}: kubeconfig: {}", status.message()),
            }
        }
        Err(last)
    }
}

/// Where the kubeconfig leads there may be nothing, or something else entirely: then it is the next place that counts.
/// Where nobody answers it is the first one, which says why.
async fn first_that_answers(clients: Vec<Client>) -> Option<Client> {
    let first = clients.first()?.clone();
    if clients.len() == 1 {
        return Some(first);
    }
    let mut tries: FuturesUnordered<_> = clients
        .into_iter()
        .enumerate()
        .map(|(number, client)| async move {
            if number > 0 {
                sleep(HEAD_START).await;
            }
            answers(&client).await.then_some(client)
        })
        .collect();
    while let Some(answer) = tries.next().await {
        if answer.is_some() {
            return answer;
        }
    }
    Some(first)
}

/// Whether a server that these certificates are for is there.
async fn answers(client: &Client) -> bool {
    let answer = timeout(CONNECT_MAX, client.read("/version")).await;
    matches!(answer, Ok(Ok(_)))
}

/// The kubeconfig in what a machine hands out: a packed archive of one file.
///
/// # Errors
/// When it is no such archive.
pub fn unpack(packed: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(packed));
    for entry in archive.entries()? {
        let entry = entry?;
        if entry.path()?.as_ref() == Path::new("kubeconfig") {
            let mut content = Vec::new();
            entry.take(KUBECONFIG_MAX).read_to_end(&mut content)?;
            return Ok(content);
        }
    }
    Err(std::io::Error::other("it is not in the machine's answer"))
}

impl<S> Kubernetes for Lazy<S>
where
    S: GrpcService<Body> + Clone + Send + Sync,
    S::Future: Send,
    S::Error: Into<StdError>,
    S::ResponseBody: http_body::Body<Data = bytes::Bytes> + Send + 'static,
    <S::ResponseBody as http_body::Body>::Error: Into<StdError> + Send,
{
    async fn list(&self, what: Objects, selector: &str) -> Result<Vec<Value>, String> {
        let client = self.client().await?;
        let (kind, namespace) = match what {
            Objects::Nodes => (&Kind::NODES, ""),
            Objects::SystemPods => (&Kind::PODS, SYSTEM),
            Objects::SystemDaemonSets => (&DAEMON_SETS, SYSTEM),
            Objects::SystemDeployments => (&DEPLOYMENTS, SYSTEM),
        };
        let select = Select { labels: selector, ..Select::default() };
        match client.list(kind, namespace, select).await {
            Ok(list) => Ok(list.items),
            Err(error) => {
                // What was wrong may be the place or the certificates: both are looked at anew.
                if !error.is_not_found() {
                    self.forget().await;
                }
                Err(text_of(&error))
            }
        }
    }
}

/// An error with its causes.
pub fn text_of(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
