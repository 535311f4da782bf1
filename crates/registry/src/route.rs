//! What a request asks for, and what can be wrong with it. Pure.

use http::{Method, StatusCode};

/// The longest repository name and reference there may be.
const NAME_MAX: usize = 255;

/// What a request asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Route {
    /// Is this a registry?
    Base,
    /// The manifest of an image.
    Manifest {
        /// The registry the image is from, when the caller says it (`?ns=`).
        registry: Option<String>,
        /// The repository.
        name: String,
        /// A tag or a digest.
        reference: String,
    },
    /// A layer, a configuration or a manifest by its digest.
    Blob {
        /// `sha256:…`
        digest: String,
    },
    /// The tags of a repository.
    Tags {
        /// The registry the image is from, when the caller says it (`?ns=`).
        registry: Option<String>,
        /// The repository.
        name: String,
    },
}

/// Why a request is refused; the codes are those of the distribution protocol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The HTTP status.
    pub status: StatusCode,
    /// The code of the protocol.
    pub code: &'static str,
    /// What is wrong, for people.
    pub message: String,
}

impl Refusal {
    /// A refusal.
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into() }
    }

    /// The body the protocol asks for.
    pub fn body(&self) -> String {
        serde_json::json!({ "errors": [{ "code": self.code, "message": self.message }] }).to_string()
    }
}

/// Reads a request line.
pub fn parse(method: &Method, path: &str, query: Option<&str>) -> Result<Route, Refusal> {
    if method != Method::GET && method != Method::HEAD {
        let message = format!("this registry only gives; {method} is not possible");
        return Err(Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "UNSUPPORTED", message));
    }
    let unknown =
        || Refusal::new(StatusCode::NOT_FOUND, "NAME_UNKNOWN", format!("there is nothing at {path}"));
    let rest = path.strip_prefix("/v2").ok_or_else(unknown)?;
    if rest.is_empty() || rest == "/" {
        return Ok(Route::Base);
    }
    let rest = rest.strip_prefix('/').ok_or_else(unknown)?;
    let registry = registry(query)?;
    if let Some((repository, reference)) = rest.rsplit_once("/manifests/") {
        if reference.contains(':') {
            digest(reference)?;
        } else {
            tag(reference)?;
        }
        return Ok(Route::Manifest { registry, name: name(repository)?, reference: reference.to_owned() });
    }
    if let Some((repository, reference)) = rest.rsplit_once("/blobs/") {
        name(repository)?;
        return Ok(Route::Blob { digest: digest(reference)? });
    }
    if let Some(repository) = rest.strip_suffix("/tags/list") {
        return Ok(Route::Tags { registry, name: name(repository)? });
    }
    Err(unknown())
}

/// The registry a mirror is asked in the name of.
fn registry(query: Option<&str>) -> Result<Option<String>, Refusal> {
    let Some(value) = query.into_iter().flat_map(|q| q.split('&')).find_map(|pair| pair.strip_prefix("ns="))
    else {
        return Ok(None);
    };
    let value = value.replace("%3A", ":").replace("%3a", ":");
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b".-:[]_".contains(&byte);
    if value.is_empty() || value.len() > NAME_MAX || !value.bytes().all(fits) {
        return Err(Refusal::new(
            StatusCode::BAD_REQUEST,
            "NAME_INVALID",
            format!("ns={value} is not a registry"),
        ));
    }
    Ok(Some(value))
}

fn name(text: &str) -> Result<String, Refusal> {
    let part = |part: &str| {
        let edge = |byte: Option<&u8>| byte.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        let bytes = part.as_bytes();
        edge(bytes.first())
            && edge(bytes.last())
            && bytes.iter().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"._-".contains(b))
    };
    if text.len() > NAME_MAX || !text.split('/').all(part) {
        let message = format!("{text:?} is not a repository name");
        return Err(Refusal::new(StatusCode::BAD_REQUEST, "NAME_INVALID", message));
    }
    Ok(text.to_owned())
}

fn tag(text: &str) -> Result<(), Refusal> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if text.is_empty() || text.len() > 128 || !text.bytes().all(fits) || text.starts_with(['.', '-']) {
        let message = format!("{text:?} is not a tag");
        return Err(Refusal::new(StatusCode::BAD_REQUEST, "MANIFEST_INVALID", message));
    }
    Ok(())
}

fn digest(text: &str) -> Result<String, Refusal> {
    let hex = |rest: &str| {
        rest.len() == 64 && rest.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    };
    if !text.strip_prefix("sha256:").is_some_and(hex) {
        let message = format!("{text:?} is not a digest of the form sha256:<64 hexadecimal digits>");
        return Err(Refusal::new(StatusCode::BAD_REQUEST, "DIGEST_INVALID", message));
    }
    Ok(text.to_owned())
}

/// The part of a file a `Range` header asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// All of it: no header, or one of a kind that may be ignored.
    Whole,
    /// From the first to the last byte, both included.
    Bytes(u64, u64),
    /// A part that is not there.
    Outside,
}

/// Reads a `Range` header for a file of this size. Several ranges at once may be answered with the whole, and are.
pub fn range(header: Option<&str>, size: u64) -> Part {
    let Some(spec) = header.and_then(|header| header.trim().strip_prefix("bytes=")) else {
        return Part::Whole;
    };
    if spec.contains(',') {
        return Part::Whole;
    }
    let Some((first, last)) = spec.split_once('-') else { return Part::Whole };
    let number = |text: &str| text.trim().parse::<u64>().ok();
    match (first.trim().is_empty(), last.trim().is_empty()) {
        (true, false) => match number(last) {
            Some(0) => Part::Outside,
            Some(_) if size == 0 => Part::Outside,
            Some(tail) => Part::Bytes(size.saturating_sub(tail), size - 1),
            None => Part::Whole,
        },
        (false, open) => match (number(first), number(last)) {
            (Some(first), _) if first >= size => Part::Outside,
            (Some(first), None) if open => Part::Bytes(first, size - 1),
            (Some(first), Some(last)) if first <= last => Part::Bytes(first, last.min(size - 1)),
            _ => Part::Whole,
        },
        (true, true) => Part::Whole,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    fn get(path: &str) -> Result<Route, Refusal> {
        let (path, query) = path.split_once('?').map_or((path, None), |(path, query)| (path, Some(query)));
        parse(&Method::GET, path, query)
    }

    #[test]
    fn requests_of_runtimes_are_understood() {
        assert_eq!(get("/v2/"), Ok(Route::Base));
        assert_eq!(get("/v2"), Ok(Route::Base));
        assert_eq!(
            get("/v2/coredns/coredns/manifests/v1.13.2?ns=registry.k8s.io"),
            Ok(Route::Manifest {
                registry: Some("registry.k8s.io".into()),
                name: "coredns/coredns".into(),
                reference: "v1.13.2".into()
            })
        );
        assert_eq!(get(&format!("/v2/pause/blobs/{DIGEST}")), Ok(Route::Blob { digest: DIGEST.into() }));
        assert_eq!(get("/v2/pause/tags/list"), Ok(Route::Tags { registry: None, name: "pause".into() }));
        assert_eq!(
            get("/v2/a/manifests/b?ns=localhost%3A5000"),
            Ok(Route::Manifest {
                registry: Some("localhost:5000".into()),
                name: "a".into(),
                reference: "b".into()
            })
        );
    }

    #[test]
    fn what_is_no_request_is_refused_by_name() {
        let code = |path: &str| get(path).unwrap_err().code;
        assert_eq!(code("/"), "NAME_UNKNOWN");
        assert_eq!(code("/v2x"), "NAME_UNKNOWN");
        assert_eq!(code("/v2/../../etc/passwd/blobs/x"), "NAME_INVALID");
        assert_eq!(code("/v2/UPPER/manifests/v1"), "NAME_INVALID");
        assert_eq!(code("/v2/a//b/manifests/v1"), "NAME_INVALID");
        assert_eq!(code("/v2/a/manifests/.."), "MANIFEST_INVALID");
        assert_eq!(code("/v2/a/manifests/"), "MANIFEST_INVALID");
        assert_eq!(code("/v2/a/manifests/sha256:12"), "DIGEST_INVALID");
        assert_eq!(code("/v2/a/blobs/../../../index.json"), "DIGEST_INVALID");
        assert_eq!(code("/v2/a/manifests/v1?ns=a/b"), "NAME_INVALID");
        assert_eq!(
            parse(&Method::PUT, "/v2/a/manifests/v1", None).unwrap_err().status,
            StatusCode::METHOD_NOT_ALLOWED
        );
    }

    #[test]
    fn ranges() {
        for (header, want) in [
            (None, Part::Whole),
            (Some("bytes=0-0"), Part::Bytes(0, 0)),
            (Some("bytes=2-"), Part::Bytes(2, 9)),
            (Some("bytes=2-100"), Part::Bytes(2, 9)),
            (Some("bytes=-3"), Part::Bytes(7, 9)),
            (Some("bytes=-30"), Part::Bytes(0, 9)),
            (Some("bytes=-0"), Part::Outside),
            (Some("bytes=10-"), Part::Outside),
            (Some("bytes=5-4"), Part::Whole),
            (Some("bytes=a-b"), Part::Whole),
            (Some("bytes=-"), Part::Whole),
            (Some("bytes=0-1,3-4"), Part::Whole),
            (Some("lines=1-2"), Part::Whole),
            (Some("bytes=18446744073709551616-"), Part::Whole),
        ] {
            assert_eq!(range(header, 10), want, "{header:?}");
        }
        assert_eq!(range(Some("bytes=-1"), 0), Part::Outside);
    }
}
