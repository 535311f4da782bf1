//! Snapshots of a machine that runs: memory, devices and disks, kept in its first disk (`disk-format` `qcow2`).

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use ichor_provision::{Provider as _, ProvisionError, check_name};

use crate::{Qemu, qmp};

/// Memory is written to a file, or read from it.
const SNAPSHOT_MAX: Duration = Duration::from_secs(300);
/// Lines that are read before an answer: greeting and events.
const LINES_MAX: usize = 1000;

/// Keeps the present state of a machine under a name.
///
/// # Errors
/// When it does not run, or its disks cannot hold snapshots.
pub fn save(provider: &Qemu, cluster: &str, machine: &str, name: &str) -> Result<(), ProvisionError> {
    act(provider, cluster, machine, "savevm", name)
}

/// Takes a machine back to the state it had under a name.
///
/// # Errors
/// When it does not run, or there is no such state.
pub fn load(provider: &Qemu, cluster: &str, machine: &str, name: &str) -> Result<(), ProvisionError> {
    act(provider, cluster, machine, "loadvm", name)
}

fn act(provider: &Qemu, cluster: &str, machine: &str, verb: &str, name: &str) -> Result<(), ProvisionError> {
    // It becomes part of a line for the monitor.
    check_name(name)?;
    provider.store().load(cluster)?.machine(machine)?;
    let place = provider.layout(cluster)?.machine(machine);
    let told = File::open(&place).and_then(|place| ask(&place, &qmp::human(&format!("{verb} {name}"))));
    let failed = |text: String| ProvisionError::Failed { text: format!("{verb} of {machine}: {text}") };
    match told {
        Ok(Ok(text)) if text.trim().is_empty() => Ok(()),
        Ok(Ok(text) | Err(text)) => Err(failed(text.trim().to_owned())),
        Err(error) => Err(failed(format!("its monitor does not answer: {error}"))),
    }
}

/// Says a line to the monitor in a machine's directory. Through a descriptor, as its path may be too long for a socket.
fn ask(place: &File, line: &str) -> io::Result<Result<String, String>> {
    let mut stream = UnixStream::connect(format!("/proc/self/fd/{}/qmp", place.as_raw_fd()))?;
    stream.set_read_timeout(Some(SNAPSHOT_MAX))?;
    stream.set_write_timeout(Some(SNAPSHOT_MAX))?;
    stream.write_all(qmp::hello().as_bytes())?;
    stream.write_all(line.as_bytes())?;
    let mut reader = BufReader::new(stream.take((LINES_MAX * qmp::LINE_MAX) as u64));
    let mut answers = 0;
    for _ in 0..LINES_MAX {
        let mut line = Vec::new();
        if reader.read_until(b'\n', &mut line)? == 0 {
            break;
        }
        // The first answer is to the greeting.
        match qmp::answer(&line) {
            Some(answer) if answers > 0 || answer.is_err() => return Ok(answer),
            Some(_) => answers += 1,
            None => {}
        }
    }
    Err(io::ErrorKind::UnexpectedEof.into())
}
