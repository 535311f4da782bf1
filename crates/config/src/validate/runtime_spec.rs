//! The shape of a container runtime specification, as far as overrides of the default one can go wrong.
//!
//! Keys nobody knows are let through, as the original does; known ones have to have their type.

use crate::model::{FreeValue, Path};

/// One object per line: its name, then `key:type`. `[]` is a list, `{}` a mapping from text; `Name=type` is a type with
/// a name of its own; a name alone is an object. What is not listed may be anything.
const TYPES: &str = "\
Spec ociVersion:string process:Process root:Root hostname:string domainname:string mounts:[]Mount hooks:Hooks annotations:{}string linux:Linux
Process terminal:bool consoleSize:Box user:User args:[]string commandLine:string env:[]string cwd:string capabilities:LinuxCapabilities rlimits:[]POSIXRlimit noNewPrivileges:bool apparmorProfile:string oomScoreAdj:int scheduler:Scheduler selinuxLabel:string ioPriority:LinuxIOPriority execCPUAffinity:CPUAffinity
Box height:uint width:uint
User uid:uint32 gid:uint32 umask:uint32 additionalGids:[]uint32 username:string
LinuxCapabilities bounding:[]string effective:[]string inheritable:[]string permitted:[]string ambient:[]string
POSIXRlimit type:string hard:uint64 soft:uint64
Scheduler policy:LinuxSchedulerPolicy=string nice:int32 priority:int32 flags:[]LinuxSchedulerFlag=string runtime:uint64 deadline:uint64 period:uint64
LinuxIOPriority class:IOPriorityClass=string priority:int
CPUAffinity initial:string final:string
Root path:string readonly:bool
Mount destination:string type:string source:string options:[]string uidMappings:[]LinuxIDMapping gidMappings:[]LinuxIDMapping
LinuxIDMapping containerID:uint32 hostID:uint32 size:uint32
Hooks prestart:[]Hook createRuntime:[]Hook createContainer:[]Hook startContainer:[]Hook poststart:[]Hook poststop:[]Hook
Hook path:string args:[]string env:[]string timeout:int
Linux uidMappings:[]LinuxIDMapping gidMappings:[]LinuxIDMapping sysctl:{}string resources:LinuxResources cgroupsPath:string namespaces:[]LinuxNamespace devices:[]LinuxDevice seccomp:LinuxSeccomp rootfsPropagation:string maskedPaths:[]string readonlyPaths:[]string mountLabel:string intelRdt:LinuxIntelRdt personality:LinuxPersonality timeOffsets:{}LinuxTimeOffset
LinuxNamespace type:LinuxNamespaceType=string path:string
LinuxDevice path:string type:string major:int64 minor:int64 fileMode:FileMode=uint32 uid:uint32 gid:uint32
LinuxSeccomp defaultAction:LinuxSeccompAction=string defaultErrnoRet:uint architectures:[]Arch=string flags:[]LinuxSeccompFlag=string listenerPath:string listenerMetadata:string syscalls:[]LinuxSyscall
LinuxSyscall names:[]string action:LinuxSeccompAction=string errnoRet:uint args:[]LinuxSeccompArg
LinuxSeccompArg index:uint value:uint64 valueTwo:uint64 op:LinuxSeccompOperator=string
LinuxIntelRdt closID:string l3CacheSchema:string memBwSchema:string
LinuxPersonality domain:LinuxPersonalityDomain=string flags:[]LinuxPersonalityFlag=string
LinuxTimeOffset secs:int64 nanosecs:uint32
LinuxResources devices:[]LinuxDeviceCgroup memory:LinuxMemory cpu:LinuxCPU pids:LinuxPids blockIO:LinuxBlockIO hugepageLimits:[]LinuxHugepageLimit network:LinuxNetwork rdma:{}LinuxRdma unified:{}string
LinuxDeviceCgroup allow:bool type:string major:int64 minor:int64 access:string
LinuxMemory limit:int64 reservation:int64 swap:int64 kernel:int64 kernelTCP:int64 swappiness:uint64 disableOOMKiller:bool useHierarchy:bool checkBeforeUpdate:bool
LinuxCPU shares:uint64 quota:int64 burst:uint64 period:uint64 realtimeRuntime:int64 realtimePeriod:uint64 cpus:string mems:string idle:int64
LinuxPids limit:int64
LinuxBlockIO weight:uint16 leafWeight:uint16 weightDevice:[]LinuxWeightDevice throttleReadBpsDevice:[]LinuxThrottleDevice throttleWriteBpsDevice:[]LinuxThrottleDevice throttleReadIOPSDevice:[]LinuxThrottleDevice throttleWriteIOPSDevice:[]LinuxThrottleDevice
LinuxWeightDevice major:int64 minor:int64 weight:uint16 leafWeight:uint16
LinuxThrottleDevice major:int64 minor:int64 rate:uint64
LinuxHugepageLimit pageSize:string limit:uint64
LinuxNetwork classID:uint32 priorities:[]LinuxInterfacePriority
LinuxInterfacePriority name:string priority:uint32
LinuxRdma hcaHandles:uint32 hcaObjects:uint32
";

/// Says where overrides do not fit, in the words of the original.
pub(super) fn check<'v>(
    overrides: impl Iterator<Item = (&'v String, &'v FreeValue)>,
    at: &Path,
    tell: &mut impl FnMut(&Path, String),
) {
    let mut place = Place { object: "", keys: String::new() };
    object("Spec", overrides, at, &mut place, tell);
}

/// The last known key on the way, which messages name.
struct Place {
    object: &'static str,
    keys: String,
}

/// The keys of an object, with their types.
fn fields(name: &str) -> Option<(&'static str, &'static str)> {
    TYPES.lines().filter_map(|line| line.split_once(' ')).find(|(object, _)| *object == name)
}

fn object<'v>(
    name: &str,
    entries: impl Iterator<Item = (&'v String, &'v FreeValue)>,
    at: &Path,
    place: &mut Place,
    tell: &mut impl FnMut(&Path, String),
) {
    let Some((name, known)) = fields(name) else { return };
    for (key, value) in entries {
        let known = || known.split(' ').filter_map(|field| field.split_once(':'));
        let exact = known().find(|(field, _)| *field == key.as_str());
        let Some((field, kind)) =
            exact.or_else(|| known().find(|(field, _)| field.eq_ignore_ascii_case(key)))
        else {
            continue;
        };
        let (outer, length) = (place.object, place.keys.len());
        place.object = name;
        if length > 0 {
            place.keys.push('.');
        }
        place.keys.push_str(field);
        typed(kind, value, &at.key(key), place, tell);
        place.keys.truncate(length);
        place.object = outer;
    }
}

fn typed(
    kind: &'static str,
    value: &FreeValue,
    at: &Path,
    place: &mut Place,
    tell: &mut impl FnMut(&Path, String),
) {
    match (kind.strip_prefix("[]"), kind.strip_prefix("{}"), value) {
        (_, _, FreeValue::Null) => {}
        (Some(item), _, FreeValue::Seq(items)) => {
            for (i, value) in items.iter().enumerate() {
                typed(item, value, &at.index(i), place, tell);
            }
        }
        (_, Some(item), FreeValue::Map(entries)) => {
            for (key, value) in entries {
                typed(item, value, &at.key(key), place, tell);
            }
        }
        (None, None, FreeValue::Map(entries)) if fields(kind).is_some() => {
            object(kind, entries.iter(), at, place, tell);
        }
        _ => {
            let base = kind.split_once('=').map_or(kind, |(_, base)| base);
            if !fits(base, value) {
                let Place { object, keys } = place;
                let (found, wanted) = (shown(base, value), type_name(kind));
                let text = format!(
                    "json: cannot unmarshal {found} into Go struct field {object}.{keys} of type {wanted}"
                );
                tell(at, text);
            }
        }
    }
}

/// The bounds of a number type.
fn range(kind: &str) -> Option<(i128, i128)> {
    Some(match kind {
        "int" | "int64" => (i64::MIN.into(), i64::MAX.into()),
        "int32" => (i32::MIN.into(), i32::MAX.into()),
        "uint" | "uint64" => (0, u64::MAX.into()),
        "uint32" => (0, u32::MAX.into()),
        "uint16" => (0, u16::MAX.into()),
        _ => return None,
    })
}

fn fits(kind: &str, value: &FreeValue) -> bool {
    let whole = match value {
        FreeValue::Int(number) => Some(i128::from(*number)),
        FreeValue::Uint(number) => Some(i128::from(*number)),
        FreeValue::Float(number) if number.fract() == 0.0 => Some(*number as i128),
        _ => None,
    };
    match (kind, value) {
        ("string", FreeValue::Str(_)) | ("bool", FreeValue::Bool(_)) => true,
        (kind, _) => match (range(kind), whole) {
            (Some((least, most)), Some(number)) => (least..=most).contains(&number),
            _ => false,
        },
    }
}

fn shown(base: &str, value: &FreeValue) -> String {
    let number =
        |text: String| if range(base).is_some() { format!("number {text}") } else { "number".to_owned() };
    match value {
        FreeValue::Null => "null".to_owned(),
        FreeValue::Bool(_) => "bool".to_owned(),
        FreeValue::Int(value) => number(value.to_string()),
        FreeValue::Uint(value) => number(value.to_string()),
        FreeValue::Float(value) => number(value.to_string()),
        FreeValue::Str(_) => "string".to_owned(),
        FreeValue::Seq(_) => "array".to_owned(),
        FreeValue::Map(_) => "object".to_owned(),
    }
}

/// A type as messages call it.
fn type_name(kind: &str) -> String {
    if let Some(item) = kind.strip_prefix("[]") {
        return format!("[]{}", type_name(item));
    }
    if let Some(item) = kind.strip_prefix("{}") {
        return format!("map[string]{}", type_name(item));
    }
    match kind.split_once('=') {
        Some(("FileMode", _)) => "fs.FileMode".to_owned(),
        Some((name, _)) => format!("specs.{name}"),
        None if fields(kind).is_some() => format!("specs.{kind}"),
        None => kind.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_object_that_is_named_is_there() {
        for line in TYPES.lines() {
            for (_, kind) in line.split(' ').skip(1).filter_map(|field| field.split_once(':')) {
                let base = kind.trim_start_matches("[]").trim_start_matches("{}");
                let base = base.split_once('=').map_or(base, |(_, base)| base);
                let known =
                    matches!(base, "string" | "bool") || range(base).is_some() || fields(base).is_some();
                assert!(known, "{line}: {kind}");
            }
        }
    }
}
