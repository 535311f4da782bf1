//! `gen ca|key|csr|crt|keypair`: keys and certificates as files.

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use base64::Engine as _;
use ichor_pki::{Authority, ExtendedUsage, Grant, KeyAlgorithm, KeyUsage, PrivateKey, Request};
use jiff::Timestamp;

use crate::failure::{Context, Failure};
use crate::files::{read, write_new};
use crate::flags::flags;
use crate::parse::Call;
use crate::table::{Command, Complete, Flag};

/// Mode of everything that holds or goes with a key.
const PRIVATE: u32 = 0o600;

/// `gen ca`.
pub static CA: Command = Command {
    name: "ca",
    about: "Make a certificate authority",
    flags: &[
        Flag::text("organization", "organization in the subject, and the name of the files"),
        Flag::int("hours", "87600", "hours it is valid"),
        Flag::switch("rsa", "use an RSA key in place of Ed25519"),
    ],
    run: Some(ca),
    ..Command::EMPTY
};

/// `gen key`.
pub static KEY: Command = Command {
    name: "key",
    about: "Make an Ed25519 private key",
    flags: &[Flag::text("name", "name of the file, without .key")],
    run: Some(key),
    ..Command::EMPTY
};

/// `gen csr`.
pub static CSR: Command = Command {
    name: "csr",
    about: "Make a certificate request for an Ed25519 key",
    flags: &[
        Flag::text("key", "file of the private key").complete(Complete::File),
        Flag::text("ip", "address in the certificate"),
        Flag::list("roles", "roles in the certificate").default("os:admin"),
    ],
    run: Some(csr),
    ..Command::EMPTY
};

/// `gen crt`.
pub static CRT: Command = Command {
    name: "crt",
    about: "Sign a certificate request",
    flags: &[
        Flag::text("name", "name of the certificate's file, without .crt"),
        Flag::text("ca", "name of the authority's files, without .crt and .key").complete(Complete::File),
        Flag::text("csr", "file of the request").complete(Complete::File),
        Flag::int("hours", "24", "hours it is valid"),
    ],
    run: Some(crt),
    ..Command::EMPTY
};

/// `gen keypair`.
pub static KEYPAIR: Command = Command {
    name: "keypair",
    about: "Make a self-signed Ed25519 pair that is valid for a day",
    flags: &[
        Flag::text("organization", "organization in the subject, and the name of the files"),
        Flag::text("ip", "address in the certificate"),
    ],
    run: Some(keypair),
    ..Command::EMPTY
};

/// Fails when a flag that must be given is not.
fn required<'a>(call: &'a Call, names: &[&'a str]) -> Result<(), Failure> {
    let missing: Vec<String> =
        names.iter().filter(|name| !call.given(name)).map(|name| format!("\"{name}\"")).collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(Failure::new(format!("required flag(s) {} not set", missing.join(", "))))
}

fn lifetime(hours: i64) -> Result<Duration, Failure> {
    match u64::try_from(hours) {
        Ok(hours) if (1..=876_000).contains(&hours) => Ok(Duration::from_secs(hours * 3600)),
        _ => Err(Failure::new("--hours must lie between 1 and 876000")),
    }
}

fn address(text: &str) -> Result<IpAddr, Failure> {
    text.parse().map_err(|_| Failure::new(format!("invalid IP: \"{text}\"")))
}

flags! {
    CaFlags { name: text("organization"), rsa: on("rsa"), hours: int("hours"), force: on("force") }
}

fn ca(call: &Call) -> Result<(), Failure> {
    required(call, &["organization"])?;
    let CaFlags { name, rsa, hours, force } = CaFlags::of(call);
    let algorithm = if rsa { KeyAlgorithm::Rsa4096 } else { KeyAlgorithm::Ed25519 };
    let authority = Authority::generate(algorithm, &name, Timestamp::now(), lifetime(hours)?)
        .context("make the authority")?;
    write_new(Path::new(&format!("{name}.crt")), authority.crt_pem().as_bytes(), PRIVATE, force)?;
    let hash = format!("sha256:{}", hex_fingerprint(&authority.info().spki_fingerprint));
    write_new(Path::new(&format!("{name}.sha256")), hash.as_bytes(), PRIVATE, force)?;
    write_new(Path::new(&format!("{name}.key")), authority.key_pem().as_bytes(), PRIVATE, force)
}

fn hex_fingerprint(base64_text: &str) -> String {
    let bytes = base64::engine::general_purpose::STANDARD.decode(base64_text).unwrap_or_default();
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn key(call: &Call) -> Result<(), Failure> {
    required(call, &["name"])?;
    let (name, force) = (call.text("name"), call.on("force"));
    let key = PrivateKey::generate(KeyAlgorithm::Ed25519).context("make the key")?;
    write_new(Path::new(&format!("{name}.key")), key.to_pem().as_bytes(), PRIVATE, force)
}

flags! {
    CsrFlags { key: text("key"), ip: text("ip"), roles: list("roles"), force: on("force") }
}

fn csr(call: &Call) -> Result<(), Failure> {
    required(call, &["key", "ip"])?;
    let CsrFlags { key, ip, mut roles, force } = CsrFlags::of(call);
    let file = Path::new(&key);
    let key = PrivateKey::from_pem(read(file)?).context(format!("read {}", file.display()))?;
    roles.sort();
    let request = Request::make(&key, "", &roles, &[], &[address(&ip)?]).context("make the request")?;
    let stem = file.file_stem().unwrap_or_default().to_string_lossy();
    write_new(Path::new(&format!("{stem}.csr")), request.as_bytes(), PRIVATE, force)
}

flags! {
    CrtFlags { name: text("name"), ca: text("ca"), csr: text("csr"), hours: int("hours"), force: on("force") }
}

fn crt(call: &Call) -> Result<(), Failure> {
    required(call, &["name", "ca", "csr"])?;
    let CrtFlags { name, ca, csr, hours, force } = CrtFlags::of(call);
    let authority =
        Authority::from_pem(read(Path::new(&format!("{ca}.crt")))?, read(Path::new(&format!("{ca}.key")))?)
            .context(format!("read the authority {ca}"))?;
    let csr = Path::new(&csr);
    let request = Request::from_pem(read(csr)?).context(format!("read {}", csr.display()))?;
    let grant = Grant {
        key_usage: KeyUsage::Signature,
        extended_usage: ExtendedUsage::Client,
        keep_organizations: true,
        lifetime: lifetime(hours)?,
    };
    let crt = authority.sign_request(&request, &grant, Timestamp::now()).context("sign the request")?;
    write_new(Path::new(&format!("{name}.crt")), crt.as_bytes(), PRIVATE, force)
}

fn keypair(call: &Call) -> Result<(), Failure> {
    required(call, &["organization"])?;
    let (name, force) = (call.text("organization"), call.on("force"));
    let addresses = if call.given("ip") { vec![address(call.text("ip"))?] } else { Vec::new() };
    let (now, day) = (Timestamp::now(), Duration::from_secs(24 * 3600));
    let pair =
        Authority::generate_at(KeyAlgorithm::Ed25519, name, &addresses, now, day).context("make the pair")?;
    write_new(Path::new(&format!("{name}.crt")), pair.crt_pem().as_bytes(), PRIVATE, force)?;
    write_new(Path::new(&format!("{name}.key")), pair.key_pem().as_bytes(), PRIVATE, force)
}
