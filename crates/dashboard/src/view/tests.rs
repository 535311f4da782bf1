//! Every page on a small and a large screen.

use expect_test::{Expect, expect, expect_file};
use ichor_wire::machine::{CpuStat, MemInfo, ProcessInfo};
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::KeyCode;
use ratatui::layout::Rect;

use super::draw;
use crate::history::Counters;
use crate::model::{Model, News, Update};
use ichor_client::json::from_yaml_text;

/// 2026-01-01.
const NOW: u64 = 1_767_225_600;

/// Resources as a control plane machine of a small cluster shows them.
const RESOURCES: &[(&str, &str, &str)] = &[
    (
        "MachineStatuses.runtime.talos.dev",
        "machine",
        "stage: running\nstatus:\n    ready: false\n    unmetConditions:\n        - name: time\n          reason: time is not synced\n",
    ),
    ("MachineTypes.config.talos.dev", "machine-type", "controlplane\n"),
    ("Infos.cluster.talos.dev", "current", "clusterName: demo\n"),
    ("Members.cluster.talos.dev", "demo-controlplane-1", "machineType: controlplane\n"),
    ("Members.cluster.talos.dev", "demo-worker-1", "machineType: worker\n"),
    ("Services.v1alpha1.talos.dev", "apid", "running: true\nhealthy: true\nunknown: false\n"),
    ("Services.v1alpha1.talos.dev", "machined", "running: true\nhealthy: true\nunknown: false\n"),
    ("Services.v1alpha1.talos.dev", "trustd", "running: true\nhealthy: false\nunknown: false\n"),
    ("HostnameStatuses.net.talos.dev", "hostname", "hostname: demo-controlplane-1\ndomainname: \"\"\n"),
    ("NodeAddresses.net.talos.dev", "routed-no-k8s", "addresses:\n    - 10.5.0.2/24\n"),
    (
        "RouteStatuses.net.talos.dev",
        "inet4/10.5.0.1//1024",
        "dst: \"\"\ngateway: 10.5.0.1\noutLinkName: eth0\ntable: main\npriority: 1024\n",
    ),
    (
        "RouteStatuses.net.talos.dev",
        "inet4//10.5.0.0/24/0",
        "dst: 10.5.0.0/24\ngateway: \"\"\noutLinkName: eth0\ntable: main\npriority: 0\n",
    ),
    ("ResolverStatuses.net.talos.dev", "resolvers", "dnsServers:\n    - 1.1.1.1\n    - 8.8.8.8\n"),
    ("TimeServerStatuses.net.talos.dev", "timeservers", "timeServers:\n    - time.cloudflare.com\n"),
    ("TimeStatuses.v1alpha1.talos.dev", "node", "synced: false\nepoch: 0\nsyncDisabled: false\n"),
    (
        "NetworkStatuses.net.talos.dev",
        "status",
        "addressReady: true\nconnectivityReady: true\nhostnameReady: true\netcFilesReady: true\n",
    ),
    (
        "LinkStatuses.net.talos.dev",
        "eth0",
        "type: ether\noperationalState: up\nmtu: 1500\nhardwareAddr: 02:42:0a:05:00:02\n",
    ),
    (
        "LinkStatuses.net.talos.dev",
        "lo",
        "type: loopback\noperationalState: unknown\nmtu: 65536\nhardwareAddr: \"\"\n",
    ),
    ("AddressStatuses.net.talos.dev", "eth0/10.5.0.2/24", "address: 10.5.0.2/24\nlinkName: eth0\n"),
    ("AddressStatuses.net.talos.dev", "lo/127.0.0.1/8", "address: 127.0.0.1/8\nlinkName: lo\n"),
    (
        "Diagnostics.runtime.talos.dev",
        "address-overlap",
        "message: host and Kubernetes pod/service CIDR addresses overlap\ndetails:\n    - \"10.5.0.2/24\"\n",
    ),
];

fn model() -> Model {
    let mut model = Model::new(&["10.5.0.2".to_owned(), "10.5.0.3".to_owned()]);
    let mut tell = |news| {
        model.apply(Update { node: 0, news });
    };
    for (kind, id, yaml) in RESOURCES {
        tell(News::Resource(kind, (*id).to_owned(), Some(from_yaml_text(yaml).unwrap())));
    }
    tell(News::Version("v1.12.1".into()));
    for number in 1..=120 {
        tell(News::Line(
            String::new(),
            format!(
                "user: warning: [2026-01-01T00:{:02}:{:02}.815199161Z]: line {number} of the kernel log",
                number / 60,
                number % 60
            ),
        ));
    }
    for step in 0..90u32 {
        let at = f64::from(step);
        let wave = (at / 9.0).sin().abs();
        tell(News::Counters(Box::new(Counters {
            at,
            cpu: CpuStat { user: at * 0.3, system: at * 0.2, idle: at * 1.5, ..CpuStat::default() },
            cores: 2,
            boot_time: NOW - 93_784,
            running: 1,
            memory: MemInfo {
                memtotal: 4_000_000,
                memavailable: 4_000_000 - (wave * 3_000_000.0) as u64,
                ..MemInfo::default()
            },
            load: [wave, 0.5, 0.25],
            network: (u64::from(step * step) * 1000, u64::from(step) * 1000),
            disk: (u64::from(step / 10) * 100, u64::from(step) * 8),
        })));
    }
    for (at, factor) in [(1.0, 1.0), (2.0, 2.0)] {
        let process = |pid: i32, name: &str, cpu: f64| ProcessInfo {
            pid,
            state: "S".into(),
            threads: 3,
            cpu_time: cpu * factor,
            resident_memory: 1024 * 1024 * pid.unsigned_abs() as u64,
            command: name.into(),
            args: format!("/sbin/{name} --flag"),
            ..ProcessInfo::default()
        };
        tell(News::Processes(
            at,
            vec![process(1, "init", 0.0), process(9, "machined", 0.125), process(7, "apid", 0.5)],
        ));
    }
    model.apply(Update { node: 1, news: News::Contact(Some("connection refused".into())) });
    model
}

/// The characters, line by line, without looks.
fn plain(model: &Model, width: u16, height: u16) -> String {
    let mut buffer = Buffer::empty(Rect::new(0, 0, width, height));
    draw(model, buffer.area, &mut buffer, NOW);
    let line = |cells: &[ratatui::buffer::Cell]| {
        cells.iter().map(|cell| cell.symbol()).collect::<String>().trim_end().to_owned()
    };
    buffer.content.chunks(usize::from(width).max(1)).map(|cells| line(cells) + "\n").collect()
}

#[track_caller]
fn check(page: u8, width: u16, height: u16, expect: Expect) {
    let mut model = model();
    model.press(KeyCode::F(page).into());
    expect.assert_eq(&plain(&model, width, height));
}

#[test]
fn summary_on_a_small_screen() {
    check(
        1,
        80,
        24,
        expect![[r#"
             demo-controlplane-1 (10.5.0.2)  v1.12.1
             up 1d2h, CPU 25.0% of 2 cores, RAM 1.3 GiB of 3.8 GiB, PROCS 3
            ┌─ Machine ────────────────────────────┐┌─ Network ────────────────────────────┐
            │STAGE       running                   ││HOST          demo-controlplane-1     │
            │READY       false                     ││IP            10.5.0.2/24             │
            │TYPE        controlplane              ││GW            10.5.0.1                │
            │CLUSTER     demo                      ││CONNECTIVITY  ok                      │
            │MEMBERS     2 machines                ││DNS           1.1.1.1, 8.8.8.8        │
            │SERVICES    2 of 3 healthy            ││NTP           time.cloudflare.com     │
            │UUID        n/a                       ││TIME          not in sync             │
            │SECUREBOOT  n/a                       ││                                      │
            └──────────────────────────────────────┘└──────────────────────────────────────┘
            ┌─ Diagnostics ────────────────────────────────────────────────────────────────┐
            │time: time is not synced                                                      │
            │host and Kubernetes pod/service CIDR addresses overlap                        │
            │  10.5.0.2/24                                                                 │
            └──────────────────────────────────────────────────────────────────────────────┘
            ┌─ Kernel log ─────────────────────────────────────────────────────────────────┐
            │00:01:57 line 117 of the kernel log                                           │
            │00:01:58 line 118 of the kernel log                                           │
            │00:01:59 line 119 of the kernel log                                           │
            │00:02:00 line 120 of the kernel log                                           │
            └──────────────────────────────────────────────────────────────────────────────┘
             10.5.0.2 10.5.0.3  [F1: Summary] [F2: Monitor] [F3: Network Config] [F4: Logs]
        "#]],
    );
}

#[test]
fn monitor_on_a_small_screen() {
    check(
        2,
        80,
        24,
        expect![[r#"
         demo-controlplane-1 (10.5.0.2)  v1.12.1
         up 1d2h, CPU 25.0% of 2 cores, RAM 1.3 GiB of 3.8 GiB, PROCS 3
         CPU  25.0% ██████░░░░░░░░░░░░░░░░░░░░░   MEM  33.6% █████████░░░░░░░░░░░░░░░░░░

        ┌─ CPU 25.0% ─────────────┐┌─ Memory 33.6% ─────────┐┌─ Load 0.45 0.50 0.25 ───┐
        │                         ││▂▃▃▃▃▄▃▃▃▂▁▁            ││                         │
        │▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄││█████████████▇▆▄▃▂▁ ▁▂▄▅││▆▆▇▇▇▇█▇▇▇▇▆▆▅▄▄▃▂▁  ▁▁▂▃│
        └─────────────────────────┘└────────────────────────┘└─────────────────────────┘
        ┌─ Net rx 172.9 KiB┐┌─ Net tx 1000 B/s ┐┌─ Disk rd 0 B/s ──┐┌─ Disk wr 4.0 KiB/┐
        │▄▅▅▅▅▅▆▆▆▆▆▆▇▇▇▇▇█││██████████████████││        █         ││██████████████████│
        │██████████████████││██████████████████││        █         ││██████████████████│
        └──────────────────┘└──────────────────┘└──────────────────┘└──────────────────┘
        ┌─ Processes 3 ────────────────────────────────────────────────────────────────┐
        │    PID S THR   CPU%       MEM  COMMAND                                       │
        │      7 S   3   50.0   7.0 MiB  /sbin/apid --flag                             │
        │      9 S   3   12.5   9.0 MiB  /sbin/machined --flag                         │
        │      1 S   3    0.0   1.0 MiB  /sbin/init --flag                             │
        │                                                                              │
        │                                                                              │
        │                                                                              │
        │                                                                              │
        │                                                                              │
        └──────────────────────────────────────────────────────────────────────────────┘
         10.5.0.2 10.5.0.3  [F1: Summary] [F2: Monitor] [F3: Network Config] [F4: Logs]
    "#]],
    );
}

#[test]
fn network_on_a_small_screen() {
    check(
        3,
        80,
        24,
        expect![[r#"
             demo-controlplane-1 (10.5.0.2)  v1.12.1
             up 1d2h, CPU 25.0% of 2 cores, RAM 1.3 GiB of 3.8 GiB, PROCS 3
            ┌─ Host ───────────────────────────────────────────────────────────────────────┐
            │HOSTNAME      demo-controlplane-1                                             │
            │DOMAIN        n/a                                                             │
            │DNS SERVERS   1.1.1.1, 8.8.8.8                                                │
            │TIME SERVERS  time.cloudflare.com                                             │
            │NETWORK       ready                                                           │
            └──────────────────────────────────────────────────────────────────────────────┘
            ┌─ Links ──────────────────────────────────────────────────────────────────────┐
            │LINK         STATE    MODE    ADDRESSES                       MTU  HARDWARE AD│
            │eth0         up       static  10.5.0.2/24                    1500  02:42:0a:05│
            │lo           unknown  static  127.0.0.1/8                   65536             │
            │                                                                              │
            │                                                                              │
            └──────────────────────────────────────────────────────────────────────────────┘
            ┌─ Routes ─────────────────────────────────────────────────────────────────────┐
            │DESTINATION                GATEWAY                 LINK         METRIC        │
            │10.5.0.0/24                                        eth0         0             │
            │default                    10.5.0.1                eth0         1024          │
            │                                                                              │
            │                                                                              │
            └──────────────────────────────────────────────────────────────────────────────┘
             10.5.0.2 10.5.0.3  [F1: Summary] [F2: Monitor] [F3: Network Config] [F4: Logs]
        "#]],
    );
}

#[test]
fn logs_on_a_small_screen() {
    check(
        4,
        80,
        24,
        expect![[r#"
             demo-controlplane-1 (10.5.0.2)  v1.12.1
             up 1d2h, CPU 25.0% of 2 cores, RAM 1.3 GiB of 3.8 GiB, PROCS 3
            ┌─ Log of kernel (Tab: next log) ──────────────────────────────────────────────┐
            │00:01:42 line 102 of the kernel log                                           │
            │00:01:43 line 103 of the kernel log                                           │
            │00:01:44 line 104 of the kernel log                                           │
            │00:01:45 line 105 of the kernel log                                           │
            │00:01:46 line 106 of the kernel log                                           │
            │00:01:47 line 107 of the kernel log                                           │
            │00:01:48 line 108 of the kernel log                                           │
            │00:01:49 line 109 of the kernel log                                           │
            │00:01:50 line 110 of the kernel log                                           │
            │00:01:51 line 111 of the kernel log                                           │
            │00:01:52 line 112 of the kernel log                                           │
            │00:01:53 line 113 of the kernel log                                           │
            │00:01:54 line 114 of the kernel log                                           │
            │00:01:55 line 115 of the kernel log                                           │
            │00:01:56 line 116 of the kernel log                                           │
            │00:01:57 line 117 of the kernel log                                           │
            │00:01:58 line 118 of the kernel log                                           │
            │00:01:59 line 119 of the kernel log                                           │
            │00:02:00 line 120 of the kernel log                                           │
            └──────────────────────────────────────────────────────────────────────────────┘
             10.5.0.2 10.5.0.3  [F1: Summary] [F2: Monitor] [F3: Network Config] [F4: Logs]
        "#]],
    );
}

#[test]
fn all_pages_on_a_large_screen() {
    let mut all = String::new();
    for page in 1..=4 {
        let mut model = model();
        model.press(KeyCode::F(page).into());
        all += &plain(&model, 200, 60);
    }
    expect_file!["large.txt"].assert_eq(&all);
}

#[test]
fn a_machine_that_does_not_answer_and_tiny_screens() {
    let mut model = model();
    model.press(KeyCode::Right.into());
    let screen = plain(&model, 80, 24);
    assert!(screen.starts_with(" 10.5.0.3  connection refused\n"), "{screen}");
    for page in 1..=4 {
        model.press(KeyCode::F(page).into());
        for (width, height) in [(0, 0), (1, 1), (5, 3), (20, 5), (80, 4)] {
            plain(&model, width, height);
        }
    }
}

#[test]
fn the_form_of_a_machine_that_waits_for_its_configuration() {
    let mut model = model();
    let stage = from_yaml_text("stage: maintenance\n").unwrap();
    let news = News::Resource("MachineStatuses.runtime.talos.dev", "machine".into(), Some(stage));
    model.apply(Update { node: 0, news });
    model.press(KeyCode::F(3).into());
    for key in [KeyCode::Char('e'), KeyCode::Char('q'), KeyCode::Down, KeyCode::Char('1')] {
        model.press(key.into());
    }
    let text = plain(&model, 80, 24);
    let form: String = text.lines().skip(2).take(10).map(|line| format!("{line}\n")).collect();
    expect![[r#"
        ┌─ Network configuration (Tab: next, Enter: save, Esc: leave) ─────────────────┐
        │HOSTNAME              q                                                       │
        │DNS SERVERS           1_                                                      │
        │TIME SERVERS                                                                  │
        │LINK                  eth0                                                    │
        │MODE (space changes)  dhcp                                                    │
        │ADDRESSES (static)                                                            │
        │GATEWAY (static)                                                              │
        │                                                                              │
        └──────────────────────────────────────────────────────────────────────────────┘
    "#]]
    .assert_eq(&form);
    model.press(KeyCode::Esc.into());
    assert!(model.form.is_none());
}

#[test]
fn no_text_of_a_machine_commands_the_terminal() {
    let mut model = model();
    let news = News::Line(String::new(), "a\x1b[2J\x07b\tc語".into());
    model.apply(Update { node: 0, news });
    model.press(KeyCode::F(4).into());
    let screen = plain(&model, 80, 24);
    assert!(screen.contains("│a[2Jb c語"), "{screen}");
    assert!(!screen.chars().any(|c| c.is_control() && c != '\n'), "{screen}");
}
