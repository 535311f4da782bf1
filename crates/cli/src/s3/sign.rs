//! Signatures of requests, version 4 (`AWS4-HMAC-SHA256`). Pure: the time is passed in.

use http::Method;
use ichor_pki::primitive::hmac_sha256;
use jiff::Timestamp;
use zeroize::Zeroizing;

/// Who asks.
#[derive(Clone)]
pub struct Credentials {
    /// The public part.
    pub id: String,
    /// The secret part.
    pub secret: Zeroizing<String>,
    /// What credentials that end carry along.
    pub token: Option<String>,
}

/// What is asked; all of it is signed.
pub struct Question<'a> {
    /// What to do.
    pub method: &'a Method,
    /// As in the header.
    pub host: &'a str,
    /// With [`escape`]d parts.
    pub path: &'a str,
    /// Names and values, plain.
    pub query: &'a [(&'a str, &'a str)],
    /// Further headers, names in small letters.
    pub headers: &'a [(&'a str, &'a str)],
    /// The digest of the body, in hexadecimal.
    pub payload: &'a str,
}

/// The headers that sign a question.
pub fn sign(
    question: &Question<'_>,
    who: &Credentials,
    region: &str,
    now: Timestamp,
) -> Vec<(&'static str, String)> {
    let time = now.strftime("%Y%m%dT%H%M%SZ").to_string();
    let scope = format!("{}/{region}/s3/aws4_request", &time[..8]);
    let mut own = vec![("x-amz-content-sha256", question.payload.to_owned()), ("x-amz-date", time.clone())];
    own.extend(who.token.clone().map(|token| ("x-amz-security-token", token)));
    let mut headers: Vec<(&str, &str)> = vec![("host", question.host)];
    headers.extend(own.iter().map(|(name, value)| (*name, value.as_str())));
    headers.extend(question.headers);
    headers.sort_unstable();
    let names: Vec<&str> = headers.iter().map(|(name, _)| *name).collect();
    let names = names.join(";");
    let lines: String = headers.iter().map(|(name, value)| format!("{name}:{}\n", value.trim())).collect();
    let whole = format!(
        "{}\n{}\n{}\n{lines}\n{names}\n{}",
        question.method,
        question.path,
        query(question.query),
        question.payload
    );
    let text = format!("AWS4-HMAC-SHA256\n{time}\n{scope}\n{}", hex(&ichor_pki::sha256(whole.as_bytes())));
    let first = Zeroizing::new(format!("AWS4{}", *who.secret));
    let day = hmac_sha256(first.as_bytes(), &time.as_bytes()[..8]);
    let key = [region, "s3", "aws4_request"]
        .iter()
        .fold(Zeroizing::new(day), |key, part| Zeroizing::new(hmac_sha256(&*key, part.as_bytes())));
    let signature = hex(&hmac_sha256(&*key, text.as_bytes()));
    let proof =
        format!("AWS4-HMAC-SHA256 Credential={}/{scope},SignedHeaders={names},Signature={signature}", who.id);
    own.push(("authorization", proof));
    own
}

/// A query as it is signed and sent: sorted, both sides escaped.
pub fn query(pairs: &[(&str, &str)]) -> String {
    let mut pairs: Vec<String> = pairs
        .iter()
        .map(|(name, value)| format!("{}={}", escape(name, false), escape(value, false)))
        .collect();
    pairs.sort_unstable();
    pairs.join("&")
}

/// Escapes all but the few characters that stand for themselves; slashes stay where `path` is.
pub fn escape(text: &str, path: bool) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(char::from(byte)),
            b'/' if path => out.push('/'),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

/// Bytes in hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of the documentation of S3.
    fn check(query: &[(&str, &str)], path: &str, headers: &[(&str, &str)], signature: &str) {
        let who = Credentials {
            id: "AKIAIOSFODNN7EXAMPLE".into(),
            secret: Zeroizing::new("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".into()),
            token: None,
        };
        let question = Question {
            method: &Method::GET,
            host: "examplebucket.s3.amazonaws.com",
            path,
            query,
            headers,
            payload: &hex(&ichor_pki::sha256(b"")),
        };
        let signed = sign(&question, &who, "us-east-1", "2013-05-24T00:00:00Z".parse().unwrap());
        let (_, proof) = signed.iter().find(|(name, _)| *name == "authorization").unwrap();
        assert!(proof.ends_with(&format!("Signature={signature}")), "{proof}");
    }

    #[test]
    fn published_examples_are_signed_as_published() {
        check(
            &[],
            "/test.txt",
            &[("range", "bytes=0-9")],
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
        );
        check(
            &[("max-keys", "2"), ("prefix", "J")],
            "/",
            &[],
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
        );
        check(
            &[("lifecycle", "")],
            "/",
            &[],
            "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543",
        );
    }

    #[test]
    fn times_in_names_are_escaped() {
        assert_eq!(escape("a/b-2026-01-13T06:00:00Z.snap", true), "a/b-2026-01-13T06%3A00%3A00Z.snap");
        assert_eq!(escape("a/b ü", false), "a%2Fb%20%C3%BC");
    }
}
