//! Certificates of every kind for a live cluster, and calls of any method that do nothing but knock.

use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use ichor_pki::{Authority, ExtendedUsage, KeyAlgorithm, KeyPair, Leaf};
use ichor_rpc::{Channel, ClientTls, Dialer, Endpoint};
use tonic::{Code, Status};

/// The longest time for one call.
const CALL_MAX: Duration = Duration::from_secs(60);

pub(crate) fn now() -> jiff::Timestamp {
    jiff::Timestamp::now()
}

/// A client certificate with these roles.
pub(crate) fn certificate(authority: &Authority, roles: &[&str]) -> KeyPair {
    authority.issue(&Leaf::client("matrix", roles.iter().copied()), now()).unwrap()
}

/// Certificates that must not open anything, each with what is wrong with it.
pub(crate) fn bad_certificates(authority: &Authority) -> Vec<(&'static str, Option<KeyPair>)> {
    let admin = || Leaf::client("matrix", ["os:admin"]);
    let other = |name: &str| {
        let other = Authority::generate(KeyAlgorithm::Ed25519, name, now(), Authority::TEN_YEARS).unwrap();
        other.issue(&admin(), now()).unwrap()
    };
    let used_as = |usage| authority.issue(&Leaf { extended_usage: usage, ..admin() }, now()).unwrap();
    let day = Duration::from_secs(24 * 3600);
    vec![
        ("no certificate", None),
        ("expired", Some(authority.issue(&admin(), now() - 3 * day).unwrap())),
        ("not valid yet", Some(authority.issue(&admin(), now() + 3 * day).unwrap())),
        ("of another authority", Some(other("elsewhere"))),
        ("of another authority with the same name", Some(other("talos"))),
        ("for servers", Some(used_as(ExtendedUsage::Server))),
        ("for servers and clients", Some(used_as(ExtendedUsage::Both))),
    ]
}

/// A connection to a machine, made when the first call needs it.
pub(crate) fn channel(address: &str, authority: &Authority, pair: Option<&KeyPair>) -> Channel<Full<Bytes>> {
    let identity = pair.map(|pair| (pair.crt.as_bytes(), pair.key.as_bytes()));
    let tls = ClientTls::verified(authority.crt_pem(), identity).unwrap();
    Channel::new(Dialer::tls([Endpoint::new(address, 50000)], tls))
}

/// A connection to a machine in maintenance mode.
pub(crate) fn insecure(address: &str) -> Channel<Full<Bytes>> {
    Channel::new(Dialer::tls([Endpoint::new(address, 50000)], ClientTls::insecure([]).unwrap()))
}

/// Calls a method with a message that no method can read: whoever is let in hears that, and nothing happens.
pub(crate) async fn knock(
    channel: &Channel<Full<Bytes>>,
    path: &str,
    metadata: &[(&str, &str)],
) -> (Status, Vec<Bytes>) {
    let mut request = Request::post(format!("https://machine{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    for (key, value) in metadata {
        request = request.header(*key, *value);
    }
    // One message of one byte: the beginning of a field that never comes.
    let request = request.body(Full::new(Bytes::from_static(&[0, 0, 0, 0, 1, 0xff]))).unwrap();
    let answer = async {
        let (head, body) = channel.send(request).await?.into_parts();
        let body = body.collect().await.map_err(|error| Status::unavailable(error.to_string()))?;
        let trailers = body.trailers().cloned().unwrap_or_default();
        let status = Status::from_header_map(&head.headers).or(Status::from_header_map(&trailers));
        let messages = messages(&body.to_bytes());
        Ok((status.unwrap_or_else(|| Status::data_loss("no status")), messages))
    };
    match tokio::time::timeout(CALL_MAX, answer).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(status)) => (status, Vec::new()),
        Err(_) => (Status::new(Code::DeadlineExceeded, "no answer"), Vec::new()),
    }
}

fn messages(mut body: &[u8]) -> Vec<Bytes> {
    let mut found = Vec::new();
    while let Some((header, rest)) = body.split_first_chunk::<5>() {
        let length = u32::from_be_bytes([header[1], header[2], header[3], header[4]]) as usize;
        let Some((message, rest)) = rest.split_at_checked(length) else { break };
        found.push(Bytes::copy_from_slice(message));
        body = rest;
    }
    found
}
