//! Kernel settings that a group of processes cannot change: a small program in the kernel that says no.
//!
//! Whoever may mount a fresh `/proc` gets around everything that is mounted over it; the program sees every write to a
//! setting, however it is reached. What belongs to a namespace stays free.

use std::io;
use std::path::Path;

use crate::cgroup_program::{
    self, ADD_NUMBER, CALL, EXIT, Instruction, JUMP, JUMP_IF_NUMBER, JUMP_IF_OTHER, LOAD_32, LOAD_NUMBER_64,
    MOVE, MOVE_NUMBER, STORE_NUMBER_64, op,
};

/// Beginnings of names of settings that belong to a network, IPC, UTS or process namespace.
const NAMESPACED: [&str; 8] = [
    "net/",
    "fs/mqueue/",
    "kernel/domainname",
    "kernel/hostname",
    "kernel/msg",
    "kernel/ns_last_pid",
    "kernel/sem",
    "kernel/shm",
];

/// Room for the beginning of a name on the program's stack.
const NAME: i16 = 24;

/// `bpf_sysctl_get_name`.
const GET_NAME: i32 = 101;

/// The program: reads are fine, and writes to names that begin with one of these.
fn program(allowed: &[&str]) -> Vec<Instruction> {
    // What compares names, each a list that jumps behind its end when the name is another.
    let mut tests: Vec<Instruction> = Vec::new();
    let mut allows = Vec::new();
    for prefix in allowed {
        let mut test = Vec::new();
        let mut misses = Vec::new();
        let (mut rest, mut at) = (prefix.as_bytes(), -NAME);
        while !rest.is_empty() {
            let (load, size) = match rest.len() {
                8.. => (0x79, 8),
                4.. => (LOAD_32, 4),
                2.. => (0x69, 2),
                _ => (0x71, 1),
            };
            let (chunk, behind) = rest.split_at(size);
            let wanted = chunk.iter().rev().fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
            test.push(op(load, 1, 10, at, 0));
            test.push(op(LOAD_NUMBER_64, 2, 0, 0, (wanted & 0xffff_ffff) as i32));
            test.push(op(0, 0, 0, 0, (wanted >> 32) as i32));
            misses.push(test.len());
            test.push(op(JUMP_IF_OTHER, 1, 2, 0, 0));
            rest = behind;
            at += size as i16;
        }
        test.push(op(JUMP, 0, 0, 0, 0));
        let end = test.len();
        for miss in misses {
            test[miss].offset = (end - miss - 1) as i16;
        }
        tests.extend(test);
        allows.push(tests.len() - 1);
    }
    // Refusing takes two instructions, then comes the way of what is allowed.
    let allow = tests.len() + 2;
    for jump in allows {
        tests[jump].offset = (allow - jump - 1) as i16;
    }
    let name = [
        op(STORE_NUMBER_64, 10, 0, -NAME, 0),
        op(STORE_NUMBER_64, 10, 0, -NAME + 8, 0),
        op(STORE_NUMBER_64, 10, 0, -NAME + 16, 0),
        op(MOVE, 1, 6, 0, 0),
        op(MOVE, 2, 10, 0, 0),
        op(ADD_NUMBER, 2, 0, 0, i32::from(-NAME)),
        op(MOVE_NUMBER, 3, 0, 0, i32::from(NAME)),
        op(MOVE_NUMBER, 4, 0, 0, 0),
        op(CALL, 0, 0, 0, GET_NAME),
    ];
    let read = (name.len() + allow) as i16;
    let mut all = vec![op(MOVE, 6, 1, 0, 0), op(LOAD_32, 0, 6, 0, 0), op(JUMP_IF_NUMBER, 0, 0, read, 0)];
    all.extend(name);
    all.extend(tests);
    all.extend([op(MOVE_NUMBER, 0, 0, 0, 0), op(EXIT, 0, 0, 0, 0)]);
    all.extend([op(MOVE_NUMBER, 0, 0, 0, 1), op(EXIT, 0, 0, 0, 0)]);
    all
}

const TYPE_CGROUP_SYSCTL: u32 = 23;
const ATTACH_CGROUP_SYSCTL: u32 = 18;

/// Refuses writes to the kernel's settings to all processes in the cgroup (v2) at `group` and below, for as long as
/// the group exists; what belongs to a namespace of theirs they may change.
///
/// # Errors
/// When the kernel has no such programs, or not for us.
pub fn guard(group: &Path) -> io::Result<()> {
    cgroup_program::attach(group, TYPE_CGROUP_SYSCTL, ATTACH_CGROUP_SYSCTL, &program(&NAMESPACED))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the program says of a write to `name`.
    fn allows(name: &str) -> bool {
        let mut buffer = [0_u8; NAME as usize];
        for (to, from) in buffer.iter_mut().zip(name.bytes()) {
            *to = from;
        }
        let program = program(&NAMESPACED);
        let (mut at, mut registers) = (0_usize, [0_u64; 11]);
        loop {
            let Instruction { code, registers: pair, offset, immediate } = program[at];
            let (to, from) = (usize::from(pair & 15), usize::from(pair >> 4));
            at += 1;
            let jump = |at: usize| usize::try_from(at as i64 + i64::from(offset)).unwrap();
            let place = usize::try_from(offset + NAME).unwrap_or(0);
            let number = |size: usize| {
                buffer[place..place + size].iter().rev().fold(0, |n, byte| n << 8 | u64::from(*byte))
            };
            match code {
                LOAD_32 if from == 6 => registers[to] = 1,
                0x79 => registers[to] = number(8),
                LOAD_32 => registers[to] = number(4),
                0x69 => registers[to] = number(2),
                0x71 => registers[to] = number(1),
                LOAD_NUMBER_64 => {
                    let high = program[at].immediate as u32;
                    registers[to] = u64::from(high) << 32 | u64::from(immediate as u32);
                    at += 1;
                }
                MOVE_NUMBER => registers[to] = immediate as u64,
                JUMP => at = jump(at),
                JUMP_IF_NUMBER if registers[to] == immediate as u64 => at = jump(at),
                JUMP_IF_OTHER if registers[to] != registers[from] => at = jump(at),
                EXIT => return registers[0] == 1,
                _ => {}
            }
        }
    }

    #[test]
    fn only_settings_of_namespaces_may_be_written() {
        for name in
            ["net/ipv4/ip_forward", "kernel/shmmax", "kernel/sem", "fs/mqueue/msg_max", "kernel/hostname"]
        {
            assert!(allows(name), "{name}");
        }
        for name in
            ["kernel/panic", "vm/overcommit_memory", "kernel/hotplug", "fs/file-max", "netx", "user/x", "a"]
        {
            assert!(!allows(name), "{name}");
        }
    }

    #[test]
    fn the_way_of_reads_is_the_one_of_what_is_allowed() {
        let program = program(&NAMESPACED);
        let target = 3 + usize::try_from(program[2].offset).unwrap();
        assert_eq!(program[target..], [op(MOVE_NUMBER, 0, 0, 0, 1), op(EXIT, 0, 0, 0, 0)]);
    }
}
