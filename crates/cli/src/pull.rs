//! A small client of image registries: manifests and blobs, over HTTP/1.1, with tokens where they are asked for.

use std::collections::HashMap;
use std::io::Write;
use std::time::Duration;

use http::header::{ACCEPT, AUTHORIZATION, WWW_AUTHENTICATE};
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use ichor_http::client::collect;
use ichor_http::{Client, Pieces};

use crate::failure::{Context as _, Failure};

/// Time to connect, and to begin an answer.
const ANSWER_MAX: Duration = Duration::from_secs(30);
/// The largest manifest or token.
const DOCUMENT_MAX: usize = 4 << 20;
/// Places an answer may send us on to.
const REDIRECTS_MAX: usize = 5;
/// The manifests that are understood.
const ACCEPTED: &str = "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, \
                        application/vnd.docker.distribution.manifest.list.v2+json, \
                        application/vnd.docker.distribution.manifest.v2+json";

/// An image, as people name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reference {
    /// Host of the registry.
    pub registry: String,
    /// The repository in it.
    pub repository: String,
    /// The tag, where one is named.
    pub tag: Option<String>,
    /// The digest, where one is named.
    pub digest: Option<String>,
}

impl Reference {
    /// Reads `[registry/]repository[:tag][@digest]`.
    pub fn parse(text: &str) -> Option<Self> {
        let (rest, digest) = match text.split_once('@') {
            Some((rest, digest)) => (rest, Some(digest.to_owned())),
            None => (text, None),
        };
        let (name, tag) = match rest.rsplit_once(':') {
            Some((name, tag)) if !tag.contains('/') => (name, Some(tag.to_owned())),
            _ => (rest, None),
        };
        let (registry, repository) = match name.split_once('/') {
            Some((host, path)) if host.contains(['.', ':']) || host == "localhost" => (host, path.to_owned()),
            Some(_) => ("docker.io", name.to_owned()),
            None => ("docker.io", format!("library/{name}")),
        };
        let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "._-/".contains(c);
        let parts = repository.split('/').all(|part| !part.is_empty());
        let tag_good = tag.as_ref().is_none_or(|tag| {
            !tag.is_empty() && tag.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
        });
        let digest_good = digest.as_ref().is_none_or(|digest| {
            digest
                .strip_prefix("sha256:")
                .is_some_and(|hex| hex.len() == 64 && hex.bytes().all(|byte| byte.is_ascii_hexdigit()))
        });
        if !parts || !repository.chars().all(good) || !tag_good || !digest_good {
            return None;
        }
        let tag = match (&tag, &digest) {
            (None, None) => Some("latest".to_owned()),
            _ => tag,
        };
        Some(Self { registry: registry.to_owned(), repository, tag, digest })
    }

    /// What the manifest is asked by.
    pub fn wanted(&self) -> &str {
        self.digest.as_deref().or(self.tag.as_deref()).unwrap_or("latest")
    }
}

/// A client; it remembers the tokens it was given.
pub struct Registry {
    insecure: bool,
    client: Client,
    tokens: HashMap<String, String>,
}

impl Registry {
    /// A client; `insecure` lets registries answer without TLS.
    pub fn new(insecure: bool) -> Self {
        Self { insecure, client: Client::system(), tokens: HashMap::new() }
    }

    /// A manifest, as it is, and its digest.
    pub async fn manifest(&mut self, image: &Reference, wanted: &str) -> Result<(Vec<u8>, String), Failure> {
        let mut body = Vec::new();
        let path = format!("/v2/{}/manifests/{wanted}", image.repository);
        self.read(image, &path, DOCUMENT_MAX as u64, &mut body).await?;
        let digest = digest_of(&body);
        if wanted.starts_with("sha256:") && wanted != digest {
            return Err(Failure::new(format!(
                "the manifest {wanted} of {} is another one",
                image.repository
            )));
        }
        Ok((body, digest))
    }

    /// A blob of at most `size` bytes, written to `out`; its digest is for the caller to check.
    pub async fn blob(
        &mut self,
        image: &Reference,
        digest: &str,
        size: u64,
        out: &mut impl Write,
    ) -> Result<(), Failure> {
        let path = format!("/v2/{}/blobs/{digest}", image.repository);
        self.read(image, &path, size, out).await
    }

    async fn read(
        &mut self,
        image: &Reference,
        path: &str,
        limit: u64,
        out: &mut impl Write,
    ) -> Result<(), Failure> {
        let host = match image.registry.as_str() {
            "docker.io" => "registry-1.docker.io",
            host => host,
        };
        let scheme = if self.insecure { "http" } else { "https" };
        let url = format!("{scheme}://{host}{path}");
        let scope = format!("{host}/{}", image.repository);
        let mut response = self.get(&url, self.tokens.get(&scope).cloned()).await?;
        if response.status() == StatusCode::UNAUTHORIZED {
            let token = self.token(&response).await?;
            self.tokens.insert(scope.clone(), token.clone());
            response = self.get(&url, Some(token)).await?;
        }
        if !response.status().is_success() {
            return Err(Failure::new(format!("{url}: {}", response.status())));
        }
        let mut body = response.into_body();
        let mut left = limit;
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| Failure::new(format!("{url}: {error}")))?;
            let Ok(data) = frame.into_data() else { continue };
            left = left
                .checked_sub(data.len() as u64)
                .ok_or_else(|| Failure::new(format!("{url}: longer than {limit} bytes")))?;
            out.write_all(&data).map_err(|error| Failure::new(format!("write what {url} sends: {error}")))?;
        }
        Ok(())
    }

    /// Gets a token where the answer says.
    async fn token(&mut self, response: &Response<Pieces>) -> Result<String, Failure> {
        let header = response.headers().get(WWW_AUTHENTICATE).and_then(|value| value.to_str().ok());
        let url = token_url(header.unwrap_or_default())
            .ok_or_else(|| Failure::new("the registry wants credentials of a kind that is not known here"))?;
        let answer = self.get(&url, None).await?;
        if !answer.status().is_success() {
            return Err(Failure::new(format!("{url}: {}", answer.status())));
        }
        let body = collect(answer.into_body(), &url, DOCUMENT_MAX).await.plain()?;
        let value: serde_json::Value = serde_json::from_slice(&body).context(&url)?;
        let token = ["token", "access_token"].into_iter().find_map(|key| value[key].as_str());
        token.map(str::to_owned).ok_or_else(|| Failure::new(format!("{url}: no token in the answer")))
    }

    /// Asks, and goes where the answer sends us; elsewhere our token is nobody's business.
    async fn get(&self, url: &str, token: Option<String>) -> Result<Response<Pieces>, Failure> {
        let mut request = Request::get(url).header(ACCEPT, ACCEPTED);
        if let Some(token) = token {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = request.body(()).context(url)?;
        self.client.follow(request, REDIRECTS_MAX, ANSWER_MAX).await.plain()
    }
}

/// Where a token is to be had, as a refusal says: `Bearer realm="…",service="…",scope="…"`.
fn token_url(header: &str) -> Option<String> {
    let rest = header.strip_prefix("Bearer ")?;
    let value = |key: &str| {
        let (_, rest) = rest.split_once(&format!("{key}=\""))?;
        rest.split_once('"').map(|(value, _)| value.to_owned())
    };
    let realm = value("realm")?;
    let mut url = realm;
    for (key, mark) in [("service", '?'), ("scope", '&')] {
        if let Some(text) = value(key) {
            let mark = if url.contains('?') { '&' } else { mark };
            url.push_str(&format!("{mark}{key}={}", text.replace(' ', "%20")));
        }
    }
    Some(url)
}

/// The digest of bytes.
pub fn digest_of(bytes: &[u8]) -> String {
    let hex: String = ichor_pki::sha256(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_read_as_people_write_them() {
        let digest = format!("sha256:{}", "a".repeat(64));
        let pinned = format!("ghcr.io/siderolabs/kubelet:v1@{digest}");
        for (text, expected) in [
            ("registry.k8s.io/pause:3.10", Some(("registry.k8s.io", "pause", Some("3.10")))),
            ("alpine", Some(("docker.io", "library/alpine", Some("latest")))),
            ("team/app", Some(("docker.io", "team/app", Some("latest")))),
            ("localhost:5000/a/b:x", Some(("localhost:5000", "a/b", Some("x")))),
            (pinned.as_str(), Some(("ghcr.io", "siderolabs/kubelet", Some("v1")))),
            ("ghcr.io/a@sha256:short", None),
            ("ghcr.io//a:b", None),
            ("UPPER/case", None),
            ("", None),
        ] {
            let read = Reference::parse(text);
            let parts = read
                .as_ref()
                .map(|image| (image.registry.as_str(), image.repository.as_str(), image.tag.as_deref()));
            assert_eq!(parts, expected, "{text}");
        }
        assert_eq!(Reference::parse(&pinned).unwrap().wanted(), digest);
    }

    #[test]
    fn a_refusal_says_where_tokens_are() {
        assert_eq!(
            token_url(r#"Bearer realm="https://auth.docker.io/token",service="registry.docker.io",scope="repository:a/b:pull""#)
                .as_deref(),
            Some("https://auth.docker.io/token?service=registry.docker.io&scope=repository:a/b:pull")
        );
        assert_eq!(token_url("Basic realm=\"x\""), None);
    }
}
