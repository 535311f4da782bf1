//! A disk that hangs must not keep a machine from restarting.
//!
//! A program of its own: work with a deadline runs in a child, and only a program with one thread may fork.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ichor_sys::bounded::{self, Ended};
use ichor_sys::loopdev::LoopDevice;
use ichor_sys::mount::{self, MountFlags, Propagation};
use ichor_sys::namespace::{self, Namespaces};
use ichor_sys::{power, signal};

const LIMIT: Duration = Duration::from_millis(500);
/// What a busy machine may add.
const SLACK: Duration = Duration::from_secs(10);

fn main() {
    work_that_never_returns_is_left_behind();
    a_hung_unmount_delays_no_other();
    match File::options().read(true).write(true).open("/dev/fuse") {
        Ok(fuse) => a_disk_that_hangs_in_the_kernel_is_left_behind(fuse),
        Err(error) => println!("stop: /dev/fuse: {error}; a hang inside of the kernel was not tried"),
    }
    println!("stop: ok");
}

fn work_that_never_returns_is_left_behind() {
    let start = Instant::now();
    assert!(matches!(bounded::run(LIMIT, || std::thread::sleep(Duration::MAX)), Ended::Late));
    assert!((LIMIT..SLACK).contains(&start.elapsed()), "{:?}", start.elapsed());
    assert!(matches!(bounded::run(SLACK, || {}), Ended::Done));
    reap();
}

fn a_hung_unmount_delays_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let targets: Vec<PathBuf> = ["first", "hangs", "last"].map(|name| dir.path().join(name)).to_vec();
    let mut late = Vec::new();
    let start = Instant::now();
    let unmount = |target: &Path| match target.ends_with("hangs") {
        true => std::thread::sleep(Duration::MAX),
        false => std::fs::write(target, "unmounted").unwrap(),
    };
    power::unmount_each(&targets, LIMIT, unmount, |target| late.push(target.to_owned()));
    assert!(start.elapsed() < SLACK, "{:?}", start.elapsed());
    assert_eq!(late, [targets[1].clone()]);
    assert!(targets[0].exists() && targets[2].exists());
    reap();
}

/// The filesystem of a block device whose server stops answering: the unmount waits in the kernel, out of the reach of
/// SIGKILL, as it does for a disk that is gone.
fn a_disk_that_hangs_in_the_kernel_is_left_behind(mut fuse: File) {
    let dir = tempfile::tempdir().unwrap();
    let (target, image, ready) = (dir.path().join("mnt"), dir.path().join("disk"), dir.path().join("ready"));
    std::fs::create_dir(&target).unwrap();
    std::fs::write(&image, vec![0; 1 << 20]).unwrap();
    // Mounts of its own, so that nothing of this is left on the host.
    namespace::unshare(Namespaces::MOUNT).unwrap();
    mount::set_propagation(Path::new("/"), Propagation::Private).unwrap();
    let device = LoopDevice::attach_read_only(&image).unwrap();
    let options = format!("fd={},rootmode=40000,user_id=0,group_id=0,blksize=512", fuse.as_raw_fd());
    let source = device.path().to_str().unwrap();
    mount::mount(source, &target, "fuseblk", MountFlags::RDONLY, &options).unwrap();
    let server = namespace::fork(|| {
        answer_init(&mut fuse);
        std::fs::write(&ready, "").unwrap();
        std::thread::sleep(Duration::MAX);
        0
    })
    .unwrap();
    // The child has the only other one; with it the connection ends.
    drop(fuse);
    let start = Instant::now();
    while !ready.exists() {
        assert!(start.elapsed() < SLACK, "the server of the filesystem does not start");
        std::thread::sleep(Duration::from_millis(5));
    }

    assert_eq!(power::disk_mounts().first(), Some(&target), "the innermost is the last mounted");
    let mut late = Vec::new();
    let start = Instant::now();
    let targets = [target.clone()];
    power::unmount_each(&targets, LIMIT, power::unmount_disk, |target| late.push(target.to_owned()));
    let took = start.elapsed();
    signal::send(server, 9).unwrap();
    assert_eq!(late, [target], "it did not hang");
    assert!(took < SLACK, "{took:?}");
    reap();
}

/// Answers the first request of a FUSE connection (`FUSE_INIT`); without it there is nothing to wait for at the end.
fn answer_init(fuse: &mut File) {
    let mut request = [0; 8192];
    let len = fuse.read(&mut request).unwrap();
    assert!(len >= 40 && request[4..8] == 26u32.to_le_bytes(), "not FUSE_INIT");
    let mut answer = [0; 16 + 64];
    answer[..4].copy_from_slice(&80u32.to_le_bytes());
    answer[8..16].copy_from_slice(&request[8..16]);
    // Version 7.31, writes of 4 KiB, times to the nanosecond.
    for (at, number) in [(16, 7u32), (20, 31), (36, 4096), (40, 1)] {
        answer[at..at + 4].copy_from_slice(&number.to_le_bytes());
    }
    fuse.write_all(&answer).unwrap();
}

/// Waits for the children that were left behind: killed, or freed by the end of their filesystem.
fn reap() {
    let start = Instant::now();
    while rustix::process::wait(rustix::process::WaitOptions::NOHANG).is_ok() {
        assert!(start.elapsed() < SLACK, "a child does not end");
        std::thread::sleep(Duration::from_millis(5));
    }
}
