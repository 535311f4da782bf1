//! Writes random configurations, so that another reader of the format can be asked whether it agrees.
//!
//! `random_configs COUNT DIRECTORY [SEED]` leaves `COUNT` files in our encoding.

#[path = "support/random.rs"]
mod random;

use std::{env, fs, path::PathBuf, process::ExitCode};

use ichor_config::CommentMode;

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [count, directory, rest @ ..] = &arguments[..] else {
        eprintln!("usage: random_configs COUNT DIRECTORY [SEED]");
        return ExitCode::FAILURE;
    };
    let count: usize = count.parse().unwrap_or(200);
    let seed = rest.first().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let mut random = random::Random::new(seed);
    let directory = PathBuf::from(directory);
    for number in 0..count {
        let file = directory.join(format!("{number:04}.yaml"));
        let text = random::documents(&mut random).encode(CommentMode::None);
        if let Err(error) = fs::write(&file, text) {
            eprintln!("{}: {error}", file.display());
            return ExitCode::FAILURE;
        }
    }
    println!("{count} configurations, seed {seed}");
    ExitCode::SUCCESS
}
