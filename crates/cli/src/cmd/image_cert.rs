//! `image cache-cert-gen`: certificates for an image cache, and the patch that makes machines trust them.

use std::net::IpAddr;
use std::path::Path;

use ichor_pki::{Authority, KeyAlgorithm, Leaf};
use jiff::Timestamp;

use crate::failure::{Context, Failure};
use crate::files;
use crate::flags::flags;
use crate::parse::Call;

/// Where the patch is written.
const PATCH_FILE: &str = "image-cache-patch.yaml";

flags! {
    /// The command line, resolved.
    CertFlags {
        addresses: list("advertised-address"),
        names: list("advertised-name"),
        ca: text("tls-ca-file"),
        crt: text("tls-cert-file"),
        key: text("tls-key-file"),
    }
}

/// Makes an authority and a server certificate, both valid for a day.
pub fn run(call: &Call) -> Result<(), Failure> {
    let CertFlags { addresses, names, ca, crt, key } = CertFlags::of(call);
    let addresses = addresses
        .iter()
        .map(|text| {
            text.parse::<IpAddr>().map_err(|_| {
                Failure::new(format!(
                    "invalid argument \"{text}\" for \"--advertised-address\" flag: not an address"
                ))
            })
        })
        .collect::<Result<Vec<_>, _>>()?;
    let now = Timestamp::now();
    let authority = Authority::generate(KeyAlgorithm::EcdsaP256, "talos.dev", now, Leaf::DAY)
        .context("make the authority")?;
    let mut leaf = Leaf::server("server").with_names(names, addresses);
    leaf.organizations = vec!["talos.dev".to_owned()];
    let pair = authority.issue(&leaf, now).context("make the certificate")?;
    eprintln!("writing config patch to {PATCH_FILE}");
    files::write(Path::new(PATCH_FILE), patch(authority.crt_pem()).as_bytes(), 0o644)?;
    files::write(Path::new(&ca), authority.crt_pem().as_bytes(), 0o644)?;
    files::write(Path::new(&crt), pair.crt.as_bytes(), 0o644)?;
    files::write(Path::new(&key), pair.key.as_bytes(), 0o600)
}

/// The document that makes machines trust a CA.
fn patch(ca: &str) -> String {
    let lines: String = ca.lines().map(|line| format!("    {line}\n")).collect();
    format!("apiVersion: v1alpha1\nkind: TrustedRootsConfig\nname: image-cache-ca\ncertificates: |\n{lines}")
}
