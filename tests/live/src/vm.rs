//! Machines on a real kernel, in QEMU without KVM, and who tells them the time.

use std::fs;
use std::net::{TcpListener, UdpSocket};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};

use crate::root;

/// Longest wait for a step: there is no hardware that helps, and the host may be busy.
pub const BOOT_MAX: Duration = Duration::from_secs(400);

/// A virtual machine that ends with the test.
pub struct Machine {
    qemu: Child,
    console: PathBuf,
}

impl Machine {
    /// Boots one whose API is at this address of the host's loopback.
    ///
    /// # Errors
    /// When the address is taken or QEMU does not start.
    pub fn boot(address: &str) -> Result<Self> {
        Self::boot_with(address, &[], &[])
    }

    /// The same with more arguments of QEMU and environment of the script.
    ///
    /// # Errors
    /// As [`Self::boot`].
    pub fn boot_with(address: &str, args: &[&str], env: &[(&str, &str)]) -> Result<Self> {
        // A socket that can be bound now can be bound by QEMU in a moment.
        drop(TcpListener::bind((address, 50000)).with_context(|| format!("{address}:50000 is busy"))?);
        let console = root().join("build/vm/console.log");
        let qemu = Command::new(root().join("scripts/vm"))
            .args(["qemu", "-serial", "stdio"])
            .args(args)
            .env("ICHOR_VM_ADDRESS", address)
            .envs(env.iter().copied())
            .stdin(Stdio::null())
            .stdout(fs::File::create(&console)?)
            .stderr(Stdio::inherit())
            .spawn()
            .context("start scripts/vm")?;
        Ok(Self { qemu, console })
    }

    /// How it ended, once it did.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.qemu.try_wait().ok().flatten()
    }

    /// What it said on its console.
    pub fn console(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.console).unwrap_or_default()).into_owned()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
        if std::thread::panicking() {
            eprintln!("console:\n{}", self.console());
        }
    }
}

/// A time server on the host's loopback, where the machine's gateway leads to: it tells a time once it is told to.
pub struct TimeServer {
    tells: Arc<AtomicBool>,
    behind: Arc<AtomicI64>,
    asked: Arc<AtomicBool>,
}

impl TimeServer {
    /// Seconds from 1900 to 1970.
    const EPOCH: i64 = 2_208_988_800;

    /// One that is silent.
    ///
    /// # Errors
    /// When somebody else has the port.
    pub fn start() -> Result<Self> {
        let socket = UdpSocket::bind("127.0.0.1:123").context("127.0.0.1:123 is busy")?;
        let server = Self { tells: Arc::default(), behind: Arc::default(), asked: Arc::default() };
        let (tells, behind, asked) =
            (Arc::clone(&server.tells), Arc::clone(&server.behind), Arc::clone(&server.asked));
        // Ends with the test.
        std::thread::spawn(move || {
            let mut question = [0; 128];
            while let Ok((length, from)) = socket.recv_from(&mut question) {
                asked.store(true, Ordering::SeqCst);
                if length >= 48 && tells.load(Ordering::SeqCst) {
                    let _ = socket.send_to(&Self::answer(&question, behind.load(Ordering::SeqCst)), from);
                }
            }
        });
        Ok(server)
    }

    /// Whether a machine wanted to know.
    pub fn was_asked(&self) -> bool {
        self.asked.load(Ordering::SeqCst)
    }

    /// From now on it is silent, and forgets that it was asked.
    pub fn hush(&self) {
        self.tells.store(false, Ordering::SeqCst);
        self.asked.store(false, Ordering::SeqCst);
    }

    /// From now on it tells a time this many seconds behind the host's.
    pub fn tell(&self, behind: i64) {
        self.behind.store(behind, Ordering::SeqCst);
        self.tells.store(true, Ordering::SeqCst);
    }

    fn answer(question: &[u8], behind: i64) -> [u8; 48] {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let seconds = i64::try_from(now.as_secs()).unwrap_or_default() + Self::EPOCH - behind;
        let seconds = u32::try_from(seconds).unwrap_or_default();
        let fraction = (u64::from(now.subsec_nanos()) << 32) / 1_000_000_000;
        let stamp = [seconds.to_be_bytes(), (fraction as u32).to_be_bytes()].concat();
        let mut answer = [0; 48];
        // Version 4, a server next to a reference clock, precise to a microsecond.
        answer[..4].copy_from_slice(&[0x24, 1, 6, 0xec]);
        answer[12..16].copy_from_slice(b"TEST");
        answer[24..32].copy_from_slice(&question[40..48]);
        for at in [16, 32, 40] {
            answer[at..at + 8].copy_from_slice(&stamp);
        }
        answer
    }
}
