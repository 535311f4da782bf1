//! Small BPF programs that decide for a cgroup (v2): their instructions, and attaching one to a group.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;

/// One instruction as the kernel has it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Instruction {
    pub(crate) code: u8,
    pub(crate) registers: u8,
    pub(crate) offset: i16,
    pub(crate) immediate: i32,
}

pub(crate) const fn op(code: u8, to: u8, from: u8, offset: i16, immediate: i32) -> Instruction {
    Instruction { code, registers: to | from << 4, offset, immediate }
}

pub(crate) const MOVE: u8 = 0xbf;
pub(crate) const MOVE_NUMBER: u8 = 0xb7;
pub(crate) const ADD_NUMBER: u8 = 0x07;
pub(crate) const AND_NUMBER: u8 = 0x57;
pub(crate) const SHIFT_RIGHT_NUMBER: u8 = 0x77;
pub(crate) const LOAD_32: u8 = 0x61;
pub(crate) const STORE_NUMBER_64: u8 = 0x7a;
pub(crate) const LOAD_NUMBER_64: u8 = 0x18;
pub(crate) const JUMP: u8 = 0x05;
pub(crate) const JUMP_IF_NUMBER: u8 = 0x15;
pub(crate) const JUMP_IF_OTHER_NUMBER: u8 = 0x55;
pub(crate) const JUMP_IF_OTHER: u8 = 0x5d;
pub(crate) const CALL: u8 = 0x85;
pub(crate) const EXIT: u8 = 0x95;

const PROG_LOAD: libc::c_int = 5;
const PROG_ATTACH: libc::c_int = 8;
const ALLOW_MULTI: u32 = 2;

/// The beginning of `union bpf_attr` for loading; the kernel takes what is missing for zero.
#[repr(C)]
struct Load {
    kind: u32,
    count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel: u32,
    flags: u32,
}

#[repr(C)]
struct Attach {
    target: u32,
    program: u32,
    kind: u32,
    flags: u32,
}

/// Loads a program of type `kind`; the kernel verifies it.
pub(crate) fn load(kind: u32, instructions: &[Instruction]) -> io::Result<OwnedFd> {
    let load = Load {
        kind,
        count: instructions.len() as u32,
        instructions: instructions.as_ptr() as u64,
        license: c"MIT".as_ptr() as u64,
        log_level: 0,
        log_size: 0,
        log: 0,
        kernel: 0,
        flags: 0,
    };
    // SAFETY: the list and the license live until the call is over, and the kernel only reads them.
    let program = unsafe { call(PROG_LOAD, &load)? };
    // SAFETY: the kernel just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(program) })
}

/// Attaches a program to the cgroup at `group`, beside those that groups above and below it have: each of them has to
/// agree. It stays for as long as the group exists.
pub(crate) fn attach(
    group: &Path,
    kind: u32,
    attach_type: u32,
    instructions: &[Instruction],
) -> io::Result<()> {
    let dir = std::fs::File::open(group)?;
    let program = load(kind, instructions)?;
    let attach = Attach {
        target: dir.as_fd().as_raw_fd() as u32,
        program: program.as_raw_fd() as u32,
        kind: attach_type,
        flags: ALLOW_MULTI,
    };
    // SAFETY: four numbers; the group holds the program from now on.
    unsafe { call(PROG_ATTACH, &attach) }.map(drop)
}

/// Calls `bpf(2)`.
///
/// # Safety
/// Addresses in `attributes` must be good for what `command` does with them.
unsafe fn call<T>(command: libc::c_int, attributes: &T) -> io::Result<RawFd> {
    // SAFETY: the size is that of the attributes, which outlive the call; the caller vouches for what is in them.
    let done = unsafe {
        libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(attributes), std::mem::size_of::<T>())
    };
    match RawFd::try_from(done) {
        Ok(number) if number >= 0 => Ok(number),
        _ => Err(io::Error::last_os_error()),
    }
}
