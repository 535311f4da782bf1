//! Kernel parameters: what is wanted, and what is.

use std::collections::BTreeMap;
use std::io;

use ichor_config::Documents;
use ichor_cosi::{Context, Controller, ControllerError, Input, Output, exclusive, shared, strong};
use ichor_ctl::{Configuration, active_input};
use ichor_resource::runtime::{KernelParamDefaultSpec, KernelParamSpec, KernelParamStatus};
use tracing::warn;

use crate::ports::Files;

/// What every machine wants of its network.
const NETWORK: &[(&str, &str)] = &[
    ("net.ipv4.ip_forward", "1"),
    ("net.ipv4.icmp_ignore_bogus_error_responses", "1"),
    ("net.ipv4.icmp_echo_ignore_broadcasts", "1"),
    ("net.ipv4.ip_local_reserved_ports", "50000,50001"),
    ("net.ipv4.tcp_keepalive_time", "600"),
    ("net.ipv4.tcp_keepalive_intvl", "60"),
    ("net.ipv6.conf.default.forwarding", "1"),
    ("net.ipv6.conf.default.accept_ra", "2"),
];

/// What a machine with a kernel of its own wants besides: limits.
const KERNEL: &[(&str, &str)] = &[
    ("net.bridge.bridge-nf-call-iptables", "1"),
    ("net.bridge.bridge-nf-call-ip6tables", "1"),
    ("kernel.panic", "10"),
    // Kubelet insists on these and refuses to start on a kernel whose own defaults are others.
    ("kernel.panic_on_oops", "1"),
    ("kernel.keys.root_maxkeys", "1000000"),
    ("kernel.keys.root_maxbytes", "25000000"),
    ("vm.panic_on_oom", "0"),
    ("kernel.pid_max", "262144"),
    ("vm.overcommit_memory", "1"),
    ("fs.inotify.max_user_instances", "8192"),
    ("fs.aio-max-nr", "1048576"),
];

/// How such a kernel is to protect itself, as the Kernel Self Protection Project advises; a machine does not start without.
pub const KSPP: &[(&str, &str)] = &[
    ("dev.tty.ldisc_autoload", "0"),
    ("dev.tty.legacy_tiocsti", "0"),
    ("fs.protected_symlinks", "1"),
    ("fs.protected_hardlinks", "1"),
    ("fs.protected_fifos", "2"),
    ("fs.protected_regular", "2"),
    ("fs.suid_dumpable", "0"),
    ("kernel.kptr_restrict", "2"),
    ("kernel.dmesg_restrict", "1"),
    ("kernel.perf_event_paranoid", "3"),
    ("kernel.randomize_va_space", "2"),
    ("kernel.yama.ptrace_scope", "2"),
    ("kernel.unprivileged_bpf_disabled", "1"),
    ("net.core.bpf_jit_harden", "2"),
    ("user.max_user_namespaces", "0"),
    ("vm.unprivileged_userfaultfd", "0"),
];

/// Writes `KernelParamDefaultSpecs`.
#[derive(Debug)]
pub struct KernelParamDefaultsController {
    /// Whether the kernel is this machine's alone.
    pub own_kernel: bool,
}

impl Controller for KernelParamDefaultsController {
    const NAME: &'static str = "runtime.KernelParamDefaultsController";

    fn inputs(&self) -> Vec<Input> {
        Vec::new()
    }

    fn outputs(&self) -> Vec<Output> {
        vec![shared::<KernelParamDefaultSpec>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        Ok(ctx.publish(default_kernel_params(self.own_kernel))?)
    }
}

/// What every machine wants; more of it where the kernel is this machine's alone.
pub fn default_kernel_params(own_kernel: bool) -> Vec<(String, KernelParamDefaultSpec)> {
    let (kernel, protection) = if own_kernel { (KERNEL, KSPP) } else { (&[][..], &[][..]) };
    // A kernel without one of them is still a kernel to run on.
    let spec = |(key, value): &(&str, &str)| {
        let spec = KernelParamDefaultSpec { value: (*value).to_owned(), ignore_errors: true };
        (format!("proc.sys.{key}"), spec)
    };
    NETWORK.iter().chain(kernel).chain(protection).map(spec).collect()
}

/// Writes `KernelParamSpecs` from `machine.sysctls` and `machine.sysfs`.
#[derive(Debug, Default)]
pub struct KernelParamConfigController;

impl Controller for KernelParamConfigController {
    const NAME: &'static str = "runtime.KernelParamConfigController";

    fn inputs(&self) -> Vec<Input> {
        vec![active_input()]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![shared::<KernelParamSpec>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let documents = Configuration::active(ctx)?;
        Ok(ctx.publish(documents.iter().flat_map(|documents| configured_kernel_params(documents)))?)
    }
}

/// `machine.sysctls` and `machine.sysfs`.
pub fn configured_kernel_params(documents: &Documents) -> Vec<(String, KernelParamSpec)> {
    let machine = documents.root().and_then(|root| root.machine.as_deref());
    let entries = |prefix: &'static str, map: Option<&BTreeMap<String, String>>| {
        let map = map.cloned().unwrap_or_default();
        map.into_iter().map(move |(key, value)| {
            (format!("{prefix}.{key}"), KernelParamSpec { value, ignore_errors: false })
        })
    };
    let sysctls = entries("proc.sys", machine.and_then(|machine| machine.sysctls.0.as_ref()));
    let sysfs = entries("sys", machine.and_then(|machine| machine.sysfs.0.as_ref()));
    sysctls.chain(sysfs).collect()
}

/// Applies both and writes `KernelParamStatuses`.
#[derive(Debug)]
pub struct KernelParamSpecController<F> {
    files: F,
    /// What each parameter was before it was first written.
    before: BTreeMap<String, String>,
}

impl<F: Files> KernelParamSpecController<F> {
    /// A controller that writes these files.
    pub fn new(files: F) -> Self {
        Self { files, before: BTreeMap::new() }
    }

    /// Writes one parameter; the status says what came of it.
    fn apply(&mut self, id: &str, value: &str, ignore_errors: bool) -> io::Result<KernelParamStatus> {
        let Some(path) = path(id) else {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{id} names no kernel parameter"),
            ));
        };
        match self.write(id, &path, value) {
            Ok(current) => {
                let default = self.before.get(id).cloned().unwrap_or_default();
                Ok(KernelParamStatus { current, default, unsupported: false })
            }
            Err(_) if ignore_errors => {
                Ok(KernelParamStatus { unsupported: true, ..KernelParamStatus::default() })
            }
            Err(error) => Err(error),
        }
    }

    fn write(&mut self, id: &str, path: &str, value: &str) -> io::Result<String> {
        let current = self.read(path)?;
        self.before.entry(id.to_owned()).or_insert_with(|| current.clone());
        if same(&current, value) {
            return Ok(current);
        }
        self.files.write(path, value.as_bytes())?;
        self.read(path)
    }

    fn read(&self, path: &str) -> io::Result<String> {
        let contents = self.files.read(path)?;
        Ok(String::from_utf8_lossy(&contents).trim_end_matches('\n').to_owned())
    }

    /// Puts back what was there before.
    fn restore(&mut self, id: &str) {
        if let (Some(before), Some(path)) = (self.before.remove(id), path(id))
            && let Err(error) = self.files.write(&path, before.as_bytes())
        {
            warn!(id, %error, "kernel parameter not restored");
        }
    }
}

/// The kernel shows tabs where one writes spaces.
fn same(current: &str, wanted: &str) -> bool {
    current.split_whitespace().eq(wanted.split_whitespace())
}

/// The file behind a parameter. Dots and slashes change places unless the first of both is a slash.
fn path(id: &str) -> Option<String> {
    let (root, key) = match id.strip_prefix("proc.sys.") {
        Some(key) => ("/proc/sys/", key),
        None => ("/sys/", id.strip_prefix("sys.")?),
    };
    let swapped: String = match key.chars().find(|c| matches!(c, '.' | '/')) {
        Some('/') => key.to_owned(),
        _ => key
            .chars()
            .map(|c| {
                if c == '.' {
                    '/'
                } else if c == '/' {
                    '.'
                } else {
                    c
                }
            })
            .collect(),
    };
    // Nothing outside of the two trees is a kernel parameter.
    let inside = swapped.split('/').all(|part| !part.is_empty() && part != "." && part != "..");
    inside.then(|| format!("{root}{swapped}"))
}

impl<F: Files> Controller for KernelParamSpecController<F> {
    const NAME: &'static str = "runtime.KernelParamSpecController";

    fn inputs(&self) -> Vec<Input> {
        vec![strong::<KernelParamDefaultSpec>(), strong::<KernelParamSpec>()]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<KernelParamStatus>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let mut wanted: BTreeMap<String, (String, bool)> = BTreeMap::new();
        for default in ctx.list::<KernelParamDefaultSpec>()?.iter().filter(|found| found.meta().is_running())
        {
            wanted.insert(default.id().to_string(), (default.value.clone(), default.ignore_errors));
        }
        for spec in ctx.list::<KernelParamSpec>()?.iter().filter(|found| found.meta().is_running()) {
            wanted.insert(spec.id().to_string(), (spec.value.clone(), spec.ignore_errors));
        }
        let gone: Vec<_> = self.before.keys().filter(|id| !wanted.contains_key(*id)).cloned().collect();
        gone.iter().for_each(|id| self.restore(id));

        let mut statuses = Vec::new();
        let mut failed = None;
        for (id, (value, ignore_errors)) in wanted {
            match self.apply(&id, &value, ignore_errors) {
                Ok(status) => statuses.push((id, status)),
                // One bad parameter must not keep the others from being set.
                Err(error) => {
                    failed.get_or_insert_with(|| {
                        ControllerError::new(format!("set kernel parameter {id}: {error}"))
                    });
                }
            }
        }
        ctx.publish(statuses)?;
        failed.map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dots_and_slashes_change_places() {
        for (id, want) in [
            ("proc.sys.net.ipv4.ip_forward", Some("/proc/sys/net/ipv4/ip_forward")),
            ("proc.sys.net.ipv4.conf.eth0/1.forwarding", Some("/proc/sys/net/ipv4/conf/eth0.1/forwarding")),
            ("proc.sys.net/ipv4/conf/eth0.1/forwarding", Some("/proc/sys/net/ipv4/conf/eth0.1/forwarding")),
            ("sys.block.sda.queue.scheduler", Some("/sys/block/sda/queue/scheduler")),
            ("proc.sys.../../etc/passwd", None),
            ("proc.sys.net//x", None),
            ("proc.sys.a/../../etc/shadow", None),
            ("etc.passwd", None),
        ] {
            assert_eq!(path(id).as_deref(), want, "{id}");
        }
    }
}
