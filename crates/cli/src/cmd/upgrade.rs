//! `upgrade` and `rollback`: other versions on installed machines.

use ichor_client::track::{Expect, PostCheck};
use ichor_wire::machine::upgrade_request::RebootMode;
use ichor_wire::machine::{RollbackRequest, Upgrade, UpgradeRequest};
use jiff::Timestamp;

use crate::cmd::lifecycle::{TRACKED, TrackedFlags, actor, check_insecure, perform};
use crate::connection::Connection;
use crate::failure::Failure;
use crate::parse::Call;
use crate::print;
use crate::session::{Session, block_on, warn_of_old_versions};
use crate::table::{Command, Complete, Flag, Group};
use crate::tabs::Table;
use crate::text;

/// `upgrade`.
pub static UPGRADE: Command = Command {
    name: "upgrade",
    group: Group::Machines,
    about: "Install another version on machines",
    examples: &["upgrade --image ghcr.io/siderolabs/installer:v1.12.1"],
    flags: &[
        Flag::switch("force", "skip the checks of etcd; may lose data").short('f'),
        Flag::text("image", "image to install from")
            .short('i')
            .default("ghcr.io/siderolabs/installer:v1.12.1"),
        Flag::switch("insecure", "upgrade a machine that waits for its configuration; needs --wait=false"),
        Flag::switch("preserve", "keep data").short('p').hidden(),
        Flag::text("reboot-mode", "default or powercycle (through the firmware)")
            .short('m')
            .default("default")
            .complete(Complete::Words(&["default", "powercycle"])),
        Flag::switch("stage", "install at the next reboot").short('s'),
    ],
    shared_flags: TRACKED,
    run: Some(upgrade),
    ..Command::EMPTY
};

/// `rollback`.
pub static ROLLBACK: Command = Command {
    name: "rollback",
    group: Group::Machines,
    about: "Go back to the version installed before",
    run: Some(rollback),
    ..Command::EMPTY
};

fn upgrade(call: &Call) -> Result<(), Failure> {
    let (tracked, insecure) = (TrackedFlags::of(call), call.on("insecure"));
    check_insecure(insecure, &tracked)?;
    let Some(mode) = RebootMode::from_str_name(&call.text("reboot-mode").to_uppercase()) else {
        return Err(Failure::new(format!("invalid reboot mode: {}", call.text("reboot-mode")))
            .hint("use default or powercycle"));
    };
    let request = UpgradeRequest {
        image: call.text("image").to_owned(),
        preserve: call.on("preserve"),
        stage: call.on("stage"),
        force: call.on("force"),
        reboot_mode: mode.into(),
    };
    if !tracked.follows() {
        return start(&tracked.connection, insecure, request);
    }
    perform(&tracked, insecure, Expect::RunningAndReady, PostCheck::Rebooted, move |client| {
        let request = request.clone();
        async move {
            let reply = client.machine().upgrade(request).await?.into_inner();
            actor(reply.messages, |message| message.actor_id)
        }
    })
}

fn start(connection: &Connection, insecure: bool, request: UpgradeRequest) -> Result<(), Failure> {
    block_on(async {
        let session = Session::open_either(connection, insecure).await?;
        if !insecure {
            warn_of_old_versions(&session).await;
        }
        let reply = session.ask(session.all().machine().upgrade(request)).await;
        let replies =
            session.gather("error performing upgrade", reply.map(|reply| reply.into_inner().messages))?;
        print(&table_text(&replies, Timestamp::now()))
    })
}

fn table_text(replies: &[(String, Upgrade)], now: Timestamp) -> String {
    let mut table = Table::with_header(["NODE", "ACK", "STARTED"]);
    for (node, reply) in replies {
        table.row([node.clone(), reply.ack.clone(), text::go_time(now), String::new()]);
    }
    table.take()
}

fn rollback(call: &Call) -> Result<(), Failure> {
    let connection = call.connection();
    block_on(async {
        let session = Session::open(&connection).await?;
        let reply = session.ask(session.all().machine().rollback(RollbackRequest {})).await;
        session.gather("error executing rollback", reply.map(|reply| reply.into_inner().messages))?;
        Ok(())
    })
}
