//! The nodes of the cluster by name, and who of them are control planes.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ichor_cosi::{Context, Controller, ControllerError, Input, Output, exclusive, shared, weak};
use ichor_resource::cluster::{Affiliate, Member};
use ichor_resource::k8s::Endpoint;
use ichor_resource::value::Ip;
use ichor_types::MachineType;

/// Writes `Members/<node name>`.
#[derive(Debug, Default)]
pub struct MemberController;

impl Controller for MemberController {
    const NAME: &'static str = "cluster.MemberController";

    fn inputs(&self) -> Vec<Input> {
        vec![weak::<Affiliate>().in_ns("cluster")]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<Member>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let affiliates = ctx.list_in::<Affiliate>("cluster")?;
        let named = affiliates.iter().filter(|affiliate| !affiliate.nodename.is_empty());
        ctx.publish(named.map(|affiliate| (affiliate.nodename.clone(), member(affiliate))))?;
        Ok(())
    }
}

fn member(affiliate: &Affiliate) -> Member {
    Member {
        node_id: affiliate.node_id.clone(),
        addresses: affiliate.addresses.clone(),
        hostname: affiliate.hostname.clone(),
        machine_type: affiliate.machine_type,
        operating_system: affiliate.operating_system.clone(),
        control_plane: affiliate.control_plane.clone(),
    }
}

/// Addresses of one member that are taken for a control plane's.
const ADDRESSES_MAX: usize = 16;
/// Addresses of all of them.
const ENDPOINTS_MAX: usize = 128;

/// Writes `Endpoints/discovery`: what members of the cluster say of themselves. Any member can say so; whoever needs
/// a control plane asks those of the configuration and of Kubernetes first.
#[derive(Debug, Default)]
pub struct EndpointController {
    /// What was found before, in the order in which it was.
    known: Vec<IpAddr>,
}

impl Controller for EndpointController {
    const NAME: &'static str = "cluster.EndpointController";

    fn inputs(&self) -> Vec<Input> {
        vec![weak::<Member>()]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![shared::<Endpoint>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let members = ctx.list::<Member>()?;
        let planes = members
            .iter()
            .filter(|member| matches!(member.machine_type, MachineType::ControlPlane | MachineType::Init));
        let claimed: Vec<Vec<IpAddr>> = planes
            .map(|member| member.addresses.iter().filter_map(Ip::get).take(ADDRESSES_MAX).collect())
            .collect();
        self.known = keep(&self.known, &claimed);
        let mut addresses = self.known.clone();
        addresses.sort_unstable();
        let found = (!addresses.is_empty()).then_some(addresses);
        ctx.publish(
            found.map(|found| {
                ("discovery", Endpoint { addresses: found.into_iter().map(Ip::from).collect() })
            }),
        )?;
        Ok(())
    }
}

/// Which addresses to keep of those that members claim: those known before, then of each member in turn.
fn keep(known: &[IpAddr], claimed: &[Vec<IpAddr>]) -> Vec<IpAddr> {
    let all: BTreeSet<IpAddr> = claimed.iter().flatten().copied().collect();
    let mut kept: Vec<IpAddr> = known.iter().copied().filter(|address| all.contains(address)).collect();
    let mut seen: BTreeSet<IpAddr> = kept.iter().copied().collect();
    for turn in 0..ADDRESSES_MAX {
        for address in claimed.iter().filter_map(|addresses| addresses.get(turn)) {
            if seen.insert(*address) {
                kept.push(*address);
            }
        }
    }
    kept.truncate(ENDPOINTS_MAX);
    kept
}

#[cfg(test)]
mod tests {
    use ichor_testkit::Harness;

    use super::*;

    #[tokio::test]
    async fn members_come_and_go_with_their_affiliates() {
        let (state, _clock) = ichor_testkit::state();
        let address = |text: &str| Ip::from(text.parse::<IpAddr>().unwrap());
        let node = |name: &str, kind, ip: &str| Affiliate {
            node_id: name.into(),
            nodename: name.into(),
            machine_type: kind,
            addresses: vec![address(ip)],
            ..Default::default()
        };
        state.create("cluster", "a", node("cp", MachineType::ControlPlane, "10.5.0.2"), "").unwrap();
        state.create("cluster", "b", node("w", MachineType::Worker, "10.5.0.3"), "").unwrap();
        state.create("cluster", "c", Affiliate { node_id: "c".into(), ..Default::default() }, "").unwrap();
        let mut members = Harness::new(&state, MemberController).unwrap();
        let mut endpoints = Harness::new(&state, EndpointController::default()).unwrap();
        members.reconcile().await.unwrap();
        endpoints.reconcile().await.unwrap();
        assert_eq!(state.list::<Member>("cluster").len(), 2);
        let found = state.get::<Endpoint>("controlplane", "discovery").unwrap();
        assert_eq!(found.addresses, [address("10.5.0.2")]);

        state.destroy::<Affiliate>("cluster", "a", "").unwrap();
        members.reconcile().await.unwrap();
        endpoints.reconcile().await.unwrap();
        assert!(state.get::<Endpoint>("controlplane", "discovery").is_err());
    }

    #[test]
    fn members_that_claim_addresses_without_end_do_not_push_out_those_known_before() {
        let real = [IpAddr::from([10, 5, 0, 200]), IpAddr::from([10, 5, 0, 201])];
        let known = keep(&[], &[real.to_vec()]);
        let mut claimed: Vec<Vec<IpAddr>> = (0..=255u8)
            .map(|member| (0..=255u8).map(|last| IpAddr::from([10, 1, member, last])).collect())
            .collect();
        claimed.push(real.to_vec());
        let kept = keep(&known, &claimed);
        assert_eq!(kept.len(), ENDPOINTS_MAX);
        assert_eq!(kept[..2], real);
        assert_eq!(keep(&kept, &claimed[..1]).len(), 16 + 1 - 1, "what nobody claims any more goes");
    }
}
