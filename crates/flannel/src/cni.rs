//! The CNI plugin: hands this node's part of the network on to the `bridge` plugin.

use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use crate::subnet_env::SubnetEnv;

const SUBNET_FILE: &str = "/run/flannel/subnet.env";
/// Where the configuration of each container waits for its end.
const DATA_DIR: &str = "/var/lib/cni/flannel";
const VERSIONS: [&str; 5] = ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];
/// More than any configuration has.
const INPUT_MAX: u64 = 1 << 20;
/// How long a new container waits for the daemon, well below the two minutes a kubelet gives its runtime.
#[cfg(not(test))]
const ADD_WAIT: Duration = Duration::from_secs(20);
#[cfg(test)]
const ADD_WAIT: Duration = Duration::from_millis(100);
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Numbers of failures, as the specification gives them.
const BAD_ENVIRONMENT: u32 = 4;
const BAD_INPUT: u32 = 6;
const BAD_CONFIG: u32 = 7;
const TRY_LATER: u32 = 11;
const NOT_AVAILABLE: u32 = 50;
const OTHER: u32 = 999;

/// A failure as runtimes read it.
#[derive(Debug)]
struct Failure {
    code: u32,
    text: String,
}

impl Failure {
    fn new(code: u32, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }
}

/// What a call comes to.
enum Answer {
    /// Nothing to say.
    Nothing,
    /// Something to print.
    Text(Vec<u8>),
    /// Another plugin failed, in these words.
    Failed(Vec<u8>),
}

/// Answers the call that the environment and standard input describe.
pub fn main() -> ExitCode {
    let mut input = Vec::new();
    let read = io::stdin().lock().take(INPUT_MAX).read_to_end(&mut input);
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let conf: Value = serde_json::from_slice(&input).unwrap_or(Value::Null);
    let answer = match read {
        Ok(_) => call(&variable, &conf),
        Err(error) => Err(Failure::new(BAD_INPUT, format!("read standard input: {error}"))),
    };
    let (bytes, code) = match answer {
        Ok(Answer::Nothing) => (Vec::new(), ExitCode::SUCCESS),
        Ok(Answer::Text(bytes)) => (bytes, ExitCode::SUCCESS),
        Ok(Answer::Failed(bytes)) => (bytes, ExitCode::FAILURE),
        Err(Failure { code, text }) => {
            let version = conf["cniVersion"].as_str().unwrap_or("1.0.0");
            let text = format!("flannel: {text}");
            (
                json!({ "cniVersion": version, "code": code, "msg": text }).to_string().into_bytes(),
                ExitCode::FAILURE,
            )
        }
    };
    // Whoever does not read the answer does not want it.
    let _ = io::stdout().write_all(&bytes);
    code
}

fn call(variable: &dyn Fn(&str) -> String, conf: &Value) -> Result<Answer, Failure> {
    let command = variable("CNI_COMMAND");
    if command == "VERSION" {
        let version = conf["cniVersion"].as_str().unwrap_or("1.0.0");
        let text = json!({ "cniVersion": version, "supportedVersions": VERSIONS });
        return Ok(Answer::Text(text.to_string().into_bytes()));
    }
    if !conf.is_object() {
        return Err(Failure::new(BAD_INPUT, "standard input is not a network configuration"));
    }
    let text =
        |key: &str, default: &str| conf[key].as_str().filter(|t| !t.is_empty()).unwrap_or(default).to_owned();
    let (subnet_file, data) = (text("subnetFile", SUBNET_FILE), PathBuf::from(text("dataDir", DATA_DIR)));
    let container = || {
        let id = variable("CNI_CONTAINERID");
        let clean = id.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.-".contains(&b));
        match id.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric()) && clean {
            true => Ok(data.join(id)),
            false => Err(Failure::new(BAD_ENVIRONMENT, format!("CNI_CONTAINERID {id:?} is no name"))),
        }
    };
    match command.as_str() {
        "ADD" => {
            let env = wait_for_subnet(&subnet_file, ADD_WAIT)?;
            let delegate = delegate(conf, &env).map_err(|text| Failure::new(BAD_CONFIG, text))?;
            let file = container()?;
            keep(&file, &delegate)
                .map_err(|error| Failure::new(OTHER, format!("write {}: {error}", file.display())))?;
            execute(variable, &delegate)
        }
        "DEL" => {
            let file = container()?;
            let delegate = match fs::read(&file) {
                Ok(bytes) => bytes,
                // Never added, or gone already: nothing to undo.
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Answer::Nothing),
                Err(error) => return Err(Failure::new(OTHER, format!("read {}: {error}", file.display()))),
            };
            let Ok(delegate) = serde_json::from_slice::<Value>(&delegate) else {
                // Cut off by a crash while it was written: the plugin it was for never ran.
                let _ = fs::remove_file(&file);
                return Ok(Answer::Nothing);
            };
            let answer = execute(variable, &delegate)?;
            if !matches!(answer, Answer::Failed(_)) {
                let _ = fs::remove_file(&file);
            }
            Ok(answer)
        }
        "STATUS" => subnet(&subnet_file, NOT_AVAILABLE).map(|_| Answer::Nothing),
        "CHECK" | "GC" => Ok(Answer::Nothing),
        other => Err(Failure::new(BAD_ENVIRONMENT, format!("unknown CNI_COMMAND {other:?}"))),
    }
}

/// The first pods of a node come while its daemon starts. Kubelet tries a pod that was refused again after ten seconds
/// and more; waiting here costs what the daemon needs.
fn wait_for_subnet(path: &str, limit: Duration) -> Result<SubnetEnv, Failure> {
    let deadline = Instant::now() + limit;
    while !Path::new(path).exists() && Instant::now() < deadline {
        std::thread::sleep(LOOK_EVERY);
    }
    subnet(path, TRY_LATER)
}

fn subnet(path: &str, missing: u32) -> Result<SubnetEnv, Failure> {
    let text = fs::read_to_string(path).map_err(|error| {
        Failure::new(
            missing,
            format!("read {path}: {error}; flanneld writes it once it knows its node's network"),
        )
    })?;
    SubnetEnv::parse(&text).map_err(|error| Failure::new(OTHER, format!("{path}: {error}")))
}

/// The configuration of the plugin that does the work.
fn delegate(conf: &Value, env: &SubnetEnv) -> Result<Value, String> {
    let mut delegate: Map<String, Value> = match &conf["delegate"] {
        Value::Null => Map::new(),
        Value::Object(given) => given.clone(),
        _ => return Err("`delegate` is not an object".to_owned()),
    };
    for (key, reserved) in
        [("name", "the name is that of the network"), ("ipam", "addresses are the daemon's matter")]
    {
        if delegate.contains_key(key) {
            return Err(format!("`delegate` has `{key}`: {reserved}"));
        }
    }
    for (key, value) in [("type", json!("bridge")), ("ipMasq", json!(!env.ip_masq)), ("mtu", json!(env.mtu))]
    {
        delegate.entry(key).or_insert(value);
    }
    if delegate["type"] == "bridge" {
        delegate.entry("isGateway").or_insert(json!(true));
    }
    for key in ["name", "cniVersion", "runtimeConfig", "args"] {
        if !conf[key].is_null() {
            delegate.insert(key.to_owned(), conf[key].clone());
        }
    }
    let mut ipam = conf["ipam"].as_object().cloned().unwrap_or_default();
    ipam.entry("type").or_insert(json!("host-local"));
    let ranges: Vec<Value> =
        env.subnets.iter().map(|net| json!([{ "subnet": net.trunc().to_string() }])).collect();
    ipam.insert("ranges".to_owned(), ranges.into());
    let mut routes = ipam.get("routes").and_then(Value::as_array).cloned().unwrap_or_default();
    routes.extend(env.networks.iter().map(|net| json!({ "dst": net.to_string() })));
    ipam.insert("routes".to_owned(), routes.into());
    delegate.insert("ipam".to_owned(), ipam.into());
    Ok(delegate.into())
}

fn keep(file: &Path, delegate: &Value) -> io::Result<()> {
    use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
    let dir = file.parent().ok_or(io::ErrorKind::InvalidInput)?;
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let mut out = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(file)?;
    out.write_all(delegate.to_string().as_bytes())
}

/// Calls the other plugin with our environment.
fn execute(variable: &dyn Fn(&str) -> String, delegate: &Value) -> Result<Answer, Failure> {
    let name = delegate["type"].as_str().unwrap_or_default();
    if name.is_empty() || name.contains('/') {
        return Err(Failure::new(BAD_CONFIG, format!("{name:?} is no plugin")));
    }
    let path = variable("CNI_PATH");
    let program = path.split(':').map(|dir| Path::new(dir).join(name)).find(|program| program.is_file());
    let Some(program) = program else {
        return Err(Failure::new(BAD_ENVIRONMENT, format!("there is no plugin {name} in CNI_PATH {path:?}")));
    };
    let failed = |error: io::Error| Failure::new(OTHER, format!("run {}: {error}", program.display()));
    let mut child = Command::new(&program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .map_err(failed)?;
    if let Some(mut stdin) = child.stdin.take() {
        // A plugin that ends without reading says why on its own.
        let _ = stdin.write_all(delegate.to_string().as_bytes());
    }
    let output = child.wait_with_output().map_err(failed)?;
    match output.status.success() {
        true => Ok(Answer::Text(output.stdout)),
        false if output.stdout.is_empty() => {
            Err(Failure::new(OTHER, format!("{} failed with {}", program.display(), output.status)))
        }
        false => Ok(Answer::Failed(output.stdout)),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::os::unix::fs::PermissionsExt;

    use expect_test::expect;

    use super::*;

    fn env() -> SubnetEnv {
        SubnetEnv {
            networks: vec!["10.244.0.0/16".parse().unwrap()],
            subnets: vec!["10.244.1.1/24".parse().unwrap()],
            mtu: 1450,
            ip_masq: true,
        }
    }

    #[test]
    fn the_bridge_is_told_everything() {
        let conf = json!({
            "name": "cbr0", "cniVersion": "1.0.0", "type": "flannel",
            "delegate": { "hairpinMode": true, "isDefaultGateway": true },
        });
        expect![[r#"{"hairpinMode":true,"isDefaultGateway":true,"type":"bridge","ipMasq":false,"mtu":1450,"isGateway":true,"name":"cbr0","cniVersion":"1.0.0","ipam":{"type":"host-local","ranges":[[{"subnet":"10.244.1.0/24"}]],"routes":[{"dst":"10.244.0.0/16"}]}}"#]]
        .assert_eq(&delegate(&conf, &env()).unwrap().to_string());
        let error = delegate(&json!({ "delegate": { "ipam": {} } }), &env()).unwrap_err();
        assert_eq!(error, "`delegate` has `ipam`: addresses are the daemon's matter");
    }

    /// Refused, kubelet came back ten seconds later: the first pods of every node were that late.
    #[test]
    fn a_pod_that_is_earlier_than_the_daemon_waits_for_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("env");
        let file = path.display().to_string();
        let waiting = std::thread::spawn(move || {
            wait_for_subnet(&file, Duration::from_secs(10)).map_err(|failure| failure.text)
        });
        std::thread::sleep(Duration::from_millis(60));
        // As the daemon does: whole or not at all.
        fs::write(dir.path().join("new"), env().text()).unwrap();
        fs::rename(dir.path().join("new"), &path).unwrap();
        assert_eq!(waiting.join().unwrap().unwrap().mtu, 1450);
    }

    #[test]
    fn a_container_comes_and_goes_through_the_other_plugin() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name).display().to_string();
        let script = format!("#!/bin/sh\necho \"$(cat)\" >> {}\necho '{{\"ips\":[]}}'\n", at("seen"));
        fs::write(at("bridge"), script).unwrap();
        fs::set_permissions(at("bridge"), fs::Permissions::from_mode(0o755)).unwrap();
        let conf = json!({ "name": "n", "subnetFile": at("env"), "dataDir": at("data") });
        let run = |command: &str, id: &str| {
            let vars = BTreeMap::from([
                ("CNI_COMMAND", command.to_owned()),
                ("CNI_CONTAINERID", id.to_owned()),
                ("CNI_PATH", format!("/none:{}", dir.path().display())),
            ]);
            match call(&|name: &str| vars.get(name).cloned().unwrap_or_default(), &conf) {
                Ok(Answer::Nothing) => "nothing".to_owned(),
                Ok(Answer::Text(bytes) | Answer::Failed(bytes)) => {
                    String::from_utf8(bytes).unwrap().trim().to_owned()
                }
                Err(failure) => {
                    format!("{} {}", failure.code, failure.text.split(": ").next().unwrap_or_default())
                }
            }
        };
        assert_eq!(run("ADD", "c1"), format!("11 read {}", at("env")));
        assert_eq!(run("STATUS", ""), format!("50 read {}", at("env")));
        fs::write(at("env"), env().text()).unwrap();
        assert_eq!(run("STATUS", ""), "nothing");
        assert_eq!(run("ADD", "../c1"), "4 CNI_CONTAINERID \"../c1\" is no name");
        assert_eq!(run("ADD", "c1"), r#"{"ips":[]}"#);
        assert!(fs::exists(at("data/c1")).unwrap());
        fs::remove_file(at("env")).unwrap();
        assert_eq!(run("DEL", "c1"), r#"{"ips":[]}"#, "the network may have changed since");
        assert_eq!(run("DEL", "c1"), "nothing");
        let seen = fs::read_to_string(at("seen")).unwrap();
        let lines: Vec<&str> = seen.lines().collect();
        assert_eq!((lines.len(), lines[0] == lines[1]), (2, true), "{seen}");
        assert!(run("VERSION", "").contains("supportedVersions"));
        assert_eq!(run("NONE", ""), "4 unknown CNI_COMMAND \"NONE\"");
    }
}
