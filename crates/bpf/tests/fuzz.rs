//! Whatever is handed in as a listing, an expression or a program is taken or refused, never with a panic; what the
//! checks accept runs to its end, and what the compiler makes passes the checks.

use ichor_bpf::{Instruction, LinkType, compile, format, parse, run, verify};
use ichor_fuzz::{Target, shape};

#[test]
fn listings() {
    let seeds = [
        "{ 0x28, 0, 0, 0x0000000c },\n{ 0x15, 0, 1, 0x00000806 },\n{ 0x6, 0, 0, 0x00040000 },\n{ 0x6, 0, 0, 0x0 },",
        "2\n40 0 0 12\n6 0 0 0\n",
    ];
    Target::text("bpf-listing").seeds(seeds).words(["{ ", " },", "0x", "65535", "-1"]).run(
        |input| match parse(&String::from_utf8_lossy(input)) {
            Ok(program) => {
                assert_eq!(parse(&format(&program)).as_ref(), Ok(&program));
                format!("{} {:?}", program.len().min(8), verify(&program).is_ok())
            }
            Err(error) => shape(&error.to_string()),
        },
    );
}

#[test]
fn expressions() {
    let seeds = [
        "tcp port 443 and host 10.0.0.1",
        "ip6 and (udp portrange 1-53 or icmp6) and not src net fd00::/8",
        "ether host 02:00:00:00:00:01 or less 100",
    ];
    let words = ["src or dst ", "not ", "(", ")", "proto ", "broadcast", "ip multicast", "10.1/16", "0x88cc"];
    Target::text("bpf-expression").seeds(seeds).words(words).run(|input| {
        let text = String::from_utf8_lossy(input);
        for link in [LinkType::Ethernet, LinkType::Raw] {
            if let Ok(program) = compile(&text, link) {
                verify(&program).expect("what was compiled is good");
                run(&program, input);
            }
        }
        match compile(&text, LinkType::Ethernet) {
            Ok(program) => (program.len() / 8).to_string(),
            Err(error) => shape(&error.to_string()),
        }
    });
}

#[test]
fn programs() {
    let good = compile("tcp port 443 or arp", LinkType::Ethernet).unwrap();
    let bytes = |program: &[Instruction]| -> Vec<u8> {
        let one = |i: &Instruction| [&i.op.to_le_bytes()[..], &[i.jt, i.jf], &i.k.to_le_bytes()].concat();
        program.iter().flat_map(one).collect()
    };
    Target::binary("bpf-program").seeds([bytes(&good)]).run(|input| {
        let program: Vec<Instruction> = input
            .chunks_exact(8)
            .map(|c| Instruction {
                op: u16::from_le_bytes([c[0], c[1]]),
                jt: c[2],
                jf: c[3],
                k: u32::from_le_bytes([c[4], c[5], c[6], c[7]]),
            })
            .collect();
        match verify(&program) {
            Ok(()) => (run(&program, input) != 0).to_string(),
            Err(error) => shape(&error.to_string()),
        }
    });
}
