//! What firmware and kernel show is read or left out, never with a panic, and in bounded time and memory.

use ichor_fuzz::Target;
use ichor_sys::kmsg::Record;
use ichor_sys::supervisor::wire::{FRAME_LEN, Frame, Kind, MESSAGE_MAX};
use ichor_sys::supervisor::{Client, Outcome, Server, SpawnRequest, fuzzing};
use ichor_sys::{counters, fdpass, module, smbios};

/// A structure of the firmware's tables: its type and length, bytes at offsets, strings.
fn structure(kind: u8, len: u8, bytes: &[(usize, u8)], strings: &[u8]) -> Vec<u8> {
    let mut out = vec![0; usize::from(len)];
    (out[0], out[1]) = (kind, len);
    for (at, byte) in bytes {
        out[*at] = *byte;
    }
    out.extend_from_slice(strings);
    out.extend_from_slice(&[0, 0]);
    out
}

#[test]
fn firmware_tables() {
    let table = [
        structure(1, 27, &[(4, 1), (8, 7), (0x18, 6), (0x19, 2)], b"Maker\0SKU"),
        structure(4, 48, &[(4, 1), (0x18, 0x41), (0x23, 0xff), (0x2a, 9)], b"CPU 0"),
        structure(17, 40, &[(0x0c, 0xff), (0x0d, 0x7f), (0x10, 1), (0x1c, 1)], b"DIMM 0"),
        structure(127, 4, &[], b""),
    ];
    Target::binary("smbios").seeds([table.concat()]).run(|input| {
        let tables = smbios::parse((3, 0), input);
        assert!((tables.processors.len() + tables.memory.len()) * 6 <= input.len());
        let uuid = tables.system.as_ref().map_or(0, |system| system.uuid.len());
        assert!(uuid == 0 || uuid == 36);
        (tables.system.is_some(), tables.processors.len().min(8), tables.memory.len().min(8))
    });
}

#[test]
fn texts_of_the_kernel() {
    let seeds = [
        "vfat 24576 1 fat,nls, Live 0xffffffffc0a0b000 (E)\n",
        "kernel/fs/fat/vfat.ko.xz: kernel/fs/fat/fat.ko kernel/lib/crc.ko\n",
        "cpu  1 2 3 4 5 6 7 8 9 10\ncpu0 1 2\nintr 5 1\nctxt 9\n",
        "Filename Type Size Used Priority\n/dev/vda2 partition 1024 4 -2\n",
        "12,7,1500000,-,caller=T1;text \\x41\n SUBSYSTEM=x\n",
    ];
    Target::text("kernel-texts").seeds(seeds).run(|input| {
        let text = String::from_utf8_lossy(input);
        let modules = module::parse(&text).len();
        let chain = module::chain(&text, "vfat").map_or(0, |(_, needed)| needed.len());
        let stat = counters::stat(&text).processors.len();
        let swaps = counters::swaps(&text).len();
        (modules.min(4), chain.min(4), stat.min(4), swaps.min(4), Record::parse(input).is_some())
    });
}

/// Every kind of message, with a name.
fn frames() -> Vec<Vec<u8>> {
    let numbers = (1..=9).chain(64..=71);
    numbers
        .map(|number: u16| {
            let mut bytes = Frame::new(Kind::Hello, 7).encode();
            bytes[..2].copy_from_slice(&number.to_le_bytes());
            bytes[FRAME_LEN - 64..FRAME_LEN - 60].copy_from_slice(b"apid");
            bytes.to_vec()
        })
        .collect()
}

/// Several messages in one input, each behind its length.
fn messages(input: &[u8]) -> Vec<&[u8]> {
    let mut rest = input;
    let mut out = Vec::new();
    while let Some((head, after)) = rest.split_at_checked(2) {
        let len = usize::from(u16::from_le_bytes([head[0], head[1]])).min(after.len());
        out.push(&after[..len]);
        rest = &after[len..];
    }
    out
}

fn framed(message: &[u8]) -> Vec<u8> {
    let len = u16::try_from(message.len()).unwrap();
    [&len.to_le_bytes()[..], message].concat()
}

/// What machined may send: init answers, or ends the connection and takes the next one.
#[test]
fn init_requests() {
    let conversation: Vec<u8> = frames().iter().flat_map(|frame| framed(frame)).collect();
    let seeds = frames().into_iter().map(|frame| framed(&frame)).chain([conversation]);
    let mut server = Server::new(Vec::new());
    Target::binary("init-requests").seeds(seeds).rounds(20_000).len_max(2048).run(|input| {
        let (ours, theirs) = fdpass::pair().unwrap();
        server.connect(ours);
        let mut outcomes = Vec::new();
        for message in messages(input).into_iter().take(16) {
            // Nothing is started here; how such a request is read is below.
            let spawns = Frame::decode(message).is_some_and(|(frame, _)| frame.kind == Kind::Spawn);
            if spawns || fdpass::send(&theirs, &[message], &[]).is_err() {
                continue;
            }
            let outcome = server.ready();
            outcomes.push(format!("{outcome:?}"));
            if outcome == Outcome::Disconnected {
                assert!(server.socket().is_none(), "a connection that is over is still there");
                break;
            }
        }
        // What it said makes sense to machined.
        let client = Client::new(theirs);
        while let Ok(Some(event)) = client.try_recv() {
            outcomes.push(format!("{event:?}").split([' ', '(']).next().unwrap_or_default().to_owned());
        }
        server.disconnect();
        outcomes.truncate(6);
        outcomes
    });
}

/// What init may say, and what somebody in its place could: an event, or an error that names it.
#[test]
fn init_answers() {
    let seeds = frames();
    Target::binary("init-answers").seeds(seeds).rounds(20_000).len_max(MESSAGE_MAX).run(|input| {
        let (ours, theirs) = fdpass::pair().unwrap();
        if fdpass::send(&theirs, &[input], &[]).is_err() {
            return String::new();
        }
        match Client::new(ours).try_recv() {
            Ok(event) => format!("{event:?}").split([' ', '{', '(']).take(2).collect(),
            Err(error) => error.kind().to_string(),
        }
    });
}

/// How a spawn request is read: within its bounds, or not at all.
#[test]
fn init_spawn_requests() {
    let full = SpawnRequest {
        args: ["etcd", "--name=a"].map(str::to_owned).to_vec(),
        env: vec!["PATH=/bin".to_owned()],
        cgroup: Some("podruntime/etcd".to_owned()),
        masked: vec!["/system/state".to_owned()],
        view: vec!["r/etc/hosts".to_owned()],
        root: ["/var/lib", "lowerdir=1:2", "w/var/lib/etcd", "/data"].map(str::to_owned).to_vec(),
        ..SpawnRequest::new("etcd", "/usr/local/bin/etcd")
    };
    let seeds = [fuzzing::spawn(&full), fuzzing::spawn(&SpawnRequest::new("a", "/a"))];
    assert!(seeds.iter().all(|seed| fuzzing::is_plan(seed)));
    Target::binary("init-spawn-requests").seeds(seeds).rounds(20_000).len_max(MESSAGE_MAX + 64).run(
        |input| {
            let frame = Frame::decode(input);
            // What was read is what was sent, byte for byte.
            if let Some((frame, tail)) = &frame {
                assert_eq!([&frame.encode()[..], tail].concat(), input);
            }
            (frame.map(|(frame, _)| frame.kind as u16), fuzzing::is_plan(input))
        },
    );
}
