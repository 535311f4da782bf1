//! `image cache-create` and `image cache-serve`: images in a directory, and that directory as a registry.

use std::fs;
use std::io::{Read as _, Seek as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ichor_sys::file::Draft;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::failure::{Context as _, Failure};
use crate::files;
use crate::parse::Call;
use crate::pull::{Reference, Registry, digest_of};
use crate::session::block_on;
use crate::text;

/// How often an image is tried.
const ATTEMPTS_MAX: u32 = 5;
/// The first pause between two attempts; each further one is twice as long.
const PAUSE: std::time::Duration = std::time::Duration::from_secs(1);
/// The patch that makes machines use the cache.
const PATCH_FILE: &str = "image-cache-mirrors-patch.yaml";

/// `image cache-create`.
pub fn create(call: &Call) -> Result<(), Failure> {
    required(call, &["image-cache-path", "images"])?;
    let flat = match call.text("layout") {
        "oci" => false,
        "flat" => true,
        other => {
            return Err(Failure::new(format!(
                "invalid argument \"{other}\" for \"--layout\" flag: use oci or flat"
            )));
        }
    };
    let destination = PathBuf::from(call.text("image-cache-path"));
    if call.on("force") && destination.exists() {
        fs::remove_dir_all(&destination)
            .context(format!("error removing existing image cache path {}", destination.display()))?;
    }
    if destination.exists() {
        return Err(Failure::new(format!(
            "image cache path {} already exists, use --force to remove and use the path",
            destination.display()
        ))
        .whole());
    }
    let mut images = call.list("images");
    if images.first().is_some_and(|first| first == "-") {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).context("error reading from stdin")?;
        images = text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect();
    }
    let references = images
        .iter()
        .map(|image| {
            Reference::parse(image).ok_or_else(|| Failure::new(format!("\"{image}\" names no image")))
        })
        .collect::<Result<Vec<_>, _>>()?;
    // All is made beside the place it goes to: what is there is whole.
    let part = destination.with_extension("part");
    let _ = fs::remove_dir_all(&part);
    let layers = call.some_text("image-layer-cache-path").map(PathBuf::from);
    let cache = Cache { dir: part.clone(), layers };
    cache.make_directories()?;
    block_on(async {
        let mut registry = Registry::new(call.on("insecure"));
        for platform in call.list("platform") {
            let platform = Platform::parse(&platform)?;
            for (image, reference) in images.iter().zip(&references) {
                cache.fetch(&mut registry, image, reference, &platform).await?;
            }
        }
        Ok(())
    })
    .map_err(|failure| failure.within("error generating cache"))?;
    if flat {
        return ichor_sys::file::rename(&part, &destination)
            .context(format!("write {}", destination.display()));
    }
    let platform = call.list("platform").first().cloned().unwrap_or_default();
    pack(&part, &destination, &Platform::parse(&platform)?)?;
    fs::remove_dir_all(&part).context(format!("remove {}", part.display()))
}

fn required(call: &Call, names: &[&str]) -> Result<(), Failure> {
    let missing: Vec<&str> = names.iter().copied().filter(|name| !call.given(name)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(Failure::new(format!("required flag(s) \"{}\" not set", missing.join("\", \""))))
}

/// What an image is for.
struct Platform {
    os: String,
    architecture: String,
    variant: Option<String>,
}

impl Platform {
    fn parse(text: &str) -> Result<Self, Failure> {
        let mut parts = text.split('/').map(str::to_owned);
        match (parts.next(), parts.next(), parts.next(), parts.next()) {
            (Some(os), Some(architecture), variant, None) if !os.is_empty() && !architecture.is_empty() => {
                Ok(Self { os, architecture, variant })
            }
            _ => {
                Err(Failure::new(format!("parsing platform: \"{text}\" is none"))
                    .hint("write it as linux/amd64"))
            }
        }
    }

    fn matches(&self, entry: &Value) -> bool {
        let platform = &entry["platform"];
        let variant = self.variant.as_ref().is_none_or(|variant| platform["variant"] == variant.as_str());
        platform["os"] == self.os.as_str()
            && platform["architecture"] == self.architecture.as_str()
            && variant
    }
}

/// A cache in the flat layout.
struct Cache {
    dir: PathBuf,
    layers: Option<PathBuf>,
}

impl Cache {
    fn make_directories(&self) -> Result<(), Failure> {
        let own = ["blob", "manifests"].map(|name| self.dir.join(name));
        for dir in own.iter().chain(&self.layers) {
            fs::create_dir_all(dir).context(format!("create {}", dir.display()))?;
        }
        Ok(())
    }

    async fn fetch(
        &self,
        registry: &mut Registry,
        name: &str,
        image: &Reference,
        platform: &Platform,
    ) -> Result<(), Failure> {
        eprintln!("fetching image \"{name}\"");
        let mut pause = PAUSE;
        for attempt in 1.. {
            match self.try_fetch(registry, image, platform).await {
                Ok(()) => return Ok(()),
                Err(failure) if attempt == ATTEMPTS_MAX => return Err(failure.within(name)),
                Err(failure) => eprintln!("retrying: {failure}"),
            }
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
        Ok(())
    }

    async fn try_fetch(
        &self,
        registry: &mut Registry,
        image: &Reference,
        platform: &Platform,
    ) -> Result<(), Failure> {
        let place = self.dir.join("manifests").join(directory(&image.registry)).join(&image.repository);
        let (references, digests) = (place.join("reference"), place.join("digest"));
        for dir in [&references, &digests] {
            fs::create_dir_all(dir).context(format!("create {}", dir.display()))?;
        }
        let (bytes, digest) = registry.manifest(image, image.wanted()).await?;
        let parse = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).context("read the manifest");
        let mut manifest = parse(&bytes)?;
        if let Some(tag) = &image.tag {
            write(&references.join(tag), &bytes)?;
        }
        write(&digests.join(file_of(&digest)?), &bytes)?;
        if let Some(entries) = manifest["manifests"].as_array() {
            let wanted = entries.iter().find(|entry| platform.matches(entry));
            let wanted = wanted.and_then(|entry| entry["digest"].as_str()).ok_or_else(|| {
                Failure::new(format!("there is no image for {}/{}", platform.os, platform.architecture))
            })?;
            let (bytes, digest) = registry.manifest(image, wanted).await?;
            write(&digests.join(file_of(&digest)?), &bytes)?;
            manifest = parse(&bytes)?;
        }
        let layers = manifest["layers"].as_array().into_iter().flatten();
        for part in std::iter::once(&manifest["config"]).chain(layers) {
            let (Some(digest), Some(size)) = (part["digest"].as_str(), part["size"].as_u64()) else {
                return Err(Failure::new("the manifest names a blob without digest or size"));
            };
            self.blob(registry, image, digest, size).await?;
        }
        Ok(())
    }

    async fn blob(
        &self,
        registry: &mut Registry,
        image: &Reference,
        digest: &str,
        size: u64,
    ) -> Result<(), Failure> {
        let path = self.dir.join("blob").join(file_of(digest)?);
        if path.exists() {
            return Ok(());
        }
        let kept = self.layers.as_ref().map(|dir| dir.join(digest));
        if let Some(kept) = kept.as_ref().filter(|kept| is_whole(kept, digest)) {
            fs::copy(kept, &path).context(format!("copy {}", kept.display()))?;
            return Ok(());
        }
        eprintln!("> layer \"{digest}\" (size {})...", text::bytes(size));
        let failed = || format!("write {}", path.display());
        let mut draft = Draft::create(&path, 0o644).context(failed())?;
        registry.blob(image, digest, size, &mut draft).await?;
        draft.file().rewind().context(failed())?;
        if !has_digest(draft.file(), digest) {
            return Err(Failure::new(format!("what the registry sent is not {digest}")));
        }
        draft.commit().context(failed())?;
        if let Some(kept) = kept {
            fs::copy(&path, &kept).context(format!("write {}", kept.display()))?;
        }
        Ok(())
    }
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    files::write(path, bytes, 0o644)
}

fn is_whole(path: &Path, digest: &str) -> bool {
    fs::File::open(path).is_ok_and(|file| has_digest(&file, digest))
}

fn has_digest(mut file: &fs::File, digest: &str) -> bool {
    let Ok(sum) = ichor_pki::sha256_reader(&mut file) else { return false };
    let hex: String = sum.iter().map(|byte| format!("{byte:02x}")).collect();
    digest.strip_prefix("sha256:") == Some(&hex)
}

/// The name of a digest's file.
fn file_of(digest: &str) -> Result<String, Failure> {
    let hex = digest
        .strip_prefix("sha256:")
        .filter(|hex| hex.len() == 64 && hex.bytes().all(|b| b.is_ascii_hexdigit()));
    hex.map(|hex| format!("sha256-{hex}")).ok_or_else(|| Failure::new(format!("\"{digest}\" is no digest")))
}

/// The directory of a registry: some filesystems know no colons.
fn directory(registry: &str) -> String {
    match registry.rsplit_once(':') {
        Some((host, port)) => format!("{host}_{port}_"),
        None => registry.to_owned(),
    }
}

/// Makes an OCI layout with one image, whose one layer is the directory.
fn pack(dir: &Path, destination: &Path, platform: &Platform) -> Result<(), Failure> {
    let blobs = destination.join("blobs/sha256");
    fs::create_dir_all(&blobs).context(format!("create {}", blobs.display()))?;
    let failed = |what: &str| format!("{what} {}", destination.display());
    let layer = blobs.join("layer.part");
    let file = fs::File::create(&layer).context(failed("write"))?;
    let encoder = flate2::write::GzEncoder::new(std::io::BufWriter::new(file), flate2::Compression::fast());
    let mut archive = tar::Builder::new(encoder);
    archive.follow_symlinks(false);
    archive.append_dir_all("", dir).context(failed("pack"))?;
    let encoder = archive.into_inner().context(failed("pack"))?;
    encoder.finish().context(failed("pack"))?;
    let mut unpacked = flate2::read::GzDecoder::new(fs::File::open(&layer).context(failed("read"))?);
    let hex = |sum: [u8; 32]| sum.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let plain = hex(ichor_pki::sha256_reader(&mut unpacked).context(failed("read"))?);
    let mut packed = fs::File::open(&layer).context(failed("read"))?;
    let packed_hex = hex(ichor_pki::sha256_reader(&mut packed).context(failed("read"))?);
    let size = fs::metadata(&layer).context(failed("read"))?.len();
    fs::rename(&layer, blobs.join(&packed_hex)).context(failed("write"))?;
    let store = |value: &Value| -> Result<(String, usize), Failure> {
        let bytes = value.to_string().into_bytes();
        let digest = digest_of(&bytes);
        write(&blobs.join(digest.trim_start_matches("sha256:")), &bytes)?;
        Ok((digest, bytes.len()))
    };
    let place = json!({"architecture": platform.architecture, "os": platform.os});
    let mut config = place.clone();
    config["created"] = json!(text::rfc3339(jiff::Timestamp::now()));
    config["config"] = json!({});
    config["rootfs"] = json!({"type": "layers", "diff_ids": [format!("sha256:{plain}")]});
    let (config, config_size) = store(&config)?;
    let (manifest, manifest_size) = store(&json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": config, "size": config_size},
        "layers": [{
            "mediaType": "application/vnd.oci.image.layer.v1.tar+gzip",
            "digest": format!("sha256:{packed_hex}"), "size": size,
        }],
    }))?;
    let index = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [{
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "digest": manifest, "size": manifest_size, "platform": place,
        }],
    });
    write(&destination.join("oci-layout"), br#"{"imageLayoutVersion":"1.0.0"}"#)?;
    write(&destination.join("index.json"), index.to_string().as_bytes())
}

/// `image cache-serve`.
pub fn serve(call: &Call) -> Result<(), Failure> {
    required(call, &["image-cache-path"])?;
    let dir = Path::new(call.text("image-cache-path"));
    let layout = ichor_registry::Layout::open_flat(dir).context("read the image cache")?;
    let tls = match (call.some_text("tls-cert-file"), call.some_text("tls-key-file")) {
        (Some(cert), Some(key)) => Some(acceptor(Path::new(cert), Path::new(key))?),
        (None, None) => None,
        _ => {
            return Err(Failure::new(
                "a certificate needs its key: give both --tls-cert-file and --tls-key-file",
            )
            .whole());
        }
    };
    let address = call.text("address");
    if let Some(patch) = patch(address, &call.list("mirror"), tls.is_some())? {
        eprintln!("writing config patch to {PATCH_FILE}");
        files::write(Path::new(PATCH_FILE), patch.as_bytes(), 0o644)?;
    }
    block_on(async {
        let address = if address.starts_with(':') { format!("0.0.0.0{address}") } else { address.to_owned() };
        let listener = TcpListener::bind(&address).await.context(format!("listen on {address}"))?;
        let own = listener.local_addr().context("listen")?;
        let count = layout.images().count();
        eprintln!("serving {count} images on {}://{own}", if tls.is_some() { "https" } else { "http" });
        let limits = ichor_registry::Limits::default();
        let plain = match tls {
            None => listener,
            Some(tls) => {
                let inner = TcpListener::bind("127.0.0.1:0").await.context("listen")?;
                let place = inner.local_addr().context("listen")?;
                tokio::spawn(unwrap_tls(listener, tls, place));
                inner
            }
        };
        ichor_registry::serve(plain, Arc::new(layout), limits, std::future::pending()).await;
        Ok(())
    })
}

/// Takes TLS off connections and passes on what is in them.
async fn unwrap_tls(listener: TcpListener, tls: TlsAcceptor, to: SocketAddr) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            continue;
        };
        let tls = tls.clone();
        tokio::spawn(async move {
            let accepted = tokio::time::timeout(std::time::Duration::from_secs(10), tls.accept(stream)).await;
            let Ok(Ok(mut outer)) = accepted else { return };
            let Ok(mut inner) = TcpStream::connect(to).await else { return };
            // A connection that ends is no news.
            let _ = tokio::io::copy_bidirectional(&mut outer, &mut inner).await;
        });
    }
}

fn acceptor(cert: &Path, key: &Path) -> Result<TlsAcceptor, Failure> {
    use rustls::pki_types::pem::PemObject as _;
    ichor_pki::install_provider();
    let chain = rustls::pki_types::CertificateDer::pem_slice_iter(&files::read(cert)?)
        .collect::<Result<Vec<_>, _>>()
        .context(format!("read {}", cert.display()))?;
    let key = rustls::pki_types::PrivateKeyDer::from_pem_slice(&files::read(key)?)
        .context(format!("read {}", key.display()))?;
    let config = rustls::ServerConfig::builder().with_no_client_auth().with_single_cert(chain, key);
    Ok(TlsAcceptor::from(Arc::new(config.context("use the certificate")?)))
}

/// The documents that make machines use the cache; none for a port that is not known yet.
fn patch(address: &str, mirrors: &[String], secure: bool) -> Result<Option<String>, Failure> {
    let (host, port) = address
        .rsplit_once(':')
        .ok_or_else(|| Failure::new(format!("address {address}: missing port in address")))?;
    if port == "0" {
        return Ok(None);
    }
    let hosts = match host {
        "" | "0.0.0.0" | "[::]" => own_addresses(),
        host => vec![host.to_owned()],
    };
    let scheme = if secure { "https" } else { "http" };
    let document = |mirror: &String| {
        let endpoints: String =
            hosts.iter().map(|host| format!("    - url: {scheme}://{host}:{port}\n")).collect();
        format!("apiVersion: v1alpha1\nkind: RegistryMirrorConfig\nname: {mirror}\nendpoints:\n{endpoints}")
    };
    Ok(Some(mirrors.iter().map(document).collect::<Vec<_>>().join("---\n")))
}

/// The address this host is seen at from elsewhere: the one it would send from. Nothing is sent.
fn own_addresses() -> Vec<String> {
    let probe = |bind: &str, to: &str| {
        let socket = std::net::UdpSocket::bind(bind).ok()?;
        socket.connect(to).ok()?;
        let address = socket.local_addr().ok()?.ip();
        (!address.is_loopback()).then(|| match address {
            std::net::IpAddr::V4(address) => address.to_string(),
            std::net::IpAddr::V6(address) => format!("[{address}]"),
        })
    };
    [probe("0.0.0.0:0", "192.0.2.1:9"), probe("[::]:0", "[2001:db8::1]:9")].into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_are_told_of_the_cache_for_every_mirror() {
        let mirrors = ["docker.io".to_owned(), "ghcr.io".to_owned()];
        assert_eq!(
            patch("127.0.0.1:3172", &mirrors, false).unwrap().unwrap(),
            "apiVersion: v1alpha1\nkind: RegistryMirrorConfig\nname: docker.io\nendpoints:\n    - url: http://127.0.0.1:3172\n\
             ---\napiVersion: v1alpha1\nkind: RegistryMirrorConfig\nname: ghcr.io\nendpoints:\n    - url: http://127.0.0.1:3172\n"
        );
        assert_eq!(patch("127.0.0.1:0", &mirrors, true).unwrap(), None);
        assert!(patch("nothing", &mirrors, true).is_err());
    }

    #[test]
    fn ports_and_digests_become_names_of_files() {
        assert_eq!(directory("localhost:5000"), "localhost_5000_");
        assert_eq!(directory("ghcr.io"), "ghcr.io");
        assert!(file_of("sha256:../../etc").is_err());
    }

    /// A directory with one image in the flat layout.
    fn source(dir: &Path) {
        let blob = |bytes: &[u8]| {
            let digest = digest_of(bytes);
            write(&dir.join("blob").join(file_of(&digest).unwrap()), bytes).unwrap();
            json!({"digest": digest, "size": bytes.len()})
        };
        let place = dir.join("manifests/example.org/team/app/reference");
        for dir in [dir.join("blob"), place.clone()] {
            fs::create_dir_all(dir).unwrap();
        }
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": blob(b"{}"),
            "layers": [blob(b"one layer"), blob(&[7; 300_000])],
        });
        write(&place.join("v1"), manifest.to_string().as_bytes()).unwrap();
    }

    #[tokio::test]
    async fn what_a_cache_serves_becomes_a_cache() {
        let dir = tempfile::tempdir().unwrap();
        let from = dir.path().join("from");
        source(&from);
        let layout = ichor_registry::Layout::open_flat(&from).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let limits = ichor_registry::Limits::default();
        tokio::spawn(ichor_registry::serve(listener, Arc::new(layout), limits, std::future::pending()));

        let cache = Cache { dir: dir.path().join("to"), layers: Some(dir.path().join("layers")) };
        cache.make_directories().unwrap();
        let name = format!("127.0.0.1:{port}/team/app:v1");
        let image = Reference::parse(&name).unwrap();
        let platform = Platform::parse("linux/amd64").unwrap();
        cache.try_fetch(&mut Registry::new(true), &image, &platform).await.unwrap();
        let made = ichor_registry::Layout::open_flat(&cache.dir).unwrap();
        assert_eq!(made.images().collect::<Vec<_>>(), [name.as_str()]);
        assert_eq!(made.blob(&digest_of(&[7; 300_000])).unwrap().size, 300_000);
        assert!(is_whole(&dir.path().join("layers").join(digest_of(b"one layer")), &digest_of(b"one layer")));

        let gone = Reference::parse(&format!("127.0.0.1:{port}/team/app:v2")).unwrap();
        let error = cache.try_fetch(&mut Registry::new(true), &gone, &platform).await.unwrap_err();
        assert!(error.to_string().contains("404"), "{error}");

        let packed = dir.path().join("packed");
        pack(&cache.dir, &packed, &platform).unwrap();
        let index: Value = serde_json::from_slice(&fs::read(packed.join("index.json")).unwrap()).unwrap();
        let manifest = index["manifests"][0]["digest"].as_str().unwrap();
        let packed = ichor_registry::Layout::open(&packed).unwrap();
        assert!(packed.blob(manifest).is_ok());
    }
}
