//! The client's decisions: which message to send when, and what an answer means. No I/O, no clock.
//!
//! Time is a [`Duration`] since the machine was made; randomness comes from a seed.

use std::net::Ipv6Addr;
use std::time::Duration;

use super::lease::{self, Lease, Refusal};
use super::message::{Kind, Message, Options, option};

const RETRY_FIRST: Duration = Duration::from_secs(1);
/// Longest pause between two tries for a lease.
const RETRY_MAX: Duration = Duration::from_secs(64);
/// First and longest pause between two tries to keep one.
const RENEW_FIRST: Duration = Duration::from_secs(10);
const RENEW_MAX: Duration = Duration::from_secs(600);
/// Tries to get an advertised address before looking for servers again.
const REQUEST_TRIES: u32 = 5;
/// Tries without an answer that make a silence worth telling.
const SILENCE: u32 = 3;

/// How the client names itself.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Duid {
    /// By link-layer address and a time. The time is always the same, so that a machine keeps its name.
    #[default]
    LinkLayerTime,
    /// By link-layer address.
    LinkLayer,
    /// By these bytes.
    Raw(Vec<u8>),
}

impl Duid {
    fn bytes(&self, hardware: [u8; 6]) -> Vec<u8> {
        const ETHERNET: [u8; 2] = [0, 1];
        match self {
            Self::LinkLayerTime => [&[0, 1], &ETHERNET[..], &[0; 4], &hardware].concat(),
            Self::LinkLayer => [&[0, 3], &ETHERNET[..], &hardware].concat(),
            Self::Raw(bytes) => bytes.clone(),
        }
    }
}

/// What the client is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Ethernet address of the link.
    pub hardware: [u8; 6],
    /// How the client names itself.
    pub duid: Duid,
    /// Ask for a name.
    pub request_hostname: bool,
    /// Seed of transaction numbers and jitter.
    pub seed: u64,
    /// Where the lease is kept over a restart of this program.
    pub keep: Option<std::path::PathBuf>,
}

impl Config {
    /// A client that asks for everything.
    pub fn new(hardware: [u8; 6], seed: u64) -> Self {
        Self { hardware, duid: Duid::default(), request_hostname: true, seed, keep: None }
    }
}

/// What the client is to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Send to all servers of the link.
    Send(Message),
    /// A lease is there, or was renewed; with the answer that says so.
    Bound(Box<Lease>, Message),
    /// The lease is gone; its address must not be used any more.
    Lost,
    /// Nobody answers.
    Silent(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    Selecting { tries: u32 },
    Requesting { offer: Box<Lease>, tries: u32 },
    Bound { lease: Box<Lease>, since: Duration, renewing: bool },
}

/// The client.
#[derive(Debug)]
pub struct Machine {
    config: Config,
    duid: Vec<u8>,
    association: u32,
    state: State,
    previous: Option<Ipv6Addr>,
    transaction: u32,
    began: Duration,
    pause: Duration,
    deadline: Duration,
    /// The last refusal, for the text of a silence.
    refusal: Option<String>,
    random: u64,
}

impl Machine {
    /// A client that has not sent anything; its deadline has passed already.
    pub fn new(config: Config) -> Self {
        let [_, _, a, b, c, d] = config.hardware;
        let mut machine = Self {
            duid: config.duid.bytes(config.hardware),
            association: u32::from_be_bytes([a, b, c, d]),
            state: State::Selecting { tries: 0 },
            previous: None,
            transaction: 0,
            began: Duration::ZERO,
            pause: RETRY_FIRST,
            deadline: Duration::ZERO,
            refusal: None,
            random: config.seed | 1,
            config,
        };
        machine.begin(Duration::ZERO);
        machine
    }

    /// Takes up a lease that an earlier run got `age` ago; `None` when it is of no use any more. Its server is
    /// asked whether it still holds, as the link may have moved to another network meanwhile.
    pub fn resume(&mut self, answer: &Message, age: Duration) -> Option<Lease> {
        let lease = Lease::parse(answer, self.association).ok()?;
        let left = lease.duration.checked_sub(age).filter(|left| *left > RETRY_FIRST)?;
        if !lease::is_for(answer, &self.duid) {
            return None;
        }
        // The time before the start counts as gone: everything moves `age` closer.
        let rest = Lease {
            duration: left,
            renew_after: lease.renew_after.saturating_sub(age),
            rebind_after: lease.rebind_after.saturating_sub(age),
            ..lease
        };
        self.deadline = Duration::ZERO;
        self.previous = Some(rest.address);
        self.state = State::Bound { lease: Box::new(rest.clone()), since: Duration::ZERO, renewing: false };
        Some(rest)
    }

    /// When [`Machine::tick`] wants to be called.
    pub fn deadline(&self) -> Duration {
        self.deadline
    }

    /// The deadline has passed.
    pub fn tick(&mut self, now: Duration) -> Vec<Action> {
        if now < self.deadline {
            return Vec::new();
        }
        match self.state.clone() {
            State::Selecting { tries } => {
                self.state = State::Selecting { tries: tries.saturating_add(1) };
                let silent = (tries == SILENCE).then(|| Action::Silent(self.silence()));
                silent.into_iter().chain([self.solicit(now)]).collect()
            }
            State::Requesting { offer, tries } if tries < REQUEST_TRIES => {
                self.state = State::Requesting { offer: offer.clone(), tries: tries + 1 };
                vec![self.request(&offer, now)]
            }
            State::Requesting { .. } => {
                self.restart(now);
                vec![self.solicit(now)]
            }
            State::Bound { lease, since, renewing } => {
                if now >= since + lease.duration {
                    self.restart(now);
                    return vec![Action::Lost, self.solicit(now)];
                }
                if !renewing {
                    self.begin(now);
                    self.pause = RENEW_FIRST;
                }
                self.state = State::Bound { lease: lease.clone(), since, renewing: true };
                vec![self.extend(&lease, since, now)]
            }
        }
    }

    /// A message came in. Messages of others and late answers do nothing.
    pub fn receive(&mut self, message: &Message, now: Duration) -> Vec<Action> {
        let ours = message.transaction == self.transaction && lease::is_for(message, &self.duid);
        if !ours || !matches!(message.kind, Kind::Advertise | Kind::Reply) {
            return Vec::new();
        }
        let lease = match Lease::parse(message, self.association) {
            Ok(lease) => lease,
            Err(Refusal::Noise) => return Vec::new(),
            Err(Refusal::Status(status)) => {
                self.refusal = Some(format!("a server refuses (code {}): {}", status.code, status.text));
                return self.refused(message.kind, now);
            }
        };
        match (&self.state, message.kind) {
            (State::Selecting { .. }, Kind::Advertise) => {
                tracing::trace!(preference = lease::preference(message), "took the first offer");
                self.begin(now);
                self.pause = RETRY_FIRST;
                let offer = Box::new(lease);
                let request = self.request(&offer, now);
                self.state = State::Requesting { offer, tries: 1 };
                vec![request]
            }
            // A reply to a solicitation is one of a server that commits at once.
            (State::Selecting { .. }, Kind::Reply) if message.options.get(option::RAPID_COMMIT).is_none() => {
                Vec::new()
            }
            (_, Kind::Reply) => self.bound(lease, message.clone(), now),
            _ => Vec::new(),
        }
    }

    fn bound(&mut self, lease: Lease, answer: Message, now: Duration) -> Vec<Action> {
        let moved = match &self.state {
            State::Bound { lease: old, .. } => old.address != lease.address,
            State::Selecting { .. } | State::Requesting { .. } => false,
        };
        self.previous = Some(lease.address);
        self.refusal = None;
        self.deadline = now + lease.renew_after;
        self.state = State::Bound { lease: Box::new(lease.clone()), since: now, renewing: false };
        let lost = moved.then_some(Action::Lost);
        lost.into_iter().chain([Action::Bound(Box::new(lease), answer)]).collect()
    }

    /// A server said no. While looking for one, others may say yes; a lease that its server does not know
    /// any more is none.
    fn refused(&mut self, kind: Kind, now: Duration) -> Vec<Action> {
        match (&self.state, kind) {
            (State::Requesting { .. }, Kind::Reply) => {
                self.restart(now);
                self.deadline = now + RETRY_FIRST;
                Vec::new()
            }
            (State::Bound { .. }, Kind::Reply) => {
                self.previous = None;
                self.restart(now);
                self.deadline = now + RETRY_FIRST;
                vec![Action::Lost]
            }
            _ => Vec::new(),
        }
    }

    fn silence(&self) -> String {
        self.refusal.clone().unwrap_or_else(|| "no DHCPv6 server answers".to_owned())
    }

    fn restart(&mut self, now: Duration) {
        self.state = State::Selecting { tries: 0 };
        self.pause = RETRY_FIRST;
        self.begin(now);
    }

    /// A new exchange: new transaction number, time counts from here.
    fn begin(&mut self, now: Duration) {
        self.transaction = self.next_random() & 0x00ff_ffff;
        self.began = now;
    }

    fn solicit(&mut self, now: Duration) -> Action {
        let mut message = self.message(Kind::Solicit, now);
        message.options.push(option::RAPID_COMMIT, Vec::new());
        message.options.push(option::IA_NA, lease::association(self.association, self.previous));
        self.back_off(now, RETRY_MAX);
        Action::Send(message)
    }

    fn request(&mut self, offer: &Lease, now: Duration) -> Action {
        let mut message = self.message(Kind::Request, now);
        message.options.push(option::SERVER_ID, offer.server.clone());
        message.options.push(option::IA_NA, lease::association(self.association, Some(offer.address)));
        self.back_off(now, RETRY_MAX);
        Action::Send(message)
    }

    fn extend(&mut self, lease: &Lease, since: Duration, now: Duration) -> Action {
        let (rebind_at, end) = (since + lease.rebind_after, since + lease.duration);
        let (kind, next) = if now < rebind_at { (Kind::Renew, rebind_at) } else { (Kind::Rebind, end) };
        let mut message = self.message(kind, now);
        if kind == Kind::Renew {
            message.options.push(option::SERVER_ID, lease.server.clone());
        }
        message.options.push(option::IA_NA, lease::association(self.association, Some(lease.address)));
        self.back_off(now, RENEW_MAX);
        self.deadline = self.deadline.min(next).max(now + RETRY_FIRST);
        Action::Send(message)
    }

    fn message(&self, kind: Kind, now: Duration) -> Message {
        let hundredths = now.saturating_sub(self.began).as_millis() / 10;
        let elapsed = u16::try_from(hundredths).unwrap_or(u16::MAX);
        let mut options = Options::default();
        options.push(option::CLIENT_ID, self.duid.clone());
        options.push(option::ELAPSED_TIME, elapsed.to_be_bytes().to_vec());
        options.push(option::OPTION_REQUEST, lease::requested(self.config.request_hostname));
        Message { kind, transaction: self.transaction, options }
    }

    fn back_off(&mut self, now: Duration, longest: Duration) {
        // A tenth of jitter keeps a rack that lost power from asking in step.
        let jitter = self.pause / 10 * (self.next_random() % 11) / 10;
        self.deadline = now + self.pause + jitter;
        self.pause = (self.pause * 2).min(longest);
    }

    fn next_random(&mut self) -> u32 {
        // xorshift64*: enough to tell exchanges apart; nothing here is a secret.
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        (self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn sent(actions: &[Action]) -> &Message {
        let find = |action: &&Action| matches!(action, Action::Send(_));
        let Some(Action::Send(message)) = actions.iter().find(find) else {
            panic!("nothing sent: {actions:?}")
        };
        message
    }

    fn refusal(code: u8) -> Vec<u8> {
        vec![0, code, b'n', b'o']
    }

    /// A server that answers, with a lifetime of 800 s, or a refusal inside the association.
    fn answer(to: &Message, kind: Kind, rapid: bool, refuse: Option<u8>) -> Message {
        let mut options = Options::default();
        options.push(option::CLIENT_ID, to.options.get(option::CLIENT_ID).unwrap().to_vec());
        options.push(option::SERVER_ID, vec![0, 3, 0, 1, 9, 9, 9, 9, 9, 9]);
        if rapid {
            options.push(option::RAPID_COMMIT, Vec::new());
        }
        let mut ia = to.options.get(option::IA_NA).unwrap()[..12].to_vec();
        let mut inner = Options::default();
        match refuse {
            Some(code) => inner.push(option::STATUS_CODE, refusal(code)),
            None => {
                let mut value = "fd00::9".parse::<Ipv6Addr>().unwrap().octets().to_vec();
                value.extend_from_slice(&400_u32.to_be_bytes());
                value.extend_from_slice(&800_u32.to_be_bytes());
                inner.push(option::IA_ADDRESS, value);
            }
        }
        inner.encode(&mut ia);
        options.push(option::IA_NA, ia);
        options.push(option::DNS, "fd00::53".parse::<Ipv6Addr>().unwrap().octets().to_vec());
        options.push(option::CLIENT_FQDN, b"\x00\x06node-1\x07example\x00".to_vec());
        options.push(option::NTP, [&[0, 1, 0, 16][..], &[0xfd; 16], &[0, 3, 0, 3, 1, b't', 0]].concat());
        Message { kind, transaction: to.transaction, options }
    }

    fn bound() -> (Machine, Message) {
        let mut machine = Machine::new(Config::new(MAC, 42));
        let solicit = machine.tick(at(0));
        let reply = answer(sent(&solicit), Kind::Reply, true, None);
        let done = machine.receive(&reply, at(0));
        let [Action::Bound(lease, _)] = &done[..] else { panic!("{done:?}") };
        assert_eq!(lease.address, "fd00::9".parse::<Ipv6Addr>().unwrap());
        assert_eq!(lease.dns, ["fd00::53".parse::<Ipv6Addr>().unwrap()]);
        assert_eq!(lease.hostname.as_deref(), Some("node-1.example"));
        assert_eq!(lease.ntp, ["fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd", "t"]);
        (machine, reply)
    }

    #[test]
    fn a_server_that_commits_at_once_takes_two_messages() {
        assert_eq!(bound().0.deadline(), at(400));
    }

    #[test]
    fn an_advertisement_is_requested() {
        let mut machine = Machine::new(Config::new(MAC, 42));
        let solicit = machine.tick(at(0));
        let request = machine.receive(&answer(sent(&solicit), Kind::Advertise, false, None), at(0));
        assert_eq!(sent(&request).kind, Kind::Request);
        assert!(sent(&request).options.get(option::SERVER_ID).is_some());
        let done = machine.receive(&answer(sent(&request), Kind::Reply, false, None), at(0));
        assert!(matches!(&done[..], [Action::Bound(..)]), "{done:?}");
    }

    #[test]
    fn a_silent_server_is_asked_then_everyone_then_the_lease_is_lost() {
        let (mut machine, _) = bound();
        let mut seen = Vec::new();
        for _ in 0..100 {
            let now = machine.deadline();
            let actions = machine.tick(now);
            seen.push((now.as_secs(), sent(&actions).kind));
            if actions.contains(&Action::Lost) {
                break;
            }
        }
        assert_eq!(seen.first(), Some(&(400, Kind::Renew)));
        assert!(seen.contains(&(640, Kind::Rebind)), "{seen:?}");
        assert_eq!(seen.last(), Some(&(800, Kind::Solicit)));
        assert!(seen.len() < 20, "{seen:?}");
    }

    #[test]
    fn a_renewal_that_is_refused_loses_the_lease() {
        let (mut machine, _) = bound();
        let renew = machine.tick(at(400));
        let no = answer(sent(&renew), Kind::Reply, false, Some(3));
        assert_eq!(machine.receive(&no, at(400)), [Action::Lost]);
        assert_eq!(sent(&machine.tick(at(401))).kind, Kind::Solicit);
    }

    #[test]
    fn silence_is_told_once_and_names_a_refusal() {
        let mut machine = Machine::new(Config::new(MAC, 42));
        let mut told = Vec::new();
        for _ in 0..12 {
            let now = machine.deadline();
            let actions = machine.tick(now);
            let no = answer(sent(&actions), Kind::Advertise, false, Some(2));
            assert_eq!(machine.receive(&no, now), []);
            told.extend(actions.into_iter().filter(|a| matches!(a, Action::Silent(_))));
        }
        assert_eq!(told, [Action::Silent("a server refuses (code 2): no".into())]);
    }

    #[test]
    fn answers_for_others_are_ignored() {
        let mut machine = Machine::new(Config::new(MAC, 42));
        let solicit = machine.tick(at(0));
        let good = answer(sent(&solicit), Kind::Reply, true, None);
        let other_number = Message { transaction: good.transaction ^ 1, ..good.clone() };
        let mut other_client = Machine::new(Config::new([2, 0, 0, 0, 0, 2], 42));
        other_client.tick(at(0));
        assert_eq!(machine.receive(&other_number, at(0)), []);
        assert_eq!(other_client.receive(&good, at(0)), []);
        let slow = answer(sent(&solicit), Kind::Reply, false, None);
        assert_eq!(machine.receive(&slow, at(0)), [], "a reply that does not commit");
    }

    #[test]
    fn a_kept_lease_is_taken_up_with_the_time_that_is_left() {
        let (_, reply) = bound();
        let mut machine = Machine::new(Config::new(MAC, 7));
        let lease = machine.resume(&reply, at(500)).unwrap();
        assert_eq!((lease.duration, machine.deadline()), (at(300), at(0)));
        assert_eq!(sent(&machine.tick(at(0))).kind, Kind::Renew);
        assert_eq!(Machine::new(Config::new(MAC, 7)).resume(&reply, at(800)), None);
        let other = Config { duid: Duid::LinkLayer, ..Config::new(MAC, 7) };
        assert_eq!(Machine::new(other).resume(&reply, at(1)), None);
    }
}
