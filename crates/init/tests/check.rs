//! The installer's check as an upgrade runs it: the real program, with a configuration, sealed off from everything else.
//! Needs root, as every node has it.

use std::fs;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use ichor_render::stream::Printed;
use ichor_render::{Facts, Rendering, difference};
use ichor_sys::confine::Filter;
use ichor_sys::credentials::Capabilities;
use ichor_sys::supervisor::{Event, SpawnRequest, local};

const WAIT: Duration = Duration::from_secs(60);
/// Whoever a candidate is.
const USER: u32 = 53;

/// A worker as `gen config` makes it.
const WORKER: &str = include_str!("../../config/tests/fixtures/generate/v1.12/base-worker.yaml");
/// Its secrets: tokens of the machine and the cluster, and the secret of discovery.
const SECRETS: [&str; 3] = ["eyvpi0xwxyarbfid", "u4ehnti8qyls9ymo", "pofHbABZq7VXuObsdLdy"];

/// The worker with a name and settings.
fn config() -> String {
    let (root, _) = WORKER.split_once("---\n").unwrap();
    let kubelet = "image: ghcr.io/siderolabs/kubelet:v1.28.0";
    let network = "    network: {}\n    install:";
    assert!(root.contains(kubelet) && root.contains(network));
    let settings = "    network: {hostname: w-1}\n    sysctls: {net.core.somaxconn: '65535'}\n    install:";
    root.replace(kubelet, "image: example.org/kubelet:v1.34.1\n        extraArgs: {v: '4'}")
        .replace(network, settings)
}

/// A folder with the questions of an upgrade.
struct Questions {
    dir: tempfile::TempDir,
}

impl Questions {
    fn new(config: &str, facts: &Facts) -> Self {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in [("config.yaml", config), ("facts.json", facts.to_json().as_str())] {
            let path = dir.path().join(name);
            fs::write(&path, text).unwrap();
            chown(&path, Some(USER), Some(USER)).unwrap();
        }
        chown(dir.path(), Some(USER), Some(USER)).unwrap();
        Self { dir }
    }

    fn arguments(&self, folder: &Path) -> Vec<String> {
        vec![
            "check".to_owned(),
            "--platform=container".to_owned(),
            format!("--machine-config={}", folder.join("config.yaml").display()),
            "--render".to_owned(),
            format!("--facts={}", folder.join("facts.json").display()),
        ]
    }

    fn run(&self) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ichor"));
        command.arg("installer").args(self.arguments(self.dir.path())).output().unwrap()
    }

    /// As init starts a candidate on a node: what it printed, and whether it ended well.
    fn run_sealed(&self) -> (String, bool) {
        let folder = PathBuf::from("/run/questions");
        let client = local::start().unwrap();
        let request = SpawnRequest {
            args: ["ichor", "installer"]
                .map(str::to_owned)
                .into_iter()
                .chain(self.arguments(&folder))
                .collect(),
            uid: USER,
            gid: USER,
            capabilities: Capabilities::NONE,
            no_new_privs: true,
            filter: Filter::Sealed,
            view: vec![format!("r{}:{}", self.dir.path().display(), folder.display())],
            ..SpawnRequest::new("candidate", env!("CARGO_BIN_EXE_ichor"))
        };
        client.spawn(&request, &[]).unwrap();
        let child = match client.recv_timeout(WAIT).unwrap().expect("an answer in time") {
            Event::Spawned { child, .. } => child,
            other => panic!("not started: {other:?}"),
        };
        let mut text = String::new();
        File::from(child.output.unwrap()).read_to_string(&mut text).unwrap();
        match client.recv_timeout(WAIT).unwrap().expect("an end in time") {
            Event::Exited { status, .. } => (text, status.success()),
            other => panic!("not ended: {other:?}"),
        }
    }
}

fn facts() -> Facts {
    let address = vec!["10.5.0.7".parse().unwrap()];
    Facts { platform: "container".to_owned(), routed: address.clone(), current: address, ..Facts::default() }
}

fn read(text: &str) -> Rendering {
    match Rendering::find(text) {
        Ok(Printed::Rendering(rendering)) => rendering,
        other => panic!("{other:?} in {text}"),
    }
}

#[test]
fn the_program_prints_what_would_run_and_no_secret() {
    let done = Questions::new(&config(), &facts()).run();
    let text = String::from_utf8(done.stdout).unwrap();
    assert!(done.status.success(), "{text}");
    let rendering = read(&text);
    let kubelet = rendering.get("kubelet").unwrap();
    for line in
        ["image: example.org/kubelet:v1.34.1", "- --hostname-override=w-1", "- --node-ip=10.5.0.7", "- --v=4"]
    {
        assert!(kubelet.contains(line), "{line} in {kubelet}");
    }
    assert!(rendering.get("kernel/parameters").unwrap().contains("somaxconn: \"65535\""));
    for secret in SECRETS {
        assert!(config().contains(secret) && !text.contains(secret), "{secret} in {text}");
    }
}

#[test]
fn sealed_off_it_prints_the_same() {
    assert!(rustix::process::geteuid().is_root(), "needs root, like every node");
    let questions = Questions::new(&config(), &facts());
    let (text, well) = questions.run_sealed();
    assert!(well, "{text}");
    assert_eq!(text, String::from_utf8(questions.run().stdout).unwrap());
}

#[test]
fn another_configuration_differs_where_it_is_another_one() {
    let before = read(&Questions::new(&config(), &facts()).run_sealed().0);
    let other = config().replace("kubelet:v1.34.1", "kubelet:v1.35.0").replace("65535", "1024");
    let after = read(&Questions::new(&other, &facts()).run_sealed().0);
    let found = difference::differences(&before, &after);
    let told = difference::Told { lines_max: 40, line_max: 160, context: false };
    assert_eq!(
        difference::tell(&found, told),
        [
            "images: -kubelet: example.org/kubelet:v1.34.1",
            "images: +kubelet: example.org/kubelet:v1.35.0",
            "kernel/parameters: -proc.sys.net.core.somaxconn: \"65535\"",
            "kernel/parameters: +proc.sys.net.core.somaxconn: \"1024\"",
            "kubelet: -image: example.org/kubelet:v1.34.1",
            "kubelet: +image: example.org/kubelet:v1.35.0",
        ]
    );
}

#[test]
fn what_would_fail_is_refused_with_its_place() {
    for (config, expected) in [
        (
            config().replace("{v: '4'}", "{kubeconfig: /x}"),
            r#"machine.kubelet.extraArgs: extra arg "kubeconfig""#,
        ),
        (format!("{}---\napiVersion: v1alpha1\nkind: OddConfig\n", config()), "OddConfig"),
        (config().replace("type: worker", "type: odd"), "odd"),
    ] {
        let (text, well) = Questions::new(&config, &facts()).run_sealed();
        assert!(!well, "{text}");
        let last = text.lines().last().unwrap_or_default();
        assert!(last.starts_with("error: ") && last.contains(expected), "{expected} in {text}");
    }
}

#[test]
fn the_other_roles_of_the_program_can_do_nothing_when_sealed() {
    let client = local::start().unwrap();
    let request = SpawnRequest {
        args: ["ichor", "installer", "reset", "--disk=/dev/loop0"].map(str::to_owned).to_vec(),
        uid: USER,
        gid: USER,
        capabilities: Capabilities::NONE,
        no_new_privs: true,
        filter: Filter::Sealed,
        view: vec!["r/does/not/exist".to_owned()],
        ..SpawnRequest::new("candidate", env!("CARGO_BIN_EXE_ichor"))
    };
    client.spawn(&request, &[]).unwrap();
    let Event::Spawned { child, .. } = client.recv_timeout(WAIT).unwrap().expect("an answer in time") else {
        panic!("not started")
    };
    let mut text = String::new();
    File::from(child.output.unwrap()).read_to_string(&mut text).unwrap();
    assert!(text.starts_with("error: "), "there is no device to open: {text}");
}
