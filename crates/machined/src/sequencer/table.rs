//! Which phases a sequence has. Data and pure functions.

use std::time::Duration;

use ichor_wire::machine::reset_request::WipeMode;

/// The sequences, by the numbers clients know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sequence {
    /// Nothing.
    Noop,
    /// Starts the configured machine.
    Boot,
    /// Early services and the configuration.
    Initialize,
    /// Puts the system on disk.
    Install,
    /// Ends in power off.
    Shutdown,
    /// Puts a new system on disk.
    Upgrade,
    /// Notes an upgrade for the next boot.
    StageUpgrade,
    /// An upgrade before there is a configuration.
    MaintenanceUpgrade,
    /// Forgets everything.
    Reset,
    /// Starts the machine again.
    Reboot,
}

impl Sequence {
    /// The name clients know.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Noop => "noop",
            Self::Boot => "boot",
            Self::Initialize => "initialize",
            Self::Install => "install",
            Self::Shutdown => "shutdown",
            Self::Upgrade => "upgrade",
            Self::StageUpgrade => "stageUpgrade",
            Self::MaintenanceUpgrade => "maintenanceUpgrade",
            Self::Reset => "reset",
            Self::Reboot => "reboot",
        }
    }
}

/// What a reset is to forget.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResetRequest {
    /// Leave the cluster first.
    pub graceful: bool,
    /// Reboot at the end instead of powering off.
    pub reboot: bool,
    /// System disk, user disks or both.
    pub mode: WipeMode,
    /// Only these system partitions; empty is all.
    pub partitions: Vec<String>,
    /// Other disks that are wiped as a whole.
    pub user_disks: Vec<String>,
}

/// An installer that is to write the slot that is not in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpgradeRequest {
    /// Its image.
    pub image: String,
    /// Whatever it is.
    pub force: bool,
}

/// A sequence and what was asked of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Early services and the configuration.
    Initialize,
    /// Puts the system on disk, unless it is there already and no upgrade was staged.
    Install {
        /// Whether there is anything to do.
        needed: bool,
    },
    /// Puts a new system on disk.
    Upgrade(UpgradeRequest),
    /// Ends the machine so that the staged upgrade is found at its next start.
    StageUpgrade,
    /// Puts a new system on disk before there is a configuration.
    MaintenanceUpgrade(UpgradeRequest),
    /// Starts the configured machine.
    Boot,
    /// Starts the machine again; `force` skips everything on the way.
    Reboot {
        /// At once.
        force: bool,
    },
    /// Ends in power off; `force` skips cordon and drain.
    Shutdown {
        /// Without saying goodbye to the cluster.
        force: bool,
    },
    /// Forgets everything.
    Reset(ResetRequest),
}

impl Request {
    /// The sequence it asks for.
    pub fn sequence(&self) -> Sequence {
        match self {
            Self::Initialize => Sequence::Initialize,
            Self::Install { .. } => Sequence::Install,
            Self::Upgrade(_) => Sequence::Upgrade,
            Self::StageUpgrade => Sequence::StageUpgrade,
            Self::MaintenanceUpgrade(_) => Sequence::MaintenanceUpgrade,
            Self::Boot => Sequence::Boot,
            Self::Reboot { .. } => Sequence::Reboot,
            Self::Shutdown { .. } => Sequence::Shutdown,
            Self::Reset(_) => Sequence::Reset,
        }
    }
}

/// A condition looked at when its phase is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Check {
    /// The kernel is this machine's alone.
    OwnsKernel,
    /// The device manager runs on this machine.
    HasUdevd,
    /// The dashboard is shown on the console.
    HasDashboard,
    /// The kernel was told to stop here where the system is on a disk already, and it is.
    HaltsIfInstalled,
    /// The kubelet registers this machine with Kubernetes.
    Registers,
}

/// Everything a sequence can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Task {
    /// Checks that the kernel protects itself as it should.
    EnforceKspp,
    /// Starts the device manager and waits for it.
    StartUdevd,
    /// Starts the machine API and waits for it.
    StartMachined,
    /// Starts the log of the kernel's audit records.
    StartAuditd,
    /// Starts the log of what programs say.
    StartSyslogd,
    /// Reads META.
    ReloadMeta,
    /// Starts the dashboard on the console.
    StartDashboard,
    /// Waits for somebody to take the installation medium out.
    HaltIfInstalled,
    /// Gets the machine configuration from wherever it is.
    LoadConfig,
    /// Warns when there is little memory.
    MemorySizeCheck,
    /// Gives the device manager the rules of the configuration.
    WriteUdevRules,
    /// Mounts the volume of workloads.
    MountEphemeralPartition,
    /// Waits for the additional disks of the configuration.
    MountUserDisks,
    /// Writes the files of the configuration.
    WriteUserFiles,
    /// Starts the services of a configured machine and waits for all.
    StartAllServices,
    /// From now on an emergency ends in power off.
    StoreShutdown,
    /// Stops what runs on the data volume.
    StopServicesForUpgrade,
    /// Moves workloads to other machines.
    CordonAndDrainNode,
    /// Stops the kubelet and all pods.
    StopAllPods,
    /// Stops the kubelet and removes all pods.
    RemoveAllPods,
    /// Takes the member of this machine out of etcd.
    LeaveEtcd,
    /// Tells everyone that the reset is about to happen.
    SendResetSignal,
    /// Unmounts what pods left.
    UnmountPodMounts,
    /// Unmounts what shows a part of the volume of workloads elsewhere.
    UnmountSystemDiskBindMounts,
    /// Lets the volume of workloads go.
    UnmountEphemeralPartition,
    /// Lets the volumes go: nothing is written after this.
    TeardownLifecycle,
    /// Ends all services for good.
    StopAllServices,
    /// Puts the system on disk.
    Install,
    /// Reads META of the disk that was just installed.
    ReloadInstalledMeta,
    /// Writes META.
    FlushMeta,
    /// Writes the slot that is not in use.
    Upgrade,
    /// Clears the system volumes.
    ResetSystemDisk,
    /// Clears the named system volumes.
    ResetSystemDiskSpec,
    /// Wipes other disks.
    ResetUserDisks,
    /// Restarts the machine.
    Reboot,
    /// Powers the machine off.
    Shutdown,
}

impl Task {
    /// The name clients know.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::EnforceKspp => "enforceKSPPRequirements",
            Self::StartUdevd => "startUdevd",
            Self::StartMachined => "startMachined",
            Self::StartAuditd => "startAuditd",
            Self::StartSyslogd => "startSyslogd",
            Self::ReloadMeta => "reloadMeta",
            Self::StartDashboard => "startDashboard",
            Self::HaltIfInstalled => "haltIfInstalled",
            Self::LoadConfig => "loadConfig",
            Self::MemorySizeCheck => "memorySizeCheck",
            Self::WriteUdevRules => "writeUdevRules",
            Self::MountEphemeralPartition => "mountEphemeralPartition",
            Self::MountUserDisks => "mountUserDisks",
            Self::WriteUserFiles => "writeUserFiles",
            Self::StartAllServices => "startAllServices",
            Self::StoreShutdown => "storeShutdown",
            Self::StopServicesForUpgrade => "stopServicesForUpgrade",
            Self::CordonAndDrainNode => "cordonAndDrainNode",
            Self::StopAllPods => "stopAllPods",
            Self::RemoveAllPods => "removeAllPods",
            Self::LeaveEtcd => "leaveEtcd",
            Self::SendResetSignal => "sendResetSignal",
            Self::UnmountPodMounts => "unmountPodMounts",
            Self::UnmountSystemDiskBindMounts => "unmountSystemDiskBindMounts",
            Self::UnmountEphemeralPartition => "unmountEphemeralPartition",
            Self::TeardownLifecycle => "teardownLifecycle",
            Self::StopAllServices => "stopAllServices",
            Self::Install => "install",
            Self::ReloadInstalledMeta => "reloadMeta",
            Self::FlushMeta => "flushMeta",
            Self::Upgrade => "upgrade",
            Self::ResetSystemDisk => "resetSystemDisk",
            Self::ResetSystemDiskSpec => "resetSystemDiskSpec",
            Self::ResetUserDisks => "resetUserDisks",
            Self::Reboot => "reboot",
            Self::Shutdown => "shutdown",
        }
    }

    /// The deadline. Loading a configuration has none that matters: a machine may wait in
    /// maintenance mode for weeks.
    pub fn limit(self) -> Duration {
        const MINUTE: Duration = Duration::from_secs(60);
        match self {
            Self::LoadConfig => MINUTE * 60 * 24 * 365 * 10,
            Self::StartAllServices => MINUTE * 70,
            // Fails by itself after 70 minutes, with a reason.
            Self::HaltIfInstalled => MINUTE * 71,
            Self::StartUdevd | Self::LeaveEtcd => MINUTE * 10,
            // A minute to be cordoned, five to be drained; half a minute for those who hold the kubelet, its grace,
            // three for the pods.
            Self::CordonAndDrainNode => MINUTE * 7,
            Self::StopAllPods | Self::RemoveAllPods => MINUTE * 5,
            // A disk is formatted first, and one that is broken is repaired.
            Self::MountEphemeralPartition => MINUTE * 30,
            Self::StartMachined | Self::TeardownLifecycle | Self::ReloadMeta | Self::MountUserDisks => {
                MINUTE * 5
            }
            // An image is pulled, written to a slow disk and read back.
            Self::Install | Self::Upgrade => MINUTE * 30,
            Self::ResetSystemDisk | Self::ResetSystemDiskSpec | Self::ResetUserDisks => MINUTE * 10,
            Self::StopServicesForUpgrade | Self::StopAllServices => MINUTE * 2,
            Self::EnforceKspp | Self::WriteUdevRules | Self::WriteUserFiles => MINUTE * 2,
            Self::UnmountPodMounts
            | Self::UnmountSystemDiskBindMounts
            | Self::UnmountEphemeralPartition
            | Self::StartAuditd
            | Self::StartSyslogd
            | Self::StartDashboard
            | Self::MemorySizeCheck
            | Self::StoreShutdown
            | Self::SendResetSignal
            | Self::ReloadInstalledMeta
            | Self::FlushMeta
            | Self::Reboot
            | Self::Shutdown => MINUTE,
        }
    }
}

/// Tasks that run side by side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Phase {
    /// The name clients know.
    pub name: &'static str,
    /// Its tasks.
    pub tasks: &'static [Task],
    /// Looked at when the phase is reached.
    pub check: Option<Check>,
    /// A failed task is logged and the sequence goes on: a machine that stops must get there.
    pub forgiving: bool,
}

const fn phase(name: &'static str, tasks: &'static [Task]) -> Phase {
    Phase { name, tasks, check: None, forgiving: false }
}

const fn only(name: &'static str, tasks: &'static [Task], check: Check) -> Phase {
    Phase { name, tasks, check: Some(check), forgiving: false }
}

const fn forgiving(name: &'static str, tasks: &'static [Task]) -> Phase {
    Phase { name, tasks, check: None, forgiving: true }
}

const INITIALIZE: &[Phase] = &[
    only("systemRequirements", &[Task::EnforceKspp], Check::OwnsKernel),
    only("udevd", &[Task::StartUdevd], Check::HasUdevd),
    phase("earlyServices", &[Task::StartMachined]),
    // A machine without these logs is better than none.
    Phase {
        forgiving: true,
        ..only("logServices", &[Task::StartAuditd, Task::StartSyslogd], Check::OwnsKernel)
    },
    forgiving("meta", &[Task::ReloadMeta]),
    Phase { forgiving: true, ..only("dashboard", &[Task::StartDashboard], Check::HasDashboard) },
    only("haltIfInstalled", &[Task::HaltIfInstalled], Check::HaltsIfInstalled),
    phase("config", &[Task::LoadConfig]),
];

const BOOT: &[Phase] = &[
    phase("memorySizeCheck", &[Task::MemorySizeCheck]),
    only("ephemeral", &[Task::MountEphemeralPartition], Check::OwnsKernel),
    // A rule or a file that is wrong must not keep a machine from its cluster.
    Phase { forgiving: true, ..only("udevSetup", &[Task::WriteUdevRules], Check::HasUdevd) },
    Phase { forgiving: true, ..only("userDisks", &[Task::MountUserDisks], Check::OwnsKernel) },
    forgiving("userSetup", &[Task::WriteUserFiles]),
    phase("startEverything", &[Task::StartAllServices]),
];

/// Says goodbye to the cluster.
const DRAIN: Phase = Phase {
    name: "drain",
    tasks: &[Task::CordonAndDrainNode],
    check: Some(Check::Registers),
    forgiving: true,
};

const STOP_PODS: Phase = forgiving("cleanup", &[Task::StopAllPods]);
const REMOVE_PODS: Phase = forgiving("cleanup", &[Task::RemoveAllPods]);

/// Shared by everything that ends a machine. What is still mounted at the end is unmounted by init, last of all.
const STOP_ALL: &[Phase] = &[
    forgiving("stopServices", &[Task::StopServicesForUpgrade]),
    Phase { forgiving: true, ..only("umount", &[Task::UnmountPodMounts], Check::OwnsKernel) },
    Phase { forgiving: true, ..only("unmountBind", &[Task::UnmountSystemDiskBindMounts], Check::OwnsKernel) },
    // Clients take this one for the moment from which the machine is about to be gone.
    forgiving("unmountSystem", &[Task::UnmountEphemeralPartition]),
    forgiving("volumeFinalize", &[Task::TeardownLifecycle]),
    forgiving("stopEverything", &[Task::StopAllServices]),
];

/// After the first installation, the machine starts from its disk. The configuration gets there while volumes are let go.
const INSTALL: &[Phase] = &[
    phase("install", &[Task::Install]),
    forgiving("meta", &[Task::ReloadInstalledMeta]),
    forgiving("saveMeta", &[Task::FlushMeta]),
    forgiving("volumeFinalize", &[Task::TeardownLifecycle]),
    forgiving("stopEverything", &[Task::StopAllServices]),
    phase("reboot", &[Task::Reboot]),
];

/// The new system is written while the container runtime, which holds its image, still runs. Until the boot loader has started
/// it once and it was healthy, the old one stays the default.
const WRITE_SLOT: Phase = phase("upgrade", &[Task::Upgrade]);

/// The phases of a request, in order.
pub fn plan(request: &Request) -> Vec<Phase> {
    let mut phases = Vec::new();
    match request {
        Request::Initialize => phases.extend(INITIALIZE),
        Request::Install { needed } => phases.extend(INSTALL.iter().filter(|_| *needed)),
        Request::Upgrade(_) => {
            phases.extend([DRAIN, STOP_PODS, WRITE_SLOT]);
            phases.extend(STOP_ALL);
            phases.push(phase("reboot", &[Task::Reboot]));
        }
        Request::StageUpgrade => {
            phases.push(STOP_PODS);
            phases.extend(STOP_ALL);
            phases.push(phase("reboot", &[Task::Reboot]));
        }
        Request::MaintenanceUpgrade(_) => phases.extend([
            WRITE_SLOT,
            forgiving("stopEverything", &[Task::StopAllServices]),
            phase("reboot", &[Task::Reboot]),
        ]),
        Request::Boot => phases.extend(BOOT),
        Request::Reboot { force } => {
            if !force {
                phases.push(STOP_PODS);
                phases.extend(STOP_ALL);
            }
            phases.push(phase("reboot", &[Task::Reboot]));
        }
        Request::Shutdown { force } => {
            phases.push(phase("storeShutdown", &[Task::StoreShutdown]));
            if !force {
                phases.push(DRAIN);
            }
            phases.push(STOP_PODS);
            phases.extend(STOP_ALL);
            phases.push(phase("shutdown", &[Task::Shutdown]));
        }
        Request::Reset(reset) => {
            if reset.graceful {
                phases.push(DRAIN);
            }
            phases.push(if reset.graceful { REMOVE_PODS } else { STOP_PODS });
            if reset.graceful {
                phases.push(phase("leave", &[Task::LeaveEtcd]));
            }
            phases.push(phase("preReset", &[Task::SendResetSignal]));
            phases.extend(STOP_ALL);
            if reset.mode != WipeMode::UserDisks {
                phases.push(match reset.partitions.is_empty() {
                    true => phase("reset", &[Task::ResetSystemDisk]),
                    false => phase("resetSpec", &[Task::ResetSystemDiskSpec]),
                });
            }
            if reset.mode != WipeMode::SystemDisk && !reset.user_disks.is_empty() {
                phases.push(phase("resetUserDisks", &[Task::ResetUserDisks]));
            }
            phases.push(match reset.reboot {
                true => phase("reboot", &[Task::Reboot]),
                false => phase("shutdown", &[Task::Shutdown]),
            });
        }
    }
    phases
}
