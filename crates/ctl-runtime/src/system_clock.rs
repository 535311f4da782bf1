//! The machine's clock and the time servers of the network.

use std::io;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use ichor_net::sntp;
use ichor_sys::clock;

use crate::sync::{Adjustment, Leap, Measurement, TimePort};

/// One server gets so long to answer.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// The real clock, where the machine has one of its own.
#[derive(Debug, Clone, Copy)]
pub struct SystemClock {
    /// False where the clock belongs to somebody else, as in a machine made of namespaces.
    pub owned: bool,
}

impl TimePort for SystemClock {
    fn owns_clock(&self) -> bool {
        self.owned
    }

    async fn query(&self, servers: &[String]) -> io::Result<Measurement> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "no time server is configured");
        for server in servers {
            if server.starts_with("/dev/") {
                match read_device(server).await {
                    Ok(measured) => return Ok(measured),
                    Err(error) => last = io::Error::new(error.kind(), format!("clock {server}: {error}")),
                }
                continue;
            }
            match sntp::query_name(server, ANSWER_MAX).await {
                Ok(sample) => {
                    let leap = match sample.leap {
                        sntp::Leap::None => Leap::None,
                        sntp::Leap::Insert => Leap::Insert,
                        sntp::Leap::Delete => Leap::Delete,
                    };
                    return Ok(Measurement {
                        offset_ns: sample.offset_ns,
                        round_trip: sample.round_trip,
                        leap,
                    });
                }
                Err(error) => last = io::Error::other(chain(&error)),
            }
        }
        Err(last)
    }

    fn adjust(&self, adjustment: Adjustment, leap: Leap) -> io::Result<()> {
        match adjustment {
            Adjustment::Step { offset_ns } => clock::step(offset_ns, leap),
            Adjustment::Slew { offset_ns, constant } => clock::slew(offset_ns, constant, leap),
        }
    }

    fn write_hardware_clock(&self) -> io::Result<()> {
        match clock::write_hardware() {
            // A machine without such a clock has nothing to set.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            done => done,
        }
    }
}

/// Compares the clock with one that is a device. There is no wire in between, so no answer is a spike.
async fn read_device(device: &str) -> io::Result<Measurement> {
    let path = PathBuf::from(device);
    let read = move || ichor_sys::ptp::read(&path).map(|theirs| (theirs, SystemTime::now()));
    let (theirs, ours) = tokio::task::spawn_blocking(read).await??;
    let nanos = |span: Duration| i64::try_from(span.as_nanos()).unwrap_or(i64::MAX);
    let offset_ns = match theirs.duration_since(ours) {
        Ok(ahead) => nanos(ahead),
        Err(behind) => -nanos(behind.duration()),
    };
    Ok(Measurement { offset_ns, round_trip: Duration::ZERO, leap: Leap::None })
}

/// The error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {}", chain(source)),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_device_that_is_no_clock_is_named_and_the_next_server_is_asked() {
        let clock = SystemClock { owned: false };
        let error = clock.query(&["/dev/ptp-none".to_owned()]).await.unwrap_err();
        assert!(error.to_string().starts_with("clock /dev/ptp-none: "), "{error}");
    }
}
