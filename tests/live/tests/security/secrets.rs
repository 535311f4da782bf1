//! What certificates below `os:admin` can read: every resource, file name, log and answer of a cluster, and the support
//! bundle. None of the cluster's secrets is among it.
//!
//! The secrets are found, not listed: every private key that an administrator can see anywhere, the tokens and keys of the
//! configuration, and credentials that were put there for this test. An administrator's sweep must find them, so a search
//! that finds nothing is no pass.

mod bundle;
mod needles;
mod sweep;

use std::time::Duration;

use ichor_live::Fleet;
use ichor_pki::{Authority, KeyAlgorithm, Leaf, Role};

use needles::Needles;
use sweep::{Found, Sweep};

const OCTET: u8 = 88;
/// The roles that are less than an administrator's, alone and together.
const ROLES: [&[&str]; 6] = [
    &["os:reader"],
    &["os:operator"],
    &["os:etcd:backup"],
    &["os:impersonator"],
    &[],
    &["os:reader", "os:operator", "os:etcd:backup"],
];

/// Credentials that are configured for this test, each with a word that nothing else has.
const PLANTED: [(&str, &str); 9] = [
    ("password of a registry", "planted-registry-password-5tB1qk"),
    ("identity token of a registry", "planted-registry-identity-9cVz2w"),
    ("authorization header of a registry", "planted-registry-header-7Ys0pd"),
    ("access key of backups", "planted-backup-access-key-3Jm8xa"),
    ("secret key of backups", "planted-backup-secret-key-6Wn4rf"),
    ("header of extra manifests", "planted-manifest-header-1Lp7ug"),
    ("environment of an extension service", "planted-extension-environment-0Hd5jb"),
    ("file of an extension service", "planted-extension-file-8Qe2ny"),
    ("token of the machine", "planted-unique-machine-token-4Gk6vs"),
];

fn planted(what: &str) -> &'static str {
    PLANTED.iter().find(|(name, _)| *name == what).unwrap().1
}

/// Everything that a configuration can hold of credentials, in one patch.
fn patch() -> String {
    let now = jiff::Timestamp::now();
    let authority = Authority::generate(KeyAlgorithm::EcdsaP256, "registry", now, Leaf::DAY).unwrap();
    let pair = authority.issue(&Leaf::client("puller", ["x"]), now).unwrap();
    let indent = |text: &str| text.trim().replace('\n', "\n    ");
    let backup = format!(
        "apiVersion: v1\nkind: Secret\nmetadata: {{name: backup, namespace: kube-system}}\nstringData:\n  access: {}\n  secret: {}\n",
        planted("access key of backups"),
        planted("secret key of backups"),
    );
    format!(
        "apiVersion: v1alpha1\nkind: RegistryAuthConfig\nname: one.registry.example\nusername: puller\npassword: {}\n\
         ---\napiVersion: v1alpha1\nkind: RegistryAuthConfig\nname: two.registry.example\nidentityToken: {}\n\
         ---\napiVersion: v1alpha1\nkind: RegistryAuthConfig\nname: three.registry.example\nauth: {}\n\
         ---\napiVersion: v1alpha1\nkind: RegistryTLSConfig\nname: one.registry.example\nclientIdentity:\n  cert: |\n    {}\n  key: |\n    {}\n\
         ---\napiVersion: v1alpha1\nkind: ExtensionServiceConfig\nname: tunnel\nenvironment:\n  - AUTH_KEY={}\n\
         configFiles:\n  - content: {}\n    mountPath: /etc/tunnel\n\
         ---\napiVersion: v1alpha1\nkind: SideroLinkConfig\napiUrl: https://siderolink.example\nuniqueToken: {}\n\
         ---\ncluster:\n  aescbcEncryptionSecret: {}\n  extraManifestHeaders:\n    Authorization: Bearer {}\n\
         \x20 inlineManifests:\n    - name: backup\n      contents: |\n        {}\n",
        planted("password of a registry"),
        planted("identity token of a registry"),
        planted("authorization header of a registry"),
        indent(&pair.crt),
        indent(&pair.key),
        planted("environment of an extension service"),
        planted("file of an extension service"),
        planted("token of the machine"),
        needles::encode(b"thirty-two bytes of an AES key.."),
        planted("header of extra manifests"),
        backup.trim().replace('\n', "\n        "),
    )
}

#[test]
fn a_reader_finds_no_secret_in_anything_it_may_read() {
    ichor_pki::install_provider();
    let fleet =
        Fleet::kubernetes("secrets", OCTET, 1, 1, &["--config-patch-control-plane", &patch()]).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let authority = fleet.authority();
    let types = sweep::types(&fleet);
    println!("{} resource types", types.len());

    // What an administrator sees is where the secrets are.
    let mut needles = Needles::default();
    let mut seen = Vec::new();
    runtime.block_on(async {
        for machine in 0..2 {
            let sweep = Sweep::new(&fleet, machine, &authority, &[Role::Admin.as_str()], &types);
            seen.extend(sweep.answers().await);
            seen.extend(sweep.files().await);
        }
    });
    for found in &seen {
        needles.private_keys(found);
    }
    let keys = needles.len();
    for machine in 0..2 {
        needles.configuration(
            &fleet.ok(&["-n", &fleet.address(machine), "read", "/system/state/config.yaml"]).unwrap(),
        );
    }
    for (what, text) in PLANTED {
        needles.add(what, text.as_bytes());
    }
    println!("{} secrets, {keys} of them private keys", needles.len());
    assert!(keys >= 20 && needles.len() >= keys + 15, "{:#?}", needles.names());
    let found: usize = seen.iter().map(|answer| needles.search(answer).len()).sum();
    let missing = needles.never_found();
    println!("an administrator has {found} of them in {} answers", seen.len());
    assert!(missing.is_empty(), "the search does not find what is there: {missing:?}");

    let mut hits = Vec::new();
    let mut judge = |who: &str, answers: Vec<Found>| {
        let bytes: usize = answers.iter().map(|answer| answer.bytes.len()).sum();
        println!("{who}: {} answers, {} KiB", answers.len(), bytes / 1024);
        for answer in &answers {
            let found = needles.search(answer).into_iter();
            hits.extend(found.map(|secret| format!("{who}: {secret} in {}", answer.name)));
        }
        answers.len()
    };
    let mut answered = Vec::new();
    for roles in ROLES {
        for machine in 0..2 {
            let sweep = Sweep::new(&fleet, machine, &authority, roles, &types);
            let answers = runtime.block_on(async {
                let mut answers = sweep.answers().await;
                answers.extend(sweep.files().await);
                answers
            });
            answered.push(judge(&format!("{roles:?} on machine {machine}"), answers));
        }
    }
    for role in ["os:reader", "os:operator"] {
        judge(&format!("support bundle of {role}"), bundle::collect(&fleet, role).unwrap());
    }
    assert!(answered[0] > 150, "a reader reads little: {answered:?}");
    assert!(hits.is_empty(), "{} secrets were read:\n{}", hits.len(), hits.join("\n"));
    fleet.destroy().unwrap();
}

/// The longest time for one call; some streams end only then.
const CALL_MAX: Duration = Duration::from_secs(4);
