//! The client certificate and its end.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ichor_config::talosconfig::{ClientConfig, Context};
use ichor_pki::{Authority, CertInfo, Leaf};
use ichor_wire::machine::{
    GenerateClientConfiguration, GenerateClientConfigurationRequest, GenerateClientConfigurationResponse,
    Version, VersionInfo, VersionResponse,
};
use jiff::Timestamp;

use crate::fake::{Answer, Fake, Methods};
use crate::run::ichorctl_with;

const GENERATE: &str = "/machine.MachineService/GenerateClientConfiguration";
const VERSION: &str = "/machine.MachineService/Version";
const DAY: u64 = 24 * 60 * 60;

type Issued = Arc<Mutex<Option<GenerateClientConfiguration>>>;

/// A node that issues whatever `issued` holds, or refuses.
fn node() -> (Fake, Issued) {
    let issued = Issued::default();
    let answer = issued.clone();
    let methods = Methods::default()
        .on(GENERATE, move |_| match answer.lock().unwrap().clone() {
            Some(message) => Answer::one(&GenerateClientConfigurationResponse { messages: vec![message] }),
            None => Answer::error(tonic::Code::PermissionDenied, "not authorized"),
        })
        .on(VERSION, |_| {
            let version = VersionInfo { tag: "v1.12.1".to_owned(), ..VersionInfo::default() };
            let messages = vec![Version { version: Some(version), ..Version::default() }];
            Answer::one(&VersionResponse { messages })
        });
    (methods.start(&["127.0.0.1"]), issued)
}

fn pair(authority: &Authority, roles: &[&str], started_days_ago: u64, days: u64) -> (String, String) {
    let from =
        Timestamp::from_second(Timestamp::now().as_second() - (started_days_ago * DAY) as i64).unwrap();
    let leaf = Leaf::client("", roles.iter().copied()).with_lifetime(Duration::from_secs(days * DAY));
    let pair = authority.issue(&leaf, from).unwrap();
    (pair.crt, pair.key)
}

fn path(fake: &Fake) -> PathBuf {
    fake.home().join(".talos/config")
}

/// Gives the client a certificate that began and ends on chosen days, and a second context to keep.
fn holds(fake: &Fake, started_days_ago: u64, days: u64) {
    let mut config = ClientConfig::load(&std::fs::read(path(fake)).unwrap()).unwrap();
    let (crt, key) = pair(&fake.authority, &["os:admin"], started_days_ago, days);
    let old = config.contexts.get("test").unwrap().clone();
    let mut new = Context::new(&old.endpoints, fake.authority.crt_pem(), &crt, &key);
    new.nodes = old.nodes;
    config.contexts.entries_mut().insert("test".to_owned(), new);
    let other = Context::new(&["10.0.0.9".to_owned()], "", "", "");
    config.contexts.entries_mut().insert("other".to_owned(), other);
    std::fs::write(path(fake), config.to_yaml()).unwrap();
}

fn held(fake: &Fake) -> (ClientConfig, CertInfo) {
    let config = ClientConfig::load(&std::fs::read(path(fake)).unwrap()).unwrap();
    let crt = config.contexts.get("test").unwrap().crt_pem().unwrap().unwrap();
    (config, CertInfo::parse(crt).unwrap())
}

fn will_issue(fake: &Fake, issued: &Issued, days: u64) {
    let (crt, key) = pair(&fake.authority, &["os:admin"], 0, days);
    *issued.lock().unwrap() = Some(GenerateClientConfiguration {
        ca: fake.authority.crt_pem().as_bytes().to_vec(),
        crt: crt.into_bytes(),
        key: key.into_bytes(),
        ..GenerateClientConfiguration::default()
    });
}

#[test]
fn a_certificate_that_ends_soon_is_told_once_and_not_on_standard_output() {
    let (fake, _) = node();
    let quiet = fake.run(&["version", "--short"]);
    assert_eq!((quiet.code, quiet.err.as_str()), (0, ""), "{quiet:?}");
    holds(&fake, 310, 365);
    let told = fake.run(&["version", "--short"]);
    assert_eq!(told.code, 0, "{told:?}");
    assert_eq!(told.err.matches("the client certificate of context \"test\" ends").count(), 1, "{told:?}");
    assert!(told.err.contains("`ichorctl config renew`") && !told.out.contains("certificate"), "{told:?}");
}

#[test]
fn an_expired_certificate_says_when_and_what_to_do() {
    let (fake, _) = node();
    holds(&fake, 400, 365);
    let refused = fake.run(&["version"]);
    assert_eq!(refused.code, 1);
    assert!(
        refused.err.contains("the client certificate of context \"test\" ended 1 month ago ("),
        "{refused:?}"
    );
    for way in ["gen config", "--from-controlplane-config", "config new", "set its clock"] {
        assert!(refused.err.contains(way), "{way}: {refused:?}");
    }
    assert!(fake.calls(VERSION).is_empty(), "nobody was asked");
    assert_eq!(fake.run(&["config", "renew"]).code, 1);
    assert_eq!(fake.run(&["config", "info"]).code, 0, "what needs no machine goes on");
}

#[test]
fn renewing_changes_the_certificate_and_nothing_else() {
    let (fake, issued) = node();
    holds(&fake, 350, 365);
    std::fs::set_permissions(path(&fake), std::fs::Permissions::from_mode(0o640)).unwrap();
    let (before, old) = held(&fake);
    will_issue(&fake, &issued, 365);
    let done = fake.run(&["config", "renew"]);
    assert_eq!(done.code, 0, "{done:?}");
    assert!(done.err.contains("renewed the client certificate of context \"test\""), "{done:?}");
    let (after, new) = held(&fake);
    assert!(new.not_after > old.not_after);
    let asked: GenerateClientConfigurationRequest = fake.calls(GENERATE)[0].decode();
    assert_eq!(asked.roles, ["os:admin"]);
    assert_eq!(
        asked.crt_ttl.unwrap().seconds,
        (365 * DAY) as i64,
        "as long as the old one was meant to last"
    );
    assert_eq!(after.context, before.context);
    assert_eq!(after.contexts.get("other"), before.contexts.get("other"));
    let (one, two) = (after.contexts.get("test").unwrap(), before.contexts.get("test").unwrap());
    assert_eq!((&one.endpoints, &one.nodes, &one.ca), (&two.endpoints, &two.nodes, &two.ca));
    assert_eq!(std::fs::metadata(path(&fake)).unwrap().permissions().mode() & 0o777, 0o640);
    assert_eq!(fake.run(&["version", "--short"]).err, "", "and nothing to warn of any more");
}

#[test]
fn a_certificate_that_does_not_work_or_ends_no_later_is_not_taken() {
    let (fake, issued) = node();
    holds(&fake, 350, 365);
    let before = std::fs::read(path(&fake)).unwrap();
    will_issue(&fake, &issued, 10);
    let shorter = fake.run(&["config", "renew"]);
    assert!(shorter.code == 1 && shorter.err.contains("no later than the old one"), "{shorter:?}");

    let stranger = Authority::generate(
        ichor_pki::KeyAlgorithm::Ed25519,
        "talos",
        Timestamp::now(),
        Authority::TEN_YEARS,
    )
    .unwrap();
    let (crt, key) = pair(&stranger, &["os:admin"], 0, 365);
    *issued.lock().unwrap() = Some(GenerateClientConfiguration {
        crt: crt.into_bytes(),
        key: key.into_bytes(),
        ..GenerateClientConfiguration::default()
    });
    let foreign = fake.run(&["config", "renew"]);
    assert!(foreign.code == 1 && foreign.err.contains("the new certificate does not work"), "{foreign:?}");

    *issued.lock().unwrap() = None;
    let denied = fake.run(&["config", "renew"]);
    assert!(denied.code == 1 && denied.err.contains("only administrators issue certificates"), "{denied:?}");
    assert_eq!(std::fs::read(path(&fake)).unwrap(), before, "the file is as it was");
}

#[test]
fn with_a_word_in_the_environment_commands_renew_by_themselves() {
    let (fake, issued) = node();
    holds(&fake, 350, 365);
    let automatic = [("ICHOR_AUTO_RENEW", "1")];
    // Not allowed to: a warning, and the command does its work.
    let refused = ichorctl_with(fake.home(), &["version", "--short"], &automatic);
    assert_eq!(refused.code, 0, "{refused:?}");
    assert!(refused.err.contains("was not renewed"), "{refused:?}");

    will_issue(&fake, &issued, 365);
    let renewed = ichorctl_with(fake.home(), &["version", "--short"], &automatic);
    assert_eq!(renewed.code, 0, "{renewed:?}");
    assert!(renewed.err.contains("renewed the client certificate of context \"test\""), "{renewed:?}");
    let calls = fake.calls(GENERATE).len();
    let again = ichorctl_with(fake.home(), &["version", "--short"], &automatic);
    assert_eq!((again.code, again.err.as_str()), (0, ""), "{again:?}");
    assert_eq!(fake.calls(GENERATE).len(), calls, "a fresh one is left alone");
}
