//! Events, kernel log, watchdog, out-of-memory handling, extension services.

use ichor_types::GoDuration;

use crate::{
    model::{Keyed, KeyedList, List, section},
    values::{Expression, Url},
};

section! {
    /// Where events are sent.
    pub struct EventSinkConfig {
        /// Receiver, `host:port`.
        @always
        "endpoint" => endpoint: String,
    }
}

section! {
    /// Where the kernel log is sent.
    pub struct KmsgLogConfig {
        /// Name of the receiver.
        @always
        "name" => name: String,
        /// Where it listens: `tcp://host:port` or `udp://host:port`.
        @always
        "url" => url: Url,
    }
}

section! {
    /// The hardware watchdog.
    pub struct WatchdogTimerConfig {
        /// Its device.
        @always
        "device" => device: String,
        /// How long the machine may hang; at least ten seconds.
        @default("1m")
        "timeout" => timeout: GoDuration,
    }
}

section! {
    /// When and what to stop before memory runs out.
    pub struct OOMConfig {
        /// Expression that says when to act.
        "triggerExpression" => trigger_expression: Expression,
        /// Expression that ranks control groups; the highest goes first.
        "cgroupRankingExpression" => cgroup_ranking_expression: Expression,
        /// How often to look.
        "sampleInterval" => sample_interval: GoDuration,
    }
}

section! {
    /// Settings of an extension service.
    pub struct ExtensionServiceConfig {
        /// Name of the service.
        @always
        "name" => name: String,
        /// Files mounted into it.
        "configFiles" => config_files: KeyedList<ConfigFile>,
        /// Its environment, as `NAME=value`.
        "environment" => environment: List<String>,
    }
}

section! {
    /// A file mounted into an extension service.
    pub struct ConfigFile {
        /// Its content.
        @always
        "content" => content: String,
        /// Where it appears.
        @always
        "mountPath" => mount_path: String,
    }
}

impl Keyed for ConfigFile {
    const KEY: &'static str = "mountPath";

    fn same_item(&self, other: &Self) -> bool {
        self.mount_path == other.mount_path
    }
}
