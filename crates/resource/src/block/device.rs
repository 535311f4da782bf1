//! Disks, partitions and what is on them.

use ichor_resource_derive::ResourceSpec;

/// Every block device the kernel shows, disks and partitions alike, with the generation counter that
/// triggers re-probing.
///
/// Id: device name, e.g. `sda`, `sda1`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "BlockDevices.block.talos.dev", namespace = "runtime")]
#[resource(proto = "talos.resource.definitions.block.DeviceSpec")]
#[resource(columns(
    ("Type", "{.type}"),
    ("PartitionName", "{.partitionName}"),
    ("Generation", "{.generation}"),
))]
pub struct BlockDevice {
    #[spec(1, "type")]
    pub r#type: String,
    #[spec(2, "major")]
    pub major: i64,
    #[spec(3, "minor")]
    pub minor: i64,
    #[spec(4, "partitionName", omit)]
    pub partition_name: String,
    #[spec(5, "partitionNumber", omit)]
    pub partition_number: i64,
    #[spec(7, "devicePath")]
    pub device_path: String,
    #[spec(6, "generation")]
    pub generation: i64,
    #[spec(8, "parent", omit)]
    pub parent: String,
    #[spec(9, "secondaries", omit)]
    pub secondaries: Vec<String>,
}

/// Symlinks under /dev/disk that point at a device.
///
/// Id: device name.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "BlockSymlinks.block.talos.dev", namespace = "runtime")]
#[resource(proto = "talos.resource.definitions.block.SymlinkSpec")]
pub struct BlockSymlink {
    #[spec(1, "paths")]
    pub paths: Vec<String>,
}

/// What probing found on a device or partition: filesystem, partition table, label, UUIDs.
///
/// Id: device or partition name.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "DiscoveredVolumes.block.talos.dev", namespace = "runtime")]
#[resource(proto = "talos.resource.definitions.block.DiscoveredVolumeSpec")]
#[resource(columns(
    ("Type", "{.type}"),
    ("Size", "{.pretty_size}"),
    ("Discovered", "{.name}"),
    ("Label", "{.label}"),
    ("PartitionLabel", "{.partition_label}"),
))]
pub struct DiscoveredVolume {
    #[spec(17, "dev_path")]
    pub dev_path: String,
    #[spec(14, "type")]
    pub r#type: String,
    #[spec(15, "device_path")]
    pub device_path: String,
    #[spec(16, "parent", omit)]
    pub parent: String,
    #[spec(18, "parent_dev_path", omit)]
    pub parent_dev_path: String,
    #[spec(20, "offset")]
    pub offset: u64,
    #[spec(1, "size")]
    pub size: u64,
    #[spec(19, "pretty_size")]
    pub pretty_size: String,
    #[spec(2, "sector_size", omit)]
    pub sector_size: u64,
    #[spec(3, "io_size", omit)]
    pub io_size: u64,
    #[spec(4, "name")]
    pub name: String,
    #[spec(5, "uuid", omit)]
    pub uuid: String,
    #[spec(6, "label", omit)]
    pub label: String,
    #[spec(7, "block_size", omit)]
    pub block_size: u32,
    #[spec(8, "filesystem_block_size", omit)]
    pub filesystem_block_size: u32,
    #[spec(9, "probed_size", omit)]
    pub probed_size: u64,
    #[spec(10, "partition_uuid", omit)]
    pub partition_uuid: String,
    #[spec(11, "partition_type", omit)]
    pub partition_type: String,
    #[spec(12, "partition_label", omit)]
    pub partition_label: String,
    #[spec(13, "partition_index", omit)]
    pub partition_index: u64,
}

/// Counter bumped to ask the discovery controller for a fresh scan.
///
/// Id: `refresh`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "DiscoveryRefreshRequests.block.talos.dev", namespace = "runtime")]
#[resource(proto = "talos.resource.definitions.block.DiscoveryRefreshRequestSpec")]
#[resource(columns(("Request", "{.request}")))]
pub struct DiscoveryRefreshRequest {
    #[spec(1, "request")]
    pub request: i64,
}

/// Highest refresh request that discovery has served.
///
/// Id: `refresh`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "DiscoveryRefreshStatuses.block.talos.dev", namespace = "runtime")]
#[resource(proto = "talos.resource.definitions.block.DiscoveryRefreshStatusSpec")]
#[resource(columns(("Request", "{.request}")))]
pub struct DiscoveryRefreshStatus {
    #[spec(1, "request")]
    pub request: i64,
}

/// Whole disks with size, transport, identity and symlinks; the object that disk selectors are evaluated
/// against.
///
/// Id: disk name, e.g. `nvme0n1`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "Disks.block.talos.dev", namespace = "runtime")]
#[resource(proto = "talos.resource.definitions.block.DiskSpec")]
#[resource(columns(
    ("Size", "{.pretty_size}"),
    ("Read Only", "{.readonly}"),
    ("Transport", "{.transport}"),
    ("Rotational", "{.rotational}"),
    ("WWID", "{.wwid}"),
    ("Model", "{.model}"),
    ("Serial", "{.serial}"),
))]
pub struct Disk {
    #[spec(14, "dev_path")]
    pub dev_path: String,
    #[spec(1, "size")]
    pub size: u64,
    #[spec(15, "pretty_size")]
    pub pretty_size: String,
    #[spec(2, "io_size")]
    pub io_size: u64,
    #[spec(3, "sector_size")]
    pub sector_size: u64,
    #[spec(4, "readonly")]
    pub readonly: bool,
    #[spec(13, "cdrom")]
    pub cdrom: bool,
    #[spec(5, "model", omit)]
    pub model: String,
    #[spec(6, "serial", omit)]
    pub serial: String,
    #[spec(7, "modalias", omit)]
    pub modalias: String,
    #[spec(8, "wwid", omit)]
    pub wwid: String,
    #[spec(17, "uuid", omit)]
    pub uuid: String,
    #[spec(9, "bus_path", omit)]
    pub bus_path: String,
    #[spec(10, "sub_system", omit)]
    pub sub_system: String,
    #[spec(11, "transport", omit)]
    pub transport: String,
    #[spec(12, "rotational", omit)]
    pub rotational: bool,
    #[spec(16, "secondary_disks", omit)]
    pub secondary_disks: Vec<String>,
    #[spec(18, "symlinks", omit)]
    pub symlinks: Vec<String>,
}

/// Which disk holds the installed system.
///
/// Id: `system-disk`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "SystemDisks.block.talos.dev", namespace = "runtime")]
#[resource(proto = "talos.resource.definitions.block.SystemDiskSpec")]
#[resource(columns(("Disk", "{.diskID}")))]
pub struct SystemDisk {
    #[spec(1, "diskID")]
    pub disk_id: String,
    #[spec(2, "devPath")]
    pub dev_path: String,
}

/// One active swap device.
///
/// Id: swap device path.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "SwapStatuses.block.talos.dev", namespace = "runtime")]
#[resource(proto = "talos.resource.definitions.block.SwapStatusSpec")]
#[resource(aliases("swap", "swaps"))]
#[resource(columns(
    ("Device", "{.device}"),
    ("Size", "{.sizeHuman}"),
    ("Used", "{.usedHuman}"),
    ("Priority", "{.priority}"),
))]
pub struct SwapStatus {
    #[spec(1, "device")]
    pub device: String,
    #[spec(7, "type")]
    pub r#type: String,
    #[spec(2, "size")]
    pub size: u64,
    #[spec(3, "sizeHuman")]
    pub size_human: String,
    #[spec(4, "used")]
    pub used: u64,
    #[spec(5, "usedHuman")]
    pub used_human: String,
    #[spec(6, "priority")]
    pub priority: i32,
}

/// zswap counters from debugfs.
///
/// Id: `zswap`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "ZswapStatuses.block.talos.dev", namespace = "runtime")]
#[resource(proto = "talos.resource.definitions.block.ZswapStatusSpec")]
#[resource(columns(
    ("Total Size", "{.totalSizeHuman}"),
    ("Stored Pages", "{.storedPages}"),
    ("Written Back", "{.writtenBackPages}"),
    ("Pool Limit Hit", "{.poolLimitHit}"),
))]
pub struct ZswapStatus {
    #[spec(1, "totalSize")]
    pub total_size: u64,
    #[spec(2, "totalSizeHuman")]
    pub total_size_human: String,
    #[spec(3, "storedPages")]
    pub stored_pages: u64,
    #[spec(4, "poolLimitHit")]
    pub pool_limit_hit: u64,
    #[spec(5, "rejectReclaimFail")]
    pub reject_reclaim_fail: u64,
    #[spec(6, "rejectAllocFail")]
    pub reject_alloc_fail: u64,
    #[spec(7, "rejectKmemcacheFail")]
    pub reject_kmemcache_fail: u64,
    #[spec(8, "rejectCompressFail")]
    pub reject_compress_fail: u64,
    #[spec(9, "rejectCompressPoor")]
    pub reject_compress_poor: u64,
    #[spec(10, "writtenBackPages")]
    pub written_back_pages: u64,
}
