//! The machine service: every method, most of them one call into a module beside this one.

use std::sync::Arc;

use tonic::{Request, Response, Status};

use ichor_etcd::Downgrade;
use ichor_wire::machine::machine_service_server::MachineService;
use ichor_wire::{common, machine};

use super::ration::Ration;
use super::reply::{Replies, Slots, holding};
use super::{
    capture, client_config, configuration, console, containers, etcd, files, generate, host, kubeconfig,
    lifecycle, meta, sockets, streams,
};
use crate::audit;
use crate::node::Node;
use crate::services::ServiceError;
use crate::version;

/// Whom a server answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApiMode {
    /// A configured node.
    Configured,
    /// A node that waits for its configuration.
    Maintenance,
}

/// How many streams run at once, by what they cost. A stream that follows something costs a few kilobytes,
/// one over files a thread's work at times, a capture up to 2.5 MiB in the kernel and here.
#[derive(Clone)]
struct Streams {
    follow: Slots,
    files: Slots,
    captures: Slots,
}

impl Default for Streams {
    fn default() -> Self {
        Self {
            follow: Slots::new(1024, "followed logs and events"),
            files: Slots::new(64, "streams of files"),
            captures: Slots::new(8, "packet captures"),
        }
    }
}

/// The machine API over a node.
#[derive(Clone)]
pub struct Api {
    pub(super) node: Arc<Node>,
    pub(super) mode: ApiMode,
    streams: Streams,
    keys: Ration,
}

impl Api {
    /// An API over `node`.
    pub fn new(node: Arc<Node>, mode: ApiMode) -> Self {
        Self { node, mode, streams: Streams::default(), keys: Ration::new("generating keys") }
    }
}

fn service_status(error: &ServiceError) -> Status {
    Status::unknown(error.to_string())
}

#[tonic::async_trait]
impl MachineService for Api {
    type CopyStream = Replies<common::Data>;
    type DmesgStream = Replies<common::Data>;
    type EventsStream = Replies<machine::Event>;
    type ListStream = Replies<machine::FileInfo>;
    type DiskUsageStream = Replies<machine::DiskUsageInfo>;
    type LogsStream = Replies<common::Data>;
    type ReadStream = Replies<common::Data>;
    type EtcdSnapshotStream = Replies<common::Data>;
    type KubeconfigStream = Replies<common::Data>;
    type PacketCaptureStream = Replies<common::Data>;
    type ImageListStream = Replies<machine::ImageListResponse>;

    async fn cpu_freq_stats(
        &self,
        _request: Request<()>,
    ) -> Result<Response<machine::CpuFreqStatsResponse>, Status> {
        host::cpu_freq_stats().await
    }

    async fn cpu_info(&self, _request: Request<()>) -> Result<Response<machine::CpuInfoResponse>, Status> {
        host::cpu_info().await
    }

    async fn disk_stats(
        &self,
        _request: Request<()>,
    ) -> Result<Response<machine::DiskStatsResponse>, Status> {
        host::disk_stats().await
    }

    async fn load_avg(&self, _request: Request<()>) -> Result<Response<machine::LoadAvgResponse>, Status> {
        host::load_avg().await
    }

    async fn memory(&self, _request: Request<()>) -> Result<Response<machine::MemoryResponse>, Status> {
        host::memory().await
    }

    async fn mounts(&self, _request: Request<()>) -> Result<Response<machine::MountsResponse>, Status> {
        host::mounts().await
    }

    async fn network_device_stats(
        &self,
        _request: Request<()>,
    ) -> Result<Response<machine::NetworkDeviceStatsResponse>, Status> {
        host::network_device_stats().await
    }

    async fn processes(&self, _request: Request<()>) -> Result<Response<machine::ProcessesResponse>, Status> {
        host::processes().await
    }

    async fn system_stat(
        &self,
        _request: Request<()>,
    ) -> Result<Response<machine::SystemStatResponse>, Status> {
        host::system_stat().await
    }

    async fn copy(
        &self,
        request: Request<machine::CopyRequest>,
    ) -> Result<Response<Self::CopyStream>, Status> {
        audit::target(request.extensions(), || request.get_ref().root_path.clone());
        let place = self.streams.files.take()?;
        Ok(holding(place, files::copy(request.into_inner()).await?))
    }

    async fn list(
        &self,
        request: Request<machine::ListRequest>,
    ) -> Result<Response<Self::ListStream>, Status> {
        let place = self.streams.files.take()?;
        Ok(holding(place, files::list(request.into_inner()).await?))
    }

    async fn disk_usage(
        &self,
        request: Request<machine::DiskUsageRequest>,
    ) -> Result<Response<Self::DiskUsageStream>, Status> {
        let place = self.streams.files.take()?;
        Ok(holding(place, files::disk_usage(request.into_inner()).await?))
    }

    async fn read(
        &self,
        request: Request<machine::ReadRequest>,
    ) -> Result<Response<Self::ReadStream>, Status> {
        audit::target(request.extensions(), || request.get_ref().path.clone());
        let place = self.streams.files.take()?;
        Ok(holding(place, files::read(request.into_inner()).await?))
    }

    async fn reboot(
        &self,
        request: Request<machine::RebootRequest>,
    ) -> Result<Response<machine::RebootResponse>, Status> {
        lifecycle::reboot(&self.node.power, request.into_inner())
    }

    async fn shutdown(
        &self,
        request: Request<machine::ShutdownRequest>,
    ) -> Result<Response<machine::ShutdownResponse>, Status> {
        lifecycle::shutdown(&self.node.power, request.into_inner())
    }

    async fn reset(
        &self,
        request: Request<machine::ResetRequest>,
    ) -> Result<Response<machine::ResetResponse>, Status> {
        lifecycle::reset(&self.node, self.mode, request.into_inner())
    }

    async fn apply_configuration(
        &self,
        request: Request<machine::ApplyConfigurationRequest>,
    ) -> Result<Response<machine::ApplyConfigurationResponse>, Status> {
        let Node { host, store, power, .. } = &*self.node;
        let request = request.into_inner();
        configuration::apply_configuration(&host.platform, store, &power.sequencer, self.mode, request).await
    }

    async fn generate_client_configuration(
        &self,
        request: Request<machine::GenerateClientConfigurationRequest>,
    ) -> Result<Response<machine::GenerateClientConfigurationResponse>, Status> {
        client_config::generate_client_configuration(&self.node.store, self.mode, request.into_inner()).await
    }

    async fn generate_configuration(
        &self,
        request: Request<machine::GenerateConfigurationRequest>,
    ) -> Result<Response<machine::GenerateConfigurationResponse>, Status> {
        generate::generate_configuration(&self.node.store.config, self.mode, &self.keys, request.into_inner())
            .await
    }

    async fn hostname(&self, _request: Request<()>) -> Result<Response<machine::HostnameResponse>, Status> {
        Ok(host::hostname())
    }

    async fn logs(
        &self,
        request: Request<machine::LogsRequest>,
    ) -> Result<Response<Self::LogsStream>, Status> {
        audit::target(request.extensions(), || request.get_ref().id.clone());
        let place = self.streams.follow.take()?;
        let request = request.into_inner();
        let reply = match streams::is_service(&request) {
            true => streams::logs(&self.node.journal.logs, &request)?,
            false => containers::logs(&self.node.host.paths, request).await?,
        };
        Ok(holding(place, reply))
    }

    async fn logs_containers(
        &self,
        _request: Request<()>,
    ) -> Result<Response<machine::LogsContainersResponse>, Status> {
        let message = machine::LogsContainer { metadata: None, ids: self.node.journal.logs.ids() };
        Ok(Response::new(machine::LogsContainersResponse { messages: vec![message] }))
    }

    async fn dmesg(
        &self,
        request: Request<machine::DmesgRequest>,
    ) -> Result<Response<Self::DmesgStream>, Status> {
        let place = self.streams.follow.take()?;
        let reply =
            streams::dmesg(self.node.host.own_kernel_log, &self.node.journal.logs, request.into_inner())?;
        Ok(holding(place, reply))
    }

    async fn events(
        &self,
        request: Request<machine::EventsRequest>,
    ) -> Result<Response<Self::EventsStream>, Status> {
        let place = self.streams.follow.take()?;
        Ok(holding(place, streams::events(&self.node.journal.events, request.get_ref())?))
    }

    async fn service_list(
        &self,
        _request: Request<()>,
    ) -> Result<Response<machine::ServiceListResponse>, Status> {
        let message = machine::ServiceList { metadata: None, services: self.node.services.list() };
        Ok(Response::new(machine::ServiceListResponse { messages: vec![message] }))
    }

    async fn service_start(
        &self,
        request: Request<machine::ServiceStartRequest>,
    ) -> Result<Response<machine::ServiceStartResponse>, Status> {
        audit::target(request.extensions(), || request.get_ref().id.clone());
        let id = request.into_inner().id;
        let services = &self.node.services;
        services.check_api(&id, "start").map_err(|error| service_status(&error))?;
        services.start(&id).map_err(|error| service_status(&error))?;
        let message = machine::ServiceStart { metadata: None, resp: format!("Service {id:?} started") };
        Ok(Response::new(machine::ServiceStartResponse { messages: vec![message] }))
    }

    async fn service_stop(
        &self,
        request: Request<machine::ServiceStopRequest>,
    ) -> Result<Response<machine::ServiceStopResponse>, Status> {
        audit::target(request.extensions(), || request.get_ref().id.clone());
        let id = request.into_inner().id;
        let services = &self.node.services;
        services.check_api(&id, "stop").map_err(|error| service_status(&error))?;
        services.stop(&id).await.map_err(|error| service_status(&error))?;
        let message = machine::ServiceStop { metadata: None, resp: format!("Service {id:?} stopped") };
        Ok(Response::new(machine::ServiceStopResponse { messages: vec![message] }))
    }

    async fn service_restart(
        &self,
        request: Request<machine::ServiceRestartRequest>,
    ) -> Result<Response<machine::ServiceRestartResponse>, Status> {
        audit::target(request.extensions(), || request.get_ref().id.clone());
        let id = request.into_inner().id;
        let services = &self.node.services;
        services.check_api(&id, "restart").map_err(|error| service_status(&error))?;
        services.restart(&id).await.map_err(|error| service_status(&error))?;
        let message = machine::ServiceRestart { metadata: None, resp: format!("Service {id:?} restarted") };
        Ok(Response::new(machine::ServiceRestartResponse { messages: vec![message] }))
    }

    async fn version(&self, _request: Request<()>) -> Result<Response<machine::VersionResponse>, Status> {
        let platform = &self.node.host.platform;
        let message = machine::Version {
            metadata: None,
            version: Some(version::info()),
            platform: Some(machine::PlatformInfo {
                name: platform.name.clone(),
                mode: platform.mode.as_str().to_owned(),
            }),
            features: Some(machine::FeaturesInfo { rbac: self.mode == ApiMode::Configured }),
        };
        Ok(Response::new(machine::VersionResponse { messages: vec![message] }))
    }

    async fn bootstrap(
        &self,
        request: Request<machine::BootstrapRequest>,
    ) -> Result<Response<machine::BootstrapResponse>, Status> {
        etcd::bootstrap(&self.node.etcd, request.into_inner()).await
    }

    async fn containers(
        &self,
        request: Request<machine::ContainersRequest>,
    ) -> Result<Response<machine::ContainersResponse>, Status> {
        containers::containers(&self.node.host.paths, &self.node.services, request.into_inner()).await
    }

    async fn etcd_member_list(
        &self,
        request: Request<machine::EtcdMemberListRequest>,
    ) -> Result<Response<machine::EtcdMemberListResponse>, Status> {
        etcd::member_list(&self.node.etcd, request.into_inner()).await
    }

    async fn etcd_remove_member_by_id(
        &self,
        request: Request<machine::EtcdRemoveMemberByIdRequest>,
    ) -> Result<Response<machine::EtcdRemoveMemberByIdResponse>, Status> {
        etcd::remove_member(&self.node.etcd, request.into_inner()).await
    }

    async fn etcd_leave_cluster(
        &self,
        _request: Request<machine::EtcdLeaveClusterRequest>,
    ) -> Result<Response<machine::EtcdLeaveClusterResponse>, Status> {
        etcd::leave_cluster(&self.node.etcd).await
    }

    async fn etcd_forfeit_leadership(
        &self,
        _request: Request<machine::EtcdForfeitLeadershipRequest>,
    ) -> Result<Response<machine::EtcdForfeitLeadershipResponse>, Status> {
        etcd::forfeit_leadership(&self.node.etcd).await
    }

    async fn etcd_recover(
        &self,
        request: Request<tonic::Streaming<common::Data>>,
    ) -> Result<Response<machine::EtcdRecoverResponse>, Status> {
        let _place = self.streams.files.take()?;
        etcd::recover(&self.node.etcd, request.into_inner()).await
    }

    async fn etcd_alarm_list(
        &self,
        _request: Request<()>,
    ) -> Result<Response<machine::EtcdAlarmListResponse>, Status> {
        etcd::alarm_list(&self.node.etcd).await
    }

    async fn etcd_alarm_disarm(
        &self,
        _request: Request<()>,
    ) -> Result<Response<machine::EtcdAlarmDisarmResponse>, Status> {
        etcd::alarm_disarm(&self.node.etcd).await
    }

    async fn etcd_defragment(
        &self,
        _request: Request<()>,
    ) -> Result<Response<machine::EtcdDefragmentResponse>, Status> {
        etcd::defragment(&self.node.etcd).await
    }

    async fn etcd_status(
        &self,
        _request: Request<()>,
    ) -> Result<Response<machine::EtcdStatusResponse>, Status> {
        etcd::status(&self.node.etcd).await
    }

    async fn etcd_downgrade_validate(
        &self,
        request: Request<machine::EtcdDowngradeValidateRequest>,
    ) -> Result<Response<machine::EtcdDowngradeValidateResponse>, Status> {
        let version = request.into_inner().version;
        let found = etcd::downgrade(&self.node.etcd, Downgrade::Validate, &version).await?;
        let message = machine::EtcdDowngradeValidate { metadata: None, cluster_downgrade: Some(found) };
        Ok(Response::new(machine::EtcdDowngradeValidateResponse { messages: vec![message] }))
    }

    async fn etcd_downgrade_enable(
        &self,
        request: Request<machine::EtcdDowngradeEnableRequest>,
    ) -> Result<Response<machine::EtcdDowngradeEnableResponse>, Status> {
        let version = request.into_inner().version;
        let found = etcd::downgrade(&self.node.etcd, Downgrade::Enable, &version).await?;
        let message = machine::EtcdDowngradeEnable { metadata: None, cluster_downgrade: Some(found) };
        Ok(Response::new(machine::EtcdDowngradeEnableResponse { messages: vec![message] }))
    }

    async fn etcd_downgrade_cancel(
        &self,
        _request: Request<()>,
    ) -> Result<Response<machine::EtcdDowngradeCancelResponse>, Status> {
        let found = etcd::downgrade(&self.node.etcd, Downgrade::Cancel, "").await?;
        let message = machine::EtcdDowngradeCancel { metadata: None, cluster_downgrade: Some(found) };
        Ok(Response::new(machine::EtcdDowngradeCancelResponse { messages: vec![message] }))
    }

    async fn restart(
        &self,
        request: Request<machine::RestartRequest>,
    ) -> Result<Response<machine::RestartResponse>, Status> {
        containers::restart(&self.node.host.paths, &self.node.services, request.into_inner()).await
    }

    async fn rollback(
        &self,
        request: Request<machine::RollbackRequest>,
    ) -> Result<Response<machine::RollbackResponse>, Status> {
        let _ = request;
        lifecycle::rollback(&self.node).await
    }

    async fn stats(
        &self,
        request: Request<machine::StatsRequest>,
    ) -> Result<Response<machine::StatsResponse>, Status> {
        containers::stats(&self.node.host.paths, &self.node.services, request.into_inner()).await
    }

    async fn upgrade(
        &self,
        request: Request<machine::UpgradeRequest>,
    ) -> Result<Response<machine::UpgradeResponse>, Status> {
        lifecycle::upgrade(&self.node, self.mode, &request.into_inner()).await
    }

    async fn netstat(
        &self,
        request: Request<machine::NetstatRequest>,
    ) -> Result<Response<machine::NetstatResponse>, Status> {
        sockets::netstat(request.into_inner()).await
    }

    async fn meta_write(
        &self,
        request: Request<machine::MetaWriteRequest>,
    ) -> Result<Response<machine::MetaWriteResponse>, Status> {
        console::check_key(request.extensions(), request.get_ref().key)?;
        meta::write(&self.node.power, &self.node.store.meta, request.into_inner()).await
    }

    async fn meta_delete(
        &self,
        request: Request<machine::MetaDeleteRequest>,
    ) -> Result<Response<machine::MetaDeleteResponse>, Status> {
        console::check_key(request.extensions(), request.get_ref().key)?;
        meta::delete(&self.node.power, &self.node.store.meta, request.into_inner()).await
    }

    async fn image_pull(
        &self,
        request: Request<machine::ImagePullRequest>,
    ) -> Result<Response<machine::ImagePullResponse>, Status> {
        containers::image_pull(&self.node.host.paths, request.into_inner()).await
    }

    async fn etcd_snapshot(
        &self,
        _request: Request<machine::EtcdSnapshotRequest>,
    ) -> Result<Response<Self::EtcdSnapshotStream>, Status> {
        let place = self.streams.files.take()?;
        Ok(holding(place, etcd::snapshot(&self.node.etcd).await?))
    }

    async fn kubeconfig(&self, _request: Request<()>) -> Result<Response<Self::KubeconfigStream>, Status> {
        kubeconfig::kubeconfig(&self.node.store).await
    }

    async fn packet_capture(
        &self,
        request: Request<machine::PacketCaptureRequest>,
    ) -> Result<Response<Self::PacketCaptureStream>, Status> {
        let place = self.streams.captures.take()?;
        Ok(holding(place, capture::packet_capture(&self.node.store.state, request.get_ref())?))
    }

    async fn image_list(
        &self,
        request: Request<machine::ImageListRequest>,
    ) -> Result<Response<Self::ImageListStream>, Status> {
        let place = self.streams.files.take()?;
        Ok(holding(place, containers::image_list(&self.node.host.paths, request.into_inner()).await?))
    }
}
