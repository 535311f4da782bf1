//! The form of the network page: what a machine that waits for its configuration should use until then. Pure.
//!
//! What it makes is the network configuration of a metal platform, which the machine keeps in META.

use std::fmt::Write as _;
use std::net::IpAddr;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// The META key of the network configuration of metal machines.
pub const META_KEY: u32 = 0x0a;
/// Longest text of a field.
const TEXT_MAX: usize = 256;

/// Places of the fields.
const HOSTNAME: usize = 0;
const RESOLVERS: usize = 1;
const TIME_SERVERS: usize = 2;
const LINK: usize = 3;
const MODE: usize = 4;
const ADDRESSES: usize = 5;
const GATEWAY: usize = 6;

/// Labels, in order.
const LABELS: [&str; 7] = [
    "HOSTNAME",
    "DNS SERVERS",
    "TIME SERVERS",
    "LINK",
    "MODE (space changes)",
    "ADDRESSES (static)",
    "GATEWAY (static)",
];

/// The form while it is open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Form {
    values: [String; 7],
    at: usize,
    /// What came of the last attempt to save.
    pub message: String,
}

/// What a key in the form asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pressed {
    /// Nothing beyond drawing it.
    Stay,
    /// Save what was entered.
    Save,
    /// Leave it.
    Leave,
}

impl Form {
    /// A form for a machine with this link.
    pub fn new(link: &str) -> Self {
        let mut values = [const { String::new() }; 7];
        link.clone_into(&mut values[LINK]);
        "dhcp".clone_into(&mut values[MODE]);
        Self { values, at: 0, message: String::new() }
    }

    /// Labels and values, and which one is being edited.
    pub fn fields(&self) -> impl Iterator<Item = (&'static str, &str, bool)> {
        let at = self.at;
        let field = move |(index, value): (usize, _)| (LABELS[index], value, index == at);
        self.values.iter().map(String::as_str).enumerate().map(field)
    }

    /// What a key does.
    pub fn press(&mut self, key: KeyEvent) -> Pressed {
        let count = self.values.len();
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match (key.code, control) {
            (KeyCode::Esc, _) | (KeyCode::Char('c'), true) => return Pressed::Leave,
            (KeyCode::Enter, _) => return Pressed::Save,
            (KeyCode::Tab | KeyCode::Down, _) => self.at = (self.at + 1) % count,
            (KeyCode::Up, _) => self.at = (self.at + count - 1) % count,
            (KeyCode::Char(_) | KeyCode::Backspace, _) if self.at == MODE => {
                let next = if self.values[MODE] == "dhcp" { "static" } else { "dhcp" };
                next.clone_into(&mut self.values[MODE]);
            }
            // Old terminals send Ctrl-H for the backspace key.
            (KeyCode::Backspace, _) | (KeyCode::Char('h'), true) => {
                self.values[self.at].pop();
            }
            (KeyCode::Char(character), false) if self.values[self.at].len() < TEXT_MAX => {
                self.values[self.at].push(character);
            }
            _ => {}
        }
        Pressed::Stay
    }

    /// The configuration, or what is wrong with what was entered.
    pub fn configuration(&self) -> Result<String, String> {
        let text = |place: usize| self.values[place].trim();
        let mut out = String::new();
        let link = text(LINK);
        if link.is_empty() || !link.chars().all(|c| c.is_ascii_alphanumeric() || "-_.:".contains(c)) {
            return Err("LINK: name the link to use".to_owned());
        }
        let _ = write!(
            out,
            "links:\n    - name: {link}\n      up: true\n      type: ether\n      layer: platform\n"
        );
        match text(MODE) {
            "dhcp" => {
                let _ = write!(
                    out,
                    "operators:\n    - operator: dhcp4\n      linkName: {link}\n      requireUp: true\n      dhcp4:\n          \
                     routeMetric: 1024\n      layer: platform\n"
                );
            }
            _ => self.fixed(&mut out, link)?,
        }
        let hostname = text(HOSTNAME);
        if !hostname.is_empty() {
            let (host, domain) = hostname.split_once('.').unwrap_or((hostname, ""));
            if !hostname.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '.') || host.is_empty()
            {
                return Err("HOSTNAME: letters, digits, '-' and '.' only".to_owned());
            }
            let _ = write!(
                out,
                "hostnames:\n    - hostname: {host}\n      domainname: \"{domain}\"\n      layer: platform\n"
            );
        }
        let resolvers = words(text(RESOLVERS));
        if let Some(bad) = resolvers.iter().find(|word| word.parse::<IpAddr>().is_err()) {
            return Err(format!("DNS SERVERS: {bad} is no address"));
        }
        list(&mut out, "resolvers", "dnsServers", &resolvers);
        let servers = words(text(TIME_SERVERS));
        if let Some(bad) =
            servers.iter().find(|word| !word.chars().all(|c| c.is_ascii_alphanumeric() || "-.:".contains(c)))
        {
            return Err(format!("TIME SERVERS: {bad} is no name or address"));
        }
        list(&mut out, "timeServers", "timeServers", &servers);
        Ok(out)
    }

    fn fixed(&self, out: &mut String, link: &str) -> Result<(), String> {
        let addresses = words(&self.values[ADDRESSES]);
        if addresses.is_empty() {
            return Err("ADDRESSES: a static link needs one, such as 10.5.0.2/24".to_owned());
        }
        out.push_str("addresses:\n");
        for address in &addresses {
            let parsed = address.split_once('/').and_then(|(ip, bits)| {
                let ip: IpAddr = ip.parse().ok()?;
                let bits: u8 = bits.parse().ok()?;
                (bits <= if ip.is_ipv4() { 32 } else { 128 }).then_some(ip)
            });
            let Some(ip) = parsed else {
                return Err(format!("ADDRESSES: {address} is not like 10.5.0.2/24"));
            };
            let _ = write!(
                out,
                "    - address: {address}\n      linkName: {link}\n      family: {}\n      scope: global\n      \
                 flags: permanent\n      layer: platform\n",
                family(ip)
            );
        }
        let gateway = self.values[GATEWAY].trim();
        if gateway.is_empty() {
            return Ok(());
        }
        let Ok(ip) = gateway.parse::<IpAddr>() else {
            return Err(format!("GATEWAY: {gateway} is no address"));
        };
        let _ = write!(
            out,
            "routes:\n    - family: {}\n      gateway: {gateway}\n      outLinkName: {link}\n      table: main\n      \
             priority: 1024\n      scope: global\n      type: unicast\n      protocol: static\n      layer: platform\n",
            family(ip)
        );
        Ok(())
    }
}

fn family(ip: IpAddr) -> &'static str {
    if ip.is_ipv4() { "inet4" } else { "inet6" }
}

fn words(text: &str) -> Vec<&str> {
    text.split([',', ' ']).filter(|word| !word.is_empty()).collect()
}

fn list(out: &mut String, key: &str, inner: &str, words: &[&str]) {
    if words.is_empty() {
        return;
    }
    let _ = write!(out, "{key}:\n    - {inner}:\n");
    for word in words {
        let _ = writeln!(out, "          - {word}");
    }
    out.push_str("      layer: platform\n");
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    fn type_in(form: &mut Form, text: &str) {
        for character in text.chars() {
            form.press(KeyCode::Char(character).into());
        }
        form.press(KeyCode::Tab.into());
    }

    #[test]
    fn a_static_configuration() {
        let mut form = Form::new("eth0");
        for text in ["node.lab", "1.1.1.1, 8.8.8.8", "time.example", "", " ", "10.5.0.9/24", "10.5.0.1"] {
            type_in(&mut form, text);
        }
        let text = form.configuration().unwrap();
        expect![[r#"
            links:
                - name: eth0
                  up: true
                  type: ether
                  layer: platform
            addresses:
                - address: 10.5.0.9/24
                  linkName: eth0
                  family: inet4
                  scope: global
                  flags: permanent
                  layer: platform
            routes:
                - family: inet4
                  gateway: 10.5.0.1
                  outLinkName: eth0
                  table: main
                  priority: 1024
                  scope: global
                  type: unicast
                  protocol: static
                  layer: platform
            hostnames:
                - hostname: node
                  domainname: "lab"
                  layer: platform
            resolvers:
                - dnsServers:
                      - 1.1.1.1
                      - 8.8.8.8
                  layer: platform
            timeServers:
                - timeServers:
                      - time.example
                  layer: platform
        "#]]
        .assert_eq(&text);
        ichor_yaml::parse(&text).unwrap();
        assert_eq!(
            (form.press(KeyCode::Enter.into()), form.press(KeyCode::Esc.into())),
            (Pressed::Save, Pressed::Leave)
        );
    }

    #[test]
    fn dhcp_is_what_one_gets_without_a_word() {
        let text = Form::new("eth0").configuration().unwrap();
        expect![[r#"
            links:
                - name: eth0
                  up: true
                  type: ether
                  layer: platform
            operators:
                - operator: dhcp4
                  linkName: eth0
                  requireUp: true
                  dhcp4:
                      routeMetric: 1024
                  layer: platform
        "#]]
        .assert_eq(&text);
    }

    #[test]
    fn mistakes_are_named() {
        for (place, text, expected) in [
            (RESOLVERS, "resolver", "DNS SERVERS: resolver is no address"),
            (HOSTNAME, "a: b", "HOSTNAME: letters, digits, '-' and '.' only"),
            (TIME_SERVERS, "a\"b", "TIME SERVERS: a\"b is no name or address"),
            (LINK, "", "LINK: name the link to use"),
            (MODE, "static", "ADDRESSES: a static link needs one, such as 10.5.0.2/24"),
        ] {
            let mut form = Form::new("eth0");
            form.values[place] = text.to_owned();
            assert_eq!(form.configuration().unwrap_err(), expected);
        }
    }
}
