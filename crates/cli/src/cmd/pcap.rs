//! `pcap`: packets of a link, as text or as a capture file.

use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use ichor_bpf::LinkType;
use ichor_client::resources::{Query, yaml_of};
use ichor_client::{Client, sort};
use ichor_wire::common::Data;
use ichor_wire::machine::{BpfInstruction, PacketCaptureRequest};
use tonic::Streaming;

use crate::explain;
use crate::failure::{Context, Failure};
use crate::flags::flags;
use crate::packets::Decoder;
use crate::parse::Call;
use crate::session::{Session, block_on};
use crate::table::{Command, Complete, Flag, Group};

/// The command.
pub static PCAP: Command = Command {
    name: "pcap",
    aliases: &["tcpdump"],
    group: Group::Machines,
    about: "Capture packets of a link",
    long: "Captures packets of a link and shows them as text. With --output the capture itself is written, `-` means\n\
           standard output. The filter is an expression such as `tcp port 443 and not host 10.0.0.1`, or a program\n\
           as `tcpdump -dd` prints it, made for the type of the link (EN10MB for Ethernet, RAW for tunnels). Leave\n\
           the machine API's own port out, or every packet shown makes more of them.",
    examples: &[
        "pcap -i eth0 --duration 10s",
        "pcap -i eth0 -o eth0.pcap",
        "pcap -i eth0 -o - | tcpdump -vvv -r -",
        "pcap -i eth0 --bpf-filter 'udp port 53 or icmp'",
        "pcap -i eth0 --bpf-filter \"$(tcpdump -dd -y EN10MB 'tcp and dst port 80')\"",
    ],
    flags: &[
        Flag::text("bpf-filter", "filter: an expression, or a program in the form of tcpdump -dd"),
        Flag::duration("duration", "0s", "end after this time"),
        Flag::text("interface", "link to listen on").short('i').default("eth0"),
        Flag::text("output", "write the capture to this file, - for standard output")
            .short('o')
            .complete(Complete::File),
        Flag::switch("promiscuous", "also take packets meant for others"),
        Flag::int("snaplen", "4096", "no longer used").short('s').hidden(),
    ],
    run: Some(run),
    ..Command::EMPTY
};

flags! {
    /// The command line, resolved.
    PcapFlags {
        connection: connection(),
        interface: text("interface"),
        filter: text("bpf-filter"),
        promiscuous: on("promiscuous"),
        duration: duration("duration"),
        output: text("output"),
    }
}

fn run(call: &Call) -> Result<(), Failure> {
    if call.given("snaplen") {
        eprintln!("Flag --snaplen has been deprecated, packets are always captured whole");
    }
    let flags = PcapFlags::of(call);
    // What is wrong with the filter is told before anything is connected.
    let bpf_filter = filter(&flags.filter, LinkType::Ethernet)?;
    let mut request = PacketCaptureRequest {
        interface: flags.interface.clone(),
        promiscuous: flags.promiscuous,
        snap_len: 0,
        bpf_filter,
    };
    block_on(async {
        let session = Session::open(&flags.connection).await?;
        let client = session.only()?;
        if is_expression(&flags.filter) && is_tunnel(&client, &flags.interface).await {
            request.bpf_filter = filter(&flags.filter, LinkType::Raw)?;
        }
        let capture = async {
            let stream = client.machine().packet_capture(request).await;
            let stream =
                stream.map_err(|status| explain::status("error capturing packets", &status))?.into_inner();
            match flags.output.as_str() {
                "" => show(stream, &session.label).await,
                "-" => save(stream, &session.label, &mut io::stdout()).await,
                file => {
                    let path = Path::new(file);
                    let mut out =
                        std::fs::File::create(path).context(format!("create {}", path.display()))?;
                    save(stream, &session.label, &mut out).await
                }
            }
        };
        if flags.duration == Duration::ZERO {
            return capture.await;
        }
        // The time that was asked for is the end that was wanted.
        tokio::time::timeout(flags.duration, capture).await.unwrap_or(Ok(()))
    })
}

async fn chunk(stream: &mut Streaming<Data>, label: &str) -> Result<Option<bytes::Bytes>, Failure> {
    let doing = "error capturing packets";
    let Some(message) = stream.message().await.map_err(|status| explain::status(doing, &status))? else {
        return Ok(None);
    };
    let (_, data) =
        sort(message, label).map_err(|error| explain::nodes(doing, std::slice::from_ref(&error)))?;
    Ok(Some(data.bytes))
}

async fn save(mut stream: Streaming<Data>, label: &str, out: &mut impl Write) -> Result<(), Failure> {
    while let Some(bytes) = chunk(&mut stream, label).await? {
        out.write_all(&bytes)?;
        out.flush()?;
    }
    Ok(())
}

async fn show(mut stream: Streaming<Data>, label: &str) -> Result<(), Failure> {
    let mut decoder = Decoder::default();
    let mut out = io::stdout();
    while let Some(bytes) = chunk(&mut stream, label).await? {
        let text = decoder.push(&bytes).plain()?;
        out.write_all(text.as_bytes())?;
        out.flush()?;
    }
    Ok(())
}

/// Whether packets of a link begin with the network header. One that cannot be told is taken for Ethernet; the
/// capture itself says what is wrong with it.
async fn is_tunnel(client: &Client, interface: &str) -> bool {
    let query = Query {
        namespace: "network".to_owned(),
        resource_type: "LinkStatuses.net.talos.dev".to_owned(),
        id: Some(interface.to_owned()),
    };
    let link = client.get(&query).await;
    link.is_ok_and(|link| yaml_of(&link).lines().any(|line| line == "type: none"))
}

/// A program begins with a brace, and no expression does.
fn is_expression(text: &str) -> bool {
    !text.trim().is_empty() && !text.trim_start().starts_with('{')
}

/// Compiles an expression, or reads lines such as `{ 0x28, 0, 0, 0x0000000c },`.
fn filter(text: &str, link: LinkType) -> Result<Vec<BpfInstruction>, Failure> {
    if is_expression(text) {
        let program = ichor_bpf::compile(text, link)
            .map_err(|error| Failure::new(format!("error in the filter {text:?}: {error}")))?;
        return Ok(program
            .iter()
            .map(|i| BpfInstruction { op: i.op.into(), jt: i.jt.into(), jf: i.jf.into(), k: i.k })
            .collect());
    }
    text.trim().lines().filter(|line| !line.is_empty()).map(instruction).collect()
}

fn instruction(line: &str) -> Result<BpfInstruction, Failure> {
    let bad = || {
        Failure::new(format!("error parsing bpf instruction {line:?}"))
            .hint("a filter has lines such as `{ 0x28, 0, 0, 0x0000000c },`; `tcpdump -dd` prints it")
    };
    let inner = line
        .trim()
        .strip_prefix('{')
        .and_then(|rest| rest.trim_end_matches(',').trim_end().strip_suffix('}'));
    let fields: Vec<&str> = inner.ok_or_else(bad)?.split(',').map(str::trim).collect();
    let [op, jt, jf, k] = fields.as_slice() else { return Err(bad()) };
    let hex = |text: &str| u32::from_str_radix(text.strip_prefix("0x")?, 16).ok();
    let number = |text: &str| text.parse().ok();
    match (hex(op), number(jt), number(jf), hex(k)) {
        (Some(op), Some(jt), Some(jf), Some(k)) => Ok(BpfInstruction { op, jt, jf, k }),
        _ => Err(bad()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_read_as_tcpdump_prints_them() {
        let filter = |text: &str| filter(text, LinkType::Ethernet);
        let program = filter(
            "{ 0x28, 0, 0, 0x0000000c },\n{ 0x15, 0, 8, 0x000086dd },\n\n{ 0x6, 0, 0, 0x00040000 },\n",
        )
        .unwrap();
        assert_eq!(program.len(), 3);
        assert_eq!(program[1], BpfInstruction { op: 0x15, jt: 0, jf: 8, k: 0x86dd });
        assert!(filter("").unwrap().is_empty());
        for bad in ["nonsense", "{ 28, 0, 0, 0x0 },", "{ 0x28, 0, 0 },", "{ 0x28, a, 0, 0x0 }"] {
            assert!(filter(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn expressions_are_compiled_for_the_link() {
        let on = |link| filter("tcp port 443", link).unwrap();
        assert_ne!(on(LinkType::Ethernet), on(LinkType::Raw));
        let error = filter("tcp prot 443", LinkType::Ethernet).unwrap_err();
        assert!(error.to_string().contains("\"prot\""), "{error}");
    }
}
