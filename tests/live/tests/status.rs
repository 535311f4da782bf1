//! What a machine tells about itself, seen with `get`, and what it sends to others.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::{TcpListener, UdpSocket};
use std::os::fd::AsFd;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use ichor_live::{Fleet, eventually, wait};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

const LIMIT: Duration = Duration::from_secs(90);

fn yaml(fleet: &Fleet, what: &[&str]) -> String {
    let node = fleet.address(0);
    let mut args = vec!["-n", node.as_str(), "get"];
    args.extend(what);
    args.extend(["-o", "yaml"]);
    fleet.soon(&args).unwrap()
}

/// The same, once it is what is wanted.
#[track_caller]
fn shows(fleet: &Fleet, what: &[&str], wanted: impl Fn(&str) -> bool) -> String {
    let mut last = String::new();
    let seen = wait(&what.join(" "), LIMIT, || {
        last = yaml(fleet, what);
        wanted(&last).then_some(())
    });
    seen.unwrap_or_else(|error| panic!("{error}: {last}"));
    last
}

/// The values of `key:` lines.
fn values(yaml: &str, key: &str) -> Vec<String> {
    let prefix = format!("{key}: ");
    yaml.lines().filter_map(|line| Some(line.trim().strip_prefix(&prefix)?.to_owned())).collect()
}

fn number(yaml: &str, key: &str) -> f64 {
    values(yaml, key)
        .first()
        .and_then(|value| value.parse().ok())
        .unwrap_or_else(|| panic!("{key} in {yaml}"))
}

#[test]
fn a_machine_describes_itself() {
    let fleet = Fleet::create("status", 93, 1, 0, &[]).unwrap();
    let node = fleet.address(0);

    // Counters, with sane values.
    shows(&fleet, &["cpustat", "latest"], |cpu| {
        number(cpu, "user") > 0.0 && number(cpu, "contextSwitches") > 0.0
    });
    shows(&fleet, &["memorystats"], |memory| {
        let (total, used) = (number(memory, "total"), number(memory, "used"));
        total > used && used > 0.0
    });

    // The clock, the kernel, the machine.
    shows(&fleet, &["adjtimestatus"], |clock| {
        values(clock, "state").first().is_some_and(|state| state.starts_with("TIME_"))
    });
    shows(&fleet, &["cmdline"], |text| text.contains("talos.platform=sandbox"));
    shows(&fleet, &["version"], |text| {
        values(text, "version").last().is_some_and(|found| found == "v1.12.1")
    });
    shows(&fleet, &["platformmetadata"], |text| values(text, "platform") == ["sandbox"]);
    shows(&fleet, &["securitystate"], |text| values(text, "secureBoot") == ["false"]);
    shows(&fleet, &["devicesstatus"], |text| values(text, "ready") == ["true"]);
    shows(&fleet, &["machinestatus"], |text| {
        values(text, "stage") == ["running"] && values(text, "ready") == ["true"]
    });

    // Parameters are applied to the machine's own network and say what they were.
    let forward = ["sysctls", "proc.sys.net.ipv4.ip_forward"];
    shows(&fleet, &forward, |text| values(text, "current") == ["\"1\""]);
    // Devices of the host are seen, as in any machine.
    let devices = yaml(&fleet, &["pcidevices"]);
    for id in values(&devices, "vendor_id") {
        assert!(id.trim_matches('"').starts_with("0x") && id.trim_matches('"').len() == 6, "{id}");
    }

    // Identity, as files too.
    for file in ["machine-id", "iscsi/initiatorname.iscsi", "nvme/hostnqn", "hosts"] {
        shows(&fleet, &["etcfilestatus"], |files| values(files, "id").iter().any(|id| id == file));
    }
    let name = fleet.soon(&["-n", &node, "read", "/etc/iscsi/initiatorname.iscsi"]).unwrap();
    let machine_id = fleet.soon(&["-n", &node, "read", "/etc/machine-id"]).unwrap();
    assert_eq!(name, format!("InitiatorName=iqn.2017-11.dev.talos:{machine_id}\n"));

    // META was read, and the token is there, empty.
    shows(&fleet, &["metaload"], |text| values(text, "done") == ["true"]);
    shows(&fleet, &["uniquemachinetoken"], |text| values(text, "token") == ["\"\""]);
    // Nothing is wrong with this machine.
    shows(&fleet, &["diagnostics"], |text| !text.contains("id:"));

    // What a configuration asks for and the node does not do is a warning at once and a diagnostic from then on.
    let kubespan = |on: bool| format!("machine: {{network: {{kubespan: {{enabled: {on}}}}}}}");
    let patched = eventually("a patch", LIMIT, || {
        let output =
            fleet.run(&["-n", &node, "patch", "mc", "--mode", "no-reboot", "-p", &kubespan(true)])?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8_lossy(&output.stderr).into_owned())
    });
    let warned = patched.unwrap();
    assert!(warned.contains("kubespan: ") && warned.contains("(accepted and not applied)"), "{warned}");
    shows(&fleet, &["diagnostics"], |text| {
        text.contains("config-not-applied") && text.contains("KubeSpan does not run yet")
    });
    fleet.soon(&["-n", &node, "patch", "mc", "--mode", "no-reboot", "-p", &kubespan(false)]).unwrap();
    shows(&fleet, &["diagnostics"], |text| !text.contains("id:"));
    fleet.destroy().unwrap();
}

/// A listener on the loopback of the first machine, where nobody else can reach it.
fn inside<T: Send + 'static>(
    fleet: &Fleet,
    bind: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> Result<T> {
    let machine = fleet.daemons("machined").into_iter().next().context("a machined")?;
    let network = File::open(format!("/proc/{}/ns/net", machine.pid))?;
    // A thread of its own: the others stay where they are.
    let bound = std::thread::spawn(move || -> Result<T> {
        move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))?;
        Ok(bind()?)
    });
    match bound.join() {
        Ok(bound) => bound,
        Err(_) => bail!("the thread of a listener ended"),
    }
}

/// String fields of one line of JSON, enough for these lines.
fn fields(line: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for part in line.trim_matches(['{', '}']).split(",\"") {
        if let Some((key, value)) = part.split_once(':') {
            found.insert(key.trim_matches('"').to_owned(), value.trim_matches('"').to_owned());
        }
    }
    found
}

#[test]
fn logs_and_kernel_messages_reach_their_receivers() {
    let fleet = Fleet::create("shipping", 94, 1, 0, &[]).unwrap();
    let node = fleet.address(0);
    let services = inside(&fleet, || TcpListener::bind("127.0.0.1:9001")).unwrap();
    let kernel = inside(&fleet, || UdpSocket::bind("127.0.0.1:9002")).unwrap();
    let patch = "machine:\n  logging:\n    destinations:\n      - endpoint: tcp://127.0.0.1:9001\n        \
                 format: json_lines\n        extraTags:\n          rack: seven\n";
    fleet.soon(&["-n", &node, "patch", "mc", "-p", patch]).unwrap();
    fleet
        .soon(&[
            "-n",
            &node,
            "patch",
            "mc",
            "-p",
            "apiVersion: v1alpha1\nkind: KmsgLogConfig\nname: there\nurl: udp://127.0.0.1:9002/\n",
        ])
        .unwrap();

    services.set_nonblocking(true).unwrap();
    let (stream, _) = wait("a connection of the machine", LIMIT, || services.accept().ok()).unwrap();
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let mut seen = BTreeMap::new();
    for line in BufReader::new(stream).lines() {
        let line = line.unwrap();
        let event = fields(&line);
        assert_eq!(event.get("rack").map(String::as_str), Some("seven"), "{line}");
        assert!(event.contains_key("msg") && event.contains_key("talos-time"), "{line}");
        *seen.entry(event.get("talos-service").cloned().unwrap_or_default()).or_insert(0) += 1;
        if ["machined", "apid", "controller-runtime"].iter().all(|log| seen.contains_key(*log)) {
            break;
        }
    }
    assert!(seen.contains_key("apid"), "{seen:?}");

    kernel.set_read_timeout(Some(LIMIT)).unwrap();
    let mut datagram = vec![0; 65_536];
    let len = kernel.recv(&mut datagram).unwrap();
    let text = String::from_utf8_lossy(&datagram[..len]).into_owned();
    let event = fields(&text);
    assert!(event["msg"].starts_with("[talos]") && !text.ends_with('\n'), "{text}");
    assert!(["facility", "seq", "clock", "priority"].iter().all(|key| event.contains_key(*key)), "{text}");
    fleet.destroy().unwrap();
}
