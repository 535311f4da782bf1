//! The support bundle of a caller with few roles, unpacked.

use std::io::Read as _;

use anyhow::{Context, Result, ensure};
use ichor_live::Fleet;

use super::sweep::Found;

/// The signature of an entry in a zip's directory, and of the end of that.
const ENTRY: &[u8] = b"PK\x01\x02";
const END: &[u8] = b"PK\x05\x06";

/// Has the support bundle made with a certificate of this role, and gives its files.
pub(super) fn collect(fleet: &Fleet, role: &str) -> Result<Vec<Found>> {
    let name = role.replace(':', "-");
    let (config, bundle) =
        (fleet.home().join(format!("{name}.yaml")), fleet.home().join(format!("{name}.zip")));
    let (config, bundle) = (config.to_string_lossy().into_owned(), bundle.to_string_lossy().into_owned());
    let (first, second) = (fleet.address(0), fleet.address(1));
    fleet.ok(&["-n", &first, "config", "new", "--roles", role, &config])?;
    let nodes = format!("{first},{second}");
    let endpoint = fleet.loopback(0);
    // What this role may not read is an error of the bundle, and no reason not to write it.
    let output =
        fleet.run(&["--talosconfig", &config, "-e", &endpoint, "-n", &nodes, "support", "-O", &bundle])?;
    let zip = std::fs::read(&bundle)
        .with_context(|| format!("no bundle: {}", String::from_utf8_lossy(&output.stderr)))?;
    let mut files = entries(&zip)?;
    ensure!(files.len() > 100, "{} files in the bundle", files.len());
    files.push(Found { name: "what it printed".to_owned(), bytes: [output.stdout, output.stderr].concat() });
    Ok(files)
}

fn number(bytes: &[u8], at: usize, len: usize) -> Result<usize> {
    let bytes = bytes.get(at..at + len).context("the bundle is cut off")?;
    Ok(bytes.iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte)))
}

/// The files of a zip archive, by its directory.
fn entries(zip: &[u8]) -> Result<Vec<Found>> {
    let end = zip.windows(4).rposition(|window| window == END).context("no zip archive")?;
    let mut at = number(zip, end + 16, 4)?;
    let mut files = Vec::new();
    for _ in 0..number(zip, end + 10, 2)? {
        ensure!(zip.get(at..at + 4) == Some(ENTRY), "a broken directory");
        let (method, packed) = (number(zip, at + 10, 2)?, number(zip, at + 20, 4)?);
        let (name, extra, comment) =
            (number(zip, at + 28, 2)?, number(zip, at + 30, 2)?, number(zip, at + 32, 2)?);
        let local = number(zip, at + 42, 4)?;
        let text = zip.get(at + 46..at + 46 + name).context("the bundle is cut off")?;
        let start = local + 30 + number(zip, local + 26, 2)? + number(zip, local + 28, 2)?;
        let data = zip.get(start..start + packed).context("the bundle is cut off")?;
        let mut bytes = Vec::new();
        match method {
            0 => bytes.extend_from_slice(data),
            8 => drop(flate2::read::DeflateDecoder::new(data).read_to_end(&mut bytes)?),
            other => anyhow::bail!("compression {other} in the bundle"),
        }
        files.push(Found { name: String::from_utf8_lossy(text).into_owned(), bytes });
        at += 46 + name + extra + comment;
    }
    Ok(files)
}
