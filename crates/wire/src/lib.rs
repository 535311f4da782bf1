//! The wire formats: our `.proto` files and the code made from them.
//!
//! Names, field numbers and types are facts shared with every client; `tests/api.rs` holds each of
//! them against the list of the original. Package `ichor` is ours alone.

// The generated code carries the comments of the .proto files, not a doc on every field.
#![allow(missing_docs, clippy::all)]

pub mod codec;
pub mod raw;
pub mod serve;

/// Types shared by all services.
pub mod common {
    tonic::include_proto!("common");
}
/// The machine API.
pub mod machine {
    tonic::include_proto!("machine");
}
/// Cluster health.
pub mod cluster {
    tonic::include_proto!("cluster");
}
/// The controller graph.
pub mod inspect {
    tonic::include_proto!("inspect");
}
/// Disks and wiping.
pub mod storage {
    tonic::include_proto!("storage");
}
/// Clock and time servers.
pub mod time {
    tonic::include_proto!("time");
}
/// Certificates for joining workers.
pub mod securityapi {
    tonic::include_proto!("securityapi");
}
/// Resources and the State service.
pub mod cosi {
    /// The State service and its messages.
    pub mod resource {
        tonic::include_proto!("cosi.resource");
        /// Specs of the meta types.
        pub mod meta {
            tonic::include_proto!("cosi.resource.meta");
        }
    }
}
/// What only this system answers.
pub mod ichor {
    /// Questions about one node.
    pub mod node {
        tonic::include_proto!("ichor.node");
    }
}
/// What a node asks of containerd.
pub mod containerd {
    tonic::include_proto!("containerd");
}
/// What a node asks of the Kubernetes container runtime interface.
pub mod cri {
    tonic::include_proto!("runtime.v1");
}
/// What a node asks of etcd.
pub mod etcd {
    tonic::include_proto!("etcd");
}
/// How nodes of a cluster find each other.
pub mod discovery {
    /// What a discovery service is asked.
    pub mod server {
        tonic::include_proto!("sidero.discovery.server");
    }
    /// What nodes tell each other through it.
    pub mod client {
        tonic::include_proto!("sidero.discovery.client");
    }
}
/// Google's common messages.
pub mod google {
    /// The status that rides on gRPC errors.
    pub mod rpc {
        tonic::include_proto!("google.rpc");
    }
}
