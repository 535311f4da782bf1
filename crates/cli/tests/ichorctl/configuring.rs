//! Configurations on their way to machines: apply, patch, edit, with and without trust.

use expect_test::expect;
use ichor_wire::cosi::resource as wire;
use ichor_wire::cosi::resource::meta::ResourceDefinitionSpec;
use ichor_wire::machine::apply_configuration_request::Mode;
use ichor_wire::machine::{ApplyConfiguration, ApplyConfigurationRequest, ApplyConfigurationResponse};
use prost::Message as _;
use tonic::Code;

use crate::fake::{Answer, Fake, Methods, Seen};
use crate::run::ichorctl_with;

const APPLY: &str = "/machine.MachineService/ApplyConfiguration";
const CONFIG: &str = "version: v1alpha1\nmachine:\n    type: worker\n    token: abc.def\n";

fn apply(_: &Seen) -> Answer {
    let reply = ApplyConfiguration {
        warnings: vec!["something is old".into()],
        mode_details: "Applied configuration without a reboot".into(),
        ..ApplyConfiguration::default()
    };
    Answer::one(&ApplyConfigurationResponse { messages: vec![reply] })
}

/// A node that keeps one machine configuration.
fn node() -> Methods {
    Methods::default()
        .on(APPLY, apply)
        .on("/cosi.resource.State/List", |_| {
            let spec = ResourceDefinitionSpec {
                resource_type: "MachineConfigs.config.talos.dev".into(),
                default_namespace: "config".into(),
                all_aliases: vec!["machineconfig".into(), "mc".into()],
                ..ResourceDefinitionSpec::default()
            };
            Answer::one(&wire::ListResponse {
                resource: Some(resource("ResourceDefinitions.meta.cosi.dev", spec.encode_to_vec())),
            })
        })
        .on("/cosi.resource.State/Get", |seen| {
            let request: wire::GetRequest = seen.decode();
            assert_eq!(request.id, "v1alpha1");
            // One field, the text.
            let mut proto = vec![0x0a, u8::try_from(CONFIG.len()).unwrap()];
            proto.extend_from_slice(CONFIG.as_bytes());
            Answer::one(&wire::GetResponse {
                resource: Some(resource("MachineConfigs.config.talos.dev", proto)),
            })
        })
}

fn resource(resource_type: &str, proto: Vec<u8>) -> wire::Resource {
    wire::Resource {
        metadata: Some(wire::Metadata {
            r#type: resource_type.into(),
            id: "v1alpha1".into(),
            version: "1".into(),
            phase: "running".into(),
            ..wire::Metadata::default()
        }),
        spec: Some(wire::Spec { proto_spec: proto.into(), yaml_spec: String::new() }),
    }
}

fn sent(fake: &Fake) -> ApplyConfigurationRequest {
    fake.calls(APPLY)[0].decode()
}

#[test]
fn a_configuration_is_sent_with_its_mode() {
    let fake = node().start(&["10.5.0.2"]);
    std::fs::write(fake.home().join("worker.yaml"), CONFIG).unwrap();
    let run =
        fake.run(&["apply-config", "--file", "worker.yaml", "--mode", "try", "--timeout", "2m", "--dry-run"]);
    expect![[r#"
        --- stderr
        WARNING: 127.0.0.1: something is old
        Applied configuration without a reboot
    "#]]
    .assert_eq(&run.text());
    let request = sent(&fake);
    assert_eq!(request.data, CONFIG.as_bytes());
    assert_eq!(request.mode(), Mode::Try);
    assert!(request.dry_run);
    assert_eq!(request.try_mode_timeout.unwrap().seconds, 120);
}

#[test]
fn patches_are_applied_before_sending() {
    let fake = node().start(&["10.5.0.2"]);
    std::fs::write(fake.home().join("worker.yaml"), CONFIG).unwrap();
    std::fs::write(fake.home().join("patch.yaml"), "machine:\n    token: ghi.jkl\n").unwrap();
    assert_eq!(fake.run(&["apply", "config", "-f", "worker.yaml", "-p", "@patch.yaml"]).code, 0);
    let data = String::from_utf8(sent(&fake).data).unwrap();
    assert!(data.contains("token: ghi.jkl") && data.contains("type: worker"), "{data}");
    assert_eq!(sent(&fake).mode(), Mode::Auto);
}

#[test]
fn what_is_missing_is_said_before_anything_is_sent() {
    let fake = node().start(&["10.5.0.2"]);
    let line = |words: &[&str]| fake.run(words).err.lines().next().unwrap_or_default().to_owned();
    assert_eq!(line(&["apply-config"]), "no filename supplied for configuration");
    assert_eq!(line(&["apply-config", "-f", "absent.yaml"]), "open absent.yaml: no such file or directory");
    assert_eq!(
        line(&["apply-config", "-f", "absent.yaml", "-m", "soon"]),
        "invalid apply mode: \"soon\": possible values are: auto, no-reboot, reboot, staged, try"
    );
    assert_eq!(line(&["patch", "mc"]), "either --patch or --patch-file should be defined");
    assert!(fake.calls(APPLY).is_empty());
}

#[test]
fn a_machine_without_configuration_gets_one_over_a_pinned_connection() {
    let fake = node().start_in_maintenance();
    std::fs::write(fake.home().join("worker.yaml"), CONFIG).unwrap();
    let address = format!("127.0.0.1:{}", fake.port());
    let words = ["apply-config", "--insecure", "-n", &address, "-f", "worker.yaml", "--cert-fingerprint"];
    let good: Vec<&str> = words.iter().copied().chain([fake.fingerprint.as_str()]).collect();
    assert_eq!(fake.run(&good).code, 0);
    assert_eq!(fake.calls(APPLY)[0].node(), "");
    assert!(fake.calls(APPLY)[0].nodes().is_empty());
    let bad: Vec<&str> = words.iter().copied().chain(["AAAA"]).collect();
    let run = fake.run(&bad);
    assert_eq!(run.code, 1);
    assert!(run.err.contains("fingerprint"), "{}", run.err);
    assert_eq!(fake.calls(APPLY).len(), 1);
}

#[test]
fn a_patch_changes_the_active_configuration_of_every_machine() {
    let fake = node().start(&["10.5.0.2", "10.5.0.3"]);
    let run = fake.run(&["patch", "mc", "-p", "{\"machine\": {\"token\": \"new.token\"}}"]);
    expect![[r#"
        --- stderr
        patched MachineConfigs.config.talos.dev/v1alpha1 at the node 10.5.0.2
        WARNING: 10.5.0.2: something is old
        Applied configuration without a reboot
        patched MachineConfigs.config.talos.dev/v1alpha1 at the node 10.5.0.3
        WARNING: 10.5.0.3: something is old
        Applied configuration without a reboot
    "#]]
    .assert_eq(&run.text());
    assert!(String::from_utf8(sent(&fake).data).unwrap().contains("new.token"));
}

#[test]
fn an_edited_configuration_is_sent_and_an_untouched_one_is_not() {
    let fake = node().start(&["10.5.0.2"]);
    let edit = |editor: &str| {
        ichorctl_with(fake.home(), &["edit", "mc"], &[("EDITOR", editor), ("PATH", "/usr/bin:/bin")])
    };
    assert_eq!(edit("true").err, "Apply was skipped: no changes detected.\n");
    assert!(fake.calls(APPLY).is_empty());
    assert_eq!(edit("sed -i s/abc.def/new.token/").code, 0);
    assert_eq!(String::from_utf8(sent(&fake).data).unwrap(), CONFIG.replace("abc.def", "new.token"));
    let run = edit("no-such-editor");
    assert!(run.err.starts_with("start the editor \"no-such-editor\""), "{}", run.err);
}

#[test]
fn a_refused_edit_is_kept_for_the_next_try() {
    let fake = node().on(APPLY, |_| Answer::error(Code::InvalidArgument, "no good")).start(&["10.5.0.2"]);
    // The first visit changes something, the second finds the reason on top and leaves it at that.
    let editor = "sed -i s/abc.def/new.token/";
    let run = ichorctl_with(fake.home(), &["edit", "mc"], &[("EDITOR", editor), ("PATH", "/usr/bin:/bin")]);
    assert_eq!(run.code, 1);
    assert!(run.err.starts_with("rpc error: code = InvalidArgument desc = no good\n"), "{}", run.err);
    let kept = run.err.split("kept in ").nth(1).unwrap().trim();
    let text = std::fs::read_to_string(kept).unwrap();
    assert!(text.contains("new.token") && text.contains("#   rpc error: code = InvalidArgument"), "{text}");
    std::fs::remove_file(kept).unwrap();
}

#[test]
fn a_refusal_is_shown_in_the_file_that_was_sent() {
    let text = "version: v1alpha1\nmachine:\n    type: wroker\n    kubelet:\n        imagge: a\n";
    let fake = Methods::default()
        .on(APPLY, |seen| {
            let request: ApplyConfigurationRequest = seen.decode();
            let problems = ichor_config::Documents::load(&request.data).unwrap_err();
            let message = format!("failed to parse config: {}", problems.answer());
            Answer::error(Code::InvalidArgument, &message.replace('\n', "%0A"))
        })
        .start(&["10.0.0.1"]);
    std::fs::write(fake.home().join("a.yaml"), text).unwrap();
    let refused = fake.run(&["apply-config", "--file", "a.yaml"]);
    expect![[r#"
        --- stderr
        error applying new configuration: rpc error: code = InvalidArgument desc = failed to parse config

        error: unknown key "imagge" in machine.kubelet (did you mean "image"?)
          --> a.yaml:5:9
           |
         5 |         imagge: a
           |         ^^^^^^
        --- exit 1
    "#]]
    .assert_eq(&refused.text());

    std::fs::write(fake.home().join("a.yaml"), "machine:\n  type: a\n  type: b\n").unwrap();
    let refused = fake.run(&["apply-config", "--file", "a.yaml"]);
    assert!(refused.err.contains("error: decode error: yaml: line 3: mapping key"), "{refused:?}");
    assert!(refused.err.contains("--> a.yaml:3:3\n"), "{refused:?}");
}
