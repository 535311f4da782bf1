//! Logs on their way to other machines: which receivers there are, and a task for each.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use ichor_cosi::{Context, Controller, ControllerError, Input, Output, weak};
use ichor_ctl::{Configuration, active_input};
use ichor_observe::LogManager;
use ichor_observe::ship::event::Level;
use ichor_observe::ship::{Destination, Drain, Event, Outlet, Tally, ship_logs};
use ichor_resource::network::NetworkStatus;
use ichor_resource::runtime::KmsgLogConfig;
use ichor_sys::kmsg::Record;
use jiff::Timestamp;
use serde_json::{Map, Value};
use tokio::task::JoinHandle;
use tracing::warn;

/// Receivers served at once; more are a mistake.
const RECEIVERS_MAX: usize = 64;

/// Ends its task with itself.
struct Running(JoinHandle<()>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A task per receiver. Those that stay keep their place in the logs.
#[derive(Default)]
struct Receivers(BTreeMap<Destination, Running>);

impl Receivers {
    fn change(&mut self, wanted: Vec<Destination>, start: impl Fn(Destination) -> JoinHandle<()>) {
        self.0.retain(|destination, _| wanted.contains(destination));
        for destination in wanted.into_iter().take(RECEIVERS_MAX) {
            self.0.entry(destination.clone()).or_insert_with(|| Running(start(destination)));
        }
    }
}

/// Whether names can be resolved and packets sent.
fn network_is_up(ctx: &Context) -> Result<bool, ControllerError> {
    Ok(ctx.get::<NetworkStatus>("status")?.is_some_and(|status| status.address_ready))
}

fn parse(url: &str) -> Option<Destination> {
    let parsed = Destination::parse(url);
    // The configuration was checked; the kernel command line was not.
    parsed.map_err(|error| warn!(%error, "a receiver of logs is left out")).ok()
}

/// Sends the logs of all services to `machine.logging.destinations`.
pub struct LogDeliveryController {
    logs: LogManager,
    drain: Drain,
    receivers: Receivers,
}

impl LogDeliveryController {
    /// A controller that sends these logs; `drain` knows what is on its way.
    pub fn new(logs: LogManager, drain: Drain) -> Self {
        Self { logs, drain, receivers: Receivers::default() }
    }
}

impl Controller for LogDeliveryController {
    const NAME: &'static str = "runtime.LogDeliveryController";

    fn inputs(&self) -> Vec<Input> {
        vec![active_input(), weak::<NetworkStatus>().id("status")]
    }

    fn outputs(&self) -> Vec<Output> {
        Vec::new()
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let documents = Configuration::active(ctx)?;
        let machine = documents.as_ref().and_then(|documents| documents.root()?.machine.as_deref());
        let logging = machine.and_then(|machine| machine.logging.as_ref());
        let wanted = logging.map_or(&[][..], |logging| &logging.destinations).iter().filter_map(|wanted| {
            let mut destination = parse(&wanted.endpoint.as_ref()?.to_string())?;
            destination.tags = wanted.extra_tags.0.clone().unwrap_or_default();
            Some(destination)
        });
        let wanted: Vec<Destination> = wanted.collect();
        // What runs goes on while the network is away.
        if !wanted.is_empty() && self.receivers.0.is_empty() && !network_is_up(ctx)? {
            return Ok(());
        }
        self.receivers.change(wanted, |destination| {
            let tally = Arc::new(Tally::default());
            tokio::spawn(ship_logs(self.logs.clone(), destination, self.drain.clone(), tally))
        });
        Ok(())
    }
}

/// The kernel's records, from the oldest it still has.
pub trait KernelLog: Send + Sync + 'static {
    /// A reader of its own.
    type Reader: KernelRecords;

    /// Begins at the oldest record.
    fn open(&self) -> io::Result<Self::Reader>;
}

/// A reader of the kernel's records.
pub trait KernelRecords: Send + 'static {
    /// The next record and when it was written; waits for it.
    fn next(&mut self) -> impl Future<Output = io::Result<(Record, Timestamp)>> + Send;
}

/// Sends the kernel's records to the receivers in `KmsgLogConfigs`.
pub struct KmsgLogDeliveryController<K> {
    kernel: Arc<K>,
    drain: Drain,
    receivers: Receivers,
}

impl<K: KernelLog> KmsgLogDeliveryController<K> {
    /// A controller that sends these records; `drain` knows what is on its way.
    pub fn new(kernel: K, drain: Drain) -> Self {
        Self { kernel: Arc::new(kernel), drain, receivers: Receivers::default() }
    }
}

impl<K: KernelLog> Controller for KmsgLogDeliveryController<K> {
    const NAME: &'static str = "runtime.KmsgLogDeliveryController";

    fn inputs(&self) -> Vec<Input> {
        vec![weak::<KmsgLogConfig>().id("kmsg-log"), weak::<NetworkStatus>().id("status")]
    }

    fn outputs(&self) -> Vec<Output> {
        Vec::new()
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let config = ctx.get::<KmsgLogConfig>("kmsg-log")?;
        let urls = config.iter().flat_map(|config| config.destinations.iter());
        let wanted: Vec<Destination> = urls.filter_map(|url| parse(&url.0)).collect();
        if !wanted.is_empty() && self.receivers.0.is_empty() && !network_is_up(ctx)? {
            return Ok(());
        }
        self.receivers.change(wanted, |destination| {
            let outlet = Outlet::new(destination, self.drain.clone());
            tokio::spawn(ship_records(Arc::clone(&self.kernel), outlet))
        });
        Ok(())
    }
}

async fn ship_records(kernel: Arc<impl KernelLog>, mut outlet: Outlet) {
    let opened = kernel.open();
    let mut records = match opened {
        Ok(records) => records,
        Err(error) => return warn!(%error, "the kernel log cannot be read and is not sent"),
    };
    loop {
        match records.next().await {
            Ok((record, time)) => outlet.deliver(&record_event(&record, time)).await,
            Err(error) => return warn!(%error, "the kernel log ended and is not sent any more"),
        }
    }
}

/// A record of the kernel as receivers know it.
fn record_event(record: &Record, time: Timestamp) -> Event {
    let level = match record.priority {
        4 => Level::Warn,
        5 | 6 => Level::Info,
        7 => Level::Debug,
        _ => Level::Error,
    };
    let micros = i64::try_from(record.clock.as_micros()).unwrap_or(i64::MAX);
    let fields: Map<String, Value> = [
        ("facility", Value::from(record.facility_name())),
        ("seq", record.sequence.into()),
        ("clock", micros.into()),
        ("priority", record.priority_name().into()),
    ]
    .map(|(key, value)| (key.to_owned(), value))
    .into_iter()
    .collect();
    Event { time, level, message: record.message.clone(), service: None, fields }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_keeps_what_the_kernel_said() {
        let record = Record::parse(b"12,7,1500000,-;[talos] careful\n").unwrap();
        let event = record_event(&record, Timestamp::from_second(1_700_000_000).unwrap());
        let json = String::from_utf8(event.encode(&BTreeMap::new())).unwrap();
        expect_test::expect![[r#"{"clock":1500000,"facility":"user","msg":"[talos] careful","priority":"warning","seq":7,"talos-level":"warn","talos-time":"2023-11-14T22:13:20Z"}"#]].assert_eq(&json);
    }

    #[tokio::test]
    async fn receivers_that_stay_keep_their_tasks() {
        let mut receivers = Receivers::default();
        let urls =
            |urls: &[&str]| urls.iter().map(|url| Destination::parse(url).unwrap()).collect::<Vec<_>>();
        let started = std::sync::Mutex::new(Vec::new());
        let start = |destination: Destination| {
            started.lock().unwrap().push(destination.to_string());
            tokio::spawn(std::future::pending())
        };
        receivers.change(urls(&["tcp://a:1", "udp://b:2"]), start);
        receivers.change(urls(&["udp://b:2", "tcp://c:3"]), start);
        receivers.change(Vec::new(), start);
        assert_eq!(*started.lock().unwrap(), ["tcp://a:1", "udp://b:2", "tcp://c:3"]);
        assert!(receivers.0.is_empty());
    }
}
