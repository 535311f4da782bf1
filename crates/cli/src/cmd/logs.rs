//! `logs` and `dmesg`: text streams of machines, line by line.

use std::io::{BufWriter, Write as _, stdout};

use ichor_client::lines::Lines;
use ichor_client::sort;
use ichor_wire::common::{ContainerDriver, Data};
use ichor_wire::machine::{DmesgRequest, LogsRequest};
use tonic::Streaming;

use crate::explain;
use crate::failure::Failure;
use crate::parse::Call;
use crate::session::{Session, StreamErrors, block_on};
use crate::table::{Args, Command, Complete, Flag, Group};

/// `logs`.
pub static LOGS: Command = Command {
    name: "logs",
    group: Group::Machines,
    about: "Show the log of a service or container",
    examples: &["logs apid -f", "logs machined --tail 100", "logs -k kube-system/coredns-…:coredns"],
    args: Args::between("<service name>", 1, 1).complete(&[Complete::Service]),
    flags: &[
        Flag::switch("follow", "keep showing new lines").short('f'),
        Flag::int32("tail", "-1", "show this many of the last lines; -1 means all"),
        Flag::switch("kubernetes", "look in the containers of Kubernetes").short('k'),
        Flag::switch("use-cri", "ask the container runtime of Kubernetes").hidden(),
    ],
    run: Some(logs),
    ..Command::EMPTY
};

/// `dmesg`.
pub static DMESG: Command = Command {
    name: "dmesg",
    group: Group::Machines,
    about: "Show the kernel log",
    flags: &[
        Flag::switch("follow", "keep showing new lines").short('f'),
        Flag::switch("tail", "show new lines only"),
    ],
    run: Some(dmesg),
    ..Command::EMPTY
};

fn logs(call: &Call) -> Result<(), Failure> {
    let kubernetes = call.on("kubernetes") || call.on("use-cri");
    let (namespace, driver) =
        if kubernetes { ("k8s.io", ContainerDriver::Cri) } else { ("system", ContainerDriver::Containerd) };
    let request = LogsRequest {
        namespace: namespace.to_owned(),
        id: call.arg(0).to_owned(),
        driver: driver.into(),
        follow: call.on("follow"),
        tail_lines: i32::try_from(call.int("tail")).unwrap_or(-1),
    };
    let connection = call.connection();
    block_on(async {
        let session = Session::open(&connection).await?;
        let stream = session.all().machine().logs(request).await;
        let stream = stream.map_err(|status| explain::status("error fetching logs", &status))?;
        show(&session, stream.into_inner()).await
    })
}

fn dmesg(call: &Call) -> Result<(), Failure> {
    let request = DmesgRequest { follow: call.on("follow"), tail: call.on("tail") };
    let connection = call.connection();
    block_on(async {
        let session = Session::open(&connection).await?;
        let stream = session.all().machine().dmesg(request).await;
        let stream = stream.map_err(|status| explain::status("error getting dmesg", &status))?;
        show(&session, stream.into_inner()).await
    })
}

/// Prints `node: line` for every line. Errors of single machines are told where they happen; the rest of
/// the stream goes on, and the command ends with exit status 1.
async fn show(session: &Session, mut stream: Streaming<Data>) -> Result<(), Failure> {
    let mut lines = Lines::default();
    let mut out = BufWriter::with_capacity(64 * 1024, stdout());
    let mut failed = false;
    let mut written = Ok(());
    let mut errors = StreamErrors::default();
    loop {
        let message = match stream.message().await {
            Ok(Some(message)) => message,
            Ok(None) => break,
            Err(status) => {
                errors.broken(&session.label, &status);
                break;
            }
        };
        match sort(message, &session.label) {
            Ok((node, data)) => lines.push(&node, &data.bytes, |node, line| {
                if written.is_ok() {
                    written = write_line(&mut out, node, line);
                }
            }),
            Err(error) => {
                eprintln!("ERROR: {error}");
                failed = true;
            }
        }
        std::mem::replace(&mut written, Ok(()))?;
        out.flush()?;
    }
    lines.finish(|node, line| {
        if written.is_ok() {
            written = write_line(&mut out, node, line);
        }
    });
    written?;
    out.flush()?;
    errors.finish()?;
    if failed { Err(Failure::told()) } else { Ok(()) }
}

fn write_line(out: &mut impl std::io::Write, node: &str, line: &[u8]) -> std::io::Result<()> {
    out.write_all(node.as_bytes())?;
    out.write_all(b": ")?;
    out.write_all(line)?;
    out.write_all(b"\n")
}
