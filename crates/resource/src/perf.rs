//! Performance counters.

use ichor_resource_derive::{ResourceSpec, SpecMessage};

/// CPU counters sampled periodically.
///
/// Id: `latest`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "CPUStats.perf.talos.dev", namespace = "perf")]
#[resource(proto = "talos.resource.definitions.perf.CPUSpec")]
#[resource(columns(("User", "{.cpuTotal.user}"), ("System", "{.cpuTotal.system}")))]
pub struct CPUStats {
    #[spec(1, "cpu")]
    pub cpu: Vec<CPUStat>,
    #[spec(2, "cpuTotal")]
    pub cpu_total: CPUStat,
    #[spec(3, "irqTotal")]
    pub irq_total: u64,
    #[spec(4, "contextSwitches")]
    pub context_switches: u64,
    #[spec(5, "processCreated")]
    pub process_created: u64,
    #[spec(6, "processRunning")]
    pub process_running: u64,
    #[spec(7, "processBlocked")]
    pub process_blocked: u64,
    #[spec(8, "softIrqTotal")]
    pub soft_irq_total: u64,
}

/// Part of a spec: `perf.CPUStat`.
#[derive(Debug, Clone, Default, PartialEq, SpecMessage)]
#[resource(proto = "talos.resource.definitions.perf.CPUStat")]
pub struct CPUStat {
    #[spec(1, "user")]
    pub user: f64,
    #[spec(2, "nice")]
    pub nice: f64,
    #[spec(3, "system")]
    pub system: f64,
    #[spec(4, "idle")]
    pub idle: f64,
    #[spec(5, "iowait")]
    pub iowait: f64,
    #[spec(6, "irq")]
    pub irq: f64,
    #[spec(7, "softIrq")]
    pub soft_irq: f64,
    #[spec(8, "steal")]
    pub steal: f64,
    #[spec(9, "guest")]
    pub guest: f64,
    #[spec(10, "guestNice")]
    pub guest_nice: f64,
}

/// Memory counters sampled periodically.
///
/// Id: `latest`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "MemoryStats.perf.talos.dev", namespace = "perf")]
#[resource(proto = "talos.resource.definitions.perf.MemorySpec")]
#[resource(columns(("Used", "{.used}"), ("Total", "{.total}")))]
pub struct MemoryStats {
    #[spec(1, "total")]
    pub total: u64,
    #[spec(2, "used")]
    pub used: u64,
    #[spec(3, "available")]
    pub available: u64,
    #[spec(4, "buffers")]
    pub buffers: u64,
    #[spec(5, "cached")]
    pub cached: u64,
    #[spec(6, "swapCached")]
    pub swap_cached: u64,
    #[spec(7, "active")]
    pub active: u64,
    #[spec(8, "inactive")]
    pub inactive: u64,
    #[spec(9, "activeAnon")]
    pub active_anon: u64,
    #[spec(10, "inactiveAnon")]
    pub inactive_anon: u64,
    #[spec(11, "activeFile")]
    pub active_file: u64,
    #[spec(12, "inactiveFile")]
    pub inactive_file: u64,
    #[spec(13, "unevictable")]
    pub unevictable: u64,
    #[spec(14, "mlocked")]
    pub mlocked: u64,
    #[spec(15, "swapTotal")]
    pub swap_total: u64,
    #[spec(16, "swapFree")]
    pub swap_free: u64,
    #[spec(17, "dirty")]
    pub dirty: u64,
    #[spec(18, "writeback")]
    pub writeback: u64,
    #[spec(19, "anonPages")]
    pub anon_pages: u64,
    #[spec(20, "mapped")]
    pub mapped: u64,
    #[spec(21, "shmem")]
    pub shmem: u64,
    #[spec(22, "slab")]
    pub slab: u64,
    #[spec(23, "sreclaimable")]
    pub sreclaimable: u64,
    #[spec(24, "sunreclaim")]
    pub sunreclaim: u64,
    #[spec(25, "kernelStack")]
    pub kernel_stack: u64,
    #[spec(26, "pageTables")]
    pub page_tables: u64,
    #[spec(27, "nfsunstable")]
    pub nfsunstable: u64,
    #[spec(28, "bounce")]
    pub bounce: u64,
    #[spec(29, "writeBacktmp")]
    pub write_backtmp: u64,
    #[spec(30, "commitLimit")]
    pub commit_limit: u64,
    #[spec(31, "commitTedas")]
    pub commit_tedas: u64,
    #[spec(32, "vmallocTotal")]
    pub vmalloc_total: u64,
    #[spec(33, "vmallocUsed")]
    pub vmalloc_used: u64,
    #[spec(34, "vmallocChunk")]
    pub vmalloc_chunk: u64,
    #[spec(35, "hardwareCorrupted")]
    pub hardware_corrupted: u64,
    #[spec(36, "anonHugePages")]
    pub anon_huge_pages: u64,
    #[spec(37, "shmemHugePages")]
    pub shmem_huge_pages: u64,
    #[spec(38, "shmemPmdMapped")]
    pub shmem_pmd_mapped: u64,
    #[spec(39, "cmaTotal")]
    pub cma_total: u64,
    #[spec(40, "cmaFree")]
    pub cma_free: u64,
    #[spec(41, "hugePagesTotal")]
    pub huge_pages_total: u64,
    #[spec(42, "hugePagesFree")]
    pub huge_pages_free: u64,
    #[spec(43, "hugePagesRsvd")]
    pub huge_pages_rsvd: u64,
    #[spec(44, "hugePagesSurp")]
    pub huge_pages_surp: u64,
    #[spec(45, "hugepagesize")]
    pub hugepagesize: u64,
    #[spec(46, "directMap4k")]
    pub direct_map_4k: u64,
    #[spec(47, "directMap2m")]
    pub direct_map_2m: u64,
    #[spec(48, "directMap1g")]
    pub direct_map_1g: u64,
}
