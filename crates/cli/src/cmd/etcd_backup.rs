//! `etcd backup` and `etcd fetch`: copies of the database in a directory or a bucket, sealed, and back again.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use ichor_ops::Problem;
use ichor_ops::etcd::{self, BackupOptions, Event, SNAPSHOT_MAX, Seal, Storage, check, describe};

use crate::age::{self, Identity, Recipient};
use crate::connection::Connection;
use crate::failure::{Context, Failure, chain};
use crate::parse::Call;
use crate::s3::{Bucket, Given, Place, Settings};
use crate::session::{Session, block_on};
use crate::table::{Args, Command, Complete, Flag};
use crate::{files, print, say};

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
    long: "Saves the database to a DIRECTORY, or to s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or\n\
           az://CONTAINER/PREFIX, as <cluster>-<time>.snap. With recipients the copy is encrypted with age and ends in\n\
           .snap.age; what goes to a bucket must be, unless --no-encryption says otherwise. With --every it goes on\n\
           until it is stopped; a copy that fails is reported and retried after a minute. With --keep older copies of\n\
           the same cluster are removed, never before a new one is whole, and nothing else is touched. The role\n\
           os:etcd:backup is enough; without nodes the endpoint itself is asked.\n\n\
           Instead of flags the variables BUCKET, S3_PREFIX, CLUSTER_NAME, CUSTOM_S3_ENDPOINT, AWS_REGION,\n\
           AGE_X25519_PUBLIC_KEY, DISABLE_ENCRYPTION and ENABLE_COMPRESSION may be set. Credentials for S3 are\n\
           AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, ~/.aws/credentials, or the role of the instance or pod; for\n\
           Google GOOGLE_APPLICATION_CREDENTIALS or the instance's service account; for Azure\n\
           AZURE_STORAGE_ACCOUNT_NAME with AZURE_STORAGE_ACCOUNT_KEY or the managed identity.",
    examples: &[
        "etcd backup -n 10.5.0.2 /backup",
        "etcd backup -n 10.5.0.2 --every 6h --keep 28 --age-recipient age1... s3://backups/prod",
    ],
    args: Args::between("[directory | s3://bucket/prefix | gs://... | az://...]", 0, 1)
        .complete(&[Complete::File]),
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
    long: "Takes a backup from a file or from s3://BUCKET/KEY (gs://, az://), decrypts it, checks it and writes it\n\
           as a plain snapshot. An address that ends in a slash stands for the newest backup there.",
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

fn is_set(name: &str) -> bool {
    variable(name).as_deref() == Some("true")
}

/// The flags that lead to a bucket.
pub(super) struct BucketFlags {
    endpoint: Option<String>,
    region: Option<String>,
    path_style: Option<bool>,
}

impl BucketFlags {
    fn of(call: &Call) -> Self {
        Self {
            endpoint: call.some_text("s3-endpoint").map(str::to_owned),
            region: call.some_text("s3-region").map(str::to_owned),
            path_style: call.given("s3-path-style").then(|| call.on("s3-path-style")),
        }
    }

    fn open(&self, place: &Place) -> Result<Bucket, Failure> {
        let given = Given {
            endpoint: self.endpoint.as_deref(),
            region: self.region.as_deref(),
            path_style: self.path_style,
        };
        let read = |path: &str| std::fs::read_to_string(path).ok();
        Bucket::new(Settings::resolve(place, given, &variable, &read)?)
    }
}

impl Storage for Bucket {
    type Error = Failure;

    fn name(&self, key: &str) -> String {
        Bucket::name(self, key)
    }

    async fn put(&mut self, key: &str, file: &Path) -> Result<(), Failure> {
        Bucket::put(self, key, file).await
    }

    async fn list(&mut self, prefix: &str) -> Result<Vec<String>, Failure> {
        Bucket::list(self, prefix).await
    }

    async fn get(&mut self, key: &str, limit: u64) -> Result<Vec<u8>, Failure> {
        let mut content = Vec::new();
        Bucket::get(self, key, limit, &mut content).await?;
        Ok(content)
    }

    async fn delete(&mut self, key: &str) -> Result<(), Failure> {
        Bucket::delete(self, key).await
    }
}

/// The command line of `etcd backup`, resolved.
struct BackupFlags {
    connection: Connection,
    place: etcd::Place<Bucket>,
    options: BackupOptions,
}

impl BackupFlags {
    fn of(call: &Call) -> Result<Self, Failure> {
        let connection = call.connection();
        let cluster = match (&connection.context, variable("CLUSTER_NAME")) {
            (Some(context), _) => context.clone(),
            (None, Some(name)) => name,
            (None, None) => crate::profile::open(&connection)?.0.context,
        };
        // A cluster may be called anything; a file may not.
        let cluster = cluster.replace('/', "-");
        let mut keys = call.list("age-recipient");
        if keys.is_empty() {
            keys.extend(variable("AGE_X25519_PUBLIC_KEY"));
        }
        let open = call.on("no-encryption") || is_set("DISABLE_ENCRYPTION");
        let recipients: Vec<Recipient> = match open {
            true => Vec::new(),
            false => keys.iter().map(|key| Recipient::parse(key)).collect::<Result<_, _>>().plain()?,
        };
        let place = place(call.args.first().map(String::as_str), &BucketFlags::of(call), &cluster)?;
        if matches!(place, etcd::Place::Bucket { .. }) && recipients.is_empty() && !open {
            return Err(Failure::new(
                "a copy of the database holds every secret of the cluster, and is not sealed",
            )
            .hint("name who may open it with --age-recipient age1..., or say --no-encryption"));
        }
        let options = BackupOptions {
            cluster,
            keep: usize::try_from(call.int("keep")).unwrap_or(0),
            compress: call.on("compress") || is_set("ENABLE_COMPRESSION"),
            seal: (!recipients.is_empty()).then(|| seal(recipients)),
            every: call.duration("every"),
        };
        Ok(Self { connection, place, options })
    }
}

/// Where copies go: a directory, which is made, or a bucket.
fn place(given: Option<&str>, bucket: &BucketFlags, cluster: &str) -> Result<etcd::Place<Bucket>, Failure> {
    let place = match (given, variable("BUCKET")) {
        (Some(given), _) => Place::parse(given).transpose()?,
        (None, Some(bucket)) => Some(Place::new(&bucket, "")?),
        (None, None) => {
            return Err(Failure::new(
                "no place for the copies: give a directory, s3://, gs:// or az://BUCKET/PREFIX",
            )
            .hint("or set BUCKET"));
        }
    };
    let Some(place) = place else {
        let directory = PathBuf::from(given.unwrap_or_default());
        std::fs::create_dir_all(&directory).context(format!("make {}", directory.display()))?;
        return Ok(etcd::Place::Directory(directory));
    };
    let storage = bucket.open(&place)?;
    let prefix = Some(place.key).filter(|key| !key.is_empty()).or_else(|| variable("S3_PREFIX"));
    let prefix = prefix.unwrap_or_else(|| cluster.to_owned());
    Ok(etcd::Place::Bucket { storage, prefix: prefix.trim_matches('/').to_owned() })
}

fn seal(recipients: Vec<Recipient>) -> Box<Seal> {
    Box::new(move |from: &mut File, mut to: &mut dyn Write| {
        age::encrypt(&recipients, from, &mut to)
            .map_err(|error| Problem::Invalid { what: "seal".to_owned(), reason: chain(&error) }.into())
    })
}

fn backup(call: &Call) -> Result<(), Failure> {
    let BackupFlags { connection, mut place, options } = BackupFlags::of(call)?;
    let connect = async || {
        let session = Session::open_near(&connection).await?;
        Ok((session.near(), session.label))
    };
    block_on(etcd::backup(&mut place, &options, connect, &|event: Event| tell(&event)))
}

fn tell(event: &Event) {
    match event {
        Event::Saved { place, bytes } => say(&format!("etcd snapshot saved to {place:?} ({bytes} bytes)")),
        Event::Failed { error } => eprintln!("{error}"),
        Event::Reading { place } => eprintln!("reading {place}"),
    }
}

/// Where a backup is read from, and what opens it.
pub(super) struct SourceFlags {
    source: String,
    bucket: BucketFlags,
    identities: Option<String>,
    skip_hash_check: bool,
}

impl SourceFlags {
    /// Of a command with the flags of a bucket and an identity.
    pub(super) fn of(call: &Call, source: &str, skip_hash_check: bool) -> Self {
        Self {
            source: source.to_owned(),
            bucket: BucketFlags::of(call),
            identities: call.some_text("age-identity").map(str::to_owned),
            skip_hash_check,
        }
    }

    /// Reads a snapshot from a file or a bucket, opened and made whole again, and checks it.
    pub(super) async fn load(&self) -> Result<Vec<u8>, Failure> {
        let content = match Place::parse(&self.source).transpose()? {
            None => files::read_large(Path::new(&self.source), SNAPSHOT_MAX)?,
            Some(place) => {
                let mut bucket = self.bucket.open(&place)?;
                etcd::read(&mut bucket, &place.key, &|event: Event| tell(&event)).await?
            }
        };
        let plain = self.opened(content).and_then(|content| Ok(etcd::decompressed(content)?));
        let plain = plain.map_err(|failure| failure.within(&self.source))?;
        check(&self.source, plain, self.skip_hash_check).map_err(|error| {
            let damaged = matches!(error.problem(), Problem::NotASnapshot { .. });
            let failure = Failure::from(error);
            match damaged {
                true => failure.hint("a copy of the data directory needs --recover-skip-hash-check"),
                false => failure,
            }
        })
    }

    fn opened(&self, content: Vec<u8>) -> Result<Vec<u8>, Failure> {
        if !content.starts_with(age::MAGIC) {
            return Ok(content);
        }
        let file = self.identities.as_ref().ok_or_else(|| {
            Failure::new("it is sealed with age")
                .hint("name the file of the identity with --age-identity FILE")
        })?;
        let text = zeroize::Zeroizing::new(files::read(Path::new(file))?);
        let text = std::str::from_utf8(&text).context(file)?;
        let identities = Identity::parse_file(text).context(file)?;
        let mut plain = Vec::with_capacity(content.len());
        age::decrypt(&identities, &mut content.as_slice(), &mut plain).context("open it")?;
        Ok(plain)
    }
}

fn fetch(call: &Call) -> Result<(), Failure> {
    let (source, target) = (SourceFlags::of(call, call.arg(0), false), PathBuf::from(call.arg(1)));
    files::check_absent(&target, false)?;
    block_on(async {
        let content = source.load().await?;
        etcd::write_private(&target, &content)?;
        print(&format!(
            "etcd snapshot saved to {:?} ({} bytes)\nsnapshot info: {}\n",
            target.display().to_string(),
            content.len(),
            describe(&content)?
        ))
    })
}
