//! Who may do what through the State service.

use tonic::Status;
use tonic::codegen::http::Extensions;
use tonic::metadata::MetadataMap;

use crate::state::State;

/// What a request wants to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// Read one.
    Get,
    /// Read all.
    List,
    /// Follow changes.
    Watch,
    /// Make one.
    Create,
    /// Change one.
    Update,
    /// Remove one.
    Destroy,
}

impl Verb {
    /// True for those that change nothing.
    pub fn is_read(self) -> bool {
        match self {
            Self::Get | Self::List | Self::Watch => true,
            Self::Create | Self::Update | Self::Destroy => false,
        }
    }
}

/// One request as a filter sees it.
#[derive(Debug)]
pub struct AccessRequest<'a> {
    /// What it wants to do.
    pub verb: Verb,
    /// In which namespace.
    pub namespace: &'a str,
    /// With which type.
    pub type_name: &'a str,
    /// With which id; lists and kind watches have none.
    pub id: Option<&'a str>,
    /// What layers in front of the service know, such as the peer.
    pub extensions: &'a Extensions,
    /// The metadata of the call.
    pub metadata: &'a MetadataMap,
}

/// Decides about requests.
pub trait AccessFilter: Send + Sync + 'static {
    /// Refuses with the status the client gets.
    fn check(&self, request: &AccessRequest<'_>) -> Result<(), Status>;
}

impl<F> AccessFilter for F
where
    F: Fn(&AccessRequest<'_>) -> Result<(), Status> + Send + Sync + 'static,
{
    fn check(&self, request: &AccessRequest<'_>) -> Result<(), Status> {
        self(request)
    }
}

/// Lets everybody do everything; for sockets that only trusted processes reach.
#[derive(Debug, Clone, Copy, Default)]
pub struct AllowAll;

impl AccessFilter for AllowAll {
    fn check(&self, _request: &AccessRequest<'_>) -> Result<(), Status> {
        Ok(())
    }
}

const META: &str = "meta";
const DEFINITIONS: &str = "ResourceDefinitions.meta.cosi.dev";
const NAMESPACES: &str = "Namespaces.meta.cosi.dev";

/// The rules of the resource API: reads only, of defined types in defined namespaces; sensitive
/// types for administrators only.
pub struct ReadOnly<A> {
    state: State,
    is_admin: A,
}

impl<A> ReadOnly<A>
where
    A: Fn(&AccessRequest<'_>) -> bool + Send + Sync + 'static,
{
    /// Rules over the definitions in `state`; `is_admin` says who is an administrator.
    pub fn new(state: State, is_admin: A) -> Self {
        Self { state, is_admin }
    }

    fn defined(&self, kind: &str, id: &str) -> bool {
        let kind = self.state.find_kind(META, kind);
        kind.is_some_and(|kind| kind.find(id).is_some())
    }
}

impl<A> AccessFilter for ReadOnly<A>
where
    A: Fn(&AccessRequest<'_>) -> bool + Send + Sync + 'static,
{
    fn check(&self, request: &AccessRequest<'_>) -> Result<(), Status> {
        if !request.verb.is_read() {
            return Err(Status::permission_denied("write access is not allowed"));
        }
        let (type_name, namespace) = (request.type_name, request.namespace);
        if !self.defined(DEFINITIONS, &type_name.to_lowercase()) {
            let text = format!("resource type {type_name:?} is not supported");
            return Err(Status::permission_denied(text));
        }
        // A type that is defined but not registered is one this program knows nothing about.
        let definition = self.state.definition(type_name);
        let sensitive = definition.is_none_or(|definition| definition.sensitive);
        if sensitive && !(self.is_admin)(request) {
            return Err(Status::permission_denied("not authorized"));
        }
        if !self.defined(NAMESPACES, namespace) {
            let text = format!("namespace {namespace:?} is not supported");
            return Err(Status::permission_denied(text));
        }
        Ok(())
    }
}
