//! `reboot`, `shutdown`, `reset`: actions that are followed to their end.

use ichor_client::track::{Expect, Plan, PostCheck};
use ichor_client::{Client, Reply, sort};
use ichor_wire::machine::{
    RebootRequest, ResetPartitionSpec, ResetRequest, ShutdownRequest, reboot_request, reset_request,
};
use tonic::{Code, Status};

use crate::failure::Failure;
use crate::flags::flags;
use crate::follow;
use crate::parse::Call;
use crate::session::{Session, block_on, warn_of_old_versions};
use crate::table::{Command, Complete, Flag, Group};

/// The flags of every followed action.
pub(crate) static TRACKED: &[Flag] = &[
    Flag::switch("wait", "follow the action to its end").default("true"),
    Flag::switch("debug", "show the kernel log of machines that fail; implies --wait"),
    Flag::duration("timeout", "30m0s", "give up after this time when following"),
];

flags! {
    /// How an action is followed, and on which machines.
    pub(crate) TrackedFlags {
        connection: connection(),
        wait: on("wait"),
        debug: on("debug"),
        timeout: duration("timeout"),
    }
}

impl TrackedFlags {
    /// Whether the action is followed to its end.
    pub(crate) fn follows(&self) -> bool {
        self.wait || self.debug
    }
}

/// Following an action needs what a machine without configuration does not have.
pub(crate) fn check_insecure(insecure: bool, tracked: &TrackedFlags) -> Result<(), Failure> {
    if insecure && tracked.follows() {
        return Err(Failure::new("cannot use --wait and --insecure together").hint("add --wait=false"));
    }
    Ok(())
}

/// `reboot`.
pub static REBOOT: Command = Command {
    name: "reboot",
    group: Group::Machines,
    about: "Reboot machines",
    flags: &[Flag::text(
        "mode",
        "default, powercycle (through the firmware) or force (without stopping services)",
    )
    .short('m')
    .default("default")
    .complete(Complete::Words(&["default", "powercycle", "force"]))],
    shared_flags: TRACKED,
    run: Some(reboot),
    ..Command::EMPTY
};

/// `shutdown`.
pub static SHUTDOWN: Command = Command {
    name: "shutdown",
    group: Group::Machines,
    about: "Switch machines off",
    flags: &[Flag::switch("force", "do not cordon and drain the Kubernetes node first")],
    shared_flags: TRACKED,
    run: Some(shutdown),
    ..Command::EMPTY
};

/// `reset`.
pub static RESET: Command = Command {
    name: "reset",
    group: Group::Machines,
    about: "Wipe machines and take them out of the cluster",
    flags: &[
        Flag::switch("graceful", "leave the cluster first").default("true"),
        Flag::switch("reboot", "reboot afterwards in place of switching off"),
        Flag::switch("insecure", "reset a machine that waits for its configuration; needs --wait=false"),
        Flag::text("wipe-mode", "all, system-disk or user-disks")
            .default("all")
            .complete(Complete::Words(&["all", "system-disk", "user-disks"])),
        Flag::list("user-disks-to-wipe", "wipe these disks"),
        Flag::list("system-labels-to-wipe", "wipe only these system partitions"),
    ],
    shared_flags: TRACKED,
    run: Some(reset),
    ..Command::EMPTY
};

fn reboot(call: &Call) -> Result<(), Failure> {
    let mode = match call.text("mode") {
        "default" => reboot_request::Mode::Default,
        "powercycle" => reboot_request::Mode::Powercycle,
        "force" => reboot_request::Mode::Force,
        other => {
            return Err(Failure::new(format!("invalid reboot mode: \"{other}\""))
                .hint("use default, powercycle or force"));
        }
    };
    let request = RebootRequest { mode: mode.into() };
    let tracked = TrackedFlags::of(call);
    perform(&tracked, false, Expect::RunningAndReady, PostCheck::Rebooted, move |client: Client| async move {
        let reply = client.machine().reboot(request).await?.into_inner();
        actor(reply.messages, |message| message.actor_id)
    })
}

fn shutdown(call: &Call) -> Result<(), Failure> {
    let request = ShutdownRequest { force: call.on("force") };
    let tracked = TrackedFlags::of(call);
    perform(&tracked, false, Expect::ServicesStopping, PostCheck::None, move |client: Client| async move {
        let reply = client.machine().shutdown(request).await?.into_inner();
        actor(reply.messages, |message| message.actor_id)
    })
}

fn reset(call: &Call) -> Result<(), Failure> {
    let (tracked, insecure, reboot) = (TrackedFlags::of(call), call.on("insecure"), call.on("reboot"));
    check_insecure(insecure, &tracked)?;
    let mode = match call.text("wipe-mode") {
        "all" => reset_request::WipeMode::All,
        "system-disk" => reset_request::WipeMode::SystemDisk,
        "user-disks" => reset_request::WipeMode::UserDisks,
        other => {
            return Err(Failure::new(format!("invalid wipe mode: \"{other}\""))
                .hint("use all, system-disk or user-disks"));
        }
    };
    let labels = call.list("system-labels-to-wipe");
    let request = ResetRequest {
        graceful: call.on("graceful"),
        reboot,
        system_partitions_to_wipe: labels
            .into_iter()
            .map(|label| ResetPartitionSpec { label, wipe: true })
            .collect(),
        user_disks_to_wipe: call.list("user-disks-to-wipe"),
        mode: mode.into(),
    };
    let post = if reboot { PostCheck::RebootedOrMaintenance } else { PostCheck::None };
    perform(&tracked, insecure, Expect::ServicesStopping, post, move |client: Client| {
        let request = request.clone();
        async move {
            let reply = client.machine().reset(request).await?.into_inner();
            actor(reply.messages, |message| message.actor_id)
        }
    })
}

/// The actor id of the one reply, or the error it carries.
pub(crate) fn actor<T: Reply>(messages: Vec<T>, id: impl Fn(T) -> String) -> Result<String, Status> {
    let Some(message) = messages.into_iter().next() else {
        return Err(Status::internal("the machine's reply is empty"));
    };
    match sort(message, "") {
        Ok((_, message)) => Ok(id(message)),
        Err(error) => Err(Status::new(error.code.unwrap_or(Code::Unknown), error.text)),
    }
}

/// Runs the action on every machine, and follows it unless told otherwise.
pub(crate) fn perform<A, F>(
    tracked: &TrackedFlags,
    insecure: bool,
    expect: Expect,
    post: PostCheck,
    action: A,
) -> Result<(), Failure>
where
    A: Fn(Client) -> F + Send + Sync + 'static,
    F: Future<Output = Result<String, Status>> + Send,
{
    let plan = Plan { expect, post, timeout: tracked.timeout };
    block_on(async {
        let session = Session::open_either(&tracked.connection, insecure).await?;
        if !insecure {
            warn_of_old_versions(&session).await;
        }
        if tracked.follows() {
            return follow::all(&session, plan, tracked.debug, action).await;
        }
        follow::start_only(&session, &tracked.connection.command, action).await
    })
}
