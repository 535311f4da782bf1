//! The client's decisions: which message to send when, and what an answer means. No I/O, no clock.
//!
//! Time is a [`Duration`] since the machine was made; randomness comes from a seed.

use std::net::Ipv4Addr;
use std::time::Duration;

use super::lease::{Lease, RENEW_MIN};
use super::message::{Kind, Message, option};

/// The first answer is usually there within milliseconds; a link that has just come up may need longer.
const RETRY_FIRST: Duration = Duration::from_millis(500);
/// Longest pause between two tries for a lease.
const RETRY_MAX: Duration = Duration::from_secs(16);
/// Tries to get an offered address before looking for offers again.
const REQUEST_TRIES: u32 = 4;
/// Pause after a refusal, so that two stubborn parties do not fill the wire.
const NAK_PAUSE: Duration = Duration::from_secs(1);
/// Pause after an address turned out to be somebody else's (RFC 2131 §3.1).
const DECLINE_PAUSE: Duration = Duration::from_secs(10);
/// Tries without an answer that make a silence worth telling.
const SILENCE: u32 = 3;
/// What we can receive.
const SIZE_MAX: u16 = 1500;

/// How the client names itself (option 61).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ClientId {
    /// Not at all.
    None,
    /// By ethernet address.
    #[default]
    Mac,
    /// By these bytes.
    Raw(Vec<u8>),
}

/// What the client is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Ethernet address of the link.
    pub hardware: [u8; 6],
    /// Option 61.
    pub client_id: ClientId,
    /// Name and domain to tell the server; then none is asked for.
    pub hostname: Option<(String, String)>,
    /// Ask for a name.
    pub request_hostname: bool,
    /// Ask for the packet size of the link.
    pub request_mtu: bool,
    /// An address held before, asked for again.
    pub previous: Option<Ipv4Addr>,
    /// Seed of transaction numbers and jitter.
    pub seed: u64,
    /// Where the lease is kept over a restart of this program.
    pub keep: Option<std::path::PathBuf>,
}

impl Config {
    /// A client that asks for everything.
    pub fn new(hardware: [u8; 6], seed: u64) -> Self {
        Self {
            hardware,
            client_id: ClientId::default(),
            hostname: None,
            request_hostname: true,
            request_mtu: true,
            previous: None,
            seed,
            keep: None,
        }
    }
}

/// What the client is to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Send to every server on the link, from no address.
    Broadcast(Message),
    /// Send to a server from our own address.
    Unicast(Message, Ipv4Addr),
    /// A lease is there, or was renewed.
    Bound(Box<Lease>),
    /// The lease is gone; its address must not be used any more.
    Lost,
    /// No lease is to be had, and why.
    Silent(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    Selecting,
    Requesting { offer: Lease, tries: u32 },
    Bound { lease: Lease, since: Duration },
}

/// The client.
#[derive(Debug)]
pub struct Machine {
    config: Config,
    state: State,
    transaction: u32,
    /// When the present exchange began, for the `secs` field.
    began: Duration,
    pause: Duration,
    deadline: Duration,
    /// The answer that granted the lease.
    answer: Option<Message>,
    /// Questions without an answer.
    unanswered: u32,
    /// The lease is of an earlier run: servers are asked at once whether it still holds.
    confirm: bool,
    random: u64,
}

impl Machine {
    /// A client that has not sent anything; its deadline has passed already.
    pub fn new(config: Config) -> Self {
        let random = config.seed | 1;
        let mut machine = Self {
            config,
            state: State::Selecting,
            transaction: 0,
            began: Duration::ZERO,
            pause: RETRY_FIRST,
            deadline: Duration::ZERO,
            answer: None,
            unanswered: 0,
            confirm: false,
            random,
        };
        machine.transaction = machine.next_random();
        machine
    }

    /// Takes up a lease that an earlier run got `age` ago; `None` when it is of no use any more. Servers are
    /// asked whether it still holds, as the link may have moved to another network meanwhile.
    pub fn resume(&mut self, answer: &Message, age: Duration) -> Option<Lease> {
        if answer.hardware != self.config.hardware || answer.kind() != Some(Kind::Ack) {
            return None;
        }
        let lease = Lease::parse(answer)?;
        let left = lease.duration.checked_sub(age).filter(|left| *left > RETRY_FIRST)?;
        // The time before the start counts as gone: everything moves `age` closer.
        let rest = Lease {
            duration: left,
            renew_after: lease.renew_after.saturating_sub(age),
            rebind_after: lease.rebind_after.saturating_sub(age),
            ..lease
        };
        self.deadline = Duration::ZERO;
        self.confirm = true;
        self.config.previous = Some(rest.address.addr());
        self.answer = Some(answer.clone());
        self.state = State::Bound { lease: rest.clone(), since: Duration::ZERO };
        Some(rest)
    }

    /// The answer that granted the present lease.
    pub fn answer(&self) -> Option<&Message> {
        self.answer.as_ref()
    }

    /// A neighbour has the leased address: gives it back and looks for another after a while.
    pub fn decline(&mut self, owner: [u8; 6], now: Duration) -> Vec<Action> {
        let State::Bound { lease, .. } = &self.state else { return Vec::new() };
        let lease = lease.clone();
        self.begin(now);
        let mut message = Message::request(Kind::Decline, self.transaction, self.config.hardware);
        let address = lease.address.addr();
        message.options.insert(option::REQUESTED_ADDRESS, address.octets().to_vec());
        if let Some(server) = lease.server {
            message.options.insert(option::SERVER_ID, server.octets().to_vec());
        }
        self.name_client(&mut message);
        self.config.previous = None;
        self.restart(now);
        self.deadline = now + DECLINE_PAUSE;
        let [a, b, c, d, e, f] = owner;
        let text = format!(
            "the server offers {address}, which {a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x} has already"
        );
        vec![Action::Broadcast(message), Action::Lost, Action::Silent(text)]
    }

    /// When [`Machine::tick`] wants to be called.
    pub fn deadline(&self) -> Duration {
        self.deadline
    }

    /// Tells the server the machine's name from now on; a lease is renewed at once to pass it on.
    pub fn set_hostname(&mut self, hostname: Option<(String, String)>, now: Duration) {
        if self.config.hostname != hostname {
            self.config.hostname = hostname;
            if matches!(self.state, State::Bound { .. }) {
                self.begin(now);
                self.deadline = now;
            }
        }
    }

    /// The deadline has passed.
    pub fn tick(&mut self, now: Duration) -> Vec<Action> {
        if now < self.deadline {
            return Vec::new();
        }
        match &mut self.state {
            State::Selecting => {
                self.unanswered = self.unanswered.saturating_add(1);
                let silent = self.unanswered == SILENCE + 1;
                let silent = silent.then(|| Action::Silent("no DHCP server answers".to_owned()));
                silent.into_iter().chain([self.discover(now)]).collect()
            }
            State::Requesting { offer, tries } if *tries < REQUEST_TRIES => {
                *tries += 1;
                let offer = offer.clone();
                vec![self.request(&offer, now)]
            }
            State::Requesting { .. } => {
                self.restart(now);
                vec![self.discover(now)]
            }
            State::Bound { lease, since } => {
                let (lease, since) = (lease.clone(), *since);
                if now >= since + lease.duration {
                    self.config.previous = Some(lease.address.addr());
                    self.restart(now);
                    vec![Action::Lost, self.discover(now)]
                } else if std::mem::take(&mut self.confirm) {
                    let mut message = self.message(Kind::Request, now);
                    let address = lease.address.addr().octets().to_vec();
                    message.options.insert(option::REQUESTED_ADDRESS, address);
                    self.deadline = (since + lease.renew_after).max(now + RENEW_MIN);
                    vec![Action::Broadcast(message)]
                } else {
                    vec![self.renew(&lease, since, now)]
                }
            }
        }
    }

    /// A message came in. Messages of others and late answers do nothing.
    pub fn receive(&mut self, message: &Message, now: Duration) -> Vec<Action> {
        let ours = message.is_reply
            && message.transaction == self.transaction
            && message.hardware == self.config.hardware;
        if !ours {
            return Vec::new();
        }
        match (&self.state, message.kind()) {
            (State::Selecting, Some(Kind::Offer)) => {
                // The first usable offer is taken: waiting for better ones delays every boot.
                let Some(offer) = Lease::parse(message).filter(|offer| offer.server.is_some()) else {
                    return Vec::new();
                };
                self.state = State::Requesting { offer: offer.clone(), tries: 1 };
                self.pause = RETRY_FIRST;
                vec![self.request(&offer, now)]
            }
            (State::Requesting { .. } | State::Bound { .. }, Some(Kind::Ack)) => {
                let Some(lease) = Lease::parse(message) else { return Vec::new() };
                let moved = match &self.state {
                    State::Bound { lease: old, .. } => old.address != lease.address,
                    State::Selecting | State::Requesting { .. } => false,
                };
                self.config.previous = Some(lease.address.addr());
                self.answer = Some(message.clone());
                self.unanswered = 0;
                self.deadline = now + lease.renew_after;
                self.state = State::Bound { lease: lease.clone(), since: now };
                self.begin(now);
                let lost = moved.then_some(Action::Lost);
                lost.into_iter().chain([Action::Bound(Box::new(lease))]).collect()
            }
            (State::Requesting { .. }, Some(Kind::Nak)) => {
                self.refused(now);
                Vec::new()
            }
            (State::Bound { .. }, Some(Kind::Nak)) => {
                self.refused(now);
                vec![Action::Lost]
            }
            _ => Vec::new(),
        }
    }

    fn refused(&mut self, now: Duration) {
        self.config.previous = None;
        self.restart(now);
        self.deadline = now + NAK_PAUSE;
    }

    fn restart(&mut self, now: Duration) {
        self.state = State::Selecting;
        self.pause = RETRY_FIRST;
        self.begin(now);
    }

    /// A new exchange: new transaction number, seconds count from here.
    fn begin(&mut self, now: Duration) {
        self.transaction = self.next_random();
        self.began = now;
    }

    fn discover(&mut self, now: Duration) -> Action {
        let mut message = self.message(Kind::Discover, now);
        if let Some(previous) = self.config.previous {
            message.options.insert(option::REQUESTED_ADDRESS, previous.octets().to_vec());
        }
        self.back_off(now);
        Action::Broadcast(message)
    }

    fn request(&mut self, offer: &Lease, now: Duration) -> Action {
        let mut message = self.message(Kind::Request, now);
        let address = offer.address.addr().octets().to_vec();
        message.options.insert(option::REQUESTED_ADDRESS, address);
        if let Some(server) = offer.server {
            message.options.insert(option::SERVER_ID, server.octets().to_vec());
        }
        self.back_off(now);
        Action::Broadcast(message)
    }

    fn renew(&mut self, lease: &Lease, since: Duration, now: Duration) -> Action {
        let mut message = self.message(Kind::Request, now);
        message.client = lease.address.addr();
        let rebind_at = since + lease.rebind_after;
        let end = since + lease.duration;
        // RFC 2131 §4.4.5: wait half the time left to the next phase, but not for ever less.
        let next = if now < rebind_at { rebind_at } else { end };
        let wait = ((next - now) / 2).max(RENEW_MIN);
        self.deadline = (now + wait).min(next.max(now + Duration::from_secs(1)));
        match lease.server {
            Some(server) if now < rebind_at => Action::Unicast(message, server),
            Some(_) | None => Action::Broadcast(message),
        }
    }

    fn message(&self, kind: Kind, now: Duration) -> Message {
        let config = &self.config;
        let mut message = Message::request(kind, self.transaction, config.hardware);
        let elapsed = now.saturating_sub(self.began).as_secs();
        message.seconds = u16::try_from(elapsed).unwrap_or(u16::MAX);

        let mut wanted = vec![
            option::SUBNET_MASK,
            option::ROUTER,
            option::DOMAIN,
            option::DNS,
            option::CLASSLESS_ROUTES,
            option::DOMAIN_SEARCH,
            option::NTP,
        ];
        if config.request_mtu {
            wanted.push(option::MTU);
        }
        match &config.hostname {
            Some((hostname, domain)) => {
                message.options.insert(option::HOSTNAME, hostname.clone().into_bytes());
                if !domain.is_empty() {
                    message.options.insert(option::DOMAIN, domain.clone().into_bytes());
                }
            }
            None if config.request_hostname => wanted.push(option::HOSTNAME),
            None => {}
        }
        message.options.insert(option::PARAMETER_LIST, wanted);
        message.options.insert(option::MAX_SIZE, SIZE_MAX.to_be_bytes().to_vec());
        self.name_client(&mut message);
        message
    }

    fn name_client(&self, message: &mut Message) {
        let client_id = match &self.config.client_id {
            ClientId::None => None,
            ClientId::Mac => Some([&[1][..], &self.config.hardware].concat()),
            ClientId::Raw(bytes) => Some(bytes.clone()),
        };
        message.options.extend(client_id.map(|id| (option::CLIENT_ID, id)));
    }

    fn back_off(&mut self, now: Duration) {
        // A tenth of jitter keeps a rack that lost power from asking in step.
        let jitter = self.pause / 10 * (self.next_random() % 11) / 10;
        self.deadline = now + self.pause + jitter;
        self.pause = (self.pause * 2).min(RETRY_MAX);
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
mod tests;
