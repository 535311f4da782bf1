//! Five ways to break a machine, and what `why` says: each answer is recorded in docs/why.md.

use std::net::{TcpListener, UdpSocket};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ichor_live::{Fleet, processes, root, wait};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// The network of these clusters; docs/why.md shows its addresses.
const OCTET: u8 = 37;
/// A cause shows within this: time servers and control planes get ten seconds before they count as silent.
const SHOWN: Duration = Duration::from_secs(180);

/// The answers in docs/why.md, below the heading.
fn recorded(heading: &str) -> String {
    let text = std::fs::read_to_string(root().join("docs/why.md")).unwrap();
    let part = text.split("\n## ").find(|part| part.starts_with(heading)).expect("a section of docs/why.md");
    let block = part.split("```text\n").nth(1).expect("a recorded answer");
    let block = block.split("```").next().unwrap();
    // The first line is the command.
    block.split_once('\n').unwrap().1.to_owned()
}

/// Numbers of the moment are not compared.
fn masked(text: &str) -> String {
    let word = |word: &str| {
        let core = word.trim_matches(|c: char| "(),;:".contains(c));
        let number = !core.is_empty()
            && core.chars().all(|c| c.is_ascii_digit() || c == '.')
            && core.matches('.').count() < 2;
        if number { word.replace(core, "#") } else { word.to_owned() }
    };
    let line = |line: &str| line.split(' ').map(word).collect::<Vec<_>>().join(" ");
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// Waits until `why` says what is recorded; it then ends with status 1.
#[track_caller]
fn says(fleet: &Fleet, args: &[&str], heading: &str) {
    let want = masked(&recorded(heading));
    let mut last = String::new();
    let seen = wait("the recorded answer", SHOWN, || {
        let output = fleet.run(args).ok()?;
        last = String::from_utf8_lossy(&output.stdout).into_owned();
        std::thread::sleep(Duration::from_millis(200));
        (masked(&last) == want).then_some(output.status.code())
    });
    assert_eq!(seen.unwrap_or_else(|error| panic!("{error}\nwanted:\n{want}\n\nfound:\n{last}")), Some(1));
}

#[track_caller]
fn is_well(fleet: &Fleet, node: &str) {
    let mut last = String::new();
    let well = wait("the machine is well again", SHOWN, || {
        let output = fleet.run(&["-n", node, "why"]).ok()?;
        last = String::from_utf8_lossy(&output.stdout).into_owned();
        std::thread::sleep(Duration::from_millis(100));
        output.status.success().then_some(())
    });
    well.unwrap_or_else(|error| panic!("{error}\n{last}"));
}

/// The configuration of a machine before a test breaks it.
struct Before(PathBuf);

impl Before {
    fn keep(fleet: &Fleet, node: &str) -> Self {
        let text =
            fleet.soon(&["-n", node, "get", "machineconfig", "v1alpha1", "-o", "jsonpath={.spec}"]).unwrap();
        let path = fleet.home().join("before.yaml");
        std::fs::write(&path, text).unwrap();
        Self(path)
    }

    fn restore(&self, fleet: &Fleet, node: &str) {
        let file = self.0.to_str().unwrap();
        fleet.soon(&["-n", node, "apply-config", "--mode", "no-reboot", "--file", file]).unwrap();
    }
}

fn patch(fleet: &Fleet, node: &str, patch: &str) {
    fleet.soon(&["-n", node, "patch", "mc", "--mode", "no-reboot", "-p", patch]).unwrap();
}

/// Runs `work` in the network of a process, on a thread of its own.
fn inside<T: Send + 'static>(pid: i32, work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    let network = std::fs::File::open(format!("/proc/{pid}/ns/net")).unwrap();
    std::thread::spawn(move || {
        move_into_link_name_space(std::os::fd::AsFd::as_fd(&network), Some(LinkNameSpaceType::Network))
            .unwrap();
        work()
    })
}

#[test]
fn bad_dns() {
    let fleet = Fleet::create("why-dns", OCTET, 1, 0, &[]).unwrap();
    let node = fleet.address(0);
    is_well(&fleet, &node);
    let before = Before::keep(&fleet, &node);
    patch(
        &fleet,
        &node,
        "machine:\n  network:\n    nameservers: [10.37.0.250]\n  time:\n    servers: [time.example.org]\n",
    );
    says(&fleet, &["-n", &node, "why"], "Bad DNS");
    before.restore(&fleet, &node);
    is_well(&fleet, &node);
    fleet.destroy().unwrap();
}

#[test]
fn a_time_server_that_does_not_answer() {
    let fleet = Fleet::create("why-time", OCTET, 1, 0, &[]).unwrap();
    let node = fleet.address(0);
    let before = Before::keep(&fleet, &node);
    patch(&fleet, &node, "machine:\n  time:\n    servers: [10.37.0.99]\n");
    says(&fleet, &["-n", &node, "why"], "A time server that does not answer");
    before.restore(&fleet, &node);
    is_well(&fleet, &node);
    fleet.destroy().unwrap();
}

/// A time server on the bridge of a cluster that is two hours ahead.
struct Liar {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Liar {
    fn start(fleet: &Fleet) -> Self {
        let own = std::fs::read_link("/proc/self/ns/net").unwrap();
        let bridge = processes::with_argument(fleet.name())
            .into_iter()
            .find(|process| {
                std::fs::read_link(format!("/proc/{}/ns/net", process.pid)).is_ok_and(|net| net != own)
            })
            .expect("the supervisor with the bridge");
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = inside(bridge.pid, move || {
            let socket = UdpSocket::bind("0.0.0.0:123").unwrap();
            socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
            let mut buffer = [0; 48];
            while !stopped.load(Ordering::Relaxed) {
                if let Ok((48, peer)) = socket.recv_from(&mut buffer) {
                    socket.send_to(&answer(&buffer), peer).unwrap();
                }
            }
        });
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for Liar {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A well-formed answer, two hours ahead of the truth.
fn answer(question: &[u8; 48]) -> [u8; 48] {
    const SINCE_1900: u64 = 2_208_988_800;
    const AHEAD: u64 = 2 * 60 * 60;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let seconds = now.as_secs() + SINCE_1900 + AHEAD;
    let time = ((seconds << 32) | ((u64::from(now.subsec_nanos()) << 32) / 1_000_000_000)).to_be_bytes();
    let mut packet = [0; 48];
    // Version 4, server; stratum 1.
    (packet[0], packet[1], packet[2], packet[3]) = (4 << 3 | 4, 1, 6, 0xec);
    packet[12..16].copy_from_slice(b"LIE\0");
    packet[16..24].copy_from_slice(&time);
    packet[24..32].copy_from_slice(&question[40..48]);
    packet[32..40].copy_from_slice(&time);
    packet[40..48].copy_from_slice(&time);
    packet
}

#[test]
fn a_wrong_clock() {
    let fleet = Fleet::create("why-clock", OCTET, 1, 0, &[]).unwrap();
    let node = fleet.address(0);
    let before = Before::keep(&fleet, &node);
    let liar = Liar::start(&fleet);
    patch(&fleet, &node, "machine:\n  time:\n    servers: [10.37.0.1]\n");
    says(&fleet, &["-n", &node, "why"], "A wrong clock");
    before.restore(&fleet, &node);
    is_well(&fleet, &node);
    drop(liar);
    fleet.destroy().unwrap();
}

#[test]
fn an_unreachable_control_plane() {
    let fleet = Fleet::create("why-end", OCTET, 1, 1, &[]).unwrap();
    let worker = fleet.address(1);
    let before = Before::keep(&fleet, &worker);
    // Members that discovery found would sign in the place of the endpoint.
    patch(&fleet, &worker, "cluster:\n  discovery:\n    enabled: false\n");
    fleet.says(&["-n", &worker, "get", "endpoints"], |text| !text.contains("discovery")).unwrap();
    patch(&fleet, &worker, "cluster:\n  controlPlane:\n    endpoint: https://10.37.0.77:6443\n");
    says(&fleet, &["-n", &worker, "why"], "An unreachable control plane");
    before.restore(&fleet, &worker);
    is_well(&fleet, &worker);
    fleet.destroy().unwrap();
}

#[test]
fn a_bad_static_route() {
    let fleet = Fleet::create("why-route", OCTET, 1, 0, &[]).unwrap();
    let node = fleet.address(0);
    let before = Before::keep(&fleet, &node);
    let route = |gateway: &str| {
        format!(
            "machine:\n  network:\n    interfaces:\n      - interface: eth0\n        routes:\n          \
             - network: 10.99.0.0/16\n            gateway: {gateway}\n"
        )
    };
    patch(&fleet, &node, &route("192.168.77.1"));
    says(&fleet, &["-n", &node, "why"], "A bad static route");
    before.restore(&fleet, &node);
    is_well(&fleet, &node);
    fleet.destroy().unwrap();
}

#[test]
fn a_service_that_crashes() {
    let fleet = Fleet::create("why-crash", OCTET, 1, 0, &[]).unwrap();
    let node = fleet.address(0);
    is_well(&fleet, &node);
    let machine = fleet.daemon("machined").unwrap().pid;
    // Somebody else takes the port in the moment between two lives of the service. Who is too slow for that tries it
    // with the next life.
    let taken = wait("the port", SHOWN, || {
        let trustd = fleet.daemons("trustd").into_iter().next()?;
        let taken = inside(machine, move || {
            processes::kill(trustd.pid);
            let start = Instant::now();
            loop {
                match TcpListener::bind("[::]:50001") {
                    Ok(listener) => return Some(listener),
                    Err(_) if start.elapsed() < Duration::from_secs(1) => {}
                    Err(_) => return None,
                }
            }
        });
        taken.join().unwrap()
    });
    let taken = taken.unwrap();
    says(&fleet, &["-n", &node, "why", "trustd"], "A service that crashes");
    drop(taken);
    is_well(&fleet, &node);
    fleet.destroy().unwrap();
}

#[test]
fn machines_without_configuration_or_without_an_answer() {
    let fleet = Fleet::unconfigured("why-idle", OCTET, &[]).unwrap();
    let address = fleet.loopback(0);
    says(&fleet, &["why", "--insecure", "-n", &address], "A machine without configuration");
    fleet.destroy().unwrap();
    let fleet = Fleet::named("why-none", OCTET).unwrap();
    says(&fleet, &["why", "--insecure", "-n", "127.37.0.2"], "A machine that does not answer");
}
