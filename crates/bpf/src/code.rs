//! Conditions and how they become jumps.

use crate::Instruction;
use crate::instruction::*;

/// A condition over a packet.
#[derive(Clone, Debug)]
pub(crate) enum Condition {
    /// Loads, then one comparison.
    Test {
        load: Vec<Instruction>,
        jump: u16,
        k: u32,
    },
    All(Vec<Condition>),
    Any(Vec<Condition>),
    Not(Box<Condition>),
}

impl Condition {
    /// Never holds.
    pub(crate) fn never() -> Self {
        Self::Any(Vec::new())
    }

    /// A value of the packet compared with `k`.
    pub(crate) fn test(load: Instruction, jump: u16, k: u32) -> Self {
        Self::Test { load: vec![load], jump, k }
    }

    /// A value of the packet, seen through a mask, that equals `k`.
    pub(crate) fn masked(load: Instruction, mask: u32, k: u32) -> Self {
        let mut load = vec![load];
        if mask != u32::MAX {
            load.push(Instruction::plain(ALU | AND, mask));
        }
        Self::Test { load, jump: JEQ, k }
    }

    pub(crate) fn not(self) -> Self {
        Self::Not(Box::new(self))
    }
}

/// A place in the code.
type Label = usize;

/// Where a packet is taken, and where it is dropped.
const TAKE: Label = 0;
const DROP: Label = 1;

enum Item {
    Plain(Instruction),
    Jump { op: u16, k: u32, then: Label, otherwise: Label },
    Mark(Label),
}

/// Makes a program that keeps `keep` bytes of the packets for which the condition holds.
pub(crate) fn assemble(condition: &Condition, keep: u32) -> Vec<Instruction> {
    let mut code = Code { items: Vec::new(), labels: 2 };
    code.emit(condition, TAKE, DROP);
    code.items.push(Item::Mark(TAKE));
    code.items.push(Item::Plain(Instruction::plain(RET | K, keep)));
    code.items.push(Item::Mark(DROP));
    code.items.push(Item::Plain(Instruction::plain(RET | K, 0)));
    code.resolve()
}

struct Code {
    items: Vec<Item>,
    labels: usize,
}

impl Code {
    fn label(&mut self) -> Label {
        self.labels += 1;
        self.labels - 1
    }

    fn emit(&mut self, condition: &Condition, then: Label, otherwise: Label) {
        match condition {
            Condition::Test { load, jump, k } => {
                self.items.extend(load.iter().copied().map(Item::Plain));
                self.items.push(Item::Jump { op: JMP | jump, k: *k, then, otherwise });
            }
            Condition::Not(inner) => self.emit(inner, otherwise, then),
            Condition::All(parts) => self.chain(parts, then, otherwise, true),
            Condition::Any(parts) => self.chain(parts, then, otherwise, false),
        }
    }

    /// Parts one after the other: on to the next while they hold (`all`) or fail.
    fn chain(&mut self, parts: &[Condition], then: Label, otherwise: Label, all: bool) {
        let Some((last, firsts)) = parts.split_last() else {
            let to = if all { then } else { otherwise };
            self.items.push(Item::Jump { op: JMP | JEQ, k: 0, then: to, otherwise: to });
            return;
        };
        for part in firsts {
            let next = self.label();
            match all {
                true => self.emit(part, next, otherwise),
                false => self.emit(part, then, next),
            }
            self.items.push(Item::Mark(next));
        }
        self.emit(last, then, otherwise);
    }

    /// Turns labels into distances. A distance beyond a byte takes the long way over two plain jumps; each
    /// round can only make more jumps long, so it ends.
    fn resolve(&self) -> Vec<Instruction> {
        let mut long = vec![false; self.items.len()];
        loop {
            let places = self.places(&long);
            let mut changed = false;
            let mut program = Vec::new();
            for (index, item) in self.items.iter().enumerate() {
                match item {
                    Item::Mark(_) => {}
                    Item::Plain(instruction) => program.push(*instruction),
                    Item::Jump { op, k, then, otherwise } => {
                        let away = |label: &Label, from: usize| places[*label].saturating_sub(from + 1);
                        let here = program.len();
                        let (jt, jf) = (away(then, here), away(otherwise, here));
                        match (u8::try_from(jt), u8::try_from(jf)) {
                            (Ok(jt), Ok(jf)) if !long[index] => {
                                program.push(Instruction { op: *op, jt, jf, k: *k });
                            }
                            _ => {
                                changed |= !long[index];
                                long[index] = true;
                                program.push(Instruction { op: *op, jt: 0, jf: 1, k: *k });
                                for (label, from) in [(then, here + 1), (otherwise, here + 2)] {
                                    let skip = u32::try_from(away(label, from)).unwrap_or(u32::MAX);
                                    program.push(Instruction::plain(JMP | JA, skip));
                                }
                            }
                        }
                    }
                }
            }
            if !changed {
                return program;
            }
        }
    }

    fn places(&self, long: &[bool]) -> Vec<usize> {
        let mut places = vec![0; self.labels];
        let mut at = 0;
        for (item, long) in self.items.iter().zip(long) {
            match item {
                Item::Mark(label) => places[*label] = at,
                Item::Jump { .. } if *long => at += 3,
                Item::Plain(_) | Item::Jump { .. } => at += 1,
            }
        }
        places
    }
}
