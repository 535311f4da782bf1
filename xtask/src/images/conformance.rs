//! The images that the conformance tests of Kubernetes use, under their official names.
//!
//! They are stand-ins: the programs of Kubernetes' own test images are built from the same module as the tests; shell and
//! web server are busybox, other tools come from packages of Debian. The test program says which names and tags it wants.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::{Entry, Image, Layer, libraries};

/// Tools that tests run in their containers beside those of busybox, by their place in the tree of packages.
const TOOLS: [&str; 9] = [
    "usr/bin/curl",
    "usr/bin/dig",
    "usr/bin/getent",
    "usr/bin/host",
    "usr/bin/nslookup",
    "bin/nc.openbsd",
    "bin/ip",
    "bin/ss",
    "usr/bin/delv",
];

/// A web server that ends when it is told to: as first process of its container, busybox's alone would not.
const SERVE: &str = "#!/bin/sh\ntrap 'kill $! && exit 0' TERM INT QUIT WINCH\n\
                     busybox httpd -f -p 80 -h \"$(cat /etc/webroot)\" &\nwait\n";

const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\n\
                      user-defined-in-image:x:1000:1000::/home/user-defined-in-image:/bin/sh\n\
                      nobody:x:65534:65534:nobody:/:/bin/false\n";
const GROUP: &str = "root:x:0:\nuser-defined-in-image:x:1000:\n\
                     group-defined-in-image:x:50000:user-defined-in-image\nnobody:x:65534:\n";

/// The images of the tests in `place`, and the one with the tests of this version themselves.
pub(super) fn images(place: &Path, kubernetes: &str) -> Result<Vec<Image>> {
    let program = place.join("e2e.test");
    let output = Command::new(&program)
        .arg("--list-images")
        .output()
        .with_context(|| format!("run {}; `scripts/components conformance` builds it", program.display()))?;
    ensure!(output.status.success(), "{} --list-images failed", program.display());
    let names = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut names: Vec<&str> = names.lines().collect();
    names.sort_unstable();
    let mut images: Vec<Image> = names.into_iter().filter_map(image).collect();
    images.push(Image {
        name: format!("registry.k8s.io/conformance:{kubernetes}"),
        // `kubectl diff` runs `diff`.
        layers: vec!["shell", "kube", "tests"],
        entrypoint: vec!["/usr/local/bin/kubeconformance"],
        command: Vec::new(),
    });
    Ok(images)
}

/// What stands in for the image of this name; `None` for those that no conformance test uses.
fn image(name: &str) -> Option<Image> {
    let (repository, _) = name.trim().rsplit_once(':')?;
    let agnhost = vec!["/agnhost"];
    let (layers, entrypoint, command) = match repository {
        "registry.k8s.io/e2e-test-images/agnhost" => {
            (vec!["shell", "tools", "agnhost"], agnhost, vec!["pause"])
        }
        "registry.k8s.io/e2e-test-images/nautilus" => {
            (vec!["shell", "tools", "agnhost", "nautilus"], agnhost, vec!["test-webserver"])
        }
        "registry.k8s.io/e2e-test-images/busybox" => (vec!["shell"], vec![], vec!["sh"]),
        "registry.k8s.io/e2e-test-images/httpd" => (vec!["shell", "httpd"], vec![], vec!["httpd-foreground"]),
        "registry.k8s.io/e2e-test-images/nginx" => (vec!["shell", "nginx"], vec![], vec!["nginx"]),
        "registry.k8s.io/e2e-test-images/nonewprivs" => (vec!["shell", "nnp"], vec![], vec!["nnp"]),
        "registry.k8s.io/e2e-test-images/jessie-dnsutils" => (vec!["shell", "tools"], vec![], vec!["bash"]),
        "registry.k8s.io/e2e-test-images/sample-apiserver" => {
            (vec!["sample-apiserver"], vec!["/sample-apiserver"], vec![])
        }
        "registry.k8s.io/etcd" => (vec!["etcd"], vec![], vec![]),
        "registry.k8s.io/pause" => (vec!["pause"], vec!["/pause"], vec![]),
        _ => return None,
    };
    Some(Image { name: name.trim().to_owned(), layers, entrypoint, command })
}

/// The layers of those images, from the programs in `place`, and busybox and the tree of Debian packages in `parts`.
pub(super) fn layers(place: &Path, parts: &Path) -> Result<Vec<(&'static str, Layer)>> {
    let built = |name: &str| Entry::File(place.join(name));
    let link = |target: &str| Entry::Link(target.to_owned());
    let one = |at: &str, entry| Layer::from([(at.to_owned(), entry)]);
    Ok(vec![
        ("shell", shell(&parts.join("busybox"))?),
        ("tools", tools(&parts.join("debian"))?),
        (
            "agnhost",
            Layer::from([
                ("agnhost".to_owned(), built("agnhost")),
                ("agnhost-2".to_owned(), link("agnhost")),
                ("localhost.crt".to_owned(), built("localhost.crt")),
                ("localhost.key".to_owned(), built("localhost.key")),
                ("uploads".to_owned(), Entry::Directory(0o755)),
            ]),
        ),
        (
            "nautilus",
            Layer::from([
                ("nautilus.jpg".to_owned(), built("nautilus.jpg")),
                ("data.json".to_owned(), built("data.json")),
            ]),
        ),
        (
            "httpd",
            web("usr/local/apache2/htdocs", "/usr/local/apache2/htdocs\n", "usr/local/bin/httpd-foreground"),
        ),
        ("nginx", web("usr/share/nginx/html", "/usr/share/nginx/html\n", "usr/sbin/nginx")),
        ("nnp", one("usr/local/bin/nnp", Entry::Setuid(place.join("nnp")))),
        ("sample-apiserver", one("sample-apiserver", built("sample-apiserver"))),
        (
            "tests",
            Layer::from([
                ("usr/local/bin/e2e.test".to_owned(), built("e2e.test")),
                ("usr/local/bin/ginkgo".to_owned(), built("ginkgo")),
                ("usr/local/bin/kubeconformance".to_owned(), built("gorunner")),
                ("gorunner".to_owned(), link("usr/local/bin/kubeconformance")),
                ("run_e2e.sh".to_owned(), link("usr/local/bin/kubeconformance")),
                ("kubernetes/cluster".to_owned(), Entry::Directory(0o755)),
                ("tmp".to_owned(), Entry::Directory(0o1777)),
            ]),
        ),
    ])
}

/// A page and what serves it.
fn web(root: &str, line: &'static str, program: &str) -> Layer {
    Layer::from([
        (format!("{root}/index.html"), Entry::Text("<html><body><h1>It works!</h1></body></html>\n")),
        ("etc/webroot".to_owned(), Entry::Text(line)),
        (program.to_owned(), Entry::Script(SERVE)),
    ])
}

/// Busybox under all its names.
fn shell(busybox: &Path) -> Result<Layer> {
    let output = Command::new(busybox)
        .arg("--list")
        .output()
        .with_context(|| format!("run {}; `scripts/components busybox` builds it", busybox.display()))?;
    let mut layer = Layer::from([
        ("bin/busybox".to_owned(), Entry::File(busybox.to_owned())),
        ("etc/passwd".to_owned(), Entry::Text(PASSWD)),
        ("etc/group".to_owned(), Entry::Text(GROUP)),
        ("home/user-defined-in-image".to_owned(), Entry::Directory(0o755)),
        ("root".to_owned(), Entry::Directory(0o700)),
        ("tmp".to_owned(), Entry::Directory(0o1777)),
        ("usr/bin/env".to_owned(), Entry::Link("../../bin/busybox".to_owned())),
    ]);
    for name in String::from_utf8_lossy(&output.stdout).lines().filter(|name| *name != "busybox") {
        layer.insert(format!("bin/{name}"), Entry::Link("busybox".to_owned()));
    }
    Ok(layer)
}

/// Programs that busybox has not, or not well enough, with their libraries.
fn tools(debian: &Path) -> Result<Layer> {
    let mut layer = Layer::new();
    let loader = debian.join("lib64/ld-linux-x86-64.so.2");
    let places =
        ["lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu"].map(|at| debian.join(at).display().to_string());
    for tool in TOOLS {
        let program = debian.join(tool);
        let output = Command::new(&loader)
            .args(["--library-path", &places.join(":"), "--list"])
            .arg(&program)
            .output()
            .with_context(|| format!("run {}", loader.display()))?;
        ensure!(output.status.success(), "the libraries of {} are not all there", program.display());
        for library in libraries(&String::from_utf8_lossy(&output.stdout)) {
            let from = PathBuf::from(&library);
            let Ok(at) = from.strip_prefix(debian) else { continue };
            layer.insert(at.display().to_string(), Entry::File(from.clone()));
        }
        let name = Path::new(tool).file_name().unwrap_or_default().to_string_lossy().replace(".openbsd", "");
        layer.insert(format!("usr/bin/{name}"), Entry::File(program));
    }
    layer.insert("lib64/ld-linux-x86-64.so.2".to_owned(), Entry::File(loader));
    layer.insert(
        "etc/nsswitch.conf".to_owned(),
        Entry::Text("passwd: files\ngroup: files\nhosts: files dns\n"),
    );
    layer.insert("bin/bash".to_owned(), Entry::File(debian.join("bin/bash-static")));
    // In the place of busybox's, which know less.
    for name in ["nc", "nslookup", "ip"] {
        layer.insert(format!("bin/{name}"), Entry::Link(format!("../usr/bin/{name}")));
    }
    Ok(layer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_tags_are_those_the_tests_ask_for() {
        let found = image("registry.k8s.io/e2e-test-images/agnhost:2.59\n").unwrap();
        assert_eq!(found.name, "registry.k8s.io/e2e-test-images/agnhost:2.59");
        assert_eq!(found.entrypoint, ["/agnhost"]);
        assert!(image("registry.k8s.io/sig-storage/nfs-provisioner:v4.0.8").is_none());
        assert!(image("").is_none());
    }
}
