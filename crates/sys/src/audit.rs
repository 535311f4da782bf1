//! The kernel's audit records over netlink.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use rustix::net::{RecvFlags, SendFlags};

/// Records a second that the kernel sends at most.
pub const RATE_LIMIT: u32 = 4096;
/// Records that the kernel keeps for a reader that is slow.
pub const BACKLOG_LIMIT: u32 = 8192;

/// `AUDIT_GET` and `AUDIT_SET`.
const GET: u16 = 1000;
const SET: u16 = 1001;
const ERROR: u16 = libc::NLMSG_ERROR as u16;
/// Messages about events; what is below and above is conversation with the kernel.
const EVENTS: std::ops::RangeInclusive<u16> = 1100..=2999;
const HEADER_LEN: usize = 16;
/// Longer than any record the kernel hands out.
const MESSAGE_MAX: usize = 16 * 1024;
/// The kernel answers within the call that asks; records may come in between.
const ANSWER_MAX: Duration = Duration::from_secs(1);
const ANSWER_MESSAGES_MAX: usize = 64;

/// Which fields of a status the kernel is to take.
const MASK_ENABLED: u32 = 1;
const MASK_PID: u32 = 4;
const MASK_RATE: u32 = 8;
const MASK_BACKLOG: u32 = 16;
/// Words of `struct audit_status` that every kernel knows.
const STATUS_WORDS: usize = 8;

/// One record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its type, by number.
    pub kind: u16,
    /// What happened.
    pub text: String,
}

impl Record {
    /// `type=<name> msg=<text>`, on one line.
    pub fn line(&self) -> String {
        let text = self.text.replace(['\n', '\r'], " ");
        match names::of(self.kind) {
            Some(name) => format!("type={name} msg={text}"),
            None => format!("type=UNKNOWN[{}] msg={text}", self.kind),
        }
    }
}

/// What came over the socket.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Message {
    Record(Record),
    /// Errno of a request, 0 when it was done.
    Answer(i32),
    /// `enabled` and the process that gets the records.
    Status {
        enabled: u32,
    },
    Other,
}

/// Reads a datagram. Its length counts: the kernel leaves the header out of the length it writes there.
fn parse(datagram: &[u8]) -> Message {
    let Some((header, body)) = datagram.split_at_checked(HEADER_LEN) else { return Message::Other };
    let word = |at: usize| {
        let bytes = body.get(at * 4..at * 4 + 4)?;
        Some(u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    };
    let kind = u16::from_ne_bytes([header[4], header[5]]);
    match kind {
        ERROR => word(0).map_or(Message::Other, |errno| Message::Answer(-(errno as i32))),
        GET => word(1).map_or(Message::Other, |enabled| Message::Status { enabled }),
        kind if EVENTS.contains(&kind) => {
            let end = body.iter().position(|byte| *byte == 0).unwrap_or(body.len());
            let text = String::from_utf8_lossy(&body[..end]).trim_end().to_owned();
            Message::Record(Record { kind, text })
        }
        _ => Message::Other,
    }
}

fn request(kind: u16, sequence: u32, body: &[u32]) -> Vec<u8> {
    let len = HEADER_LEN + body.len() * 4;
    let mut bytes = Vec::with_capacity(len);
    bytes.extend_from_slice(&(len as u32).to_ne_bytes());
    bytes.extend_from_slice(&kind.to_ne_bytes());
    bytes.extend_from_slice(&((libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16).to_ne_bytes());
    bytes.extend_from_slice(&sequence.to_ne_bytes());
    bytes.extend_from_slice(&0u32.to_ne_bytes());
    body.iter().for_each(|word| bytes.extend_from_slice(&word.to_ne_bytes()));
    bytes
}

/// The receiver of all records. Never blocks while it reads; readable when there is one. Dropped, the kernel writes its
/// records to its log again.
#[derive(Debug)]
pub struct Audit {
    socket: OwnedFd,
    sequence: u32,
    /// Whether auditing was off before.
    was_off: bool,
}

impl AsFd for Audit {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Audit {
    /// Asks whether the kernel has records for this process at all.
    ///
    /// # Errors
    /// Why not: it has no audit subsystem, or this is not its first user or process namespace.
    pub fn probe() -> io::Result<()> {
        Self::connect()?.is_off().map(drop)
    }

    /// Turns auditing on where it is off, and makes this process the one that gets the records.
    ///
    /// # Errors
    /// As [`Self::probe`]; `AlreadyExists` while the kernel has not noticed that an earlier reader is gone.
    pub fn open() -> io::Result<Self> {
        let mut audit = Self::connect()?;
        audit.was_off = audit.is_off()?;
        let mut status = [0; STATUS_WORDS];
        status[0] = MASK_RATE | MASK_BACKLOG;
        (status[4], status[5]) = (RATE_LIMIT, BACKLOG_LIMIT);
        if audit.was_off {
            status[0] |= MASK_ENABLED;
            status[1] = 1;
        }
        audit.set(&status)?;
        let mut claim = [0; STATUS_WORDS];
        (claim[0], claim[3]) = (MASK_PID, std::process::id());
        audit.set(&claim)?;
        Ok(audit)
    }

    fn connect() -> io::Result<Self> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: takes numbers; the descriptor it returns is new and ours.
        let socket = unsafe {
            match libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_AUDIT) {
                -1 => return Err(io::Error::last_os_error()),
                fd => OwnedFd::from_raw_fd(fd),
            }
        };
        Ok(Self { socket, sequence: 0, was_off: false })
    }

    /// Leaves the kernel as it was.
    ///
    /// # Errors
    /// The kernel's.
    pub fn close(mut self) -> io::Result<()> {
        let mut status = [0; STATUS_WORDS];
        status[0] = MASK_PID;
        if self.was_off {
            status[0] |= MASK_ENABLED;
        }
        self.set(&status)
    }

    /// The next record, `None` when all are read.
    ///
    /// # Errors
    /// The kernel's; `ENOBUFS` when records were lost, after which reading goes on.
    pub fn try_next(&mut self) -> io::Result<Option<Record>> {
        // Bounded: whoever makes records faster than they are read must not keep us here for ever.
        for _ in 0..ANSWER_MESSAGES_MAX {
            match self.receive()? {
                Some(Message::Record(record)) => return Ok(Some(record)),
                Some(_) => {}
                None => return Ok(None),
            }
        }
        Ok(None)
    }

    fn is_off(&mut self) -> io::Result<bool> {
        self.send(GET, &[])?;
        self.answer(|message| match message {
            Message::Status { enabled } => Some(Ok(enabled == 0)),
            Message::Answer(0) => None,
            Message::Answer(errno) => Some(Err(io::Error::from_raw_os_error(errno))),
            Message::Record(_) | Message::Other => None,
        })
    }

    fn set(&mut self, status: &[u32; STATUS_WORDS]) -> io::Result<()> {
        self.send(SET, status)?;
        self.answer(|message| match message {
            Message::Answer(0) => Some(Ok(())),
            Message::Answer(errno) => Some(Err(io::Error::from_raw_os_error(errno))),
            Message::Record(_) | Message::Status { .. } | Message::Other => None,
        })
    }

    fn send(&mut self, kind: u16, body: &[u32]) -> io::Result<()> {
        self.sequence += 1;
        rustix::net::send(&self.socket, &request(kind, self.sequence, body), SendFlags::empty())?;
        Ok(())
    }

    fn answer<T>(&mut self, mut take: impl FnMut(Message) -> Option<io::Result<T>>) -> io::Result<T> {
        for _ in 0..ANSWER_MESSAGES_MAX {
            match self.receive()? {
                Some(message) => {
                    if let Some(answer) = take(message) {
                        return answer;
                    }
                }
                None if crate::poll::readable(&self.socket, ANSWER_MAX)? => {}
                None => break,
            }
        }
        Err(io::ErrorKind::TimedOut.into())
    }

    fn receive(&self) -> io::Result<Option<Message>> {
        let mut buffer = [0; MESSAGE_MAX];
        loop {
            match rustix::net::recv(&self.socket, &mut buffer[..], RecvFlags::empty()) {
                Ok((len, _)) => return Ok(Some(parse(&buffer[..len.min(MESSAGE_MAX)]))),
                Err(rustix::io::Errno::AGAIN) => return Ok(None),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Names of record types, as every tool writes them.
mod names {
    const FIRST_USER: u16 = 1100;
    const USER: [&str; 39] = [
        "USER_AUTH",
        "USER_ACCT",
        "USER_MGMT",
        "CRED_ACQ",
        "CRED_DISP",
        "USER_START",
        "USER_END",
        "USER_AVC",
        "USER_CHAUTHTOK",
        "USER_ERR",
        "CRED_REFR",
        "USYS_CONFIG",
        "USER_LOGIN",
        "USER_LOGOUT",
        "ADD_USER",
        "DEL_USER",
        "ADD_GROUP",
        "DEL_GROUP",
        "DAC_CHECK",
        "CHGRP_ID",
        "TEST",
        "TRUSTED_APP",
        "USER_SELINUX_ERR",
        "USER_CMD",
        "USER_TTY",
        "CHUSER_ID",
        "GRP_AUTH",
        "SYSTEM_BOOT",
        "SYSTEM_SHUTDOWN",
        "SYSTEM_RUNLEVEL",
        "SERVICE_START",
        "SERVICE_STOP",
        "GRP_MGMT",
        "GRP_CHAUTHTOK",
        "MAC_CHECK",
        "ACCT_LOCK",
        "ACCT_UNLOCK",
        "USER_DEVICE",
        "SOFTWARE_UPDATE",
    ];
    /// Of the kernel, by number.
    const KERNEL: &[(u16, &str)] = &[
        (1300, "SYSCALL"),
        (1302, "PATH"),
        (1303, "IPC"),
        (1304, "SOCKETCALL"),
        (1305, "CONFIG_CHANGE"),
        (1306, "SOCKADDR"),
        (1307, "CWD"),
        (1309, "EXECVE"),
        (1311, "IPC_SET_PERM"),
        (1312, "MQ_OPEN"),
        (1313, "MQ_SENDRECV"),
        (1314, "MQ_NOTIFY"),
        (1315, "MQ_GETSETATTR"),
        (1316, "KERNEL_OTHER"),
        (1317, "FD_PAIR"),
        (1318, "OBJ_PID"),
        (1319, "TTY"),
        (1320, "EOE"),
        (1321, "BPRM_FCAPS"),
        (1322, "CAPSET"),
        (1323, "MMAP"),
        (1324, "NETFILTER_PKT"),
        (1325, "NETFILTER_CFG"),
        (1326, "SECCOMP"),
        (1327, "PROCTITLE"),
        (1328, "FEATURE_CHANGE"),
        (1329, "REPLACE"),
        (1330, "KERN_MODULE"),
        (1331, "FANOTIFY"),
        (1332, "TIME_INJOFFSET"),
        (1333, "TIME_ADJNTPVAL"),
        (1334, "BPF"),
        (1335, "EVENT_LISTENER"),
        (1336, "URINGOP"),
        (1337, "OPENAT2"),
        (1338, "DM_CTRL"),
        (1339, "DM_EVENT"),
        (1400, "AVC"),
        (1401, "SELINUX_ERR"),
        (1402, "AVC_PATH"),
        (1403, "MAC_POLICY_LOAD"),
        (1404, "MAC_STATUS"),
        (1405, "MAC_CONFIG_CHANGE"),
        (1415, "MAC_IPSEC_EVENT"),
        (1503, "APPARMOR_DENIED"),
        (1505, "APPARMOR_STATUS"),
        (1700, "ANOM_PROMISCUOUS"),
        (1701, "ANOM_ABEND"),
        (1702, "ANOM_LINK"),
        (1703, "ANOM_CREAT"),
        (1800, "INTEGRITY_DATA"),
        (1801, "INTEGRITY_METADATA"),
        (1802, "INTEGRITY_STATUS"),
        (1803, "INTEGRITY_HASH"),
        (1804, "INTEGRITY_PCR"),
        (1805, "INTEGRITY_RULE"),
        (1806, "INTEGRITY_EVM_XATTR"),
        (1807, "INTEGRITY_POLICY_RULE"),
        (2000, "KERNEL"),
    ];

    pub(super) fn of(kind: u16) -> Option<&'static str> {
        let user = usize::from(kind).checked_sub(usize::from(FIRST_USER)).and_then(|at| USER.get(at));
        let kernel = || KERNEL.iter().find(|(number, _)| *number == kind).map(|(_, name)| name);
        user.or_else(kernel).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn datagram(kind: u16, body: &[u8]) -> Vec<u8> {
        let mut bytes = request(kind, 7, &[]);
        bytes.extend_from_slice(body);
        bytes
    }

    #[test]
    fn records_become_lines() {
        let body = b"audit(1364481363.243:24287): arch=c000003e syscall=2\n\0\0";
        let Message::Record(record) = parse(&datagram(1300, body)) else { panic!("a record") };
        assert_eq!(record.line(), "type=SYSCALL msg=audit(1364481363.243:24287): arch=c000003e syscall=2");
        for (kind, name) in [(1100, "USER_AUTH"), (1138, "SOFTWARE_UPDATE"), (2000, "KERNEL")] {
            assert_eq!(Record { kind, text: "a\nb".into() }.line(), format!("type={name} msg=a b"));
        }
        assert_eq!(Record { kind: 2999, text: String::new() }.line(), "type=UNKNOWN[2999] msg=");
    }

    #[test]
    fn what_is_no_event_is_no_record() {
        assert_eq!(parse(&datagram(ERROR, &(-1i32).to_ne_bytes())), Message::Answer(1));
        assert_eq!(parse(&datagram(ERROR, &0i32.to_ne_bytes())), Message::Answer(0));
        let status: Vec<u8> = [0u32, 1, 0, 0].iter().flat_map(|word| word.to_ne_bytes()).collect();
        assert_eq!(parse(&datagram(GET, &status)), Message::Status { enabled: 1 });
        for datagram in [datagram(1099, b"x"), datagram(3000, b"x"), datagram(ERROR, b"x"), vec![1, 2]] {
            assert_eq!(parse(&datagram), Message::Other);
        }
    }

    #[test]
    fn a_request_has_its_length_and_asks_for_an_answer() {
        let bytes = request(SET, 3, &[MASK_PID, 0, 0, 42]);
        assert_eq!(bytes.len(), HEADER_LEN + 16);
        assert_eq!(bytes[..4], 32u32.to_ne_bytes());
        assert_eq!(bytes[6..8], 5u16.to_ne_bytes());
        assert_eq!(bytes[28..], 42u32.to_ne_bytes());
    }

    #[test]
    fn a_kernel_answers_or_says_why_not() {
        match Audit::probe() {
            Ok(()) => {}
            Err(error) => {
                // No audit subsystem, not its first namespaces, or no right to ask.
                let known = [libc::EPROTONOSUPPORT, libc::ECONNREFUSED, libc::EPERM];
                assert!(error.raw_os_error().is_some_and(|errno| known.contains(&errno)), "{error}");
            }
        }
    }
}
