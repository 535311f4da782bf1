//! A member with root on it that says it is a control plane: who joins through it trusts nobody but the authority of its own
//! configuration.

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::mpsc;
use std::time::Duration;

use ichor_live::{Fleet, SOON, wait};
use ichor_pki::{Authority, KeyAlgorithm, KeyPair, Leaf};
use ichor_testkit::FakeTrustd;
use tonic::Code;

use crate::door::{certificate, channel, knock, now};
use crate::{create, run};

const OCTET: u8 = 37;
/// Where trust is served.
const PORT: u16 = 50001;
/// A method that every administrator may call.
const VERSION: &str = "/machine.MachineService/Version";

/// The token of the cluster, from the configuration of its first machine.
fn token(fleet: &Fleet) -> String {
    let text = fleet.soon(&["-n", &fleet.address(0), "read", "/system/state/config.yaml"]).unwrap();
    let mut lines = text.lines().skip_while(|line| *line != "machine:");
    lines.find_map(|line| line.trim().strip_prefix("token: ")).unwrap().to_owned()
}

/// Serves trust at the address of a machine, in its network. The service ends with the process.
fn serve(fleet: &Fleet, address: &str, identity: KeyPair, signer: Authority) -> FakeTrustd {
    let token = token(fleet);
    let (sender, receiver) = mpsc::channel();
    for machine in fleet.daemons("init") {
        let net = File::open(format!("/proc/{}/ns/net", machine.pid)).unwrap();
        let (address, token, sender) = (address.to_owned(), token.clone(), sender.clone());
        let identity = KeyPair { crt: identity.crt.clone(), key: identity.key.clone() };
        let signer = Authority::from_pem(signer.crt_pem(), signer.key_pem()).unwrap();
        std::thread::spawn(move || {
            let kind = rustix::thread::LinkNameSpaceType::Network;
            rustix::thread::move_into_link_name_space(net.as_fd(), Some(kind)).unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                // Only the machine that has the address can listen on it.
                let Ok(listener) = tokio::net::TcpListener::bind((address.as_str(), PORT)).await else {
                    return;
                };
                let _ = sender.send(FakeTrustd::serve(listener, &identity, &token, signer));
                std::future::pending::<()>().await;
            });
        });
    }
    receiver.recv_timeout(Duration::from_secs(30)).expect("a machine with this address")
}

/// Whether a machine lets an administrator of an authority in: whoever knocks there hears that the message cannot be read.
fn lets_in(fleet: &Fleet, machine: u8, real: &Authority, of: &Authority) -> bool {
    let admin = certificate(of, &["os:admin"]);
    let channel = channel(&fleet.loopback(machine), real, Some(&admin));
    let code = run(async { knock(&channel, VERSION, &[]).await.0.code() });
    matches!(code, Code::Ok | Code::Internal | Code::InvalidArgument)
}

#[test]
fn a_lying_member_cannot_make_a_worker_trust_its_authority() {
    let fleet = create("liar", OCTET, 1);
    let (real, address) = (fleet.authority(), fleet.address(1));
    let rogue = Authority::generate(KeyAlgorithm::Ed25519, "talos", now(), Authority::TEN_YEARS).unwrap();
    // What root on the worker has: a certificate of the cluster for its own address, and the token.
    let leaf = Leaf::server("liar").with_names([""; 0], [address.parse().unwrap()]);
    let identity = real.issue(&leaf, now()).unwrap();
    let copy = |authority: &Authority| Authority::from_pem(authority.crt_pem(), authority.key_pem()).unwrap();
    let liar = serve(&fleet, &address, identity, copy(&rogue));

    // A worker that knows no other endpoint, as when the liar has taken the address over.
    let patch = format!("cluster: {{controlPlane: {{endpoint: \"https://{address}:6443\"}}}}");
    fleet
        .ok(&[
            "cluster",
            "add",
            "--name",
            fleet.name(),
            "--workers",
            "1",
            "--wait=false",
            "--config-patch",
            &patch,
        ])
        .unwrap();
    let console = fleet.home().join(format!(".talos/clusters/{0}/{0}-worker-2.log", fleet.name()));
    wait("the refusal on the console", SOON, || {
        let text = std::fs::read_to_string(&console).unwrap_or_default();
        text.contains(&format!("{address}: its certificate was refused")).then_some(())
    })
    .unwrap();
    assert!(liar.asked() > 0, "the liar was asked");
    assert!(!lets_in(&fleet, 2, &real, &rogue), "the liar's administrator got in");

    // Once it signs with the authority that the configuration names, the worker joins, and still trusts no other.
    liar.sign_with(copy(&real));
    wait("the worker", SOON, || lets_in(&fleet, 2, &real, &real).then_some(())).unwrap();
    assert!(!lets_in(&fleet, 2, &real, &rogue), "the liar's administrator got in later");
    fleet.destroy().unwrap();
}
