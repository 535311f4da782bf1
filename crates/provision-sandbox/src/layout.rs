//! Where things lie in the directory of a cluster.

use std::path::{Path, PathBuf};

/// Paths of one cluster.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    dir: PathBuf,
}

impl Layout {
    pub(crate) fn new(dir: &Path) -> Self {
        Self { dir: dir.to_owned() }
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Requests to the supervisor.
    pub(crate) fn control(&self) -> PathBuf {
        self.dir.join("control.sock")
    }

    /// What the supervisor has to say.
    pub(crate) fn log(&self) -> PathBuf {
        self.dir.join("supervisor.log")
    }

    /// A memory filesystem that only the supervisor and its machines see.
    pub(crate) fn run(&self) -> PathBuf {
        self.dir.join("run")
    }

    /// The root image, mounted.
    pub(crate) fn image(&self) -> PathBuf {
        self.run().join("image")
    }

    /// Which loop device shows the image, and whether the kernel made it for us.
    pub(crate) fn loop_device(&self) -> PathBuf {
        self.dir.join("loop")
    }

    /// The scope of systemd that the cluster is in, where it is in one: its path below the root of the hierarchy.
    pub(crate) fn scope(&self) -> PathBuf {
        self.dir.join("scope")
    }

    /// The controllers that the root of the unified hierarchy handed down before the cluster asked for more.
    pub(crate) fn controllers(&self) -> PathBuf {
        self.dir.join("controllers")
    }

    /// The host's cgroup hierarchies, mounted once more.
    pub(crate) fn cgroups(&self) -> PathBuf {
        self.run().join("cgroup")
    }

    /// The unified hierarchy of a host that keeps its controllers in others.
    pub(crate) fn unified(&self) -> PathBuf {
        self.run().join("unified")
    }

    /// The root of a booting machine.
    pub(crate) fn root(&self, machine: &str) -> PathBuf {
        self.run().join("machines").join(machine).join("root")
    }

    /// Files bound into a machine's `/proc`.
    pub(crate) fn files(&self, machine: &str) -> PathBuf {
        self.run().join("machines").join(machine).join("files")
    }

    /// What outlives a boot of a machine.
    pub(crate) fn machine(&self, machine: &str) -> PathBuf {
        self.dir.join("machines").join(machine)
    }

    /// The machine's STATE.
    pub(crate) fn state(&self, machine: &str) -> PathBuf {
        self.machine(machine).join("state")
    }

    /// The machine's image cache, where somebody put one.
    pub(crate) fn image_cache(&self, machine: &str) -> PathBuf {
        self.machine(machine).join("imagecache")
    }

    /// The machine's `/var`.
    pub(crate) fn var(&self, machine: &str) -> PathBuf {
        self.machine(machine).join("var")
    }

    /// The configuration the machine's platform offers.
    pub(crate) fn config(&self, machine: &str) -> PathBuf {
        self.machine(machine).join("config.yaml")
    }

    /// What the machine writes to its console.
    pub(crate) fn console(&self, machine: &str) -> PathBuf {
        self.dir.join(format!("{machine}.log"))
    }

    /// The name of the cluster's group in every cgroup hierarchy. The directory's own number keeps clusters of the
    /// same name in other homes apart.
    pub(crate) fn group(&self, cluster: &str) -> String {
        let bytes = self.dir.as_os_str().as_encoded_bytes();
        let hash = bytes
            .iter()
            .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193));
        format!("ichor-{cluster}-{hash:08x}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clusters_of_one_name_in_two_homes_have_two_groups() {
        let one = Layout::new(Path::new("/home/a/.talos/clusters/x")).group("x");
        let two = Layout::new(Path::new("/home/b/.talos/clusters/x")).group("x");
        assert!(one.starts_with("ichor-x-") && one != two, "{one} {two}");
    }
}
