//! `image`: images on machines, and the lists of images a cluster is made of.

use ichor_wire::common::ContainerdNamespace;
use ichor_wire::machine::{ImageListRequest, ImageListResponse, ImagePullRequest};

use crate::failure::{Context as _, Failure};
use crate::identity;
use crate::parse::Call;
use crate::print;
use crate::session::{Session, StreamErrors, block_on};
use crate::table::{Args, Command, Complete, Flag, Group};
use crate::tabs::Table;
use crate::text;

/// The parent.
pub static IMAGE: Command = Command {
    name: "image",
    aliases: &["images"],
    group: Group::Machines,
    about: "Manage container images",
    shared_flags: &[Flag::text("namespace", "where to look: cri for Kubernetes, system for services")
        .default("cri")
        .complete(Complete::Words(&["cri", "system"]))],
    subcommands: &[
        &super::image_build::BUILD,
        &CACHE_CERT_GEN,
        &CACHE_CREATE,
        &CACHE_SERVE,
        &K8S_BUNDLE,
        &LIST,
        &PULL,
        &TALOS_BUNDLE,
        &INTEGRATION,
    ],
    ..Command::EMPTY
};

static LIST: Command =
    Command { name: "list", aliases: &["l", "ls"], about: "List images", run: Some(list), ..Command::EMPTY };

static PULL: Command = Command {
    name: "pull",
    aliases: &["p"],
    about: "Pull an image",
    args: Args::between("<image>", 1, 1),
    run: Some(pull),
    ..Command::EMPTY
};

static K8S_BUNDLE: Command = Command {
    name: "k8s-bundle",
    aliases: &["default"],
    about: "Print the images of Kubernetes and its parts",
    flags: &[Flag::text("provisioner", "installer, docker or all; all give the same list")
        .default("installer")
        .complete(Complete::Words(&["installer", "docker", "all"]))],
    run: Some(k8s_bundle),
    ..Command::EMPTY
};

static TALOS_BUNDLE: Command = Command {
    name: "talos-bundle",
    about: "Print the images of a release",
    args: Args::between("[talos-version]", 0, 1),
    run: Some(talos_bundle),
    ..Command::EMPTY
};

static CACHE_CREATE: Command = Command {
    name: "cache-create",
    about: "Make an image cache",
    flags: &[
        Flag::switch("force", "overwrite a cache that exists"),
        Flag::text("image-cache-path", "directory of the cache").complete(Complete::File),
        Flag::text("image-layer-cache-path", "directory that keeps downloaded layers")
            .complete(Complete::File),
        Flag::list("images", "images to put in, - for standard input"),
        Flag::switch("insecure", "allow registries without TLS"),
        Flag::text("layout", "oci or flat").default("oci").complete(Complete::Words(&["oci", "flat"])),
        Flag::list("platform", "platforms of the images").default("linux/amd64"),
    ],
    run: Some(super::image_cache::create),
    ..Command::EMPTY
};

static CACHE_SERVE: Command = Command {
    name: "cache-serve",
    about: "Serve an image cache as a registry",
    flags: &[
        Flag::text("address", "address to listen on").default("127.0.0.1:3172"),
        Flag::text("image-cache-path", "directory of the cache, in flat layout").complete(Complete::File),
        Flag::list("mirror", "registries to stand in for").default("docker.io,ghcr.io,registry.k8s.io"),
        Flag::text("tls-cert-file", "certificate to serve with").complete(Complete::File),
        Flag::text("tls-key-file", "key of the certificate").complete(Complete::File),
    ],
    run: Some(super::image_cache::serve),
    ..Command::EMPTY
};

static CACHE_CERT_GEN: Command = Command {
    name: "cache-cert-gen",
    about: "Make certificates for an image cache and the patch that trusts them",
    flags: &[
        Flag::list("advertised-address", "addresses of the cache"),
        Flag::list("advertised-name", "names of the cache"),
        Flag::text("tls-ca-file", "file of the CA certificate").default("ca.crt").complete(Complete::File),
        Flag::text("tls-cert-file", "file of the certificate").default("tls.crt").complete(Complete::File),
        Flag::text("tls-key-file", "file of the key").default("tls.key").complete(Complete::File),
    ],
    run: Some(super::image_cert::run),
    ..Command::EMPTY
};

static INTEGRATION: Command = Command {
    name: "integration",
    about: "Print the images that tests need",
    long: "Prints the images of a cluster and of the tests, together with those on standard input, each once.",
    hidden: true,
    flags: &[
        Flag::text("installer-tag", "tag of the installer"),
        Flag::text("registry-and-user", "where installer and node image are"),
        Flag::text("talos-tag", "tag of the node image"),
    ],
    run: Some(integration),
    ..Command::EMPTY
};

/// Images of the tests that belong to no cluster.
const TEST_IMAGES: [&str; 4] = [
    "docker.io/library/alpine:latest",
    "ghcr.io/siderolabs/talosctl:latest",
    "registry.k8s.io/conformance:v1.35.0",
    "registry.k8s.io/kube-apiserver:v1.27.0",
];

fn integration(call: &Call) -> Result<(), Failure> {
    let missing: Vec<&str> = ["installer-tag", "registry-and-user", "talos-tag"]
        .into_iter()
        .filter(|name| !call.given(name))
        .collect();
    if !missing.is_empty() {
        return Err(Failure::new(format!("required flag(s) \"{}\" not set", missing.join("\", \""))));
    }
    let place = call.text("registry-and-user");
    let mut images: std::collections::BTreeSet<String> =
        K8S_IMAGES.into_iter().chain(TEST_IMAGES).map(str::to_owned).collect();
    images.insert(format!("{place}/installer:{}", call.text("installer-tag")));
    images.insert(format!("{place}/talos:{}", call.text("talos-tag")));
    let given = std::io::read_to_string(std::io::stdin()).context("error reading from stdin")?;
    let wanted = |line: &&str| {
        !line.is_empty() && !line.contains("authenticated-") && !line.starts_with("invalid.registry.k8s.io")
    };
    images.extend(given.lines().filter(wanted).map(str::to_owned));
    print(&images.iter().map(|image| format!("{image}\n")).collect::<String>())
}

fn namespace(call: &Call) -> Result<i32, Failure> {
    match call.text("namespace") {
        "cri" => Ok(ContainerdNamespace::NsCri.into()),
        "system" => Ok(ContainerdNamespace::NsSystem.into()),
        other => Err(Failure::new(format!("unsupported namespace \"{other}\"")).hint("use cri or system")),
    }
}

fn list(call: &Call) -> Result<(), Failure> {
    let request = ImageListRequest { namespace: namespace(call)? };
    let connection = call.connection();
    block_on(async {
        let session = Session::open(&connection).await?;
        let stream = session.all().machine().image_list(request).await;
        let mut errors = StreamErrors::default();
        let mut table = Table::with_header(["NODE", "IMAGE", "DIGEST", "SIZE", "CREATED"]);
        let take = |node: String, image: ImageListResponse| {
            let created = text::timestamp(image.created_at.as_ref()).unwrap_or_default();
            let created = jiff::Timestamp::from_second(created.as_second()).unwrap_or_default();
            let size = text::bytes(u64::try_from(image.size).unwrap_or_default());
            table.row([node, image.name, image.digest, size, text::rfc3339(created)]);
            Ok(())
        };
        session.read("error listing images", stream, take, &mut errors).await?;
        errors.finish()?;
        print(&table.take())
    })
}

fn pull(call: &Call) -> Result<(), Failure> {
    let request = ImagePullRequest { namespace: namespace(call)?, reference: call.arg(0).to_owned() };
    let connection = call.connection();
    block_on(async {
        let session = Session::open(&connection).await?;
        let reply = session.ask(session.all().machine().image_pull(request)).await;
        session.gather("error pulling image", reply.map(|reply| reply.into_inner().messages))?;
        Ok(())
    })
}

/// The images of Kubernetes v1.35.0 and what runs beside it.
const K8S_IMAGES: [&str; 9] = [
    "ghcr.io/siderolabs/flannel:v0.27.4",
    "registry.k8s.io/coredns/coredns:v1.13.2",
    "registry.k8s.io/etcd:v3.6.7",
    "registry.k8s.io/kube-apiserver:v1.35.0",
    "registry.k8s.io/kube-controller-manager:v1.35.0",
    "registry.k8s.io/kube-scheduler:v1.35.0",
    "registry.k8s.io/kube-proxy:v1.35.0",
    "ghcr.io/siderolabs/kubelet:v1.35.0",
    "registry.k8s.io/pause:3.10",
];

fn k8s_bundle(call: &Call) -> Result<(), Failure> {
    let given = call.text("provisioner");
    if !["installer", "docker", "all"].contains(&given) {
        return Err(Failure::new(format!(
            "invalid argument \"{given}\" for \"--provisioner\" flag: use installer, docker or all"
        )));
    }
    print(&K8S_IMAGES.map(|image| format!("{image}\n")).concat())
}

fn talos_bundle(call: &Call) -> Result<(), Failure> {
    let tag = call.args.first().map_or(identity::TAG, String::as_str);
    check_tag(tag)?;
    block_on(async {
        let mut registry = crate::pull::Registry::new(false);
        print(&super::image_bundle::list(&mut registry, super::image_bundle::PLACE, tag).await?)
    })
}

/// Releases whose lists have the known form: from 1.11 to this one.
fn check_tag(tag: &str) -> Result<(), Failure> {
    let Some(version) = tag.strip_prefix('v') else {
        return Err(Failure::new(format!("invalid tag \"{tag}\": must have \"v\" prefix")));
    };
    let numbers: Option<Vec<u64>> = version
        .split(['-', '+'])
        .next()
        .unwrap_or_default()
        .split('.')
        .map(|part| part.parse().ok())
        .collect();
    let Some([major, minor, ..]) = numbers.as_deref() else {
        return Err(Failure::new(format!("invalid argument \"{tag}\": tag must be a valid semver")));
    };
    if !((1, 11)..(1, 13)).contains(&(*major, *minor)) {
        return Err(Failure::new(format!(
            "invalid tag \"{tag}\": must be between v1.11.0-alpha.0 (inclusive) and v1.13.0 (exclusive)"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::check_tag;

    #[test]
    fn releases_outside_the_known_range_are_refused() {
        for good in ["v1.11.0", "v1.12.1", "v1.12.0-beta.1"] {
            assert!(check_tag(good).is_ok(), "{good}");
        }
        for bad in ["1.12.1", "v1.10.3", "v1.13.0", "v", "vx.y"] {
            assert!(check_tag(bad).is_err(), "{bad}");
        }
    }
}
