//! Statuses as the original's clients know them: Go's names and texts, trailers-only replies.

use std::error::Error;
use std::fmt::Write as _;

use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use ichor_wire::google::rpc;
use prost::Message as _;
use tonic::{Code, Status};

/// The name of a code in Go's error texts.
pub fn go_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "Canceled",
        Code::Unknown => "Unknown",
        Code::InvalidArgument => "InvalidArgument",
        Code::DeadlineExceeded => "DeadlineExceeded",
        Code::NotFound => "NotFound",
        Code::AlreadyExists => "AlreadyExists",
        Code::PermissionDenied => "PermissionDenied",
        Code::ResourceExhausted => "ResourceExhausted",
        Code::FailedPrecondition => "FailedPrecondition",
        Code::Aborted => "Aborted",
        Code::OutOfRange => "OutOfRange",
        Code::Unimplemented => "Unimplemented",
        Code::Internal => "Internal",
        Code::Unavailable => "Unavailable",
        Code::DataLoss => "DataLoss",
        Code::Unauthenticated => "Unauthenticated",
    }
}

/// The text of a status as Go's error prints it.
pub fn go_text(status: &Status) -> String {
    format!("rpc error: code = {} desc = {}", go_name(status.code()), status.message())
}

/// A status as the message that travels inside replies, with the details it came with.
pub fn to_message(status: &Status) -> rpc::Status {
    let plain = || rpc::Status {
        code: status.code() as i32,
        message: status.message().to_owned(),
        details: Vec::new(),
    };
    // The details of a status are such a message already.
    match rpc::Status::decode(status.details()) {
        Ok(found) if found.code == status.code() as i32 => found,
        _ => plain(),
    }
}

/// Whether the headers of a reply are all there is of it, and tell of an error.
pub(crate) fn is_refusal(headers: &HeaderMap) -> bool {
    headers.get(Status::GRPC_STATUS).is_some_and(|code| code != "0")
}

/// The status in trailers or in the headers of a trailers-only reply; none when there is no status.
pub(crate) fn from_headers(headers: &HeaderMap) -> Option<Status> {
    Status::from_header_map(headers)
}

/// The status of a reply that is not gRPC at all.
pub(crate) fn from_http(status: StatusCode) -> Status {
    let code = match status {
        StatusCode::BAD_REQUEST => Code::Internal,
        StatusCode::UNAUTHORIZED => Code::Unauthenticated,
        StatusCode::FORBIDDEN => Code::PermissionDenied,
        StatusCode::NOT_FOUND => Code::Unimplemented,
        StatusCode::TOO_MANY_REQUESTS
        | StatusCode::BAD_GATEWAY
        | StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::GATEWAY_TIMEOUT => Code::Unavailable,
        _ => Code::Unknown,
    };
    let reason = status.canonical_reason().unwrap_or_default();
    let number = status.as_u16();
    Status::new(code, format!("unexpected HTTP status code received from server: {number} ({reason})"))
}

/// A connection or stream that broke, as a status.
///
/// What the peer did on purpose (a reset) keeps its meaning; everything else is Unavailable, on which
/// clients reconnect.
pub(crate) fn from_hyper(error: hyper::Error) -> Status {
    let text = chain(&error);
    let status = Status::from_error(Box::new(error));
    match status.code() {
        Code::Cancelled | Code::ResourceExhausted | Code::PermissionDenied | Code::Unavailable
            if !text.contains("connection") =>
        {
            Status::new(status.code(), text)
        }
        _ => Status::unavailable(format!("error reading from server: {text}")),
    }
}

/// An error with its causes in one line.
pub(crate) fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let part = error.to_string();
        if !text.contains(&part) {
            let _ = write!(text, ": {part}");
        }
        cause = error.source();
    }
    text
}

/// The trailers of a call.
pub(crate) fn trailers(status: &Status) -> HeaderMap {
    let mut map = HeaderMap::with_capacity(2);
    if status.add_header(&mut map).is_err() {
        map.clear();
        map.insert(Status::GRPC_STATUS, HeaderValue::from(Code::Internal as i32));
    }
    map
}

/// A reply that consists of a status alone.
pub(crate) fn trailers_only<B: Default>(status: Status) -> Response<B> {
    status.into_http()
}

/// A reply to something that is not a gRPC call.
pub(crate) fn not_grpc<B: Default>(http: StatusCode, status: Status) -> Response<B> {
    let mut response: Response<B> = status.into_http();
    *response.status_mut() = http;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response
}

/// The longest text of a status. Readers take headers of a mebibyte in all, and break the connection beyond.
const TEXT_MAX: usize = 512 * 1024;

/// Cuts the text of a status that no reader would take, such as the difference between two huge configurations.
pub(crate) fn shorten(headers: &mut HeaderMap) {
    let Some(text) = headers.get("grpc-message").filter(|text| text.len() > TEXT_MAX) else { return };
    let text = &text.as_bytes()[..TEXT_MAX];
    // Not inside of an escape, `%` and two digits, nor between the bytes of one letter, all of which are escaped.
    let plain = text.iter().rposition(|byte| *byte == b'%').filter(|at| at + 3 >= text.len());
    let text = plain.map_or(text, |at| &text[..at]);
    if let Ok(short) = http::HeaderValue::from_bytes(text) {
        headers.insert("grpc-message", short);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_beyond_all_bounds_is_cut() {
        let mut headers = HeaderMap::new();
        for (text, length) in [("x".repeat(TEXT_MAX + 1), TEXT_MAX), ("%20".repeat(TEXT_MAX), TEXT_MAX - 2)] {
            headers.insert("grpc-message", http::HeaderValue::from_str(&text).unwrap());
            shorten(&mut headers);
            let left = headers["grpc-message"].to_str().unwrap();
            assert!(left.len() <= TEXT_MAX && left.len() + 3 >= length, "{}", left.len());
            assert!(!left.ends_with('%') && !left.ends_with("%2"));
        }
        headers.insert("grpc-message", http::HeaderValue::from_static("short"));
        shorten(&mut headers);
        assert_eq!(headers["grpc-message"], "short");
    }

    #[test]
    fn text_is_that_of_go() {
        let status = Status::permission_denied("not authorized");
        assert_eq!(go_text(&status), "rpc error: code = PermissionDenied desc = not authorized");
    }

    #[test]
    fn details_survive_the_way_through_trailers() {
        let inner = rpc::Status {
            code: 5,
            message: "gone".to_owned(),
            details: vec![prost_types::Any { type_url: "t".to_owned(), value: vec![1, 2] }],
        };
        let status = Status::with_details(Code::NotFound, "gone", inner.encode_to_vec().into());
        let read = from_headers(&trailers(&status)).expect("status");
        assert_eq!(to_message(&read), inner);
        assert_eq!(to_message(&Status::not_found("gone")).details.len(), 0);
    }

    #[test]
    fn texts_with_line_breaks_fit_into_trailers() {
        let status = Status::invalid_argument("line one\nline two: 100 % \u{fc}");
        let read = from_headers(&trailers(&status)).expect("status");
        assert_eq!(read.message(), status.message());
    }
}
