//! `etcd` and `bootstrap`: the database of the control plane.

use ichor_ops::etcd::{self, describe};
use ichor_wire::ichor::node::{EtcdRebuild, EtcdRebuildRequest};
use ichor_wire::machine as wire;
use ichor_wire::machine::{EtcdMemberAlarm, EtcdMembers, EtcdStatus};

use crate::connection::Connection;
use crate::failure::Failure;
use crate::parse::Call;
use crate::print;
use crate::session::{Session, block_on};
use crate::table::{Args, Command, Complete, Flag, Group};
use crate::tabs::Table;
use crate::text;

use super::etcd_backup::{AGE_IDENTITY, BACKUP, FETCH, S3_ENDPOINT, S3_PATH_STYLE, S3_REGION, SourceFlags};
use super::etcd_snapshot::SNAPSHOT;

/// The parent.
pub static ETCD: Command = Command {
    name: "etcd",
    group: Group::Machines,
    about: "Manage etcd",
    subcommands: &[
        &ALARM, &BACKUP, &DEFRAG, &DOWNGRADE, &FETCH, &FORFEIT, &LEAVE, &MEMBERS, &RECOVER, &REMOVE,
        &SNAPSHOT, &STATUS,
    ],
    ..Command::EMPTY
};

static ALARM: Command = Command {
    name: "alarm",
    about: "Manage alarms",
    subcommands: &[
        &Command {
            name: "disarm",
            about: "Switch the alarms of the machines' members off",
            run: Some(alarm_disarm),
            ..Command::EMPTY
        },
        &Command {
            name: "list",
            about: "List the alarms of the machines' members",
            run: Some(alarm_list),
            ..Command::EMPTY
        },
    ],
    ..Command::EMPTY
};

static DEFRAG: Command = Command {
    name: "defrag",
    about: "Give unused space of the database back",
    long: "Gives unused space of the database back. It costs a lot while it runs: one machine at a time, and only\n\
           when it is needed.",
    run: Some(defrag),
    ..Command::EMPTY
};

static LEAVE: Command =
    Command { name: "leave", about: "Take a machine out of the cluster", run: Some(leave), ..Command::EMPTY };

static FORFEIT: Command = Command {
    name: "forfeit-leadership",
    about: "Let another member lead",
    run: Some(forfeit),
    ..Command::EMPTY
};

static REMOVE: Command = Command {
    name: "remove-member",
    about: "Remove a member that cannot leave by itself",
    long: "Removes a member by its id. Use it only when the machine is broken or cannot reach etcd; `etcd leave`\n\
           is the better way.",
    args: Args::between("<member ID>", 1, 1),
    run: Some(remove),
    ..Command::EMPTY
};

static MEMBERS: Command =
    Command { name: "members", about: "List the members", run: Some(members), ..Command::EMPTY };

static STATUS: Command = Command {
    name: "status",
    about: "Show the state of the machines' members",
    run: Some(status),
    ..Command::EMPTY
};

static RECOVER: Command = Command {
    name: "recover",
    about: "Rebuild a cluster that lost its quorum from one member that is left",
    long: "Makes the member of one machine a cluster of its own, with all its data. Machines of lost members that have\n\
           no data of etcd join it by themselves. Choose the machine with the highest raft index (`etcd status`).",
    examples: &["etcd recover -n 10.5.0.2"],
    flags: &[Flag::switch("force", "even where there is a quorum")],
    run: Some(recover),
    ..Command::EMPTY
};

static DOWNGRADE: Command = Command {
    name: "downgrade",
    about: "Go back to an older format of the database",
    subcommands: &[
        &Command { name: "cancel", about: "Stop a downgrade", run: Some(downgrade_cancel), ..Command::EMPTY },
        &Command {
            name: "enable",
            about: "Start a downgrade to this version",
            args: Args::between("<version>", 1, 1),
            run: Some(downgrade_enable),
            ..Command::EMPTY
        },
        &Command {
            name: "validate",
            about: "Tell whether a downgrade to this version can be done",
            args: Args::between("<version>", 1, 1),
            run: Some(downgrade_validate),
            ..Command::EMPTY
        },
    ],
    ..Command::EMPTY
};

/// `bootstrap`.
pub static BOOTSTRAP: Command = Command {
    name: "bootstrap",
    group: Group::Machines,
    about: "Start etcd of a new cluster, on one machine only",
    long: "Starts etcd on one control plane machine; the others join it. Do it once in the life of a cluster.\n\
           With --recover-from the cluster begins with what is in a snapshot or a backup: a file, s3://BUCKET/KEY, or\n\
           s3://BUCKET/PREFIX/ for the newest backup there.",
    examples: &[
        "bootstrap -n 10.5.0.2",
        "bootstrap -n 10.5.0.2 --recover-from db.snapshot",
        "bootstrap -n 10.5.0.2 --recover-from s3://backups/prod/ --age-identity key.txt",
    ],
    flags: &[
        AGE_IDENTITY,
        Flag::text("recover-from", "start from this snapshot").complete(Complete::File),
        Flag::switch("recover-skip-hash-check", "take a copy of the data directory, which has no checksum"),
        S3_ENDPOINT,
        S3_PATH_STYLE,
        S3_REGION,
    ],
    run: Some(bootstrap),
    ..Command::EMPTY
};

/// Asks all machines, or with `one` the only one, and sorts the replies.
macro_rules! ask {
    (one $connection:expr, $doing:expr, $request:expr, $method:ident) => {
        ask!(@run $connection, $doing, $request, $method, true)
    };
    ($connection:expr, $doing:expr, $request:expr, $method:ident) => {
        ask!(@run $connection, $doing, $request, $method, false)
    };
    (@run $connection:expr, $doing:expr, $request:expr, $method:ident, $one:literal) => {
        async {
            let session = Session::open(&$connection).await?;
            if $one {
                session.only()?;
            }
            let reply = session.ask(session.all().machine().$method($request)).await;
            session.gather($doing, reply.map(|reply| reply.into_inner().messages))
        }
    };
}

fn member(id: u64) -> String {
    format!("{id:016x}")
}

fn alarm_list(call: &Call) -> Result<(), Failure> {
    let connection = call.connection();
    block_on(async {
        let replies = ask!(connection, "error getting alarms", (), etcd_alarm_list).await?;
        print(&alarms_text(replies.into_iter().map(|(node, reply)| (node, reply.member_alarms))))
    })
}

fn alarm_disarm(call: &Call) -> Result<(), Failure> {
    let connection = call.connection();
    block_on(async {
        let replies = ask!(connection, "error disarming alarms", (), etcd_alarm_disarm).await?;
        print(&alarms_text(replies.into_iter().map(|(node, reply)| (node, reply.member_alarms))))
    })
}

fn alarms_text(replies: impl Iterator<Item = (String, Vec<EtcdMemberAlarm>)>) -> String {
    let mut table = Table::default();
    for (node, alarms) in replies {
        for alarm in alarms {
            if table.is_empty() {
                table.row(["NODE", "MEMBER", "ALARM"]);
            }
            table.row([&node, &member(alarm.member_id), alarm.alarm().as_str_name()]);
        }
    }
    table.take()
}

fn defrag(call: &Call) -> Result<(), Failure> {
    let connection = call.connection();
    block_on(async { ask!(one connection, "error defragmenting", (), etcd_defragment).await.map(drop) })
}

fn leave(call: &Call) -> Result<(), Failure> {
    let request = wire::EtcdLeaveClusterRequest {};
    let connection = call.connection();
    block_on(async {
        ask!(one connection, "error leaving the cluster", request, etcd_leave_cluster).await.map(drop)
    })
}

fn forfeit(call: &Call) -> Result<(), Failure> {
    let request = wire::EtcdForfeitLeadershipRequest {};
    let doing = "error forfeiting leadership";
    let connection = call.connection();
    block_on(async { ask!(connection, doing, request, etcd_forfeit_leadership).await.map(drop) })
}

fn remove(call: &Call) -> Result<(), Failure> {
    let id = u64::from_str_radix(call.arg(0), 16).map_err(|_| {
        Failure::new(format!("error parsing member ID: \"{}\" is not a hexadecimal number", call.arg(0)))
            .hint("`ichorctl etcd members` shows the ids")
    })?;
    let request = wire::EtcdRemoveMemberByIdRequest { member_id: id };
    let connection = call.connection();
    block_on(async {
        ask!(connection, "error removing the member", request, etcd_remove_member_by_id).await.map(drop)
    })
}

fn recover(call: &Call) -> Result<(), Failure> {
    let request = EtcdRebuildRequest { force: call.on("force") };
    let connection = call.connection();
    block_on(async {
        let session = Session::open(&connection).await?;
        session.only()?;
        let reply = session.ask(session.all().node().etcd_rebuild(request)).await;
        let replies =
            session.gather("error rebuilding the cluster", reply.map(|reply| reply.into_inner().messages))?;
        print(&replies.iter().map(|(node, reply)| recovered_text(node, reply)).collect::<String>())
    })
}

fn recovered_text(node: &str, reply: &EtcdRebuild) -> String {
    let forgotten = match reply.forgotten.len() {
        0 => String::new(),
        _ => format!("; forgotten: {}", reply.forgotten.join(", ")),
    };
    format!(
        "etcd of {node} is a cluster of its own at revision {}{forgotten}\n\
         control planes without data of etcd join it by themselves\n",
        reply.revision
    )
}

fn members(call: &Call) -> Result<(), Failure> {
    let request = wire::EtcdMemberListRequest { query_local: true };
    let connection = call.connection();
    block_on(async {
        let replies = ask!(connection, "error getting members", request, etcd_member_list).await?;
        print(&members_text(&replies))
    })
}

fn members_text(replies: &[(String, EtcdMembers)]) -> String {
    let mut table = Table::default();
    for (node, reply) in replies {
        for found in &reply.members {
            if table.is_empty() {
                table.row(["NODE", "ID", "HOSTNAME", "PEER URLS", "CLIENT URLS", "LEARNER"]);
            }
            table.row([
                node.clone(),
                member(found.id),
                found.hostname.clone(),
                found.peer_urls.join(","),
                found.client_urls.join(","),
                found.is_learner.to_string(),
            ]);
        }
    }
    table.take()
}

fn status(call: &Call) -> Result<(), Failure> {
    let connection = call.connection();
    block_on(async {
        let replies = ask!(connection, "error getting status", (), etcd_status).await?;
        print(&status_text(&replies))
    })
}

fn status_text(replies: &[(String, EtcdStatus)]) -> String {
    let mut table = Table::with_header([
        "NODE",
        "MEMBER",
        "DB SIZE",
        "IN USE",
        "LEADER",
        "RAFT INDEX",
        "RAFT TERM",
        "RAFT APPLIED INDEX",
        "LEARNER",
        "PROTOCOL",
        "STORAGE",
        "ERRORS",
    ]);
    for (node, reply) in replies {
        let status = reply.member_status.clone().unwrap_or_default();
        let size = u64::try_from(status.db_size).unwrap_or_default();
        let used = u64::try_from(status.db_size_in_use).unwrap_or_default();
        let percent = if size == 0 { 0.0 } else { used as f64 / size as f64 * 100.0 };
        table.row([
            node.clone(),
            member(status.member_id),
            text::bytes(size),
            format!("{} ({percent:.2}%)", text::bytes(used)),
            member(status.leader),
            status.raft_index.to_string(),
            status.raft_term.to_string(),
            status.raft_applied_index.to_string(),
            status.is_learner.to_string(),
            status.protocol_version,
            status.storage_version,
            status.errors.join(", "),
        ]);
    }
    table.take()
}

fn downgrade_text(verb: &str, replies: Vec<(String, Option<wire::EtcdClusterDowngrade>)>) -> String {
    let mut table = Table::with_header(["NODE", "MESSAGE"]);
    for (node, downgrade) in replies {
        let version = downgrade.unwrap_or_default().cluster_version;
        table.row([node, format!("downgrade {verb} success, cluster version {version}")]);
    }
    table.take()
}

fn downgrade_validate(call: &Call) -> Result<(), Failure> {
    let request = wire::EtcdDowngradeValidateRequest { version: call.arg(0).to_owned() };
    let connection = call.connection();
    block_on(async {
        let replies =
            ask!(one connection, "error validating the downgrade", request, etcd_downgrade_validate).await?;
        let replies = replies.into_iter().map(|(node, reply)| (node, reply.cluster_downgrade)).collect();
        print(&downgrade_text("validate", replies))
    })
}

fn downgrade_enable(call: &Call) -> Result<(), Failure> {
    let request = wire::EtcdDowngradeEnableRequest { version: call.arg(0).to_owned() };
    let connection = call.connection();
    block_on(async {
        let replies =
            ask!(one connection, "error enabling the downgrade", request, etcd_downgrade_enable).await?;
        let replies = replies.into_iter().map(|(node, reply)| (node, reply.cluster_downgrade)).collect();
        print(&downgrade_text("enable", replies))
    })
}

fn downgrade_cancel(call: &Call) -> Result<(), Failure> {
    let connection = call.connection();
    block_on(async {
        let replies =
            ask!(one connection, "error canceling the downgrade", (), etcd_downgrade_cancel).await?;
        let replies = replies.into_iter().map(|(node, reply)| (node, reply.cluster_downgrade)).collect();
        print(&downgrade_text("cancel", replies))
    })
}

/// The command line of `bootstrap`, resolved.
struct BootstrapFlags {
    connection: Connection,
    /// Where to start from, and how it was named.
    recover: Option<(SourceFlags, String)>,
    skip_hash_check: bool,
}

impl BootstrapFlags {
    fn of(call: &Call) -> Self {
        let skip_hash_check = call.on("recover-skip-hash-check");
        let source = |source: &str| (SourceFlags::of(call, source, skip_hash_check), source.to_owned());
        Self {
            connection: call.connection(),
            recover: call.some_text("recover-from").map(source),
            skip_hash_check,
        }
    }
}

fn bootstrap(call: &Call) -> Result<(), Failure> {
    let flags = BootstrapFlags::of(call);
    block_on(async {
        // The file is looked at before anything is sent.
        let content = match &flags.recover {
            Some((source, name)) => Some((source.load().await?, name)),
            None => None,
        };
        let session = Session::open(&flags.connection).await?;
        session.only()?;
        if let Some((content, name)) = &content {
            print(&format!("recovering from snapshot {name:?}: {}\n", describe(content)?))?;
        }
        let (client, content) = (session.all(), content.map(|(content, _)| content));
        let started = etcd::bootstrap(&client, &session.label, content, flags.skip_hash_check);
        Ok(session.ask(started).await?)
    })
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn member_ids_are_sixteen_digits() {
        let found = wire::EtcdMember {
            id: 0xabc,
            hostname: "a".into(),
            peer_urls: vec!["https://10.5.0.2:2380".into()],
            client_urls: vec!["https://10.5.0.2:2379".into()],
            is_learner: false,
        };
        let reply = EtcdMembers { members: vec![found], ..EtcdMembers::default() };
        expect![[r#"
            NODE   ID                 HOSTNAME   PEER URLS               CLIENT URLS             LEARNER
            n      0000000000000abc   a          https://10.5.0.2:2380   https://10.5.0.2:2379   false
        "#]]
        .assert_eq(&members_text(&[("n".to_owned(), reply)]));
        assert_eq!(members_text(&[("n".to_owned(), EtcdMembers::default())]), "");
    }
}
