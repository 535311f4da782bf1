//! `machineconfig` and `validate`: configuration files, offline.

use std::path::Path;

use ichor_config::{Diagnostic, Documents, Mode, ValidateOptions};
use ichor_ops::generate::Generate;

use crate::cmd::gen_config::{self, Destination};
use crate::failure::Failure;
use crate::machineconfig;
use crate::output::json::pretty;
use crate::parse::Call;
use crate::table::{Args, Command, Complete, Flag, Group};
use crate::{files, print, term};

/// The parent.
pub static MACHINECONFIG: Command = Command {
    name: "machineconfig",
    aliases: &["mc"],
    group: Group::Offline,
    about: "Generate and patch configurations",
    subcommands: &[&GEN, &PATCH],
    ..Command::EMPTY
};

static GEN: Command = Command {
    name: "gen",
    about: "Generate the configurations of a cluster with all defaults",
    args: Args::between("NAME ENDPOINT", 2, 2),
    run: Some(generate),
    ..Command::EMPTY
};

static PATCH: Command = Command {
    name: "patch",
    about: "Apply patches to a configuration file",
    examples: &["machineconfig patch worker.yaml --patch @patch.yaml -o worker-1.yaml"],
    args: Args::between("FILE", 1, 1).complete(&[Complete::File]),
    flags: &[
        Flag::repeated("patch", "patch as text or @file").short('p'),
        Flag::text("output", "file to write; standard output without it").short('o').complete(Complete::File),
    ],
    run: Some(patch),
    ..Command::EMPTY
};

/// `validate`.
pub static VALIDATE: Command = Command {
    name: "validate",
    group: Group::Offline,
    about: "Check a configuration file",
    long: "Checks a configuration file by the rules of the place it is meant for. All problems are shown at once,\n\
           each with its place in the file.\n\n\
           With -o json standard output has an object with `file`, `valid` and a list of `problems`, warnings\n\
           included; exit status is 1 when one of them is an error.",
    examples: &[
        "validate --config controlplane.yaml --mode metal",
        "validate --config controlplane.yaml --mode metal -o json",
    ],
    flags: &[
        Flag::text("config", "file of the configuration").short('c').complete(Complete::File),
        Flag::text("mode", "metal, cloud or container").short('m').complete(Complete::Words(&[
            "metal",
            "cloud",
            "container",
        ])),
        Flag::switch("strict", "treat warnings as errors"),
        Flag::text("output", "text or json")
            .short('o')
            .default("text")
            .complete(Complete::Words(&["text", "json"])),
    ],
    run: Some(validate),
    ..Command::EMPTY
};

fn generate(call: &Call) -> Result<(), Failure> {
    gen_config::check_endpoint(call.arg(1))?;
    let destination = Destination::here();
    destination.check_absent(false)?;
    let input = Generate {
        cluster: call.arg(0).to_owned(),
        endpoint: call.arg(1).to_owned(),
        install_image: machineconfig::installer_image(),
        comments: ichor_config::CommentMode::All,
        ..Generate::default()
    };
    gen_config::write(&input, &destination)
}

fn patch(call: &Call) -> Result<(), Failure> {
    let patches = call.list("patch");
    let file = call.arg(0);
    let config = machineconfig::patched_file(file, files::read(Path::new(file))?, &patches)?;
    match call.some_text("output") {
        Some(file) => files::write(Path::new(file), &config, 0o644),
        None => print(&format!("{}\n", String::from_utf8_lossy(&config))),
    }
}

fn validate(call: &Call) -> Result<(), Failure> {
    let file = call.text("config");
    let mode_name = call.text("mode");
    if mode_name.is_empty() {
        return Err(Failure::new("required flag(s) \"mode\" not set"));
    }
    let Some(mode) = Mode::parse(mode_name) else {
        return Err(Failure::new(format!("unknown runtime mode: \"{mode_name}\""))
            .hint("use metal, cloud or container"));
    };
    let options = ValidateOptions { strict: call.on("strict"), deprecations: true };
    match call.text("output") {
        "text" => {}
        "json" => return validate_json(file, mode, options),
        other => {
            let failure = Failure::new(format!("unknown output format: \"{other}\""));
            return Err(failure.hint("use text or json"));
        }
    }
    let content = files::read_or_stdin(file)?;
    let text = String::from_utf8_lossy(&content);
    let refused = |diagnostics: ichor_config::Diagnostics| {
        Failure::new(diagnostics.render(file, &text).trim_end().to_owned()).whole()
    };
    let documents = Documents::load(&content).map_err(refused)?;
    for warning in documents.validate_with(mode, options).map_err(refused)? {
        let place = match warning.span.is_known() {
            true => format!(" ({file}:{}:{})", warning.span.line, warning.span.column),
            false => String::new(),
        };
        term::warn(&format!("{}{place}", warning.titled()));
    }
    print(&format!("{file} is valid for {mode_name} mode\n"))
}

/// The same for programs: editors and checks before a merge.
fn validate_json(file: &str, mode: Mode, options: ValidateOptions) -> Result<(), Failure> {
    let content = files::read_or_stdin(file)?;
    let outcome = Documents::load(&content).and_then(|documents| documents.validate_with(mode, options));
    let valid = outcome.is_ok();
    let problems = match outcome {
        Ok(warnings) => warnings.iter().map(Diagnostic::to_json).collect(),
        Err(diagnostics) => diagnostics.to_json(),
    };
    let answer = serde_json::json!({ "file": file, "valid": valid, "problems": problems });
    print(&pretty(&answer, "    "))?;
    if valid { Ok(()) } else { Err(Failure::told()) }
}
