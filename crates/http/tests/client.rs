//! The client against servers that answer as they should, and against others.

use std::sync::Arc;
use std::time::Duration;

use ichor_http::client::{Client, ClientError, Limits};
use ichor_pki::{Authority, KeyAlgorithm, Leaf};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

const LIMITS: Limits = Limits { time: Duration::from_secs(10), bytes: 1000, redirects: 5 };

/// Answers each connection with the next text, in which `{head}` stands for the request.
async fn server(answers: Vec<String>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        for answer in answers {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = vec![0; 4096];
            let length = stream.read(&mut request).await.unwrap();
            let head = String::from_utf8_lossy(&request[..length]).into_owned();
            stream.write_all(answer.replace("{head}", &head).as_bytes()).await.unwrap();
        }
    });
    format!("http://{address}")
}

async fn get(url: &str) -> Result<String, ClientError> {
    let headers = [("x-secret".to_owned(), "hush".to_owned())];
    let body = Client::plain().get(url, &headers, LIMITS).await?;
    Ok(String::from_utf8(body.to_vec()).unwrap())
}

fn closing(status: &str, headers: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\nconnection: close\r\n{headers}\r\n{body}")
}

#[tokio::test]
async fn bodies_come_whole_in_every_framing() {
    let chunked =
        closing("200 OK", "transfer-encoding: chunked\r\n", "5\r\nhello\r\n7;x\r\n, world\r\n0\r\n\r\n");
    let base = server(vec![chunked, "HTTP/1.0 200 OK\r\n\r\n{head}".into()]).await;
    assert_eq!(get(&base).await.unwrap(), "hello, world");
    let head = get(&format!("{base}/a?b=c")).await.unwrap();
    assert!(head.starts_with("GET /a?b=c HTTP/1.1\r\n") && head.contains("x-secret: hush\r\n"), "{head}");
}

#[tokio::test]
async fn redirects_are_followed_and_secrets_stay_with_the_first_host() {
    let elsewhere = server(vec!["HTTP/1.0 200 OK\r\n\r\n{head}".into()]).await;
    let base = server(vec![
        closing("302 Found", "location: /there?a=b\r\n", ""),
        closing("307 Go", &format!("location: {elsewhere}/x\r\n"), ""),
    ])
    .await;
    let head = get(&base).await.unwrap();
    assert!(head.starts_with("GET /x ") && !head.contains("hush"), "{head}");
    let endless = server(vec![closing("301 Go", "location: /x\r\n", ""); 10]).await;
    let error = get(&endless).await.unwrap_err();
    assert!(matches!(error, ClientError::Redirects { limit: 5, .. }), "{error}");
}

#[tokio::test]
async fn errors_name_the_address_and_say_whether_to_retry() {
    for (answer, retryable) in [
        (closing("404 Not Found", "", ""), false),
        (closing("503 Busy", "", ""), true),
        (closing("200 OK", "content-length: 100\r\n", "short"), true),
        (closing("200 OK", "transfer-encoding: chunked\r\n", "ff\r\nshort"), true),
        ("SSH-2.0-nonsense\r\n".into(), true),
        (String::new(), true),
        (closing("200 OK", "", &"x".repeat(1001)), false),
    ] {
        let base = server(vec![answer.clone()]).await;
        let error = get(&base).await.unwrap_err();
        assert!(error.to_string().starts_with("http://127.0.0.1:"), "{error}");
        assert_eq!(error.is_retryable(), retryable, "{answer:?}: {error}");
    }
    for bad in ["https://127.0.0.1/", "ftp://127.0.0.1/", "nonsense", "http://"] {
        assert!(!get(bad).await.unwrap_err().is_retryable(), "{bad}");
    }
}

#[tokio::test]
async fn a_server_that_falls_silent_is_given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let limits = Limits { time: Duration::from_millis(200), ..LIMITS };
    let error = Client::plain().get(&url, &[], limits).await.unwrap_err();
    assert!(matches!(error, ClientError::Timeout { .. }) && error.is_retryable(), "{error}");
}

/// A TLS server on 127.0.0.1 that answers each connection with `ok`, and the authority of its certificate.
async fn tls_server() -> (u16, Vec<u8>) {
    let now = jiff::Timestamp::now();
    let authority = Authority::generate(KeyAlgorithm::Ed25519, "test", now, Authority::TEN_YEARS).unwrap();
    let leaf = Leaf::server("here").with_names(Vec::<String>::new(), ["127.0.0.1".parse().unwrap()]);
    let pair = authority.issue(&leaf, now).unwrap();
    ichor_pki::install_provider();
    let key = ichor_pki::certified_key(&pair.crt, &pair.key).unwrap();
    let config = rustls::ServerConfig::builder()
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(key)));
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            // A client that does not trust the certificate goes away.
            let Ok(mut stream) = acceptor.accept(stream).await else { continue };
            let mut request = vec![0; 4096];
            let _ = stream.read(&mut request).await.unwrap();
            stream.write_all(closing("200 OK", "content-length: 2\r\n", "ok").as_bytes()).await.unwrap();
            let _ = stream.shutdown().await;
        }
    });
    (port, authority.crt_pem().as_bytes().to_vec())
}

#[tokio::test]
async fn https_servers_must_have_a_certificate_of_a_trusted_authority() {
    let (port, authority) = tls_server().await;
    let url = format!("https://127.0.0.1:{port}/");
    let body = Client::trusting(&authority).get(&url, &[], LIMITS).await.unwrap();
    assert_eq!(&body[..], b"ok");
    let (_, stranger) = tls_server().await;
    let error = Client::trusting(&stranger).get(&url, &[], LIMITS).await.unwrap_err();
    assert!(error.to_string().contains("invalid peer certificate"), "{error}");
    // A name that the certificate does not have.
    let url = format!("https://localhost:{port}/");
    let error = Client::trusting(&authority).get(&url, &[], LIMITS).await.unwrap_err();
    assert!(error.to_string().contains("certificate"), "{error}");
    let error = Client::trusting(b"").get(&url, &[], LIMITS).await.unwrap_err();
    assert!(error.to_string().ends_with("no certificate authorities in the trusted roots"), "{error}");
}

#[tokio::test]
async fn a_redirect_may_lead_from_http_to_https() {
    let (port, authority) = tls_server().await;
    let client = Client::trusting(&authority);
    let base =
        server(vec![closing("302 Found", &format!("location: https://127.0.0.1:{port}/\r\n"), "")]).await;
    assert_eq!(&client.get(&base, &[], LIMITS).await.unwrap()[..], b"ok");
}

#[tokio::test]
async fn heads_of_responses_are_bounded() {
    for headers in ["a: b\r\n".repeat(200), format!("a: {}\r\n", "x".repeat(200 << 10))] {
        let base = server(vec![closing("200 OK", &headers, "")]).await;
        let refused = get(&base).await;
        assert!(matches!(refused, Err(ClientError::Exchange { .. })), "{} bytes: {refused:?}", headers.len());
    }
}
