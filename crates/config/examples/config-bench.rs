//! Prints what reading, checking and writing a configuration of 30 KB takes in process, as `name-us microseconds`.

use std::time::Instant;

use ichor_config::{CommentMode, Documents, Mode};

#[path = "support/large.rs"]
mod large;

/// Rounds of a figure; the median counts.
const ROUNDS: usize = 301;

fn main() {
    for (kind, text) in [("typical", large::typical()), ("dense", large::dense())] {
        let documents = Documents::load(text.as_bytes()).expect("a good configuration");
        println!("{kind}-bytes {}", text.len());
        figure(&format!("{kind}-parse"), || drop(ichor_yaml::parse(&text)));
        figure(&format!("{kind}-decode"), || drop(Documents::load(text.as_bytes())));
        figure(&format!("{kind}-validate"), || drop(documents.validate(Mode::METAL)));
        figure(&format!("{kind}-encode"), || drop(documents.encode(CommentMode::None)));
        figure(&format!("{kind}-all"), || {
            let documents = Documents::load(text.as_bytes()).expect("a good configuration");
            documents.validate(Mode::METAL).expect("a valid configuration");
            assert!(documents.encode(CommentMode::None).len() > 10_000);
        });
    }
}

/// Prints the median time of something.
fn figure(name: &str, run: impl Fn()) {
    let mut times: Vec<u128> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            run();
            start.elapsed().as_nanos()
        })
        .collect();
    times.sort_unstable();
    println!("{name}-us {:.1}", times[ROUNDS / 2] as f64 / 1e3);
}
