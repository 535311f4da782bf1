//! The checks the kernel makes before it attaches a program.

use crate::instruction::*;

/// Instructions in a program, the kernel's limit.
pub const LEN_MAX: usize = 4096;

/// Why the kernel would refuse a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadProgram {
    /// Nothing in it.
    #[error("the program is empty")]
    Empty,
    /// Too much in it.
    #[error("{0} instructions, at most {LEN_MAX} are allowed")]
    TooLong(usize),
    /// No such instruction.
    #[error("instruction {at}: unknown operation {op:#04x}")]
    Unknown {
        /// Where.
        at: usize,
        /// The operation.
        op: u16,
    },
    /// A jump that leaves the program.
    #[error("instruction {0}: jumps out of the program")]
    Jump(usize),
    /// A division by nothing.
    #[error("instruction {0}: divides by zero")]
    Divide(usize),
    /// A shift that leaves nothing.
    #[error("instruction {0}: shifts by more than 31 bits")]
    Shift(usize),
    /// Scratch memory that is not there.
    #[error("instruction {0}: no such word of scratch memory")]
    Memory(usize),
    /// Scratch memory that nothing was stored in.
    #[error("instruction {0}: reads scratch memory that was not written on every way to it")]
    Unwritten(usize),
    /// A load of something the kernel does not offer.
    #[error("instruction {0}: loads an unknown value of the kernel")]
    Ancillary(usize),
    /// The end is not an end.
    #[error("the last instruction does not return")]
    NoReturn,
}

/// Checks a program as the kernel does before it attaches one to a socket.
pub fn verify(program: &[Instruction]) -> Result<(), BadProgram> {
    match program.len() {
        0 => return Err(BadProgram::Empty),
        len if len > LEN_MAX => return Err(BadProgram::TooLong(len)),
        _ => {}
    }
    for (at, instruction) in program.iter().enumerate() {
        check(at, *instruction, program.len())?;
    }
    match program.last().map(|last| last.op) {
        Some(op) if op == RET | K || op == RET | A => memory(program),
        _ => Err(BadProgram::NoReturn),
    }
}

fn check(at: usize, instruction: Instruction, len: usize) -> Result<(), BadProgram> {
    let Instruction { op, jt, jf, k } = instruction;
    let unknown = Err(BadProgram::Unknown { at, op });
    if op > 0xff {
        return unknown;
    }
    match op & 0x07 {
        LD => match (op & 0xe0, op & 0x18) {
            (ABS, W | H | B) => {
                let known = |offset: u32| offset.is_multiple_of(4) && offset < ANCILLARY_END;
                match k.checked_sub(ANCILLARY) {
                    Some(offset) if !known(offset) => Err(BadProgram::Ancillary(at)),
                    _ => Ok(()),
                }
            }
            (IND, W | H | B) | (LEN | IMM, W) => Ok(()),
            (MEM, W) => word(at, k),
            _ => unknown,
        },
        LDX => match (op & 0xe0, op & 0x18) {
            (LEN | IMM, W) | (MSH, B) => Ok(()),
            (MEM, W) => word(at, k),
            _ => unknown,
        },
        ST | STX if op & 0xf8 == 0 => word(at, k),
        ALU if op & 0xf0 <= XOR && op & 0x08 == X => match op & 0xf0 {
            NEG => unknown,
            _ => Ok(()),
        },
        ALU if op & 0xf0 <= XOR => match op & 0xf0 {
            DIV | MOD if k == 0 => Err(BadProgram::Divide(at)),
            LSH | RSH if k >= 32 => Err(BadProgram::Shift(at)),
            _ => Ok(()),
        },
        JMP if op == JMP | JA => match usize::try_from(k) {
            Ok(skip) if skip < len - at - 1 => Ok(()),
            _ => Err(BadProgram::Jump(at)),
        },
        JMP if (JEQ..=JSET).contains(&(op & 0xf0)) => match usize::from(jt.max(jf)) < len - at - 1 {
            true => Ok(()),
            false => Err(BadProgram::Jump(at)),
        },
        RET if op == RET | K || op == RET | A => Ok(()),
        MISC if op == MISC | TAX || op == MISC | TXA => Ok(()),
        _ => unknown,
    }
}

fn word(at: usize, k: u32) -> Result<(), BadProgram> {
    if (k as usize) < MEMORY { Ok(()) } else { Err(BadProgram::Memory(at)) }
}

/// Follows every way through the program: a word must be written before it is read.
fn memory(program: &[Instruction]) -> Result<(), BadProgram> {
    // All jumps go forward, so one pass sees every way into an instruction before the instruction itself.
    let mut written = vec![u16::MAX; program.len()];
    let mut now = 0_u16;
    for (at, instruction) in program.iter().enumerate() {
        now &= written[at];
        let bit = 1_u16 << (instruction.k & 0x0f);
        let mut into = |to: usize| {
            if let Some(words) = written.get_mut(to) {
                *words &= now;
            }
        };
        match instruction.op {
            op if op == ST || op == STX => now |= bit,
            op if (op == LD | MEM || op == LDX | MEM) && now & bit == 0 => {
                return Err(BadProgram::Unwritten(at));
            }
            op if op == JMP | JA => {
                into(at + 1 + instruction.k as usize);
                now = u16::MAX;
            }
            op if op & 0x07 == JMP => {
                into(at + 1 + usize::from(instruction.jt));
                into(at + 1 + usize::from(instruction.jf));
                now = u16::MAX;
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACCEPT: Instruction = Instruction::plain(RET | K, 1);

    #[track_caller]
    fn refused(program: &[Instruction], reason: BadProgram) {
        assert_eq!(verify(program), Err(reason));
    }

    #[test]
    fn a_program_ends_with_a_return_and_has_bounds() {
        assert_eq!(verify(&[ACCEPT]), Ok(()));
        refused(&[], BadProgram::Empty);
        refused(&[Instruction::plain(LD | IMM, 0)], BadProgram::NoReturn);
        refused(&[ACCEPT; LEN_MAX + 1], BadProgram::TooLong(LEN_MAX + 1));
        assert_eq!(verify(&[ACCEPT; LEN_MAX]), Ok(()));
    }

    #[test]
    fn jumps_stay_inside() {
        let test = |jt, jf| Instruction { op: JMP | JEQ, jt, jf, k: 0 };
        assert_eq!(verify(&[test(0, 1), ACCEPT, ACCEPT]), Ok(()));
        refused(&[test(0, 2), ACCEPT, ACCEPT], BadProgram::Jump(0));
        refused(&[test(2, 0), ACCEPT, ACCEPT], BadProgram::Jump(0));
        refused(&[Instruction::plain(JMP | JA, 1), ACCEPT], BadProgram::Jump(0));
        refused(&[Instruction::plain(JMP | JA, u32::MAX), ACCEPT], BadProgram::Jump(0));
    }

    #[test]
    fn operands_are_checked() {
        for (op, k, reason) in [
            (ALU | DIV, 0, BadProgram::Divide(0)),
            (ALU | MOD, 0, BadProgram::Divide(0)),
            (ALU | LSH, 32, BadProgram::Shift(0)),
            (ALU | RSH, 40, BadProgram::Shift(0)),
            (ST, 16, BadProgram::Memory(0)),
            (LD | MEM, 3, BadProgram::Unwritten(0)),
            (LD | ABS, 0xffff_f041, BadProgram::Ancillary(0)),
            (0xb4, 0, BadProgram::Unknown { at: 0, op: 0xb4 }),
            (0x1ff, 0, BadProgram::Unknown { at: 0, op: 0x1ff }),
            (0x128, 0, BadProgram::Unknown { at: 0, op: 0x128 }),
        ] {
            refused(&[Instruction::plain(op, k), ACCEPT], reason);
        }
        for op in [ALU | DIV, ALU | LSH, ALU | XOR, LD | ABS | H, LD | IND | B, LDX | MSH | B, MISC | TXA] {
            assert_eq!(verify(&[Instruction::plain(op, 4), ACCEPT]), Ok(()), "{op:#x}");
        }
        assert_eq!(verify(&[Instruction::plain(LD | ABS, 0xffff_f004), ACCEPT]), Ok(()));
    }

    #[test]
    fn memory_is_written_on_every_way_before_it_is_read() {
        let branch = Instruction { op: JMP | JEQ, jt: 0, jf: 1, k: 0 };
        let (store, load) = (Instruction::plain(ST, 2), Instruction::plain(LD | MEM, 2));
        refused(&[branch, store, load, ACCEPT], BadProgram::Unwritten(2));
        assert_eq!(verify(&[store, branch, store, load, ACCEPT]), Ok(()));
    }

    #[test]
    fn any_words_are_judged_without_panic() {
        let mut seed = 0x2545_f491_4f6c_dd1d_u64;
        let mut next = || {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed
        };
        for _ in 0..20_000 {
            let len = (next() % 12) as usize;
            let program: Vec<Instruction> = (0..len)
                .map(|_| {
                    let word = next();
                    let k = if word & 1 == 0 { (word >> 40) as u32 & 0x1f } else { (word >> 32) as u32 };
                    let small = |bits: u64| (bits & 0x07) as u8;
                    Instruction {
                        op: (word >> 8) as u16 & 0xff,
                        jt: small(word >> 24),
                        jf: small(word >> 27),
                        k,
                    }
                })
                .collect();
            // What is accepted runs to its end.
            if verify(&program).is_ok() {
                crate::run(&program, &[1, 2, 3, 4, 5, 6, 7, 8]);
            }
        }
    }
}
