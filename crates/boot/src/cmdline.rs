//! The kernel command line of an installed system: what it is made of, and how extra arguments change it.

use ichor_types::Cmdline;

/// Keys of which an extra argument replaces what is there.
const REPLACED: &[&str] = &["console", "talos.platform"];

/// On every machine, in this order.
const DEFAULTS: &[&str] = &[
    "init_on_alloc=1",
    "slab_nomerge",
    "pti=on",
    "consoleblank=0",
    "nvme_core.io_timeout=4294967295",
    "printk.devkmsg=on",
    "selinux=1",
    "module.sig_enforce=1",
];

/// A kernel that panics or stops scheduling before anybody could set this reboots, and so ends a trial. Soft lockups count
/// after twice the threshold, a minute.
const RECOVERY: &[&str] = &["panic=10", "softlockup_panic=1", "watchdog_thresh=30"];

/// What an upgrade keeps of the running command line.
const PASSED_ON: &[&str] = &[
    "siderolink.api",
    "talos.events.sink",
    "talos.logging.kernel",
    "em.events_url",
    "talos.auditd.disabled",
    "talos.dashboard.disabled",
    "net.ifnames",
    "module.sig_enforce",
];

/// What a command line is made for.
#[derive(Debug, Clone, Default)]
pub struct Composition<'a> {
    /// `metal`, `nocloud` and so on.
    pub platform: &'a str,
    /// `amd64` or `arm64`.
    pub architecture: &'a str,
    /// Whether it is for installation media, which must not install over what is there.
    pub is_iso: bool,
    /// Arguments of a board.
    pub overlay: &'a [String],
    /// Whether the firmware checks signatures.
    pub is_secure_boot: bool,
    /// META for media without a META partition, as `INSTALLER_META_BASE64=…`.
    pub environment: Option<&'a str>,
    /// Whether a kernel that hangs or panics reboots by itself.
    pub recovers: bool,
    /// What a person wants besides.
    pub extra: &'a [String],
}

impl Composition<'_> {
    /// The command line.
    pub fn compose(&self) -> Cmdline {
        let mut cmdline = Cmdline::default();
        cmdline.append("talos.platform", self.platform);
        append_all(&mut cmdline, platform_arguments(self.platform, self.architecture));
        if self.is_iso {
            cmdline.append("talos.halt_if_installed", "1");
        }
        append_all(&mut cmdline, self.overlay);
        append_all(&mut cmdline, DEFAULTS);
        if self.recovers {
            append_all(&mut cmdline, RECOVERY);
        }
        if self.is_secure_boot {
            cmdline.append("lockdown", "confidentiality");
        }
        if let Some(environment) = self.environment {
            cmdline.append("talos.environment", environment);
        }
        merge(&mut cmdline, self.extra);
        cmdline
    }
}

/// Changes a command line: `-key` and `-key=value` remove, `console` and `talos.platform` replace, all else is added.
pub fn merge<T: AsRef<str>>(cmdline: &mut Cmdline, extra: &[T]) {
    // Two consoles in the extra arguments are both meant; only what was there before them goes.
    let mut replaced: Vec<&str> = Vec::new();
    for argument in extra {
        let argument = argument.as_ref();
        match argument.strip_prefix('-').filter(|rest| !rest.is_empty()) {
            Some(rest) => match rest.split_once('=') {
                Some((key, value)) => cmdline.remove_value(key, value),
                None => cmdline.remove(rest),
            },
            None => {
                let (key, value) = argument.split_once('=').unwrap_or((argument, ""));
                if REPLACED.contains(&key) && !replaced.contains(&key) {
                    cmdline.replace(key, value);
                    replaced.push(key);
                } else {
                    cmdline.append(key, value);
                }
            }
        }
    }
}

/// The command line of an installed system, from that of a kernel image: without what is only for media, and with what ends
/// a trial that hangs.
pub fn for_disk(image: &Cmdline) -> Cmdline {
    const MEDIA_META: &str = "INSTALLER_META_BASE64=";
    let mut cmdline = image.clone();
    cmdline.remove("talos.halt_if_installed");
    for value in image.all("talos.environment").iter().filter(|value| value.starts_with(MEDIA_META)) {
        cmdline.remove_value("talos.environment", value);
    }
    for argument in RECOVERY {
        let (key, value) = argument.split_once('=').unwrap_or((argument, ""));
        if cmdline.all(key).is_empty() {
            cmdline.append(key, value);
        }
    }
    cmdline
}

/// What an upgrade passes on of the running command line, as extra arguments in front of those of the configuration.
pub fn passed_on(running: &Cmdline, extra: &[String]) -> Vec<String> {
    let mut kept: Vec<String> = PASSED_ON
        .iter()
        .flat_map(|key| running.all(key).iter().map(move |value| argument(key, value)))
        .collect();
    let is_metal = running.first("talos.platform") == Some("metal");
    let is_serial = |value: &String| value == "ttyS0" || value.starts_with("ttyS0,");
    let in_extra = extra.iter().any(|argument| argument.starts_with("console=ttyS0"));
    if is_metal && running.all("console").iter().any(is_serial) && !in_extra {
        kept.push("console=ttyS0".into());
    }
    kept
}

fn argument(key: &str, value: &str) -> String {
    if value.is_empty() { key.to_owned() } else { format!("{key}={value}") }
}

fn append_all<T: AsRef<str>>(cmdline: &mut Cmdline, arguments: &[T]) {
    for argument in arguments {
        let argument = argument.as_ref();
        let (key, value) = argument.split_once('=').unwrap_or((argument, ""));
        cmdline.append(key, value);
    }
}

/// What a platform needs, consoles above all.
fn platform_arguments(platform: &str, architecture: &str) -> &'static [&'static str] {
    let is_arm = architecture == "arm64";
    match platform {
        "metal" if is_arm => &["console=ttyAMA0", "console=tty0"],
        "metal" => &["console=tty0"],
        "aws" | "cloudstack" | "exoscale" | "hcloud" | "nocloud" | "opennebula" | "openstack" => {
            &["console=tty1", "console=ttyS0", "net.ifnames=0"]
        }
        "oracle" | "scaleway" => {
            &["console=tty1", "console=ttyS0", "net.ifnames=0", "talos.dashboard.disabled=1"]
        }
        "akamai" | "digital-ocean" => &["console=ttyS0", "console=tty0", "console=tty1", "net.ifnames=0"],
        "gcp" => &[
            "console=ttyS0",
            "net.ifnames=0",
            "talos.dashboard.disabled=1",
            "sysctl.kernel.kexec_load_disabled=1",
        ],
        "azure" => &[
            "console=ttyS0,115200n8",
            "earlyprintk=ttyS0,115200",
            "rootdelay=300",
            "net.ifnames=0",
            "talos.dashboard.disabled=1",
            "sysctl.kernel.kexec_load_disabled=1",
        ],
        "vmware" if is_arm => &["talos.config=guestinfo", "console=tty0", "console=ttyAMA0", "net.ifnames=0"],
        "vmware" => &[
            "talos.config=guestinfo",
            "console=tty0",
            "console=ttyS0",
            "earlyprintk=ttyS0,115200",
            "net.ifnames=0",
        ],
        "upcloud" | "vultr" => &["net.ifnames=0"],
        "equinixMetal" if is_arm => &["console=ttyAMA0,115200"],
        "equinixMetal" => &["console=ttyS1,115200n8"],
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metal() -> Composition<'static> {
        Composition { platform: "metal", architecture: "amd64", ..Composition::default() }
    }

    fn strings(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn the_command_line_of_a_metal_machine_is_that_of_the_original() {
        assert_eq!(
            metal().compose().to_string(),
            "talos.platform=metal console=tty0 init_on_alloc=1 slab_nomerge pti=on consoleblank=0 \
             nvme_core.io_timeout=4294967295 printk.devkmsg=on selinux=1 module.sig_enforce=1"
        );
        let iso = Composition { is_iso: true, is_secure_boot: true, recovers: true, ..metal() };
        let text = iso.compose().to_string();
        assert!(text.contains("console=tty0 talos.halt_if_installed=1 init_on_alloc=1"), "{text}");
        assert!(
            text.ends_with(
                "module.sig_enforce=1 panic=10 softlockup_panic=1 watchdog_thresh=30 lockdown=confidentiality"
            ),
            "{text}"
        );
    }

    #[test]
    fn what_is_for_media_does_not_get_to_the_disk() {
        let media = Cmdline::parse(
            "talos.platform=metal console=ttyS0 talos.halt_if_installed=1 panic=0 talos.environment=INSTALLER_META_BASE64=eA== \
             talos.environment=A=b",
        );
        assert_eq!(
            for_disk(&media).to_string(),
            "talos.platform=metal console=ttyS0 panic=0 talos.environment=A=b softlockup_panic=1 watchdog_thresh=30"
        );
        assert_eq!(for_disk(&for_disk(&media)), for_disk(&media));
    }

    #[test]
    fn extra_arguments_remove_replace_and_add() {
        for (base, extra, expected) in [
            ("a=1 b c=2", &["-b", "-a=1"][..], "c=2"),
            ("a=1 a=2", &["-a=1"], "a=2"),
            ("a=1", &["-a=2", "-none", "a=3"], "a=1 a=3"),
            ("console=tty0 x", &["console=ttyS0", "console=tty1"], "console=ttyS0 console=tty1 x"),
            ("talos.platform=metal", &["talos.platform=aws"], "talos.platform=aws"),
            ("a", &["-"], "a -"),
            ("a=1", &["b=c=d"], "a=1 b=c=d"),
        ] {
            let mut cmdline = Cmdline::parse(base);
            merge(&mut cmdline, extra);
            assert_eq!(cmdline.to_string(), expected, "{base} with {extra:?}");
        }
    }

    #[test]
    fn an_upgrade_keeps_what_the_machine_was_reached_by() {
        let running = Cmdline::parse(
            "talos.platform=metal console=tty0 console=ttyS0,115200 siderolink.api=grpc://x net.ifnames=0 quiet",
        );
        assert_eq!(passed_on(&running, &[]), ["siderolink.api=grpc://x", "net.ifnames=0", "console=ttyS0"]);
        assert!(
            !passed_on(&running, &strings(&["console=ttyS0,9600"])).contains(&"console=ttyS0".to_owned())
        );
    }
}
