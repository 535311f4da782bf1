//! Guesses what a misspelt word was meant to be.

/// `did you mean …?` if a known word is close.
pub fn did_you_mean<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<String> {
    closest(word, known).map(|guess| format!("did you mean {guess:?}?"))
}

/// The closest known word, if it is close enough to be a slip.
pub fn closest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // Longer inputs are not slips of a pen, and comparing them costs.
    if word.len() > 64 {
        return None;
    }
    let lower = word.to_lowercase();
    let allowed = (word.chars().count() / 3).clamp(1, 3);
    known
        .map(|candidate| (distance(&lower, &candidate.to_lowercase()), candidate))
        .filter(|(distance, _)| *distance <= allowed)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Edits between two words; swapping two neighbours counts as one.
fn distance(left: &str, right: &str) -> usize {
    let left: Vec<char> = left.chars().collect();
    let right: Vec<char> = right.chars().collect();
    let width = right.len() + 1;
    let mut rows = vec![0usize; (left.len() + 1) * width];
    for i in 0..=left.len() {
        for j in 0..=right.len() {
            rows[i * width + j] = if i == 0 || j == 0 {
                i + j
            } else {
                let cost = usize::from(left[i - 1] != right[j - 1]);
                let mut best = (rows[(i - 1) * width + j] + 1)
                    .min(rows[i * width + j - 1] + 1)
                    .min(rows[(i - 1) * width + j - 1] + cost);
                if i > 1 && j > 1 && left[i - 1] == right[j - 2] && left[i - 2] == right[j - 1] {
                    best = best.min(rows[(i - 2) * width + j - 2] + 1);
                }
                best
            };
        }
    }
    rows[left.len() * width + right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_find_their_word_and_others_do_not() {
        let known = ["image", "extraArgs", "clusterDNS", "nodeIP"];
        for (word, want) in [
            ("imagge", Some("image")),
            ("extraargs", Some("extraArgs")),
            ("clusterdns", Some("clusterDNS")),
            ("nodePI", Some("nodeIP")),
            ("zebra", None),
            ("x", None),
        ] {
            assert_eq!(closest(word, known.into_iter()), want, "{word}");
        }
    }
}
