//! Routing rules: which table a packet looks in.

use crate::error::NetError;
use crate::link::refused;
use crate::netlink::Netlink;
use crate::netlink::wire::{self, Attributes, Message, u32_of};
use crate::route::Family;

const FRA_PRIORITY: u16 = 6;
const FRA_FWMARK: u16 = 10;
const FRA_TABLE: u16 = 15;
const FRA_FWMASK: u16 = 16;
const HEADER: usize = 12;
/// Look in a table.
const ACTION_TO_TABLE: u8 = 1;

/// A rule that sends packets to a table, all of them or those with a mark.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// Protocol family.
    pub family: Family,
    /// Rules are tried from low to high.
    pub priority: u32,
    /// The table to look in.
    pub table: u32,
    /// Mark the packet must have.
    pub mark: u32,
    /// Bits of the mark that count; 0 when the mark does not matter.
    pub mark_mask: u32,
    /// `FR_ACT_...`; 1 is "look in the table".
    pub action: u8,
}

impl Rule {
    /// A rule for packets whose masked mark equals `mark`.
    pub fn by_mark(family: Family, priority: u32, mark: u32, mark_mask: u32, table: u32) -> Self {
        Self { family, priority, table, mark, mark_mask, action: ACTION_TO_TABLE }
    }
}

/// All rules of both families.
pub async fn list(netlink: &Netlink) -> Result<Vec<Rule>, NetError> {
    let mut rules = Vec::new();
    for family in [Family::V4, Family::V6] {
        let mut header = [0; HEADER];
        header[0] = family.number();
        let message = Message::new(libc::RTM_GETRULE, 0, &header);
        let found = netlink.dump(&message, parse);
        match found {
            Ok(found) => rules.extend(found),
            // A kernel without one of the families has no rules of it.
            Err(error) if matches!(error.errno(), libc::EAFNOSUPPORT | libc::EOPNOTSUPP) => {}
            Err(error) => return Err(refused("list", String::from("rules"))(error)),
        }
    }
    Ok(rules)
}

/// Adds a rule that must not be there yet.
pub async fn add(netlink: &Netlink, rule: &Rule) -> Result<(), NetError> {
    netlink
        .request(request(libc::RTM_NEWRULE, wire::CREATE, rule))
        .map_err(refused("add rule", subject(rule)))
}

/// Removes a rule.
pub async fn remove(netlink: &Netlink, rule: &Rule) -> Result<(), NetError> {
    netlink.request(request(libc::RTM_DELRULE, 0, rule)).map_err(refused("remove rule", subject(rule)))
}

fn subject(rule: &Rule) -> String {
    format!("{} to table {}", rule.priority, rule.table)
}

fn request(kind: u16, flags: u16, rule: &Rule) -> Message {
    let mut header = [0; HEADER];
    header[0] = rule.family.number();
    header[4] = u8::try_from(rule.table).unwrap_or(0);
    header[7] = rule.action;
    let mut message = Message::new(kind, flags, &header);
    message.u32(FRA_PRIORITY, rule.priority);
    message.u32(FRA_TABLE, rule.table);
    if rule.mark_mask != 0 {
        message.u32(FRA_FWMARK, rule.mark);
        message.u32(FRA_FWMASK, rule.mark_mask);
    }
    message
}

pub(crate) fn parse(kind: u16, payload: &[u8]) -> Option<Rule> {
    if kind != libc::RTM_NEWRULE {
        return None;
    }
    let family = Family::parse(*payload.first()?)?;
    let mut rule = Rule::by_mark(family, 0, 0, 0, u32::from(*payload.get(4)?));
    rule.action = *payload.get(7)?;
    for (kind, value) in Attributes::after(payload, HEADER) {
        match kind {
            FRA_PRIORITY => rule.priority = u32_of(value),
            FRA_TABLE => rule.table = u32_of(value),
            FRA_FWMARK => rule.mark = u32_of(value),
            FRA_FWMASK => rule.mark_mask = u32_of(value),
            _ => {}
        }
    }
    Some(rule)
}
