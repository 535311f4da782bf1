//! The files of the platform `nocloud`: from a web server that the serial number names, or from a volume.

use std::sync::Arc;
use std::time::Duration;

use ichor_cosi::State;
use ichor_ctl_network::nocloud::{Files, LABELS, ReadSeed, Seed, Serial, UserData, user_data};
use ichor_http::client::ClientError;
use ichor_resource::hardware::SystemInformation;
use ichor_resource::network::NetworkStatus;
use tokio::time::timeout;
use tracing::info;

use crate::{download, medium};

const META_DATA: &str = "meta-data";
const NETWORK_CONFIG: &str = "network-config";
const USER_DATA: &str = "user-data";

/// Longest wait for what the firmware says about the machine.
const FIRMWARE_MAX: Duration = Duration::from_secs(30);
/// Longest wait for an address to ask a server from.
const NETWORK_MAX: Duration = Duration::from_secs(5 * 60);

/// Reads them, for the network.
pub fn reader(state: &State) -> ReadSeed {
    let state = state.clone();
    Arc::new(move || {
        let state = state.clone();
        Box::pin(async move { read(&state).await })
    })
}

/// Reads all that the platform has for this machine.
///
/// # Errors
/// Says what could not be read. Files that do not exist are no error.
pub async fn read(state: &State) -> Result<Seed, String> {
    let serial = serial(state).await;
    let files = match &serial.url {
        Some(url) => {
            let ready = state.wait_for::<NetworkStatus>("network", "status", |status| status.address_ready);
            if timeout(NETWORK_MAX, ready).await.is_err() {
                return Err(format!("{url}: there is no address to ask from"));
            }
            info!(url, "fetching the files of the platform");
            Files {
                meta_data: text(fetch(url, META_DATA).await?),
                network_config: text(fetch(url, NETWORK_CONFIG).await?),
                user_data: fetch(url, USER_DATA).await?,
            }
        }
        None => {
            let names = &[META_DATA, NETWORK_CONFIG, USER_DATA];
            let found = medium::read(state, &LABELS, names).await.map_err(|error| error.to_string())?;
            let mut found = found.unwrap_or_default();
            let mut take = |name| found.remove(name).unwrap_or_default();
            Files {
                meta_data: text(take(META_DATA)),
                network_config: text(take(NETWORK_CONFIG)),
                user_data: take(USER_DATA),
            }
        }
    };
    Ok(Seed { serial, files })
}

/// The configuration that the platform has, if it has one.
///
/// # Errors
/// As [`read`], and when what it leads to cannot be fetched.
pub async fn configuration(state: &State) -> Result<Option<Vec<u8>>, String> {
    let seed = read(state).await?;
    match user_data(&seed.files.user_data).map_err(|error| error.to_string())? {
        UserData::None => Ok(None),
        UserData::Configuration => Ok(Some(seed.files.user_data)),
        UserData::Include(url) => {
            let found = optional(download::fetch(&url, &[]).await).map_err(|error| error.to_string())?;
            Ok(Some(found).filter(|bytes| !bytes.is_empty()))
        }
    }
}

async fn serial(state: &State) -> Serial {
    let firmware = state.wait_for::<SystemInformation>("hardware", "systeminformation", |_| true);
    match timeout(FIRMWARE_MAX, firmware).await {
        Ok(Ok(system)) => Serial::parse(&system.serialnumber),
        // A machine without such tables has a volume or nothing.
        Ok(Err(_)) | Err(_) => Serial::default(),
    }
}

async fn fetch(url: &str, name: &str) -> Result<Vec<u8>, String> {
    optional(download::fetch(&format!("{url}{name}"), &[]).await).map_err(|error| error.to_string())
}

/// What is not there is empty.
fn optional(result: Result<Vec<u8>, ClientError>) -> Result<Vec<u8>, ClientError> {
    match result {
        Err(ClientError::Status { status, .. }) if status.as_u16() == 404 => Ok(Vec::new()),
        other => other,
    }
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8_lossy(&bytes).into_owned()
}
