//! Compiles the service packages to Rust, without `protoc`.
//!
//! The packages of resource specs are not compiled: `ichor-resource` describes each spec once, in
//! Rust, and a test there holds it against the same `.proto` files.

const SERVICES: &[&str] = &[
    "common/common.proto",
    "machine/machine.proto",
    "cluster/cluster.proto",
    "inspect/inspect.proto",
    "storage/storage.proto",
    "time/time.proto",
    "security/security.proto",
    "v1alpha1/state.proto",
    "v1alpha1/meta.proto",
    "google/rpc/status.proto",
    "discovery/server.proto",
    "discovery/client.proto",
    "containerd/containerd.proto",
    "cri/cri.proto",
    "etcd/etcd.proto",
    "ichor/node.proto",
    "ichor/audit.proto",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(SERVICES, ["proto"])?;
    tonic_prost_build::configure()
        .bytes(".common.Data.bytes")
        .bytes(".etcd.SnapshotResponse.blob")
        .bytes(".cosi.resource.Spec.proto_spec")
        .build_transport(false)
        .codec_path("crate::codec::Codec")
        .compile_fds(descriptors)?;
    Ok(())
}
