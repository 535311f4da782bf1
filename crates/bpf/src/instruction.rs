//! One instruction and the numbers it is made of.

/// One instruction of a program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Instruction {
    /// What to do.
    pub op: u16,
    /// Instructions to skip when a test holds.
    pub jt: u8,
    /// Instructions to skip when it does not.
    pub jf: u8,
    /// The operand.
    pub k: u32,
}

impl Instruction {
    /// An instruction that does not jump.
    pub const fn plain(op: u16, k: u32) -> Self {
        Self { op, jt: 0, jf: 0, k }
    }
}

// Classes, the low three bits.
pub(crate) const LD: u16 = 0x00;
pub(crate) const LDX: u16 = 0x01;
pub(crate) const ST: u16 = 0x02;
pub(crate) const STX: u16 = 0x03;
pub(crate) const ALU: u16 = 0x04;
pub(crate) const JMP: u16 = 0x05;
pub(crate) const RET: u16 = 0x06;
pub(crate) const MISC: u16 = 0x07;

// Sizes of loads.
pub(crate) const W: u16 = 0x00;
pub(crate) const H: u16 = 0x08;
pub(crate) const B: u16 = 0x10;

// Modes of loads.
pub(crate) const IMM: u16 = 0x00;
pub(crate) const ABS: u16 = 0x20;
pub(crate) const IND: u16 = 0x40;
pub(crate) const MEM: u16 = 0x60;
pub(crate) const LEN: u16 = 0x80;
pub(crate) const MSH: u16 = 0xa0;

// Arithmetic.
pub(crate) const ADD: u16 = 0x00;
pub(crate) const SUB: u16 = 0x10;
pub(crate) const MUL: u16 = 0x20;
pub(crate) const DIV: u16 = 0x30;
pub(crate) const OR: u16 = 0x40;
pub(crate) const AND: u16 = 0x50;
pub(crate) const LSH: u16 = 0x60;
pub(crate) const RSH: u16 = 0x70;
pub(crate) const NEG: u16 = 0x80;
pub(crate) const MOD: u16 = 0x90;
pub(crate) const XOR: u16 = 0xa0;

// Jumps.
pub(crate) const JA: u16 = 0x00;
pub(crate) const JEQ: u16 = 0x10;
pub(crate) const JGT: u16 = 0x20;
pub(crate) const JGE: u16 = 0x30;
pub(crate) const JSET: u16 = 0x40;

// Operands.
pub(crate) const K: u16 = 0x00;
pub(crate) const X: u16 = 0x08;
pub(crate) const A: u16 = 0x10;

pub(crate) const TAX: u16 = 0x00;
pub(crate) const TXA: u16 = 0x80;

/// Words of scratch memory.
pub(crate) const MEMORY: usize = 16;

/// Loads at or above this offset read what the kernel knows about a packet, not the packet.
pub(crate) const ANCILLARY: u32 = 0xffff_f000;

/// Where these values end, four apart: protocol, packet type, interface, netlink attributes, mark, queue,
/// hardware type, hash, processor, VLAN tag, its presence, payload offset, random number, VLAN protocol.
pub(crate) const ANCILLARY_END: u32 = 64;
