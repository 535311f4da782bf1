//! Loopback addresses that a test stops listening on and listens on again.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use tokio::net::TcpListener;
use tokio::time::{Duration, timeout};

use crate::WAIT_MAX;

/// A loopback address of this process alone.
///
/// A port of `127.0.0.1` that is given up may become the source port of any connection on this host, and is then taken. Nothing
/// connects from this address.
pub fn own_loopback() -> IpAddr {
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, 64 | (high & 0x3f), middle, low).into()
}

/// Listens on the address as soon as whoever listened there before has closed its socket.
///
/// # Panics
/// When that takes longer than [`WAIT_MAX`], or for any other reason not to get the address.
pub async fn listen_again(address: SocketAddr) -> TcpListener {
    let attempts = async {
        loop {
            match TcpListener::bind(address).await {
                Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                other => return other.unwrap_or_else(|error| panic!("listen on {address}: {error}")),
            }
        }
    };
    timeout(WAIT_MAX, attempts).await.unwrap_or_else(|_| panic!("{address} stays in use"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_address_that_is_given_up_late_is_waited_for() {
        let first = TcpListener::bind((own_loopback(), 0)).await.unwrap();
        let address = first.local_addr().unwrap();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(50)).await;
            drop(first);
        });
        assert_eq!(listen_again(address).await.local_addr().unwrap(), address);
    }
}
