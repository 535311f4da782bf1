//! What runs as PID 1 of a test's machine: answers questions on port 50000 and ends as asked.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use ichor_net::{Netlink, link};
use ichor_sys::power::{self, RebootCommand};
use ichor_sys::signal::Signals;

pub(crate) fn main() -> ExitCode {
    let signals = Signals::collect(&[15]).unwrap();
    let boots = count("/system/state/boots").max(count("/var/boots"));
    eprintln!("boot {boots}");
    std::thread::spawn(move || {
        loop {
            let _ = ichor_sys::poll::readable(&signals, Duration::from_secs(60));
            if signals.try_next().is_some() {
                eprintln!("asked to stop");
                power::reboot(RebootCommand::PowerOff).unwrap();
            }
        }
    });
    let cmdline = ichor_sys::host::command_line().unwrap();
    let ip = cmdline.split(' ').find_map(|arg| arg.strip_prefix("ip=")).unwrap();
    let address = ip.split(':').next().unwrap().to_owned();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let netlink = Netlink::open().unwrap();
        link::set_up(&netlink, "lo", true).await.unwrap();
        link::set_up(&netlink, "eth0", true).await.unwrap();
        link::add_address(&netlink, "eth0", format!("{address}/24").parse().unwrap()).await.unwrap();
    });
    let listener = TcpListener::bind("0.0.0.0:50000").unwrap();
    for stream in listener.incoming().flatten() {
        let mut line = String::new();
        let _ = BufReader::new(&stream).read_line(&mut line);
        answer(stream, line.trim(), boots, &address, &cmdline);
    }
    ExitCode::FAILURE
}

fn answer(mut stream: TcpStream, question: &str, boots: u32, address: &str, cmdline: &str) {
    let text = match question.split_once(' ').unwrap_or((question, "")) {
        ("report", _) => format!(
            "boots={boots}\naddress={address}\ncmdline={cmdline}\nboot_id={}\nconfig={}\n",
            ichor_sys::host::boot_id().unwrap_or_default(),
            fs::read_to_string("/run/platform/config.yaml").unwrap_or_default(),
        ),
        ("call", other) => {
            let mut text = String::new();
            let mut peer = TcpStream::connect((other, 50_000)).unwrap();
            writeln!(peer, "hello").unwrap();
            peer.read_to_string(&mut text).unwrap();
            text
        }
        ("hello", _) => format!("hello from {address}\n"),
        ("attack", _) => attack(),
        _ => "ending\n".to_owned(),
    };
    let _ = stream.write_all(text.as_bytes());
    drop(stream);
    // The answer has to get out of this machine before it ends.
    match question {
        "reboot" | "poweroff" | "exit" => std::thread::sleep(Duration::from_millis(50)),
        _ => {}
    }
    match question {
        "reboot" => power::reboot(RebootCommand::Restart).unwrap(),
        "poweroff" => power::reboot(RebootCommand::PowerOff).unwrap(),
        "exit" => std::process::exit(3),
        _ => {}
    }
}

fn count(path: &str) -> u32 {
    let boots = fs::read_to_string(path).ok().and_then(|text| text.parse().ok()).unwrap_or(0) + 1;
    fs::write(path, format!("{boots}")).unwrap();
    boots
}

/// Tries what would change the host, and says what came of it.
fn attack() -> String {
    use rustix::io::Errno;
    let word = |done: bool| if done { "done" } else { "refused" };
    let write = |path: &str, value: &str| word(fs::write(path, value).is_ok());
    let panic = fs::read_to_string("/proc/sys/kernel/panic").unwrap_or_default();
    let mut text = String::new();
    for (path, value) in [
        ("/proc/sys/kernel/panic", panic.trim()),
        ("/proc/sys/vm/swappiness", "60"),
        ("/proc/sys/kernel/panic_on_oops", "0"),
    ] {
        text.push_str(&format!("write {path}: {}\n", write(path, value)));
    }
    // What is mounted over /proc does not cover another one; the values are those it has.
    let flags = ichor_sys::mount::MountFlags::empty();
    let mounted = ichor_sys::mount::mount("proc", Path::new("/tmp"), "proc", flags, "");
    text.push_str(&format!("mount another /proc: {}\n", word(mounted.is_ok())));
    for name in ["kernel/panic", "vm/swappiness", "kernel/shmmax"] {
        let path = format!("/tmp/sys/{name}");
        let value = fs::read_to_string(&path).unwrap_or_default();
        text.push_str(&format!("write {name} there: {}\n", write(&path, value.trim())));
    }
    // Absent, or /dev/null in its place; "h" only asks for help.
    let reached = fs::write("/proc/sysrq-trigger", "h").is_ok()
        && fs::metadata("/proc/sysrq-trigger").is_ok_and(|found| {
            use std::os::unix::fs::FileTypeExt;
            !found.file_type().is_char_device()
        });
    text.push_str(&format!("write /proc/sysrq-trigger: {}\n", word(reached)));
    // Only where the devices controller can forbid it is it forbidden.
    let kmsg = match Path::new("/sys/fs/cgroup/devices").exists() {
        true => word(ichor_sys::kmsg::Writer::open().is_ok()),
        false => "refused",
    };
    text.push_str(&format!("write /dev/kmsg: {kmsg}\n"));
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    let clock = rustix::time::clock_settime(rustix::time::ClockId::Realtime, now);
    text.push_str(&format!("set the clock: {}\n", word(clock != Err(Errno::PERM))));
    let module = rustix::system::init_module(&[0; 16], c"");
    text.push_str(&format!(
        "load a module: {}\n",
        word(module != Err(Errno::PERM) && module != Err(Errno::NOSYS))
    ));
    let device = ichor_sys::loopdev::LoopDevice::attach_read_only(Path::new("/sbin/init"));
    text.push_str(&format!("make a loop device: {}\n", word(device.is_ok())));
    let forward = write("/proc/sys/net/ipv4/ip_forward", "1");
    text.push_str(&format!("write /proc/sys/net/ipv4/ip_forward: {forward}\n"));
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let at_root = groups.lines().filter(|line| !line.starts_with("0::")).all(|line| line.ends_with(":/"));
    text.push_str(&format!("own cgroups: {}\n", if at_root { "all at the root" } else { &groups }));
    let processes = ichor_sys::process::list().map_or(0, |all| all.len());
    text.push_str(&format!("processes seen: {processes}\n"));
    let named = ichor_sys::host::set_hostname("changed").is_ok();
    text.push_str(if named { "host name changed\n" } else { "host name refused\n" });
    text
}
