//! Counters that are looked at twice a minute: processors, memory, the clock, swap.

use std::time::Duration;

use ichor_cosi::{Context, Controller, ControllerError, Input, Output, exclusive};
use ichor_resource::block::{SwapStatus, ZswapStatus};
use ichor_resource::perf::{CPUStat, CPUStats, MemoryStats};
use ichor_resource::time::AdjtimeStatus;
use ichor_sys::clock::ClockState;
use ichor_sys::counters::{self, Seconds, Stat, Swap};
use ichor_sys::memory::MemInfo;
use ichor_types::{GoDuration, size};

use crate::ports::Files;

/// How often counters are looked at. Nothing in the kernel tells when they change: they always do.
const EVERY: Duration = Duration::from_secs(30);

/// Swap changes more slowly.
const SWAP_EVERY: Duration = Duration::from_secs(60);

fn text(files: &impl Files, path: &str) -> std::io::Result<String> {
    Ok(String::from_utf8_lossy(&files.read(path)?).into_owned())
}

/// Writes `CPUStats` and `MemoryStats`.
#[derive(Debug)]
pub struct StatsController<F> {
    /// Files of the kernel.
    pub files: F,
}

impl<F: Files> Controller for StatsController<F> {
    const NAME: &'static str = "perf.StatsController";

    fn inputs(&self) -> Vec<Input> {
        Vec::new()
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<CPUStats>(), exclusive::<MemoryStats>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let cpu = cpu_stats(&counters::stat(&text(&self.files, "/proc/stat")?));
        ctx.modify::<CPUStats>("latest", |spec| spec.clone_from(&cpu))?;
        let memory = memory_stats(&MemInfo::parse(&text(&self.files, "/proc/meminfo")?));
        ctx.modify::<MemoryStats>("latest", |spec| spec.clone_from(&memory))?;
        ctx.requeue_after(EVERY);
        Ok(())
    }
}

fn cpu_stats(stat: &Stat) -> CPUStats {
    CPUStats {
        cpu: stat.processors.iter().map(cpu_stat).collect(),
        cpu_total: cpu_stat(&stat.total),
        irq_total: stat.interrupts,
        context_switches: stat.switches,
        process_created: stat.created,
        process_running: stat.running,
        process_blocked: stat.blocked,
        soft_irq_total: stat.soft_interrupts,
    }
}

fn cpu_stat(seconds: &Seconds) -> CPUStat {
    let [user, nice, system, idle, iowait, irq, soft_irq, steal, guest, guest_nice] = *seconds;
    CPUStat { user, nice, system, idle, iowait, irq, soft_irq, steal, guest, guest_nice }
}

fn memory_stats(info: &MemInfo) -> MemoryStats {
    let kib = |key: &str| info.get(key);
    MemoryStats {
        total: kib("MemTotal"),
        used: kib("MemTotal").saturating_sub(kib("MemFree")),
        available: kib("MemAvailable"),
        buffers: kib("Buffers"),
        cached: kib("Cached"),
        swap_cached: kib("SwapCached"),
        active: kib("Active"),
        inactive: kib("Inactive"),
        active_anon: kib("Active(anon)"),
        inactive_anon: kib("Inactive(anon)"),
        active_file: kib("Active(file)"),
        inactive_file: kib("Inactive(file)"),
        unevictable: kib("Unevictable"),
        mlocked: kib("Mlocked"),
        swap_total: kib("SwapTotal"),
        swap_free: kib("SwapFree"),
        dirty: kib("Dirty"),
        writeback: kib("Writeback"),
        anon_pages: kib("AnonPages"),
        mapped: kib("Mapped"),
        shmem: kib("Shmem"),
        slab: kib("Slab"),
        sreclaimable: kib("SReclaimable"),
        sunreclaim: kib("SUnreclaim"),
        kernel_stack: kib("KernelStack"),
        page_tables: kib("PageTables"),
        nfsunstable: kib("NFS_Unstable"),
        bounce: kib("Bounce"),
        write_backtmp: kib("WritebackTmp"),
        commit_limit: kib("CommitLimit"),
        commit_tedas: kib("Committed_AS"),
        vmalloc_total: kib("VmallocTotal"),
        vmalloc_used: kib("VmallocUsed"),
        vmalloc_chunk: kib("VmallocChunk"),
        hardware_corrupted: kib("HardwareCorrupted"),
        anon_huge_pages: kib("AnonHugePages"),
        shmem_huge_pages: kib("ShmemHugePages"),
        shmem_pmd_mapped: kib("ShmemPmdMapped"),
        cma_total: kib("CmaTotal"),
        cma_free: kib("CmaFree"),
        huge_pages_total: kib("HugePages_Total"),
        huge_pages_free: kib("HugePages_Free"),
        huge_pages_rsvd: kib("HugePages_Rsvd"),
        huge_pages_surp: kib("HugePages_Surp"),
        hugepagesize: kib("Hugepagesize"),
        direct_map_4k: kib("DirectMap4k"),
        direct_map_2m: kib("DirectMap2M"),
        direct_map_1g: kib("DirectMap1G"),
    }
}

/// Writes `AdjtimeStatuses`.
#[derive(Debug, Default)]
pub struct AdjtimeStatusController;

impl Controller for AdjtimeStatusController {
    const NAME: &'static str = "time.AdjtimeStatusController";

    fn inputs(&self) -> Vec<Input> {
        Vec::new()
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<AdjtimeStatus>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let status = adjtime(&ichor_sys::clock::state()?);
        ctx.modify::<AdjtimeStatus>("node", |spec| spec.clone_from(&status))?;
        ctx.requeue_after(EVERY);
        Ok(())
    }
}

fn adjtime(clock: &ClockState) -> AdjtimeStatus {
    let micros = |micros: i64| GoDuration::from_nanos(micros.saturating_mul(1000));
    AdjtimeStatus {
        offset: GoDuration::from_nanos(clock.offset_ns),
        frequency_adjustment_ratio: clock.frequency_ratio,
        max_error: micros(clock.max_error_us),
        est_error: micros(clock.estimated_error_us),
        status: clock.status.clone(),
        constant: clock.constant,
        sync_status: clock.synced,
        state: clock.state.to_owned(),
    }
}

/// Writes `SwapStatuses`. Swap of a kernel that is not the machine's own is not its swap.
#[derive(Debug)]
pub struct SwapStatusController<F> {
    /// Files of the kernel.
    pub files: F,
}

impl<F: Files> Controller for SwapStatusController<F> {
    const NAME: &'static str = "block.SwapStatusController";

    fn inputs(&self) -> Vec<Input> {
        Vec::new()
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<SwapStatus>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        // A kernel without swap has no such file.
        let swaps = text(&self.files, "/proc/swaps").unwrap_or_default();
        ctx.publish(counters::swaps(&swaps).iter().map(|swap| (swap.path.clone(), swap_status(swap))))?;
        ctx.requeue_after(SWAP_EVERY);
        Ok(())
    }
}

fn swap_status(swap: &Swap) -> SwapStatus {
    SwapStatus {
        device: swap.path.clone(),
        r#type: swap.kind.clone(),
        size: swap.size,
        size_human: size::binary(swap.size),
        used: swap.used,
        used_human: size::binary(swap.used),
        priority: swap.priority,
    }
}

/// Writes `ZswapStatuses` where the kernel has it on.
#[derive(Debug)]
pub struct ZswapStatusController<F> {
    /// Files of the kernel.
    pub files: F,
}

impl<F: Files> Controller for ZswapStatusController<F> {
    const NAME: &'static str = "block.ZswapStatusController";

    fn inputs(&self) -> Vec<Input> {
        vec![ichor_cosi::weak::<ichor_resource::runtime::KernelParamStatus>()]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<ZswapStatus>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let on = text(&self.files, "/sys/module/zswap/parameters/enabled").is_ok_and(|on| on.trim() == "Y");
        let status = if on { self.status() } else { None };
        if status.is_some() {
            ctx.requeue_after(SWAP_EVERY);
        }
        Ok(ctx.publish(status.map(|status| ("zswap", status)))?)
    }
}

impl<F: Files> ZswapStatusController<F> {
    fn status(&self) -> Option<ZswapStatus> {
        let read = |name: &str| {
            let text = text(&self.files, &format!("/sys/kernel/debug/zswap/{name}")).ok()?;
            text.trim().parse::<u64>().ok()
        };
        let count = |name: &str| read(name).unwrap_or(0);
        // Without the first there are no counters at all.
        let total_size = read("pool_total_size")?;
        Some(ZswapStatus {
            total_size,
            total_size_human: size::binary(total_size),
            stored_pages: count("stored_pages"),
            pool_limit_hit: count("pool_limit_hit"),
            reject_reclaim_fail: count("reject_reclaim_fail"),
            reject_alloc_fail: count("reject_alloc_fail"),
            reject_kmemcache_fail: count("reject_kmemcache_fail"),
            reject_compress_fail: count("reject_compress_fail"),
            reject_compress_poor: count("reject_compress_poor"),
            written_back_pages: count("written_back_pages"),
        })
    }
}
