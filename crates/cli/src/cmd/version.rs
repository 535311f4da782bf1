//! `version`: what runs here and on the machines.

use std::fmt::Write as _;

use ichor_wire::machine::{Version, VersionInfo};
use serde_json::json;

use crate::failure::Failure;
use crate::identity;
use crate::output::json::pretty;
use crate::parse::Call;
use crate::print;
use crate::session::{Session, block_on};
use crate::table::{Command, Flag, Group};

/// The command.
pub static VERSION: Command = Command {
    name: "version",
    group: Group::Machines,
    about: "Print the versions of this client and of the machines",
    examples: &["version --client", "version -n 10.5.0.2"],
    flags: &[
        Flag::switch("client", "print the client's version only"),
        Flag::switch("short", "print the version of this client in one line"),
        Flag::switch("insecure", "ask a machine that waits for its configuration").short('i'),
        Flag::switch("json", "print JSON").hidden(),
    ],
    run: Some(run),
    ..Command::EMPTY
};

fn run(call: &Call) -> Result<(), Failure> {
    let (short, as_json) = (call.on("short"), call.on("json"));
    if !as_json {
        print(&client_text(&identity::version(), short))?;
    }
    if call.on("client") {
        return if as_json { print(&json_text(&[])) } else { Ok(()) };
    }
    if !as_json {
        print("Server:\n")?;
    }
    block_on(async {
        let session = Session::open_either(call).await?;
        let reply = session.ask(session.all().machine().version(())).await;
        let versions =
            session.gather("error getting version", reply.map(|reply| reply.into_inner().messages))?;
        if as_json {
            return print(&json_text(&versions));
        }
        print(&server_text(&versions))
    })
}

/// The block about the client.
pub fn client_text(version: &VersionInfo, short: bool) -> String {
    let text = if short { format!("Talos {}\n", version.tag) } else { info_text(version) };
    format!("Client:\n{text}")
}

/// The block about the machines.
pub fn server_text(versions: &[(String, Version)]) -> String {
    let mut out = String::new();
    for (node, version) in versions {
        let _ = writeln!(out, "\tNODE:        {node}");
        out.push_str(&info_text(version.version.as_ref().unwrap_or(&VersionInfo::default())));
        let rbac = version.features.as_ref().is_some_and(|features| features.rbac);
        let _ = writeln!(out, "\tEnabled:     {}", if rbac { "RBAC" } else { "" });
    }
    out
}

/// The lines about one version.
pub fn info_text(version: &VersionInfo) -> String {
    let VersionInfo { tag, sha, built, go_version, os, arch } = version;
    format!(
        "\tTag:         {tag}\n\tSHA:         {sha}\n\tBuilt:       {built}\n\tGo version:  {go_version}\n\tOS/Arch:     {os}/{arch}\n"
    )
}

fn json_text(versions: &[(String, Version)]) -> String {
    let info = |version: &VersionInfo| {
        json!({
            "tag": version.tag, "sha": version.sha, "built": version.built,
            "goVersion": version.go_version, "os": version.os, "arch": version.arch,
        })
    };
    let servers: Vec<_> = versions
        .iter()
        .map(|(node, version)| {
            json!({ "node": node, "version": version.version.as_ref().map(info),
                "features": { "rbac": version.features.as_ref().is_some_and(|features| features.rbac) } })
        })
        .collect();
    pretty(&json!({ "client": info(&identity::version()), "servers": servers }), "  ")
}
