//! The client of etcd against real members on loopback, with certificates as machines have them.

use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ichor_etcd::{AlarmKind, Client, Tls};
use ichor_live::root;
use ichor_pki::{Authority, ExtendedUsage, KeyAlgorithm, KeyUsage, Leaf};
use ichor_rpc::Endpoint;
use jiff::Timestamp;

const TTL: Duration = Duration::from_secs(10);

/// Members that are ended with the test.
struct Cluster {
    dir: tempfile::TempDir,
    tls: Tls,
    members: Vec<Running>,
}

struct Running {
    process: Child,
    client: u16,
    peer: u16,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn free_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port()
}

impl Cluster {
    fn new() -> Self {
        ichor_pki::install_provider();
        let dir = tempfile::tempdir().unwrap();
        let now = Timestamp::now();
        let ca = Authority::generate(KeyAlgorithm::EcdsaP256, "etcd", now, Authority::TEN_YEARS).unwrap();
        let leaf = Leaf {
            addresses: vec![IpAddr::from(Ipv4Addr::LOCALHOST)],
            key_usage: KeyUsage::SignatureAndEncipherment,
            extended_usage: ExtendedUsage::Both,
            ..Leaf::server("etcd")
        };
        let server = ca.issue(&leaf, now).unwrap();
        let admin = ca.issue(&Leaf::client("talos", [] as [&str; 0]), now).unwrap();
        for (file, text) in [("ca.crt", ca.crt_pem()), ("crt", &server.crt), ("key", &server.key)] {
            std::fs::write(dir.path().join(file), text).unwrap();
        }
        let tls = Tls { ca: ca.crt_pem().into(), cert: admin.crt.into(), key: admin.key.into() };
        Self { dir, tls, members: Vec::new() }
    }

    /// Starts a member; `cluster` is `initial-cluster` without the member itself.
    fn start(&mut self, state: &str, cluster: &str, peer: u16) {
        let program = root().join("build/components/etcd");
        assert!(program.exists(), "{} is missing: run `make components`", program.display());
        let number = self.members.len();
        let client = free_port();
        let file = |name: &str| self.dir.path().join(name).display().to_string();
        let url = |port: u16| format!("https://127.0.0.1:{port}");
        let own = format!("m{number}={}", url(peer));
        let cluster = if cluster.is_empty() { own } else { format!("{cluster},{own}") };
        let log = std::fs::File::create(self.dir.path().join(format!("log{number}"))).unwrap();
        let process = Command::new(program)
            .args([
                format!("--name=m{number}"),
                format!("--data-dir={}", file(&format!("data{number}"))),
                format!("--cert-file={}", file("crt")),
                format!("--key-file={}", file("key")),
                format!("--trusted-ca-file={}", file("ca.crt")),
                "--client-cert-auth=true".to_owned(),
                format!("--peer-cert-file={}", file("crt")),
                format!("--peer-key-file={}", file("key")),
                format!("--peer-trusted-ca-file={}", file("ca.crt")),
                "--peer-client-cert-auth=true".to_owned(),
                format!("--listen-client-urls={}", url(client)),
                format!("--advertise-client-urls={}", url(client)),
                format!("--listen-peer-urls={}", url(peer)),
                format!("--initial-advertise-peer-urls={}", url(peer)),
                format!("--initial-cluster={cluster}"),
                format!("--initial-cluster-state={state}"),
                // A small quota makes a full database quick to have.
                format!("--quota-backend-bytes={}", 4 << 20),
            ])
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        self.members.push(Running { process, client, peer });
    }

    fn client(&self, members: impl IntoIterator<Item = usize>) -> Client {
        let endpoint = |number: usize| Endpoint::new("127.0.0.1", self.members[number].client);
        Client::connect(members.into_iter().map(endpoint), &self.tls).unwrap()
    }
}

/// Tries until it works, for at most 20 seconds.
async fn eventually<T, F: Future<Output = Result<T, tonic::Status>>>(
    what: &str,
    mut call: impl FnMut() -> F,
) -> T {
    let began = Instant::now();
    loop {
        match call().await {
            Ok(value) => return value,
            Err(error) if began.elapsed() > Duration::from_secs(20) => panic!("{what}: {error}"),
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

async fn one_member() -> (Cluster, Client) {
    let mut cluster = Cluster::new();
    let peer = free_port();
    cluster.start("new", "", peer);
    let first = || cluster.client([0]).require_leader();
    eventually("the first member", || async { first().get("health").await }).await;
    let client = first();
    (cluster, client)
}

#[tokio::test(flavor = "multi_thread")]
async fn members_join_as_learners_vote_lead_and_go() {
    let (mut cluster, client) = one_member().await;
    client.put("a", "1").await.unwrap();
    assert_eq!(client.get("a").await.unwrap().as_deref(), Some(b"1".as_slice()));

    for number in 1..3 {
        let peer = free_port();
        let members = client.members(true).await.unwrap();
        let names: Vec<String> =
            members.iter().map(|member| format!("{}={}", member.name, member.peer_urls[0])).collect();
        let (id, all) =
            eventually("add", || client.add_learner(vec![format!("https://127.0.0.1:{peer}")])).await;
        assert_eq!(all.len(), number + 1);
        assert!(all.iter().any(|member| member.id == id && member.is_learner && member.name.is_empty()));
        let error = client.add_learner(vec!["https://127.0.0.1:1".into()]).await.unwrap_err();
        assert!(ichor_etcd::is_too_many_learners(&error), "{error}");
        cluster.start("existing", &names.join(","), peer);
        eventually("promote", || client.promote(id)).await;
        let error = client.promote(id).await.unwrap_err();
        assert!(ichor_etcd::is_not_learner(&error), "{error}");
        let joined = cluster.client([number]);
        eventually("the new member", || joined.get("a")).await;
    }

    let status = client.status().await.unwrap();
    assert!(status.version.starts_with("3.6") && status.db_size > 0, "{status:?}");
    let leader =
        client.members(true).await.unwrap().into_iter().position(|member| member.id == status.leader);
    let leader = leader.unwrap();
    let next = client.members(true).await.unwrap()[(leader + 1) % 3].id;
    let leading = eventually("the leader", || async {
        for number in 0..3 {
            let client = cluster.client([number]);
            let status = client.status().await?;
            if status.header.is_some_and(|header| header.member_id == status.leader) {
                return Ok(client);
            }
        }
        Err(tonic::Status::unavailable("nobody leads"))
    })
    .await;
    leading.move_leader(next).await.unwrap();
    assert_eq!(client.status().await.unwrap().leader, next);

    let moved = client.members(true).await.unwrap().into_iter().find(|member| member.name == "m2").unwrap();
    client
        .update_peer_urls(moved.id, vec![format!("https://127.0.0.1:{}", cluster.members[2].peer)])
        .await
        .unwrap();

    // One member dies: whoever asks several still has an answer.
    drop(cluster.members.remove(0));
    let rest = Client::connect(
        [free_port(), cluster.members[0].client, cluster.members[1].client]
            .map(|port| Endpoint::new("127.0.0.1", port)),
        &cluster.tls,
    )
    .unwrap();
    assert_eq!(eventually("the rest", || rest.get("a")).await.as_deref(), Some(b"1".as_slice()));
    let gone = rest.members(true).await.unwrap().into_iter().find(|member| member.name == "m0").unwrap();
    eventually("remove", || rest.remove(gone.id)).await;
    let error = rest.remove(gone.id).await.unwrap_err();
    assert!(ichor_etcd::is_member_not_found(&error), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_has_one_holder_and_goes_to_the_next_in_line() {
    let (_cluster, client) = one_member().await;
    let first = client.lock("lock", TTL).await.unwrap();
    assert!(first.key().starts_with("lock/"), "{}", first.key());
    assert!(client.try_lock("lock", TTL).await.unwrap().is_none());
    assert!(client.try_lock("other", TTL).await.unwrap().is_some());

    let (second, third) = (client.clone(), client.clone());
    let second = tokio::spawn(async move { second.lock("lock", TTL).await.unwrap() });
    eventually("the second waits", || async {
        match client.list("lock/").await?.len() {
            2 => Ok(()),
            _ => Err(tonic::Status::unavailable("not yet")),
        }
    })
    .await;
    let third = tokio::spawn(async move { third.lock("lock", TTL).await.unwrap() });
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!second.is_finished() && !third.is_finished());

    let began = Instant::now();
    first.unlock().await;
    let second = second.await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    assert!(!third.is_finished());
    // Dropped, it is given back as well.
    drop(second);
    let third = third.await.unwrap();

    // A lease that ends takes the lock with it, and its holder hears of it.
    let short = client.lock("short", Duration::from_secs(1)).await.unwrap();
    client.delete(short.key()).await.unwrap();
    assert!(client.try_lock("short", TTL).await.unwrap().is_some());
    third.unlock().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_is_whole_and_a_full_database_raises_an_alarm() {
    let (cluster, client) = one_member().await;
    client.put("kept", vec![b'x'; 1 << 18]).await.unwrap();
    let mut snapshot = client.snapshot().await.unwrap();
    let mut file = Vec::new();
    while let Some(part) = snapshot.next().await.unwrap() {
        file.extend_from_slice(&part);
    }
    assert_eq!(file.len() % 512, 32, "pages and a checksum");
    let path = cluster.dir.path().join("snapshot");
    std::fs::write(&path, &file).unwrap();
    check_snapshot(&path);

    assert_eq!(client.alarms().await.unwrap().1, []);
    let mut full = None;
    for number in 0..64 {
        if let Err(error) = client.put(&format!("big{number}"), vec![b'x'; 1 << 18]).await {
            full = Some(error);
            break;
        }
    }
    assert!(full.is_some_and(|error| error.message().contains("space exceeded")));
    let (id, alarms) = client.alarms().await.unwrap();
    assert_eq!((alarms.len(), alarms[0].kind, alarms[0].member), (1, AlarmKind::NoSpace, id));
    for number in 0..64 {
        client.delete(&format!("big{number}")).await.unwrap();
    }
    client.defragment().await.unwrap();
    assert_eq!(client.disarm().await.unwrap().len(), 1);
    assert_eq!(client.alarms().await.unwrap().1, []);
}

/// The original's own judgement.
fn check_snapshot(path: &Path) {
    use std::os::unix::process::CommandExt;
    let output = Command::new(root().join("build/components/etcd"))
        .arg0("etcdutl")
        .args(["snapshot", "status"])
        .arg(path)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
