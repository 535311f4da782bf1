//! The picture of a node that is reasoned about: facts only, taken at one moment.

use std::net::IpAddr;
use std::sync::Arc;

use ichor_resource::{Resource, TypedSpec};

/// A node at one moment. Times are seconds before or after that moment.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// All resources.
    pub resources: Vec<Arc<Resource>>,
    /// All services.
    pub services: Vec<Service>,
    /// All controllers.
    pub controllers: Vec<Controller>,
    /// Who reads and writes what.
    pub edges: Vec<Edge>,
    /// Neighbours the kernel knows, or tried to reach in vain.
    pub neighbours: Vec<Neighbour>,
    /// The moment, in nanoseconds since 1970, as resources carry their times.
    pub now_ns: i64,
}

/// One service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Service {
    /// Its id.
    pub id: String,
    /// Its state, as clients see it.
    pub state: String,
    /// Its health; unknown before the first check and where there is none.
    pub healthy: Option<bool>,
    /// What the last failed check said.
    pub health_message: String,
    /// Up: others may depend on it.
    pub up: bool,
    /// What happened to it, the oldest first.
    pub events: Vec<ServiceEvent>,
    /// Services it waits for.
    pub depends: Vec<String>,
    /// What else it waits for.
    pub conditions: Vec<Condition>,
    /// The last lines it wrote.
    pub log: Vec<String>,
}

/// One change of a service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServiceEvent {
    /// The state it went to.
    pub state: String,
    /// What was said.
    pub message: String,
    /// Seconds ago.
    pub ago: u64,
}

/// Something a service waits for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Condition {
    /// As the service's events name it.
    pub name: String,
    /// The resource it is about, where it is about one.
    pub about: Option<Place>,
}

/// Where a resource is, or should be.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The namespace.
    pub namespace: String,
    /// The type.
    pub type_name: String,
    /// The id; any, when there is none.
    pub id: Option<String>,
}

impl Place {
    /// The place of one resource.
    pub fn of<T: TypedSpec>(id: &str) -> Self {
        let definition = T::definition();
        Self {
            namespace: definition.default_namespace.to_owned(),
            type_name: definition.type_name.to_owned(),
            id: Some(id.to_owned()),
        }
    }

    /// For people: the type without its suffix, and the id.
    pub fn short(&self) -> String {
        let plural = self.type_name.split('.').next().unwrap_or_default();
        match &self.id {
            Some(id) => format!("{plural}/{id}"),
            None => plural.to_owned(),
        }
    }
}

/// How one controller is doing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Controller {
    /// Its name.
    pub name: String,
    /// Passes so far.
    pub runs: u64,
    /// Failed passes in a row.
    pub failures: u32,
    /// Why the last one failed.
    pub error: Option<String>,
    /// Seconds since then.
    pub error_ago: u64,
    /// Seconds until the next attempt.
    pub retry_in: Option<u64>,
    /// What it could not get done though it did not fail.
    pub trouble: Option<String>,
}

impl Controller {
    /// What is wrong with it now, if anything is.
    pub fn complaint(&self) -> Option<&str> {
        match self.failures {
            0 => self.trouble.as_deref(),
            _ => self.error.as_deref().or(Some("it fails")),
        }
    }
}

/// What a controller does with a kind of resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edge {
    /// The controller.
    pub controller: String,
    /// True where it writes, false where it reads.
    pub output: bool,
    /// The kind; outputs have no namespace.
    pub place: Place,
}

/// A neighbour on a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Neighbour {
    /// Its address.
    pub address: IpAddr,
    /// The link.
    pub link: String,
    /// Whether it answered when it was last asked for.
    pub answers: bool,
}

impl Snapshot {
    /// One resource of a type.
    pub fn get<T: TypedSpec>(&self, id: &str) -> Option<&T> {
        self.find(&Place::of::<T>(id))?.downcast()
    }

    /// All resources of a type in its own namespace, with their ids.
    pub fn list<T: TypedSpec>(&self) -> impl Iterator<Item = (&str, &T)> {
        let definition = T::definition();
        self.resources.iter().filter_map(move |resource| {
            let meta = resource.meta();
            let fits =
                meta.type_name() == definition.type_name && meta.namespace() == definition.default_namespace;
            Some((&**meta.id(), resource.downcast::<T>()?)).filter(|_| fits)
        })
    }

    /// The resource at a place; any of its kind when the place has no id.
    pub fn find(&self, place: &Place) -> Option<&Resource> {
        let fits = |resource: &&Arc<Resource>| {
            let meta = resource.meta();
            meta.type_name() == place.type_name
                && meta.namespace() == place.namespace
                && place.id.as_deref().is_none_or(|id| **meta.id() == *id)
        };
        self.resources.iter().find(fits).map(|found| &**found)
    }

    /// A service by its id.
    pub fn service(&self, id: &str) -> Option<&Service> {
        self.services.iter().find(|service| service.id == id)
    }

    /// A controller by its name.
    pub fn controller(&self, name: &str) -> Option<&Controller> {
        self.controllers.iter().find(|controller| controller.name == name)
    }

    /// Seconds since a resource last changed.
    pub fn age(&self, resource: &Resource) -> u64 {
        u64::try_from(self.now_ns.saturating_sub(resource.meta().updated().0) / 1_000_000_000).unwrap_or(0)
    }
}
