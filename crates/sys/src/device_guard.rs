//! Devices that a group of processes cannot use, on cgroup v2: what the `devices` controller is on v1.
//!
//! Whoever may make device nodes could open the disks of the host; the program in the kernel sees every attempt.

use std::io;
use std::path::Path;

use crate::cgroup_program::{
    self, AND_NUMBER, EXIT, Instruction, JUMP, JUMP_IF_NUMBER, JUMP_IF_OTHER_NUMBER, LOAD_32, MOVE,
    MOVE_NUMBER, SHIFT_RIGHT_NUMBER, op,
};

const TYPE_CGROUP_DEVICE: u32 = 15;
const ATTACH_CGROUP_DEVICE: u32 = 6;

/// Bits of what is attempted; making a node is bit 0 and allowed.
const READ: i32 = 2;
const WRITE: i32 = 4;
/// The type of a block device; a character device has 2.
const BLOCK: i32 = 1;
/// `/dev/kmsg`.
const KERNEL_LOG: (i32, i32) = (1, 11);

/// Refuses block devices and writing to the kernel log, in the order of the branches: the context holds the attempt
/// in the upper and the type in the lower half of its first word, then the numbers of the device.
fn program() -> [Instruction; 16] {
    [
        op(LOAD_32, 2, 1, 0, 0),
        op(MOVE, 3, 2, 0, 0),
        op(AND_NUMBER, 3, 0, 0, 0xffff),
        op(SHIFT_RIGHT_NUMBER, 2, 0, 0, 16),
        // A block device: to 11.
        op(JUMP_IF_NUMBER, 3, 0, 6, BLOCK),
        // Any other but the kernel log is allowed: to 14.
        op(LOAD_32, 4, 1, 4, 0),
        op(JUMP_IF_OTHER_NUMBER, 4, 0, 7, KERNEL_LOG.0),
        op(LOAD_32, 4, 1, 8, 0),
        op(JUMP_IF_OTHER_NUMBER, 4, 0, 5, KERNEL_LOG.1),
        op(AND_NUMBER, 2, 0, 0, WRITE),
        op(JUMP, 0, 0, 1, 0),
        op(AND_NUMBER, 2, 0, 0, READ | WRITE),
        // 12: refused when any of these bits is left. The result is in register 0, and 0 means no.
        op(MOVE_NUMBER, 0, 0, 0, 0),
        op(JUMP_IF_OTHER_NUMBER, 2, 0, 1, 0),
        // 14
        op(MOVE_NUMBER, 0, 0, 0, 1),
        op(EXIT, 0, 0, 0, 0),
    ]
}

/// Refuses all processes in the cgroup (v2) at `group` and below to read or write block devices and to write to the
/// kernel log, for as long as the group exists.
///
/// # Errors
/// When the kernel has no such programs, or not for us.
pub fn guard(group: &Path) -> io::Result<()> {
    cgroup_program::attach(group, TYPE_CGROUP_DEVICE, ATTACH_CGROUP_DEVICE, &program())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAKE: i32 = 1;
    const CHARACTER: i32 = 2;

    /// What the program says of an attempt.
    fn allows(access: i32, kind: i32, major: i32, minor: i32) -> bool {
        let context = [access << 16 | kind, major, minor];
        let program = program();
        let (mut at, mut registers) = (0_usize, [0_i64; 11]);
        for _ in 0..program.len() {
            let Instruction { code, registers: pair, offset, immediate } = program[at];
            let (to, from) = (usize::from(pair & 15), usize::from(pair >> 4));
            let immediate = i64::from(immediate);
            at += 1;
            let jump = at + usize::try_from(offset).unwrap();
            match code {
                LOAD_32 => registers[to] = i64::from(context[usize::try_from(offset).unwrap() / 4]),
                MOVE => registers[to] = registers[from],
                MOVE_NUMBER => registers[to] = immediate,
                AND_NUMBER => registers[to] &= immediate,
                SHIFT_RIGHT_NUMBER => registers[to] >>= immediate,
                JUMP => at = jump,
                JUMP_IF_NUMBER if registers[to] == immediate => at = jump,
                JUMP_IF_OTHER_NUMBER if registers[to] != immediate => at = jump,
                JUMP_IF_NUMBER | JUMP_IF_OTHER_NUMBER => {}
                EXIT => return registers[0] == 1,
                other => panic!("instruction {other:#x}"),
            }
        }
        panic!("the program does not end");
    }

    #[test]
    fn disks_and_writing_to_the_kernel_log_are_refused() {
        for (access, kind, major, minor) in [
            (READ, BLOCK, 8, 0),
            (WRITE, BLOCK, 259, 1),
            (MAKE | READ | WRITE, BLOCK, 7, 0),
            (WRITE, CHARACTER, 1, 11),
            (READ | WRITE, CHARACTER, 1, 11),
        ] {
            assert!(!allows(access, kind, major, minor), "{access} {kind} {major}:{minor}");
        }
        for (access, kind, major, minor) in [
            (MAKE, BLOCK, 8, 0),
            (READ, CHARACTER, 1, 11),
            (READ | WRITE, CHARACTER, 1, 3),
            (WRITE, CHARACTER, 5, 11),
            (READ | WRITE, CHARACTER, 10, 200),
        ] {
            assert!(allows(access, kind, major, minor), "{access} {kind} {major}:{minor}");
        }
    }

    #[test]
    fn the_kernel_accepts_the_program() {
        match cgroup_program::load(TYPE_CGROUP_DEVICE, &program()) {
            Ok(_) => {}
            // A kernel without such programs, or a caller without the right to load them.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOSYS)) => {}
            Err(error) => panic!("{error}"),
        }
    }
}
