//! What every container of a pod begins with: the usual mounts, capabilities and limits of the runtime.

use serde_json::{Value, json};

const CAPABILITIES: [&str; 14] = [
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FSETID",
    "CAP_FOWNER",
    "CAP_MKNOD",
    "CAP_NET_RAW",
    "CAP_SETGID",
    "CAP_SETUID",
    "CAP_SETFCAP",
    "CAP_SETPCAP",
    "CAP_NET_BIND_SERVICE",
    "CAP_SYS_CHROOT",
    "CAP_KILL",
    "CAP_AUDIT_WRITE",
];

/// Destination, type, source and options of a mount.
const MOUNTS: [(&str, &str, &str, &str); 7] = [
    ("/proc", "proc", "proc", "nosuid,noexec,nodev"),
    ("/dev", "tmpfs", "tmpfs", "nosuid,strictatime,mode=755,size=65536k"),
    ("/dev/pts", "devpts", "devpts", "nosuid,noexec,newinstance,ptmxmode=0666,mode=0620,gid=5"),
    ("/dev/shm", "tmpfs", "shm", "nosuid,noexec,nodev,mode=1777,size=65536k"),
    ("/dev/mqueue", "mqueue", "mqueue", "nosuid,noexec,nodev"),
    ("/sys", "sysfs", "sysfs", "nosuid,noexec,nodev,ro"),
    ("/run", "tmpfs", "tmpfs", "nosuid,strictatime,mode=755,size=65536k"),
];

const MASKED: [&str; 11] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
    "/proc/scsi",
];

const READ_ONLY: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// The specification, with overrides put over it.
pub fn with(unified: bool, overrides: Value) -> Value {
    let mounts: Vec<Value> = MOUNTS
        .into_iter()
        .map(|(destination, kind, source, options)| {
            let options: Vec<&str> = options.split(',').collect();
            json!({ "destination": destination, "type": kind, "source": source, "options": options })
        })
        .collect();
    let mut namespaces: Vec<&str> = vec!["pid", "ipc", "uts", "mount", "network"];
    if unified {
        namespaces.push("cgroup");
    }
    let namespaces: Vec<Value> = namespaces.into_iter().map(|kind| json!({ "type": kind })).collect();
    let mut spec = json!({
        "ociVersion": "1.2.1",
        "process": {
            "user": { "uid": 0, "gid": 0 },
            "cwd": "/",
            "capabilities": {
                "bounding": CAPABILITIES, "effective": CAPABILITIES, "permitted": CAPABILITIES,
            },
            "noNewPrivileges": true,
        },
        "root": { "path": "rootfs" },
        "mounts": mounts,
        "linux": {
            "resources": { "devices": [{ "allow": false, "access": "rwm" }] },
            "cgroupsPath": "/k8s.io",
            "namespaces": namespaces,
            "maskedPaths": MASKED,
            "readonlyPaths": READ_ONLY,
        },
    });
    put_over(&mut spec, overrides);
    spec
}

/// Objects merge, lists are joined, anything else is replaced.
fn put_over(value: &mut Value, later: Value) {
    match (value, later) {
        (Value::Object(held), Value::Object(more)) => {
            for (key, value) in more {
                match held.get_mut(&key) {
                    Some(known) => put_over(known, value),
                    None => drop(held.insert(key, value)),
                }
            }
        }
        (Value::Array(held), Value::Array(more)) => held.extend(more),
        (_, Value::Null) => {}
        (held, later) => *held = later,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overrides_are_put_over_the_defaults() {
        let rlimits = json!([{ "type": "RLIMIT_NOFILE", "hard": 1024, "soft": 1024 }]);
        let spec = with(true, json!({ "process": { "rlimits": rlimits, "cwd": "/x" } }));
        assert_eq!(spec["process"]["rlimits"], rlimits);
        assert_eq!(spec["process"]["cwd"], "/x");
        assert_eq!(spec["process"]["noNewPrivileges"], true);
        assert_eq!(spec["linux"]["namespaces"][5]["type"], "cgroup");
        assert_eq!(with(false, Value::Null)["linux"]["namespaces"].as_array().unwrap().len(), 5);
    }
}
