//! The signer from end to end: secrets from a state, TLS, token, certificate.

use std::time::{Duration, Instant};

use ichor_pki::CertInfo;
use ichor_resource::secrets::OSRootSecret;
use ichor_wire::discovery::server::AffiliateUpdateRequest;
use ichor_wire::discovery::server::cluster_client::ClusterClient;
use tonic::Code;

use crate::support::{OWNER, request, start};

#[tokio::test]
async fn a_worker_with_the_token_gets_its_certificate() {
    tokio::task::LocalSet::new().run_until(scenario()).await;
}

async fn scenario() {
    let trustd = start().await;
    let csr = request();
    let signed = trustd.ready().await;
    let info = CertInfo::parse(&signed.crt).expect("certificate");
    assert_eq!((info.common_name.as_str(), info.organizations.len()), ("worker", 0));
    assert_eq!(signed.ca, trustd.authority.crt_pem().as_bytes());

    let status = trustd.ask("wrong", &csr).await.expect_err("wrong token");
    assert_eq!((status.code(), status.message()), (Code::Unknown, "Unauthenticated"));
    let status = trustd.ask("abc.def", "nonsense").await.expect_err("no request");
    assert_eq!(status.code(), Code::InvalidArgument);

    // A new token counts at once.
    trustd
        .state
        .modify::<OSRootSecret>("secrets", "os", OWNER, |root| root.token = "new.token".to_owned())
        .expect("new token");
    let start = Instant::now();
    while trustd.ask("new.token", &csr).await.is_err() {
        assert!(start.elapsed() < Duration::from_secs(60), "the new token is not taken");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(trustd.ask("abc.def", &csr).await.expect_err("old token").code(), Code::Unknown);
}

#[tokio::test]
async fn a_token_holder_reaches_its_own_cluster_and_fills_no_others() {
    tokio::task::LocalSet::new().run_until(clusters()).await;
}

async fn clusters() {
    let trustd = start().await;
    trustd.ready().await;
    let mut client = ClusterClient::new(trustd.channel());
    let mut tell = async |cluster: &str, token: &str| {
        let mut request = tonic::Request::new(AffiliateUpdateRequest {
            cluster_id: cluster.to_owned(),
            affiliate_id: "node".to_owned(),
            affiliate_data: Some(vec![1]),
            ..AffiliateUpdateRequest::default()
        });
        request.metadata_mut().insert("token", token.parse().expect("token"));
        client.affiliate_update(request).await.map(drop).map_err(|status| status.code())
    };
    let start = Instant::now();
    while tell("cluster", "abc.def").await == Err(Code::Unavailable) {
        assert!(start.elapsed() < Duration::from_secs(60), "the id of the cluster is not learned");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(tell("cluster", "abc.def").await, Ok(()));
    assert_eq!(tell("cluster", "wrong").await, Err(Code::Unknown));
    for number in 0..20 {
        assert_eq!(tell(&format!("other {number}"), "abc.def").await, Err(Code::PermissionDenied));
    }
}
