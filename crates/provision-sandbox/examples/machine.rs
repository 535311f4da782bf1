//! Machines by hand: `machine STORE create NAME SECOND-OCTET IMAGE COUNT [KERNEL-ARG…]`, `machine STORE show|destroy|stop|start|cut NAME`.

use std::process::ExitCode;

use ichor_provision::{ClusterRequest, MachineKind, MachineRequest, Provider, Store};
use ichor_provision_sandbox::Sandbox;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let Some(code) = ichor_provision_sandbox::hidden_main(&args) {
        return code;
    }
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let sandbox = Sandbox::new(Store::new(words[0]));
    let result = match &words[1..] {
        ["create", name, octet, image, count, extra @ ..] => sandbox
            .create(
                &ClusterRequest {
                    name: (*name).to_owned(),
                    cidr: format!("10.{octet}.0.0/24").parse().unwrap(),
                    mtu: 1500,
                    image: image.into(),
                    machines: (1..=count.parse().unwrap())
                        .map(|number: u32| MachineRequest {
                            name: format!("{name}-controlplane-{number}"),
                            kind: MachineKind::ControlPlane,
                            config: None,
                            kernel_args: extra.iter().map(|arg| (*arg).to_owned()).collect(),
                        })
                        .collect(),
                },
                &mut |step| println!("{step}"),
            )
            .map(|cluster| println!("{cluster:#?}")),
        ["show", name] => sandbox.show(name).map(|cluster| println!("{cluster:#?}")),
        ["destroy", name] => sandbox.destroy(name, &mut |step| println!("{step}")),
        ["stop", name] => sandbox.stop(name, None),
        ["start", name] => sandbox.start(name, None),
        ["cut", name] => sandbox.cut_power(name, None),
        _ => return ExitCode::from(2),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
