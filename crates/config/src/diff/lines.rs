//! Which lines two texts have in common: the shortest way from one to the other (Myers 1986, in linear space).
//!
//! A library does the same with a copy of its code for every kind of sequence; this one knows numbers only.

use std::collections::HashMap;
use std::ops::Range;

/// Beyond this many differences a better answer is not worth the wait: what is left counts as replaced.
const COST_MAX: usize = 2048;

/// Lines of the old text that give way to lines of the new one; either may be none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) old: Range<usize>,
    pub(super) new: Range<usize>,
}

/// The changes that lead from `old` to `new`, in order, with equal lines between them.
pub(super) fn changes(old: &[&str], new: &[&str]) -> Vec<Change> {
    let mut numbers: HashMap<&str, u32> = HashMap::new();
    let mut number = |line| {
        let next = numbers.len() as u32;
        *numbers.entry(line).or_insert(next)
    };
    let old: Vec<u32> = old.iter().map(|line| number(*line)).collect();
    let new: Vec<u32> = new.iter().map(|line| number(*line)).collect();
    let (mut gone, mut come) = (vec![false; old.len()], vec![false; new.len()]);
    let mut search = Search { old: &old, new: &new, gone: &mut gone, come: &mut come, reach: Vec::new() };
    search.conquer(0..old.len(), 0..new.len());
    settle(&old, &mut gone);
    settle(&new, &mut come);
    join(&gone, &come)
}

struct Search<'a> {
    old: &'a [u32],
    new: &'a [u32],
    gone: &'a mut [bool],
    come: &'a mut [bool],
    /// Furthest positions by diagonal: forward ones, then backward ones.
    reach: Vec<usize>,
}

impl Search<'_> {
    fn conquer(&mut self, mut old: Range<usize>, mut new: Range<usize>) {
        while !old.is_empty() && !new.is_empty() && self.old[old.start] == self.new[new.start] {
            old.start += 1;
            new.start += 1;
        }
        while !old.is_empty() && !new.is_empty() && self.old[old.end - 1] == self.new[new.end - 1] {
            old.end -= 1;
            new.end -= 1;
        }
        let middle = if old.is_empty() || new.is_empty() { None } else { self.middle(&old, &new) };
        match middle {
            // Each half is smaller, and the depth is that of a halved cost.
            Some((x, y)) => {
                self.conquer(old.start..x, new.start..y);
                self.conquer(x..old.end, y..new.end);
            }
            None => {
                self.gone[old].fill(true);
                self.come[new].fill(true);
            }
        }
    }

    /// A point on a shortest way, searched from both ends at once; none when that takes too long.
    fn middle(&mut self, old: &Range<usize>, new: &Range<usize>) -> Option<(usize, usize)> {
        let (n, m) = (old.len() as isize, new.len() as isize);
        let (delta, limit) = (n - m, (n + m + 1) / 2);
        let width = (2 * limit + 2) as usize;
        self.reach.clear();
        self.reach.resize(2 * width, 0);
        let slot = |diagonal: isize| (diagonal + limit) as usize % width;
        for cost in 0..=limit.min(COST_MAX as isize) {
            for diagonal in (-cost..=cost).step_by(2) {
                let right = diagonal == -cost
                    || (diagonal != cost && self.reach[slot(diagonal - 1)] < self.reach[slot(diagonal + 1)]);
                let mut x = match (cost, right) {
                    (0, _) => 0,
                    (_, true) => self.reach[slot(diagonal + 1)],
                    (_, false) => self.reach[slot(diagonal - 1)] + 1,
                };
                let mut y = (x as isize - diagonal) as usize;
                while x < old.len() && y < new.len() && self.old[old.start + x] == self.new[new.start + y] {
                    x += 1;
                    y += 1;
                }
                self.reach[slot(diagonal)] = x;
                let other = delta - diagonal;
                if delta % 2 != 0
                    && (1 - cost..cost).contains(&other)
                    && x + self.reach[width + slot(other)] >= old.len()
                {
                    return inside(old, new, x, y);
                }
            }
            for diagonal in (-cost..=cost).step_by(2) {
                let right = diagonal == -cost
                    || (diagonal != cost
                        && self.reach[width + slot(diagonal - 1)] < self.reach[width + slot(diagonal + 1)]);
                let mut x = match (cost, right) {
                    (0, _) => 0,
                    (_, true) => self.reach[width + slot(diagonal + 1)],
                    (_, false) => self.reach[width + slot(diagonal - 1)] + 1,
                };
                let mut y = (x as isize - diagonal) as usize;
                while x < old.len() && y < new.len() && self.old[old.end - 1 - x] == self.new[new.end - 1 - y]
                {
                    x += 1;
                    y += 1;
                }
                self.reach[width + slot(diagonal)] = x;
                let other = delta - diagonal;
                if delta % 2 == 0
                    && (-cost..=cost).contains(&other)
                    && x + self.reach[slot(other)] >= old.len()
                {
                    return inside(old, new, old.len() - x.min(old.len()), new.len() - y.min(new.len()));
                }
            }
        }
        None
    }
}

/// The point, unless it is a corner: then nothing would get smaller.
fn inside(old: &Range<usize>, new: &Range<usize>, x: usize, y: usize) -> Option<(usize, usize)> {
    let (x, y) = (x.min(old.len()), y.min(new.len()));
    let corner = (x == 0 && y == 0) || (x == old.len() && y == new.len());
    (!corner).then_some((old.start + x, new.start + y))
}

/// Moves each run of marked lines down as far as equal lines let it, as people expect it.
fn settle(lines: &[u32], marked: &mut [bool]) {
    let mut at = 0;
    while at < marked.len() {
        if !marked[at] {
            at += 1;
            continue;
        }
        let mut start = at;
        let mut end = at;
        loop {
            while end < marked.len() && marked[end] {
                end += 1;
            }
            if end == marked.len() || lines[start] != lines[end] {
                break;
            }
            marked[start] = false;
            marked[end] = true;
            start += 1;
        }
        at = end;
    }
}

fn join(gone: &[bool], come: &[bool]) -> Vec<Change> {
    let mut out = Vec::new();
    let (mut x, mut y) = (0, 0);
    while x < gone.len() || y < come.len() {
        let (from_x, from_y) = (x, y);
        while gone.get(x).is_some_and(|marked| *marked) {
            x += 1;
        }
        while come.get(y).is_some_and(|marked| *marked) {
            y += 1;
        }
        if (x, y) == (from_x, from_y) {
            x += 1;
            y += 1;
            continue;
        }
        out.push(Change { old: from_x..x, new: from_y..y });
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the changes make of `old`.
    fn apply<'a>(old: &[&'a str], new: &[&'a str]) -> Vec<&'a str> {
        let mut out = Vec::new();
        let mut at = 0;
        for change in changes(old, new) {
            out.extend(&old[at..change.old.start]);
            out.extend(&new[change.new.clone()]);
            at = change.old.end;
        }
        out.extend(&old[at..]);
        out
    }

    /// The length of a shortest way, by the slow table.
    fn cost(old: &[&str], new: &[&str]) -> usize {
        let mut row: Vec<usize> = (0..=new.len()).collect();
        for (i, a) in old.iter().enumerate() {
            let mut corner = row[0];
            row[0] = i + 1;
            for (j, b) in new.iter().enumerate() {
                let next = if a == b { corner } else { 1 + row[j].min(row[j + 1]) };
                corner = std::mem::replace(&mut row[j + 1], next);
            }
        }
        row[new.len()]
    }

    #[test]
    fn the_way_is_right_and_shortest() {
        let mut seed = 7_u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        let words = ["a", "b", "c", "d", "e", "f", "g", "h"];
        for round in 0..4000 {
            let letters = 1 + round % 8;
            let mut text = |len: u64| -> Vec<&str> {
                (0..random(len)).map(|_| words[random(letters) as usize]).collect()
            };
            let (old, new) = (text(30), text(30));
            assert_eq!(apply(&old, &new), new, "{old:?} {new:?}");
            let found: usize = changes(&old, &new).iter().map(|c| c.old.len() + c.new.len()).sum();
            assert_eq!(found, cost(&old, &new), "{old:?} {new:?}");
        }
    }

    #[test]
    fn texts_with_nothing_in_common_take_no_time() {
        let old: Vec<String> = (0..50_000).map(|i| format!("old {i}")).collect();
        let new: Vec<String> = (0..50_000).map(|i| format!("new {i}")).collect();
        let (old, new): (Vec<&str>, Vec<&str>) =
            (old.iter().map(String::as_str).collect(), new.iter().map(String::as_str).collect());
        let start = std::time::Instant::now();
        assert_eq!(changes(&old, &new), [Change { old: 0..50_000, new: 0..50_000 }]);
        assert!(start.elapsed() < std::time::Duration::from_secs(5));
    }
}
