//! What the platform `nocloud` says of a machine: where its files are, its metadata, and its network in versions 1 and 2 of
//! their format. Pure.

mod network;

use std::pin::Pin;
use std::sync::Arc;

use ichor_resource::network::{ConfigLayer, HostnameSpec, PlatformConfig};
use ichor_resource::runtime::PlatformMetadata;
use ichor_types::HardwareAddr;
use ichor_yaml::Node;

use crate::source::hostname;

/// The platform's name.
pub const NAME: &str = "nocloud";
/// Labels of the volume with its files.
pub const LABELS: [&str; 2] = ["cidata", "CIDATA"];

/// What files of the platform say cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("nocloud {file}: {reason}")]
pub struct NoCloudError {
    /// The file.
    pub file: &'static str,
    /// What is wrong with it.
    pub reason: String,
}

fn bad(file: &'static str, reason: impl Into<String>) -> NoCloudError {
    NoCloudError { file, reason: reason.into() }
}

/// What the serial number of the machine says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Serial {
    /// Where the files are served, with a slash at the end; without it they are on a volume.
    pub url: Option<String>,
    /// The host name.
    pub hostname: String,
    /// The number of the machine.
    pub instance_id: String,
}

impl Serial {
    /// Reads a serial number such as `ds=nocloud-net;s=http://10.0.0.1/node/;h=name;i=number`.
    pub fn parse(serial: &str) -> Self {
        let (mut found, mut source, mut url) = (Self::default(), "", "");
        for part in serial.split(';') {
            match part.trim().split_once('=') {
                Some(("ds", value)) => source = value,
                Some(("s", value)) => url = value,
                Some(("h", value)) => found.hostname = value.to_owned(),
                Some(("i", value)) => found.instance_id = value.to_owned(),
                _ => {}
            }
        }
        let is_web = ["http://", "https://"].iter().any(|scheme| url.starts_with(scheme));
        if matches!(source, "nocloud-net" | "nocloud") && is_web {
            found.url = Some(if url.ends_with('/') { url.to_owned() } else { format!("{url}/") });
        }
        found
    }
}

/// The files of a machine; what is not there is empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Files {
    /// `meta-data`.
    pub meta_data: String,
    /// `network-config`.
    pub network_config: String,
    /// `user-data`.
    pub user_data: Vec<u8>,
}

/// All that the platform has for a machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Seed {
    /// What the serial number says.
    pub serial: Serial,
    /// The files.
    pub files: Files,
}

/// Reads what the platform has. It waits for what it needs to do that, within bounds, and says what failed.
pub type ReadSeed =
    Arc<dyn Fn() -> Pin<Box<dyn Future<Output = Result<Seed, String>> + Send>> + Send + Sync + 'static>;

/// What `user-data` is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UserData {
    /// Nothing, or something for another system.
    None,
    /// The address of the configuration.
    Include(String),
    /// The configuration itself, compressed or not.
    Configuration,
}

/// Says what `user-data` is.
///
/// # Errors
/// When it is to include something other than one address.
pub fn user_data(bytes: &[u8]) -> Result<UserData, NoCloudError> {
    let text = String::from_utf8_lossy(bytes);
    let mut lines = text.lines().map(str::trim);
    match lines.next() {
        None | Some("#cloud-config") => Ok(UserData::None),
        Some("#include") => {
            let addresses: Vec<&str> = lines.filter(|line| !line.is_empty()).collect();
            match addresses.as_slice() {
                [address] => Ok(UserData::Include((*address).to_owned())),
                all => {
                    Err(bad("user-data", format!("#include of {} addresses; there has to be one", all.len())))
                }
            }
        }
        Some("") if text.trim().is_empty() => Ok(UserData::None),
        Some(_) => Ok(UserData::Configuration),
    }
}

/// A link of the machine, to be found by its hardware address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownLink {
    /// Its name.
    pub name: String,
    /// The address it was made with.
    pub permanent: HardwareAddr,
    /// The address it has.
    pub current: HardwareAddr,
}

/// What the files say, for a machine with these links.
///
/// # Errors
/// Names the file and what is wrong in it.
pub fn config(seed: &Seed, links: &[KnownLink]) -> Result<PlatformConfig, NoCloudError> {
    let Seed { serial, files } = seed;
    let mut config = network::parse(&files.network_config, links)?;
    let metadata = metadata(serial, files)?;
    if !metadata.hostname.is_empty() {
        let parsed: Result<HostnameSpec, _> = hostname::spec_of(&metadata.hostname, ConfigLayer::Platform);
        config.hostnames.push(parsed.map_err(|error| bad("meta-data", error.to_string()))?);
    }
    config.metadata = Some(metadata);
    Ok(config)
}

fn metadata(serial: &Serial, files: &Files) -> Result<PlatformMetadata, NoCloudError> {
    let root = document("meta-data", &files.meta_data)?;
    let text = |key: &str| text_of(root.as_ref(), key);
    let mut hostname = first([serial.hostname.clone(), text("hostname"), text("local-hostname")]);
    if hostname.is_empty() {
        // Written for other systems, it may be here as well. A configuration of ours has no such keys.
        let user = std::str::from_utf8(&files.user_data).ok().and_then(|text| ichor_yaml::parse(text).ok());
        let user = user.and_then(|documents| documents.into_iter().next()).map(|document| document.root);
        let text = |key: &str| text_of(user.as_ref(), key);
        hostname = first([text("hostname"), text("local-hostname"), String::new()]);
    }
    Ok(PlatformMetadata {
        platform: NAME.to_owned(),
        hostname,
        region: text("region"),
        zone: text("zone"),
        instance_type: text("instance-type"),
        instance_id: first([serial.instance_id.clone(), text("instance-id"), String::new()]),
        provider_id: text("provider-id"),
        internal_dns: text("local-hostname"),
        external_dns: text("public-hostname"),
        ..PlatformMetadata::default()
    })
}

fn first(texts: [String; 3]) -> String {
    texts.into_iter().find(|text| !text.is_empty()).unwrap_or_default()
}

fn text_of(node: Option<&Node>, key: &str) -> String {
    let value = node.and_then(|node| node.get(key)).filter(|value| !value.is_null());
    value.and_then(Node::as_str).unwrap_or_default().to_owned()
}

/// The first document of a file; none when it is empty.
fn document(file: &'static str, text: &str) -> Result<Option<Node>, NoCloudError> {
    let documents = ichor_yaml::parse(text).map_err(|error| bad(file, error.to_string()))?;
    Ok(documents.into_iter().next().map(|document| document.root).filter(|root| !root.is_null()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_serial_number_says_where_files_are() {
        let url = |text: &str| Serial::parse(text).url;
        assert_eq!(url("ds=nocloud-net;s=http://a/b").as_deref(), Some("http://a/b/"));
        assert_eq!(url("ds=nocloud;s=https://a/").as_deref(), Some("https://a/"));
        for other in ["", "ds=nocloud-net", "ds=nocloud-net;s=ftp://a/", "s=http://a/", "VM-123"] {
            assert_eq!(url(other), None, "{other}");
        }
        let named = Serial::parse("ds=nocloud-net;s=http://a/;h=name;i=number");
        assert_eq!((named.hostname.as_str(), named.instance_id.as_str()), ("name", "number"));
    }

    #[test]
    fn user_data_is_a_configuration_unless_it_says_otherwise() {
        assert_eq!(user_data(b""), Ok(UserData::None));
        assert_eq!(user_data(b"\n\n"), Ok(UserData::None));
        assert_eq!(user_data(b"#cloud-config \nhostname: x\n"), Ok(UserData::None));
        assert_eq!(user_data(b"version: v1alpha1\n"), Ok(UserData::Configuration));
        assert_eq!(user_data(&[0x1f, 0x8b, 8, 0]), Ok(UserData::Configuration));
        assert_eq!(user_data(b"#include\n\n http://a/b \n"), Ok(UserData::Include("http://a/b".to_owned())));
        for (text, count) in [("#include\n", 0), ("#include\nhttp://a\nhttp://b\n", 2)] {
            let error = user_data(text.as_bytes()).unwrap_err().to_string();
            let told = format!("nocloud user-data: #include of {count} addresses; there has to be one");
            assert_eq!(error, told);
        }
    }

    fn hostname(serial: &str, meta: &str, user: &str) -> String {
        let files = Files { meta_data: meta.into(), user_data: user.into(), ..Files::default() };
        let config = config(&Seed { serial: Serial::parse(serial), files }, &[]).unwrap();
        config
            .hostnames
            .first()
            .map(|spec| format!("{}.{}", spec.hostname, spec.domainname))
            .unwrap_or_default()
    }

    #[test]
    fn the_name_comes_from_the_first_that_has_one() {
        assert_eq!(hostname("", "hostname: a.b.c\nlocal-hostname: l\n", "hostname: u\n"), "a.b.c");
        assert_eq!(hostname("h=s", "hostname: a\n", ""), "s.");
        assert_eq!(hostname("", "local-hostname: l\n", ""), "l.");
        assert_eq!(hostname("", "instance-id: i\n", "#cloud-config\nlocal-hostname: u\n"), "u.");
        assert_eq!(hostname("", "", ""), "");
    }

    #[test]
    fn metadata_is_kept() {
        let files = Files {
            meta_data: "instance-id: i-1\ninstance-type: small\nprovider-id: p\nregion: r\nzone: z\n".into(),
            ..Files::default()
        };
        let found = config(&Seed { files, ..Seed::default() }, &[]).unwrap().metadata.unwrap();
        assert_eq!((found.instance_id.as_str(), found.instance_type.as_str()), ("i-1", "small"));
        assert_eq!(
            (found.region.as_str(), found.zone.as_str(), found.platform.as_str()),
            ("r", "z", "nocloud")
        );
        let broken = Files { meta_data: "a: [".into(), ..Files::default() };
        let error = config(&Seed { files: broken, ..Seed::default() }, &[]).unwrap_err().to_string();
        assert!(error.starts_with("nocloud meta-data: "), "{error}");
    }
}
