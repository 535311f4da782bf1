//! The configuration of a machine that joins: that of one which is there, but for what is each machine's own.

use ichor_config::v1alpha1::{ClusterConfig, Config};
use ichor_config::{CommentMode, Documents};
use ichor_provision::MachineKind;
use ichor_types::MachineType;

use crate::error::{Doing as _, Error, Result};

/// Makes the configuration of a machine of `kind`, whose certificates hold `names` too, from the one of a control plane, or
/// of a worker for a worker.
pub(super) fn inherit(source: &str, kind: MachineKind, names: &[String]) -> Result<Vec<u8>> {
    let mut documents = Documents::load(source.as_bytes()).doing("the configuration of a machine")?;
    let root = documents.root_mut().ok_or_else(|| Error::state("the machine has no whole configuration"))?;
    match kind {
        MachineKind::ControlPlane => control_plane(root),
        MachineKind::Worker => worker(root),
    }
    let add = |sans: &mut Vec<String>| {
        for name in names {
            if !sans.contains(name) {
                sans.push(name.clone());
            }
        }
    };
    if let Some(machine) = &mut root.machine {
        add(machine.cert_sans.items_mut());
    }
    if let Some(api_server) = root.cluster.as_mut().and_then(|cluster| cluster.api_server.as_mut()) {
        add(api_server.cert_sans.items_mut());
    }
    Ok(documents.encode(CommentMode::None).into_bytes())
}

/// One that began a cluster by itself is followed by ones that join it.
fn control_plane(root: &mut Config) {
    if let Some(machine) = &mut root.machine {
        machine.machine_type = MachineType::ControlPlane.as_str().to_owned();
    }
}

/// Leaves out what only control planes may know.
fn worker(root: &mut Config) {
    if let Some(machine) = &mut root.machine {
        if machine.machine_type == MachineType::Worker.as_str() {
            return;
        }
        machine.machine_type = MachineType::Worker.as_str().to_owned();
        machine.node_labels = Default::default();
        if let Some(ca) = &mut machine.ca {
            ca.key = Default::default();
        }
    }
    let Some(all) = &mut root.cluster else { return };
    let known = std::mem::take(&mut **all);
    **all = ClusterConfig {
        id: known.id,
        secret: known.secret,
        control_plane: known.control_plane,
        cluster_name: known.cluster_name,
        network: known.network,
        token: known.token,
        ca: known.ca.map(|mut ca| {
            ca.key = Default::default();
            ca
        }),
        accepted_cas: known.accepted_cas,
        discovery: known.discovery,
        ..ClusterConfig::default()
    };
    if let Some(control_plane) = &mut all.control_plane {
        control_plane.local_api_server_port = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::{Generate, generate};

    #[test]
    fn machines_that_join_are_as_those_that_were_there_from_the_start() {
        let mut input = Generate {
            cluster: "lab".to_owned(),
            endpoint: "https://10.5.0.2:6443".to_owned(),
            additional_sans: vec!["127.5.0.2".to_owned()],
            ..Generate::default()
        };
        let secrets = ichor_config::generate::Secrets::generate(
            jiff::Timestamp::now(),
            ichor_types::VersionContract::CURRENT,
        );
        input.secrets = Some(secrets.unwrap());
        let before = generate(&input).unwrap();
        input.additional_sans.push("127.5.0.9".to_owned());
        let wanted = generate(&input).unwrap();
        let names = ["127.5.0.9".to_owned()];
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        for source in [&before.init, &before.controlplane] {
            let own = inherit(&text(source), MachineKind::ControlPlane, &names).unwrap();
            assert_eq!(text(&own), text(&wanted.controlplane));
        }
        for source in [&before.controlplane, &before.worker] {
            let own = inherit(&text(source), MachineKind::Worker, &names).unwrap();
            assert_eq!(text(&own), text(&wanted.worker));
        }
    }
}
