//! `support`: everything that helps to find a fault, in one archive and without secrets.

use std::fs::File;
use std::io::{self, BufRead as _, BufWriter, Seek, Write, stdin};
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::stream::{self, StreamExt as _};
use ichor_client::Client;
use ichor_health::{Kubernetes as _, Objects, Topology};
use ichor_ops::fleet as ops_fleet;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use tokio::time::timeout;
use zip::write::{SimpleFileOptions, ZipWriter};

use crate::bars::Bars;
use crate::connection::Connection;
use crate::failure::{Context, Failure};
use crate::output::json;
use crate::parse::Call;
use crate::session::{Session, block_on};
use crate::support::{Collector, collectors};
use crate::table::{Command, Complete, Flag, Group};
use crate::tabs::Table;
use crate::{fleet, print, term};

/// The most that is collected at the same time.
const WORKERS_MAX: usize = 32;
/// How long Kubernetes may take for one list.
const KUBERNETES_MAX: Duration = Duration::from_secs(15);

/// The command.
pub static SUPPORT: Command = Command {
    name: "support",
    group: Group::Machines,
    about: "Collect what helps to find a fault",
    long: "Writes a zip archive with the kernel log, the logs and states of services, all resources, the graph of\n\
           controllers, mounts, devices, disk counters, processes and versions of every machine, and the nodes and\n\
           system pods of Kubernetes. Specs of sensitive resources are left out.",
    examples: &["support -n 10.5.0.2,10.5.0.3 -O bundle.zip"],
    flags: &[
        Flag::int("num-workers", "1", "collect this many things of a machine at once").short('w'),
        Flag::text("output", "file to write (default support.zip)").short('O').complete(Complete::File),
        Flag::switch("verbose", "say what is collected").short('v'),
    ],
    run: Some(run),
    ..Command::EMPTY
};

fn run(call: &Call) -> Result<(), Failure> {
    if call.list("nodes").is_empty() {
        return Err(Failure::new(
            "please provide at least a single node to gather the debug information from",
        )
        .hint("name the machines with `-n ADDRESS`; those of the client configuration do not count here"));
    }
    let path = PathBuf::from(call.some_text("output").unwrap_or("support.zip"));
    if path.exists() {
        confirm(&path)?;
    }
    let workers = usize::try_from(call.int("num-workers")).unwrap_or(1).clamp(1, WORKERS_MAX);
    let (connection, verbose) = (call.connection(), call.on("verbose"));
    block_on(async {
        let session = Session::open(&connection).await?;
        let file = File::create(&path).context(format!("create {}", path.display()))?;
        let mut archive = ZipWriter::new(BufWriter::new(file));
        let mut errors: Vec<(String, String)> = Vec::new();
        let mut teller = Teller::new(verbose);
        match kubernetes(&connection, &session).await {
            Ok(files) => {
                teller.begin("cluster", files.len());
                for (name, content) in files {
                    add(&mut archive, name, content.as_bytes())
                        .context(format!("write {}", path.display()))?;
                    teller.done("cluster", name)?;
                }
            }
            Err(failure) => term::warn(&format!("nothing of Kubernetes is in the bundle: {failure}")),
        }
        for node in &session.nodes {
            let client = session.node(node);
            let (list, failed) = collectors(&client, &session).await;
            errors.extend(failed.into_iter().map(|error| (node.clone(), error)));
            teller.begin(node, list.len());
            let mut results =
                stream::iter(list.iter().map(|collector| collect(&session, &client, collector)))
                    .buffered(workers);
            while let Some((name, result)) = results.next().await {
                match result {
                    Ok(content) if content.is_empty() => {}
                    Ok(content) => add(&mut archive, &format!("{node}/{name}"), &content)
                        .context(format!("write {}", path.display()))?,
                    Err(failure) => errors.push((node.clone(), format!("{name}: {failure}"))),
                }
                teller.done(node, &name)?;
            }
        }
        let done = archive.finish().map_err(io::Error::from).and_then(|mut out| out.flush());
        done.context(format!("write {}", path.display()))?;
        tell(&errors);
        eprintln!("Support bundle is written to {}", path.display());
        Ok(())
    })
}

/// Adds a file, with the time of now.
fn add(archive: &mut ZipWriter<impl Write + Seek>, name: &str, content: &[u8]) -> io::Result<()> {
    let options = SimpleFileOptions::default().last_modified_time(dos_time(Timestamp::now()));
    archive.start_file(name, options.unix_permissions(0o644))?;
    archive.write_all(content)
}

/// The time as archives have it; they begin in 1980.
fn dos_time(time: Timestamp) -> zip::DateTime {
    let time = time.to_zoned(TimeZone::UTC).datetime();
    let part = i8::unsigned_abs;
    let year = u16::try_from(time.year()).unwrap_or_default();
    let (date, clock) = ((part(time.month()), part(time.day())), (part(time.hour()), part(time.minute())));
    zip::DateTime::from_date_and_time(year, date.0, date.1, clock.0, clock.1, part(time.second()))
        .unwrap_or_default()
}

/// Shows bars, or every name to those who want to know.
struct Teller {
    bars: Option<Bars>,
}

impl Teller {
    fn new(verbose: bool) -> Self {
        Self { bars: (!verbose).then(Bars::new) }
    }

    fn begin(&mut self, source: &str, total: usize) {
        if let Some(bars) = &mut self.bars {
            bars.begin(source, total);
        }
    }

    fn done(&mut self, source: &str, name: &str) -> Result<(), Failure> {
        let Some(bars) = &mut self.bars else {
            eprintln!("{source}: {name}");
            return Ok(());
        };
        bars.step(format!("collect {}", name.rsplit('/').next().unwrap_or(name)))
    }
}

/// What Kubernetes says of its nodes and of the pods of the system.
async fn kubernetes(
    connection: &Connection,
    session: &Session,
) -> Result<Vec<(&'static str, String)>, Failure> {
    let route = fleet::route(connection, "")?;
    // Whichever of them is a control plane hands out a kubeconfig.
    let topology = Topology::named(&session.nodes, &[]);
    let fleet = ops_fleet::over(ops_fleet::access(&session.endpoint()), topology, &route);
    let mut files = Vec::new();
    for (name, what) in [
        ("kubernetesResources/nodes.yaml", Objects::Nodes),
        ("kubernetesResources/systemPods.yaml", Objects::SystemPods),
    ] {
        let list = timeout(KUBERNETES_MAX, fleet.kubernetes.list(what, "")).await;
        let list = list.map_err(|_| Failure::new(format!("{name}: no answer in time")))?;
        let items = list.map_err(|error| Failure::new(format!("{name}: {error}")))?;
        let list = serde_json::json!({"apiVersion": "v1", "items": items, "kind": "List"});
        files.push((name, ichor_yaml::emit(&json::to_yaml(&list))));
    }
    Ok(files)
}

async fn collect(
    session: &Session,
    client: &Client,
    collector: &Collector,
) -> (String, Result<Vec<u8>, Failure>) {
    (collector.name(), collector.run(session, client).await)
}

fn confirm(path: &Path) -> Result<(), Failure> {
    print(&format!("{} already exists, overwrite? [y/N]: ", path.display()))?;
    let mut answer = String::new();
    stdin().lock().read_line(&mut answer).context("read the answer")?;
    if answer.trim().eq_ignore_ascii_case("y") {
        return Ok(());
    }
    Err(Failure::new("operation aborted").hint("name another file with `-O FILE`"))
}

fn tell(errors: &[(String, String)]) {
    if errors.is_empty() {
        return;
    }
    let mut table = Table::with_header(["", "SOURCE", "ERROR"]);
    for (source, error) in errors {
        let mut source = source.as_str();
        for line in error.lines() {
            table.row(["", source, line.trim()]);
            source = "";
        }
    }
    eprint!("Processed with errors:\n{}", table.take());
}

#[cfg(test)]
mod tests {
    use std::io::{Cursor, Read as _};

    use super::*;

    #[test]
    fn archives_are_read_by_name_and_keep_their_time() {
        let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
        add(&mut archive, "a/b.txt", b"hello hello hello").unwrap();
        add(&mut archive, "c", b"").unwrap();
        let mut archive = zip::ZipArchive::new(archive.finish().unwrap()).unwrap();
        assert_eq!(archive.len(), 2);
        let mut file = archive.by_name("a/b.txt").unwrap();
        assert_eq!(file.compression(), zip::CompressionMethod::Deflated);
        assert_eq!(file.unix_mode(), Some(0o100_644));
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "hello hello hello");
        let time = dos_time("2026-11-15T10:20:31Z".parse().unwrap());
        assert_eq!(time.to_string(), "2026-11-15 10:20:30");
        assert_eq!(dos_time(Timestamp::UNIX_EPOCH).year(), 1980);
    }
}
