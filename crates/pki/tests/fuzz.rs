//! Certificate requests come from whoever has the join token, PEM from configurations and peers: both are read or
//! refused, never with a panic, and what is signed says what it may.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ichor_fuzz::{Target, shape};
use ichor_pki::{
    Authority, CertInfo, ExtendedUsage, Grant, KeyAlgorithm, KeyUsage, Leaf, PrivateKey, Request, check,
    pkcs7, roots,
};
use jiff::Timestamp;

fn now() -> Timestamp {
    Timestamp::from_second(1_800_000_000).unwrap()
}

fn authority() -> Authority {
    Authority::generate(KeyAlgorithm::Ed25519, "talos", now(), Authority::TEN_YEARS).unwrap()
}

fn request(key: &PrivateKey) -> String {
    let names = ["worker".to_owned(), "worker.example.org".to_owned()];
    let addresses = ["10.5.0.3".parse().unwrap(), "2001:db8::3".parse().unwrap()];
    Request::make(key, "worker", &["os:admin".to_owned()], &names, &addresses).unwrap()
}

/// The bytes in the first block.
fn der(pem: &str) -> Vec<u8> {
    let text: String = pem.lines().filter(|line| !line.starts_with("-----")).collect();
    STANDARD.decode(text).unwrap()
}

fn pem(label: &str, der: &[u8]) -> String {
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", STANDARD.encode(der))
}

/// Reads a request and signs it as trustd does.
fn sign(authority: &Authority, input: impl AsRef<[u8]>) -> String {
    let grant = Grant {
        key_usage: KeyUsage::Signature,
        extended_usage: ExtendedUsage::Server,
        keep_organizations: false,
        lifetime: Leaf::DAY,
    };
    let read = match Request::from_pem(input) {
        Ok(read) => read,
        Err(error) => return shape(&error.to_string()),
    };
    match authority.sign_request(&read, &grant, now()) {
        Ok(crt) => {
            assert!(read.verify().is_ok(), "signed without a proof of the key");
            let info = check::answer(&crt, &read, authority.crt_pem()).expect("an answer to the request");
            assert!(info.organizations.is_empty() && !info.is_ca && !info.is_client_only(), "{info:?}");
            assert_eq!((&info.dns_names[..], &info.addresses[..]), (read.dns_names(), read.addresses()));
            format!("signed {} {}", info.dns_names.len().min(3), info.addresses.len().min(3))
        }
        Err(error) => shape(&error.to_string()),
    }
}

#[test]
fn certificate_requests() {
    let authority = authority();
    let keys =
        [KeyAlgorithm::Ed25519, KeyAlgorithm::EcdsaP256].map(|kind| PrivateKey::generate(kind).unwrap());
    let seeds: Vec<Vec<u8>> = keys.iter().map(|key| der(&request(key))).collect();
    // Tags and object identifiers that stand in requests.
    let words =
        [&[0x30, 0x80][..], &[0x06, 0x03, 0x55, 0x1d, 0x11], &[0x87, 0x04], &[0x82, 0x00], &[0x31, 0x84]];
    Target::binary("certificate-request")
        .seeds(seeds)
        .words(words)
        .rounds(10_000)
        .run(|input| sign(&authority, pem("CERTIFICATE REQUEST", input)));
}

#[test]
fn texts_in_pem() {
    let authority = authority();
    let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
    let leaf =
        authority.issue(&Leaf::server("node").with_names(["node"], [[10, 5, 0, 2].into()]), now()).unwrap();
    let seeds = [
        request(&key),
        key.to_pem(),
        key.public_pem(),
        leaf.key,
        format!("{}{}", leaf.crt, authority.crt_pem()),
        "-----BEGIN CERTIFICATE-----\nProc-Type: 4,ENCRYPTED\n\nAAAA\n-----END CERTIFICATE-----\n".to_owned(),
    ];
    let words =
        ["-----BEGIN ", "-----END ", "-----\n", "CERTIFICATE", "CERTIFICATE REQUEST", "EC PRIVATE KEY", "=="];
    Target::text("pem").seeds(seeds).words(words).rounds(5_000).run(|input| {
        let certificates = CertInfo::parse_all(input);
        let bundle = check::bundle(input);
        if let Ok(count) = bundle {
            assert_eq!(certificates.as_ref().unwrap().len(), count);
        }
        let issued = check::issued_by(input, authority.crt_pem());
        let key = PrivateKey::from_pem(input);
        if let Ok(key) = &key {
            let again = PrivateKey::from_pem(key.to_pem()).expect("a key that was written is read");
            assert_eq!(again.spki(), key.spki());
        }
        let text = |error: &ichor_pki::PkiError| shape(&error.to_string());
        (
            certificates.map_or_else(|error| text(&error), |found| found.len().min(3).to_string()),
            issued.map_or_else(|error| text(&error), |signed| signed.to_string()),
            key.map_or_else(|error| text(&error), |key| format!("{:?}", key.family())),
            roots(input).is_ok(),
            pkcs7::certificate_der(input).is_ok(),
            sign(&authority, input),
        )
    });
}

#[test]
fn certificates() {
    let authority = authority();
    let leaf = Leaf::server("node").with_names(["node"], [[10, 5, 0, 2].into()]);
    let seeds = [
        der(&authority.issue(&leaf, now()).unwrap().crt),
        der(&authority.issue(&Leaf::client("jo", ["os:admin", "os:reader"]), now()).unwrap().crt),
        der(authority.crt_pem()),
    ];
    Target::binary("certificate").seeds(seeds).rounds(10_000).run(|input| match CertInfo::from_der(input) {
        Ok(info) => {
            let signed = check::issued_by(pem("CERTIFICATE", input), authority.crt_pem());
            format!("{} {} {:?} {signed:?}", info.is_ca, info.roles().iter().count(), info.key_family())
        }
        Err(error) => shape(&error.to_string()),
    });
}
