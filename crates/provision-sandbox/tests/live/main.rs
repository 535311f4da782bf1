//! Live sandbox machines whose init is this same test program.
//!
//! Needs root, as the provider does. The program has three parts: the provider's hidden processes, the stand-in
//! for a node (when it is PID 1 of a machine), and the tests, which run one after the other.

mod host;
mod standin;

use std::fs;
use std::io::{Cursor, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use backhand::compression::Compressor;
use backhand::{FilesystemCompressor, FilesystemWriter, NodeHeader};
use ichor_provision::{
    Cluster, ClusterRequest, Configs, MachineKind, MachineRequest, MachineStatus, Power, Provider,
    ProvisionError, Store,
};
use ichor_provision_sandbox::Sandbox;

const WAIT: Duration = Duration::from_secs(20);

type Test = fn(&Lab);

const TESTS: [(&str, Test); 7] = [
    ("a_machine_boots_reboots_stops_and_leaves_no_trace", boots_reboots_stops),
    ("a_machine_cannot_change_the_host", cannot_change_the_host),
    ("a_killed_supervisor_takes_everything_along", killed_supervisor),
    ("a_creation_killed_half_way_can_be_destroyed", killed_half_way),
    ("two_clusters_live_side_by_side_and_addresses_are_guarded", side_by_side),
    ("machines_come_and_go_and_the_endpoint_stays", come_and_go),
    ("what_cannot_be_done_is_one_sentence", refusals),
];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let Some(code) = ichor_provision_sandbox::hidden_main(&args) {
        return code;
    }
    if std::process::id() == 1 {
        return standin::main();
    }
    if let [word, root, image] = args.as_slice()
        && word == "as-nobody"
    {
        let lab = Sandbox::new(Store::new(root));
        println!("{}", create(&lab, &request("x", 70, 1, Path::new(image))).unwrap_err());
        return ExitCode::SUCCESS;
    }
    if args.iter().any(|arg| arg == "--list") {
        for (name, _) in TESTS {
            println!("{name}: test");
        }
        return ExitCode::SUCCESS;
    }
    if !rustix::process::geteuid().is_root() {
        eprintln!("the live tests of the sandbox provider need root");
        return ExitCode::FAILURE;
    }
    let filter = args.iter().find(|arg| !arg.starts_with('-'));
    let lab = Lab::new();
    let before = lab.snapshot();
    for (name, test) in TESTS {
        if filter.is_none_or(|filter| name.contains(filter.as_str())) {
            let start = Instant::now();
            print!("test {name} ... ");
            let _ = std::io::stdout().flush();
            test(&lab);
            println!("ok ({} ms)", start.elapsed().as_millis());
        }
    }
    unchanged(&lab, &before);
    ExitCode::SUCCESS
}

/// A provider with its own store, and the image.
struct Lab {
    dir: tempfile::TempDir,
    sandbox: Sandbox,
    image: PathBuf,
}

impl Lab {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        fs::write(&image, image_of(&fs::read("/proc/self/exe").unwrap())).unwrap();
        let sandbox = Sandbox::new(Store::new(dir.path().join("clusters")));
        Self { dir, sandbox, image }
    }

    fn create(&self, name: &str, second: u8, machines: usize) -> Guard<'_> {
        let request = request(name, second, machines, &self.image);
        let cluster = create(&self.sandbox, &request).unwrap();
        Guard { lab: self, cluster }
    }

    fn wait_for(&self, cluster: &str, machine: usize, status: MachineStatus) {
        eventually(&format!("{cluster} machine {machine} {status}"), || {
            self.sandbox.show(cluster).unwrap().machines[machine].status == status
        });
    }

    fn snapshot(&self) -> String {
        host::snapshot(self.dir.path(), &self.image)
    }
}

/// Destroys its cluster even when a test fails.
struct Guard<'a> {
    lab: &'a Lab,
    cluster: Cluster,
}

impl Guard<'_> {
    fn ask(&self, machine: usize, question: &str) -> String {
        let reach = self.lab.sandbox.reach(&self.cluster, &self.cluster.machines[machine]);
        ask(reach.host.parse().unwrap(), question)
    }

    fn field(&self, machine: usize, key: &str) -> String {
        let report = self.ask(machine, "report");
        let value = report.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        value.unwrap_or_else(|| panic!("no {key} in {report}")).to_owned()
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        let sandbox = &self.lab.sandbox;
        if std::thread::panicking() {
            for machine in &self.cluster.machines {
                let text = console(sandbox, &self.cluster.name, &machine.name);
                eprintln!("--- console of {}\n{text}", machine.name);
            }
        }
        let _ = sandbox.destroy(&self.cluster.name, &mut |_| {});
    }
}

fn console(sandbox: &Sandbox, cluster: &str, machine: &str) -> String {
    let mut text = String::new();
    let read = sandbox.console(cluster, machine).map(|mut console| console.read_to_string(&mut text));
    assert!(matches!(read, Ok(Ok(_))), "the console of {machine} cannot be read");
    text
}

/// Plans and makes a cluster whose machines are configured by their number.
fn create(sandbox: &Sandbox, request: &ClusterRequest) -> Result<Cluster, ProvisionError> {
    let plan = sandbox.plan(request)?;
    sandbox.create(&plan, &configs(&request.machines), &mut |_| {})
}

fn add(sandbox: &Sandbox, cluster: &str, machines: &[MachineRequest]) -> Result<Cluster, ProvisionError> {
    let plan = sandbox.plan_more(cluster, machines)?;
    sandbox.add(&plan, &configs(machines), &mut |_| {})
}

fn configs(machines: &[MachineRequest]) -> Configs {
    let number = |machine: &MachineRequest| machine.name.rsplit('-').next().unwrap_or_default().to_owned();
    let config = |machine| format!("config of {}", number(machine)).into_bytes();
    machines.iter().map(|machine| (machine.name.clone(), config(machine))).collect()
}

fn request(name: &str, second: u8, machines: usize, image: &Path) -> ClusterRequest {
    let machine = |number: usize| MachineRequest {
        name: format!("{name}-{number}"),
        kind: MachineKind::ControlPlane,
        kernel_args: vec!["test.mark=1".to_owned()],
        resources: Default::default(),
    };
    ClusterRequest {
        name: name.to_owned(),
        cidrs: vec![format!("10.{second}.0.0/24").parse().unwrap()],
        mtu: 1500,
        image: Some(image.to_str().unwrap().to_owned()),
        machines: (0..machines).map(machine).collect(),
        ..ClusterRequest::default()
    }
}

fn image_of(program: &[u8]) -> Vec<u8> {
    let mut image = FilesystemWriter::default();
    image.set_compressor(FilesystemCompressor::new(Compressor::Zstd, None).unwrap());
    let header = NodeHeader::new(0o755, 0, 0, 0);
    for dir in ["dev", "proc", "run", "sbin", "sys", "system", "tmp", "var"] {
        image.push_dir(dir, header).unwrap();
    }
    image.push_file(Cursor::new(program.to_vec()), "sbin/init", header).unwrap();
    let mut out = Cursor::new(Vec::new());
    image.write(&mut out).unwrap();
    out.into_inner()
}

fn ask(address: Ipv4Addr, question: &str) -> String {
    let deadline = Instant::now() + WAIT;
    loop {
        if let Ok(answer) = try_ask(address, question)
            && !answer.is_empty()
        {
            return answer;
        }
        assert!(Instant::now() < deadline, "{address} does not answer {question}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn try_ask(address: Ipv4Addr, question: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect((address, 50_000))?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    writeln!(stream, "{question}")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

#[track_caller]
fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + WAIT;
    while !done() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The kernel clears namespaces in its own time.
#[track_caller]
fn unchanged(lab: &Lab, before: &str) {
    let mut after = String::new();
    let deadline = Instant::now() + WAIT;
    while Instant::now() < deadline {
        after = lab.snapshot();
        if after == before {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let only = |a: &str, b: &str| {
        let lines: Vec<&str> = a.lines().filter(|line| !b.lines().any(|other| other == *line)).collect();
        lines.join("\n")
    };
    panic!("the host changed\ngone:\n{}\nnew:\n{}", only(before, &after), only(&after, before));
}

fn boots_reboots_stops(lab: &Lab) {
    let before = lab.snapshot();
    let cluster = lab.create("life", 61, 2);
    assert_eq!(cluster.field(0, "boots"), "1");
    assert_eq!(cluster.field(0, "config"), "config of 0");
    assert_eq!(cluster.field(1, "config"), "config of 1");
    let cmdline = cluster.field(1, "cmdline");
    assert_eq!(
        cmdline,
        "console=ttyS0 talos.platform=sandbox ip=10.61.0.3::10.61.0.1:255.255.255.0:life-1:eth0:none talos.config=file:///run/platform/config.yaml test.mark=1"
    );
    assert_eq!(cluster.ask(0, "call 10.61.0.3"), "hello from 10.61.0.3\n", "machines reach each other");

    // A reboot the machine asks for: same state, new boot.
    let first_id = cluster.field(0, "boot_id");
    cluster.ask(0, "reboot");
    eventually("second boot", || {
        try_ask(Ipv4Addr::new(127, 61, 0, 2), "report").is_ok_and(|r| r.contains("boots=2"))
    });
    assert_ne!(cluster.field(0, "boot_id"), first_id);
    assert_eq!(cluster.field(1, "boots"), "1", "the other one went on");

    // Off by itself, on again by us.
    cluster.ask(0, "poweroff");
    lab.wait_for("life", 0, MachineStatus::Stopped);
    lab.sandbox.power("life", Some("life-0"), Power::On).unwrap();
    assert_eq!(cluster.field(0, "boots"), "3");

    // Shut down in order, then cut, then reset.
    lab.sandbox.power("life", Some("life-0"), Power::Off).unwrap();
    assert_eq!(lab.sandbox.show("life").unwrap().machines[0].status, MachineStatus::Stopped);
    let console = console(&lab.sandbox, "life", "life-0");
    assert!(console.contains("boot 1\n") && console.contains("asked to stop\n"), "{console}");
    lab.sandbox.power("life", None, Power::On).unwrap();
    assert_eq!(cluster.field(0, "boots"), "4");
    lab.sandbox.power("life", None, Power::Cut).unwrap();
    let statuses: Vec<_> = lab.sandbox.show("life").unwrap().machines.iter().map(|m| m.status).collect();
    assert_eq!(statuses, [MachineStatus::Stopped; 2]);
    lab.sandbox.power("life", None, Power::On).unwrap();
    assert_eq!(cluster.field(0, "boots"), "5");
    lab.sandbox.power("life", Some("life-0"), Power::Reset).unwrap();
    eventually("boot after reset", || {
        try_ask(Ipv4Addr::new(127, 61, 0, 2), "report").is_ok_and(|r| r.contains("boots=6"))
    });

    // A machine that only falls over is a crash.
    cluster.ask(1, "exit");
    lab.wait_for("life", 1, MachineStatus::Crashed);

    lab.sandbox.destroy("life", &mut |_| {}).unwrap();
    drop(cluster);
    unchanged(lab, &before);
}

fn cannot_change_the_host(lab: &Lab) {
    let before = lab.snapshot();
    let cluster = lab.create("tame", 62, 1);
    let report = cluster.ask(0, "attack");
    expect_test::expect![[r"
        write /proc/sys/kernel/panic: refused
        write /proc/sys/vm/swappiness: refused
        write /proc/sys/kernel/panic_on_oops: refused
        mount another /proc: done
        write kernel/panic there: refused
        write vm/swappiness there: refused
        write kernel/shmmax there: done
        write /proc/sysrq-trigger: refused
        write /dev/kmsg: refused
        set the clock: refused
        load a module: refused
        make a loop device: refused
        write /proc/sys/net/ipv4/ip_forward: done
        own cgroups: all at the root
        processes seen: 1
        host name changed
    "]]
    .assert_eq(&report);
    drop(cluster);
    unchanged(lab, &before);
}

fn killed_supervisor(lab: &Lab) {
    let before = lab.snapshot();
    let cluster = lab.create("orphan", 63, 2);
    assert_eq!(cluster.field(1, "boots"), "1");
    let ours = |process: &ichor_sys::process::Process| process.args.contains(" __sandbox supervisor ");
    let processes: Vec<_> = ichor_sys::process::list().unwrap().into_iter().filter(ours).collect();
    let outer = processes.iter().find(|p| p.args.ends_with("/orphan")).unwrap();
    ichor_sys::signal::send(outer.pid, 9).unwrap();
    eventually("all processes gone", || host::processes(lab.dir.path(), &lab.image).is_empty());
    assert_eq!(lab.sandbox.show("orphan").unwrap().machines[0].status, MachineStatus::Unknown);
    let error = lab.sandbox.power("orphan", None, Power::Off).unwrap_err();
    assert!(matches!(error, ProvisionError::NotRunning { .. }), "{error}");
    // Its machines' state is still there, so it can come back.
    lab.sandbox.power("orphan", None, Power::On).unwrap();
    assert_eq!(cluster.field(0, "boots"), "2");
    lab.sandbox.destroy("orphan", &mut |_| {}).unwrap();
    drop(cluster);
    unchanged(lab, &before);
}

fn killed_half_way(lab: &Lab) {
    let before = lab.snapshot();
    // Killed right after the directory was made, and while the state file was being written.
    for content in [None, Some("{")] {
        let dir = lab.sandbox.store().reserve("half").unwrap();
        if let Some(content) = content {
            fs::write(dir.join("state.json"), content).unwrap();
        }
        let error = create(&lab.sandbox, &request("half", 64, 1, &lab.image)).unwrap_err();
        assert!(matches!(error, ProvisionError::Exists { .. }), "{error}");
        lab.sandbox.destroy("half", &mut |_| {}).unwrap();
    }
    // Killed while the supervisor was setting up: at a different moment each time.
    for delay in 0..12 {
        let lab_sandbox = lab.sandbox.clone();
        let wanted = request("half", 64, 2, &lab.image);
        let creating = std::thread::spawn(move || create(&lab_sandbox, &wanted));
        std::thread::sleep(Duration::from_millis(delay * 4));
        for pid in host::processes(lab.dir.path(), &lab.image) {
            let _ = ichor_sys::signal::send(pid, 9);
        }
        if creating.join().unwrap().is_ok() {
            lab.sandbox.destroy("half", &mut |_| {}).unwrap();
        }
        assert!(!lab.sandbox.store().dir("half").unwrap().exists());
    }
    unchanged(lab, &before);
}

fn side_by_side(lab: &Lab) {
    let before = lab.snapshot();
    let one = lab.create("one", 65, 1);
    let two = lab.create("two", 66, 1);
    assert_eq!(one.field(0, "address"), "10.65.0.2");
    assert_eq!(two.field(0, "address"), "10.66.0.2");
    let names: Vec<_> = lab.sandbox.list().unwrap().into_iter().map(|cluster| cluster.name).collect();
    assert_eq!(names, ["one", "two"]);
    let network = lab.sandbox.free_network().unwrap();
    assert!(![&one, &two].iter().any(|taken| taken.cluster.network.cidrs == [network.into()]));

    let error = create(&lab.sandbox, &request("three", 65, 1, &lab.image)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "address 127.65.0.2:50000 is in use by another program; stop it, or choose another network with --cidr"
    );
    assert!(!lab.sandbox.store().dir("three").unwrap().exists(), "a failed creation leaves nothing");
    drop(one);
    assert_eq!(two.field(0, "boots"), "1", "the other cluster goes on");
    drop(two);
    unchanged(lab, &before);
}

fn come_and_go(lab: &Lab) {
    let before = lab.snapshot();
    let mut cluster = lab.create("grow", 69, 1);
    assert_eq!(cluster.field(0, "boots"), "1");
    let mut more = request("grow", 69, 3, &lab.image).machines;
    let taken = add(&lab.sandbox, "grow", &more[..1]).unwrap_err();
    assert_eq!(taken.to_string(), "two machines are called grow-0");
    cluster.cluster = add(&lab.sandbox, "grow", &more[1..]).unwrap();
    assert_eq!(cluster.field(1, "config"), "config of 1");
    assert_eq!(cluster.field(2, "address"), "10.69.0.4");
    assert_eq!(cluster.field(0, "boots"), "1", "the first one went on");
    assert_eq!(cluster.ask(0, "call 10.69.0.4"), "hello from 10.69.0.4\n");

    // Two changes at once are one too many.
    let lock = lab.sandbox.store().lock("grow").unwrap();
    let error = lab.sandbox.remove("grow", "grow-0", &mut |_| {}).unwrap_err();
    assert!(matches!(error, ProvisionError::Busy { .. }), "{error}");
    drop(lock);

    // The first one goes; at its address others answer, for the host and for machines.
    cluster.cluster = lab.sandbox.remove("grow", "grow-0", &mut |_| {}).unwrap();
    assert_eq!(cluster.cluster.machines.len(), 2);
    let endpoint = Ipv4Addr::new(127, 69, 0, 2);
    assert!(ask(endpoint, "report").contains("address=10.69.0.3\n"));
    assert_eq!(cluster.ask(1, "call 10.69.0.2"), "hello from 10.69.0.3\n");
    assert!(!lab.sandbox.store().dir("grow").unwrap().join("machines/grow-0").exists());
    lab.sandbox.power("grow", Some("grow-1"), Power::Cut).unwrap();
    assert!(ask(endpoint, "report").contains("address=10.69.0.4\n"), "whoever is left answers");

    // The supervisor comes back to the same.
    let ours = |process: &ichor_sys::process::Process| process.args.ends_with("/grow");
    for process in ichor_sys::process::list().unwrap().into_iter().filter(ours) {
        let _ = ichor_sys::signal::send(process.pid, 9);
    }
    eventually("the supervisor is gone", || {
        lab.sandbox.show("grow").unwrap().machines[0].status == MachineStatus::Unknown
    });
    let gone = add(&lab.sandbox, "grow", &more[..1]).unwrap_err();
    assert!(matches!(gone, ProvisionError::NotRunning { .. }), "{gone}");
    lab.sandbox.power("grow", None, Power::On).unwrap();
    eventually("an answer at the endpoint", || {
        try_ask(endpoint, "report").is_ok_and(|r| r.contains("address=10.69.0."))
    });

    // A new one takes the address.
    more[0].name = "grow-3".to_owned();
    cluster.cluster = add(&lab.sandbox, "grow", &more[..1]).unwrap();
    eventually("the new machine is at the endpoint", || {
        try_ask(endpoint, "report").is_ok_and(|r| r.contains("address=10.69.0.2\n"))
    });
    drop(cluster);
    unchanged(lab, &before);
}

fn refusals(lab: &Lab) {
    let cluster = lab.create("only", 67, 1);
    let refused = |name: &str, image: &Path| {
        create(&lab.sandbox, &request(name, 68, 1, image)).unwrap_err().to_string()
    };
    assert_eq!(
        refused("only", &lab.image),
        "cluster only exists already; look at it with `ichorctl cluster show --name only`, remove it with \
         `ichorctl cluster destroy --name only`, or choose another --name"
    );
    assert_eq!(
        refused("other", Path::new("/no/image")),
        "there is no root image at /no/image; build it with `make build` or name another with --image"
    );
    let error = lab.sandbox.destroy("nothing", &mut |_| {}).unwrap_err().to_string();
    assert_eq!(error, "there is no cluster nothing; `ichorctl cluster list` shows those that are");
    let error = lab.sandbox.power("only", Some("x"), Power::Off).unwrap_err().to_string();
    assert_eq!(
        error,
        "cluster only has no machine x; `ichorctl cluster show --name only` lists its machines"
    );
    // The program itself must be readable to others for this one.
    let nobody = Command::new("/proc/self/exe")
        .arg("as-nobody")
        .args([&std::env::temp_dir().join(format!("ichor-nobody-{}", std::process::id())), &lab.image])
        .uid(65_534)
        .output()
        .unwrap();
    assert_eq!(
        String::from_utf8_lossy(&nobody.stdout),
        "making a cluster needs root; run the command again with sudo\n"
    );
    drop(cluster);
}
