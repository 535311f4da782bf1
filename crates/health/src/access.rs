//! How machines and Kubernetes are asked.

use std::future::Future;
use std::task::{Context, Poll};

use http::{HeaderName, HeaderValue, Request};
use ichor_wire::cosi::resource::state_client::StateClient;
use ichor_wire::cosi::resource::{GetRequest, ListRequest};
use ichor_wire::machine::machine_service_client::MachineServiceClient;
use ichor_wire::machine::{EtcdMember, EtcdMemberListRequest, ServiceInfo};
use serde_json::Value;
use tonic::body::Body;
use tonic::client::GrpcService;
use tonic::codegen::StdError;
use tonic::{Code, Status};

use crate::spec;

/// The largest message that is accepted.
const MESSAGE_MAX: usize = 32 * 1024 * 1024;
/// The most a packed kubeconfig may take.
const KUBECONFIG_MAX: usize = 1024 * 1024;
/// The most resources one list may hold.
const LIST_MAX: usize = 10_000;

/// Lists objects of Kubernetes.
pub trait Kubernetes: Send + Sync {
    /// The objects that the label selector lets pass; an empty one lets all.
    fn list(&self, what: Objects, selector: &str) -> impl Future<Output = Result<Vec<Value>, String>> + Send;
}

/// What is listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Objects {
    /// All nodes.
    Nodes,
    /// The pods of the namespace of the system.
    SystemPods,
    /// The daemon sets there.
    SystemDaemonSets,
    /// The deployments there.
    SystemDeployments,
}

/// A resource as the checks see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resource {
    /// Its id.
    pub id: String,
    /// Its version, a number.
    pub version: String,
    /// Its spec.
    pub spec: Value,
}

impl Resource {
    /// From a message of the resource API.
    pub fn of(message: &ichor_wire::cosi::resource::Resource) -> Self {
        let metadata = message.metadata.as_ref();
        let yaml = message.spec.as_ref().map(|spec| spec.yaml_spec.as_str()).unwrap_or_default();
        Self {
            id: metadata.map(|metadata| metadata.id.clone()).unwrap_or_default(),
            version: metadata.map(|metadata| metadata.version.clone()).unwrap_or_default(),
            spec: spec::parse(yaml),
        }
    }
}

/// Asks machines through the service `S`, which leads to an endpoint that routes by metadata.
#[derive(Debug, Clone)]
pub struct Access<S> {
    service: S,
    headers: Vec<(HeaderName, HeaderValue)>,
}

impl<S> Access<S>
where
    S: GrpcService<Body> + Clone + Send,
    S::Error: Into<StdError>,
    S::ResponseBody: http_body::Body<Data = bytes::Bytes> + Send + 'static,
    <S::ResponseBody as http_body::Body>::Error: Into<StdError> + Send,
{
    /// Over `service`, with `headers` on every call.
    pub fn new(service: S, headers: Vec<(HeaderName, HeaderValue)>) -> Self {
        Self { service, headers }
    }

    /// The service towards one machine; an empty name is the endpoint itself.
    fn to(&self, node: &str) -> Via<S> {
        let mut headers = self.headers.clone();
        // An address is always a value a header can hold.
        if let Ok(value) = HeaderValue::from_str(node)
            && !node.is_empty()
        {
            headers.push((HeaderName::from_static("node"), value));
        }
        Via { service: self.service.clone(), headers }
    }

    /// The machine API of one machine.
    pub fn machine(&self, node: &str) -> MachineServiceClient<Via<S>> {
        MachineServiceClient::new(self.to(node)).max_decoding_message_size(MESSAGE_MAX)
    }

    /// The resource API of one machine.
    pub fn state(&self, node: &str) -> StateClient<Via<S>> {
        StateClient::new(self.to(node)).max_decoding_message_size(MESSAGE_MAX)
    }

    /// The services of a machine.
    pub async fn services(&self, node: &str) -> Result<Vec<ServiceInfo>, Status> {
        let reply = self.machine(node).service_list(()).await?.into_inner();
        Ok(reply.messages.into_iter().flat_map(|message| message.services).collect())
    }

    /// The members of etcd, as a machine knows them.
    pub async fn etcd_members(&self, node: &str) -> Result<Vec<EtcdMember>, Status> {
        let request = EtcdMemberListRequest { query_local: false };
        let reply = self.machine(node).etcd_member_list(request).await?.into_inner();
        Ok(reply.messages.into_iter().flat_map(|message| message.members).collect())
    }

    /// The version of a machine and the mode of its platform.
    pub async fn version(&self, node: &str) -> Result<(String, String), Status> {
        let reply = self.machine(node).version(()).await?.into_inner();
        let message = reply.messages.into_iter().next().unwrap_or_default();
        let tag = message.version.map(|version| version.tag).unwrap_or_default();
        Ok((tag, message.platform.map(|platform| platform.mode).unwrap_or_default()))
    }

    /// The memory of a machine in bytes.
    pub async fn memory(&self, node: &str) -> Result<u64, Status> {
        let reply = self.machine(node).memory(()).await?.into_inner();
        let info = reply.messages.into_iter().next().and_then(|message| message.meminfo);
        Ok(info.map(|info| info.memtotal).unwrap_or_default() * 1024)
    }

    /// The administrator's kubeconfig, packed as the machine hands it out.
    pub async fn kubeconfig(&self, node: &str) -> Result<Vec<u8>, Status> {
        let mut stream = self.machine(node).kubeconfig(()).await?.into_inner();
        let mut packed = Vec::new();
        while let Some(message) = stream.message().await? {
            if packed.len() > KUBECONFIG_MAX {
                return Err(Status::resource_exhausted("the kubeconfig is too large"));
            }
            packed.extend_from_slice(&message.bytes);
        }
        Ok(packed)
    }

    /// One resource; nothing when it is not there.
    pub async fn get(
        &self,
        node: &str,
        namespace: &str,
        resource_type: &str,
        id: &str,
    ) -> Result<Option<Resource>, Status> {
        let request = GetRequest {
            namespace: namespace.to_owned(),
            r#type: resource_type.to_owned(),
            id: id.to_owned(),
            options: None,
        };
        match self.state(node).get(request).await {
            Ok(reply) => Ok(reply.into_inner().resource.as_ref().map(Resource::of)),
            Err(status) if status.code() == Code::NotFound => Ok(None),
            Err(status) => Err(status),
        }
    }

    /// All resources of a type.
    pub async fn list(
        &self,
        node: &str,
        namespace: &str,
        resource_type: &str,
    ) -> Result<Vec<Resource>, Status> {
        let request =
            ListRequest { namespace: namespace.to_owned(), r#type: resource_type.to_owned(), options: None };
        let mut stream = self.state(node).list(request).await?.into_inner();
        let mut resources = Vec::new();
        while let Some(message) = stream.message().await? {
            if resources.len() == LIST_MAX {
                return Err(Status::resource_exhausted(format!("more than {LIST_MAX} resources")));
            }
            resources.extend(message.resource.as_ref().map(Resource::of));
        }
        Ok(resources)
    }
}

/// Writes the same headers into every call.
#[derive(Debug, Clone)]
pub struct Via<S> {
    service: S,
    headers: Vec<(HeaderName, HeaderValue)>,
}

impl<S: GrpcService<Body>> tower::Service<Request<Body>> for Via<S> {
    type Response = http::Response<S::ResponseBody>;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.service.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        for (name, value) in &self.headers {
            request.headers_mut().append(name.clone(), value.clone());
        }
        self.service.call(request)
    }
}
