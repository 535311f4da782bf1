//! What stands before the network header.

/// How packets of a link begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkType {
    /// An Ethernet header.
    Ethernet,
    /// Nothing: the packet is an IP packet.
    Raw,
}

impl LinkType {
    /// The number of the type in capture files.
    pub const fn number(self) -> u32 {
        match self {
            Self::Ethernet => 1,
            Self::Raw => 101,
        }
    }

    /// Bytes before the network header.
    pub(crate) const fn header(self) -> u32 {
        match self {
            Self::Ethernet => 14,
            Self::Raw => 0,
        }
    }
}
