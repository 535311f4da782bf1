//! The first client certificate of a worker's kubelet, requested before the kubelet starts.
//!
//! A kubelet that starts before it may read anything asks in vain and waits longer before each attempt: its node becomes
//! ready long after the API is there. So the node requests the certificate, with the bootstrap token and in the kubelet's
//! name, and starts the kubelet with it. Where that takes too long the kubelet starts without and requests one itself.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ichor_cosi::Wake;
use ichor_kube::{Client, Error, Kind, Target, Write};
use ichor_pki::{KeyAlgorithm, PkiError, PrivateKey, Request};
use serde_json::{Value as Json, json};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tracing::{debug, info, warn};

/// The kubelet is kept from starting no longer.
const REQUEST_MAX: Duration = Duration::from_secs(60);
/// One call takes no longer; an API that is not there yet holds it.
const CALL_MAX: Duration = Duration::from_secs(10);
/// Between two attempts to make a request.
const AGAIN: Duration = Duration::from_millis(250);
/// Between two looks whether it is signed.
const LOOK: Duration = Duration::from_millis(100);

const REQUESTS: Kind = Kind::known("certificates.k8s.io", "v1", "certificatesigningrequests", false);
const SIGNER: &str = "kubernetes.io/kube-apiserver-client-kubelet";
const MANAGER: &str = "talos";

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub(super) enum RequestError {
    /// No key, or no request of it.
    #[error("make the request")]
    Pki(#[from] PkiError),
    /// The API refused a call or did not answer it.
    #[error("{}", .0.chain())]
    Api(#[from] Error),
    /// It does not answer.
    #[error("the Kubernetes API does not answer")]
    Silent,
    /// What it answered is not what it should be.
    #[error("{0}")]
    Answer(&'static str),
    /// The request was refused.
    #[error("the request was {state}: {message}")]
    Refused {
        /// In which way.
        state: String,
        /// Why.
        message: String,
    },
}

/// A request on its way; dropping it gives up.
#[derive(Debug)]
pub(super) struct Pending {
    /// The plan it is for.
    pub(super) mark: String,
    outcome: Arc<OnceLock<Option<String>>>,
    task: JoinHandle<()>,
}

impl Pending {
    /// Requests a certificate for the kubelet of this node; `wake` is called when there is an outcome.
    pub(super) fn start(mark: String, client: Client, nodename: String, wake: Option<Wake>) -> Self {
        let outcome = Arc::new(OnceLock::new());
        let own = Arc::clone(&outcome);
        let task = tokio::spawn(async move {
            let _ = own.set(within_limits(&client, &nodename).await);
            if let Some(wake) = wake {
                wake.wake();
            }
        });
        Self { mark, outcome, task }
    }

    /// Nothing while it is on its way; then certificate and key, if there are any.
    pub(super) fn outcome(&self) -> Option<Option<String>> {
        self.outcome.get().cloned()
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn within_limits(client: &Client, nodename: &str) -> Option<String> {
    match timeout(REQUEST_MAX, obtain(client, nodename)).await {
        Ok(Ok(pem)) => return Some(pem),
        Ok(Err(error)) => warn!(%error, "no client certificate for the kubelet; it requests one itself"),
        Err(_) => info!("no client certificate for the kubelet yet; it requests one itself"),
    }
    None
}

/// Certificate and key; asks until it is told that there will be none.
async fn obtain(client: &Client, nodename: &str) -> Result<String, RequestError> {
    let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256)?;
    let request =
        Request::make(&key, &format!("system:node:{nodename}"), &["system:nodes".to_owned()], &[], &[])?;
    loop {
        match attempt(client, &request).await {
            Ok(certificate) => return Ok(format!("{certificate}{}", key.to_pem())),
            Err(error @ RequestError::Refused { .. }) => return Err(error),
            Err(error) => debug!(%error, "request of the kubelet's client certificate"),
        }
        sleep(AGAIN).await;
    }
}

/// Makes one request and waits until it is signed.
async fn attempt(client: &Client, request: &str) -> Result<String, RequestError> {
    // The same request has the same name, so that an attempt after an answer that got lost finds it.
    let hash = ichor_pki::sha256(request.as_bytes());
    let name: String = hash.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    let target = Target::new(REQUESTS, "", &format!("node-csr-{name}"));
    let object = json!({
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": { "name": target.name },
        "spec": {
            "request": STANDARD.encode(request),
            "signerName": SIGNER,
            "usages": ["digital signature", "client auth"],
        },
    });
    match called(client.create(&REQUESTS, "", &object, Write::by(MANAGER))).await {
        Err(RequestError::Api(error)) if error.is_already_exists() => {}
        made => drop(made?),
    }
    loop {
        sleep(LOOK).await;
        if let Some(certificate) = signed(&called(client.get(&target)).await?)? {
            return Ok(certificate);
        }
    }
}

async fn called(call: impl Future<Output = Result<Json, Error>>) -> Result<Json, RequestError> {
    Ok(timeout(CALL_MAX, call).await.map_err(|_| RequestError::Silent)??)
}

/// The certificate of a request; nothing while it is undecided or not signed yet.
fn signed(request: &Json) -> Result<Option<String>, RequestError> {
    let status = &request["status"];
    let text = |value: &Json| value.as_str().unwrap_or_default().to_owned();
    let conditions = status["conditions"].as_array().into_iter().flatten();
    for condition in conditions.filter(|condition| condition["status"] != "False") {
        if let Some(state @ ("Denied" | "Failed")) = condition["type"].as_str() {
            return Err(RequestError::Refused {
                state: state.to_lowercase(),
                message: text(&condition["message"]),
            });
        }
    }
    let Some(encoded) = status["certificate"].as_str().filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    let pem = STANDARD.decode(encoded).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    let mut pem = pem.ok_or(RequestError::Answer("a certificate that is not PEM"))?;
    if !pem.ends_with('\n') {
        pem.push('\n');
    }
    Ok(Some(pem))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_signed_undecided_or_refused() {
        let request = |status: Json| json!({ "status": status });
        assert_eq!(signed(&json!({})).unwrap(), None);
        let approved = json!({"type": "Approved", "status": "True"});
        assert_eq!(signed(&request(json!({"conditions": [approved]}))).unwrap(), None);
        let certificate = STANDARD.encode("PEM");
        let done = request(json!({"conditions": [approved], "certificate": certificate}));
        assert_eq!(signed(&done).unwrap().as_deref(), Some("PEM\n"));
        let denied = json!({"type": "Denied", "status": "True", "message": "not yours"});
        let error = signed(&request(json!({"conditions": [denied]}))).unwrap_err();
        assert_eq!(error.to_string(), "the request was denied: not yours");
    }
}
