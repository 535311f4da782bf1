//! Surgery on encoded replies: naming the node in a message of unknown type.
//!
//! Every unary reply is `repeated X messages = 1` with one element, and X, like every streamed message,
//! has `common.Metadata metadata = 1`. In protobuf a field that appears again is merged into the first,
//! so the metadata is appended, and whole replies are joined end to end.

use bytes::{BufMut, Bytes, BytesMut};
use ichor_wire::common::Metadata;
use prost::Message as _;
use prost::encoding::{decode_varint, encode_varint, encoded_len_varint};
use tonic::Status;

use crate::status;

/// Field 1, length-delimited: `messages` outside, `metadata` inside.
const FIELD_ONE: u8 = 0x0a;

/// Names the node in a reply with one element.
pub(crate) fn unary(payload: &Bytes, target: &str) -> Result<Bytes, Status> {
    let element = only_element(payload).ok_or_else(|| {
        Status::internal(format!("reply of {target} cannot be merged: it must hold one message"))
    })?;
    let metadata = metadata_field(&named(target));
    let mut out = BytesMut::with_capacity(payload.len() + metadata.len() + 4);
    out.put_u8(FIELD_ONE);
    encode_varint((element.len() + metadata.len()) as u64, &mut out);
    out.extend_from_slice(element);
    out.extend_from_slice(&metadata);
    Ok(out.freeze())
}

/// Names the node in a streamed message.
pub(crate) fn streamed(payload: &Bytes, target: &str) -> Bytes {
    let metadata = metadata_field(&named(target));
    let mut out = BytesMut::with_capacity(payload.len() + metadata.len());
    out.extend_from_slice(payload);
    out.extend_from_slice(&metadata);
    out.freeze()
}

/// A failure as a reply with one element.
pub(super) fn unary_failure(status: &Status, target: &str) -> Bytes {
    field_one(&streamed_failure(status, target))
}

/// A failure as a streamed message.
pub(super) fn streamed_failure(status: &Status, target: &str) -> Bytes {
    metadata_field(&Metadata {
        hostname: target.to_owned(),
        error: status::go_text(status),
        status: Some(status::to_message(status)),
    })
}

fn named(target: &str) -> Metadata {
    Metadata { hostname: target.to_owned(), ..Metadata::default() }
}

fn metadata_field(metadata: &Metadata) -> Bytes {
    field_one(&metadata.encode_to_vec())
}

fn field_one(content: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(1 + encoded_len_varint(content.len() as u64) + content.len());
    out.put_u8(FIELD_ONE);
    encode_varint(content.len() as u64, &mut out);
    out.extend_from_slice(content);
    out.freeze()
}

/// The content of the one element of `messages`, if the payload is just that.
fn only_element(payload: &[u8]) -> Option<&[u8]> {
    let (&FIELD_ONE, mut rest) = payload.split_first()? else { return None };
    let length = usize::try_from(decode_varint(&mut rest).ok()?).ok()?;
    (rest.len() == length).then_some(rest)
}

#[cfg(test)]
mod tests {
    use ichor_wire::common::{Data, DataResponse};
    use ichor_wire::machine::{Hostname, HostnameResponse};

    use super::*;

    fn reply(hostname: &str) -> Bytes {
        let message = Hostname { metadata: None, hostname: hostname.to_owned() };
        HostnameResponse { messages: vec![message] }.encode_to_vec().into()
    }

    #[test]
    fn replies_of_many_nodes_join_end_to_end() {
        let refused = Status::permission_denied("not authorized");
        let joined = [
            unary(&reply("one"), "10.5.0.2").expect("merges"),
            unary_failure(&refused, "10.5.0.3"),
            unary(&reply(""), "10.5.0.4").expect("merges"),
        ]
        .concat();
        let decoded = HostnameResponse::decode(joined.as_slice()).expect("decodes");
        let metadata: Vec<_> =
            decoded.messages.iter().map(|m| m.metadata.clone().expect("metadata")).collect();
        assert_eq!(decoded.messages[0].hostname, "one");
        assert_eq!(metadata[0].hostname, "10.5.0.2");
        assert_eq!(metadata[0].status, None);
        assert_eq!(metadata[1].hostname, "10.5.0.3");
        assert_eq!(metadata[1].error, "rpc error: code = PermissionDenied desc = not authorized");
        assert_eq!(metadata[1].status.as_ref().expect("status").code, 7);
        assert_eq!(metadata[2].hostname, "10.5.0.4");
    }

    #[test]
    fn metadata_of_the_node_itself_is_kept() {
        let own = Metadata { error: "half".to_owned(), ..Metadata::default() };
        let data = Data { metadata: Some(own), bytes: Bytes::from_static(b"x") };
        let out = streamed(&data.encode_to_vec().into(), "n1");
        let decoded = Data::decode(out).expect("decodes");
        let metadata = decoded.metadata.expect("metadata");
        assert_eq!((metadata.hostname.as_str(), metadata.error.as_str()), ("n1", "half"));
        assert_eq!(decoded.bytes, "x");
    }

    #[test]
    fn a_failed_stream_is_a_message_with_metadata_alone() {
        let out = streamed_failure(&Status::not_found("no"), "n1");
        let decoded = Data::decode(out).expect("decodes");
        assert_eq!(decoded.metadata.expect("metadata").error, "rpc error: code = NotFound desc = no");
    }

    #[test]
    fn replies_of_another_shape_are_refused() {
        let two = DataResponse { messages: vec![Data::default(), Data::default()] };
        for bad in
            [vec![], vec![0x12, 0], vec![0x0a], vec![0x0a, 5, 1], vec![0x0a, 0xff], two.encode_to_vec()]
        {
            let error = unary(&bad.clone().into(), "n1").expect_err("refused");
            assert_eq!(error.code(), tonic::Code::Internal, "{bad:?}");
        }
        assert!(unary(&vec![0x0a, 0].into(), "n1").is_ok());
    }
}
