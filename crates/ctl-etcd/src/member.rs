//! Who the local member is in its cluster, whether the others find it, and what is wrong with it.

use std::time::Duration;

use ichor_cosi::{Context, Controller, ControllerError, Input, Output, exclusive, shared, strong, weak};
use ichor_etcd::{Alarm, AlarmKind, PEER_PORT};
use ichor_resource::etcd::{EtcdMember, EtcdSpec, PKIStatus};
use ichor_resource::runtime::Diagnostic;
use ichor_resource::v1alpha1::Service;
use ichor_resource::value::Ip;
use ichor_rpc::Endpoint;
use tracing::info;

use crate::{ETCD, client};

/// How often alarms are asked for.
const ALARMS_EVERY: Duration = Duration::from_secs(60);

/// The id of the local member's resource.
pub const LOCAL: &str = "local";

/// A member's id as everyone prints it.
pub fn format_id(id: u64) -> String {
    format!("{id:016x}")
}

/// Where other members reach these addresses.
pub fn peer_urls(addresses: &[Ip]) -> Vec<String> {
    let url = |ip: &Ip| Some(format!("https://{}", Endpoint::new(ip.get()?.to_string(), PEER_PORT)));
    addresses.iter().filter_map(url).collect()
}

fn healthy(ctx: &Context) -> Result<bool, ControllerError> {
    Ok(ctx.get::<Service>(ETCD)?.is_some_and(|service| service.running && service.healthy))
}

/// Writes `EtcdMembers/local`.
#[derive(Debug, Default)]
pub struct MemberController;

impl Controller for MemberController {
    const NAME: &'static str = "etcd.MemberController";

    fn inputs(&self) -> Vec<Input> {
        vec![strong::<Service>().id(ETCD)]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<EtcdMember>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let member = match healthy(ctx)? {
            true => {
                let (id, _) = client::local()?.alarms().await?;
                Some((LOCAL, EtcdMember { member_id: format_id(id) }))
            }
            false => None,
        };
        ctx.publish(member)?;
        Ok(())
    }
}

/// Tells the cluster when the machine's addresses changed.
#[derive(Debug, Default)]
pub struct AdvertisedPeerController;

impl Controller for AdvertisedPeerController {
    const NAME: &'static str = "etcd.AdvertisedPeerController";

    fn inputs(&self) -> Vec<Input> {
        vec![weak::<EtcdSpec>().id(ETCD), weak::<PKIStatus>().id(ETCD), weak::<Service>().id(ETCD)]
    }

    fn outputs(&self) -> Vec<Output> {
        Vec::new()
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let spec = ctx.get::<EtcdSpec>(ETCD)?;
        let (true, Some(spec), Some(_)) = (healthy(ctx)?, spec, ctx.get::<PKIStatus>(ETCD)?) else {
            return Ok(());
        };
        let want = peer_urls(&spec.advertised_addresses);
        let client = client::local()?;
        let (id, _) = client.alarms().await?;
        let members = client.members(true).await?;
        if let Some(member) = members.iter().find(|member| member.id == id)
            && member.peer_urls != want
        {
            info!(from = member.peer_urls.join(","), to = want.join(","), "updating the peer URLs of etcd");
            client.update_peer_urls(id, want).await?;
        }
        Ok(())
    }
}

/// Writes a diagnostic while the local member has an alarm: a full database refuses every write.
#[derive(Debug, Default)]
pub struct AlarmController;

impl Controller for AlarmController {
    const NAME: &'static str = "etcd.AlarmController";

    fn inputs(&self) -> Vec<Input> {
        vec![weak::<Service>().id(ETCD)]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![shared::<Diagnostic>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let mut found = Vec::new();
        if healthy(ctx)? {
            ctx.requeue_after(ALARMS_EVERY);
            // Who is not well is told by the service itself.
            if let Ok((id, alarms)) = client::local()?.alarms().await {
                found = diagnostics(id, &alarms);
            }
        }
        ctx.publish(found)?;
        Ok(())
    }
}

fn diagnostics(id: u64, alarms: &[Alarm]) -> Vec<(&'static str, Diagnostic)> {
    let about = |alarm: &Alarm| {
        let (name, message, way_out) = match alarm.kind {
            AlarmKind::NoSpace => (
                "etcd-nospace",
                "etcd is out of space and refuses writes",
                "remove what is not needed, then run `etcd defrag` on each member and `etcd alarm disarm`",
            ),
            AlarmKind::Corrupt => (
                "etcd-corrupt",
                "the data of this etcd member differ from those of the others",
                "remove the member and let it join again, or recover from a snapshot",
            ),
            AlarmKind::None => return None,
        };
        let details = vec![format!("member: {}", format_id(alarm.member)), way_out.to_owned()];
        Some((name, Diagnostic { message: message.to_owned(), details }))
    };
    alarms.iter().filter(|alarm| alarm.member == id).filter_map(about).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_alarms_of_this_member_are_told() {
        let alarms =
            [Alarm { member: 1, kind: AlarmKind::NoSpace }, Alarm { member: 2, kind: AlarmKind::Corrupt }];
        let told = diagnostics(1, &alarms);
        assert_eq!(told.len(), 1);
        assert_eq!(told[0].0, "etcd-nospace");
        assert_eq!(told[0].1.details[0], "member: 0000000000000001");
    }

    #[test]
    fn addresses_become_urls() {
        let ips = ["10.5.0.2", "fd00::2"].map(|text| Ip::from(text.parse::<std::net::IpAddr>().unwrap()));
        assert_eq!(peer_urls(&ips), ["https://10.5.0.2:2380", "https://[fd00::2]:2380"]);
    }
}
