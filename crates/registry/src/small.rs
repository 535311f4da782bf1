//! The same registry with few instructions and little memory, for the node's own image cache: one thread a connection,
//! and the kernel copies files to sockets.

use std::fmt::Write as _;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::net::TcpStream;
use std::time::Duration;

use http::{Method, StatusCode};

use crate::layout::{BlobError, Layout};
use crate::route::{Part, Refusal, Route, parse, range};

/// The largest head of a request.
const HEAD_MAX: u64 = 16 << 10;
/// How long a caller may be silent.
const PATIENCE: Duration = Duration::from_secs(60);
/// Where one asks whether it is well.
const HEALTH: &str = "/healthz";

/// A request as far as it matters.
struct Head {
    method: Method,
    target: String,
    range: Option<String>,
}

/// What is sent before a body.
struct Answer {
    status: StatusCode,
    headers: String,
    body: Vec<u8>,
    /// Instead of `body`: a file that is at the right place, and how much of it.
    file: Option<(std::fs::File, u64)>,
}

/// Answers the requests of one connection until the caller goes away; earlier layouts go before later ones.
///
/// # Errors
/// When the caller goes away in the middle, or is no caller of ours.
pub fn connection(stream: &TcpStream, layouts: &[Layout]) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut reader = BufReader::with_capacity(4 << 10, stream);
    while let Some(head) = read_head(&mut reader)? {
        let answer = answer(&head, layouts).unwrap_or_else(|refusal| Answer {
            status: refusal.status,
            headers: "content-type: application/json\r\n".to_owned(),
            body: refusal.body().into_bytes(),
            file: None,
        });
        let length = answer.file.as_ref().map_or(answer.body.len() as u64, |(_, length)| *length);
        let mut out = stream;
        out.write_all(
            format!("HTTP/1.1 {}\r\n{}content-length: {length}\r\n\r\n", answer.status, answer.headers)
                .as_bytes(),
        )?;
        if head.method != Method::HEAD {
            out.write_all(&answer.body)?;
            if let Some((file, length)) = answer.file {
                io::copy(&mut file.take(length), &mut out)?;
            }
        }
    }
    Ok(())
}

fn read_head(reader: &mut impl BufRead) -> io::Result<Option<Head>> {
    let mut reader = reader.take(HEAD_MAX);
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split_whitespace();
    let method = words.next().and_then(|word| Method::from_bytes(word.as_bytes()).ok());
    let (Some(method), Some(target)) = (method, words.next()) else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    let mut head = Head { method, target: target.to_owned(), range: None };
    loop {
        line.clear();
        if reader.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        match line.trim_end().split_once(':') {
            Some((name, value)) if name.eq_ignore_ascii_case("range") => {
                head.range = Some(value.trim().to_owned())
            }
            // Nobody sends a body to who only gives.
            Some((name, value)) if name.eq_ignore_ascii_case("content-length") && value.trim() != "0" => {
                return Err(io::ErrorKind::InvalidData.into());
            }
            Some(_) => {}
            None => return Ok(Some(head)),
        }
    }
}

fn answer(head: &Head, layouts: &[Layout]) -> Result<Answer, Refusal> {
    let json = |body: Vec<u8>| Answer {
        status: StatusCode::OK,
        headers: "content-type: application/json\r\n".to_owned(),
        body,
        file: None,
    };
    let (path, query) =
        head.target.split_once('?').map_or((head.target.as_str(), None), |(p, q)| (p, Some(q)));
    if path == HEALTH {
        return Ok(json(Vec::new()));
    }
    let unknown =
        |code, what: &str| Refusal::new(StatusCode::NOT_FOUND, code, format!("there is no {what} here"));
    match parse(&head.method, path, query)? {
        Route::Base => Ok(json(b"{}".to_vec())),
        Route::Tags { registry, name } => {
            let tags = layouts.iter().flat_map(|layout| layout.tags(registry.as_deref(), &name));
            let tags: std::collections::BTreeSet<&str> = tags.collect();
            match tags.is_empty() {
                true => Err(unknown("NAME_UNKNOWN", &name)),
                false => Ok(json(serde_json::json!({ "name": name, "tags": tags }).to_string().into_bytes())),
            }
        }
        Route::Manifest { registry, name, reference } => {
            let found = layouts
                .iter()
                .find_map(|layout| Some((layout, layout.find(registry.as_deref(), &name, &reference)?)));
            let (layout, manifest) =
                found.ok_or_else(|| unknown("MANIFEST_UNKNOWN", &format!("{name} {reference}")))?;
            file(std::slice::from_ref(layout), &manifest.digest, &manifest.media_type, head)
        }
        Route::Blob { digest } => file(layouts, &digest, "application/octet-stream", head),
    }
}

fn file(layouts: &[Layout], digest: &str, kind: &str, head: &Head) -> Result<Answer, Refusal> {
    let mut last = BlobError::Missing(digest.to_owned());
    let found = layouts.iter().find_map(|layout| match layout.blob(digest) {
        Ok(blob) => Some(blob),
        Err(error) => {
            // What is broken in one place may be whole in the next.
            if !matches!(error, BlobError::Missing(_)) {
                last = error;
            }
            None
        }
    });
    let broken =
        |error: io::Error| Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "UNKNOWN", error.to_string());
    let Some(mut blob) = found else {
        let status = match last {
            BlobError::Missing(_) => StatusCode::NOT_FOUND,
            BlobError::Corrupt(_) | BlobError::Read { .. } => StatusCode::INTERNAL_SERVER_ERROR,
        };
        return Err(Refusal::new(status, "BLOB_UNKNOWN", last.to_string()));
    };
    let mut headers =
        format!("content-type: {kind}\r\ndocker-content-digest: {digest}\r\naccept-ranges: bytes\r\n");
    let (status, first, length) = match range(head.range.as_deref(), blob.size) {
        Part::Whole => (StatusCode::OK, 0, blob.size),
        Part::Bytes(first, last) => {
            let _ = write!(headers, "content-range: bytes {first}-{last}/{}\r\n", blob.size);
            (StatusCode::PARTIAL_CONTENT, first, last - first + 1)
        }
        Part::Outside => {
            let _ = write!(headers, "content-range: bytes */{}\r\n", blob.size);
            (StatusCode::RANGE_NOT_SATISFIABLE, 0, 0)
        }
    };
    blob.file.seek(SeekFrom::Start(first)).map_err(broken)?;
    Ok(Answer { status, headers, body: Vec::new(), file: Some((blob.file, length)) })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn layout(dir: &std::path::Path, layer: &[u8]) -> (Layout, String) {
        let place = dir.join("manifests/example.org/team/app/reference");
        std::fs::create_dir_all(&place).unwrap();
        std::fs::create_dir_all(dir.join("blob")).unwrap();
        let kind = "application/vnd.oci.image.manifest.v1+json";
        std::fs::write(place.join("v1"), format!("{{\"mediaType\":\"{kind}\"}}")).unwrap();
        let hex: String = ichor_pki::sha256(layer).iter().map(|byte| format!("{byte:02x}")).collect();
        std::fs::write(dir.join(format!("blob/sha256-{hex}")), layer).unwrap();
        (Layout::open_flat(dir).unwrap(), hex)
    }

    /// Asks all in one connection; gives all that comes.
    fn ask(layouts: &[Layout], requests: &str) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        client.write_all(requests.as_bytes()).unwrap();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        let (server, _) = listener.accept().unwrap();
        let _ = connection(&server, layouts);
        drop(server);
        let mut text = Vec::new();
        // Who is cut off in the middle of a sentence sees a reset.
        let _ = client.read_to_end(&mut text);
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn images_are_given_whole_and_in_parts_over_one_connection() {
        let dir = tempfile::tempdir().unwrap();
        let (layout, hex) = layout(dir.path(), b"one layer");
        let text = ask(
            &[layout],
            &format!(
                "GET /v2/ HTTP/1.1\r\n\r\n\
                 HEAD /v2/team/app/manifests/v1?ns=example.org HTTP/1.1\r\nhost: x\r\n\r\n\
                 GET /v2/team/app/blobs/sha256:{hex} HTTP/1.1\r\nRange: bytes=4-\r\n\r\n\
                 GET /healthz HTTP/1.1\r\n\r\n"
            ),
        );
        let heads: Vec<&str> = text.lines().filter(|line| line.contains("HTTP/1.1")).collect();
        assert_eq!(heads.len(), 4, "{text}");
        assert!(text.contains("HTTP/1.1 206 Partial Content"), "{text}");
        assert!(text.contains("content-range: bytes 4-8/9\r\ncontent-length: 5\r\n\r\nlayer"), "{text}");
        assert!(text.contains("application/vnd.oci.image.manifest.v1+json"), "{text}");
    }

    #[test]
    fn what_is_missing_is_refused_and_a_second_root_helps() {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (first, damaged) = layout(one.path(), b"one");
        std::fs::write(one.path().join(format!("blob/sha256-{damaged}")), b"other").unwrap();
        let get = format!("GET /v2/team/app/blobs/sha256:{damaged} HTTP/1.1\r\n\r\n");
        assert!(ask(std::slice::from_ref(&first), &get).starts_with("HTTP/1.1 500"));
        let (second, _) = layout(two.path(), b"one");
        let text = ask(&[first, second], &get);
        assert!(text.starts_with("HTTP/1.1 200") && text.ends_with("one"), "{text}");
        assert!(ask(&[], &get).starts_with("HTTP/1.1 404"));
        assert!(ask(&[], "GET /v2/team/app/manifests/v2 HTTP/1.1\r\n\r\n").contains("MANIFEST_UNKNOWN"));
        assert!(ask(&[], "PUT /v2/x/y HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405"));
        assert_eq!(ask(&[], "nonsense\r\n\r\n"), "");
        assert_eq!(ask(&[], &format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(20_000))), "");
    }
}
