//! Columns of the table: the presets, and schemas of one's own.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::template::{Template, TemplateError};
use super::{Content, Group, Value};
use crate::failure::{Context, Failure};
use crate::output::json;

/// The names of the presets.
pub const PRESETS: [&str; 7] = ["cpu", "cpuset", "io", "memory", "process", "psi", "swap"];

/// Longest list of process names that is shown.
const PROCESSES_MAX: usize = 50;

/// What a group and its parent have to say in one column.
type Cell = fn(&Group, Option<&Group>) -> String;

/// The columns of a table.
pub enum Schema {
    /// One of the presets.
    Preset(&'static [(&'static str, Cell)]),
    /// Columns by templates.
    Own(Vec<(String, Template)>),
}

#[derive(Deserialize)]
struct File {
    #[serde(default)]
    columns: Vec<Column>,
}

#[derive(Deserialize)]
struct Column {
    #[serde(default)]
    name: String,
    #[serde(default)]
    template: String,
}

impl Schema {
    /// Reads a schema file.
    pub fn parse(yaml: &[u8]) -> Result<Self, Failure> {
        let text = std::str::from_utf8(yaml).context("error decoding schema file")?;
        let value = json::from_yaml_text(text).context("error decoding schema file")?;
        let file: File = serde_json::from_value(value).context("error decoding schema file")?;
        let columns = file.columns.into_iter().map(|column| {
            let template = Template::parse(&column.template)
                .context(format!("error compiling schema: column \"{}\"", column.name))?;
            Ok((column.name, template))
        });
        Ok(Self::Own(columns.collect::<Result<_, Failure>>()?))
    }

    /// The headings.
    pub fn names(&self) -> Vec<&str> {
        match self {
            Self::Preset(columns) => columns.iter().map(|(name, _)| *name).collect(),
            Self::Own(columns) => columns.iter().map(|(name, _)| name.as_str()).collect(),
        }
    }

    /// The cells of a group's row.
    pub fn cells(&self, group: &Group, parent: Option<&Group>) -> Result<Vec<String>, TemplateError> {
        match self {
            Self::Preset(columns) => Ok(columns.iter().map(|(_, cell)| cell(group, parent)).collect()),
            Self::Own(columns) => {
                columns.iter().map(|(_, template)| template.render(group, parent)).collect()
            }
        }
    }
}

/// The preset of a name.
pub fn preset(name: &str) -> Option<Schema> {
    Some(Schema::Preset(match name {
        "cpu" => CPU,
        "cpuset" => CPUSET,
        "io" => IO,
        "memory" => MEMORY,
        "process" => PROCESS,
        "psi" => PSI,
        "swap" => SWAP,
        _ => return None,
    }))
}

fn right(text: impl std::fmt::Display, width: usize) -> String {
    format!("{:>width$}", text.to_string())
}

fn bytes(group: &Group, field: &str) -> String {
    right(group.value(field).bytes(), 8)
}

fn usage(group: &Group, key: &str) -> String {
    right(group.keyed("CPUStat", key).duration(), 12)
}

fn share(group: &Group, parent: Option<&Group>, key: &str) -> String {
    match parent {
        Some(parent) => {
            let share = group.keyed("CPUStat", key).percent_of(parent.keyed("CPUStat", key));
            format!("{}%", right(share, 6))
        }
        None => "-".to_owned(),
    }
}

fn cpuset(group: &Group, field: &str) -> String {
    match group.field(field) {
        Some(Content::Text(text)) => right(text, 12),
        _ => right("", 12),
    }
}

fn pressure(group: &Group, field: &str, key: &str, span: &str) -> String {
    right(group.nested(field, key, span), 6)
}

fn count(group: &Group, field: &str) -> String {
    match group.field(field) {
        Some(Content::Many(values)) => right(values.len(), 7),
        _ => right(0, 7),
    }
}

/// One piece for every device of the group.
fn devices(group: &Group, piece: fn(&str, &Counters) -> String) -> String {
    match group.field("IOStat") {
        Some(Content::Nested(stat)) => {
            stat.iter().map(|(device, counters)| piece(device, counters)).collect()
        }
        _ => String::new(),
    }
}

type Counters = BTreeMap<String, Value>;

fn of(counters: &Counters, key: &str) -> Value {
    counters.get(key).copied().unwrap_or(Value::UNSET)
}

const CPU: &[(&str, Cell)] = &[
    ("CpuWeight", |group, _| right(group.value("CPUWeight"), 6)),
    ("CpuNice", |group, _| right(group.value("CPUWeightNice"), 6)),
    ("CpuMax", |group, _| match group.field("CPUMax") {
        Some(Content::Many(values)) => {
            format!("[{}]", values.iter().map(|value| right(value, 6)).collect::<Vec<_>>().join(" "))
        }
        _ => "[]".to_owned(),
    }),
    ("CpuUser", |group, _| usage(group, "user_usec")),
    ("User/%", |group, parent| share(group, parent, "user_usec")),
    ("CpuSystem", |group, _| usage(group, "system_usec")),
    ("System/%", |group, parent| share(group, parent, "system_usec")),
    ("Throttled", |group, _| usage(group, "throttled_usec")),
];

const CPUSET: &[(&str, Cell)] = &[
    ("CpuSet", |group, _| cpuset(group, "CPUSetCPUs")),
    ("CpuSet(Eff)", |group, _| cpuset(group, "CPUSetCPUsEffective")),
    ("Mems", |group, _| cpuset(group, "CPUSetMems")),
    ("Mems(Eff)", |group, _| cpuset(group, "CPUSetMemsEffective")),
];

const IO: &[(&str, Cell)] = &[
    ("Bytes Read/Written", |group, _| {
        devices(group, |device, counters| match counters.is_empty() {
            true => String::new(),
            false => {
                let (read, written) = (of(counters, "rbytes"), of(counters, "wbytes"));
                format!("{device}: {}/{} ", read.bytes(), written.bytes())
            }
        })
    }),
    ("ios Read/Write", |group, parent| match parent {
        Some(_) => devices(group, |device, counters| {
            format!("{device}: {}/{} ", of(counters, "rios"), of(counters, "wios"))
        }),
        None => String::new(),
    }),
    ("PressAvg10", |group, _| pressure(group, "IOPressure", "some", "avg10")),
    ("PressAvg60", |group, _| pressure(group, "IOPressure", "some", "avg60")),
    ("PressTotal", |group, _| right(group.nested("IOPressure", "some", "total").duration(), 12)),
];

const MEMORY: &[(&str, Cell)] = &[
    ("MemCurrent", |group, _| bytes(group, "MemoryCurrent")),
    ("MemPeak", |group, _| bytes(group, "MemoryPeak")),
    ("MemLow", |group, _| bytes(group, "MemoryLow")),
    ("Peak/Low", |group, _| {
        format!("{}%", right(group.value("MemoryPeak").percent_of(group.value("MemoryLow")), 6))
    }),
    ("MemHigh", |group, _| bytes(group, "MemoryHigh")),
    ("MemMin", |group, _| bytes(group, "MemoryMin")),
    ("Current/Min", |group, _| {
        format!("{}%", right(group.value("MemoryCurrent").percent_of(group.value("MemoryMin")), 6))
    }),
    ("MemMax", |group, _| bytes(group, "MemoryMax")),
];

const PROCESS: &[(&str, Cell)] = &[
    ("PidsCurrent", |group, _| right(group.value("PidsCurrent"), 8)),
    ("PidsPeak", |group, _| right(group.value("PidsPeak"), 8)),
    ("PidsMax", |group, _| right(group.value("PidsMax"), 8)),
    ("Procs", |group, _| count(group, "CgroupProcs")),
    ("Threads", |group, _| count(group, "CgroupThreads")),
    ("Processes", |group, parent| match parent {
        Some(_) => format!("[{}]", group.processes.join(" ")).chars().take(PROCESSES_MAX).collect(),
        None => String::new(),
    }),
];

const PSI: &[(&str, Cell)] = &[
    ("MemCurrent", |group, _| bytes(group, "MemoryCurrent")),
    ("MemPsiSome10", |group, _| pressure(group, "MemoryPressure", "some", "avg10")),
    ("MemPsi10", |group, _| pressure(group, "MemoryPressure", "full", "avg10")),
    ("CpuPsi10", |group, _| pressure(group, "CPUPressure", "full", "avg10")),
    ("IoPsi10", |group, _| pressure(group, "IOPressure", "full", "avg10")),
];

const SWAP: &[(&str, Cell)] = &[
    ("SwapCurrent", |group, _| bytes(group, "MemorySwapCurrent")),
    ("SwapPeak", |group, _| bytes(group, "MemorySwapPeak")),
    ("SwapHigh", |group, _| bytes(group, "MemorySwapHigh")),
    ("SwapMax", |group, _| bytes(group, "MemorySwapMax")),
    ("ZswapCurrent", |group, _| bytes(group, "MemoryZswapCurrent")),
    ("ZswapMax", |group, _| bytes(group, "MemoryZswapMax")),
    ("ZswapWriteback", |group, _| group.value("MemoryZswapWriteback").to_string()),
];
