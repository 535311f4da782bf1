//! An interpreter, for tests and for looking at packets without a kernel.

use crate::instruction::*;

/// Runs a program over a packet and gives the number of bytes to keep; 0 drops the packet. Loads beyond the
/// packet, and what the kernel would refuse, drop it too. Ends always: jumps go forward only.
pub fn run(program: &[Instruction], packet: &[u8]) -> u32 {
    step_through(program, packet).unwrap_or(0)
}

fn step_through(program: &[Instruction], packet: &[u8]) -> Option<u32> {
    let (mut a, mut x) = (0_u32, 0_u32);
    let mut memory = [0_u32; MEMORY];
    let mut at = 0_usize;
    loop {
        let Instruction { op, jt, jf, k } = *program.get(at)?;
        at += 1;
        let operand = if op & X == 0 { k } else { x };
        match op & 0x07 {
            LD => {
                a = match op & 0xe0 {
                    ABS => load(packet, k, op)?,
                    IND => load(packet, x.checked_add(k)?, op)?,
                    IMM => k,
                    MEM => *memory.get(k as usize)?,
                    LEN => u32::try_from(packet.len()).ok()?,
                    _ => return None,
                }
            }
            LDX => {
                x = match op & 0xe0 {
                    IMM => k,
                    MEM => *memory.get(k as usize)?,
                    LEN => u32::try_from(packet.len()).ok()?,
                    MSH => (load(packet, k, B)? & 0x0f) << 2,
                    _ => return None,
                }
            }
            ST => *memory.get_mut(k as usize)? = a,
            STX => *memory.get_mut(k as usize)? = x,
            ALU => {
                a = match op & 0xf0 {
                    ADD => a.wrapping_add(operand),
                    SUB => a.wrapping_sub(operand),
                    MUL => a.wrapping_mul(operand),
                    DIV => a.checked_div(operand)?,
                    MOD => a.checked_rem(operand)?,
                    OR => a | operand,
                    AND => a & operand,
                    XOR => a ^ operand,
                    LSH => a.wrapping_shl(operand),
                    RSH => a.wrapping_shr(operand),
                    NEG => a.wrapping_neg(),
                    _ => return None,
                }
            }
            JMP if op & 0xf0 == JA => at = at.checked_add(k as usize)?,
            JMP => {
                let holds = match op & 0xf0 {
                    JEQ => a == operand,
                    JGT => a > operand,
                    JGE => a >= operand,
                    JSET => a & operand != 0,
                    _ => return None,
                };
                at += usize::from(if holds { jt } else { jf });
            }
            RET => return Some(if op & 0x18 == A { a } else { k }),
            _ if op & 0xf8 == TXA => a = x,
            _ => x = a,
        }
    }
}

fn load(packet: &[u8], at: u32, op: u16) -> Option<u32> {
    let at = at as usize;
    match op & 0x18 {
        W => Some(u32::from_be_bytes(packet.get(at..at.checked_add(4)?)?.try_into().ok()?)),
        H => Some(u32::from(u16::from_be_bytes(packet.get(at..at.checked_add(2)?)?.try_into().ok()?))),
        _ => packet.get(at).map(|byte| u32::from(*byte)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_and_memory_work() {
        let program = [
            Instruction::plain(LD | ABS | H, 1),
            Instruction::plain(ST, 3),
            Instruction::plain(ALU | RSH, 8),
            Instruction::plain(MISC | TAX, 0),
            Instruction::plain(LD | MEM, 3),
            Instruction::plain(ALU | SUB | X, 0),
            Instruction::plain(RET | A, 0),
        ];
        crate::verify(&program).unwrap();
        assert_eq!(run(&program, &[0, 1, 2]), 0x0102 - 1);
        assert_eq!(run(&program, &[0, 1]), 0, "a load beyond the packet drops it");
    }
}
