//! A refused call in a locked daemon: told once by name, answered with EPERM.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::calls;
use crate::text;

/// Calls that were told already, a bit each.
static TOLD: [AtomicU64; 16] = [const { AtomicU64::new(0) }; 16];

/// Handles SIGSYS from now on.
pub(super) fn install() -> io::Result<()> {
    // SAFETY: all zeros is a valid sigaction; the handler has the signature that SA_SIGINFO asks for.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = refused as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_ONSTACK;
        if libc::sigaction(libc::SIGSYS, &raw const action, std::ptr::null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// The part of `siginfo_t` that SIGSYS fills.
#[repr(C)]
struct Info {
    signal: libc::c_int,
    errno: libc::c_int,
    code: libc::c_int,
    address: *const libc::c_void,
    call: libc::c_int,
    architecture: libc::c_uint,
}

extern "C" fn refused(_signal: libc::c_int, info: *const libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a filled siginfo of SIGSYS and the context of the interrupted thread; both live
    // until the handler returns.
    let number = unsafe {
        let number = (*info.cast::<Info>()).call;
        answer(&mut *context.cast::<libc::ucontext_t>(), -i64::from(libc::EPERM));
        number
    };
    tell(number);
}

/// What the interrupted call returns.
fn answer(context: &mut libc::ucontext_t, value: i64) {
    #[cfg(target_arch = "x86_64")]
    {
        context.uc_mcontext.gregs[libc::REG_RAX as usize] = value;
    }
    #[cfg(target_arch = "aarch64")]
    {
        context.uc_mcontext.regs[0] = value.cast_unsigned();
    }
}

/// One line on standard error. Runs in a signal handler: no lock, no allocation.
fn tell(number: i32) {
    let index = usize::try_from(number).unwrap_or(0) % (TOLD.len() * 64);
    let bit = 1 << (index % 64);
    if TOLD[index / 64].fetch_or(bit, Relaxed) & bit != 0 {
        return;
    }
    let name = calls::name(i64::from(number)).unwrap_or("?");
    let mut line = [0; 96];
    let mut len = 0;
    let mut put = |part: &[u8]| {
        let room = (line.len() - len).min(part.len());
        line[len..len + room].copy_from_slice(&part[..room]);
        len += room;
    };
    put(b"refused system call ");
    text::write_number(&mut [0; 12], i64::from(number), &mut put);
    put(b" (");
    put(name.as_bytes());
    put(b"): this daemon has no use for it\n");
    // SAFETY: writes from a live array. That nobody reads it changes nothing.
    unsafe { libc::write(2, line.as_ptr().cast(), len) };
}
