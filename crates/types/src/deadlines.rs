//! How long everything on the way of an API call may take: the one table of dials, handshakes, request bodies and calls.
//!
//! Pauses between attempts, intervals and lifetimes are not deadlines; they stand beside the code that they pace.

use std::time::Duration;

const fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

const fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

// Dials: name resolution, TCP connection and TLS handshake, as a client sees them.

/// A name resolves within this, or not at all.
pub const RESOLVE: Duration = seconds(10);
/// A connection between daemons, and from a gateway to another node.
pub const DIAL: Duration = seconds(20);
/// A connection of a client to one endpoint.
pub const DIAL_ENDPOINT: Duration = seconds(10);
/// How long an endpoint may be silent before a client tries the next one beside it.
pub const DIAL_ENDPOINT_STAGGER: Duration = millis(250);
/// A connection to an API server of Kubernetes: they are near.
pub const DIAL_KUBERNETES: Duration = seconds(5);
/// A connection to a member of etcd. It listens before it serves; what it tells the others of itself first may take it
/// seven seconds and a second try.
pub const DIAL_ETCD: Duration = seconds(10);
/// How much later the next member of etcd is dialed.
pub const DIAL_ETCD_STAGGER: Duration = millis(150);
/// A TCP connection to an HTTP server anywhere.
pub const DIAL_HTTP: Duration = seconds(30);

// Connections, as a server sees them.

/// A TLS handshake.
pub const HANDSHAKE: Duration = seconds(10);
/// From the handshake to the first HTTP/2 bytes.
pub const PREFACE: Duration = seconds(10);
/// The same for strangers at trustd.
pub const PREFACE_TRUSTD: Duration = seconds(5);
/// From the connection to the first call that is not refused, at trustd.
pub const FIRST_CALL_TRUSTD: Duration = seconds(10);
/// The same in maintenance mode.
pub const FIRST_CALL_MAINTENANCE: Duration = seconds(30);
/// How long calls that run may go on when a server stops. Unary calls end within this; streams that follow something
/// would never end by themselves, and a machine that goes down must not wait for them.
pub const DRAIN: Duration = seconds(1);
/// A peer that does not answer a ping for this long is gone.
pub const PING: Duration = seconds(20);
/// A server of HTTP that sends nothing of its response for this long is gone.
pub const HTTP_STALL: Duration = seconds(60);

// Request bodies, as a server sees them; longer ones get more time by their length.

/// A body waits this long for room.
pub const BODY_ROOM: Duration = seconds(10);
/// The same at trustd, whose callers ask another control plane then.
pub const BODY_ROOM_TRUSTD: Duration = seconds(2);
/// A body of which nothing comes for this long may lose its room to others.
pub const BODY_STALL: Duration = seconds(1);
/// The same at trustd.
pub const BODY_STALL_TRUSTD: Duration = millis(500);
/// A whole body on the machine socket, where configurations and snapshots come.
pub const BODY_MACHINE: Duration = seconds(30);
/// A whole body of anybody else.
pub const BODY: Duration = seconds(10);
/// A whole body at trustd.
pub const BODY_TRUSTD: Duration = seconds(5);

// Calls.

/// A call of the Kubernetes API, its whole answer included.
pub const CALL_KUBERNETES: Duration = seconds(30);
/// A watch of the Kubernetes API sends a bookmark about every minute; one that says nothing for longer is gone.
pub const WATCH_KUBERNETES_SILENCE: Duration = seconds(150);
/// A call to etcd that answers once.
pub const CALL_ETCD: Duration = seconds(15);
/// A change of the members of etcd.
pub const CALL_ETCD_CHANGE: Duration = seconds(2);
/// Giving a lock back.
pub const CALL_ETCD_UNLOCK: Duration = seconds(30);
/// A defragmentation stops the member for as long as it takes.
pub const CALL_ETCD_DEFRAGMENT: Duration = seconds(300);
/// A call to containerd that is not a pull.
pub const CALL_CONTAINERD: Duration = seconds(10);
/// A whole pull.
pub const CALL_CONTAINERD_PULL: Duration = seconds(20 * 60);
/// The first words with a discovery service.
pub const CALL_DISCOVERY_HELLO: Duration = seconds(10);
/// Telling a discovery service of this node.
pub const CALL_DISCOVERY_PUSH: Duration = seconds(30);
/// A certificate of one control plane.
pub const CALL_TRUSTD: Duration = seconds(5);

// A caller that gives up earlier than the one it waits for would never see why that failed.
const _: () = {
    assert!(BODY_ROOM_TRUSTD.as_millis() < CALL_TRUSTD.as_millis());
    assert!(DIAL_KUBERNETES.as_millis() < CALL_KUBERNETES.as_millis());
    assert!(DIAL_ETCD.as_millis() < CALL_ETCD.as_millis());
    assert!(DIAL_ENDPOINT_STAGGER.as_millis() < DIAL_ENDPOINT.as_millis());
    assert!(DIAL_ETCD_STAGGER.as_millis() < DIAL_ETCD.as_millis());
    assert!(BODY_STALL.as_millis() < BODY_ROOM.as_millis());
    assert!(BODY_STALL_TRUSTD.as_millis() < BODY_ROOM_TRUSTD.as_millis());
};
