//! `version`: what runs here and on the machines.

use std::fmt::Write as _;

use ichor_wire::machine::{Version, VersionInfo};
use serde_json::{Map, Value, json};

use crate::failure::Failure;
use crate::flags::flags;
use crate::identity;
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

flags! {
    /// The command line, resolved.
    VersionFlags {
        connection: connection(),
        insecure: on("insecure"),
        client: on("client"),
        short: on("short"),
        json: on("json"),
    }
}

fn run(call: &Call) -> Result<(), Failure> {
    let flags = VersionFlags::of(call);
    if !flags.json {
        print(&client_text(&identity::version(), flags.short))?;
        if flags.client {
            return Ok(());
        }
        print("Server:\n")?;
    }
    block_on(async {
        let session = Session::open_either(&flags.connection, flags.insecure).await?;
        let reply = session.ask(session.all().machine().version(())).await;
        let versions =
            session.gather("error getting version", reply.map(|reply| reply.into_inner().messages))?;
        if flags.json {
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

/// One message of the API a line; what is empty is left out.
fn json_text(versions: &[(String, Version)]) -> String {
    versions.iter().map(|(_, version)| format!("{}\n", message(version))).collect()
}

fn message(version: &Version) -> Value {
    let texts = |fields: &[(&str, &str)]| {
        let known = fields.iter().filter(|(_, text)| !text.is_empty());
        Value::Object(known.map(|(key, text)| ((*key).to_owned(), json!(text))).collect())
    };
    let mut out = Map::new();
    if let Some(metadata) = &version.metadata {
        out.insert("metadata".to_owned(), texts(&[("hostname", &metadata.hostname)]));
    }
    if let Some(info) = &version.version {
        let VersionInfo { tag, sha, built, go_version, os, arch } = info;
        let fields = [("tag", tag), ("sha", sha), ("built", built), ("goVersion", go_version), ("os", os)];
        let fields = fields.into_iter().chain([("arch", arch)]).map(|(key, text)| (key, text.as_str()));
        out.insert("version".to_owned(), texts(&fields.collect::<Vec<_>>()));
    }
    if let Some(platform) = &version.platform {
        let fields = [("name", platform.name.as_str()), ("mode", platform.mode.as_str())];
        out.insert("platform".to_owned(), texts(&fields));
    }
    if let Some(features) = &version.features {
        out.insert("features".to_owned(), if features.rbac { json!({ "rbac": true }) } else { json!({}) });
    }
    Value::Object(out)
}

#[cfg(test)]
mod tests {
    use ichor_wire::common::Metadata;
    use ichor_wire::machine::{FeaturesInfo, PlatformInfo};

    use super::*;

    #[test]
    fn every_machine_is_one_message_of_the_api_without_what_is_empty() {
        let full = Version {
            metadata: Some(Metadata { hostname: "10.5.0.2".to_owned(), ..Metadata::default() }),
            version: Some(VersionInfo {
                tag: "v1.12.1".to_owned(),
                sha: "abc".to_owned(),
                go_version: "go1.25.5".to_owned(),
                os: "linux".to_owned(),
                arch: "amd64".to_owned(),
                ..VersionInfo::default()
            }),
            platform: Some(PlatformInfo { name: "metal".to_owned(), mode: "metal".to_owned() }),
            features: Some(FeaturesInfo { rbac: true }),
        };
        let bare = Version { features: Some(FeaturesInfo { rbac: false }), ..Version::default() };
        let text = json_text(&[("a".to_owned(), full), ("b".to_owned(), bare)]);
        let expected = concat!(
            r#"{"metadata":{"hostname":"10.5.0.2"},"version":{"tag":"v1.12.1","sha":"abc","goVersion":"go1.25.5","#,
            r#""os":"linux","arch":"amd64"},"platform":{"name":"metal","mode":"metal"},"features":{"rbac":true}}"#,
            "\n{\"features\":{}}\n",
        );
        assert_eq!(text, expected);
    }
}
