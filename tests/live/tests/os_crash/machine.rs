//! A machine in QEMU that is watched on its serial line until a kernel was started.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ichor_crash::Kind;
use ichor_crash::life::cmdline;
use ichor_live::root;

use crate::image::{Image, firmware};
use crate::parts::hello;

const PAUSE: Duration = Duration::from_millis(100);
/// systemd-boot shows its menu and counts.
const MENU: &str = "Boot in ";
/// Systems of the model have lower numbers.
const SYSTEMS: u32 = 100;

/// How far a machine has to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Until {
    /// The kernel tells its command line.
    Kernel,
    /// The first program of the initramfs runs.
    Program,
}

/// QEMU, which ends with this.
struct Qemu(Child);

impl Drop for Qemu {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The one that `scripts/vm prepare` fetched, or the machine's own.
fn program() -> std::path::PathBuf {
    let fetched = root().join("build/vm/bin/qemu-system-x86_64");
    if fetched.exists() { fetched } else { "qemu-system-x86_64".into() }
}

/// Starts a machine with a disk through firmware and boot loader; gives the number of the system whose kernel was started
/// with its own command line, and whose first program runs.
pub(crate) fn start(kind: Kind, image: &Image, until: Until, max: Duration) -> Result<u32, String> {
    let console = image.disk.with_file_name("console");
    let drive = |options: &str, path: &Path| format!("{options},format=raw,file={}", path.display());
    let mut qemu = Command::new(program());
    qemu.args(["-machine", "q35", "-accel", "tcg,thread=multi,tb-size=256"])
        .args(["-cpu", "Nehalem,+aes,+rdrand,+pclmulqdq", "-smp", "1", "-m", "512"])
        .args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-serial", "stdio"])
        .args(["-drive", &drive("if=none,id=disk,cache=unsafe", &image.disk)])
        .args(["-device", "virtio-blk-pci,drive=disk,bootindex=1"]);
    if let Some(variables) = &image.variables {
        let code = firmware("OVMF_CODE_4M.fd");
        qemu.args(["-drive", &drive("if=pflash,unit=0,readonly=on", &code)])
            .args(["-drive", &drive("if=pflash,unit=1", variables)]);
    }
    qemu.stdin(Stdio::piped()).stdout(File::create(&console).unwrap()).stderr(Stdio::inherit());
    let mut qemu = Qemu(qemu.spawn().map_err(|error| format!("start QEMU: {error}"))?);
    let mut keys = qemu.0.stdin.take();
    let began = Instant::now();
    loop {
        let text = String::from_utf8_lossy(&fs::read(&console).unwrap_or_default()).into_owned();
        let end = || {
            text.lines().rev().take(40).collect::<Vec<_>>().into_iter().rev().collect::<Vec<_>>().join("\n")
        };
        if let Some(system) = kernel(kind, &text)?
            && (until == Until::Kernel || text.contains(&hello(system)))
        {
            return Ok(system);
        }
        if text.contains(MENU)
            && let Some(mut keys) = keys.take()
        {
            // What the menu has chosen by itself, without its five seconds.
            keys.write_all(b"\r")
                .and_then(|()| keys.flush())
                .map_err(|error| format!("press a key: {error}"))?;
        }
        if let Ok(Some(status)) = qemu.0.try_wait() {
            return Err(format!("QEMU ended with {status}; the console:\n{}", end()));
        }
        if began.elapsed() > max {
            return Err(format!("nothing was started in {max:?}; the console:\n{}", end()));
        }
        std::thread::sleep(PAUSE);
    }
}

/// The system whose kernel tells its command line on the console: all of it, as the boot loader has to pass it.
fn kernel(kind: Kind, console: &str) -> Result<Option<u32>, String> {
    let lines: Vec<&str> = console.split_inclusive('\n').filter(|line| line.ends_with('\n')).collect();
    let Some((_, line)) = lines.iter().find_map(|line| line.split_once("Command line: ")) else {
        return Ok(None);
    };
    let line = line.trim_end();
    let is_by_grub = line.starts_with("BOOT_IMAGE=");
    let system = (0..SYSTEMS).find(|system| line.ends_with(&cmdline(*system)));
    match system.filter(|_| is_by_grub == (kind == Kind::Grub)) {
        Some(system) => Ok(Some(system)),
        None => Err(format!("a kernel was started with {line:?}")),
    }
}
