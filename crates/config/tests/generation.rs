//! New configurations and bundles of secrets.

use std::{fs, path::PathBuf};

use ichor_config::{
    CommentMode, Documents, Mode, ValidateOptions,
    generate::{Input, Options, Secrets},
    patch::{self, Patch},
    v1alpha1::cluster::Cni,
};
use ichor_types::{MachineType, VersionContract};
use jiff::Timestamp;

fn fixture(name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn input(options: Options) -> Input {
    Input {
        cluster_name: "base".to_owned(),
        endpoint: "https://base:6443".to_owned(),
        kubernetes_version: "1.28.0".to_owned(),
        secrets: Secrets::load(fixture("generate/inputs/secrets.yaml").as_bytes()).unwrap(),
        options,
    }
}

#[test]
fn a_worker_configuration_is_exact() {
    let config = input(Options::default()).config(MachineType::Worker).unwrap();
    assert_eq!(config.encode(CommentMode::None), fixture("generate/v1.12/base-worker.yaml"));
}

fn overrides() -> Options {
    let text = |text: &str| text.to_owned();
    Options {
        additional_sans: vec![text("foo"), text("bar")],
        allow_scheduling_on_control_planes: true,
        dns_domain: text("example.com"),
        install_disk: text("/dev/vda"),
        extra_kernel_args: vec![text("foo=bar"), text("bar=baz")],
        local_api_server_port: 5443,
        sysctls: [(text("foo"), text("bar"))].into(),
        cni: Some(Cni {
            name: text("custom"),
            urls: vec![text("https://example.com/cni.yaml")].into(),
            ..Default::default()
        }),
        registry_mirrors: [(text("ghcr.io"), vec![text("https://ghcr.io.my-mirror.com")])].into(),
        ..Options::default()
    }
}

#[test]
fn options_and_patches_show_in_the_result() {
    let config = input(overrides()).config(MachineType::Worker).unwrap();
    let patch = Patch::load(fixture("generate/inputs/patch.yaml").as_bytes()).unwrap();
    let bytes = config.encode(CommentMode::None).into_bytes();
    let patched = patch::apply_to_bytes(&bytes, &[patch]).unwrap();
    assert_eq!(String::from_utf8(patched).unwrap(), fixture("generate/v1.12/overrides-worker.yaml"));
}

#[test]
fn every_contract_and_role_loads_and_validates() {
    for minor in 0..=12 {
        let contract = VersionContract::new(1, minor);
        for role in [MachineType::ControlPlane, MachineType::Worker, MachineType::Init] {
            let options = Options { contract, install_disk: "/dev/sda".to_owned(), ..Options::default() };
            let config = input(options).config(role).unwrap();
            for mode in [CommentMode::None, CommentMode::All] {
                let text = config.encode(mode);
                let back = Documents::load(text.as_bytes()).unwrap_or_else(|error| {
                    panic!("{contract} {role}: {}\n{text}", error.render("x", &text))
                });
                assert_eq!(back, config, "{contract} {role}");
                let strict = ValidateOptions { strict: true, ..Default::default() };
                back.validate_with(Mode::METAL, strict)
                    .unwrap_or_else(|error| panic!("{contract} {role}: {error}"));
                back.validate(Mode::CLOUD).unwrap();
                if minor >= 8 {
                    back.validate(Mode::CONTAINER).unwrap();
                }
            }
        }
    }
}

#[test]
fn what_is_generated_has_nothing_to_warn_of() {
    for machine_type in [MachineType::ControlPlane, MachineType::Worker] {
        let documents = input(Options::default()).config(machine_type).unwrap();
        let text = documents.encode(CommentMode::None);
        let loaded = Documents::load(text.as_bytes()).unwrap();
        let options = ValidateOptions { strict: true, deprecations: true };
        assert_eq!(loaded.validate_with(Mode::CLOUD, options).unwrap(), [], "{machine_type:?}");
    }
}

#[test]
fn new_secrets_are_complete_and_survive_a_round_trip() {
    let now = Timestamp::from_second(1_760_000_000).unwrap();
    // Older contracts use an elliptic key for service accounts, which is quick to make.
    for (minor, old_secret) in [(2, true), (6, false)] {
        let secrets = Secrets::generate(now, VersionContract::new(1, minor)).unwrap();
        assert_eq!(secrets.problems(), Vec::<String>::new());
        assert_eq!(!secrets.aescbc_secret().is_empty(), old_secret);
        assert_eq!(Secrets::load(secrets.to_yaml().as_bytes()).unwrap(), secrets);
        let (head, tail) = secrets.bootstrap_token().split_once('.').unwrap();
        assert_eq!((head.len(), tail.len()), (6, 16));
        let input = Input {
            secrets: secrets.clone(),
            ..input(Options { contract: VersionContract::new(1, minor), ..Options::default() })
        };
        let config = input.config(MachineType::ControlPlane).unwrap();
        assert_eq!(Secrets::from_config(&config).unwrap(), secrets, "recovered from the control plane");
        let client = input.talosconfig(now).unwrap();
        let context = client.select(None).unwrap();
        let info = ichor_pki::CertInfo::parse(context.crt_pem().unwrap().unwrap()).unwrap();
        assert_eq!(info.organizations, ["os:admin"]);
    }
}

#[test]
fn a_broken_bundle_lists_everything_that_is_wrong() {
    let secrets = Secrets::load(fixture("secrets/invalid.yaml").as_bytes()).unwrap();
    let problems = secrets.problems();
    assert_eq!(problems.len(), 6, "{problems:#?}");
    assert_eq!(problems[0], "cluster.secret is required");
    let both = "[secrets.secretboxencryptionsecret, secrets.aescbcencryptionsecret]";
    assert_eq!(problems[1], format!("one of {both} is required"));
    assert_eq!(problems[2], "trustdinfo is required");
    assert!(problems[3].starts_with("certs.etcd is invalid: "), "{}", problems[3]);
    assert_eq!(problems[4], "certs.k8saggregator is required");
    assert!(
        problems[5].starts_with("certs.os is invalid: ") && problems[5].contains("CERTIFICATE"),
        "{}",
        problems[5]
    );
}
