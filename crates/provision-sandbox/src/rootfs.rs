//! The view of a machine's first process: its root, its devices, and what it must not touch of the host.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use ichor_provision::{Cluster, Machine, ProvisionError};
use ichor_provision_local::{Layout, SetupError, ipv4};
use ichor_sys::device;
use ichor_sys::mount::{self, MountFlags, Propagation};

use crate::cgroups::Hierarchies;
use crate::layout::Paths as _;
use crate::runc;

/// Values the kubelet insists on, which are the host's to set: the machine sees these instead.
const TUNABLES: [(&str, &str); 6] = [
    ("kernel/keys/root_maxbytes", "25000000"),
    ("kernel/keys/root_maxkeys", "1000000"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("vm/overcommit_memory", "1"),
    ("vm/panic_on_oom", "0"),
];
/// Parts of `/proc` that are the whole host's: to be read only.
const READ_ONLY: [&str; 5] = ["acpi", "bus", "fs", "irq", "asound"];
/// Files of `/proc` that would act on, or show too much of, the host.
const HIDDEN: [&str; 4] = ["kcore", "sysrq-trigger", "timer_list", "sched_debug"];
/// Directories of `/sys` where init would mount the host's only instance of a filesystem.
const EMPTY: [&str; 5] = ["fs/bpf", "kernel/config", "kernel/debug", "kernel/security", "kernel/tracing"];

const NOSUID: MountFlags = MountFlags::NOSUID;
const NOEXEC: MountFlags = MountFlags::NOEXEC;
const NODEV: MountFlags = MountFlags::NODEV;
const RDONLY: MountFlags = MountFlags::RDONLY;

/// Where a machine finds the configuration its platform offers.
const CONFIG: &str = "/run/platform/config.yaml";

/// The kernel command line of a machine, with or without a configuration on the platform's side.
pub(crate) fn command_line(
    cluster: &Cluster,
    machine: &Machine,
    configured: bool,
) -> Result<String, ProvisionError> {
    let mut line = format!(
        "console=ttyS0 talos.platform=sandbox ip={}::{}:{}:{}:eth0:none",
        ipv4::address(machine)?,
        ipv4::gateway(cluster)?,
        ipv4::network(cluster)?.netmask(),
        machine.name
    );
    if configured {
        line.push_str(" talos.config=file://");
        line.push_str(CONFIG);
    }
    for arg in &machine.kernel_args {
        line.push(' ');
        line.push_str(arg);
    }
    line.push('\n');
    Ok(line)
}

/// Builds the machine's root in a new mount namespace and moves into it. The caller is PID 1 of the machine.
pub(crate) fn enter(layout: &Layout, cluster: &Cluster, machine: &Machine) -> Result<(), SetupError> {
    let hierarchies = Hierarchies::of_host()?;
    let root = layout.root(&machine.name);
    let files = layout.files(&machine.name);
    for dir in [&root, &files] {
        fs::create_dir_all(dir).map_err(SetupError::file("make", dir))?;
    }
    mount::set_propagation(Path::new("/"), Propagation::Private)?;
    mount::bind(&layout.image(), &root, false)?;
    let builder = Builder { root, files };
    let configured = layout.config(&machine.name).exists();
    builder.proc(&command_line(cluster, machine, configured)?)?;
    builder.sys(&hierarchies)?;
    builder.dev()?;
    builder.storage(layout, machine)?;
    mount::enter_root(&builder.root)?;
    // Mounts made by one service are seen by the others; they stay inside this machine.
    mount::set_propagation(Path::new("/"), Propagation::Shared)?;
    Ok(())
}

struct Builder {
    root: PathBuf,
    files: PathBuf,
}

impl Builder {
    fn at(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    /// Writes a file of our own and shows it, read-only, at `target` if that exists.
    fn show(&self, name: &str, content: &str, target: &Path) -> Result<(), SetupError> {
        let file = self.files.join(name);
        fs::write(&file, content).map_err(SetupError::file("write", &file))?;
        if target.exists() {
            mount::bind_read_only(&file, target)?;
        }
        Ok(())
    }

    fn proc(&self, command_line: &str) -> Result<(), SetupError> {
        let proc = self.at("proc");
        mount::mount("proc", &proc, "proc", NOSUID | NOEXEC | NODEV, "")?;
        // A second instance, to bind the one writable part from.
        let second = self.files.join("proc");
        make(&second)?;
        mount::mount("proc", &second, "proc", NOSUID | NOEXEC | NODEV, "")?;
        let flags = RDONLY | NOSUID | NOEXEC | NODEV;
        let read_only = |path: &Path| -> Result<(), SetupError> {
            mount::bind(path, path, false)?;
            Ok(mount::remount_bind(path, flags)?)
        };
        read_only(&proc.join("sys"))?;
        // Network settings belong to the machine's own namespace.
        mount::bind(&second.join("sys/net"), &proc.join("sys/net"), false)?;
        mount::detach(&second)?;
        for part in READ_ONLY.iter().map(|part| proc.join(part)).filter(|part| part.exists()) {
            read_only(&part)?;
        }
        for file in HIDDEN.iter().map(|file| proc.join(file)).filter(|file| file.exists()) {
            mount::bind(Path::new("/dev/null"), &file, false)?;
        }
        for (name, value) in TUNABLES {
            self.show(&name.replace('/', "."), &format!("{value}\n"), &proc.join("sys").join(name))?;
        }
        // A new id each boot: clients tell a reboot by it.
        let boot_id = random_uuid()?;
        self.show("boot_id", &format!("{boot_id}\n"), &proc.join("sys/kernel/random/boot_id"))?;
        self.show("cmdline", command_line, &proc.join("cmdline"))
    }

    fn sys(&self, hierarchies: &Hierarchies) -> Result<(), SetupError> {
        let sys = self.at("sys");
        mount::mount("sysfs", &sys, "sysfs", NOSUID | NOEXEC | NODEV | RDONLY, "")?;
        for dir in EMPTY.iter().map(|dir| sys.join(dir)).filter(|dir| dir.is_dir()) {
            mount::mount("none", &dir, "tmpfs", NOSUID | NOEXEC | NODEV | RDONLY, "size=4k,mode=0755")?;
        }
        hierarchies.mount(&sys.join("fs/cgroup"))
    }

    fn dev(&self) -> Result<(), SetupError> {
        let dev = self.at("dev");
        mount::mount("dev", &dev, "tmpfs", NOSUID | NOEXEC, "mode=0755,size=1M")?;
        for dir in ["net", "pts", "shm"] {
            make(&dev.join(dir))?;
        }
        for (name, major, minor, mode) in device::ESSENTIAL {
            let path = dev.join(name);
            device::make_char(&path, major, minor, mode).map_err(SetupError::file("make device", &path))?;
        }
        let options = "newinstance,ptmxmode=0666,mode=620,gid=5";
        mount::mount("devpts", &dev.join("pts"), "devpts", NOSUID | NOEXEC, options)?;
        mount::mount("shm", &dev.join("shm"), "tmpfs", NOSUID | NOEXEC | NODEV, "mode=1777")?;
        for (name, target) in [
            ("fd", "/proc/self/fd"),
            ("ptmx", "pts/ptmx"),
            ("stdin", "/proc/self/fd/0"),
            ("stdout", "/proc/self/fd/1"),
            ("stderr", "/proc/self/fd/2"),
            // What PID 1 writes to its console goes to the console's log.
            ("console", "/proc/1/fd/2"),
        ] {
            let path = dev.join(name);
            symlink(target, &path).map_err(SetupError::file("link", &path))?;
        }
        Ok(())
    }

    /// Shows this program in the place of runc, and runc where this program looks for it.
    fn guard_containers(&self, system: &Path) -> Result<(), SetupError> {
        let runc = self.at("usr/bin").join(runc::NAME);
        if !runc.exists() {
            return Ok(());
        }
        // The whole directory: runc makes an overlay of the one it lies in, and that shows no file bound there.
        let real = system.join(runc::REAL_DIR);
        make(&real)?;
        mount::bind(&self.at("usr/bin"), &real, false)?;
        let own = ichor_provision_local::own_program().map_err(SetupError::step("find this program"))?;
        Ok(mount::bind_read_only(&own, &runc)?)
    }

    fn storage(&self, layout: &Layout, machine: &Machine) -> Result<(), SetupError> {
        let run = self.at("run");
        mount::mount("run", &run, "tmpfs", NOSUID | NOEXEC, "mode=0755")?;
        let config = layout.config(&machine.name);
        if config.exists() {
            make(&run.join("platform"))?;
            let target = self.at(CONFIG.trim_start_matches('/'));
            fs::copy(&config, &target).map_err(SetupError::file("write", &target))?;
        }
        let system = self.at("system");
        mount::mount("system", &system, "tmpfs", MountFlags::empty(), "mode=0755")?;
        let state = system.join("state");
        make(&state)?;
        mount::bind(&layout.state(&machine.name), &state, false)?;
        let images = layout.image_cache(&machine.name);
        if images.is_dir() {
            let place = system.join("imagecache/disk");
            make(&place)?;
            mount::bind_read_only(&images, &place)?;
        }
        self.guard_containers(&system)?;
        mount::bind(&layout.var(&machine.name), &self.at("var"), false)?;
        Ok(())
    }
}

fn make(dir: &Path) -> Result<(), SetupError> {
    fs::create_dir_all(dir).map_err(SetupError::file("make", dir))
}

fn random_uuid() -> Result<String, SetupError> {
    let path = "/proc/sys/kernel/random/uuid";
    let text = fs::read_to_string(path).map_err(SetupError::file("read", path))?;
    Ok(text.trim().to_owned())
}

/// Makes what outlives the boots of a machine.
pub(crate) fn make_persistent(layout: &Layout, machine: &str) -> Result<(), SetupError> {
    use std::os::unix::fs::PermissionsExt;
    for (dir, mode) in [(layout.state(machine), 0o700), (layout.var(machine), 0o755)] {
        make(&dir)?;
        fs::set_permissions(&dir, fs::Permissions::from_mode(mode))
            .map_err(SetupError::file("set the mode of", &dir))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use ichor_provision::{ClusterRequest, MachineKind, MachineRequest};

    use super::*;

    #[test]
    fn the_command_line_says_where_the_machine_is() {
        let request = ClusterRequest {
            name: "test".to_owned(),
            mtu: 1500,
            machines: vec![MachineRequest {
                name: "test-controlplane-1".to_owned(),
                kind: MachineKind::ControlPlane,
                kernel_args: vec!["talos.debug=1".to_owned()],
                resources: Default::default(),
            }],
            ..ClusterRequest::default()
        };
        let cidr = "10.5.0.0/24".parse().unwrap();
        let cluster = Cluster::plan("sandbox", &request, cidr, "/image").unwrap();
        expect_test::expect![[r"
            console=ttyS0 talos.platform=sandbox ip=10.5.0.2::10.5.0.1:255.255.255.0:test-controlplane-1:eth0:none talos.debug=1
        "]]
        .assert_eq(&command_line(&cluster, &cluster.machines[0], false).unwrap());
        let configured = command_line(&cluster, &cluster.machines[0], true).unwrap();
        assert!(configured.contains(" talos.config=file:///run/platform/config.yaml "), "{configured}");
    }
}
