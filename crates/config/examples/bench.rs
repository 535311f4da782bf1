//! Prints what reading, checking and writing a configuration of 30 KB takes in process, as `name microseconds`.

use std::time::Instant;

use ichor_config::{CommentMode, Documents, Mode};

#[path = "support/large.rs"]
mod large;

/// Rounds of a figure; the median counts.
const ROUNDS: usize = 301;

fn main() {
    let text = large::configuration();
    let mut times: Vec<u128> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            let documents = Documents::load(text.as_bytes()).expect("a good configuration");
            documents.validate(Mode::METAL).expect("a valid configuration");
            assert!(documents.encode(CommentMode::None).len() > 20_000);
            start.elapsed().as_nanos()
        })
        .collect();
    times.sort_unstable();
    println!("bytes {}", text.len());
    println!("decode-validate-encode-us {:.1}", times[ROUNDS / 2] as f64 / 1e3);
}
