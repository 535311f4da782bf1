//! Control groups of a machine as a tree of values, and columns over them. No I/O here.

mod columns;
mod template;
mod value;

use std::collections::BTreeMap;
use std::io::Read;

pub use columns::{PRESETS, Schema, preset};
pub use template::TemplateError;
pub use value::Value;

use crate::tabs::Table;

/// The longest file that is looked at; those of control groups are far shorter.
const FILE_MAX: u64 = 256 * 1024;
/// The deepest tree that is drawn.
const DEPTH_MAX: usize = 64;

/// What a file of a group holds.
#[derive(Debug, Clone, PartialEq)]
pub enum Content {
    /// One value.
    One(Value),
    /// Values in a row or in lines.
    Many(Vec<Value>),
    /// A value for every key.
    Flat(BTreeMap<String, Value>),
    /// Values by two keys.
    Nested(BTreeMap<String, BTreeMap<String, Value>>),
    /// A text.
    Text(String),
}

/// The form of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    One,
    Lines,
    Words,
    Flat,
    Nested,
    Text,
}

/// Files that are read, the names templates know them by, and their form.
const FILES: &[(&str, &str, Form)] = &[
    ("cgroup.events", "CgroupEvents", Form::Flat),
    ("cgroup.freeze", "CgroupFreeze", Form::One),
    ("cgroup.procs", "CgroupProcs", Form::Lines),
    ("cgroup.stat", "CgroupStat", Form::Flat),
    ("cgroup.threads", "CgroupThreads", Form::Lines),
    ("cpu.idle", "CPUIdle", Form::One),
    ("cpu.max", "CPUMax", Form::Words),
    ("cpu.max.burst", "CPUMaxBurst", Form::One),
    ("cpu.pressure", "CPUPressure", Form::Nested),
    ("cpu.stat", "CPUStat", Form::Flat),
    ("cpu.stat.local", "CPUStatLocal", Form::Flat),
    ("cpu.weight", "CPUWeight", Form::One),
    ("cpu.weight.nice", "CPUWeightNice", Form::One),
    ("cpuset.cpus", "CPUSetCPUs", Form::Text),
    ("cpuset.cpus.effective", "CPUSetCPUsEffective", Form::Text),
    ("cpuset.mems", "CPUSetMems", Form::Text),
    ("cpuset.mems.effective", "CPUSetMemsEffective", Form::Text),
    ("io.bfq.weight", "IOBFQWeight", Form::Flat),
    ("io.max", "IOMax", Form::Nested),
    ("io.pressure", "IOPressure", Form::Nested),
    ("io.stat", "IOStat", Form::Nested),
    ("memory.current", "MemoryCurrent", Form::One),
    ("memory.events", "MemoryEvents", Form::Flat),
    ("memory.events.local", "MemoryEventsLocal", Form::Flat),
    ("memory.high", "MemoryHigh", Form::One),
    ("memory.low", "MemoryLow", Form::One),
    ("memory.max", "MemoryMax", Form::One),
    ("memory.min", "MemoryMin", Form::One),
    ("memory.numa_stat", "MemoryNUMAStat", Form::Nested),
    ("memory.oom.group", "MemoryOOMGroup", Form::One),
    ("memory.peak", "MemoryPeak", Form::One),
    ("memory.pressure", "MemoryPressure", Form::Nested),
    ("memory.stat", "MemoryStat", Form::Flat),
    ("memory.swap.current", "MemorySwapCurrent", Form::One),
    ("memory.swap.events", "MemorySwapEvents", Form::Flat),
    ("memory.swap.high", "MemorySwapHigh", Form::One),
    ("memory.swap.max", "MemorySwapMax", Form::One),
    ("memory.swap.peak", "MemorySwapPeak", Form::One),
    ("memory.zswap.current", "MemoryZswapCurrent", Form::One),
    ("memory.zswap.max", "MemoryZswapMax", Form::One),
    ("memory.zswap.writeback", "MemoryZswapWriteback", Form::One),
    ("pids.current", "PidsCurrent", Form::One),
    ("pids.events", "PidsEvents", Form::Flat),
    ("pids.max", "PidsMax", Form::One),
    ("pids.peak", "PidsPeak", Form::One),
];

/// One group.
#[derive(Debug, Default)]
pub struct Group {
    /// Groups below this one.
    pub children: BTreeMap<String, Group>,
    /// Names of the processes in it, where they are known.
    pub processes: Vec<String>,
    contents: BTreeMap<&'static str, Content>,
}

impl Group {
    /// What the file holds that templates know by `field`; empty content when the group has no such file.
    pub fn field(&self, field: &str) -> Option<Content> {
        let (_, name, form) = FILES.iter().find(|(_, name, _)| *name == field)?;
        Some(self.contents.get(name).cloned().unwrap_or_else(|| form.parse("")))
    }

    /// The value of a field that has one.
    pub fn value(&self, field: &str) -> Value {
        match self.contents.get(field) {
            Some(Content::One(value)) => *value,
            _ => Value::UNSET,
        }
    }

    /// The value of a key in a field that has keys.
    pub fn keyed(&self, field: &str, key: &str) -> Value {
        match self.contents.get(field) {
            Some(Content::Flat(map)) => map.get(key).copied().unwrap_or(Value::UNSET),
            _ => Value::UNSET,
        }
    }

    /// The value of two keys.
    pub fn nested(&self, field: &str, key: &str, inner: &str) -> Value {
        match self.contents.get(field) {
            Some(Content::Nested(map)) => {
                map.get(key).and_then(|map| map.get(inner)).copied().unwrap_or(Value::UNSET)
            }
            _ => Value::UNSET,
        }
    }

    /// Gives children other names, all the way down.
    pub fn rename(&mut self, names: &BTreeMap<String, String>) {
        let children = std::mem::take(&mut self.children);
        for (name, mut child) in children {
            child.rename(names);
            self.children.insert(names.get(&name).cloned().unwrap_or(name), child);
        }
    }

    /// Names processes and devices.
    pub fn resolve(&mut self, processes: &BTreeMap<String, String>, devices: &BTreeMap<String, String>) {
        if let Some(Content::Many(ids)) = self.contents.get("CgroupProcs") {
            let name = |id: &Value| {
                let id = id.to_string();
                processes.get(&id).cloned().unwrap_or(id)
            };
            self.processes = ids.iter().map(name).collect();
        }
        if let Some(Content::Nested(stat)) = self.contents.get_mut("IOStat") {
            let by_number = std::mem::take(stat);
            stat.extend(
                by_number
                    .into_iter()
                    .map(|(device, counters)| (devices.get(&device).cloned().unwrap_or(device), counters)),
            );
        }
        self.children.values_mut().for_each(|child| child.resolve(processes, devices));
    }

    fn at(&mut self, directory: &str) -> &mut Self {
        let mut group = self;
        for name in directory.split('/').take_while(|name| !name.is_empty() && *name != ".").take(DEPTH_MAX) {
            group = group.children.entry(name.to_owned()).or_default();
        }
        group
    }

    /// Reads the tree from an archive of the control group filesystem.
    pub fn from_tar(archive: impl Read) -> std::io::Result<Self> {
        let mut root = Self::default();
        for entry in tar::Archive::new(archive).entries()? {
            let entry = entry?;
            if !entry.header().entry_type().is_file() {
                continue;
            }
            let path = entry.path()?.to_string_lossy().into_owned();
            let (directory, file) = path.rsplit_once('/').unwrap_or(("", &path));
            let group = root.at(directory);
            let Some((_, field, form)) = FILES.iter().find(|(name, ..)| *name == file) else { continue };
            let mut text = String::new();
            entry.take(FILE_MAX).read_to_string(&mut text)?;
            group.contents.insert(field, form.parse(&text));
        }
        Ok(root)
    }
}

impl Form {
    /// Reads a file; what does not have the form is left out.
    fn parse(self, text: &str) -> Content {
        let values = |text: &str| -> BTreeMap<String, Value> {
            let pairs = text.split_whitespace().filter_map(|pair| pair.split_once('='));
            pairs.filter_map(|(key, value)| Some((key.to_owned(), Value::parse(value)?))).collect()
        };
        match self {
            Self::One => Content::One(text.lines().next().and_then(Value::parse).unwrap_or(Value::UNSET)),
            Self::Lines => Content::Many(text.lines().filter_map(Value::parse).collect()),
            Self::Words => {
                let line = text.lines().next().unwrap_or_default();
                Content::Many(line.split_whitespace().filter_map(Value::parse).collect())
            }
            Self::Flat => {
                let pairs = text.lines().filter_map(|line| line.split_once(' '));
                let pairs = pairs.filter_map(|(key, value)| Some((key.to_owned(), Value::parse(value)?)));
                Content::Flat(pairs.collect())
            }
            Self::Nested => {
                let pairs = text.lines().filter_map(|line| line.split_once(' '));
                Content::Nested(pairs.map(|(key, rest)| (key.to_owned(), values(rest))).collect())
            }
            Self::Text => Content::Text(text.lines().next().unwrap_or_default().to_owned()),
        }
    }
}

/// The tree with its columns.
pub fn table_text(root: &Group, schema: &Schema) -> Result<String, TemplateError> {
    let mut table = Table::with_header(["NAME"].into_iter().chain(schema.names()));
    push(&mut table, schema, ".", root, None, "", "")?;
    Ok(table.take())
}

/// Adds a group and all below it; `indent` stands before the children's edges.
fn push(
    table: &mut Table,
    schema: &Schema,
    name: &str,
    group: &Group,
    parent: Option<&Group>,
    edge: &str,
    indent: &str,
) -> Result<(), TemplateError> {
    let mut row = vec![format!("{edge}{name}")];
    row.extend(schema.cells(group, parent)?);
    table.row(row);
    let last = group.children.len().saturating_sub(1);
    for (index, (name, child)) in group.children.iter().enumerate() {
        let (corner, bar) = if index == last { ("└──", "    ") } else { ("├──", "│   ") };
        push(
            table,
            schema,
            name,
            child,
            Some(group),
            &format!("{indent}{corner}"),
            &format!("{indent}{bar}"),
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests_support {
    use super::*;

    /// A group with these files.
    pub(super) fn group(files: &[(&str, &str)]) -> Group {
        let mut group = Group::default();
        for (file, text) in files {
            let (_, field, form) = FILES.iter().find(|(name, ..)| name == file).unwrap();
            group.contents.insert(field, form.parse(text));
        }
        group
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    fn tree() -> Group {
        let files = [
            ("memory.current", "4096\n"),
            ("init/memory.current", "2048\n"),
            ("init/memory.max", "max\n"),
            ("init/cgroup.procs", "1\n7\n"),
            ("pods/a/memory.current", "1024\n"),
            ("pods/b/io.stat", "8:0 rbytes=2048 wbytes=1 rios=3 wios=4\n"),
            ("pods/b/unknown", "x\n"),
        ];
        let mut builder = tar::Builder::new(Vec::new());
        for (name, content) in files {
            let mut header = tar::Header::new_gnu();
            header.set_size(content.len() as u64);
            header.set_cksum();
            builder.append_data(&mut header, name, content.as_bytes()).unwrap();
        }
        let mut root = Group::from_tar(builder.into_inner().unwrap().as_slice()).unwrap();
        let names = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(from, to)| ((*from).to_owned(), (*to).to_owned())).collect()
        };
        root.resolve(&names(&[("1", "init")]), &names(&[("8:0", "sda")]));
        root
    }

    #[test]
    fn groups_are_drawn_as_a_tree() {
        let text = table_text(&tree(), &preset("memory").unwrap()).unwrap();
        let left: String = text
            .lines()
            .map(|line| format!("{}\n", line.chars().take(24).collect::<String>().trim_end()))
            .collect();
        expect![[r#"
            NAME       MemCurrent
            .           4.0 KiB
            ├──init     2.0 KiB
            └──pods       unset
                ├──a    1.0 KiB
                └──b      unset
        "#]]
        .assert_eq(&left);
    }

    #[test]
    fn processes_and_devices_have_names() {
        let tree = tree();
        assert_eq!(tree.children["init"].processes, ["init", "7"]);
        let text = table_text(&tree, &preset("io").unwrap()).unwrap();
        assert!(text.contains("sda: 2.0 KiB/1 B     sda: 3/4 "), "{text}");
    }

    #[test]
    fn a_schema_of_ones_own_is_followed() {
        let schema = Schema::parse(
            b"columns:\n  - name: Share\n    template: '{{ if .Parent }}{{ .MemoryCurrent.DivideBy .Parent.MemoryCurrent | printf \"%7s%%\" }}{{ else }}-{{ end }}'\n",
        )
        .unwrap();
        let text = table_text(&tree(), &schema).unwrap();
        assert!(text.contains("├──init      50.00%"), "{text}");
    }
}
