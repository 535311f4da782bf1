//! What comes over the network is read or refused, never with a panic: frames of gRPC, replies to be merged, names of
//! callers, headers that decide where a call goes.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use ichor_fuzz::{Target, shape};
use ichor_rpc::route::{Facts, Route, route};
use ichor_rpc::{caller, fuzzing};
use ichor_wire::common::Metadata;
use ichor_wire::machine::{Hostname, HostnameResponse};
use prost::Message as _;

/// Small, so that inputs reach it.
const LIMIT: usize = 300;

fn frame(payload: &[u8]) -> Vec<u8> {
    let mut out = vec![0];
    out.extend_from_slice(&u32::try_from(payload.len()).unwrap().to_be_bytes());
    out.extend_from_slice(payload);
    out
}

#[test]
fn frames() {
    let seeds = [[frame(b"one"), frame(b""), frame(&[7; 200])].concat(), frame(&[1; LIMIT]), vec![0, 0, 0]];
    Target::binary("grpc-frames").seeds(seeds).run(|input| {
        let (whole, end) = fuzzing::frames(input, usize::MAX, LIMIT);
        for size in [1, 3, 5, 64] {
            let (pieces, end_of_pieces) = fuzzing::frames(input, size, LIMIT);
            assert_eq!(pieces, whole, "pieces of {size}");
            assert_eq!(end_of_pieces.is_ok(), end.is_ok());
        }
        let read: usize = whole.iter().map(|message| message.len() + 5).sum();
        assert!(read <= input.len() && whole.iter().all(|message| message.len() <= LIMIT));
        match end {
            Ok(partial) => format!("{} {partial}", whole.len().min(6)),
            Err(error) => shape(error.message()),
        }
    });
}

#[test]
fn replies() {
    let message = |hostname: &str| Hostname { hostname: hostname.to_owned(), metadata: None };
    let own = Hostname {
        metadata: Some(Metadata { error: "half".to_owned(), ..Metadata::default() }),
        hostname: "a".to_owned(),
    };
    let seeds = [
        HostnameResponse { messages: vec![message("node")] }.encode_to_vec(),
        HostnameResponse { messages: vec![own] }.encode_to_vec(),
        HostnameResponse { messages: vec![message("a"), message("b")] }.encode_to_vec(),
    ];
    Target::binary("proxy-replies").seeds(seeds).run(|input| {
        let payload = Bytes::copy_from_slice(input);
        let (unary, streamed) = fuzzing::name(&payload, "10.5.0.2");
        assert!(streamed.starts_with(input), "what a node sent stays as it is");
        match unary {
            // What could be read before can be read now, and says where it comes from.
            Ok(named) => match (HostnameResponse::decode(payload), HostnameResponse::decode(named)) {
                (Ok(before), Ok(after)) => {
                    assert_eq!((before.messages.len(), after.messages.len()), (1, 1));
                    assert_eq!(after.messages[0].metadata.as_ref().unwrap().hostname, "10.5.0.2");
                    assert_eq!(after.messages[0].hostname, before.messages[0].hostname);
                    "named".to_owned()
                }
                (Ok(_), Err(error)) => panic!("broken by naming: {error}"),
                (Err(_), _) => "unreadable before".to_owned(),
            },
            Err(error) => shape(error.message()),
        }
    });
}

#[test]
fn callers() {
    let seeds = ["4242 10.5.0.1 00112233aabbccdd admin", "17 unix uid=0 ", "- fd00::1 - a%20b", ""];
    Target::text("callers").seeds(seeds).words(["uid=", " - ", "unix", "%0A"]).run(|input| {
        let text = String::from_utf8_lossy(input);
        let parts = caller::Parts::parse(&text);
        let all = parts.address.len() + parts.credential.len() + parts.name.len();
        assert!(all <= text.len() && caller::Parts::lasting(&text).len() <= text.len());
        (parts.port.is_some(), parts.address.is_empty(), parts.credential.is_empty(), parts.name.is_empty())
    });
}

#[test]
fn routes() {
    let seeds = ["node: 10.5.0.2\n", "nodes: a\nnodes: 10.5.0.3\n", "proxyfrom: x\nnode: a\nnode: b\n"];
    let words = ["node: ", "nodes: ", "proxyfrom: ", "[::1]:50000", "fd00::2", "a/b", "\n"];
    let facts = Facts::new(["10.5.0.2".parse().unwrap()], ["node-1"]);
    Target::text("routes").seeds(seeds).words(words).run(|input| {
        let mut headers = HeaderMap::new();
        for line in input.split(|byte| *byte == b'\n').take(64) {
            let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
            let value = line[colon + 1..].strip_prefix(b" ").unwrap_or(&line[colon + 1..]);
            let pair = (HeaderName::from_bytes(&line[..colon]), HeaderValue::from_bytes(value));
            if let (Ok(key), Ok(value)) = pair {
                headers.append(key, value);
            }
        }
        let mut seen = String::new();
        for forwards in [false, true] {
            match route("/machine.MachineService/Version", &headers, forwards, &facts) {
                Route::Local => seen.push('l'),
                Route::One(target) => {
                    assert!(forwards && !target.is_empty() && !target.contains('/'), "{target:?}");
                    seen.push('1');
                }
                Route::Many(targets) => {
                    assert!(forwards && !targets.is_empty());
                    seen.push('n');
                }
                Route::Refused(status) => seen.push_str(&shape(status.message())),
            }
        }
        seen
    });
}
