//! Tries, from inside a container, to change settings of the kernel, and says what came of it. The values are those
//! the settings have, so that nothing changes even where it succeeds.

use std::fs;
use std::path::Path;

/// Settings of the whole host, then those of a namespace.
const SETTINGS: [&str; 6] = [
    "kernel/panic",
    "kernel/panic_on_oops",
    "vm/overcommit_memory",
    "vm/swappiness",
    "fs/file-max",
    "net/ipv4/ip_forward",
];

fn word(done: bool) -> &'static str {
    if done { "done" } else { "refused" }
}

fn write(path: &Path) -> bool {
    fs::read(path).and_then(|value| fs::write(path, value)).is_ok()
}

fn main() {
    let fresh = Path::new("/proc-too");
    let mounted = fs::create_dir_all(fresh).is_ok()
        && rustix::mount::mount("proc", fresh, "proc", rustix::mount::MountFlags::empty(), c"").is_ok();
    println!("mount another /proc: {}", word(mounted));
    for top in [Path::new("/proc"), fresh] {
        for name in SETTINGS {
            let path = top.join("sys").join(name);
            println!("write {}: {}", path.display(), word(write(&path)));
        }
    }
    // Opening alone does nothing yet.
    let sysrq = fs::OpenOptions::new().write(true).open("/proc/sysrq-trigger").is_ok();
    println!("open /proc/sysrq-trigger: {}", word(sysrq));
    println!("write below /sys: {}", word(write(Path::new("/sys/kernel/mm/transparent_hugepage/enabled"))));
}
