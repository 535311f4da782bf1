//! Roots of containers, made by the real supervisor in a mount namespace of the test's own. Needs root.

use std::fs;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::time::{Duration, Instant};

use ichor_sys::mount::{self, MountFlags, Propagation};
use ichor_sys::mountinfo;
use ichor_sys::namespace::{self, Namespaces};
use ichor_sys::supervisor::{Child, Client, Event, SpawnRequest, Stage, local};

const WAIT: Duration = Duration::from_secs(20);

/// Runs `test` as if on a machine: all mounts shared among themselves, none with the host.
fn on_a_machine(test: fn(&Path)) {
    assert_eq!(fs::metadata("/proc/self").unwrap().uid(), 0, "this test has to be run as root");
    let machine = std::thread::spawn(move || {
        namespace::unshare(Namespaces::MOUNT).unwrap();
        mount::set_propagation(Path::new("/"), Propagation::Private).unwrap();
        let dir = tempfile::tempdir().unwrap();
        mount::mount("none", dir.path(), "tmpfs", MountFlags::empty(), "mode=0755").unwrap();
        mount::set_propagation(Path::new("/"), Propagation::Shared).unwrap();
        test(dir.path());
        mount::detach(dir.path()).unwrap();
    });
    if let Err(panic) = machine.join() {
        std::panic::resume_unwind(panic);
    }
}

/// An image of two layers at `dir`, with directories to write to.
fn image(dir: &Path) -> Vec<String> {
    for (layer, name, text) in
        [("one", "etc/both", "lower"), ("two", "etc/both", "upper"), ("one", "etc/one", "1")]
    {
        let path = dir.join("image").join(layer).join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    for name in ["up", "work"] {
        fs::create_dir(dir.join("image").join(name)).unwrap();
    }
    // As in images: a link that is meant for the image's own root.
    fs::create_dir(dir.join("image/one/var")).unwrap();
    symlink("/run", dir.join("image/one/var/run")).unwrap();
    fs::create_dir(dir.join("image/one/run")).unwrap();
    let mut root = vec![
        dir.join("image").to_str().unwrap().to_owned(),
        "lowerdir=two:one,upperdir=up,workdir=work".to_owned(),
    ];
    for part in ["/bin", "/lib", "/lib64", "/usr"] {
        root.extend([format!("r{part}"), part.to_owned()]);
    }
    root.extend(["W/proc".to_owned(), "/proc".to_owned()]);
    root
}

fn shell(root: Vec<String>, script: &str) -> SpawnRequest {
    SpawnRequest {
        args: ["sh", "-ec", script].map(str::to_owned).to_vec(),
        env: vec!["PATH=/bin:/usr/bin:/sbin:/usr/sbin".to_owned()],
        root,
        ..SpawnRequest::new("contained", "/bin/sh")
    }
}

fn next(client: &Client) -> Event {
    client.recv_timeout(WAIT).unwrap().expect("an event in time")
}

fn started(client: &Client, request: &SpawnRequest) -> Child {
    client.spawn(request, &[]).unwrap();
    match next(client) {
        Event::Spawned { child, .. } => child,
        other => panic!("not spawned: {other:?}"),
    }
}

fn output(client: &Client, child: Child) -> String {
    let mut text = String::new();
    File::from(child.output.unwrap()).read_to_string(&mut text).unwrap();
    match next(client) {
        Event::Exited { status, .. } => assert!(status.success(), "{status}: {text}"),
        other => panic!("{other:?}"),
    }
    text
}

fn mount_points() -> Vec<String> {
    // Of this thread: the process as a whole is in the host's namespace.
    let text = fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
    let mut points: Vec<String> = mountinfo::parse(&text).into_iter().map(|mount| mount.target).collect();
    points.sort();
    points
}

fn until(what: &str, mut check: impl FnMut() -> bool) {
    let deadline = Instant::now() + WAIT;
    while !check() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_container_sees_its_image_and_writes_beside_it() {
    on_a_machine(|dir| {
        fs::write(dir.join("names"), "machine").unwrap();
        let mut root = image(dir);
        root.extend([format!("r{}", dir.join("names").display()), "/etc/deep/er/names".to_owned()]);
        root.extend(["r/no/such/file".to_owned(), "/etc/missing".to_owned()]);
        let before = mount_points();
        let client = local::start().unwrap();
        let script = "cat /etc/both /etc/one /etc/deep/er/names; echo; ls /; echo new > /etc/new; \
                      test ! -e /etc/missing; (exec 2>&-; echo x > /etc/deep/er/names) || echo refused; \
                      readlink /proc/self/root; pwd";
        let child = started(&client, &shell(root, script));
        assert_eq!(
            output(&client, child),
            "upper1machine\nbin\netc\nlib\nlib64\nproc\nrun\nusr\nvar\nrefused\n/\n/\n"
        );
        assert_eq!(fs::read_to_string(dir.join("image/up/etc/new")).unwrap(), "new\n");
        assert_eq!(fs::read_to_string(dir.join("names")).unwrap(), "machine");
        assert_eq!(mount_points(), before, "nothing of it shows on the machine");
    });
}

#[test]
fn mounts_below_a_shared_one_show_on_both_sides() {
    on_a_machine(|dir| {
        let pods = dir.join("pods");
        fs::create_dir_all(pods.join("earlier")).unwrap();
        fs::create_dir_all(dir.join("private/sub")).unwrap();
        mount::mount("none", &pods.join("earlier"), "tmpfs", MountFlags::empty(), "").unwrap();
        fs::write(pods.join("earlier/file"), "").unwrap();
        let mut root = image(dir);
        root.extend([format!("W{}", pods.display()), "/var/lib/pods".to_owned()]);
        root.extend([format!("w{}", dir.join("private").display()), "/private".to_owned()]);
        let client = local::start().unwrap();
        // Looks for the mount of a path as kubelets do: the last of the list counts. It must be found to be shared.
        let script = "while read -r _ _ _ _ at _ how _; do case /var/lib/pods/ in ${at%/}/*) last=$how;; esac; \
                      done < /proc/self/mountinfo; case $last in shared:*) ;; *) echo not shared;; esac; \
                      mkdir /var/lib/pods/inner; mount -t tmpfs none /var/lib/pods/inner; \
                      mount -t tmpfs none /private/sub; touch /var/lib/pods/inner/made; ls /var/lib/pods/earlier; \
                      while test ! -e /var/lib/pods/later/sign; do sleep 0.02; done; echo seen";
        let child = started(&client, &shell(root, script));
        until("the container's mount shows on the machine", || pods.join("inner/made").exists());
        assert!(!mount::is_mounted(&dir.join("private/sub")), "what is not shared stays inside");
        fs::create_dir(pods.join("later")).unwrap();
        mount::mount("none", &pods.join("later"), "tmpfs", MountFlags::empty(), "").unwrap();
        fs::write(pods.join("later/sign"), "").unwrap();
        assert_eq!(output(&client, child), "file\nseen\n");
        // Its end takes none of the machine's mounts along.
        for name in ["earlier/file", "inner/made", "later/sign"] {
            assert!(pods.join(name).exists(), "{name}");
        }
    });
}

#[test]
fn a_link_of_the_image_leads_into_the_image() {
    on_a_machine(|dir| {
        fs::create_dir(dir.join("run")).unwrap();
        fs::write(dir.join("run/socket"), "").unwrap();
        let mut root = image(dir);
        root.extend([format!("W{}", dir.join("run").display()), "/var/run".to_owned()]);
        let before = mount_points();
        let client = local::start().unwrap();
        let child = started(&client, &shell(root, "ls /run"));
        assert_eq!(output(&client, child), "socket\n");
        assert_eq!(mount_points(), before);
    });
}

#[test]
fn proc_is_the_machines_own_with_what_covers_it() {
    on_a_machine(|dir| {
        fs::write(dir.join("version"), "covered\n").unwrap();
        mount::bind(&dir.join("version"), Path::new("/proc/version"), false).unwrap();
        let root = image(dir);
        let client = local::start().unwrap();
        let child = started(&client, &shell(root, "cat /proc/version; cat /proc/self/comm"));
        assert_eq!(output(&client, child), "covered\ncat\n");
        mount::unmount(Path::new("/proc/version")).unwrap();
    });
}

#[test]
fn a_directory_can_be_the_root() {
    on_a_machine(|dir| {
        let mut root = image(dir);
        root[1] = format!("bind:{}", dir.join("image/one").display());
        let client = local::start().unwrap();
        let child = started(&client, &shell(root, "cat /etc/both"));
        assert_eq!(output(&client, child), "lower");
    });
}

#[test]
fn a_root_can_be_read_only_and_what_it_covers_stays_its_own() {
    on_a_machine(|dir| {
        fs::create_dir(dir.join("data")).unwrap();
        fs::create_dir(dir.join("empty")).unwrap();
        mount::mount("none", &dir.join("data"), "tmpfs", MountFlags::empty(), "").unwrap();
        fs::create_dir(dir.join("data/secret")).unwrap();
        fs::write(dir.join("data/secret/file"), "hidden").unwrap();
        let mut root = image(dir);
        root[1] = format!("ro:{}", root[1]);
        root.extend([format!("S{}", dir.join("data").display()), "/data".to_owned()]);
        root.extend([format!("r{}", dir.join("empty").display()), "/data/secret".to_owned()]);
        let before = mount_points();
        let client = local::start().unwrap();
        let script = "(exec 2>&-; echo x > /etc/new) || echo refused; ls /data/secret; echo y > /data/new";
        let child = started(&client, &shell(root, script));
        assert_eq!(output(&client, child), "refused\n");
        assert_eq!(fs::read_to_string(dir.join("data/new")).unwrap(), "y\n");
        assert_eq!(fs::read_to_string(dir.join("data/secret/file")).unwrap(), "hidden");
        assert_eq!(mount_points(), before, "nothing of it shows on the machine");
    });
}

#[test]
fn what_makes_no_sense_is_refused() {
    on_a_machine(|dir| {
        let client = local::start().unwrap();
        for bad in [["x/etc", "/etc"], ["r/etc", "etc"], ["r/etc", "/a/../../etc"], ["r", "/etc"]] {
            let mut root = image(dir);
            root.extend(bad.map(str::to_owned));
            fs::remove_dir_all(dir.join("image")).unwrap();
            client.spawn(&shell(root, "true"), &[]).unwrap();
            match next(&client) {
                Event::Failed { failure, .. } => assert_eq!(failure.stage, Stage::Mounts, "{bad:?}"),
                // An empty source is one that does not exist, and then the layers are gone.
                other => panic!("{bad:?}: {other:?}"),
            }
        }
    });
}
