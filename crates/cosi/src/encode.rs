//! The wire form of resources and events, written straight into bytes.

use bytes::{BufMut, Bytes};
use ichor_resource::{Metadata, Nanos, Pairs, Resource};
use prost::encoding::{encode_varint, encoded_len_varint};

use crate::event::{Event, EventKind};

/// Messages of one field, `resource` = 1: replies to Get, List, Create and Update.
pub(crate) fn reply(resource: &Resource) -> Bytes {
    let body = resource_body(resource);
    let mut out = Vec::with_capacity(body.len() + 6);
    bytes_field(&mut out, 1, &body);
    out.into()
}

/// One event as an element of `WatchResponse.event` = 1: a message is such elements in a row.
pub(crate) fn event(event: &Event) -> Bytes {
    let Some(shared) = &event.encoded else {
        return event_field(event);
    };
    // A filter turns an update into its beginning or its end; both lose the old resource.
    let form = match (event.kind, event.old.is_some()) {
        (EventKind::Created, _) => &shared.as_created,
        (EventKind::Destroyed, _) => &shared.as_destroyed,
        _ => &shared.as_is,
    };
    form.get_or_init(|| event_field(event)).clone()
}

fn event_field(event: &Event) -> Bytes {
    let mut body = Vec::with_capacity(512);
    // A broken watch has no resource to show.
    if event.kind != EventKind::Errored {
        bytes_field(&mut body, 1, &resource_body(&event.resource));
    }
    let number = event_number(event.kind);
    if number != 0 {
        key(&mut body, 2, VARINT);
        encode_varint(number, &mut body);
    }
    if let Some(old) = &event.old {
        bytes_field(&mut body, 3, &resource_body(old));
    }
    if let Some(error) = &event.error {
        bytes_field(&mut body, 4, error.as_bytes());
    }
    if let Some(bookmark) = event.bookmark {
        bytes_field(&mut body, 5, &bookmark.to_bytes());
    }
    let mut out = Vec::with_capacity(body.len() + 6);
    bytes_field(&mut out, 1, &body);
    out.into()
}

fn event_number(kind: EventKind) -> u64 {
    match kind {
        EventKind::Created => 0,
        EventKind::Updated => 1,
        EventKind::Destroyed => 2,
        EventKind::Bootstrapped => 3,
        EventKind::Errored => 4,
        EventKind::Noop => 5,
    }
}

fn resource_body(resource: &Resource) -> Vec<u8> {
    let meta = metadata_body(resource.meta());
    let (mut proto, mut yaml) = (Vec::new(), String::new());
    resource.spec().encode_proto(&mut proto);
    resource.spec().encode_yaml(&mut yaml);

    let spec_len = optional_len(1, proto.len()) + optional_len(2, yaml.len());
    let mut out = Vec::with_capacity(meta.len() + spec_len + 12);
    bytes_field(&mut out, 1, &meta);
    // Present even when empty: clients ask for it.
    key(&mut out, 2, LENGTH);
    encode_varint(spec_len as u64, &mut out);
    optional_field(&mut out, 1, &proto);
    optional_field(&mut out, 2, yaml.as_bytes());
    out
}

fn metadata_body(meta: &Metadata) -> Vec<u8> {
    let mut out = Vec::with_capacity(160);
    optional_field(&mut out, 1, meta.namespace().as_bytes());
    optional_field(&mut out, 2, meta.type_name().as_bytes());
    optional_field(&mut out, 3, meta.id().as_bytes());
    bytes_field(&mut out, 4, meta.version().to_string().as_bytes());
    optional_field(&mut out, 5, meta.owner().as_bytes());
    bytes_field(&mut out, 6, meta.phase().as_str().as_bytes());
    timestamp_field(&mut out, 7, meta.created());
    timestamp_field(&mut out, 8, meta.updated());
    for finalizer in meta.finalizers() {
        bytes_field(&mut out, 9, finalizer.as_bytes());
    }
    pairs_field(&mut out, 10, meta.labels());
    pairs_field(&mut out, 11, meta.annotations());
    out
}

fn timestamp_field(out: &mut Vec<u8>, tag: u32, time: Nanos) {
    let (seconds, nanos) = time.split();
    let (seconds, nanos) = (seconds as u64, nanos as u64);
    let len = |value: u64| if value == 0 { 0 } else { 1 + encoded_len_varint(value) };
    key(out, tag, LENGTH);
    encode_varint((len(seconds) + len(nanos)) as u64, out);
    for (tag, value) in [(1, seconds), (2, nanos)] {
        if value != 0 {
            key(out, tag, VARINT);
            encode_varint(value, out);
        }
    }
}

fn pairs_field(out: &mut Vec<u8>, tag: u32, pairs: &Pairs) {
    for (name, value) in pairs {
        let len = optional_len(1, name.len()) + optional_len(2, value.len());
        key(out, tag, LENGTH);
        encode_varint(len as u64, out);
        optional_field(out, 1, name.as_bytes());
        optional_field(out, 2, value.as_bytes());
    }
}

const VARINT: u32 = 0;
const LENGTH: u32 = 2;

fn key(out: &mut Vec<u8>, tag: u32, wire_type: u32) {
    encode_varint(u64::from(tag << 3 | wire_type), out);
}

fn bytes_field(out: &mut Vec<u8>, tag: u32, value: &[u8]) {
    key(out, tag, LENGTH);
    encode_varint(value.len() as u64, out);
    out.put_slice(value);
}

fn optional_field(out: &mut Vec<u8>, tag: u32, value: &[u8]) {
    if !value.is_empty() {
        bytes_field(out, tag, value);
    }
}

fn optional_len(tag: u32, len: usize) -> usize {
    match len {
        0 => 0,
        _ => encoded_len_varint(u64::from(tag << 3)) + encoded_len_varint(len as u64) + len,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ichor_resource::{Kind, Phase, RawSpec, Version};
    use ichor_wire::cosi::resource as wire;
    use prost::Message;

    use super::*;
    use crate::event::Bookmark;

    fn sample(yaml: &str) -> Resource {
        let mut meta = Metadata::new(Arc::new(Kind::new("network", "Links")), "eth0");
        meta.set_version(Version::new(7));
        meta.set_owner(Some(Arc::from("network.Controller")));
        meta.set_phase(Phase::TearingDown);
        meta.set_times(Nanos(1_500_000_000), Nanos(-1));
        meta.add_finalizer("b");
        meta.add_finalizer("a");
        meta.set_label("l", "");
        meta.set_label("m", &*"x".repeat(200));
        meta.set_annotation("talos.dev/yaml-spec", "1");
        let spec = RawSpec { proto: Bytes::from_static(&[8, 1]), yaml: yaml.to_owned() };
        Resource::new(meta, Arc::new(spec))
    }

    fn expected(resource: &Resource, yaml: &str) -> wire::Resource {
        let meta = resource.meta();
        wire::Resource {
            metadata: Some(wire::Metadata {
                namespace: "network".into(),
                r#type: "Links".into(),
                id: "eth0".into(),
                version: "7".into(),
                owner: "network.Controller".into(),
                phase: "tearingDown".into(),
                created: Some(prost_types::Timestamp { seconds: 1, nanos: 500_000_000 }),
                updated: Some(prost_types::Timestamp { seconds: -1, nanos: 999_999_999 }),
                finalizers: meta.finalizers().to_vec(),
                labels: meta.labels().clone().into_iter().collect(),
                annotations: meta.annotations().clone().into_iter().collect(),
            }),
            spec: Some(wire::Spec { proto_spec: Bytes::from_static(&[8, 1]), yaml_spec: yaml.to_owned() }),
        }
    }

    #[test]
    fn a_resource_decodes_to_what_it_was() {
        for yaml in ["", "a: b\n", &"long: text\n".repeat(100)] {
            let resource = sample(yaml);
            let decoded = wire::GetResponse::decode(reply(&resource));
            let resource = Some(expected(&resource, yaml));
            assert_eq!(decoded, Ok(wire::GetResponse { resource }));
        }
    }

    #[test]
    fn a_tombstone_has_an_empty_spec() {
        let tombstone = Resource::tombstone(Arc::new(Kind::new("ns", "type")), "");
        let decoded = wire::GetResponse::decode(reply(&tombstone)).unwrap_or_default();
        let resource = decoded.resource.unwrap_or_default();
        assert_eq!(resource.spec, Some(wire::Spec::default()));
        let meta = resource.metadata.unwrap_or_default();
        assert_eq!((&*meta.version, &*meta.phase), ("undefined", "running"));
    }

    #[test]
    fn events_decode_in_all_forms() {
        let (new, old) = (Arc::new(sample("new\n")), Arc::new(sample("old\n")));
        let bookmark = Bookmark { cookie: 1, position: 2 };
        let base = Event {
            old: Some(old.clone()),
            bookmark: Some(bookmark),
            encoded: Some(Arc::default()),
            ..Event::new(EventKind::Updated, new.clone())
        };
        let created = Event { kind: EventKind::Created, old: None, ..base.clone() };
        let destroyed = Event { kind: EventKind::Destroyed, old: None, ..base.clone() };
        let mut message = Vec::new();
        for one in [&base, &created, &destroyed, &base] {
            message.extend_from_slice(&event(one));
        }
        let decoded = wire::WatchResponse::decode(&*message).unwrap_or_default();
        let numbers: Vec<_> = decoded.event.iter().map(|event| event.event_type).collect();
        assert_eq!(numbers, [1, 0, 2, 1]);
        assert_eq!(decoded.event[0].old, Some(expected(&old, "old\n")));
        assert_eq!(decoded.event[0].resource, Some(expected(&new, "new\n")));
        assert_eq!(decoded.event[0].bookmark.as_deref(), Some(&bookmark.to_bytes()[..]));
        assert_eq!(decoded.event[1].old, None);
        assert_eq!(decoded.event[2].old, None);
    }

    #[test]
    fn one_encoding_serves_all_watches() {
        let one = Event {
            encoded: Some(Arc::default()),
            ..Event::new(EventKind::Updated, Arc::new(sample("x\n")))
        };
        assert_eq!(event(&one).as_ptr(), event(&one.clone()).as_ptr());
    }
}
