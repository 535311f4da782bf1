//! `etcd backup` and `etcd fetch`: copies of the database in a directory or a bucket, sealed, and back again.

use std::fs::File;
use std::io::{BufReader, BufWriter, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;

use super::etcd_snapshot::{Part, SNAPSHOT_MAX, check, create_private, describe, save};
use crate::age::{self, Identity, Recipient};
use crate::failure::{Context, Failure};
use crate::files;
use crate::parse::Call;
use crate::print;
use crate::s3::{Bucket, Given, Place, Settings};
use crate::session::{Session, block_on};
use crate::table::{Args, Command, Complete, Flag};

/// The endings of backups: plain, made smaller, sealed.
const ENDING: &str = ".snap";
const SMALLER: &str = ".zst";
const SEALED: &str = ".age";
/// What compressed files begin with.
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// A level that costs little: most of a database is text.
const ZSTD_LEVEL: i32 = 3;

pub(super) const S3_ENDPOINT: Flag =
    Flag::text("s3-endpoint", "address of the S3 service, http:// for none of TLS (CUSTOM_S3_ENDPOINT)");
pub(super) const S3_REGION: Flag = Flag::text("s3-region", "region of the bucket (AWS_REGION)");
pub(super) const S3_PATH_STYLE: Flag =
    Flag::switch("s3-path-style", "put the bucket into the path; the default for services other than AWS");
pub(super) const AGE_IDENTITY: Flag =
    Flag::text("age-identity", "file of the identities that open a sealed backup").complete(Complete::File);

/// `etcd backup`.
pub(super) static BACKUP: Command = Command {
    name: "backup",
    about: "Save the database to a directory or a bucket, again and again if asked, and keep the newest copies",
    long: "Saves the database to a DIRECTORY or to s3://BUCKET/PREFIX as <cluster>-<time>.snap. With recipients the\n\
           copy is sealed with age and ends in .snap.age; what goes to a bucket must be, unless --no-encryption says\n\
           otherwise. With --every it goes on until it is stopped; a copy that fails is told and tried again after a\n\
           minute. With --keep older copies of the same cluster are removed, never before a new one is whole, and\n\
           nothing else is touched. The role os:etcd:backup is enough; without nodes the endpoint itself is asked.\n\n\
           Instead of flags the variables BUCKET, S3_PREFIX, CLUSTER_NAME, CUSTOM_S3_ENDPOINT, AWS_REGION,\n\
           AGE_X25519_PUBLIC_KEY, DISABLE_ENCRYPTION and ENABLE_COMPRESSION may be set. The keys of the bucket are\n\
           AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or those of ~/.aws/credentials.",
    examples: &[
        "etcd backup -n 10.5.0.2 /backup",
        "etcd backup -n 10.5.0.2 --every 6h --keep 28 --age-recipient age1... s3://backups/prod",
    ],
    args: Args::between("[directory | s3://bucket/prefix]", 0, 1).complete(&[Complete::File]),
    flags: &[
        Flag::list("age-recipient", "seal copies for these recipients, age1... (AGE_X25519_PUBLIC_KEY)"),
        Flag::switch("compress", "make copies smaller, with zstd (ENABLE_COMPRESSION)"),
        Flag::duration("every", "0s", "make another copy after this time"),
        Flag::int("keep", "0", "keep this many copies; 0 keeps all"),
        Flag::switch(
            "no-encryption",
            "let copies in a bucket be readable for everybody who reads the bucket",
        ),
        S3_ENDPOINT,
        S3_PATH_STYLE,
        S3_REGION,
    ],
    run: Some(backup),
    ..Command::EMPTY
};

/// `etcd fetch`.
pub(super) static FETCH: Command = Command {
    name: "fetch",
    about: "Turn a backup into a plain snapshot",
    long: "Takes a backup from a file or from s3://BUCKET/KEY, opens it, checks it and writes it as a plain snapshot.\n\
           An address that ends in a slash stands for the newest backup there.",
    examples: &[
        "etcd fetch --age-identity key.txt s3://backups/prod/ db.snapshot",
        "etcd fetch --age-identity key.txt prod-2026-01-13T06:00:00Z.snap.age db.snapshot",
    ],
    args: Args::between("<source> <path>", 2, 2).complete(&[Complete::File]),
    flags: &[AGE_IDENTITY, S3_ENDPOINT, S3_PATH_STYLE, S3_REGION],
    run: Some(fetch),
    ..Command::EMPTY
};

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Where copies go.
enum Target {
    Directory(PathBuf),
    Bucket(Bucket, String),
}

/// How copies are made.
struct Plan {
    cluster: String,
    keep: usize,
    recipients: Vec<Recipient>,
    compress: bool,
}

fn bucket(call: &Call, name: &str) -> Result<Bucket, Failure> {
    let given = Given {
        endpoint: call.some_text("s3-endpoint"),
        region: call.some_text("s3-region"),
        path_style: call.given("s3-path-style").then(|| call.on("s3-path-style")),
    };
    let read = |path: &str| std::fs::read_to_string(path).ok();
    Ok(Bucket::new(Settings::resolve(name, given, &variable, &read)?))
}

impl Target {
    fn of(call: &Call, cluster: &str) -> Result<Self, Failure> {
        let place = match (call.args.first(), variable("BUCKET")) {
            (Some(given), _) => Place::parse(given).transpose()?,
            (None, Some(bucket)) => Some(Place::new(&bucket, "")?),
            (None, None) => {
                return Err(Failure::new("no place for the copies: give a directory or s3://BUCKET/PREFIX")
                    .hint("or set BUCKET"));
            }
        };
        let Some(place) = place else {
            let directory = PathBuf::from(call.arg(0));
            std::fs::create_dir_all(&directory).context(format!("make {}", directory.display()))?;
            return Ok(Self::Directory(directory));
        };
        let prefix = Some(place.key).filter(|key| !key.is_empty()).or_else(|| variable("S3_PREFIX"));
        let prefix = prefix.unwrap_or_else(|| cluster.to_owned());
        Ok(Self::Bucket(bucket(call, &place.bucket)?, prefix.trim_matches('/').to_owned()))
    }
}

impl Plan {
    fn of(call: &Call) -> Result<Self, Failure> {
        let cluster = match (call.some_text("context"), variable("CLUSTER_NAME")) {
            (Some(context), _) => context.to_owned(),
            (None, Some(name)) => name,
            (None, None) => crate::profile::open(&call.connection())?.0.context,
        };
        let set = |name: &str| variable(name).as_deref() == Some("true");
        let mut keys = call.list("age-recipient");
        if keys.is_empty() {
            keys.extend(variable("AGE_X25519_PUBLIC_KEY"));
        }
        let open = call.on("no-encryption") || set("DISABLE_ENCRYPTION");
        let recipients = match open {
            true => Vec::new(),
            false => keys.iter().map(|key| Recipient::parse(key)).collect::<Result<_, _>>().plain()?,
        };
        Ok(Self {
            // A cluster may be called anything; a file may not.
            cluster: cluster.replace('/', "-"),
            keep: usize::try_from(call.int("keep")).unwrap_or(0),
            recipients,
            compress: call.on("compress") || set("ENABLE_COMPRESSION"),
        })
    }
}

fn backup(call: &Call) -> Result<(), Failure> {
    /// Before a copy that failed is tried again.
    const AGAIN: Duration = Duration::from_secs(60);
    let every = call.duration("every");
    let plan = Plan::of(call)?;
    let mut target = Target::of(call, &plan.cluster)?;
    let sealed = !plan.recipients.is_empty();
    let open = call.on("no-encryption") || variable("DISABLE_ENCRYPTION").as_deref() == Some("true");
    if matches!(target, Target::Bucket(..)) && !sealed && !open {
        return Err(Failure::new(
            "a copy of the database holds every secret of the cluster, and is not sealed",
        )
        .hint("name who may open it with --age-recipient age1..., or say --no-encryption"));
    }
    block_on(async {
        loop {
            let pause = match backup_once(call, &plan, &mut target).await {
                Ok(()) if every.is_zero() => return Ok(()),
                Ok(()) => every,
                Err(failure) if every.is_zero() => return Err(failure),
                Err(failure) => {
                    eprintln!("{failure}");
                    every.min(AGAIN)
                }
            };
            tokio::time::sleep(pause).await;
        }
    })
}

async fn backup_once(call: &Call, plan: &Plan, target: &mut Target) -> Result<(), Failure> {
    let session = Session::open_near(&call.connection()).await?;
    let stem = stem(&plan.cluster, Timestamp::now());
    match target {
        Target::Directory(directory) => {
            let (name, size) = make(plan, &session, directory, &stem).await?;
            let path = directory.join(&name);
            print(&format!("etcd snapshot saved to {:?} ({size} bytes)\n", path.display().to_string()))?;
            let found = std::fs::read_dir(&*directory).context(format!("read {}", directory.display()))?;
            let names = found.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
            for old in outdated(names, &plan.cluster, plan.keep) {
                let path = directory.join(old);
                std::fs::remove_file(&path).context(format!("remove {}", path.display()))?;
            }
        }
        Target::Bucket(bucket, prefix) => {
            // It is made here first: an object is there whole or not at all.
            let work = Work::make()?;
            let (name, size) = make(plan, &session, &work.0, &stem).await?;
            let key = format!("{prefix}/{name}");
            bucket.put(&key, &work.0.join(&name)).await?;
            print(&format!("etcd snapshot saved to {:?} ({size} bytes)\n", bucket.name(&key)))?;
            if plan.keep > 0 {
                let keys = bucket.list(&format!("{prefix}/{}-", plan.cluster)).await?;
                for old in outdated_keys(keys, prefix, &plan.cluster, plan.keep) {
                    bucket.delete(&old).await?;
                }
            }
        }
    }
    Ok(())
}

/// A directory for the time of one copy, for its owner alone.
struct Work(PathBuf);

impl Work {
    fn make() -> Result<Self, Failure> {
        use std::os::unix::fs::DirBuilderExt as _;
        let unique = ichor_pki::random::token(8, 8).plain()?;
        let path = std::env::temp_dir().join(format!("ichorctl-backup-{unique}"));
        std::fs::DirBuilder::new().mode(0o700).create(&path).context(format!("make {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Makes one copy in a directory and gives its name and size; nothing else stays there.
async fn make(plan: &Plan, session: &Session, dir: &Path, stem: &str) -> Result<(String, u64), Failure> {
    let mut name = stem.to_owned();
    let plain = dir.join(&name);
    save(&session.near(), &session.label, &plain).await?;
    let mut last = Part(plain);
    if plan.compress {
        name += SMALLER;
        last = step(last, dir.join(&name), |from, to| {
            zstd::stream::copy_encode(BufReader::new(from), to, ZSTD_LEVEL).context("compress")
        })?;
    }
    if !plan.recipients.is_empty() {
        name += SEALED;
        last = step(last, dir.join(&name), |mut from, to| {
            age::encrypt(&plan.recipients, &mut from, to).context("seal")
        })?;
    }
    // What is finished stays.
    last.keep();
    let size = std::fs::metadata(dir.join(&name)).context(&name)?.len();
    Ok((name, size))
}

/// Writes what `work` makes of a file to another one, whole or not at all; the first one goes.
fn step(
    from: Part,
    target: PathBuf,
    work: impl FnOnce(File, &mut BufWriter<File>) -> Result<(), Failure>,
) -> Result<Part, Failure> {
    let part = Part(PathBuf::from(format!("{}.part", target.display())));
    let mut out = BufWriter::new(create_private(&part.0)?);
    work(File::open(&from.0).context(format!("read {}", from.0.display()))?, &mut out)?;
    let failed = format!("write {}", part.0.display());
    let file = out.into_inner().map_err(|error| Failure::new(format!("{failed}: {error}")))?;
    file.sync_all().context(&failed)?;
    std::fs::rename(&part.0, &target).context(&failed)?;
    Ok(Part(target))
}

/// The name of a copy without what was done to it; sorts by time.
fn stem(cluster: &str, now: Timestamp) -> String {
    let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
    format!("{cluster}-{now}{ENDING}")
}

/// True for names that [`stem`] makes, with the endings of what is done to copies.
fn is_ours(name: &str, cluster: &str) -> bool {
    let plain = name.strip_suffix(SEALED).unwrap_or(name);
    let plain = plain.strip_suffix(SMALLER).unwrap_or(plain);
    let time = plain.strip_prefix(cluster).and_then(|rest| rest.strip_prefix('-'));
    let time = time.and_then(|rest| rest.strip_suffix(ENDING)).and_then(|time| time.parse().ok());
    time.is_some_and(|time: Timestamp| stem(cluster, time) == plain)
}

/// Which copies of a cluster go when the newest `keep` stay.
fn outdated(mut names: Vec<String>, cluster: &str, keep: usize) -> Vec<String> {
    names.retain(|name| is_ours(name, cluster));
    names.sort_unstable();
    match keep {
        0 => Vec::new(),
        keep => names.drain(..names.len().saturating_sub(keep)).collect(),
    }
}

/// The same for the keys of a bucket.
fn outdated_keys(keys: Vec<String>, prefix: &str, cluster: &str, keep: usize) -> Vec<String> {
    let below = format!("{prefix}/");
    let names = keys.iter().filter_map(|key| key.strip_prefix(&below)).map(str::to_owned).collect();
    outdated(names, cluster, keep).into_iter().map(|name| below.clone() + &name).collect()
}

fn fetch(call: &Call) -> Result<(), Failure> {
    let target = Path::new(call.arg(1));
    files::check_absent(target, false)?;
    block_on(async {
        let content = load(call, call.arg(0), false).await?;
        let part = Part(PathBuf::from(format!("{}.part", target.display())));
        let mut file = create_private(&part.0)?;
        file.write_all(&content)
            .and_then(|()| file.sync_all())
            .context(format!("write {}", part.0.display()))?;
        std::fs::rename(&part.0, target).context(format!("rename {}", part.0.display()))?;
        print(&format!(
            "etcd snapshot saved to {:?} ({} bytes)\nsnapshot info: {}\n",
            call.arg(1),
            content.len(),
            describe(&content)?
        ))
    })
}

/// Reads a snapshot from a file or a bucket, opened and made whole again, and checks it.
pub(super) async fn load(call: &Call, source: &str, skip_hash_check: bool) -> Result<Vec<u8>, Failure> {
    let content = match Place::parse(source).transpose()? {
        None => files::read_large(Path::new(source), SNAPSHOT_MAX)?,
        Some(place) => {
            let mut bucket = bucket(call, &place.bucket)?;
            let key = match place.key.is_empty() || place.key.ends_with('/') {
                false => place.key,
                true => newest(bucket.list(&place.key).await?, &place.key)
                    .ok_or_else(|| Failure::new(format!("there is no backup in {source}")))?,
            };
            eprintln!("reading {}", bucket.name(&key));
            let mut content = Vec::new();
            bucket.get(&key, SNAPSHOT_MAX, &mut content).await?;
            content
        }
    };
    let content = opened(call, content).map_err(|failure| failure.within(source))?;
    check(source, content, skip_hash_check)
}

/// The newest backup right below a prefix, of whatever cluster.
fn newest(keys: Vec<String>, prefix: &str) -> Option<String> {
    let time = |key: &String| {
        let name = key.strip_prefix(prefix)?;
        // The time has a known length from behind.
        let plain = name.strip_suffix(SEALED).unwrap_or(name);
        let plain = plain.strip_suffix(SMALLER).unwrap_or(plain).strip_suffix(ENDING)?;
        let (cluster, time) =
            plain.split_at_checked(plain.len().checked_sub("2026-01-13T06:00:00Z".len())?)?;
        (cluster.ends_with('-') && !name.contains('/')).then(|| time.parse::<Timestamp>().ok())?
    };
    keys.into_iter().filter_map(|key| Some((time(&key)?, key))).max().map(|(_, key)| key)
}

fn opened(call: &Call, content: Vec<u8>) -> Result<Vec<u8>, Failure> {
    let mut content = content;
    if content.starts_with(age::MAGIC) {
        let file = call.some_text("age-identity").ok_or_else(|| {
            Failure::new("it is sealed with age")
                .hint("name the file of the identity with --age-identity FILE")
        })?;
        let text = zeroize::Zeroizing::new(files::read(Path::new(file))?);
        let text = std::str::from_utf8(&text).context(file)?;
        let identities = Identity::parse_file(text).context(file)?;
        let mut plain = Vec::with_capacity(content.len());
        age::decrypt(&identities, &mut content.as_slice(), &mut plain).context("open it")?;
        content = plain;
    }
    if content.starts_with(&ZSTD_MAGIC) {
        let decoder = zstd::stream::read::Decoder::new(content.as_slice()).context("decompress it")?;
        let mut plain = Vec::new();
        decoder.take(SNAPSHOT_MAX + 1).read_to_end(&mut plain).context("decompress it")?;
        if plain.len() as u64 > SNAPSHOT_MAX {
            return Err(Failure::new("it is larger than any database of etcd"));
        }
        content = plain;
    }
    Ok(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 4] = [
        "a-2026-01-01T00:00:00Z.snap",
        "a-2026-01-02T00:00:00Z.snap.age",
        "a-2026-01-03T00:00:00Z.snap.zst.age",
        "a-2026-01-04T00:00:00Z.snap.zst",
    ];

    #[test]
    fn only_old_copies_of_the_same_cluster_go() {
        let others = [
            "b-2026-01-01T00:00:00Z.snap",
            "a-notes.snap",
            "a-2026-01-01T00:00:00Z.snap.part",
            "a-2026-01-01.snap",
            "a-2026-01-01T00:00:00.5Z.snap",
            "a-2026-01-01T02:00:00+02:00.snap",
            "a-b-2026-01-01T00:00:00Z.snap",
            "a-2026-01-01T00:00:00Z.snap.age.zst",
        ];
        let all: Vec<String> = others.iter().chain(&NAMES).rev().map(|name| (*name).to_owned()).collect();
        assert_eq!(outdated(all.clone(), "a", 2), NAMES[..2]);
        assert_eq!(outdated(all.clone(), "a", 4), [] as [&str; 0]);
        assert_eq!(outdated(all.clone(), "a", 0), [] as [&str; 0]);
        let keys =
            all.iter().map(|name| format!("p/q/{name}")).chain(all.iter().map(|name| format!("p/{name}")));
        let keys = keys.chain(all.clone()).collect();
        assert_eq!(outdated_keys(keys, "p/q", "a", 3), [format!("p/q/{}", NAMES[0])]);
    }

    #[test]
    fn names_carry_the_time_to_the_second() {
        let name = stem("a", "2026-01-13T06:00:00.5Z".parse().unwrap());
        assert_eq!(name, "a-2026-01-13T06:00:00Z.snap");
    }

    #[test]
    fn the_newest_backup_of_a_place_is_found() {
        let keys = |names: &[&str]| names.iter().map(|name| format!("p/{name}")).collect::<Vec<_>>();
        let mut all = keys(&NAMES);
        all.extend(keys(&[
            "z-notes.snap",
            "deeper/a-2027-01-01T00:00:00Z.snap",
            "2027-01-01T00:00:00Z.snap",
        ]));
        all.push("p/b-2026-01-03T12:00:00Z.snap.age".to_owned());
        assert_eq!(newest(all, "p/").as_deref(), Some("p/a-2026-01-04T00:00:00Z.snap.zst"));
        assert_eq!(newest(keys(&["x"]), "p/"), None);
    }
}
