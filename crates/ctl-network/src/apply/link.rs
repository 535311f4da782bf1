//! Makes and changes links.

use ichor_cosi::{Context, Controller, ControllerError, Input, Output, Typed, Wake, shared, strong};
use ichor_net::link::{Bridge, FLAG_MULTICAST, Link, Vlan};
use ichor_net::watch::Topics;
use ichor_resource::network::{LinkRefresh, LinkSpec};

use super::{Held, hold, release};
use crate::gate::DevicesGate;
use crate::link_name;
use crate::ports::{Kernel, LinkChange, NewLink};
use crate::trouble::Troubles;

/// Applies links.
#[derive(Debug)]
pub struct LinkSpecController<K> {
    kernel: K,
    gate: DevicesGate,
    troubles: Troubles,
}

impl<K> LinkSpecController<K> {
    /// Applies links to this kernel, not before devices have their names.
    pub fn new(kernel: K, gate: DevicesGate) -> Self {
        Self { kernel, gate, troubles: Troubles::default() }
    }
}

/// A kind of link that cannot be made yet.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("link {name}: links of kind {kind} cannot be made yet")]
pub struct UnsupportedKind {
    name: String,
    kind: String,
}

/// The changes for one wanted link, in order. Nothing while it (or its master) is missing.
pub(crate) fn plan_wanted(spec: &LinkSpec, links: &[Link]) -> Result<Vec<LinkChange>, UnsupportedKind> {
    let mut changes = Vec::new();
    let present = if spec.logical {
        links.iter().find(|link| link.name == spec.name)
    } else {
        link_name::find(links, &spec.name)
    };
    let kept = present.filter(|link| !spec.logical || is_same_kind(spec, link));
    if kept.is_none() {
        if !spec.logical {
            return Ok(changes);
        }
        changes.extend(present.map(|_| LinkChange::Delete));
        changes.push(LinkChange::Create(new_link(spec)?));
    }
    let blank = Link::default();
    let link = kept.unwrap_or(&blank);

    if spec.kind == "bridge" {
        let wanted = Bridge {
            stp: spec.bridge_master.stp.enabled,
            vlan_filtering: spec.bridge_master.vlan.filtering_enabled,
        };
        if link.bridge.unwrap_or_default() != wanted {
            changes.push(LinkChange::Bridge(wanted));
        }
    }
    if spec.mtu != 0 && spec.mtu != link.mtu {
        changes.push(LinkChange::Mtu(spec.mtu));
    }
    let address = &spec.hardware_addr.0;
    if !address.is_empty() && *address != link.hardware_addr {
        changes.push(LinkChange::HardwareAddr(address.clone()));
    }
    if let Some(on) = spec.multicast
        && on != (link.flags & FLAG_MULTICAST != 0)
    {
        changes.push(LinkChange::Multicast(on));
    }
    let mut up = link.is_up();
    if let Some(master) = plan_master(spec, link, links) {
        // Only a link that is down can join.
        if up && master.is_some() {
            changes.push(LinkChange::Up(false));
            up = false;
        }
        changes.push(LinkChange::Master(master));
    }
    if spec.up != up {
        changes.push(LinkChange::Up(spec.up));
    }
    Ok(changes)
}

/// The master to set, if it is another than now.
fn plan_master(spec: &LinkSpec, link: &Link, links: &[Link]) -> Option<Option<String>> {
    let name = match spec.bond_slave.master_name.as_str() {
        "" => spec.bridge_slave.master_name.as_str(),
        bond => bond,
    };
    if name.is_empty() {
        return (link.master_index != 0).then_some(None);
    }
    let master = links.iter().find(|link| link.name == name)?;
    (master.index != link.master_index).then(|| Some(name.to_owned()))
}

fn is_same_kind(spec: &LinkSpec, link: &Link) -> bool {
    link.kind == spec.kind && (spec.kind != "vlan" || link.vlan == Some(vlan_of(spec)))
}

fn vlan_of(spec: &LinkSpec) -> Vlan {
    let protocol = u16::try_from(spec.vlan.vlan_protocol.number()).unwrap_or(0);
    Vlan { id: spec.vlan.vlan_id, protocol: if protocol == 0 { 0x8100 } else { protocol } }
}

fn new_link(spec: &LinkSpec) -> Result<NewLink, UnsupportedKind> {
    match spec.kind.as_str() {
        "bridge" => Ok(NewLink::Bridge),
        "dummy" => Ok(NewLink::Dummy),
        "vlan" => Ok(NewLink::Vlan(spec.parent_name.clone(), vlan_of(spec))),
        kind => Err(UnsupportedKind { name: spec.name.clone(), kind: kind.to_owned() }),
    }
}

/// Links that a link needs and that are not there: itself when it is a device, its master, its parent.
fn missing<'a>(spec: &'a LinkSpec, links: &[Link]) -> Vec<&'a str> {
    let own = if spec.logical { "" } else { spec.name.as_str() };
    let needed = [own, &spec.bond_slave.master_name, &spec.bridge_slave.master_name, &spec.parent_name];
    let is_missing = |name: &&str| !name.is_empty() && link_name::find(links, name).is_none();
    needed.into_iter().filter(is_missing).collect()
}

/// Masters before members before VLANs on them.
fn rank(spec: &LinkSpec) -> (u8, i64) {
    let rank = match spec.kind.as_str() {
        "vlan" => 2,
        _ if spec.logical => 0,
        _ => 1,
    };
    (rank, spec.bond_slave.slave_index)
}

impl<K: Kernel> LinkSpecController<K> {
    /// Applies one link; true when links were made or removed.
    async fn apply(&self, spec: &Typed<LinkSpec>, links: &[Link]) -> Result<bool, ControllerError> {
        let changes = plan_wanted(spec, links)?;
        let mut restructured = false;
        let name = match link_name::find(links, &spec.name) {
            Some(link) if !spec.logical => link.name.as_str(),
            Some(_) | None => spec.name.as_str(),
        };
        for change in &changes {
            match self.kernel.change_link(name, change).await {
                // It, or what it sits on, is not there: its coming wakes us.
                Err(error) if error.is_missing() => return Ok(restructured),
                result => result?,
            }
            restructured |= matches!(change, LinkChange::Create(_) | LinkChange::Delete);
            tracing::info!(link = name, ?change, "changed link");
        }
        Ok(restructured)
    }
}

impl<K: Kernel> Controller for LinkSpecController<K> {
    const NAME: &'static str = "network.LinkSpecController";

    fn inputs(&self) -> Vec<Input> {
        self.gate.inputs(vec![strong::<LinkSpec>()])
    }

    fn outputs(&self) -> Vec<Output> {
        vec![shared::<LinkRefresh>()]
    }

    fn start(&mut self, wake: Wake) {
        self.kernel.watch(Topics::LINKS, wake);
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        if !self.gate.is_open(ctx)? {
            return Ok(());
        }
        let Held { mut running, ending } = hold::<LinkSpec>(ctx)?;
        let mut links = self.kernel.links().await?;
        for spec in &ending {
            let made_by_us =
                spec.logical && links.iter().any(|l| l.name == spec.name && is_same_kind(spec, l));
            if made_by_us {
                match self.kernel.change_link(&spec.name, &LinkChange::Delete).await {
                    Err(error) if !error.is_missing() => {
                        self.troubles.refused(error);
                        continue;
                    }
                    _ => tracing::info!(link = spec.name, "removed link"),
                }
            }
            release(ctx, spec)?;
        }
        running.sort_by_key(|spec| rank(spec));
        for spec in &running {
            match self.apply(spec, &links).await {
                Ok(true) => links = self.kernel.links().await?,
                Ok(false) => {}
                Err(error) => {
                    self.troubles.refused(error);
                    links = self.kernel.links().await?;
                }
            }
            for missing in missing(spec, &links) {
                self.troubles.waits(format!("link {}: there is no link {missing}", spec.name));
            }
        }
        self.troubles.show(ctx);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use ichor_resource::network::{VLANProtocol, VLANSpec};

    use super::*;

    fn eth0() -> Link {
        Link { index: 2, name: "eth0".into(), mtu: 1500, ..Link::default() }
    }

    fn bridge() -> Link {
        Link { index: 3, name: "br0".into(), kind: "bridge".into(), flags: 1, ..Link::default() }
    }

    fn device(name: &str) -> LinkSpec {
        LinkSpec { name: name.into(), up: true, ..LinkSpec::default() }
    }

    fn made(name: &str, kind: &str) -> LinkSpec {
        LinkSpec { logical: true, kind: kind.into(), ..device(name) }
    }

    #[track_caller]
    fn check(spec: LinkSpec, links: &[Link], expect: Expect) {
        let text = match plan_wanted(&spec, links) {
            Ok(changes) => format!("{changes:?}"),
            Err(error) => error.to_string(),
        };
        expect.assert_eq(&text);
    }

    #[test]
    fn a_device_is_changed_only_where_it_differs() {
        check(device("eth0"), &[eth0()], expect!["[Up(true)]"]);
        check(device("eth0"), &[Link { flags: 1, ..eth0() }], expect!["[]"]);
        check(device("eth9"), &[eth0()], expect!["[]"]);
        let big = LinkSpec { mtu: 9000, ..device("eth0") };
        check(big, &[eth0()], expect!["[Mtu(9000), Up(true)]"]);
        let down = LinkSpec { up: false, ..device("eth0") };
        check(down, &[Link { flags: 1, ..eth0() }], expect!["[Up(false)]"]);
    }

    #[test]
    fn a_link_is_made_and_remade_when_it_is_of_another_kind() {
        check(made("br0", "bridge"), &[], expect!["[Create(Bridge), Up(true)]"]);
        check(made("br0", "bridge"), &[bridge()], expect!["[]"]);
        check(made("br0", "dummy"), &[bridge()], expect!["[Delete, Create(Dummy), Up(true)]"]);
        check(made("bond0", "bond"), &[], expect!["link bond0: links of kind bond cannot be made yet"]);
    }

    #[test]
    fn a_vlan_with_another_number_is_remade() {
        let vlan = LinkSpec {
            parent_name: "eth0".into(),
            vlan: VLANSpec { vlan_id: 7, vlan_protocol: VLANProtocol::DOT1Q },
            ..made("eth0.7", "vlan")
        };
        let held = |id| Link {
            name: "eth0.7".into(),
            kind: "vlan".into(),
            flags: 1,
            vlan: Some(Vlan { id, protocol: 0x8100 }),
            ..Link::default()
        };
        check(vlan.clone(), &[held(7)], expect!["[]"]);
        check(
            vlan,
            &[held(8)],
            expect![[r#"[Delete, Create(Vlan("eth0", Vlan { id: 7, protocol: 33024 })), Up(true)]"#]],
        );
    }

    #[test]
    fn a_member_goes_down_to_join_and_comes_up_again() {
        let mut member = device("eth0");
        member.bridge_slave.master_name = "br0".into();
        let up = Link { flags: 1, ..eth0() };
        check(
            member.clone(),
            &[up.clone(), bridge()],
            expect![[r#"[Up(false), Master(Some("br0")), Up(true)]"#]],
        );
        check(member, &[up], expect!["[]"]);
        let joined = Link { flags: 1, master_index: 3, ..eth0() };
        check(device("eth0"), &[joined, bridge()], expect!["[Master(None)]"]);
    }
}
