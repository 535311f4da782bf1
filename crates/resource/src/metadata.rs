//! What the system keeps about every resource besides its contents.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::id::Id;

/// Labels or annotations, sorted by key.
pub type Pairs = BTreeMap<String, String>;

static NO_PAIRS: Pairs = BTreeMap::new();

/// The namespace and type a resource belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Kind {
    namespace: Arc<str>,
    type_name: Arc<str>,
}

impl Kind {
    /// Names a kind.
    pub fn new(namespace: &str, type_name: &str) -> Self {
        Self { namespace: Arc::from(namespace), type_name: Arc::from(type_name) }
    }

    /// The namespace, such as `network`.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The full type name, such as `LinkStatuses.net.talos.dev`.
    pub fn type_name(&self) -> &str {
        &self.type_name
    }
}

/// Counts the writes of one life of a resource; prints `undefined` before the first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(u64);

impl Version {
    /// Not stored yet.
    pub const UNDEFINED: Self = Self(0);
    /// The version every creation stores.
    pub const FIRST: Self = Self(1);

    /// The version with this number; zero is undefined.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The number, zero when undefined.
    pub const fn number(self) -> u64 {
        self.0
    }

    /// The version an update stores over this one.
    pub const fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }

    /// Reads `undefined` or a decimal number.
    pub fn parse(text: &str) -> Result<Self, BadMetadata> {
        match text {
            "undefined" => Ok(Self::UNDEFINED),
            _ => text.parse().map(Self).map_err(|_| BadMetadata::Version(text.to_owned())),
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => f.write_str("undefined"),
            number => write!(f, "{number}"),
        }
    }
}

/// Where a resource is in its life.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Phase {
    /// In use.
    #[default]
    Running,
    /// On its way out; it goes when the last finalizer is gone.
    TearingDown,
}

impl Phase {
    /// The text on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::TearingDown => "tearingDown",
        }
    }

    /// Reads the text on the wire.
    pub fn parse(text: &str) -> Result<Self, BadMetadata> {
        match text {
            "running" => Ok(Self::Running),
            "tearingDown" => Ok(Self::TearingDown),
            _ => Err(BadMetadata::Phase(text.to_owned())),
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Metadata text that could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadMetadata {
    /// Neither `undefined` nor a number.
    #[error("version {0:?} is not a number")]
    Version(String),
    /// Neither of the two phases.
    #[error("phase {0:?} is unknown; it is `running` or `tearingDown`")]
    Phase(String),
}

/// A point in time, in nanoseconds since 1970. Good from 1678 to 2262.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(pub i64);

impl Nanos {
    /// Whole seconds and the nanoseconds above them, as protobuf wants.
    pub const fn split(self) -> (i64, i32) {
        (self.0.div_euclid(1_000_000_000), self.0.rem_euclid(1_000_000_000) as i32)
    }

    /// The inverse of [`Nanos::split`]; out of range times become the nearest possible.
    pub const fn join(seconds: i64, nanos: i32) -> Self {
        Self(seconds.saturating_mul(1_000_000_000).saturating_add(nanos as i64))
    }

    /// The same time for calendar work.
    pub fn timestamp(self) -> jiff::Timestamp {
        // Every i64 of nanoseconds lies inside jiff's range.
        jiff::Timestamp::from_nanosecond(i128::from(self.0)).unwrap_or_default()
    }

    /// From calendar time; out of range times become the nearest possible.
    pub fn from_timestamp(time: jiff::Timestamp) -> Self {
        Self::join(time.as_second(), time.subsec_nanosecond())
    }
}

/// Everything about a resource except its contents.
///
/// Stored metadata never changes: a writer edits a copy and the store takes it with the next version.
#[derive(Debug, Clone)]
pub struct Metadata {
    kind: Arc<Kind>,
    id: Id,
    version: Version,
    owner: Option<Arc<str>>,
    phase: Phase,
    created: Nanos,
    updated: Nanos,
    extra: Option<Box<Extra>>,
}

/// What most resources have nothing of.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Extra {
    labels: Pairs,
    annotations: Pairs,
    finalizers: Vec<String>,
}

impl Extra {
    fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.annotations.is_empty() && self.finalizers.is_empty()
    }
}

impl Metadata {
    /// Metadata of a resource that is not stored yet.
    #[inline]
    pub fn new(kind: Arc<Kind>, id: impl Into<Id>) -> Self {
        Self {
            kind,
            id: id.into(),
            version: Version::UNDEFINED,
            owner: None,
            phase: Phase::Running,
            created: Nanos(0),
            updated: Nanos(0),
            extra: None,
        }
    }

    /// Namespace and type.
    #[inline]
    pub fn kind(&self) -> &Arc<Kind> {
        &self.kind
    }

    /// The namespace.
    pub fn namespace(&self) -> &str {
        self.kind.namespace()
    }

    /// The full type name.
    pub fn type_name(&self) -> &str {
        self.kind.type_name()
    }

    /// The id.
    #[inline]
    pub fn id(&self) -> &Id {
        &self.id
    }

    /// The version.
    #[inline]
    pub fn version(&self) -> Version {
        self.version
    }

    /// Who may write it; empty when nobody in particular.
    #[inline]
    pub fn owner(&self) -> &str {
        self.owner.as_deref().unwrap_or_default()
    }

    /// True when `owner` may write it. Asks for emptiness first: comparing nothing with nothing through
    /// pointers to nowhere costs more than the rest of an update on processors with masked loads.
    #[inline]
    pub fn is_owned_by(&self, owner: &str) -> bool {
        match &self.owner {
            None => owner.is_empty(),
            Some(held) => **held == *owner,
        }
    }

    /// The phase.
    #[inline]
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// True while nobody asked for its end.
    pub fn is_running(&self) -> bool {
        self.phase == Phase::Running
    }

    /// When it was created.
    #[inline]
    pub fn created(&self) -> Nanos {
        self.created
    }

    /// When it was last written.
    #[inline]
    pub fn updated(&self) -> Nanos {
        self.updated
    }

    /// Who still needs it, in the order they came.
    #[inline]
    pub fn finalizers(&self) -> &[String] {
        self.extra.as_ref().map_or(&[], |extra| &extra.finalizers)
    }

    /// True when `finalizer` holds it.
    pub fn has_finalizer(&self, finalizer: &str) -> bool {
        self.finalizers().iter().any(|held| held == finalizer)
    }

    /// Tearing down and held by nobody: its owner may destroy it.
    #[inline]
    pub fn is_destroy_ready(&self) -> bool {
        self.phase == Phase::TearingDown && self.finalizers().is_empty()
    }

    /// The labels.
    #[inline]
    pub fn labels(&self) -> &Pairs {
        self.extra.as_ref().map_or(&NO_PAIRS, |extra| &extra.labels)
    }

    /// One label.
    pub fn label(&self, key: &str) -> Option<&str> {
        self.labels().get(key).map(String::as_str)
    }

    /// The annotations.
    pub fn annotations(&self) -> &Pairs {
        self.extra.as_ref().map_or(&NO_PAIRS, |extra| &extra.annotations)
    }

    /// One annotation.
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.annotations().get(key).map(String::as_str)
    }

    /// Sets a label of a draft.
    pub fn set_label(&mut self, key: impl Into<String>, value: impl Into<String>) {
        self.extra_mut().labels.insert(key.into(), value.into());
    }

    /// Removes a label of a draft; says whether it was there.
    pub fn remove_label(&mut self, key: &str) -> bool {
        self.edit(|extra| extra.labels.remove(key).is_some())
    }

    /// Sets an annotation of a draft.
    pub fn set_annotation(&mut self, key: impl Into<String>, value: impl Into<String>) {
        self.extra_mut().annotations.insert(key.into(), value.into());
    }

    /// Removes an annotation of a draft; says whether it was there.
    pub fn remove_annotation(&mut self, key: &str) -> bool {
        self.edit(|extra| extra.annotations.remove(key).is_some())
    }

    /// Adds a finalizer to a draft; says whether it is new.
    pub fn add_finalizer(&mut self, finalizer: &str) -> bool {
        if self.has_finalizer(finalizer) {
            return false;
        }
        self.extra_mut().finalizers.push(finalizer.to_owned());
        true
    }

    /// Removes a finalizer of a draft; says whether it was there.
    pub fn remove_finalizer(&mut self, finalizer: &str) -> bool {
        self.edit(|extra| {
            let place = extra.finalizers.iter().position(|held| held == finalizer);
            place.map(|at| extra.finalizers.remove(at)).is_some()
        })
    }

    /// Sets the phase of a draft.
    pub fn set_phase(&mut self, phase: Phase) {
        self.phase = phase;
    }

    /// Sets the version of a draft. The store overwrites it.
    pub fn set_version(&mut self, version: Version) {
        self.version = version;
    }

    /// Sets the owner of a draft; empty text means nobody. The store overwrites it.
    pub fn set_owner(&mut self, owner: Option<Arc<str>>) {
        self.owner = owner.filter(|name| !name.is_empty());
    }

    /// The owner, to be shared.
    #[inline]
    pub fn shared_owner(&self) -> Option<&Arc<str>> {
        self.owner.as_ref()
    }

    /// Sets both times of a draft. The store overwrites them.
    #[inline]
    pub fn set_times(&mut self, created: Nanos, updated: Nanos) {
        self.created = created;
        self.updated = updated;
    }

    /// Equal in everything that counts: both times and the order of finalizers do not.
    pub fn same(&self, other: &Self) -> bool {
        self.version == other.version && self.same_but_version(other)
    }

    /// As [`Metadata::same`], with the version left out.
    pub fn same_but_version(&self, other: &Self) -> bool {
        (Arc::ptr_eq(&self.kind, &other.kind) || self.kind == other.kind)
            && self.id == other.id
            && self.phase == other.phase
            && self.owner == other.owner
            && match (&self.extra, &other.extra) {
                (None, None) => true,
                _ => {
                    self.labels() == other.labels()
                        && self.annotations() == other.annotations()
                        && same_set(self.finalizers(), other.finalizers())
                }
            }
    }

    fn extra_mut(&mut self) -> &mut Extra {
        self.extra.get_or_insert_default()
    }

    fn edit(&mut self, remove: impl FnOnce(&mut Extra) -> bool) -> bool {
        let Some(extra) = &mut self.extra else {
            return false;
        };
        let removed = remove(extra);
        if extra.is_empty() {
            self.extra = None;
        }
        removed
    }
}

fn same_set(left: &[String], right: &[String]) -> bool {
    left.len() == right.len() && left.iter().all(|item| right.contains(item))
}

/// `Type(namespace/id@version)`, as error texts name a resource.
impl fmt::Display for Metadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({}/{}@{})", self.type_name(), self.namespace(), self.id, self.version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draft() -> Metadata {
        Metadata::new(Arc::new(Kind::new("default", "os/path")), "var/run")
    }

    #[test]
    fn metadata_stays_small() {
        assert!(std::mem::size_of::<Metadata>() <= 88);
    }

    #[test]
    fn it_is_named_as_errors_name_it() {
        let mut meta = draft();
        assert_eq!(meta.to_string(), "os/path(default/var/run@undefined)");
        meta.set_version(Version::new(3));
        assert_eq!(meta.to_string(), "os/path(default/var/run@3)");
    }

    #[test]
    fn order_of_finalizers_and_times_do_not_count() {
        let (mut a, mut b) = (draft(), draft());
        for name in ["x", "y"] {
            assert!(a.add_finalizer(name));
        }
        for name in ["y", "x"] {
            assert!(b.add_finalizer(name));
        }
        b.set_times(Nanos(1), Nanos(2));
        assert!(a.same(&b));
        assert!(!a.add_finalizer("x"));
        assert!(b.remove_finalizer("x") && !b.remove_finalizer("x"));
        assert!(!a.same(&b));
    }

    #[test]
    fn the_last_removal_leaves_nothing_behind() {
        let mut meta = draft();
        meta.set_label("a", "b");
        meta.set_annotation("c", "d");
        assert!(meta.remove_label("a") && meta.remove_annotation("c"));
        assert!(meta.extra.is_none());
        assert!(meta.same(&draft()));
    }

    #[test]
    fn versions_and_phases_are_read_back() {
        for number in [0, 1, 42, u64::MAX] {
            let version = Version::new(number);
            assert_eq!(Version::parse(&version.to_string()), Ok(version));
        }
        assert!(Version::parse("-1").is_err());
        assert_eq!(Phase::parse("tearingDown"), Ok(Phase::TearingDown));
        assert!(Phase::parse("Running").is_err());
    }

    #[test]
    fn times_split_below_zero_too() {
        for nanos in [0, 1, -1, 1_500_000_000, -1_500_000_000] {
            let (seconds, rest) = Nanos(nanos).split();
            assert!((0..1_000_000_000).contains(&rest));
            assert_eq!(Nanos::join(seconds, rest), Nanos(nanos));
        }
        assert_eq!(Nanos(1_500_000_000).timestamp().to_string(), "1970-01-01T00:00:01.5Z");
    }
}
