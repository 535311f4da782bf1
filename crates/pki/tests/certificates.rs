//! Certificates as other implementations see them: x509-parser for the shape, rustls for the trust.

use std::io::Cursor;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use expect_test::{Expect, expect};
use ichor_pki::{
    Authority, CertInfo, ExtendedUsage, Grant, KeyAlgorithm, KeyPair, KeyUsage, Leaf, PkiError, PrivateKey,
    Request, check, provider,
};
use jiff::Timestamp;
use x509_parser::prelude::{FromDer, X509Certificate};

fn now() -> Timestamp {
    Timestamp::now()
}

fn authority(algorithm: KeyAlgorithm) -> Authority {
    Authority::generate(algorithm, "talos", now(), Authority::TEN_YEARS).expect("authority")
}

fn der(pem: &str) -> Vec<u8> {
    pem::parse(pem).expect("pem").into_contents()
}

/// Name, criticality and value of each extension, without the random identifiers.
fn shape(pem: &str) -> String {
    let der = der(pem);
    let (_, certificate) = X509Certificate::from_der(&der).expect("parses");
    let mut out = format!(
        "version {} subject [{}] issuer [{}] signed {}\n",
        certificate.version().0,
        certificate.subject(),
        certificate.issuer(),
        certificate.signature_algorithm.algorithm
    );
    assert_eq!(certificate.signature_algorithm, certificate.signature);
    for extension in certificate.extensions() {
        let value: String = extension.value.iter().map(|byte| format!("{byte:02x}")).collect();
        let random = (value.starts_with("0414") || value.starts_with("30168014")) && value.len() >= 44;
        out += &format!(
            "{}{} {}\n",
            extension.oid,
            if extension.critical { " critical" } else { "" },
            if random { "(key id)" } else { &value }
        );
    }
    out
}

#[track_caller]
fn check_shape(pem: &str, expect: Expect) {
    expect.assert_eq(&shape(pem));
}

#[test]
fn an_authority_has_the_shape_of_the_original() {
    let authority = authority(KeyAlgorithm::Ed25519);
    check_shape(
        authority.crt_pem(),
        expect![[r#"
            version 2 subject [O=talos] issuer [O=talos] signed 1.3.101.112
            2.5.29.15 critical 03020284
            2.5.29.37 301406082b0601050507030106082b06010505070302
            2.5.29.19 critical 30030101ff
            2.5.29.14 (key id)
        "#]],
    );
    let info = authority.info();
    assert!(info.is_ca);
    assert_eq!(info.not_after.as_second() - info.not_before.as_second(), 87_600 * 3600);
}

#[test]
fn an_authority_without_organization_has_an_empty_subject() {
    let authority =
        Authority::generate(KeyAlgorithm::EcdsaP256, "", now(), Authority::TEN_YEARS).expect("authority");
    check_shape(
        authority.crt_pem(),
        expect![[r#"
        version 2 subject [] issuer [] signed 1.2.840.10045.4.3.2
        2.5.29.15 critical 03020284
        2.5.29.37 301406082b0601050507030106082b06010505070302
        2.5.29.19 critical 30030101ff
        2.5.29.14 (key id)
    "#]],
    );
}

#[test]
fn a_server_leaf_has_the_shape_of_the_original() {
    let leaf = Leaf::server("node.example").with_names(
        ["node", "node.example"],
        ["10.5.0.2".parse::<IpAddr>().unwrap(), "fd00::1".parse().unwrap()],
    );
    let pair = authority(KeyAlgorithm::Ed25519).issue(&leaf, now()).expect("issue");
    check_shape(
        &pair.crt,
        expect![[r#"
            version 2 subject [CN=node.example] issuer [O=talos] signed 1.3.101.112
            2.5.29.15 critical 03020780
            2.5.29.37 300a06082b06010505070301
            2.5.29.35 (key id)
            2.5.29.17 302c82046e6f6465820c6e6f64652e6578616d706c6587040a0500028710fd000000000000000000000000000001
        "#]],
    );
    let info = CertInfo::parse(&pair.crt).expect("info");
    assert_eq!(info.dns_names, ["node", "node.example"]);
    assert_eq!(info.addresses.len(), 2);
    assert_eq!(info.not_after.as_second() - info.not_before.as_second(), 24 * 3600);
    assert!(!info.is_client_only());
}

#[test]
fn several_roles_share_one_rdn() {
    let leaf = Leaf::client("", ["os:reader", "os:admin"]);
    let pair = authority(KeyAlgorithm::Ed25519).issue(&leaf, now()).expect("issue");
    let der = der(&pair.crt);
    let (_, certificate) = X509Certificate::from_der(&der).expect("parses");
    let rdns: Vec<usize> = certificate.subject().iter_rdn().map(|rdn| rdn.iter().count()).collect();
    assert_eq!(rdns, [2]);
    let info = CertInfo::parse(&pair.crt).expect("info");
    // DER sorts the values of a set.
    assert_eq!(info.organizations, ["os:admin", "os:reader"]);
    assert!(info.is_client_only());
    check_shape(
        &pair.crt,
        expect![[r#"
        version 2 subject [O=os:admin + O=os:reader] issuer [O=talos] signed 1.3.101.112
        2.5.29.15 critical 03020780
        2.5.29.37 300a06082b06010505070302
        2.5.29.35 (key id)
    "#]],
    );
}

#[test]
fn encipherment_and_both_usages_are_encoded() {
    let leaf = Leaf {
        key_usage: KeyUsage::SignatureAndEncipherment,
        extended_usage: ExtendedUsage::Both,
        backdate: Duration::from_secs(10),
        ..Leaf::server("etcd")
    };
    let pair = authority(KeyAlgorithm::EcdsaP256).issue(&leaf, now()).expect("issue");
    check_shape(
        &pair.crt,
        expect![[r#"
        version 2 subject [CN=etcd] issuer [O=talos] signed 1.2.840.10045.4.3.2
        2.5.29.15 critical 030205a0
        2.5.29.37 301406082b0601050507030106082b06010505070302
        2.5.29.35 (key id)
    "#]],
    );
    let info = CertInfo::parse(&pair.crt).expect("info");
    assert_eq!(info.not_after.as_second() - info.not_before.as_second(), 24 * 3600 + 10);
}

#[test]
fn dates_after_2049_use_the_long_form() {
    let far: Timestamp = "2060-01-02T03:04:05Z".parse().unwrap();
    let authority = Authority::generate(KeyAlgorithm::Ed25519, "talos", far, Duration::from_secs(3600))
        .expect("authority");
    assert_eq!(authority.info().not_before, far);
}

#[test]
fn a_request_is_signed_without_its_roles() {
    let authority = authority(KeyAlgorithm::Ed25519);
    let key = PrivateKey::generate(KeyAlgorithm::Ed25519).expect("key");
    let csr = Request::make(
        &key,
        "worker",
        &["os:admin".to_owned()],
        &["worker".to_owned()],
        &["10.5.0.3".parse().unwrap()],
    )
    .expect("csr");
    assert!(csr.starts_with("-----BEGIN CERTIFICATE REQUEST-----\n"));
    let request = Request::from_pem(&csr).expect("decodes");
    let grant = Grant {
        key_usage: KeyUsage::Signature,
        extended_usage: ExtendedUsage::Server,
        keep_organizations: false,
        lifetime: Leaf::DAY,
    };
    let crt = authority.sign_request(&request, &grant, now()).expect("signs");
    let info = CertInfo::parse(&crt).expect("info");
    assert_eq!(info.common_name, "worker");
    assert!(info.organizations.is_empty());
    assert_eq!(info.dns_names, ["worker"]);
    assert_eq!(info.addresses, ["10.5.0.3".parse::<IpAddr>().unwrap()]);
    assert_eq!(info.extended_usages, ["1.3.6.1.5.5.7.3.1"]);
    check::pair(&crt, key.to_pem(), now()).expect("pair");

    let kept = Grant { keep_organizations: true, ..grant.clone() };
    let crt = authority.sign_request(&request, &kept, now()).expect("signs");
    assert_eq!(CertInfo::parse(&crt).expect("info").organizations, ["os:admin"]);

    let other = self::authority(KeyAlgorithm::EcdsaP256);
    assert!(matches!(other.sign_request(&request, &grant, now()), Err(PkiError::FamilyMismatch { .. })));
}

#[test]
fn a_tampered_request_is_refused() {
    let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).expect("key");
    let csr = Request::make(&key, "worker", &[], &["worker".to_owned()], &[]).expect("csr");
    Request::from_pem(&csr).expect("decodes").verify().expect("verifies");
    let mut bytes = der(&csr);
    let at = bytes.windows(6).position(|window| window == b"worker").expect("name");
    bytes[at] = b'W';
    let forged = pem::encode(&pem::Pem::new("CERTIFICATE REQUEST", bytes));
    let forged = Request::from_pem(forged).expect("still decodes");
    assert!(matches!(forged.verify(), Err(PkiError::RequestSignature)));
}

#[test]
fn wrong_pairs_and_dates_are_named() {
    let authority = authority(KeyAlgorithm::Ed25519);
    let one = authority.issue(&Leaf::server("one"), now()).expect("one");
    let two = authority.issue(&Leaf::server("two"), now()).expect("two");
    check::pair(&one.crt, &one.key, now()).expect("pair");
    assert!(matches!(check::pair(&one.crt, &two.key, now()), Err(PkiError::KeyMismatch)));
    let tomorrow = now() + Duration::from_secs(25 * 3600);
    assert!(matches!(check::pair(&one.crt, &one.key, tomorrow), Err(PkiError::Expired { .. })));
    let yesterday = now() - Duration::from_secs(3600);
    assert!(matches!(check::pair(&one.crt, &one.key, yesterday), Err(PkiError::NotYetValid { .. })));
    assert!(matches!(check::authority(&one.crt, None, now()), Err(PkiError::NotAuthority)));
    assert!(matches!(Authority::from_pem(&one.crt, &one.key), Err(PkiError::NotAuthority)));
    let both = format!("{}{}", authority.crt_pem(), authority.crt_pem());
    assert_eq!(check::bundle(&both).expect("bundle"), 2);
    let mixed = format!("{both}{}", one.crt);
    assert!(matches!(check::bundle(mixed), Err(PkiError::NotAuthority)));
    assert!(matches!(
        CertInfo::parse("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"),
        Err(PkiError::BadCertificate)
    ));
}

/// One TLS handshake in memory; the server demands a client certificate of the same authority.
fn handshake(authority: &Authority, server: &KeyPair, client: &KeyPair) -> Result<(), rustls::Error> {
    let roots = Arc::new(ichor_pki::roots(authority.crt_pem()).expect("roots"));
    let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(roots.clone(), provider())
        .build()
        .unwrap();
    let key = ichor_pki::certified_key(&server.crt, &server.key).expect("key");
    let server = rustls::ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(key)));
    let key = ichor_pki::certified_key(&client.crt, &client.key).expect("key");
    let client = rustls::ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_client_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(key)));
    let mut server = rustls::ServerConnection::new(Arc::new(server))?;
    let mut client = rustls::ClientConnection::new(Arc::new(client), "10.5.0.2".try_into().unwrap())?;
    for _ in 0..8 {
        let mut wire = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut wire).unwrap();
        }
        let mut wire = Cursor::new(wire);
        while server.read_tls(&mut wire).unwrap() > 0 {}
        server.process_new_packets()?;
        let mut wire = Vec::new();
        while server.wants_write() {
            server.write_tls(&mut wire).unwrap();
        }
        let mut wire = Cursor::new(wire);
        while client.read_tls(&mut wire).unwrap() > 0 {}
        client.process_new_packets()?;
    }
    assert!(!server.is_handshaking() && !client.is_handshaking());
    assert_eq!(server.peer_certificates().unwrap().len(), 1);
    Ok(())
}

#[track_caller]
fn mutual(algorithm: KeyAlgorithm) {
    let authority = authority(algorithm);
    // Through PEM, as a node reads it.
    let authority = Authority::from_pem(authority.crt_pem(), authority.key_pem()).expect("reads back");
    let server = Leaf::server("node").with_names([""; 0], ["10.5.0.2".parse::<IpAddr>().unwrap()]);
    let server = authority.issue(&server, now()).expect("server");
    let client = authority.issue(&Leaf::client("", ["os:admin"]), now()).expect("client");
    handshake(&authority, &server, &client).expect("handshake");
    assert!(handshake(&authority, &client, &client).is_err(), "a client certificate cannot serve");
    assert!(handshake(&authority, &server, &server).is_err(), "a server certificate cannot call");
}

#[test]
fn ed25519_chains_are_trusted() {
    mutual(KeyAlgorithm::Ed25519);
}

#[test]
fn ecdsa_chains_are_trusted() {
    mutual(KeyAlgorithm::EcdsaP256);
}

#[test]
fn rsa_keys_round_trip_and_their_chain_is_trusted() {
    // One key for everything: making one takes seconds without optimisation.
    let key = PrivateKey::generate(KeyAlgorithm::Rsa4096).expect("key");
    assert!(key.to_pem().starts_with("-----BEGIN RSA PRIVATE KEY-----\n"));
    assert!(key.public_pem().starts_with("-----BEGIN PUBLIC KEY-----\n"));
    let back = PrivateKey::from_pem(key.to_pem()).expect("reads back");
    assert_eq!(back.to_pem(), key.to_pem());
    let csr = Request::make(&back, "x", &[], &[], &[]).expect("csr");
    Request::from_pem(csr).expect("decodes").verify().expect("verifies");
    let authority = authority(KeyAlgorithm::EcdsaP256);
    let leaf = Leaf::server("node");
    let crt = authority.issue_for(&leaf, &key, now()).expect("issue");
    check::pair(&crt, key.to_pem(), now()).expect("pair");
}

#[test]
fn an_issuer_is_known_by_its_key_and_not_by_its_name() {
    for algorithm in [KeyAlgorithm::Ed25519, KeyAlgorithm::EcdsaP256] {
        let make =
            || Authority::generate(algorithm, "kubernetes", now(), Authority::TEN_YEARS).expect("authority");
        let (one, same_name) = (make(), make());
        let leaf = one.issue(&Leaf::client("system:node:a", ["system:nodes"]), now()).expect("leaf");
        let both = format!("{}{}", same_name.crt_pem(), one.crt_pem());
        assert!(check::issued_by(&leaf.crt, &both).expect("read"));
        assert!(!check::issued_by(&leaf.crt, same_name.crt_pem()).expect("read"));
        assert!(check::issued_by("nonsense", one.crt_pem()).is_err());
    }
}

#[test]
fn a_key_is_found_behind_its_certificate() {
    let authority = Authority::generate(KeyAlgorithm::EcdsaP256, "kubernetes", now(), Authority::TEN_YEARS)
        .expect("authority");
    let pair = authority.issue(&Leaf::client("system:node:a", ["system:nodes"]), now()).expect("leaf");
    let both = format!("{}{}", pair.crt, pair.key);
    check::pair(&both, &both, now()).expect("pair");
    assert!(matches!(PrivateKey::from_pem(&pair.crt), Err(PkiError::Label { .. })));
}
