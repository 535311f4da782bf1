//! The filters as programs for the kernel, put together at compile time: they are installed between fork and exec.

use super::calls::{
    ALLOWED, ALLOWED_OLD, ALLOWED_SEALED, ALLOWED_SEALED_OLD, Call, REFUSED, REFUSED_MANAGER,
};

#[cfg(target_arch = "x86_64")]
const ARCH: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCH: u32 = 0xc000_00b7;

const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const AT_LEAST: u32 = libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K;
const ANY_BIT: u32 = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;
const AND: u32 = libc::BPF_ALU | libc::BPF_AND | libc::BPF_K;
const RETURN: u32 = libc::BPF_RET | libc::BPF_K;

const EPERM: u32 = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
const ENOSYS: u32 = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;
/// Told by the handler of SIGSYS, which then answers EPERM.
const TOLD: u32 = libc::SECCOMP_RET_TRAP | libc::EPERM as u32;

/// Offsets in `struct seccomp_data`; of arguments the low half, on the machines we know.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const fn argument(index: u32) -> u32 {
    16 + 8 * index
}

/// Every flag of `clone` that makes a namespace, and the one that makes a thread.
const CLONE_NEW: u32 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET) as u32;
const CLONE_THREAD: u32 = libc::CLONE_THREAD as u32;

/// Writing in any way: a daemon opens files to read them.
const OPEN_TO_WRITE: u32 = (libc::O_WRONLY
    | libc::O_RDWR
    | libc::O_CREAT
    | libc::O_TRUNC
    | libc::O_APPEND
    | (libc::O_TMPFILE & !libc::O_DIRECTORY)) as u32;

/// The request numbers of `ioctl` that sockets and pipes need: FIONBIO, FIONREAD, FIOCLEX, TCGETS. TIOCGWINSZ is for the
/// dashboard, which asks how large its terminal is; it changes nothing.
const IOCTLS: [u32; 5] = [0x5421, 0x541b, 0x5451, 0x5401, 0x5413];

/// PR_SET_NAME, PR_GET_NAME, PR_SET_VMA.
const PRCTLS: [u32; 3] = [15, 16, 0x5356_4d41];

/// Room for the longest program; jumps reach no further.
const LEN_MAX: usize = 255;

/// A program being written.
struct Program {
    code: [libc::sock_filter; LEN_MAX],
    len: usize,
}

const NOTHING: libc::sock_filter = libc::sock_filter { code: 0, jt: 0, jf: 0, k: 0 };

impl Program {
    const fn new() -> Self {
        Self { code: [NOTHING; LEN_MAX], len: 0 }
    }

    const fn push(&mut self, code: u32, jt: usize, jf: usize, k: u32) {
        assert!(jt <= 255 && jf <= 255, "a jump too far");
        self.code[self.len] = libc::sock_filter { code: code as u16, jt: jt as u8, jf: jf as u8, k };
        self.len += 1;
    }

    const fn load(&mut self, offset: u32) {
        self.push(LOAD, 0, 0, offset);
    }

    const fn end(&mut self, verdict: u32) {
        self.push(RETURN, 0, 0, verdict);
    }

    /// Calls of another architecture are refused: their numbers mean other calls. Leaves the number loaded.
    const fn begin(&mut self, refuse: u32) {
        self.load(ARCHITECTURE);
        self.push(EQUAL, 1, 0, ARCH);
        self.end(refuse);
        self.load(NUMBER);
        // The x32 range of x86_64; no other architecture has numbers up there.
        self.push(AT_LEAST, 0, 1, 0x4000_0000);
        self.end(refuse);
    }

    /// A verdict for each of `calls`; with any other number the program goes on behind.
    const fn each(&mut self, calls: &[Call], verdict: u32) {
        // One verdict for up to a hundred comparisons before it.
        let mut from = 0;
        while from < calls.len() {
            let to = if calls.len() - from > 100 { from + 100 } else { calls.len() };
            let mut index = from;
            while index < to {
                let left = to - index - 1;
                let otherwise = if left == 0 { 1 } else { 0 };
                self.push(EQUAL, left, otherwise, calls[index].0 as u32);
                index += 1;
            }
            self.end(verdict);
            from = to;
        }
    }

    /// Allows `call` when the low half of an argument is one of `values`.
    const fn one_of(&mut self, call: libc::c_long, index: u32, values: &[u32], refuse: u32) {
        self.push(EQUAL, 0, values.len() + 3, call as u32);
        self.load(argument(index));
        let mut at = 0;
        while at < values.len() {
            self.push(EQUAL, values.len() - at, 0, values[at]);
            at += 1;
        }
        self.end(refuse);
        self.end(libc::SECCOMP_RET_ALLOW);
    }

    /// Allows `call` when none of `bits` is set in the low half of an argument.
    const fn without(&mut self, call: libc::c_long, index: u32, bits: u32, refuse: u32) {
        self.push(EQUAL, 0, 4, call as u32);
        self.load(argument(index));
        self.push(ANY_BIT, 0, 1, bits);
        self.end(refuse);
        self.end(libc::SECCOMP_RET_ALLOW);
    }

    /// Allows `call` when of the bits `mask` of its first argument exactly `wanted` are set.
    const fn exactly(&mut self, call: libc::c_long, mask: u32, wanted: u32, refuse: u32) {
        self.push(EQUAL, 0, 5, call as u32);
        self.load(argument(0));
        self.push(AND, 0, 0, mask);
        self.push(EQUAL, 1, 0, wanted);
        self.end(refuse);
        self.end(libc::SECCOMP_RET_ALLOW);
    }

    /// Allows sockets of the local kind and of IP, streams and datagrams; no raw ones, no netlink, no packets.
    const fn sockets(&mut self, refuse: u32) {
        self.push(EQUAL, 0, 10, libc::SYS_socket as u32);
        self.load(argument(0));
        self.push(EQUAL, 2, 0, libc::AF_UNIX as u32);
        self.push(EQUAL, 1, 0, libc::AF_INET as u32);
        self.push(EQUAL, 0, 4, libc::AF_INET6 as u32);
        self.load(argument(1));
        self.push(AND, 0, 0, 0xf);
        self.push(EQUAL, 2, 0, libc::SOCK_STREAM as u32);
        self.push(EQUAL, 1, 0, libc::SOCK_DGRAM as u32);
        self.end(refuse);
        self.end(libc::SECCOMP_RET_ALLOW);
    }

    /// The program without the room that is left.
    const fn cut<const LEN: usize>(&self) -> [libc::sock_filter; LEN] {
        let mut out = [NOTHING; LEN];
        let mut index = 0;
        while index < LEN {
            out[index] = self.code[index];
            index += 1;
        }
        out
    }
}

const fn daemon(refuse: u32, exec: u32) -> Program {
    let mut program = Program::new();
    program.begin(refuse);
    program.each(ALLOWED, libc::SECCOMP_RET_ALLOW);
    program.each(ALLOWED_OLD, libc::SECCOMP_RET_ALLOW);
    // Memory that can be run comes from the program's file and from nowhere else.
    program.without(libc::SYS_mmap, 2, libc::PROT_EXEC as u32, refuse);
    program.without(libc::SYS_mprotect, 2, libc::PROT_EXEC as u32, refuse);
    program.without(libc::SYS_openat, 2, OPEN_TO_WRITE, refuse);
    #[cfg(target_arch = "x86_64")]
    program.without(libc::SYS_open, 1, OPEN_TO_WRITE, refuse);
    program.sockets(refuse);
    program.one_of(libc::SYS_ioctl, 1, &IOCTLS, refuse);
    program.one_of(libc::SYS_prctl, 0, &PRCTLS, refuse);
    program.exactly(libc::SYS_clone, CLONE_THREAD | CLONE_NEW, CLONE_THREAD, refuse);
    // Its arguments are in memory, out of a filter's sight: the C library then uses the older one.
    program.each(&[Call(libc::SYS_clone3, "clone3")], ENOSYS);
    program.each(&[Call(libc::SYS_execve, "execve")], exec);
    program.end(refuse);
    program
}

/// Between init and the daemon's own lock: what a program without a handler of SIGSYS can live with. It may start
/// the program, take the locks, and nothing else that the daemon itself could not.
const fn starting() -> Program {
    let mut program = Program::new();
    program.begin(EPERM);
    program.each(
        &[
            Call(libc::SYS_seccomp, "seccomp"),
            Call(libc::SYS_prctl, "prctl"),
            Call(libc::SYS_openat, "openat"),
        ],
        libc::SECCOMP_RET_ALLOW,
    );
    let rest = daemon(EPERM, libc::SECCOMP_RET_ALLOW);
    // The checks of the architecture stand already.
    let mut index = BEGIN_LEN;
    while index < rest.len {
        program.code[program.len] = rest.code[index];
        program.len += 1;
        index += 1;
    }
    program
}

/// For a program that reads, computes and prints. It has no handler of SIGSYS: what is refused fails, nobody is told.
const fn sealed() -> Program {
    let mut program = Program::new();
    program.begin(EPERM);
    program.each(ALLOWED_SEALED, libc::SECCOMP_RET_ALLOW);
    program.each(ALLOWED_SEALED_OLD, libc::SECCOMP_RET_ALLOW);
    program.without(libc::SYS_mmap, 2, libc::PROT_EXEC as u32, EPERM);
    program.without(libc::SYS_mprotect, 2, libc::PROT_EXEC as u32, EPERM);
    program.without(libc::SYS_openat, 2, OPEN_TO_WRITE, EPERM);
    #[cfg(target_arch = "x86_64")]
    program.without(libc::SYS_open, 1, OPEN_TO_WRITE, EPERM);
    program.one_of(libc::SYS_ioctl, 1, &IOCTLS, EPERM);
    program.one_of(libc::SYS_prctl, 0, &PRCTLS, EPERM);
    program.exactly(libc::SYS_clone, CLONE_THREAD | CLONE_NEW, CLONE_THREAD, EPERM);
    program.each(&[Call(libc::SYS_clone3, "clone3")], ENOSYS);
    program.each(&[Call(libc::SYS_execve, "execve")], libc::SECCOMP_RET_ALLOW);
    program.end(EPERM);
    program
}

/// Instructions of [`Program::begin`] that need not be repeated.
const BEGIN_LEN: usize = 6;

const fn refusing(calls: &[Call], refuse: u32) -> Program {
    let mut program = Program::new();
    program.begin(refuse);
    program.each(calls, refuse);
    program.end(libc::SECCOMP_RET_ALLOW);
    program
}

const DAEMON_PROGRAM: Program = starting();
const LOCKED_PROGRAM: Program = daemon(TOLD, TOLD);
const SEALED_PROGRAM: Program = sealed();
const SERVICE_PROGRAM: Program = refusing(REFUSED, EPERM);
const MANAGER_PROGRAM: Program = refusing(REFUSED_MANAGER, TOLD);

pub(super) static DAEMON: [libc::sock_filter; DAEMON_PROGRAM.len] = DAEMON_PROGRAM.cut();
pub(super) static LOCKED: [libc::sock_filter; LOCKED_PROGRAM.len] = LOCKED_PROGRAM.cut();
pub(super) static SEALED: [libc::sock_filter; SEALED_PROGRAM.len] = SEALED_PROGRAM.cut();
pub(super) static SERVICE: [libc::sock_filter; SERVICE_PROGRAM.len] = SERVICE_PROGRAM.cut();
pub(super) static MANAGER: [libc::sock_filter; MANAGER_PROGRAM.len] = MANAGER_PROGRAM.cut();

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a program as the kernel would.
    fn verdict(program: &[libc::sock_filter], number: libc::c_long, args: [u64; 6]) -> u32 {
        verdict_on(program, ARCH, number as u32, args)
    }

    fn verdict_on(program: &[libc::sock_filter], arch: u32, number: u32, args: [u64; 6]) -> u32 {
        let word = |offset: u32| match offset {
            0 => number,
            4 => arch,
            offset => args[(offset as usize - 16) / 8] as u32,
        };
        let (mut at, mut held) = (0, 0);
        loop {
            let step = program[at];
            let jump = |yes: bool| at + 1 + usize::from(if yes { step.jt } else { step.jf });
            at = match u32::from(step.code) {
                LOAD => {
                    held = word(step.k);
                    at + 1
                }
                AND => {
                    held &= step.k;
                    at + 1
                }
                EQUAL => jump(held == step.k),
                AT_LEAST => jump(held >= step.k),
                ANY_BIT => jump(held & step.k != 0),
                RETURN => return step.k,
                other => panic!("instruction {other} at {at}"),
            };
        }
    }

    const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
    const NONE: [u64; 6] = [0; 6];

    #[test]
    fn every_call_has_the_verdict_of_its_list() {
        for number in 0..600 {
            let listed = |list: &[Call]| list.iter().any(|call| call.0 == number);
            let by_argument = [
                libc::SYS_mmap,
                libc::SYS_mprotect,
                libc::SYS_openat,
                libc::SYS_open,
                libc::SYS_socket,
                libc::SYS_ioctl,
                libc::SYS_prctl,
                libc::SYS_clone,
                libc::SYS_clone3,
            ];
            if !by_argument.contains(&number) {
                let allowed = listed(ALLOWED) || listed(ALLOWED_OLD);
                assert_eq!(verdict(&LOCKED, number, NONE), if allowed { ALLOW } else { TOLD }, "{number}");
                let starts = [libc::SYS_execve, libc::SYS_seccomp].contains(&number);
                let expected = if allowed || starts { ALLOW } else { EPERM };
                assert_eq!(verdict(&DAEMON, number, NONE), expected, "{number}");
                let allowed =
                    listed(ALLOWED_SEALED) || listed(ALLOWED_SEALED_OLD) || number == libc::SYS_execve;
                assert_eq!(verdict(&SEALED, number, NONE), if allowed { ALLOW } else { EPERM }, "{number}");
            }
            let expected = if listed(REFUSED) { EPERM } else { ALLOW };
            assert_eq!(verdict(&SERVICE, number, NONE), expected, "{number}");
            let expected = if listed(REFUSED_MANAGER) { TOLD } else { ALLOW };
            assert_eq!(verdict(&MANAGER, number, NONE), expected, "{number}");
        }
    }

    #[test]
    fn another_architecture_gets_nothing() {
        for program in [&DAEMON[..], &LOCKED, &SEALED, &SERVICE, &MANAGER] {
            for (arch, number) in [(0x4000_0003, 1), (ARCH, 0x4000_0000), (ARCH, 0x4000_0001)] {
                assert_ne!(verdict_on(program, arch, number, NONE), ALLOW);
            }
        }
    }

    #[test]
    fn arguments_decide_where_the_call_alone_does_not() {
        let args = |index: usize, value: u64| {
            let mut args = NONE;
            args[index] = value;
            args
        };
        let socket = |domain: libc::c_int, kind: libc::c_int| [domain as u64, kind as u64, 0, 0, 0, 0];
        let thread = (libc::CLONE_VM | libc::CLONE_THREAD | libc::CLONE_SIGHAND) as u64;
        for (number, args, allowed) in [
            (libc::SYS_mmap, args(2, 3), true),
            (libc::SYS_mmap, args(2, 5), false),
            (libc::SYS_mprotect, args(2, 1), true),
            (libc::SYS_mprotect, args(2, 4), false),
            (libc::SYS_openat, args(2, libc::O_CLOEXEC as u64), true),
            (libc::SYS_openat, args(2, libc::O_RDWR as u64), false),
            (libc::SYS_openat, args(2, libc::O_WRONLY as u64), false),
            (libc::SYS_openat, args(2, libc::O_CREAT as u64), false),
            (libc::SYS_openat, args(2, libc::O_TMPFILE as u64), false),
            (libc::SYS_openat, args(2, libc::O_DIRECTORY as u64), true),
            (libc::SYS_openat2, NONE, false),
            (libc::SYS_socket, socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC), true),
            (libc::SYS_socket, socket(libc::AF_INET6, libc::SOCK_STREAM | libc::SOCK_NONBLOCK), true),
            (libc::SYS_socket, socket(libc::AF_INET, libc::SOCK_DGRAM), true),
            (libc::SYS_socket, socket(libc::AF_INET, libc::SOCK_RAW), false),
            (libc::SYS_socket, socket(libc::AF_UNIX, libc::SOCK_SEQPACKET), false),
            (libc::SYS_socket, socket(libc::AF_PACKET, libc::SOCK_DGRAM), false),
            (libc::SYS_socket, socket(libc::AF_NETLINK, libc::SOCK_DGRAM), false),
            (libc::SYS_socket, socket(libc::AF_VSOCK, libc::SOCK_STREAM), false),
            (libc::SYS_socket, socket(libc::AF_ALG, libc::SOCK_STREAM), false),
            (libc::SYS_ioctl, args(1, 0x5421), true),
            (libc::SYS_ioctl, args(1, 0x5413), true),
            // TCSETS, VT_ACTIVATE.
            (libc::SYS_ioctl, args(1, 0x5402), false),
            (libc::SYS_ioctl, args(1, 0x5606), false),
            // TIOCSTI.
            (libc::SYS_ioctl, args(1, 0x5412), false),
            (libc::SYS_prctl, args(0, 15), true),
            (libc::SYS_prctl, args(0, libc::PR_SET_DUMPABLE as u64), false),
            (libc::SYS_clone, args(0, thread), true),
            (libc::SYS_clone, args(0, libc::SIGCHLD as u64), false),
            (libc::SYS_clone, args(0, thread | libc::CLONE_NEWUSER as u64), false),
        ] {
            let expected = if allowed { ALLOW } else { TOLD };
            assert_eq!(verdict(&LOCKED, number, args), expected, "{number} {args:?}");
            let allowed = allowed && number != libc::SYS_socket;
            assert_eq!(
                verdict(&SEALED, number, args),
                if allowed { ALLOW } else { EPERM },
                "{number} {args:?}"
            );
        }
        assert_eq!(verdict(&LOCKED, libc::SYS_clone3, NONE), ENOSYS);
        assert_eq!(verdict(&DAEMON, libc::SYS_execve, NONE), ALLOW);
        assert_eq!(verdict(&DAEMON, libc::SYS_execveat, NONE), EPERM);
        assert_eq!(verdict(&LOCKED, libc::SYS_execve, NONE), TOLD);
        assert_eq!(verdict(&LOCKED, libc::SYS_seccomp, NONE), TOLD);
    }
}
