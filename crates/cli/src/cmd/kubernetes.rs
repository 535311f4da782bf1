//! `kubeconfig`: access to Kubernetes.

use std::io::{BufRead as _, IsTerminal as _, stdin, stdout};
use std::path::{Path, PathBuf};

use ichor_ops::kubeconfig::{self, Decision, Kind};

use crate::explain;
use crate::failure::{Context, Failure};
use crate::files;
use crate::flags::flags;
use crate::parse::Call;
use crate::print;
use crate::session::{Session, block_on};
use crate::table::{Args, Command, Complete, Flag, Group};

/// How often a question is asked again.
const QUESTIONS_MAX: usize = 5;

/// `kubeconfig`.
pub static KUBECONFIG: Command = Command {
    name: "kubeconfig",
    group: Group::Machines,
    about: "Fetch the administrator's kubeconfig",
    long: "Fetches the administrator's kubeconfig from a control plane machine. Without a path it goes to the file\n\
           of KUBECONFIG or to ~/.kube/config, beside what is there; with --merge=false `-` prints it.",
    examples: &["kubeconfig --merge=false -", "kubeconfig ./kubeconfig"],
    args: Args::between("[local-path]", 0, 1).complete(&[Complete::File]),
    flags: &[
        Flag::switch("force", "replace what is there").short('f'),
        Flag::text("force-context-name", "name of the context"),
        Flag::switch("merge", "add to a file that exists").short('m').default("true"),
    ],
    run: Some(fetch_kubeconfig),
    ..Command::EMPTY
};

flags! {
    /// The command line, resolved.
    KubeconfigFlags {
        connection: connection(),
        path: some_arg(0),
        force: on("force"),
        context_name: some("force-context-name"),
        merge: on("merge"),
    }
}

/// The kubeconfig as the one machine of the session hands it out.
async fn fetch(session: &Session) -> Result<Vec<u8>, Failure> {
    let doing = "error copying";
    let client = session.only()?;
    let stream = session.ask(client.machine().kubeconfig(())).await;
    let mut stream = stream.map_err(|status| explain::status(doing, &status))?.into_inner();
    let mut packed = Vec::new();
    while let Some(message) = stream.message().await.map_err(|status| explain::status(doing, &status))? {
        let (_, data) = ichor_client::sort(message, &session.label)
            .map_err(|error| explain::nodes(doing, std::slice::from_ref(&error)))?;
        packed.extend_from_slice(&data.bytes);
    }
    ichor_health::kube::unpack(&packed).context("unpack the kubeconfig")
}

/// The file to write; nothing means standard output.
fn target(flags: &KubeconfigFlags) -> Result<Option<PathBuf>, Failure> {
    let path = match flags.path.as_deref() {
        Some("-") if !flags.merge => return Ok(None),
        Some(path) => PathBuf::from(path),
        None if flags.merge => default_path()?,
        None => PathBuf::from("."),
    };
    Ok(Some(if path.is_dir() { path.join("kubeconfig") } else { path }))
}

pub(crate) fn default_path() -> Result<PathBuf, Failure> {
    let named = std::env::var("KUBECONFIG").unwrap_or_default();
    let named: Vec<&str> = named.split(':').filter(|path| !path.is_empty()).collect();
    match named.as_slice() {
        [] => match std::env::var_os("HOME") {
            Some(home) => Ok(PathBuf::from(home).join(".kube/config")),
            None => {
                Err(Failure::new("there is no place for the kubeconfig: neither HOME nor KUBECONFIG is set")
                    .hint("name a file"))
            }
        },
        [only] => Ok(PathBuf::from(only)),
        _ => Err(Failure::new("multiple kubeconfig files defined").hint("KUBECONFIG may name one file only")),
    }
}

fn fetch_kubeconfig(call: &Call) -> Result<(), Failure> {
    let flags = KubeconfigFlags::of(call);
    let target = target(&flags)?;
    if let Some(path) = target.as_deref().filter(|path| path.exists())
        && !flags.merge
        && !flags.force
    {
        return Err(Failure::new(format!(
            "kubeconfig file already exists, use --force to overwrite: {path:?}"
        )));
    }
    block_on(async {
        let session = Session::open(&flags.connection).await?;
        let content = fetch(&session).await?;
        match target {
            None => print(&String::from_utf8_lossy(&content)),
            Some(path) if path.exists() && flags.merge => add(&flags, &path, &content),
            Some(path) => files::write(&path, &content, 0o600),
        }
    })
}

/// Adds the machine's entries to a file.
fn add(flags: &KubeconfigFlags, path: &Path, content: &[u8]) -> Result<(), Failure> {
    let old = files::read(path)?;
    let old = std::str::from_utf8(&old).context(format!("read {}", path.display()))?;
    let new = std::str::from_utf8(content).context("read the machine's kubeconfig")?;
    let decide = |kind: Kind, name: &str| match (flags.force, stdout().is_terminal()) {
        (true, _) => Ok(Decision::Overwrite),
        (false, false) => Ok(Decision::Rename),
        (false, true) => ask(kind, name),
    };
    let (text, renamed) = kubeconfig::merge(old, new, flags.context_name.as_deref(), decide)?;
    files::write(path, text.as_bytes(), 0o600)?;
    print(&renamed.iter().map(|line| format!("{line}\n")).collect::<String>())
}

fn ask(kind: Kind, name: &str) -> Result<Decision, Failure> {
    for _ in 0..QUESTIONS_MAX {
        print(&format!("{} {name:?} already exists [(r)ename/(o)verwrite]: ", kind.asked))?;
        let mut answer = String::new();
        if stdin().lock().read_line(&mut answer).context("read the answer")? == 0 {
            break;
        }
        match answer.trim().to_lowercase().as_str() {
            "r" | "rename" => return Ok(Decision::Rename),
            "o" | "overwrite" => return Ok(Decision::Overwrite),
            _ => {}
        }
    }
    Err(Failure::new("no answer; nothing was changed").hint("--force overwrites without asking"))
}
