//! `edit`: changes the configuration of machines in an editor.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command as Process;

use crate::cmd::apply::{self, ApplyFlags};
use crate::cmd::patch;
use crate::failure::{Context, Failure};
use crate::parse::Call;
use crate::session::{Session, block_on, warn_of_old_versions};
use crate::table::{Args, Command, Complete, Flag, Group};

/// The command.
pub static EDIT: Command = Command {
    name: "edit",
    group: Group::Machines,
    about: "Change the configuration of machines in an editor",
    long: "Opens the configuration in the editor named by TALOS_EDITOR or EDITOR, else vi, and sends it back\n\
           when it changed. When the machine refuses it, the editor opens again with the reason on top.",
    examples: &["edit mc -n 10.5.0.2"],
    args: Args::between("machineconfig [ID]", 1, 2)
        .complete(&[Complete::Words(&["machineconfig"]), Complete::Nothing]),
    flags: &[
        Flag::text("mode", "auto, no-reboot, reboot, staged or try")
            .short('m')
            .default("auto")
            .complete(apply::MODES),
        Flag::duration("timeout", "1m0s", "with --mode try, return to the old configuration after this time"),
        Flag::switch("dry-run", "show what would change and change nothing"),
        Flag::text("namespace", "namespace, if not the type's own"),
    ],
    run: Some(run),
    ..Command::EMPTY
};

fn run(call: &Call) -> Result<(), Failure> {
    let (apply, active) = (ApplyFlags::of(call)?, patch::ActiveFlags::of(call));
    block_on(async {
        let session = Session::open(&active.connection).await?;
        warn_of_old_versions(&session).await;
        for node in &session.nodes {
            for config in patch::configurations(&session, &active, node).await? {
                let name = patch::name_of(&config);
                edit(&session, &apply, node, &name, &ichor_ops::node_config::text_of(&config)?).await?;
            }
        }
        Ok(())
    })
}

async fn edit(
    session: &Session,
    apply: &ApplyFlags,
    node: &str,
    name: &str,
    original: &str,
) -> Result<(), Failure> {
    let mut current = original.to_owned();
    let mut last_error: Option<String> = None;
    loop {
        let file = Draft::write(&draft_text(node, name, &current, last_error.as_deref()))?;
        open_editor(&file.0)?;
        let edited = without_comments_on_top(&fs::read_to_string(&file.0).context("read the edited file")?);
        if edited.trim().is_empty() {
            eprintln!("Apply was skipped: empty file.");
            return Ok(());
        }
        if edited == current {
            let Some(error) = last_error else {
                eprintln!("Apply was skipped: no changes detected.");
                return Ok(());
            };
            let kept = file.keep();
            return Err(Failure::new(error).hint(format!("your version is kept in {}", kept.display())));
        }
        let request = apply.request(edited.clone().into_bytes());
        match session.node(node).machine().apply_configuration(request).await {
            Ok(reply) => {
                for reply in reply.into_inner().messages {
                    apply::tell(node, &reply);
                }
                return Ok(());
            }
            Err(status) => {
                last_error = Some(ichor_client::status_text(&status));
                current = edited;
            }
        }
    }
}

fn draft_text(node: &str, name: &str, config: &str, error: Option<&str>) -> String {
    let mut text = format!("# Editing {name} at node {node}\n");
    if let Some(error) = error {
        text.push_str("#\n# It was refused:\n");
        for line in error.lines() {
            text.push_str(&format!("#   {line}\n"));
        }
    }
    text.push_str("#\n");
    text.push_str(config);
    text
}

/// The text below the comment lines at its top.
fn without_comments_on_top(text: &str) -> String {
    let kept: Vec<&str> = text.split_inclusive('\n').skip_while(|line| line.starts_with('#')).collect();
    kept.concat()
}

/// The file in the editor; it holds secrets, so only its owner may read it. Gone when dropped.
struct Draft(PathBuf);

impl Draft {
    fn write(text: &str) -> Result<Self, Failure> {
        let now = jiff::Timestamp::now().as_nanosecond();
        let path = std::env::temp_dir().join(format!("ichorctl-edit-{}-{now}.yaml", std::process::id()));
        let mut options = fs::OpenOptions::new();
        let opened = options.write(true).create_new(true).mode(0o600).open(&path);
        let mut file = opened.context(format!("create {}", path.display()))?;
        file.write_all(text.as_bytes()).context(format!("write {}", path.display()))?;
        Ok(Self(path))
    }

    fn keep(self) -> PathBuf {
        let path = self.0.clone();
        std::mem::forget(self);
        path
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn open_editor(path: &Path) -> Result<(), Failure> {
    let named = ["TALOS_EDITOR", "EDITOR"].into_iter().find_map(|name| std::env::var(name).ok());
    let editor = named.filter(|editor| !editor.trim().is_empty()).unwrap_or_else(|| "vi".to_owned());
    let mut words = editor.split_whitespace();
    let program = words.next().unwrap_or("vi");
    let status = Process::new(program).args(words).arg(path).status().map_err(|error| {
        Failure::new(format!("start the editor \"{program}\": {error}")).hint("set EDITOR to one that exists")
    })?;
    if status.success() {
        return Ok(());
    }
    Err(Failure::new(format!("the editor \"{program}\" ended with {status}; nothing was sent")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_on_top_are_not_sent() {
        let draft = draft_text(
            "10.5.0.2",
            "MachineConfigs.config.talos.dev/v1alpha1",
            "a: 1\n# kept\n",
            Some("x\ny"),
        );
        assert!(draft.starts_with("# Editing MachineConfigs.config.talos.dev/v1alpha1 at node 10.5.0.2\n"));
        assert!(draft.contains("#   y\n"));
        assert_eq!(without_comments_on_top(&draft), "a: 1\n# kept\n");
    }
}
