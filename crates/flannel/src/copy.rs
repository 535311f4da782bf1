//! `cp`: as much of it as putting one file in place takes.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ichor_sys::file::Draft;

/// `cp [-f] FROM... TO`.
pub fn main(args: &[String]) -> ExitCode {
    let mut paths: Vec<&str> = Vec::new();
    for arg in args {
        match arg.as_str() {
            "-f" | "--force" | "--" => {}
            flag if flag.starts_with('-') => {
                eprintln!("cp: unknown option {flag}; only -f is known");
                return ExitCode::from(2);
            }
            path => paths.push(path),
        }
    }
    let Some((to, from)) = paths.split_last().filter(|(_, from)| !from.is_empty()) else {
        eprintln!("usage: cp [-f] FROM... TO");
        return ExitCode::from(2);
    };
    let to = Path::new(to);
    if from.len() > 1 && !to.is_dir() {
        eprintln!("cp: {} is not a directory", to.display());
        return ExitCode::FAILURE;
    }
    for from in from.iter().map(Path::new) {
        if let Err(error) = copy(from, to) {
            eprintln!("cp: {} to {}: {error}", from.display(), to.display());
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// Copies a file to a path, or into a directory. Readers see the old file or the new one, whole.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let to: PathBuf = match (to.is_dir(), from.file_name()) {
        (true, Some(name)) => to.join(name),
        _ => to.to_owned(),
    };
    let mut from = fs::File::open(from)?;
    let mode = from.metadata()?.permissions().mode();
    let mut draft = Draft::create(&to, mode & 0o7777)?;
    io::copy(&mut from, &mut draft)?;
    draft.commit()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_put_in_place_by_path_or_into_a_directory() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("a"), "one").unwrap();
        fs::create_dir(at("d")).unwrap();
        let run = |args: &[&Path]| {
            let mut args: Vec<String> = args.iter().map(|path| path.display().to_string()).collect();
            args.insert(0, "-f".into());
            main(&args)
        };
        assert_eq!(run(&[&at("a"), &at("b")]), ExitCode::SUCCESS);
        assert_eq!(run(&[&at("a"), &at("d")]), ExitCode::SUCCESS);
        assert_eq!(fs::read_to_string(at("b")).unwrap(), "one");
        fs::write(at("a"), "two").unwrap();
        assert_eq!(run(&[&at("a"), &at("d")]), ExitCode::SUCCESS);
        assert_eq!(fs::read_to_string(at("d/a")).unwrap(), "two");
        assert_eq!(fs::read_dir(at("d")).unwrap().count(), 1, "nothing is left over");
        assert_ne!(run(&[&at("none"), &at("b")]), ExitCode::SUCCESS);
        assert_ne!(run(&[&at("a")]), ExitCode::SUCCESS);
        assert_ne!(main(&["-r".into(), "a".into(), "b".into()]), ExitCode::SUCCESS);
    }
}
