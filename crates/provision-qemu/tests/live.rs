//! Live machines of QEMU: power, snapshots, and that nothing is left of them. `ICHOR_VM` names the directory with a kernel and
//! an initramfs (`scripts/vm prepare`, `scripts/vm test`); without it there is nothing to boot.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use ichor_provision::{
    ClusterRequest, Configs, MachineKind, MachineRequest, MachineStatus, Power, Provider, ProvisionError,
    Resources, Store,
};
use ichor_provision_qemu::{Qemu, hidden_main, snapshot};

/// Longest wait for a step: there may be no hardware that helps, and the host may be busy.
const STEP_MAX: Duration = Duration::from_secs(400);
const NAME: &str = "qlive";
const MACHINE: &str = "qlive-controlplane-1";
const API: (Ipv4Addr, u16) = (Ipv4Addr::new(127, 91, 0, 2), 50_000);

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let Some(code) = hidden_main(&args) {
        return code;
    }
    let Some(assets) = std::env::var_os("ICHOR_VM") else {
        println!("nothing to boot: ICHOR_VM is not set; `scripts/vm test` does it");
        return ExitCode::SUCCESS;
    };
    let dir = tempfile::tempdir().unwrap();
    let lab = Lab { qemu: Qemu::new(Store::new(dir.path())), started: Instant::now() };
    refusals(&lab);
    machines_live_and_die(&lab, Path::new(&assets));
    ExitCode::SUCCESS
}

struct Lab {
    qemu: Qemu,
    started: Instant,
}

impl Lab {
    fn told(&self, what: &str) {
        println!("{:6.1} s  {what}", self.started.elapsed().as_secs_f64());
    }

    #[track_caller]
    fn eventually(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        let deadline = Instant::now() + STEP_MAX;
        while !is_so() {
            if Instant::now() > deadline {
                let mut console = String::new();
                let _ = self.qemu.console(NAME, MACHINE).unwrap().read_to_string(&mut console);
                panic!("{what}: not within {STEP_MAX:?}; console:\n{console}");
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        self.told(what);
    }

    fn status(&self) -> MachineStatus {
        self.qemu.show(NAME).unwrap().machines[0].status
    }

    fn console(&self) -> String {
        let mut bytes = Vec::new();
        self.qemu.console(NAME, MACHINE).unwrap().read_to_end(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn create(&self, settings: &[(&str, &str)]) -> Result<(), ProvisionError> {
        let plan = self.qemu.plan(&request(settings))?;
        self.qemu.create(&plan, &Configs::new(), &mut |_| {}).map(drop)
    }
}

fn request(settings: &[(&str, &str)]) -> ClusterRequest {
    ClusterRequest {
        name: NAME.into(),
        cidrs: vec!["10.91.0.0/24".parse().unwrap()],
        mtu: 1500,
        machines: vec![MachineRequest {
            name: MACHINE.into(),
            kind: MachineKind::ControlPlane,
            kernel_args: Vec::new(),
            resources: Resources { millicores: Some(2000), memory: Some(1 << 30) },
        }],
        settings: settings
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect::<BTreeMap<_, _>>(),
        ..ClusterRequest::default()
    }
}

/// Whether the machine's API is there: it answers nonsense with an alert of TLS.
fn answers() -> bool {
    let Ok(mut stream) = TcpStream::connect(API) else { return false };
    let _ = stream.set_read_timeout(Some(Duration::from_secs(5)));
    let mut first = [0];
    stream.write_all(b"nonsense\r\n\r\n").is_ok()
        && stream.read(&mut first).is_ok_and(|length| length == 1)
        && first == [0x15]
}

/// Processes of this test's cluster.
fn processes(lab: &Lab) -> usize {
    let dir = lab.qemu.layout(NAME).unwrap().dir().to_string_lossy().into_owned();
    let all = ichor_sys::process::list().unwrap();
    let own = std::process::id().cast_signed();
    all.iter().filter(|process| process.args.contains(&dir) && process.pid != own).count()
}

fn links() -> Vec<String> {
    let all = fs::read_dir("/sys/class/net").unwrap();
    let mut names: Vec<String> =
        all.map(|link| link.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn refusals(lab: &Lab) {
    let refused = |settings: &[(&str, &str)]| lab.create(settings).unwrap_err().to_string();
    let told = refused(&[("vmlinuz-path", "/no/kernel"), ("initrd-path", "/no/initramfs")]);
    assert!(told.contains("the kernel /no/kernel, the initramfs /no/initramfs"), "{told}");
    let told = refused(&[("with-tpm2", "true")]);
    assert_eq!(told, "--with-tpm2 is not offered yet: machines have no TPM; leave it out");
    assert!(!lab.qemu.layout(NAME).unwrap().dir().exists(), "nothing is made");
}

fn machines_live_and_die(lab: &Lab, assets: &Path) {
    let links_before = links();
    let (kernel, initrd) = (assets.join("kernel/vmlinuz"), assets.join("initramfs.cpio"));
    let settings = [
        ("vmlinuz-path", kernel.to_str().unwrap()),
        ("initrd-path", initrd.to_str().unwrap()),
        ("with-uefi", "false"),
        ("disks", "virtio:1GiB"),
        ("disk-format", "qcow2"),
    ];
    lab.create(&settings).unwrap();
    lab.told("created");
    assert_eq!(lab.status(), MachineStatus::Running);
    lab.eventually("its API answers", answers);

    // A snapshot, a power cut (nobody answers), and the reset button (it boots anew).
    snapshot::save(&lab.qemu, NAME, MACHINE, "first").unwrap();
    lab.told("a snapshot is saved");
    lab.eventually("its API answers after the snapshot", answers);
    snapshot::load(&lab.qemu, NAME, MACHINE, "first").unwrap();
    lab.eventually("its API answers from the snapshot", answers);
    let none = snapshot::load(&lab.qemu, NAME, MACHINE, "second").unwrap_err().to_string();
    assert!(none.contains("second"), "{none}");

    lab.qemu.power(NAME, Some(MACHINE), Power::Reset).unwrap();
    lab.eventually("it went down", || !answers());
    lab.eventually("its API answers after a reset", answers);
    lab.qemu.power(NAME, None, Power::Cut).unwrap();
    assert_eq!(lab.status(), MachineStatus::Stopped);
    assert!(!answers());
    lab.told("the power is cut");
    lab.qemu.power(NAME, None, Power::On).unwrap();
    lab.eventually("its API answers after a start", answers);

    // The power button: the machine ends by itself.
    lab.qemu.power(NAME, None, Power::Off).unwrap();
    lab.told("the power button was pressed");
    assert_eq!(lab.status(), MachineStatus::Stopped);
    let console = lab.console();
    assert!(console.trim_end().ends_with("ended with 0: guest-shutdown"), "it was cut: {console}");

    // A supervisor that is killed takes everything along but its directory.
    lab.qemu.power(NAME, None, Power::On).unwrap();
    let dir = lab.qemu.layout(NAME).unwrap().dir().to_owned();
    let outer = format!("__qemu supervisor {}", dir.display());
    let supervisor =
        ichor_sys::process::list().unwrap().into_iter().find(|process| process.args.ends_with(&outer));
    ichor_sys::signal::send(supervisor.unwrap().pid, 9).unwrap();
    lab.eventually("all processes are gone", || processes(lab) == 0);
    assert_eq!(lab.status(), MachineStatus::Unknown);
    lab.qemu.power(NAME, None, Power::On).unwrap();
    lab.told("a new supervisor runs");
    assert_eq!(lab.status(), MachineStatus::Running);

    lab.qemu.destroy(NAME, &mut |_| {}).unwrap();
    lab.told("destroyed");
    assert_eq!((processes(lab), dir.exists()), (0, false));
    assert_eq!(links(), links_before);
}
