//! Attempts to break out of a daemon's confinement, made from inside of it.
//!
//! The program starts itself as init starts apid (same code, same settings), takes the daemon's own lock as apid
//! does, and then tries what an intruder would. It needs root, as every node has it.

use std::fs::File;
use std::io::{self, Read};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use ichor_sys::confine::{self, Filter};
use ichor_sys::credentials::Capabilities;
use ichor_sys::supervisor::{Event, SpawnRequest, local};

const WAIT: Duration = Duration::from_secs(20);
/// The word that makes this program the one inside.
const INSIDE: &str = "inside";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    if args.get(1).is_some_and(|arg| arg == INSIDE) {
        inside(&args[2..]);
        return ExitCode::SUCCESS;
    }
    if !rustix::process::geteuid().is_root() {
        println!("confinement: needs root, like every node");
        return ExitCode::FAILURE;
    }
    outside();
    println!("confinement: ok");
    ExitCode::SUCCESS
}

/// Starts the program inside and compares what it found with what it should have found.
fn outside() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let text = |name: &str| path(name).to_string_lossy().into_owned();
    for name in ["own", "state", "machined", "etc"] {
        std::fs::create_dir(path(name)).unwrap();
    }
    // Everything here is as open as it can be: what keeps the program inside is not the mode of files.
    for name in [".", "own", "state", "machined"] {
        std::fs::set_permissions(path(name), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    }
    std::fs::write(path("state/config.yaml"), "secret").unwrap();
    std::fs::write(path("etc/hosts"), "127.0.0.1 localhost\n").unwrap();
    let machine = open_socket(&path("machined/machine.sock"));
    let other = open_socket(&path("other.sock"));
    let program = std::env::current_exe().unwrap().to_string_lossy().into_owned();
    let client = local::start().unwrap();
    let request = SpawnRequest {
        args: ["apid", INSIDE]
            .into_iter()
            .map(str::to_owned)
            .chain([text("."), std::process::id().to_string()])
            .collect(),
        uid: 50,
        gid: 50,
        capabilities: Capabilities::NONE,
        no_new_privs: true,
        filter: Filter::Daemon,
        view: vec![
            format!("r{}:/run/machined", text("machined")),
            format!("w{}:/run/own", text("own")),
            format!("r{}:/etc/hosts", text("etc/hosts")),
            "r/does/not/exist".to_owned(),
        ],
        ..SpawnRequest::new("apid", program)
    };
    client.spawn(&request, &[]).unwrap();
    let child = match client.recv_timeout(WAIT).unwrap().expect("an answer in time") {
        Event::Spawned { child, .. } => child,
        other => panic!("not started: {other:?}"),
    };
    let mut output = String::new();
    File::from(child.output.unwrap()).read_to_string(&mut output).unwrap();
    let status = match client.recv_timeout(WAIT).unwrap().expect("an end in time") {
        Event::Exited { status, .. } => status,
        other => panic!("not ended: {other:?}"),
    };
    assert!(status.success(), "{status:?}:\n{output}");
    drop((machine, other));
    expect_test::expect![[r#"
        confined: Uid 50 50 50 50, CapPrm 0, CapEff 0, CapBnd 0, CapAmb 0, NoNewPrivs 1, Seccomp 2
        the root holds: etc, proc, run, <program>
        /proc shows other processes: no
        works: read own file, read own status, list the root, threads, loopback TCP, UDP, machine socket, own socket, memory, backtraces
        write to the root: Read-only file system
        write beside the machine socket: Read-only file system
        make a file in the own directory: refused system call
        make a directory in the own directory: refused system call
        read the secrets of STATE: No such file or directory
        read the secrets through /proc/1/root: No such file or directory
        connect to another daemon's socket: No such file or directory
        raw socket: refused system call
        packet socket: refused system call
        netlink socket: refused system call
        run a program: refused system call
        fork: refused system call
        new namespace: refused system call
        mount: refused system call
        leave the root: refused system call
        trace a neighbour: refused system call
        read a neighbour's memory: refused system call
        signal a neighbour: refused system call
        load a module: refused system call
        load BPF: refused system call
        set the clock: refused system call
        io_uring: refused system call
        become root: refused system call
        memory to write and run: refused system call
        take the filter off: refused system call
        open a descriptor of init's: No such file or directory
        open a terminal's input queue: refused system call
        raise the limit of file sizes: Operation not permitted
        told on standard error: openat2 mkdir socket execve clone unshare mount chroot ptrace process_vm_readv kill finit_module bpf clock_settime io_uring_setup setresuid mmap seccomp ioctl
        still alive
    "#]]
    .assert_eq(&shown(&output));
}

fn open_socket(path: &Path) -> UnixListener {
    let listener = UnixListener::bind(path).unwrap();
    std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    listener
}

/// What was told, gathered into one line before the last.
fn shown(output: &str) -> String {
    let is_told = |line: &&str| line.starts_with("refused system call ");
    let name = |line: &str| line.split(['(', ')']).nth(1).unwrap_or("?").to_owned();
    let told: Vec<String> = output.lines().filter(is_told).map(name).collect();
    let mut lines: Vec<String> = output.lines().filter(|line| !is_told(line)).map(str::to_owned).collect();
    lines.insert(lines.len().saturating_sub(1), format!("told on standard error: {}", told.join(" ")));
    lines.join("\n") + "\n"
}

/// Says how an attempt ended.
fn attempt<T>(what: &str, result: io::Result<T>) {
    match result {
        Ok(_) => println!("{what}: IT WORKED"),
        Err(error) => match error.raw_os_error() {
            Some(libc::EPERM) => println!("{what}: refused system call"),
            Some(libc::EROFS) => println!("{what}: Read-only file system"),
            Some(libc::ENOENT) => println!("{what}: No such file or directory"),
            _ => println!("{what}: {error}"),
        },
    }
}

fn call(number: libc::c_long, args: [usize; 4]) -> io::Result<i64> {
    // SAFETY: every call made here is refused before the kernel looks at an argument, or harmless.
    match unsafe { libc::syscall(number, args[0], args[1], args[2], args[3], 0, 0) } {
        -1 => Err(io::Error::last_os_error()),
        done => Ok(done),
    }
}

fn inside(args: &[String]) {
    let (dir, parent) = (args[0].as_str(), args[1].parse::<usize>().unwrap());
    confine::lock().expect("the lock");
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let field = |key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(":\t"));
        let words: Vec<&str> = line.unwrap_or("?").split_whitespace().collect();
        match key.starts_with("Cap") {
            true => words.join(" ").trim_start_matches('0').len().to_string(),
            false => words.join(" "),
        }
    };
    let fields = ["Uid", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp"];
    println!("confined: {}", fields.map(|key| format!("{key} {}", field(key))).join(", "));
    let top = std::env::current_exe().unwrap();
    let top = top.components().nth(1).unwrap().as_os_str().to_owned();
    let mut names: Vec<_> = std::fs::read_dir("/").unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    let names: Vec<_> = names.into_iter().filter(|name| *name != top).collect();
    println!("the root holds: {}, <program>", names.join(std::ffi::OsStr::new(", ")).to_string_lossy());
    let others = Path::new(&format!("/proc/{parent}")).exists() || Path::new("/proc/1").exists();
    println!("/proc shows other processes: {}", if others { "yes" } else { "no" });
    println!("works: {}", what_works().join(", "));

    attempt("write to the root", rename("/etc", "/x"));
    attempt("write beside the machine socket", rename("/run/machined/machine.sock", "/run/machined/x"));
    attempt("make a file in the own directory", call(libc::SYS_openat2, [0; 4]));
    attempt("make a directory in the own directory", std::fs::create_dir("/run/own/x"));
    attempt("read the secrets of STATE", File::open(format!("{dir}/state/config.yaml")));
    let through = format!("/proc/1/root{dir}/state/config.yaml");
    attempt("read the secrets through /proc/1/root", File::open(through));
    attempt("connect to another daemon's socket", UnixStream::connect(format!("{dir}/other.sock")));
    let socket = |domain: i32, kind: i32| call(libc::SYS_socket, [domain as usize, kind as usize, 0, 0]);
    attempt("raw socket", socket(libc::AF_INET, libc::SOCK_RAW));
    attempt("packet socket", socket(libc::AF_PACKET, libc::SOCK_DGRAM));
    attempt("netlink socket", socket(libc::AF_NETLINK, libc::SOCK_DGRAM));
    let program = c"/proc/self/exe";
    attempt("run a program", call(libc::SYS_execve, [program.as_ptr() as usize, 0, 0, 0]));
    attempt("fork", call(libc::SYS_clone, [libc::SIGCHLD as usize, 0, 0, 0]));
    attempt("new namespace", call(libc::SYS_unshare, [libc::CLONE_NEWUSER as usize, 0, 0, 0]));
    attempt("mount", call(libc::SYS_mount, [0; 4]));
    attempt("leave the root", call(libc::SYS_chroot, [c"..".as_ptr() as usize, 0, 0, 0]));
    attempt("trace a neighbour", call(libc::SYS_ptrace, [libc::PTRACE_ATTACH as usize, parent, 0, 0]));
    attempt("read a neighbour's memory", call(libc::SYS_process_vm_readv, [parent, 0, 0, 0]));
    attempt("signal a neighbour", call(libc::SYS_kill, [parent, 0, 0, 0]));
    attempt("load a module", call(libc::SYS_finit_module, [0; 4]));
    attempt("load BPF", call(libc::SYS_bpf, [0; 4]));
    attempt("set the clock", call(libc::SYS_clock_settime, [0; 4]));
    attempt("io_uring", call(libc::SYS_io_uring_setup, [1, 0, 0, 0]));
    attempt("become root", call(libc::SYS_setresuid, [0; 4]));
    let executable = (libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC) as usize;
    let private = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as usize;
    attempt("memory to write and run", call(libc::SYS_mmap, [0, 4096, executable, private]));
    attempt("take the filter off", call(libc::SYS_seccomp, [0; 4]));
    attempt("open a descriptor of init's", File::open("/proc/1/fd/0"));
    // TIOCSTI.
    attempt("open a terminal's input queue", call(libc::SYS_ioctl, [0, 0x5412, 0, 0]));
    let raised = rustix::process::Rlimit { current: Some(1), maximum: Some(1) };
    match rustix::process::setrlimit(rustix::process::Resource::Fsize, raised) {
        Err(error) => println!("raise the limit of file sizes: {}", name_of(error)),
        Ok(()) => println!("raise the limit of file sizes: IT WORKED"),
    }
    println!("still alive");
}

fn name_of(error: rustix::io::Errno) -> &'static str {
    match error {
        rustix::io::Errno::PERM => "Operation not permitted",
        _ => "another error",
    }
}

fn rename(from: &str, to: &str) -> io::Result<()> {
    std::fs::rename(from, to)
}

/// What the daemon is there for.
#[inline(never)] // its name is looked for in the trace
fn what_works() -> Vec<&'static str> {
    let mut works = Vec::new();
    let mut check = |what: &'static str, done: io::Result<()>| match done {
        Ok(()) => works.push(what),
        Err(error) => println!("{what} does not work: {error}"),
    };
    check("read own file", std::fs::read_to_string("/etc/hosts").map(drop));
    check("read own status", std::fs::read_to_string("/proc/self/smaps").map(drop));
    check("list the root", std::fs::read_dir("/").map(drop));
    let thread = || std::thread::spawn(|| 7).join().map_err(|_| io::Error::other("a thread died"));
    check("threads", thread().map(drop));
    check("loopback TCP", tcp());
    check("UDP", UdpSocket::bind("127.0.0.1:0").map(drop));
    check("machine socket", UnixStream::connect("/run/machined/machine.sock").map(drop));
    check("own socket", own_socket());
    let large = vec![1_u8; 64 << 20];
    check("memory", if large.iter().all(|byte| *byte == 1) { Ok(()) } else { Err(io::Error::other("?")) });
    let trace = std::backtrace::Backtrace::force_capture().to_string();
    check("backtraces", if trace.contains("what_works") { Ok(()) } else { Err(io::Error::other(trace)) });
    works
}

fn tcp() -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let client = TcpStream::connect(listener.local_addr()?)?;
    client.set_nodelay(true)?;
    client.set_nonblocking(true)?;
    drop(listener.accept()?);
    Ok(())
}

/// As `unix::bind` of the gateway does it.
fn own_socket() -> io::Result<()> {
    let listener = UnixListener::bind("/run/own/a.new")?;
    std::fs::set_permissions("/run/own/a.new", std::os::unix::fs::PermissionsExt::from_mode(0o770))?;
    std::fs::rename("/run/own/a.new", "/run/own/a.sock")?;
    drop(UnixStream::connect("/run/own/a.sock")?);
    drop(listener.accept()?);
    std::fs::remove_file("/run/own/a.sock")
}
