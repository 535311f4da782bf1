//! One boot of one machine: its taps, its QEMU, and the end of both.
//!
//! The process has one thread and lives as long as QEMU. SIGTERM presses the machine's power button; the death of the
//! process is that of QEMU, which is a power cut. Its exit code says how the machine ended.

use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use ichor_net::{Netlink, link, tap};
use ichor_provision::{Cluster, Machine};
use ichor_provision_local::{BRIDGE, Layout, SetupError, exit_code, ipv4};
use ichor_sys::namespace;
use ichor_sys::signal::{self, Signals};
use rustix::event::{PollFd, PollFlags};

use crate::arguments::{self, DiskFile, Nic, arguments};
use crate::kind::{uuid_file, vars_file};
use crate::options::{Format, Options, Uefi};
use crate::{disk, host, qmp, start};

const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;
const SIGCHLD: i32 = 17;
/// How long a monitor that takes nothing is waited for.
const WRITE_MAX: Duration = Duration::from_secs(2);
/// How long the QEMU of the boot before may take to be gone.
const LAST_ATTEMPTS: u32 = 3000;
const LAST_PAUSE: Duration = Duration::from_millis(10);
const PID_FILE: &str = "qemu.pid";
const COMMAND: &str = "qemu-system";
const ENVIRONMENT: [&str; 2] = ["PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/"];

pub(crate) fn main(dir: &Path, machine: &str) -> ExitCode {
    match boot(&Layout::new(dir), machine) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("[qemu] machine did not start: {}", error.sentence());
            ExitCode::FAILURE
        }
    }
}

fn boot(layout: &Layout, name: &str) -> Result<ExitCode, SetupError> {
    signal::set_parent_death_signal(SIGKILL).map_err(SetupError::step("follow the supervisor"))?;
    let cluster = layout.load()?;
    let machine = cluster.machine(name)?;
    let options = Options::parse(&cluster.settings)?;
    // Before the first child, so that no signal is missed.
    let signals = Signals::collect(&[SIGTERM, SIGCHLD]).map_err(SetupError::step("collect signals"))?;
    let program = options
        .program
        .clone()
        .ok_or_else(|| SetupError::step("find QEMU")(io::ErrorKind::NotFound.into()))?;
    let place = layout.machine(name);
    wait_for_last(&place);
    let taps = connect(&cluster, machine, options.nics)?;
    let (own, other) = UnixStream::pair().map_err(SetupError::step("make a monitor"))?;
    taps.iter().try_for_each(inherit)?;
    inherit(&other)?;
    let wanted = describe(layout, &cluster, machine, &options, &taps, &other)?;
    // Left by the boot before; QEMU makes it anew.
    let _ = fs::remove_file(place.join("qmp"));
    let pid = namespace::fork(|| {
        let error = become_qemu(&program, &place, &arguments(&wanted));
        eprintln!("[qemu] machine did not start: {}", error.sentence());
        1
    })
    .map_err(SetupError::step("fork"))?;
    // Only the next boot reads it, and without it does not wait.
    let _ = fs::write(place.join(PID_FILE), pid.to_string());
    // QEMU has them now; kept here they would outlive it.
    drop((taps, other));
    let code = Monitor::new(own)?.follow(pid, &signals)?;
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}

/// Waits until the QEMU of the boot before has let go of taps and disks: killed, it takes a moment.
fn wait_for_last(place: &Path) {
    let Ok(pid) = fs::read_to_string(place.join(PID_FILE)) else { return };
    let command = format!("/proc/{}/comm", pid.trim());
    for _ in 0..LAST_ATTEMPTS {
        if !fs::read_to_string(&command).is_ok_and(|name| name.starts_with(COMMAND)) {
            return;
        }
        std::thread::sleep(LAST_PAUSE);
    }
}

/// Lets a descriptor pass to what is executed.
fn inherit(fd: &impl AsFd) -> Result<(), SetupError> {
    rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::empty())
        .map_err(|error| SetupError::step("hand a descriptor over")(error.into()))
}

/// Taps on the cluster's bridge, one for each interface.
fn connect(cluster: &Cluster, machine: &Machine, count: u8) -> Result<Vec<OwnedFd>, SetupError> {
    let netlink = Netlink::open()?;
    let [.., third, fourth] = ipv4::address(machine)?.octets();
    let runtime =
        tokio::runtime::Builder::new_current_thread().build().map_err(SetupError::step("make a runtime"))?;
    let mut taps = Vec::new();
    for number in 0..count {
        let name = format!("t{third}.{fourth}n{number}");
        taps.push(tap::open(&name).map_err(SetupError::file("make a tap with", "/dev/net/tun"))?);
        runtime.block_on(async {
            link::set_mtu(&netlink, &name, cluster.network.mtu).await?;
            link::set_master(&netlink, &name, Some(BRIDGE)).await?;
            link::set_up(&netlink, &name, true).await
        })?;
    }
    Ok(taps)
}

/// This boot, for QEMU.
fn describe(
    layout: &Layout,
    cluster: &Cluster,
    machine: &Machine,
    options: &Options,
    taps: &[OwnedFd],
    monitor: &UnixStream,
) -> Result<arguments::Machine, SetupError> {
    let (name, place) = (&machine.name, layout.machine(&machine.name));
    let number = uuid_file(layout, name);
    let uuid = fs::read_to_string(&number).map_err(SetupError::file("read", &number))?.trim().to_owned();
    let disks: Vec<DiskFile> = start::disks(options, machine.kind)
        .iter()
        .enumerate()
        .map(|(number, disk)| DiskFile {
            driver: disk.driver,
            path: start::disk_file(&place, number, options),
        })
        .collect();
    let raw = disks.first().filter(|_| options.format == Format::Raw);
    let installed = raw.is_some_and(|disk| disk::is_installed(&disk.path, options.block_size));
    let source = start::source(options, installed);
    let gateway = ipv4::gateway(cluster)?;
    let config = layout.config(name).exists().then(|| start::config_url(gateway, &uuid));
    let address = ipv4::address(machine)?;
    let (cpus, memory_mib) = start::size(machine.resources);
    Ok(arguments::Machine {
        name: name.clone(),
        arch: options.arch,
        accel: host::accel(options),
        cpus,
        memory_mib,
        iommu: options.iommu,
        rtc: options.rtc.clone(),
        console: layout.console(name),
        events: monitor.as_raw_fd(),
        nics: (0_u8..)
            .zip(taps)
            .map(|(number, tap)| Nic { hardware: ipv4::hardware(address, number), tap: tap.as_raw_fd() })
            .collect(),
        mtu: cluster.network.mtu,
        disks,
        format: options.format,
        block_size: options.block_size,
        uefi: options
            .uefi
            .as_ref()
            .filter(|_| options.uefi_wanted)
            .map(|uefi| Uefi { code: uefi.code.clone(), vars: vars_file(layout, name) }),
        command_line: start::command_line(options, &source, machine, config.as_deref()),
        source,
        uuid,
    })
}

/// In the child: QEMU, in the machine's directory. Returns only on failure.
fn become_qemu(program: &Path, place: &Path, arguments: &[String]) -> SetupError {
    if let Err(error) = signal::set_parent_death_signal(SIGKILL) {
        return SetupError::step("follow the boot process")(error);
    }
    if let Err(error) = std::env::set_current_dir(place) {
        return SetupError::file("enter", place)(error);
    }
    signal::reset();
    let own = program.to_string_lossy();
    let all: Vec<&str> = std::iter::once(&*own).chain(arguments.iter().map(String::as_str)).collect();
    SetupError::file("start", program)(namespace::exec(program, &all, &ENVIRONMENT))
}

/// Our end of a machine's monitor.
struct Monitor {
    stream: UnixStream,
    /// The beginning of a line.
    line: Vec<u8>,
    /// Why the machine went down, once it did.
    reason: Option<String>,
    open: bool,
}

impl Monitor {
    fn new(stream: UnixStream) -> Result<Self, SetupError> {
        stream
            .set_write_timeout(Some(WRITE_MAX))
            .and_then(|()| stream.set_read_timeout(Some(Duration::from_millis(1))))
            .map_err(SetupError::step("use the monitor"))?;
        let mut monitor = Self { stream, line: Vec::new(), reason: None, open: true };
        monitor.say(&qmp::hello());
        Ok(monitor)
    }

    fn say(&mut self, line: &str) {
        // A monitor that does not listen belongs to a QEMU that ends, or hangs and will be killed.
        if let Err(error) = self.stream.write_all(line.as_bytes()) {
            eprintln!("[qemu] the monitor does not listen: {error}");
        }
    }

    /// Waits for the end of QEMU, and presses the power button when asked to.
    fn follow(mut self, pid: i32, signals: &Signals) -> Result<i32, SetupError> {
        loop {
            let mut fds = vec![PollFd::new(signals, PollFlags::IN)];
            if self.open {
                fds.push(PollFd::new(&self.stream, PollFlags::IN));
            }
            ichor_sys::poll::wait(&mut fds, Some(Duration::from_secs(60)))
                .map_err(SetupError::step("wait for QEMU"))?;
            while let Some(number) = signals.try_next() {
                if number == SIGTERM {
                    self.say(&qmp::press_power());
                }
            }
            self.listen();
            while let Some((ended, status)) = signal::reap_any() {
                if ended == pid {
                    // What it said last may still be on its way to us.
                    self.listen();
                    let (code, reason) = (exit_code(status), self.reason.as_deref());
                    println!("[qemu] ended with {code}: {}", reason.unwrap_or("no reason given"));
                    return Ok(qmp::verdict(code, reason));
                }
            }
        }
    }

    /// Takes in what has been said.
    fn listen(&mut self) {
        let mut buffer = [0; 4096];
        while self.open {
            match self.stream.read(&mut buffer) {
                Ok(0) => self.open = false,
                Ok(length) => self.take(&buffer[..length]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => self.open = false,
            }
        }
    }

    fn take(&mut self, bytes: &[u8]) {
        for byte in bytes {
            match byte {
                b'\n' => {
                    self.reason = qmp::shutdown_reason(&self.line).or(self.reason.take());
                    self.line.clear();
                }
                byte if self.line.len() < qmp::LINE_MAX => self.line.push(*byte),
                _ => {}
            }
        }
    }
}
