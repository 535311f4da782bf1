//! The power button: ACPI events over generic netlink.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

const CONTROL: u16 = 16;
const GET_FAMILY: u8 = 3;
const FAMILY_NAME: u16 = 2;
const MULTICAST_GROUPS: u16 = 7;
const GROUP_NAME: u16 = 1;
const GROUP_ID: u16 = 2;
const EVENT: u16 = 1;
const NETLINK_HEADER: usize = 16;
const GENERIC_HEADER: usize = 4;

/// Events of the machine's firmware. Never blocks; readable when there is one.
#[derive(Debug)]
pub struct Events(OwnedFd);

impl AsFd for Events {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Events {
    /// Joins the group of ACPI events.
    ///
    /// # Errors
    /// `NotFound` where the kernel has none, as in a container.
    pub fn open() -> io::Result<Self> {
        let flags = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: takes numbers; the descriptor it returns is new and ours.
        let socket = unsafe {
            match libc::socket(libc::AF_NETLINK, flags, libc::NETLINK_GENERIC) {
                -1 => return Err(io::Error::last_os_error()),
                fd => OwnedFd::from_raw_fd(fd),
            }
        };
        rustix::net::send(&socket, &question(), rustix::net::SendFlags::empty())?;
        let mut buffer = [0; 4096];
        // The kernel answers within the call that asks.
        let len = rustix::io::read(&socket, &mut buffer)?;
        let group = group_of(&buffer[..len]).ok_or(io::ErrorKind::NotFound)?;
        // SAFETY: the option's value is a live integer of the given size.
        let joined = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_NETLINK,
                libc::NETLINK_ADD_MEMBERSHIP,
                (&raw const group).cast(),
                size_of::<u32>() as libc::socklen_t,
            )
        };
        match joined {
            0 => Ok(Self(socket)),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Reads what has come; whether the power button was among it. Does not allocate.
    pub fn power_button_pressed(&self) -> bool {
        let mut pressed = false;
        let mut buffer = [0; 1024];
        while let Ok(len) = rustix::io::read(&self.0, &mut buffer) {
            if len == 0 {
                break;
            }
            pressed |= is_power_button(&buffer[..len]);
        }
        pressed
    }
}

/// "Which family is called acpi_event?"
fn question() -> [u8; 36] {
    let name = b"acpi_event\0";
    let mut message = [0; 36];
    message[..4].copy_from_slice(&36_u32.to_ne_bytes());
    message[4..6].copy_from_slice(&CONTROL.to_ne_bytes());
    message[6..8].copy_from_slice(&(libc::NLM_F_REQUEST as u16).to_ne_bytes());
    message[16] = GET_FAMILY;
    message[17] = 1;
    message[20..22].copy_from_slice(&(4 + name.len() as u16).to_ne_bytes());
    message[22..24].copy_from_slice(&FAMILY_NAME.to_ne_bytes());
    message[24..24 + name.len()].copy_from_slice(name);
    message
}

/// Attributes, one after the other, each padded to four bytes.
struct Attributes<'a>(&'a [u8]);

impl<'a> Iterator for Attributes<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let len = usize::from(u16::from_ne_bytes(self.0.get(..2)?.try_into().ok()?));
        let kind = u16::from_ne_bytes(self.0.get(2..4)?.try_into().ok()?);
        let value = self.0.get(4..len)?;
        self.0 = self.0.get(len.next_multiple_of(4)..).unwrap_or_default();
        // The upper bits say "nested" and "network order".
        Some((kind & 0x3fff, value))
    }
}

fn body(message: &[u8]) -> &[u8] {
    message.get(NETLINK_HEADER + GENERIC_HEADER..).unwrap_or_default()
}

fn group_of(answer: &[u8]) -> Option<u32> {
    let kind = u16::from_ne_bytes(answer.get(4..6)?.try_into().ok()?);
    if kind != CONTROL {
        return None;
    }
    let (_, groups) = Attributes(body(answer)).find(|(kind, _)| *kind == MULTICAST_GROUPS)?;
    for (_, group) in Attributes(groups) {
        let find = |wanted: u16| Attributes(group).find(|(kind, _)| *kind == wanted).map(|(_, value)| value);
        if find(GROUP_NAME)?.starts_with(b"acpi_mc_group") {
            return Some(u32::from_ne_bytes(find(GROUP_ID)?.get(..4)?.try_into().ok()?));
        }
    }
    None
}

/// The event begins with the class of the device.
fn is_power_button(message: &[u8]) -> bool {
    Attributes(body(message)).any(|(kind, value)| kind == EVENT && value.starts_with(b"button/power"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut bytes = (4 + value.len() as u16).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn message(kind: u16, attributes: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; NETLINK_HEADER + GENERIC_HEADER];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes.extend(attributes);
        bytes
    }

    #[test]
    fn the_group_is_found_in_the_answer() {
        let group =
            [attribute(GROUP_NAME, b"acpi_mc_group\0"), attribute(GROUP_ID, &5_u32.to_ne_bytes())].concat();
        let groups = attribute(MULTICAST_GROUPS | 0x8000, &attribute(1, &group));
        let answer = message(CONTROL, &[attribute(FAMILY_NAME, b"acpi_event\0"), groups].concat());
        assert_eq!(group_of(&answer), Some(5));
        assert_eq!(group_of(&message(2, &[])), None, "an error is no answer");
        assert_eq!(group_of(&answer[..30]), None);
    }

    #[test]
    fn only_the_power_button_counts() {
        let event = |class: &[u8]| message(20, &attribute(EVENT, class));
        assert!(is_power_button(&event(b"button/power\0\0\0\0\0\0\0\0LNXPWRBN:00")));
        assert!(!is_power_button(&event(b"button/lid\0")));
        assert!(!is_power_button(&[0; 7]));
    }

    #[test]
    fn asking_this_kernel_is_harmless() {
        // Present on a machine with ACPI, absent elsewhere; both are answers.
        match Events::open() {
            Ok(events) => assert!(!events.power_button_pressed()),
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::NotFound),
        }
    }
}
