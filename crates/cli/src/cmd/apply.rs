//! `apply-config`: sends a configuration to machines.

use std::time::Duration;

use ichor_config::Diagnostic;
use ichor_config::diagnostic::told_of;
use ichor_wire::machine::apply_configuration_request::Mode;
use ichor_wire::machine::{ApplyConfiguration, ApplyConfigurationRequest};

use crate::failure::Failure;
use crate::files;
use crate::flags::flags;
use crate::machineconfig;
use crate::parse::Call;
use crate::session::{Session, block_on};
use crate::table::{Args, Command, Complete, Flag, Group};
use crate::term;

/// What `--mode` can be completed with.
pub const MODES: Complete = Complete::Words(&["auto", "no-reboot", "reboot", "staged", "try"]);

/// The command.
pub static APPLY: Command = Command {
    name: "apply-config",
    aliases: &["apply"],
    group: Group::Machines,
    about: "Send a configuration to machines",
    long: "Sends a machine configuration. With --insecure it goes to a machine that has none yet; otherwise the\n\
           whole configuration is replaced. Patches are applied here, before sending.",
    examples: &[
        "apply-config --insecure -n 10.5.0.2 --file controlplane.yaml",
        "apply-config --file controlplane.yaml --mode try --timeout 2m",
        "apply-config --file controlplane.yaml --dry-run",
    ],
    args: Args::between("[machineconfig]", 0, 1).complete(&[Complete::Words(&["machineconfig", "config"])]),
    flags: &[
        Flag::text("file", "file of the configuration, - for standard input")
            .short('f')
            .complete(Complete::File),
        Flag::repeated("config-patch", "patch to apply before sending, as text or @file").short('p'),
        Flag::text("mode", "auto, no-reboot, reboot, staged or try")
            .short('m')
            .default("auto")
            .complete(MODES),
        Flag::duration("timeout", "1m0s", "with --mode try, return to the old configuration after this time"),
        Flag::switch("dry-run", "show what would change and change nothing"),
        Flag::switch("insecure", "send to a machine that waits for its configuration").short('i'),
        Flag::list(
            "cert-fingerprint",
            "with --insecure, accept only this server certificate (base64 SHA-256)",
        ),
    ],
    run: Some(run),
    ..Command::EMPTY
};

/// How a configuration is applied, as the flags of commands that change it say.
pub struct ApplyFlags {
    mode: Mode,
    timeout: Duration,
    dry_run: bool,
}

impl ApplyFlags {
    /// Reads `--mode`, `--timeout` and `--dry-run`.
    pub fn of(call: &Call) -> Result<Self, Failure> {
        let mode = mode(call.text("mode"))?;
        Ok(Self { mode, timeout: call.duration("timeout"), dry_run: call.on("dry-run") })
    }

    /// The request for `data`.
    pub fn request(&self, data: Vec<u8>) -> ApplyConfigurationRequest {
        let timeout = prost_types::Duration {
            seconds: i64::try_from(self.timeout.as_secs()).unwrap_or(i64::MAX),
            nanos: i32::try_from(self.timeout.subsec_nanos()).unwrap_or_default(),
        };
        ApplyConfigurationRequest {
            data,
            mode: self.mode.into(),
            dry_run: self.dry_run,
            try_mode_timeout: Some(timeout),
        }
    }
}

fn mode(name: &str) -> Result<Mode, Failure> {
    Ok(match name {
        "auto" => Mode::Auto,
        "no-reboot" => Mode::NoReboot,
        "reboot" => Mode::Reboot,
        "staged" => Mode::Staged,
        "try" => Mode::Try,
        "interactive" => {
            return Err(Failure::new("mode \"interactive\" is no longer offered")
                .hint("prepare the configuration with `ichorctl gen config` and send it with --file"));
        }
        other => {
            return Err(Failure::new(format!(
                "invalid apply mode: \"{other}\": possible values are: auto, no-reboot, reboot, staged, try"
            )));
        }
    })
}

/// Prints warnings and details of a reply on standard error.
pub fn tell(node: &str, reply: &ApplyConfiguration) {
    for warning in &reply.warnings {
        term::warn(&format!("{node}: {warning}"));
    }
    if !reply.mode_details.is_empty() {
        eprintln!("{}", reply.mode_details.trim_end());
    }
}

/// A refusal with the places that the machine names, shown in what was sent to it.
fn pointed(failure: Failure, file: &str, sent: &str) -> Failure {
    let told = failure.to_string();
    let mut items: Vec<Diagnostic> = told.lines().filter_map(|line| told_of(line, sent)).collect();
    let refusal = ["failed to parse config", "configuration validation failed"];
    let head = refusal.iter().find_map(|words| Some(told.find(words)? + words.len()));
    let (Some(head), false) = (head, items.is_empty()) else { return failure };
    // A single problem may have been told in the first sentence only.
    let rest = told[head..].trim_start_matches(": ").split("\n\nline ").next().unwrap_or_default();
    for item in items.iter_mut().filter(|item| item.message.is_empty()) {
        item.message = rest.to_owned();
    }
    let shown: Vec<String> = items.iter().map(|item| item.render(file, sent)).collect();
    Failure::new(format!("{}\n\n{}", &told[..head], shown.join("\n").trim_end())).whole()
}

flags! {
    /// The command line beside [`ApplyFlags`].
    TargetFlags {
        connection: connection(),
        insecure: on("insecure"),
        fingerprints: list("cert-fingerprint"),
        patches: list("config-patch"),
    }
}

fn run(call: &Call) -> Result<(), Failure> {
    if let Some(word) = call.args.first()
        && !["machineconfig", "mc", "config"].contains(&word.as_str())
    {
        return Err(Failure::new(format!("resource \"{word}\" cannot be applied"))
            .hint("only the machine configuration can: `ichorctl apply-config --file FILE`"));
    }
    let Some(file) = call.some_text("file") else {
        return Err(Failure::new("no filename supplied for configuration").hint("add --file FILE"));
    };
    let (apply, target) = (ApplyFlags::of(call)?, TargetFlags::of(call));
    if !target.fingerprints.is_empty() && !target.insecure {
        return Err(Failure::new("--cert-fingerprint is only for --insecure"));
    }
    let data = machineconfig::patched_file(file, files::read_or_stdin(file)?, &target.patches)?;
    let sent = String::from_utf8_lossy(&data).into_owned();
    let request = apply.request(data);
    block_on(async {
        let session = match target.insecure {
            true => Session::open_insecure(&target.connection, &target.fingerprints).await?,
            false => Session::open(&target.connection).await?,
        };
        let reply = session.ask(session.all().machine().apply_configuration(request)).await;
        let doing = "error applying new configuration";
        let replies = session.gather(doing, reply.map(|reply| reply.into_inner().messages));
        for (node, reply) in replies.map_err(|failure| pointed(failure, file, &sent))? {
            tell(&node, &reply);
        }
        Ok(())
    })
}
