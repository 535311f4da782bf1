//! Where things lie in the directory of a cluster of sandbox machines.

use std::path::PathBuf;

use ichor_provision_local::Layout;

/// Paths that only sandbox machines have.
pub(crate) trait Paths {
    /// The root image, mounted.
    fn image(&self) -> PathBuf;

    /// Which loop device shows the image, and whether the kernel made it for us.
    fn loop_device(&self) -> PathBuf;

    /// The scope of systemd that the cluster is in, where it is in one: its path below the root of the hierarchy.
    fn scope(&self) -> PathBuf;

    /// The controllers that the root of the unified hierarchy handed down before the cluster asked for more.
    fn controllers(&self) -> PathBuf;

    /// The host's cgroup hierarchies, mounted once more.
    fn cgroups(&self) -> PathBuf;

    /// The unified hierarchy of a host that keeps its controllers in others.
    fn unified(&self) -> PathBuf;

    /// The root of a booting machine.
    fn root(&self, machine: &str) -> PathBuf;

    /// Files bound into a machine's `/proc`.
    fn files(&self, machine: &str) -> PathBuf;

    /// The machine's STATE.
    fn state(&self, machine: &str) -> PathBuf;

    /// The machine's image cache, where somebody put one.
    fn image_cache(&self, machine: &str) -> PathBuf;

    /// The machine's `/var`.
    fn var(&self, machine: &str) -> PathBuf;

    /// The name of the cluster's group in every cgroup hierarchy. The directory's own number keeps clusters of the
    /// same name in other homes apart.
    fn group(&self, cluster: &str) -> String;
}

impl Paths for Layout {
    fn image(&self) -> PathBuf {
        self.run().join("image")
    }

    fn loop_device(&self) -> PathBuf {
        self.dir().join("loop")
    }

    fn scope(&self) -> PathBuf {
        self.dir().join("scope")
    }

    fn controllers(&self) -> PathBuf {
        self.dir().join("controllers")
    }

    fn cgroups(&self) -> PathBuf {
        self.run().join("cgroup")
    }

    fn unified(&self) -> PathBuf {
        self.run().join("unified")
    }

    fn root(&self, machine: &str) -> PathBuf {
        self.run().join("machines").join(machine).join("root")
    }

    fn files(&self, machine: &str) -> PathBuf {
        self.run().join("machines").join(machine).join("files")
    }

    fn state(&self, machine: &str) -> PathBuf {
        self.machine(machine).join("state")
    }

    fn image_cache(&self, machine: &str) -> PathBuf {
        self.machine(machine).join("imagecache")
    }

    fn var(&self, machine: &str) -> PathBuf {
        self.machine(machine).join("var")
    }

    fn group(&self, cluster: &str) -> String {
        let bytes = self.dir().as_os_str().as_encoded_bytes();
        let hash = bytes
            .iter()
            .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193));
        format!("ichor-{cluster}-{hash:08x}")
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn clusters_of_one_name_in_two_homes_have_two_groups() {
        let one = Layout::new(Path::new("/home/a/.talos/clusters/x")).group("x");
        let two = Layout::new(Path::new("/home/b/.talos/clusters/x")).group("x");
        assert!(one.starts_with("ichor-x-") && one != two, "{one} {two}");
    }
}
