//! Natural order of map keys: letters by code point, digit runs by value, other signs before letters.

use std::cmp::Ordering;

/// Compares two keys the way printed maps are sorted.
pub fn compare(left: &str, right: &str) -> Ordering {
    let left: Vec<char> = left.chars().collect();
    let right: Vec<char> = right.chars().collect();
    let mut after_digit = false;
    for i in 0..left.len().min(right.len()) {
        let (a, b) = (left[i], right[i]);
        if a == b {
            after_digit = a.is_ascii_digit();
            continue;
        }
        return match (a.is_alphabetic(), b.is_alphabetic()) {
            (true, true) => a.cmp(&b),
            // Inside a digit run the letter ends the number, so it is the smaller one.
            (true, false) => {
                if after_digit {
                    Ordering::Less
                } else {
                    Ordering::Greater
                }
            }
            (false, true) => {
                if after_digit {
                    Ordering::Greater
                } else {
                    Ordering::Less
                }
            }
            (false, false) => compare_signs(&left, &right, i),
        };
    }
    left.len().cmp(&right.len())
}

/// Both keys differ at `at` and neither has a letter there.
fn compare_signs(left: &[char], right: &[char], at: usize) -> Ordering {
    let (a, b) = (left[at], right[at]);
    // A zero counts only as part of a number that began before it with another digit.
    let leading = (a == '0' || b == '0')
        && left[..at].iter().rev().take_while(|c| c.is_ascii_digit()).any(|c| *c != '0');
    let start = u64::from(leading);
    let (left_value, left_len) = digits(&left[at..], start);
    let (right_value, right_len) = digits(&right[at..], start);
    left_value.cmp(&right_value).then(left_len.cmp(&right_len)).then(a.cmp(&b))
}

fn digits(text: &[char], start: u64) -> (u64, usize) {
    let run = text.iter().take_while(|c| c.is_ascii_digit());
    run.fold((start, 0), |(value, len), c| {
        (value.wrapping_mul(10).wrapping_add(u64::from(c.to_digit(10).unwrap_or(0))), len + 1)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_inside_keys_sort_by_value() {
        let mut keys =
            vec!["a10", "a2", "b", "a", "A", "a.b", "ab", "1", "10", "2", "a01", "a1", "a_b", "a-b"];
        keys.sort_by(|a, b| compare(a, b));
        expect_test::expect![[
            r#"["1", "2", "10", "A", "a", "a-b", "a.b", "a_b", "a1", "a01", "a2", "a10", "ab", "b"]"#
        ]]
        .assert_eq(&format!("{keys:?}"));
    }
}
