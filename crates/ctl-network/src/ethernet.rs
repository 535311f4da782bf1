//! Settings of network cards: wanted ones, their application, and what the drivers say.

use std::collections::BTreeMap;

use ichor_config::Document;
use ichor_cosi::{Context, Controller, ControllerError, Input, Output, Wake, exclusive, shared, weak};
use ichor_ctl::Configuration;
use ichor_net::link::ethtool::{Change, Ethernet, Four};
use ichor_net::watch::Topics;
use ichor_resource::network::{
    Duplex, EthernetChannelsSpec, EthernetChannelsStatus, EthernetFeature, EthernetFeatures,
    EthernetRingsSpec, EthernetRingsStatus, EthernetSpec, EthernetStatus, LinkSpec, Port, WOLMode,
};

use crate::documents;
use crate::gate::DevicesGate;
use crate::ports::Kernel;
use crate::trouble::Troubles;

/// Publishes wanted settings.
#[derive(Debug, Default)]
pub struct EthernetConfigController;

fn spec_of(config: &ichor_config::kinds::link::EthernetConfig) -> EthernetSpec {
    let rings = config.rings.as_ref().map(|rings| EthernetRingsSpec {
        rx: rings.rx,
        tx: rings.tx,
        rx_mini: rings.rx_mini,
        rx_jumbo: rings.rx_jumbo,
        rx_buf_len: rings.rx_buf_len,
        cqe_size: rings.cqe_size,
        tx_push: rings.tx_push,
        rx_push: rings.rx_push,
        tx_push_buf_len: rings.tx_push_buf_len,
        tcp_data_split: rings.tcp_data_split,
    });
    let channels = config.channels.as_ref().map(|channels| EthernetChannelsSpec {
        rx: channels.rx,
        tx: channels.tx,
        other: channels.other,
        combined: channels.combined,
    });
    EthernetSpec {
        rings: rings.unwrap_or_default(),
        features: config.features.iter().map(|(name, on)| (name.clone(), *on)).collect(),
        channels: channels.unwrap_or_default(),
        wake_on_lan: config.wake_on_lan.iter().filter_map(|m| WOLMode::from_text(m.as_str())).collect(),
    }
}

impl Controller for EthernetConfigController {
    const NAME: &'static str = "network.EthernetConfigController";

    fn inputs(&self) -> Vec<Input> {
        vec![documents::input()]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![shared::<EthernetSpec>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let config = Configuration::active(ctx)?;
        let specs = config.iter().flat_map(|config| config.iter()).filter_map(|document| match document {
            Document::EthernetConfig(config) => Some((config.name.clone(), spec_of(config))),
            _ => None,
        });
        ctx.publish(specs.collect::<Vec<_>>())?;
        Ok(())
    }
}

/// The changes that bring a card to what is wanted, in order; and what cannot be set.
pub(crate) fn plan(spec: &EthernetSpec, now: &Ethernet) -> (Vec<Change>, Vec<&'static str>) {
    let differs = |wanted: &[Option<u32>; 4], have: Option<Four>| {
        let have = have.unwrap_or_default().now;
        wanted.iter().zip(have).any(|(wanted, have)| wanted.is_some_and(|wanted| wanted != have))
    };
    let mut changes = Vec::new();
    let rings = &spec.rings;
    let sizes = [rings.rx, rings.rx_mini, rings.rx_jumbo, rings.tx];
    if differs(&sizes, now.rings) {
        changes.push(Change::Rings(sizes));
    }
    let off = |name: &str, on: bool| !now.features.iter().any(|f| f.name == name && f.active == on);
    let features: Vec<_> = spec.features.iter().filter(|(name, on)| off(name, **on)).collect();
    if !features.is_empty() {
        changes.push(Change::Features(features.into_iter().map(|(name, on)| (name.clone(), *on)).collect()));
    }
    let channels = &spec.channels;
    let numbers = [channels.rx, channels.tx, channels.other, channels.combined];
    if differs(&numbers, now.channels) {
        changes.push(Change::Channels(numbers));
    }
    let wake = spec.wake_on_lan.iter().fold(0, |bits, mode| bits | mode.0.cast_unsigned());
    if !spec.wake_on_lan.is_empty() && wake != now.wake_on_lan {
        changes.push(Change::WakeOnLan(wake));
    }
    let cannot = [
        (rings.rx_buf_len.is_some(), "rx-buf-len"),
        (rings.cqe_size.is_some(), "cqe-size"),
        (rings.tx_push.is_some(), "tx-push"),
        (rings.rx_push.is_some(), "rx-push"),
        (rings.tx_push_buf_len.is_some(), "tx-push-buf-len"),
        (rings.tcp_data_split.is_some(), "tcp-data-split"),
    ];
    (changes, cannot.into_iter().filter(|(set, _)| *set).map(|(_, name)| name).collect())
}

/// Applies wanted settings.
#[derive(Debug)]
pub struct EthernetSpecController<K> {
    kernel: K,
    gate: DevicesGate,
    troubles: Troubles,
}

impl<K> EthernetSpecController<K> {
    /// Applies settings to the cards of this kernel.
    pub fn new(kernel: K, gate: DevicesGate) -> Self {
        Self { kernel, gate, troubles: Troubles::default() }
    }
}

impl<K: Kernel> Controller for EthernetSpecController<K> {
    const NAME: &'static str = "network.EthernetSpecController";

    fn inputs(&self) -> Vec<Input> {
        self.gate.inputs(vec![weak::<EthernetSpec>()])
    }

    fn outputs(&self) -> Vec<Output> {
        Vec::new()
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        if !self.gate.is_open(ctx)? {
            return Ok(());
        }
        for spec in ctx.list::<EthernetSpec>()? {
            let link = spec.id().as_str();
            let now = match self.kernel.ethernet(link) {
                Ok(now) => now,
                Err(error) => {
                    self.troubles
                        .refused(ControllerError::new(format!("ethernet settings of {link}: {error}")));
                    continue;
                }
            };
            let (changes, cannot) = plan(&spec, &now);
            for name in cannot {
                let text = format!("ethernet settings of {link}: {name} cannot be set yet");
                self.troubles.refused(ControllerError::new(text));
            }
            for change in changes {
                match self.kernel.change_ethernet(link, &change) {
                    Ok(()) => tracing::info!(link, ?change, "changed ethernet settings"),
                    Err(error) => {
                        let text = format!("ethernet settings of {link}, {change:?}: {error}");
                        self.troubles.refused(ControllerError::new(text));
                    }
                }
            }
        }
        self.troubles.show(ctx);
        Ok(())
    }
}

/// Shows what drivers say.
#[derive(Debug)]
pub struct EthernetStatusController<K> {
    kernel: K,
    gate: DevicesGate,
    /// Drivers are asked again only when a link's flags or packet size change, or somebody set something.
    known: BTreeMap<u32, ((u32, u32), Option<EthernetStatus>)>,
}

impl<K> EthernetStatusController<K> {
    /// Shows the cards of this kernel.
    pub fn new(kernel: K, gate: DevicesGate) -> Self {
        Self { kernel, gate, known: BTreeMap::new() }
    }
}

fn status_of(ethernet: &Ethernet) -> EthernetStatus {
    // A limit of zero means that the card has no such thing.
    let pick = |four: &Four, at: usize| (four.max[at] != 0).then_some((four.max[at], four.now[at]));
    let max = |four: &Four, at: usize| pick(four, at).map(|(max, _)| max);
    let now = |four: &Four, at: usize| pick(four, at).map(|(_, now)| now);
    let state = |feature: &ichor_net::link::ethtool::Feature| {
        let text = |on: bool| if on { "on" } else { "off" };
        let suffix = match (feature.fixed, feature.requested == feature.active) {
            (true, _) => String::new() + " [fixed]",
            (false, true) => String::new(),
            (false, false) => format!(" [requested {}]", text(feature.requested)),
        };
        EthernetFeature { name: feature.name.clone(), status: format!("{}{suffix}", text(feature.active)) }
    };
    let modes = [1, 2, 4, 8, 32, 64, 128].into_iter().map(WOLMode);
    EthernetStatus {
        link_state: ethernet.link,
        speed_mbit: ethernet.mode.map_or(0, |mode| mode.speed_mbit.into()),
        port: ethernet.mode.map_or(Port::OTHER, |mode| Port(mode.port.into())),
        duplex: ethernet.mode.map_or(Duplex::UNKNOWN, |mode| Duplex(mode.duplex.into())),
        our_modes: ethernet.ours.clone(),
        peer_modes: ethernet.peer.clone(),
        rings: ethernet.rings.as_ref().map(|four| EthernetRingsStatus {
            rx_max: max(four, 0),
            rx_mini_max: max(four, 1),
            rx_jumbo_max: max(four, 2),
            tx_max: max(four, 3),
            rx: now(four, 0),
            rx_mini: now(four, 1),
            rx_jumbo: now(four, 2),
            tx: now(four, 3),
            ..EthernetRingsStatus::default()
        }),
        features: EthernetFeatures(ethernet.features.iter().map(state).collect()),
        channels: ethernet.channels.as_ref().map(|four| EthernetChannelsStatus {
            rx_max: max(four, 0),
            tx_max: max(four, 1),
            other_max: max(four, 2),
            combined_max: max(four, 3),
            rx: now(four, 0),
            tx: now(four, 1),
            other: now(four, 2),
            combined: now(four, 3),
        }),
        wake_on_lan: modes.filter(|mode| ethernet.wake_on_lan & mode.0.cast_unsigned() != 0).collect(),
    }
}

impl<K: Kernel> Controller for EthernetStatusController<K> {
    const NAME: &'static str = "network.EthernetStatusController";

    fn inputs(&self) -> Vec<Input> {
        self.gate.inputs(vec![weak::<LinkSpec>(), weak::<EthernetSpec>()])
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<EthernetStatus>()]
    }

    fn start(&mut self, wake: Wake) {
        self.kernel.watch(Topics::LINKS, wake);
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        if !self.gate.is_open(ctx)? {
            return Ok(());
        }
        let links = self.kernel.links().await?;
        let wanted = ctx.list::<EthernetSpec>()?;
        self.known.retain(|index, _| links.iter().any(|link| link.index == *index));
        let mut statuses = Vec::new();
        for link in &links {
            let key = (link.flags, link.mtu);
            let settled = !wanted.iter().any(|spec| spec.id() == link.name.as_str());
            let entry = match self.known.get(&link.index) {
                Some((held, status)) if *held == key && settled => status.clone(),
                _ => {
                    let status = self.kernel.ethernet(&link.name).ok().map(|ethernet| status_of(&ethernet));
                    self.known.insert(link.index, (key, status.clone()));
                    status
                }
            };
            statuses.extend(entry.map(|status| (link.name.as_str(), status)));
        }
        ctx.publish(statuses)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use ichor_net::link::ethtool::Feature;

    use super::*;

    fn card() -> Ethernet {
        let feature =
            |name: &str, active, requested, fixed| Feature { name: name.into(), active, requested, fixed };
        Ethernet {
            rings: Some(Four { max: [4096, 0, 0, 4096], now: [256, 0, 0, 256] }),
            features: vec![
                feature("tx-a", true, true, false),
                feature("tx-b", false, true, false),
                feature("tx-c", true, true, true),
            ],
            wake_on_lan: 32,
            ..Ethernet::default()
        }
    }

    #[test]
    fn only_what_differs_is_changed_in_the_right_order() {
        let mut spec = EthernetSpec::default();
        assert_eq!(plan(&spec, &card()), (vec![], vec![]));
        spec.rings.rx = Some(512);
        spec.rings.tx_push = Some(true);
        spec.features = BTreeMap::from([("tx-a".to_owned(), false), ("tx-c".to_owned(), true)]);
        spec.wake_on_lan = vec![WOLMode::MAGIC];
        let (changes, cannot) = plan(&spec, &card());
        assert_eq!(
            changes,
            [
                Change::Rings([Some(512), None, None, None]),
                Change::Features(vec![("tx-a".to_owned(), false)])
            ]
        );
        assert_eq!(cannot, ["tx-push"]);
    }

    #[test]
    fn states_of_features_read_as_people_know_them() {
        let status = status_of(&card());
        let texts: Vec<_> = status.features.0.iter().map(|f| f.status.as_str()).collect();
        assert_eq!(texts, ["on", "off [requested on]", "on [fixed]"]);
        let rings = status.rings.unwrap();
        assert_eq!((rings.rx_max, rings.rx, rings.rx_mini), (Some(4096), Some(256), None));
        assert_eq!(status.wake_on_lan, [WOLMode::MAGIC]);
    }
}
