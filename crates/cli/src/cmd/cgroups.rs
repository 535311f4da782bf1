//! `cgroups`: what control groups use and may use.

use std::collections::BTreeMap;
use std::path::Path;

use bytes::Bytes;
use ichor_client::{Client, sort, status_text};
use ichor_wire::common::ContainerDriver;
use ichor_wire::machine::{ContainersRequest, CopyRequest};

use crate::cgroups::{Group, PRESETS, Schema, preset, table_text};
use crate::explain;
use crate::failure::{Context, Failure};
use crate::parse::Call;
use crate::print;
use crate::session::{Session, block_on};
use crate::table::{self, Command, Complete, Flag};
use crate::term;

/// The most an archive of the control group filesystem may take, packed.
const ARCHIVE_MAX: usize = 64 * 1024 * 1024;

/// The command.
pub static CGROUPS: Command = Command {
    name: "cgroups",
    aliases: &["cg"],
    group: table::Group::Machines,
    about: "Show what control groups use and may use",
    long: "Shows the tree of control groups (version 2) with the columns of a preset: cpu, cpuset, io, memory,\n\
           process, psi or swap. A schema file has columns of its own, each with a name and a template over the\n\
           group's files.",
    examples: &["cgroups --preset memory", "cgroups --schema-file columns.yaml"],
    flags: &[
        Flag::text("preset", "columns to show: cpu, cpuset, io, memory, process, psi or swap")
            .complete(Complete::Words(&PRESETS)),
        Flag::text("schema-file", "file that describes the columns").complete(Complete::File),
        Flag::switch("skip-cri-resolve", "do not ask for the names of pods and containers"),
    ],
    run: Some(run),
    ..Command::EMPTY
};

fn run(call: &Call) -> Result<(), Failure> {
    let schema = schema(call)?;
    let (connection, resolve) = (call.connection(), !call.on("skip-cri-resolve"));
    block_on(async {
        let session = Session::open(&connection).await?;
        let client = session.only()?;
        let processes = processes(&client).await;
        let devices = devices(&session, &client).await;
        let packed = copy(&session, &client, "/sys/fs/cgroup").await?;
        let mut root = Group::from_tar(flate2::read::GzDecoder::new(packed.as_slice()))
            .context("error reading cgroups")?;
        if resolve {
            root.rename(&pods(&client).await);
        }
        root.resolve(&processes, &devices);
        print(&table_text(&root, &schema).plain()?)
    })
}

fn schema(call: &Call) -> Result<Schema, Failure> {
    match (call.some_text("schema-file"), call.some_text("preset")) {
        (Some(_), Some(_)) => Err(Failure::new(
            "if any flags in the group [schema-file preset] are set none of the others can be; [preset schema-file] were all set",
        )),
        (Some(file), None) => Schema::parse(&crate::files::read(Path::new(file))?),
        (None, Some(name)) => preset(name).ok_or_else(|| {
            Failure::new(format!("invalid preset name: {name}"))
                .hint(format!("use one of {}", PRESETS.join(", ")))
        }),
        (None, None) => Err(Failure::new("either schema file or preset must be specified")
            .hint("for example `ichorctl cgroups --preset memory`")),
    }
}

/// A path of the machine as a packed archive.
async fn copy(session: &Session, client: &Client, path: &str) -> Result<Vec<u8>, Failure> {
    let doing = "error copying";
    let stream = client.machine().copy(CopyRequest { root_path: path.to_owned() }).await;
    let mut stream = stream.map_err(|status| explain::status(doing, &status))?.into_inner();
    let mut packed = Vec::new();
    while let Some(message) = stream.message().await.map_err(|status| explain::status(doing, &status))? {
        let Ok((_, data)) = sort(message, &session.label) else {
            // Files come and go while they are copied; what arrived is still good.
            continue;
        };
        let bytes: Bytes = data.bytes;
        packed.extend_from_slice(&bytes);
        if packed.len() > ARCHIVE_MAX {
            return Err(Failure::new(format!("{doing}: {path} is too large")));
        }
    }
    Ok(packed)
}

/// Names of processes by their ids.
async fn processes(client: &Client) -> BTreeMap<String, String> {
    let reply = match client.machine().processes(()).await {
        Ok(reply) => reply.into_inner(),
        Err(status) => {
            term::warn(&format!("error getting processes: {}", status_text(&status)));
            return BTreeMap::new();
        }
    };
    let named = reply.messages.into_iter().flat_map(|reply| reply.processes).map(|process| {
        let first = process.args.split_whitespace().next().unwrap_or_default();
        let name = [process.executable.as_str(), process.command.as_str(), first];
        let name = name.into_iter().find(|name| !name.is_empty()).unwrap_or_default();
        let name = name.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
        (process.pid.to_string(), name.to_owned())
    });
    named.collect()
}

/// Names of block devices by their numbers.
async fn devices(session: &Session, client: &Client) -> BTreeMap<String, String> {
    let packed = match copy(session, client, "/sys/dev/block").await {
        Ok(packed) => packed,
        Err(failure) => {
            term::warn(&format!("error copying devices: {failure}"));
            return BTreeMap::new();
        }
    };
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(packed.as_slice()));
    let mut names = BTreeMap::new();
    let Ok(entries) = archive.entries() else { return names };
    for entry in entries.map_while(Result::ok) {
        let (Ok(path), Ok(Some(link))) = (entry.path(), entry.link_name()) else { continue };
        if let Some(name) = link.file_name() {
            names.insert(path.to_string_lossy().into_owned(), name.to_string_lossy().into_owned());
        }
    }
    names
}

/// Names of pods and containers by the names of their groups.
async fn pods(client: &Client) -> BTreeMap<String, String> {
    let request = ContainersRequest { namespace: "k8s.io".into(), driver: ContainerDriver::Cri.into() };
    let reply = match client.machine().containers(request).await {
        Ok(reply) => reply.into_inner(),
        Err(status) => {
            term::warn(&format!("error getting containers: {}", status_text(&status)));
            return BTreeMap::new();
        }
    };
    let mut names = BTreeMap::new();
    for container in reply.messages.into_iter().flat_map(|reply| reply.containers) {
        if !container.uid.is_empty() && !container.pod_id.is_empty() {
            names.insert(format!("pod{}", container.uid), container.pod_id.clone());
        }
        if !container.internal_id.is_empty() {
            let sandbox = container.pod_id == container.name;
            let name = if sandbox { "sandbox".to_owned() } else { container.name };
            names.insert(container.internal_id, name);
        }
    }
    names
}
