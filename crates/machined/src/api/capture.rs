//! Packets of a link as a capture file, for as long as the caller reads.

use std::time::{Duration, UNIX_EPOCH};

use futures_util::stream::{self, StreamExt};
use tonic::{Response, Status};
use tracing::info;

use ichor_bpf::{Instruction, LinkType};
use ichor_cosi::State;
use ichor_net::capture::{Capture, LENGTH_MAX, Packet};
use ichor_resource::network::{LinkStatus, LinkType as Hardware};
use ichor_wire::{common, machine};

use super::reply::{CHUNK, Replies, data, data_error, streaming};

/// A capture file with times in nanoseconds.
const MAGIC: u32 = 0xa1b2_3c4d;

/// Streams a capture file of one link.
pub fn packet_capture(
    state: &State,
    request: &machine::PacketCaptureRequest,
) -> Result<Response<Replies<common::Data>>, Status> {
    let name = request.interface.as_str();
    let link = state.find::<LinkStatus>("network", name);
    let link = link.ok_or_else(|| Status::not_found(format!("interface {name:?} not found")))?;
    let kind = match link.r#type {
        Hardware::ETHER | Hardware::LOOPBCK => LinkType::Ethernet,
        Hardware::NONE => LinkType::Raw,
        other => return Err(Status::invalid_argument(format!("unsupported link type {other}"))),
    };
    let program = program(&request.bpf_filter)?;
    let snap = match usize::try_from(request.snap_len) {
        Ok(0) | Err(_) => LENGTH_MAX,
        Ok(length) => length.min(LENGTH_MAX),
    };
    let filter: Vec<_> = program.iter().map(|i| (i.op, i.jt, i.jf, i.k)).collect();
    let capture = Capture::open(link.index, &filter, request.promiscuous, snap)
        .map_err(|error| Status::unknown(format!("error creating a capture on {name:?}: {error}")))?;
    let session = Session { capture, link: name.to_owned(), packets: 0 };
    let head = stream::iter([Ok(data(file_header(snap, kind)))]);
    let packets = stream::unfold(Some(session), |session| async move {
        let mut session = session?;
        match session.next().await {
            Ok(bytes) => Some((Ok(data(bytes)), Some(session))),
            Err(error) => Some((Ok(data_error(format!("error capturing packets: {error}"))), None)),
        }
    });
    Ok(streaming(head.chain(packets)))
}

/// The filter of a request, judged as the kernel would.
fn program(wire: &[machine::BpfInstruction]) -> Result<Vec<Instruction>, Status> {
    let refused = |reason: String| {
        Status::invalid_argument(format!("error setting BPF filter: invalid argument: {reason}"))
    };
    let program: Option<Vec<Instruction>> = wire
        .iter()
        .map(|wire| {
            Some(Instruction {
                op: wire.op.try_into().ok()?,
                jt: wire.jt.try_into().ok()?,
                jf: wire.jf.try_into().ok()?,
                k: wire.k,
            })
        })
        .collect();
    let program = program.ok_or_else(|| refused("a number is too large for its field".to_owned()))?;
    if !program.is_empty() {
        ichor_bpf::verify(&program).map_err(|error| refused(error.to_string()))?;
    }
    Ok(program)
}

/// A capture and what came of it.
struct Session {
    capture: Capture,
    link: String,
    packets: u64,
}

impl Session {
    /// The packets that are there, at most a message full and at least one.
    async fn next(&mut self) -> std::io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let mut packets = 0;
        self.capture
            .receive(|packet| {
                add(&mut bytes, packet);
                packets += 1;
                bytes.len() < CHUNK
            })
            .await?;
        self.packets += packets;
        Ok(bytes)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let (seen, lost) = self.capture.statistics().unwrap_or_default();
        info!(link = self.link, packets = self.packets, seen, lost, "packet capture ended");
    }
}

fn file_header(snap: usize, link: LinkType) -> Vec<u8> {
    let mut header = Vec::with_capacity(24);
    header.extend(MAGIC.to_le_bytes());
    // Version 2.4, times in UTC.
    header.extend(2_u16.to_le_bytes());
    header.extend(4_u16.to_le_bytes());
    header.extend([0; 8]);
    header.extend(u32::try_from(snap).unwrap_or(u32::MAX).to_le_bytes());
    header.extend(link.number().to_le_bytes());
    header
}

fn add(bytes: &mut Vec<u8>, packet: Packet<'_>) {
    let since = packet.at.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let seconds = u32::try_from(since.as_secs()).unwrap_or(u32::MAX);
    let length = |length: usize| u32::try_from(length).unwrap_or(u32::MAX);
    for field in [seconds, since.subsec_nanos(), length(packet.data.len()), length(packet.length)] {
        bytes.extend(field.to_le_bytes());
    }
    bytes.extend_from_slice(packet.data);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wire(op: u32, jt: u32, jf: u32, k: u32) -> machine::BpfInstruction {
        machine::BpfInstruction { op, jt, jf, k }
    }

    #[test]
    fn programs_are_judged_before_the_kernel_sees_them() {
        assert_eq!(program(&[]).unwrap(), []);
        assert_eq!(program(&[wire(6, 0, 0, 1)]).unwrap().len(), 1);
        for bad in [
            vec![wire(0x1_0006, 0, 0, 1)],
            vec![wire(6, 256, 0, 1)],
            vec![wire(0x15, 3, 0, 1), wire(6, 0, 0, 0)],
            vec![wire(0x28, 0, 0, 12)],
            vec![wire(6, 0, 0, 0); 5000],
        ] {
            let error = program(&bad).unwrap_err();
            assert_eq!(error.code(), tonic::Code::InvalidArgument);
            assert!(error.message().starts_with("error setting BPF filter"), "{error}");
        }
    }

    #[test]
    fn the_file_has_its_header_and_its_records() {
        let mut file = file_header(96, LinkType::Raw);
        let at = UNIX_EPOCH + Duration::new(5, 7);
        add(&mut file, Packet { at, length: 300, data: b"abc" });
        let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap());
        assert_eq!((word(0), word(4), word(16), word(20)), (MAGIC, 0x0004_0002, 96, 101));
        assert_eq!((word(24), word(28), word(32), word(36)), (5, 7, 3, 300));
        assert_eq!(&file[40..], b"abc");
    }
}
