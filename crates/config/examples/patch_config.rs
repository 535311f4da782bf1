//! Applies patches to a configuration, so that the result can be compared with another implementation's.
//!
//! `patch_config CONFIG PATCH...` prints the patched text; without patches the configuration is written anew.

use std::{env, fs, process::ExitCode};

use ichor_config::{CommentMode, Documents, patch};

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [config, patches @ ..] = &arguments[..] else {
        eprintln!("usage: patch_config CONFIG PATCH...");
        return ExitCode::FAILURE;
    };
    let files: Vec<String> = patches.iter().map(|path| format!("@{path}")).collect();
    let result = fs::read(config).map_err(|error| error.to_string()).and_then(|text| {
        if files.is_empty() {
            let documents = Documents::load(&text).map_err(|error| error.to_string())?;
            return Ok(documents.encode(CommentMode::None).into_bytes());
        }
        let patches = patch::load_all(&files, |path| fs::read(path)).map_err(|error| error.to_string())?;
        patch::apply_to_bytes(&text, &patches).map_err(|error| error.to_string())
    });
    match result {
        Ok(text) => {
            print!("{}", String::from_utf8_lossy(&text));
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("ERROR: {error}");
            ExitCode::FAILURE
        }
    }
}
