//! Reads the counters of an instrumented node for the compiler.
//!
//! A program built with `-C profile-generate` writes its counters to a file when it ends. Daemons of a node may not write files and
//! are seldom ended, so the counters are read from their memory. The rest of the file is the same for every process of a
//! program; it comes from one that was allowed to write.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

/// Of a raw profile of 64 bits, little-endian.
const MAGIC: u64 = 0xff6c_7072_6f66_7281;
/// The layout below is that of this version.
const VERSION: u64 = 10;
const HEADER: usize = 16 * 8;
/// What a function has beside its counters.
const DATA: usize = 64;
const SECTION: &str = "__llvm_prf_cnts";

/// `profile TEMPLATE PROGRAM PID OUT`: writes the raw profile of a running process of `PROGRAM`.
pub(crate) fn run(args: &[String]) -> Result<()> {
    let [template, program, pid, out] = args else {
        bail!("usage: cargo xtask profile TEMPLATE PROGRAM PID OUT");
    };
    let mut profile = fs::read(template).with_context(|| format!("read {template}"))?;
    let counters = counters(&profile).with_context(|| format!("in {template}"))?;
    let maps =
        fs::read_to_string(format!("/proc/{pid}/maps")).with_context(|| format!("look at process {pid}"))?;
    let address = base(&maps)? + section(Path::new(program))?;
    let memory =
        File::open(format!("/proc/{pid}/mem")).with_context(|| format!("open the memory of {pid}"))?;
    memory
        .read_exact_at(&mut profile[counters.clone()], address)
        .with_context(|| format!("read the counters of process {pid}"))?;
    let (words, _) = profile[counters].as_chunks::<8>();
    let counted = words.iter().filter(|word| **word != [0; 8]).count();
    ensure!(counted > 0, "process {pid} counted nothing; is it of {program}?");
    println!("    process {pid}: {counted} of {} counters", words.len());
    fs::write(out, profile).with_context(|| format!("write {out}"))
}

/// Where the counters are in a raw profile.
fn counters(profile: &[u8]) -> Result<std::ops::Range<usize>> {
    let (words, _) = profile.get(..HEADER).context("too short")?.as_chunks::<8>();
    let word = |at: usize| u64::from_le_bytes(words[at]);
    ensure!(word(0) == MAGIC, "no raw profile");
    // The upper byte says what is counted.
    let version = word(1) & 0x00ff_ffff_ffff_ffff;
    ensure!(
        version == VERSION,
        "a raw profile of version {version}, not {VERSION}; xtask/src/profile.rs knows no other"
    );
    let number = |at: usize| usize::try_from(word(at)).context("a length in the header");
    let start = HEADER + number(2)? + number(3)? * DATA + number(4)?;
    let range = start..start + number(5)? * 8;
    ensure!(range.end <= profile.len(), "shorter than its header says");
    Ok(range)
}

/// The address that a position-independent program was loaded at: its first mapping of a file.
fn base(maps: &str) -> Result<u64> {
    let mapped =
        maps.lines().find(|line| line.split_whitespace().nth(5).is_some_and(|name| name.starts_with('/')));
    let start = mapped.and_then(|line| line.split_once('-')).context("no file is mapped")?.0;
    u64::from_str_radix(start, 16).context("an address")
}

/// Where the counters are in the program, as its sections say.
fn section(program: &Path) -> Result<u64> {
    let output = Command::new("readelf").args(["-SW"]).arg(program).output().context("run readelf")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().find(|line| line.contains(SECTION));
    let line = line.with_context(|| format!("{} is not instrumented", program.display()))?;
    let address = line.split_whitespace().skip_while(|word| *word != SECTION).nth(2);
    u64::from_str_radix(address.context("a section without an address")?, 16).context("an address")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(version: u64) -> Vec<u8> {
        let mut words = [0; 16];
        words[..6].copy_from_slice(&[MAGIC, version, 32, 2, 8, 3]);
        words.iter().flat_map(|word: &u64| word.to_le_bytes()).collect()
    }

    #[test]
    fn counters_lie_behind_what_the_header_counts() {
        let mut profile = header(VERSION | 1 << 56);
        profile.resize(400, 0);
        assert_eq!(counters(&profile).unwrap(), 296..320);
        profile.truncate(310);
        assert!(counters(&profile).is_err());
        assert!(counters(&header(9)).unwrap_err().to_string().contains("version 9"));
        assert!(counters(b"short").is_err());
    }

    #[test]
    fn a_program_is_where_its_file_is_mapped() {
        let maps = "55559086c000-555590e38000 rw-p 00000000 00:00 0    [heap]\n\
                    7f9951909000-7f9951b00000 r--p 00000000 07:00 12   /sbin/init\n";
        assert_eq!(base(maps).unwrap(), 0x7f99_5190_9000);
        assert!(base("").is_err());
    }
}
