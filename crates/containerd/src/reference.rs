//! Names of images.

/// Longest registry and repository together.
const NAME_MAX: usize = 255;
/// Longest reference that is looked at: name, tag and digest.
const LEN_MAX: usize = NAME_MAX + 128 + 80;

/// A reference in its full form: registry, repository, tag or digest. `nginx` becomes
/// `docker.io/library/nginx:latest`; what is no reference is `None`.
pub fn normalize(text: &str) -> Option<String> {
    if text.len() > LEN_MAX {
        return None;
    }
    let (rest, digest) = match text.split_once('@') {
        Some((rest, digest)) => {
            (rest, Some(digest).filter(|digest| is_digest(digest))).1.map(|digest| (rest, Some(digest)))?
        }
        None => (text, None),
    };
    let (path, tag) = match rest.rsplit_once(':') {
        // A colon before a slash belongs to a port.
        Some((path, tag)) if !tag.contains('/') => (path, Some(tag).filter(|tag| is_tag(tag))?),
        _ => (rest, ""),
    };
    let (registry, repository) = match path.split_once('/') {
        Some((first, rest)) if first.contains(['.', ':']) || first == "localhost" => (first, rest.to_owned()),
        Some(_) => ("docker.io", path.to_owned()),
        None => ("docker.io", format!("library/{path}")),
    };
    let part = |part: &str| {
        let edge = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
        let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._-".contains(&byte);
        edge(part.as_bytes().first()) && edge(part.as_bytes().last()) && part.bytes().all(inner)
    };
    let fits = registry.len() + 1 + repository.len() <= NAME_MAX;
    if registry.is_empty() || !fits || !repository.split('/').all(part) {
        return None;
    }
    let tag = match (tag, digest) {
        ("", None) => ":latest".to_owned(),
        ("", Some(_)) => String::new(),
        (tag, _) => format!(":{tag}"),
    };
    let digest = digest.map(|digest| format!("@{digest}")).unwrap_or_default();
    Some(format!("{registry}/{repository}{tag}{digest}"))
}

fn is_tag(tag: &str) -> bool {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=128).contains(&tag.len()) && tag.bytes().all(good)
}

fn is_digest(digest: &str) -> bool {
    let Some(("sha256", hex)) = digest.split_once(':') else { return false };
    hex.len() == 64 && hex.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_completed_and_checked() {
        let digest = format!("sha256:{}", "a".repeat(64));
        for (text, full) in [
            ("nginx", "docker.io/library/nginx:latest"),
            ("nginx:1.2", "docker.io/library/nginx:1.2"),
            ("siderolabs/kubelet:v1", "docker.io/siderolabs/kubelet:v1"),
            ("registry.k8s.io/pause:3.10", "registry.k8s.io/pause:3.10"),
            ("localhost:5000/a/b", "localhost:5000/a/b:latest"),
            (&format!("ghcr.io/x/y@{digest}"), &format!("ghcr.io/x/y@{digest}")),
            (&format!("ghcr.io/x/y:v1@{digest}"), &format!("ghcr.io/x/y:v1@{digest}")),
        ] {
            assert_eq!(normalize(text).as_deref(), Some(full), "{text}");
        }
        for text in
            ["", "UPPER", "a b", "x:", "ghcr.io/x@sha256:short", "/x", "ghcr.io//x", "a:b/c:d:e", "x@y"]
        {
            assert_eq!(normalize(text), None, "{text}");
        }
    }
}
