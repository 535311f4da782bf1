//! One fixed system call filter for daemons that only serve sockets and files.
//!
//! It refuses (EPERM) what such a daemon never needs and an intruder would: mounts, namespaces, tracing, kernel
//! code, reboot, clock. It is a refusal list, not a permission list, so that a new libc does not break a node.

use std::io;

#[cfg(target_arch = "x86_64")]
const ARCH: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCH: u32 = 0xc000_00b7;

const REFUSED: [libc::c_long; 44] = [
    libc::SYS_acct,
    libc::SYS_add_key,
    libc::SYS_adjtimex,
    libc::SYS_bpf,
    libc::SYS_chroot,
    libc::SYS_clock_adjtime,
    libc::SYS_clock_settime,
    libc::SYS_delete_module,
    libc::SYS_fanotify_init,
    libc::SYS_finit_module,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fsopen,
    libc::SYS_fspick,
    libc::SYS_init_module,
    libc::SYS_io_uring_setup,
    libc::SYS_kcmp,
    libc::SYS_kexec_file_load,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    libc::SYS_mount,
    libc::SYS_mount_setattr,
    libc::SYS_move_mount,
    libc::SYS_name_to_handle_at,
    libc::SYS_open_by_handle_at,
    libc::SYS_open_tree,
    libc::SYS_perf_event_open,
    libc::SYS_pidfd_getfd,
    libc::SYS_pivot_root,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_ptrace,
    libc::SYS_quotactl,
    libc::SYS_reboot,
    libc::SYS_request_key,
    libc::SYS_setdomainname,
    libc::SYS_sethostname,
    libc::SYS_setns,
    libc::SYS_settimeofday,
    libc::SYS_swapoff,
    libc::SYS_swapon,
    libc::SYS_umount2,
    libc::SYS_unshare,
    libc::SYS_userfaultfd,
];

const LEN: usize = REFUSED.len() + 6;

static PROGRAM: [libc::sock_filter; LEN] = program();

const fn instruction(code: u32, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt, jf, k }
}

const fn program() -> [libc::sock_filter; LEN] {
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let refuse = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    let refuse_at = LEN - 1;
    let mut out = [instruction(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW); LEN];
    // Another architecture's numbers mean other calls: refuse them all.
    out[0] = instruction(load, 0, 0, 4);
    out[1] = instruction(equal, 0, (refuse_at - 2) as u8, ARCH);
    out[2] = instruction(load, 0, 0, 0);
    // The x32 range of x86_64; no other architecture has numbers up there.
    out[3] = instruction(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K, (refuse_at - 4) as u8, 0, 0x4000_0000);
    let mut index = 0;
    while index < REFUSED.len() {
        let at = 4 + index;
        out[at] = instruction(equal, (refuse_at - at - 1) as u8, 0, REFUSED[index] as u32);
        index += 1;
    }
    // out[LEN - 2] stays "allow".
    out[refuse_at] = instruction(libc::BPF_RET | libc::BPF_K, 0, 0, refuse);
    out
}

/// Puts the filter on this thread and its future children. Needs `no_new_privs` or CAP_SYS_ADMIN.
pub fn refuse_privileged_calls() -> io::Result<()> {
    let program = libc::sock_fprog { len: LEN as u16, filter: PROGRAM.as_ptr().cast_mut() };
    // SAFETY: the kernel copies the program before the call returns and does not write to it.
    let done =
        unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program) };
    match done {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_calls_fail_and_the_others_work() {
        // A thread of its own: the filter cannot be taken off again.
        std::thread::spawn(|| {
            crate::credentials::set_no_new_privs().unwrap();
            refuse_privileged_calls().unwrap();
            // SAFETY: no pointer is followed; both calls are refused or harmless.
            let (refused, errno) = unsafe {
                let done = libc::syscall(libc::SYS_unshare, 0);
                (done, io::Error::last_os_error().raw_os_error())
            };
            assert_eq!((refused, errno), (-1, Some(libc::EPERM)));
            assert!(std::fs::read_to_string("/proc/self/status").is_ok());
        })
        .join()
        .unwrap();
    }
}
