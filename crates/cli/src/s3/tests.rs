//! Buckets of a service on the loopback, and credentials of instances from answers that are made up.

use std::fmt::Write as _;
use std::future::ready;
use std::pin::Pin;
use std::sync::Mutex;

use ichor_testkit::s3::{KEY_ID, REGION, SECRET, Server};
use object_store::ClientOptions;
use object_store::client::{HttpClient, HttpConnector, HttpError, HttpRequest, HttpResponse, HttpService};

use super::*;

fn bucket(server: &Server, secret: &str) -> Bucket {
    let env = |name: &str| match name {
        "AWS_ACCESS_KEY_ID" => Some(KEY_ID.to_owned()),
        "AWS_SECRET_ACCESS_KEY" => Some(secret.to_owned()),
        "AWS_REGION" => Some(REGION.to_owned()),
        "CUSTOM_S3_ENDPOINT" => Some(server.endpoint()),
        _ => None,
    };
    let place = Place::new("backups", "").unwrap();
    let settings = Settings::resolve(&place, Given::default(), &env, &|_| None).unwrap();
    Bucket::with(settings, connect::Connector::default(), Duration::from_millis(1)).unwrap()
}

fn file(content: &[u8]) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), content).unwrap();
    file
}

#[tokio::test]
async fn objects_are_stored_listed_read_and_deleted() {
    let server = Server::start().unwrap();
    let mut bucket = bucket(&server, SECRET);
    let content: Vec<u8> = (0..700_000_u32).map(|at| (at % 253) as u8).collect();
    let file = file(&content);
    let keys = ["a/x-2026-01-13T06:00:00Z.snap", "a/y & z", "a/ü", "a/w", "b/v"];
    for key in keys {
        bucket.put(key, file.path()).await.unwrap();
    }
    assert_eq!(server.get("backups/a/x-2026-01-13T06:00:00Z.snap").unwrap(), content);
    // More than a page.
    assert_eq!(bucket.list("a/").await.unwrap(), ["a/w", keys[0], "a/y & z", "a/ü"]);
    assert_eq!(bucket.list("a/x-").await.unwrap(), [keys[0]]);
    assert_eq!(bucket.list("").await.unwrap().len(), 5);
    let mut out = Vec::new();
    bucket.get("a/y & z", 1 << 20, &mut out).await.unwrap();
    assert_eq!(out, content);
    let long = bucket.get("a/w", 10, &mut Vec::new()).await.unwrap_err().to_string();
    assert!(long.contains("longer than 10 bytes"), "{long}");
    bucket.delete("a/w").await.unwrap();
    assert_eq!(server.keys().len(), 4);
    let missing = bucket.get("a/w", 10, &mut Vec::new()).await.unwrap_err().to_string();
    assert!(missing.contains("read s3://backups/a/w: NoSuchKey: there is no such object"), "{missing}");
}

#[tokio::test]
async fn a_large_file_goes_up_in_parts_and_is_one_object() {
    let server = Server::start().unwrap();
    let content: Vec<u8> = (0..PART as u32 * 2 + 5).map(|at| (at % 251) as u8).collect();
    bucket(&server, SECRET).put("large", file(&content).path()).await.unwrap();
    assert_eq!(server.get("backups/large").unwrap(), content);
    assert_eq!(server.keys(), ["backups/large"]);
}

#[tokio::test]
async fn a_wrong_key_is_told_and_not_tried_again() {
    let server = Server::start().unwrap();
    let refused = bucket(&server, "another").list("").await.unwrap_err().to_string();
    assert!(refused.contains("SignatureDoesNotMatch") && refused.contains("AWS_SECRET"), "{refused}");
}

#[tokio::test]
async fn a_service_that_stumbles_is_asked_again_a_few_times() {
    let server = Server::start().unwrap();
    let mut bucket = bucket(&server, SECRET);
    server.stumble(2);
    assert_eq!(bucket.list("").await.unwrap(), [] as [&str; 0]);
    server.stumble(3);
    let refused = bucket.list("").await.unwrap_err().to_string();
    assert!(refused.contains("SlowDown"), "{refused}");
}

/// Answers by what the address contains, and notes what was asked by whom.
#[derive(Debug, Clone, Default)]
struct MadeUp {
    answers: &'static [(&'static str, &'static str)],
    seen: Arc<Mutex<String>>,
}

impl HttpConnector for MadeUp {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

impl HttpService for MadeUp {
    fn call<'a, 'r>(
        &'a self,
        request: HttpRequest,
    ) -> Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'r>>
    where
        'a: 'r,
        Self: 'r,
    {
        let uri = request.uri().to_string();
        let said = request.headers().get("authorization").map_or("", |value| value.to_str().unwrap());
        let said = said.split('/').next().unwrap_or_default();
        let line = format!("{} {} {said}", request.method(), uri.split('?').next().unwrap_or_default());
        let _ = writeln!(self.seen.lock().unwrap(), "{}", line.trim_end());
        let answer = self.answers.iter().find(|(part, _)| uri.contains(part));
        let (code, body) = answer.map_or((404, ""), |(_, body)| (200, *body));
        let response = http::Response::builder()
            .status(code)
            .header("content-length", body.len())
            .header("last-modified", "Thu, 01 Jan 2026 00:00:00 GMT")
            .header("etag", "\"x\"")
            .body(body.to_owned().into());
        Box::pin(ready(Ok(response.unwrap())))
    }
}

/// What is asked, and by whom, to read the object `a` of a bucket on an instance with a role.
async fn asked(address: &str, env: &[(&str, &str)], answers: &'static [(&str, &str)]) -> String {
    let env = |name: &str| env.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
    let place = Place::parse(address).unwrap().unwrap();
    let settings = Settings::resolve(&place, Given::default(), &env, &|_| None).unwrap();
    let service = MadeUp { answers, seen: Arc::default() };
    let seen = service.seen.clone();
    let mut bucket = Bucket::with(settings, service, Duration::from_millis(1)).unwrap();
    let mut out = Vec::new();
    bucket.get("a", 100, &mut out).await.unwrap_or_else(|failure| panic!("{failure}"));
    assert_eq!(out, b"content");
    seen.lock().unwrap().clone()
}

#[tokio::test]
async fn instances_use_their_roles_in_all_three_clouds() {
    let seen = asked(
        "s3://backups",
        &[],
        &[
            ("api/token", "token"),
            (
                "security-credentials/role",
                r#"{"AccessKeyId":"id","SecretAccessKey":"s","Token":"t","Expiration":"2999-01-01T00:00:00Z"}"#,
            ),
            ("security-credentials", "role"),
            ("amazonaws", "content"),
        ],
    )
    .await;
    expect_test::expect![[r#"
        PUT http://169.254.169.254/latest/api/token
        GET http://169.254.169.254/latest/meta-data/iam/security-credentials/
        GET http://169.254.169.254/latest/meta-data/iam/security-credentials/role
        GET https://backups.s3.us-east-1.amazonaws.com/a AWS4-HMAC-SHA256 Credential=id
    "#]]
    .assert_eq(&seen);
    let seen = asked(
        "gs://backups",
        &[],
        &[
            ("metadata", r#"{"access_token":"tok","expires_in":3600,"token_type":"Bearer"}"#),
            ("storage.googleapis.com", "content"),
        ],
    )
    .await;
    expect_test::expect![[r#"
        GET http://metadata.google.internal/computeMetadata/v1/instance/service-accounts/default/token
        GET https://storage.googleapis.com/backups/a Bearer tok
    "#]]
    .assert_eq(&seen);
    let seen = asked(
        "az://backups",
        &[("AZURE_STORAGE_ACCOUNT_NAME", "acme")],
        &[
            (
                "metadata",
                r#"{"access_token":"tok","expires_on":"32503680000","resource":"r","token_type":"Bearer"}"#,
            ),
            ("acme.blob.core.windows.net", "content"),
        ],
    )
    .await;
    expect_test::expect![[r#"
        GET http://169.254.169.254/metadata/identity/oauth2/token
        GET https://acme.blob.core.windows.net/backups/a Bearer tok
    "#]]
    .assert_eq(&seen);
}

#[test]
fn missing_settings_are_named() {
    let place = Place::parse("az://backups").unwrap().unwrap();
    let settings = Settings::resolve(&place, Given::default(), &|_| None, &|_| None).unwrap();
    let failure = Bucket::new(settings).err().unwrap().to_string();
    assert!(failure.to_lowercase().contains("account"), "{failure}");
}
