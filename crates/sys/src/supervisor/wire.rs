//! The messages between init and machined, byte by byte. No I/O here.

use std::ffi::CStr;

/// Length of every frame; only a spawn request is longer, by its tail.
pub const FRAME_LEN: usize = 8 + 8 * WORDS + NAME_LEN;
/// The most bytes a spawn request may add: path, cgroup, arguments, environment.
pub const TAIL_MAX: usize = 16 * 1024;
/// The longest message.
pub const MESSAGE_MAX: usize = FRAME_LEN + TAIL_MAX;
/// Room for a name with its closing zero.
pub const NAME_LEN: usize = 64;
/// The most arguments, and likewise environment entries, of a child.
pub const STRINGS_MAX: usize = 128;
/// Numbers in a frame.
pub const WORDS: usize = 8;

/// What a frame is about. Requests have the low numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Kind {
    /// Who are you: answered by `Welcome`.
    Hello = 1,
    /// What do you hold: answered by `Child` and `Kept` frames, then `Done`.
    List = 2,
    /// Start a child: answered by `Spawned` or `Failed`.
    Spawn = 3,
    /// Signal a child.
    Signal = 4,
    /// Forget a child that has exited.
    Release = 5,
    /// Keep a descriptor under a name.
    Keep = 6,
    /// Close a kept descriptor.
    Drop = 7,
    /// End everything and call `reboot(2)`.
    Reboot = 8,
    /// How a system that may be on trial does: a [`GuardNotice`].
    Guard = 9,

    /// Answer to `Hello`: generation and time since boot.
    Welcome = 64,
    /// Answer to `Spawn`, with the output pipe and the pidfd.
    Spawned = 65,
    /// One line of a list, with the same descriptors.
    Child = 66,
    /// One line of a list: a kept descriptor.
    Kept = 67,
    /// The request is done.
    Done = 68,
    /// The request failed: errno and stage.
    Failed = 69,
    /// A child has exited; repeated until released.
    Exited = 70,
    /// Somebody outside asked the machine to stop.
    Power = 71,
}

impl Kind {
    fn parse(number: u16) -> Option<Self> {
        const ALL: [Kind; 17] = [
            Kind::Hello,
            Kind::List,
            Kind::Spawn,
            Kind::Signal,
            Kind::Release,
            Kind::Keep,
            Kind::Drop,
            Kind::Reboot,
            Kind::Guard,
            Kind::Welcome,
            Kind::Spawned,
            Kind::Child,
            Kind::Kept,
            Kind::Done,
            Kind::Failed,
            Kind::Exited,
            Kind::Power,
        ];
        ALL.into_iter().find(|kind| *kind as u16 == number)
    }
}

/// Names one child for as long as init lives; never used twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChildId(pub u64);

/// What `reboot(2)` is to do at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum RebootCommand {
    /// Start again.
    Restart = 1,
    /// Switch off.
    PowerOff = 2,
    /// Stop and stay.
    Halt = 3,
    /// Start the kernel that was loaded with kexec.
    Kexec = 4,
}

impl RebootCommand {
    pub(crate) fn parse(number: u64) -> Option<Self> {
        [Self::Restart, Self::PowerOff, Self::Halt, Self::Kexec]
            .into_iter()
            .find(|command| *command as u64 == number)
    }
}

/// What somebody outside the API asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum PowerRequest {
    /// Power button, SIGTERM or SIGPWR to PID 1.
    Shutdown = 1,
    /// Ctrl-Alt-Del or SIGINT to PID 1.
    Reboot = 2,
}

impl PowerRequest {
    pub(crate) fn parse(number: u64) -> Option<Self> {
        [Self::Shutdown, Self::Reboot].into_iter().find(|request| *request as u64 == number)
    }
}

/// What machined tells the guard of a system that may be on trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum GuardNotice {
    /// It makes progress; repeated until [`GuardNotice::Decided`].
    Progress = 1,
    /// The system is not on trial, or no longer: nothing is guarded from here on.
    Decided = 2,
    /// The watchdog device is wanted by machined; init lets it go.
    Yield = 3,
}

impl GuardNotice {
    pub(crate) fn parse(number: u64) -> Option<Self> {
        [Self::Progress, Self::Decided, Self::Yield].into_iter().find(|notice| *notice as u64 == number)
    }
}

/// How far a spawn came before it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Stage {
    /// The request itself: malformed, no free place, or the name is taken.
    Request = 1,
    /// Pipes and fork.
    Fork = 2,
    /// Descriptors of the child.
    Descriptors = 3,
    /// Joining the cgroup.
    Cgroup = 4,
    /// The private mount view.
    Mounts = 5,
    /// User, group and capabilities.
    Credentials = 6,
    /// The system call filter.
    Seccomp = 7,
    /// `execve`.
    Exec = 8,
}

impl Stage {
    pub(crate) fn parse(number: u64) -> Self {
        [
            Self::Fork,
            Self::Descriptors,
            Self::Cgroup,
            Self::Mounts,
            Self::Credentials,
            Self::Seccomp,
            Self::Exec,
        ]
        .into_iter()
        .find(|stage| *stage as u64 == number)
        .unwrap_or(Self::Request)
    }

    /// A word for messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Request => "request",
            Self::Fork => "fork",
            Self::Descriptors => "descriptors",
            Self::Cgroup => "cgroup",
            Self::Mounts => "mounts",
            Self::Credentials => "credentials",
            Self::Seccomp => "seccomp",
            Self::Exec => "exec",
        }
    }
}

/// A short name, kept with its closing zeros.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Name([u8; NAME_LEN]);

impl Name {
    /// No name.
    pub const EMPTY: Self = Self([0; NAME_LEN]);

    /// `None` when the text is too long or holds a zero byte.
    pub fn new(text: &str) -> Option<Self> {
        let fits = text.len() < NAME_LEN && !text.bytes().any(|byte| byte == 0);
        fits.then(|| {
            let mut bytes = [0; NAME_LEN];
            bytes[..text.len()].copy_from_slice(text.as_bytes());
            Self(bytes)
        })
    }

    /// The text; a name that is not UTF-8 reads as empty.
    pub fn as_str(&self) -> &str {
        let end = self.0.iter().position(|byte| *byte == 0).unwrap_or(0);
        std::str::from_utf8(&self.0[..end]).unwrap_or_default()
    }

    /// Whether there is no name.
    pub fn is_empty(&self) -> bool {
        self.0[0] == 0
    }
}

impl std::fmt::Debug for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.as_str())
    }
}

/// The fixed part of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// What it is about.
    pub kind: Kind,
    /// Bits of a spawn request, see [`flags`].
    pub flags: u16,
    /// Chosen by machined, repeated in the answer; 0 in events.
    pub seq: u32,
    /// Numbers, by kind.
    pub words: [u64; WORDS],
    /// Child or kept descriptor.
    pub name: Name,
}

/// Bits of [`Frame::flags`] in a spawn request.
pub mod flags {
    /// Set `no_new_privs`.
    pub const NO_NEW_PRIVS: u16 = 1;
    /// Refuse the system calls that no service without privileges needs.
    pub const FILTER: u16 = 2;
    /// A mount namespace of its own even when nothing is masked.
    pub const PRIVATE_MOUNTS: u16 = 4;
    /// Allow only the system calls that our own daemons need.
    pub const DAEMON: u16 = 8;
    /// Allow only the system calls that a program needs that reads, computes and prints.
    pub const SEALED: u16 = 16;
    /// Output goes where init's own goes. Only init sets it, for machined.
    pub(in crate::supervisor) const INHERIT_OUTPUT: u16 = 1 << 15;
}

impl Frame {
    /// A frame with no numbers.
    pub const fn new(kind: Kind, seq: u32) -> Self {
        Self { kind, flags: 0, seq, words: [0; WORDS], name: Name::EMPTY }
    }

    /// The bytes on the wire.
    pub fn encode(&self) -> [u8; FRAME_LEN] {
        let mut out = [0; FRAME_LEN];
        out[..2].copy_from_slice(&(self.kind as u16).to_le_bytes());
        out[2..4].copy_from_slice(&self.flags.to_le_bytes());
        out[4..8].copy_from_slice(&self.seq.to_le_bytes());
        for (index, word) in self.words.iter().enumerate() {
            out[8 + index * 8..16 + index * 8].copy_from_slice(&word.to_le_bytes());
        }
        out[FRAME_LEN - NAME_LEN..].copy_from_slice(&self.name.0);
        out
    }

    /// The frame and its tail; `None` for anything that no sender of ours makes.
    pub fn decode(message: &[u8]) -> Option<(Self, &[u8])> {
        let (head, tail) = message.split_at_checked(FRAME_LEN)?;
        let kind = Kind::parse(u16::from_le_bytes(head[..2].try_into().ok()?))?;
        let mut words = [0; WORDS];
        for (index, word) in words.iter_mut().enumerate() {
            *word = u64::from_le_bytes(head[8 + index * 8..16 + index * 8].try_into().ok()?);
        }
        let name = Name(head[FRAME_LEN - NAME_LEN..].try_into().ok()?);
        if name.0[NAME_LEN - 1] != 0 || (kind != Kind::Spawn && !tail.is_empty()) {
            return None;
        }
        let frame = Self {
            kind,
            flags: u16::from_le_bytes(head[2..4].try_into().ok()?),
            seq: u32::from_le_bytes(head[4..8].try_into().ok()?),
            words,
            name,
        };
        Some((frame, tail))
    }
}

/// The numbers of a spawn request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpawnNumbers {
    /// User the child runs as.
    pub uid: u32,
    /// Group the child runs as.
    pub gid: u32,
    /// Capabilities the child may keep, as a bit mask.
    pub capabilities: u64,
    /// `oom_score_adj`.
    pub oom_score_adj: i32,
    /// Niceness.
    pub nice: i32,
    /// Soft and hard limit of open files, 0 to leave it.
    pub nofile: u64,
    /// How many arguments the tail holds.
    pub args: u16,
    /// How many environment entries the tail holds.
    pub env: u16,
    /// How many masked paths the tail holds.
    pub masked: u16,
    /// How many parts of a root of its own the tail holds.
    pub view: u16,
    /// How many parts of the root of a container the tail holds.
    pub root: u16,
}

impl SpawnNumbers {
    /// As words of a frame.
    pub fn to_words(self) -> [u64; WORDS] {
        [
            u64::from(self.uid) | u64::from(self.gid) << 32,
            self.capabilities,
            u64::from(self.oom_score_adj.cast_unsigned()) | u64::from(self.nice.cast_unsigned()) << 32,
            self.nofile,
            u64::from(self.args)
                | u64::from(self.env) << 16
                | u64::from(self.masked) << 32
                | u64::from(self.view) << 48,
            u64::from(self.root),
            0,
            0,
        ]
    }

    /// From the words of a frame. Narrowing is meant: each number has its own bits.
    pub fn from_words(words: &[u64; WORDS]) -> Self {
        Self {
            uid: words[0] as u32,
            gid: (words[0] >> 32) as u32,
            capabilities: words[1],
            oom_score_adj: (words[2] as u32).cast_signed(),
            nice: ((words[2] >> 32) as u32).cast_signed(),
            nofile: words[3],
            args: words[4] as u16,
            env: (words[4] >> 16) as u16,
            masked: (words[4] >> 32) as u16,
            view: (words[4] >> 48) as u16,
            root: words[5] as u16,
        }
    }
}

/// Reads zero-terminated strings from the tail of a spawn request.
pub struct Strings<'a>(pub &'a [u8]);

impl<'a> Iterator for Strings<'a> {
    type Item = &'a CStr;

    fn next(&mut self) -> Option<&'a CStr> {
        let text = CStr::from_bytes_until_nul(self.0).ok()?;
        self.0 = &self.0[text.to_bytes_with_nul().len()..];
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_survives_the_wire() {
        let frame = Frame {
            kind: Kind::Exited,
            flags: 3,
            seq: 77,
            words: [1, u64::MAX, 3, 4, 5, 6, 7, 8],
            name: Name::new("apid").unwrap(),
        };
        assert_eq!(Frame::decode(&frame.encode()), Some((frame, &b""[..])));
    }

    #[test]
    fn nonsense_is_refused() {
        let mut bytes = Frame::new(Kind::List, 1).encode();
        assert!(Frame::decode(&bytes[1..]).is_none(), "short");
        let mut long = bytes.to_vec();
        long.push(0);
        assert!(Frame::decode(&long).is_none(), "a tail where none may be");
        bytes[FRAME_LEN - 1] = 1;
        assert!(Frame::decode(&bytes).is_none(), "name without an end");
        bytes = [0xff; FRAME_LEN];
        assert!(Frame::decode(&bytes).is_none(), "unknown kind");
    }

    #[test]
    fn spawn_numbers_keep_their_signs() {
        let numbers = SpawnNumbers {
            uid: 50,
            gid: u32::MAX,
            capabilities: 1 << 40,
            oom_score_adj: -998,
            nice: -5,
            nofile: 1 << 20,
            args: 3,
            env: 65_535,
            masked: 2,
            view: 40_000,
            root: 50_000,
        };
        assert_eq!(SpawnNumbers::from_words(&numbers.to_words()), numbers);
    }

    #[test]
    fn names_have_a_bound() {
        assert!(Name::new(&"x".repeat(NAME_LEN)).is_none());
        assert_eq!(Name::new(&"x".repeat(NAME_LEN - 1)).unwrap().as_str().len(), NAME_LEN - 1);
        assert!(Name::new("a\0b").is_none());
    }
}
