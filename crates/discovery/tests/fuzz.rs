//! What other nodes tell arrives through a service that may be anybody's: sealed data is opened or refused, and what is
//! opened holds only addresses and ports that there are.

use ichor_discovery::affiliate::{open_endpoint, seal_endpoint};
use ichor_discovery::{Affiliate, ControlPlane, KubeSpan};
use ichor_fuzz::{Target, shape};
use ichor_pki::seal::SealKey;

fn key() -> SealKey {
    SealKey::new(&[7; 32]).unwrap()
}

fn node() -> Affiliate {
    Affiliate {
        node_id: "n".into(),
        addresses: vec!["10.5.0.2".parse().unwrap(), "2001:db8::2".parse().unwrap()],
        hostname: "a.example".into(),
        nodename: "a".into(),
        machine_type: "controlplane".into(),
        operating_system: "Talos (v1.12.1)".into(),
        kubespan: Some(KubeSpan {
            public_key: "key".into(),
            address: "fd00::1".parse().unwrap(),
            additional_addresses: vec!["10.244.1.0/24".parse().unwrap()],
        }),
        control_plane: Some(ControlPlane { api_server_port: 6443 }),
        endpoints: Vec::new(),
    }
}

/// What a member says, who has the key and means no good.
#[test]
fn opened_affiliates() {
    let key = key();
    let plain = key.open(&node().seal(&key).unwrap()).unwrap();
    let seeds = [plain, Vec::new()];
    Target::binary("discovery-affiliate").seeds(seeds).rounds(10_000).run(|input| {
        match Affiliate::open(&key, &key.seal(input).unwrap(), &[]) {
            Ok(read) => {
                let again = Affiliate::open(&key, &read.seal(&key).unwrap(), &[])
                    .expect("what was read is read again");
                assert_eq!(again, read);
                format!("{} {}", read.addresses.len().min(4), read.kubespan.is_some())
            }
            Err(error) => shape(&error.to_string()),
        }
    });
}

/// What a service says, which has no key.
#[test]
fn sealed_affiliates() {
    let key = key();
    let endpoint = seal_endpoint(&key, "10.5.0.2:51820".parse().unwrap()).unwrap();
    let sealed = node().seal(&key).unwrap();
    let good = sealed.clone();
    Target::binary("discovery-sealed").seeds([sealed, endpoint, vec![0; 12], Vec::new()]).rounds(10_000).run(
        |input| {
            let endpoints = [input.to_vec(), input.iter().take(16).copied().collect()];
            let opened = Affiliate::open(&key, input, &endpoints);
            assert!(opened.is_err() || input == good, "opened without having been sealed");
            match open_endpoint(&key, input) {
                Ok(endpoint) => format!("{} {}", opened.is_ok(), endpoint.is_ipv4()),
                Err(error) => shape(&error.to_string()),
            }
        },
    );
}
