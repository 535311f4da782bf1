//! The client of etcd against real members on loopback, with certificates as machines have them.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ichor_etcd::{AlarmKind, Client, Tls};
use ichor_live::root;
use ichor_pki::{Authority, ExtendedUsage, KeyAlgorithm, KeyUsage, Leaf};
use ichor_rpc::Endpoint;
use jiff::Timestamp;

const TTL: Duration = Duration::from_secs(60);
/// Longest wait for what takes a moment.
const SOON: Duration = Duration::from_secs(120);

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
    ichor_live::free_port().unwrap()
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

/// Tries until it works, for a bounded time.
async fn eventually<T, F: Future<Output = Result<T, tonic::Status>>>(
    what: &str,
    mut call: impl FnMut() -> F,
) -> T {
    let began = Instant::now();
    loop {
        match call().await {
            Ok(value) => return value,
            Err(error) if began.elapsed() > SOON => panic!("{what}: {error}"),
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

/// Tries until it is refused for the right reason; success is none.
async fn refused<T, F: Future<Output = Result<T, tonic::Status>>>(
    what: &str,
    right: impl Fn(&tonic::Status) -> bool,
    mut call: impl FnMut() -> F,
) {
    let began = Instant::now();
    loop {
        match call().await {
            Ok(_) => panic!("{what} was not refused"),
            Err(error) if right(&error) => return,
            Err(error) => assert!(began.elapsed() < SOON, "{what}: {error}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// How the peer address of a member ends.
fn url_end(cluster: &Cluster, number: usize) -> String {
    format!(":{}", cluster.members[number].peer)
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
    eventually("put", || client.put("a", "1")).await;
    assert_eq!(eventually("get", || client.get("a")).await.as_deref(), Some(b"1".as_slice()));

    for number in 1..3 {
        let peer = free_port();
        let members = eventually("members", || client.members(true)).await;
        let names: Vec<String> =
            members.iter().map(|member| format!("{}={}", member.name, member.peer_urls[0])).collect();
        let (id, all) =
            eventually("add", || client.add_learner(vec![format!("https://127.0.0.1:{peer}")])).await;
        assert_eq!(all.len(), number + 1);
        assert!(all.iter().any(|member| member.id == id && member.is_learner && member.name.is_empty()));
        refused("one learner more", ichor_etcd::is_too_many_learners, || {
            client.add_learner(vec!["https://127.0.0.1:1".into()])
        })
        .await;
        cluster.start("existing", &names.join(","), peer);
        // An answer that was lost makes the next one a refusal.
        eventually("promote", || async {
            client.promote(id).await.map(drop).or_else(|error| match ichor_etcd::is_not_learner(&error) {
                true => Ok(()),
                false => Err(error),
            })
        })
        .await;
        refused("promoted twice", ichor_etcd::is_not_learner, || client.promote(id)).await;
        let joined = cluster.client([number]);
        eventually("the new member", || joined.get("a")).await;
    }

    let status = eventually("status", || client.status()).await;
    assert!(status.version.starts_with("3.6") && status.db_size > 0, "{status:?}");
    let members = eventually("members", || client.members(true)).await;
    let leader = members.iter().position(|member| member.id == status.leader);
    let next = members[(leader.unwrap_or(0) + 1) % 3].id;
    // Members that were without their leader for a moment choose by themselves; then it is moved again.
    eventually("another leader", || async {
        for number in 0..3 {
            let client = cluster.client([number]);
            let status = client.status().await?;
            if status.leader == next {
                return Ok(());
            }
            if status.header.is_some_and(|header| header.member_id == status.leader) {
                client.move_leader(next).await?;
            }
        }
        Err(tonic::Status::unavailable("the leader is another one"))
    })
    .await;

    let moved = members.into_iter().find(|member| member.peer_urls[0].ends_with(&url_end(&cluster, 2)));
    let (moved, urls) = (moved.unwrap(), vec![format!("https://127.0.0.1{}", url_end(&cluster, 2))]);
    eventually("urls", || client.update_peer_urls(moved.id, urls.clone())).await;

    // One member dies: whoever asks several still has an answer.
    drop(cluster.members.remove(0));
    let rest = Client::connect(
        [free_port(), cluster.members[0].client, cluster.members[1].client]
            .map(|port| Endpoint::new("127.0.0.1", port)),
        &cluster.tls,
    )
    .unwrap();
    assert_eq!(eventually("the rest", || rest.get("a")).await.as_deref(), Some(b"1".as_slice()));
    let all = eventually("members", || rest.members(true)).await;
    let gone = all.into_iter().find(|member| member.name == "m0").unwrap();
    eventually("remove", || async {
        rest.remove(gone.id).await.map(drop).or_else(|error| match ichor_etcd::is_member_not_found(&error) {
            true => Ok(()),
            false => Err(error),
        })
    })
    .await;
    refused("removed twice", ichor_etcd::is_member_not_found, || rest.remove(gone.id)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_has_one_holder_and_goes_to_the_next_in_line() {
    let (_cluster, client) = one_member().await;
    let first = eventually("lock", || client.lock("lock", TTL)).await;
    assert!(first.key().starts_with("lock/"), "{}", first.key());
    assert!(eventually("a second lock", || client.try_lock("lock", TTL)).await.is_none());
    assert!(eventually("another lock", || client.try_lock("other", TTL)).await.is_some());

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
    // Not by the end of a lease.
    assert!(began.elapsed() < TTL / 2, "{:?}", began.elapsed());
    assert!(!third.is_finished());
    // Dropped, it is given back as well.
    drop(second);
    let third = third.await.unwrap();

    // A lease that ends takes the lock with it, and its holder hears of it.
    let short = eventually("lock", || client.lock("short", Duration::from_secs(5))).await;
    eventually("delete", || client.delete(short.key())).await;
    eventually("the lock is free", || async {
        let held = client.try_lock("short", TTL).await?;
        held.ok_or_else(|| tonic::Status::unavailable("held"))
    })
    .await;
    third.unlock().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_is_whole_and_a_full_database_raises_an_alarm() {
    let (cluster, client) = one_member().await;
    eventually("put", || client.put("kept", vec![b'x'; 1 << 18])).await;
    let mut snapshot = client.snapshot().await.unwrap();
    let mut file = Vec::new();
    while let Some(part) = snapshot.next().await.unwrap() {
        file.extend_from_slice(&part);
    }
    assert_eq!(file.len() % 512, 32, "pages and a checksum");
    let path = cluster.dir.path().join("snapshot");
    std::fs::write(&path, &file).unwrap();
    check_snapshot(&path);

    assert_eq!(eventually("alarms", || client.alarms()).await.1, []);
    let mut full = String::new();
    for number in 0..64 {
        // A slow disk may time out first.
        if let Err(error) = client.put(&format!("big{number}"), vec![b'x'; 1 << 18]).await {
            full = error.message().to_owned();
            if full.contains("space exceeded") {
                break;
            }
        }
    }
    assert!(full.contains("space exceeded"), "{full}");
    let (id, alarms) = eventually("an alarm", || async {
        let found = client.alarms().await?;
        if found.1.is_empty() { Err(tonic::Status::unavailable("none")) } else { Ok(found) }
    })
    .await;
    assert_eq!((alarms.len(), alarms[0].kind, alarms[0].member), (1, AlarmKind::NoSpace, id));
    for number in 0..64 {
        let key = format!("big{number}");
        eventually("delete", || client.delete(&key)).await;
    }
    eventually("defragment", || client.defragment()).await;
    assert_eq!(eventually("disarm", || client.disarm()).await.len(), 1);
    assert_eq!(eventually("alarms", || client.alarms()).await.1, []);
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
