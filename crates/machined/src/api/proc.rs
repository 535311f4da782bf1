//! Counters of the kernel as messages. Each function parses one file's text.

use ichor_wire::machine::{
    CpuInfo, CpuStat, DiskStat, DiskStats, LoadAvg, MemInfo, NetDev, NetworkDeviceStats, SoftIrqStat,
    SystemStat,
};

/// Clock ticks per second, the same on every Linux we run on.
const TICKS_PER_SECOND: f64 = 100.0;

/// `/proc/loadavg`.
pub fn load_avg(text: &str) -> Option<LoadAvg> {
    let mut words = text.split_whitespace();
    let mut next = || words.next()?.parse::<f64>().ok();
    Some(LoadAvg { metadata: None, load1: next()?, load5: next()?, load15: next()? })
}

/// `/proc/meminfo`, in kB.
pub fn mem_info(info: &ichor_sys::memory::MemInfo) -> MemInfo {
    MemInfo {
        memtotal: info.get("MemTotal"),
        memfree: info.get("MemFree"),
        memavailable: info.get("MemAvailable"),
        buffers: info.get("Buffers"),
        cached: info.get("Cached"),
        swapcached: info.get("SwapCached"),
        active: info.get("Active"),
        inactive: info.get("Inactive"),
        activeanon: info.get("Active(anon)"),
        inactiveanon: info.get("Inactive(anon)"),
        activefile: info.get("Active(file)"),
        inactivefile: info.get("Inactive(file)"),
        unevictable: info.get("Unevictable"),
        mlocked: info.get("Mlocked"),
        swaptotal: info.get("SwapTotal"),
        swapfree: info.get("SwapFree"),
        dirty: info.get("Dirty"),
        writeback: info.get("Writeback"),
        anonpages: info.get("AnonPages"),
        mapped: info.get("Mapped"),
        shmem: info.get("Shmem"),
        slab: info.get("Slab"),
        sreclaimable: info.get("SReclaimable"),
        sunreclaim: info.get("SUnreclaim"),
        kernelstack: info.get("KernelStack"),
        pagetables: info.get("PageTables"),
        nfsunstable: info.get("NFS_Unstable"),
        bounce: info.get("Bounce"),
        writebacktmp: info.get("WritebackTmp"),
        commitlimit: info.get("CommitLimit"),
        committedas: info.get("Committed_AS"),
        vmalloctotal: info.get("VmallocTotal"),
        vmallocused: info.get("VmallocUsed"),
        vmallocchunk: info.get("VmallocChunk"),
        hardwarecorrupted: info.get("HardwareCorrupted"),
        anonhugepages: info.get("AnonHugePages"),
        shmemhugepages: info.get("ShmemHugePages"),
        shmempmdmapped: info.get("ShmemPmdMapped"),
        cmatotal: info.get("CmaTotal"),
        cmafree: info.get("CmaFree"),
        hugepagestotal: info.get("HugePages_Total"),
        hugepagesfree: info.get("HugePages_Free"),
        hugepagesrsvd: info.get("HugePages_Rsvd"),
        hugepagessurp: info.get("HugePages_Surp"),
        hugepagesize: info.get("Hugepagesize"),
        directmap4k: info.get("DirectMap4k"),
        directmap2m: info.get("DirectMap2M"),
        directmap1g: info.get("DirectMap1G"),
    }
}

/// `/proc/stat`.
pub fn system_stat(text: &str) -> SystemStat {
    let mut stat = SystemStat::default();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let Some(key) = words.next() else { continue };
        let numbers: Vec<u64> = words.map(|word| word.parse().unwrap_or(0)).collect();
        let first = numbers.first().copied().unwrap_or(0);
        match key {
            "cpu" => stat.cpu_total = Some(cpu_stat(&numbers)),
            "btime" => stat.boot_time = first,
            "ctxt" => stat.context_switches = first,
            "processes" => stat.process_created = first,
            "procs_running" => stat.process_running = first,
            "procs_blocked" => stat.process_blocked = first,
            "intr" => {
                stat.irq_total = first;
                stat.irq = numbers.get(1..).unwrap_or_default().to_vec();
            }
            "softirq" => {
                stat.soft_irq_total = first;
                stat.soft_irq = Some(soft_irq(numbers.get(1..).unwrap_or_default()));
            }
            key if key.starts_with("cpu") => stat.cpu.push(cpu_stat(&numbers)),
            _ => {}
        }
    }
    stat
}

fn cpu_stat(ticks: &[u64]) -> CpuStat {
    let seconds = |index: usize| ticks.get(index).copied().unwrap_or(0) as f64 / TICKS_PER_SECOND;
    CpuStat {
        user: seconds(0),
        nice: seconds(1),
        system: seconds(2),
        idle: seconds(3),
        iowait: seconds(4),
        irq: seconds(5),
        soft_irq: seconds(6),
        steal: seconds(7),
        guest: seconds(8),
        guest_nice: seconds(9),
    }
}

fn soft_irq(counts: &[u64]) -> SoftIrqStat {
    let count = |index: usize| counts.get(index).copied().unwrap_or(0);
    SoftIrqStat {
        hi: count(0),
        timer: count(1),
        net_tx: count(2),
        net_rx: count(3),
        block: count(4),
        block_io_poll: count(5),
        tasklet: count(6),
        sched: count(7),
        hrtimer: count(8),
        rcu: count(9),
    }
}

/// `/proc/cpuinfo`, one entry per processor.
pub fn cpu_info(text: &str) -> Vec<CpuInfo> {
    let mut processors: Vec<CpuInfo> = Vec::new();
    for line in text.lines() {
        let Some((key, value)) = line.split_once(':') else { continue };
        let (key, value) = (key.trim(), value.trim());
        if key == "processor" {
            processors.push(CpuInfo { processor: value.parse().unwrap_or(0), ..CpuInfo::default() });
            continue;
        }
        let Some(cpu) = processors.last_mut() else { continue };
        let text = value.to_owned();
        let words = || value.split_whitespace().map(str::to_owned).collect();
        match key {
            "vendor_id" | "CPU implementer" => cpu.vendor_id = text,
            "cpu family" => cpu.cpu_family = text,
            "model" => cpu.model = text,
            "model name" => cpu.model_name = text,
            "stepping" => cpu.stepping = text,
            "microcode" => cpu.microcode = text,
            "cpu MHz" => cpu.cpu_mhz = value.parse().unwrap_or(0.0),
            "cache size" => cpu.cache_size = text,
            "physical id" => cpu.physical_id = text,
            "siblings" => cpu.siblings = value.parse().unwrap_or(0),
            "core id" => cpu.core_id = text,
            "cpu cores" => cpu.cpu_cores = value.parse().unwrap_or(0),
            "apicid" => cpu.apic_id = text,
            "initial apicid" => cpu.initial_apic_id = text,
            "fpu" => cpu.fpu = text,
            "fpu_exception" => cpu.fpu_exception = text,
            "cpuid level" => cpu.cpu_id_level = value.parse().unwrap_or(0),
            "wp" => cpu.wp = text,
            "flags" | "Features" => cpu.flags = words(),
            "bugs" => cpu.bugs = words(),
            "bogomips" | "BogoMIPS" => cpu.bogo_mips = value.parse().unwrap_or(0.0),
            "clflush size" => cpu.cl_flush_size = value.parse().unwrap_or(0),
            "cache_alignment" => cpu.cache_alignment = value.parse().unwrap_or(0),
            "address sizes" => cpu.address_sizes = text,
            "power management" => cpu.power_management = text,
            _ => {}
        }
    }
    processors
}

/// `/proc/net/dev`, with totals.
pub fn network_devices(text: &str) -> NetworkDeviceStats {
    let mut total = NetDev::default();
    let mut devices = Vec::new();
    for line in text.lines().skip(2) {
        let Some((name, rest)) = line.split_once(':') else { continue };
        let numbers: Vec<u64> = rest.split_whitespace().map(|word| word.parse().unwrap_or(0)).collect();
        let number = |index: usize| numbers.get(index).copied().unwrap_or(0);
        let device = NetDev {
            name: name.trim().to_owned(),
            rx_bytes: number(0),
            rx_packets: number(1),
            rx_errors: number(2),
            rx_dropped: number(3),
            rx_fifo: number(4),
            rx_frame: number(5),
            rx_compressed: number(6),
            rx_multicast: number(7),
            tx_bytes: number(8),
            tx_packets: number(9),
            tx_errors: number(10),
            tx_dropped: number(11),
            tx_fifo: number(12),
            tx_collisions: number(13),
            tx_carrier: number(14),
            tx_compressed: number(15),
        };
        add_net(&mut total, &device);
        devices.push(device);
    }
    let mut names: Vec<&str> = devices.iter().map(|device| device.name.as_str()).collect();
    names.sort_unstable();
    total.name = names.join(", ");
    NetworkDeviceStats { metadata: None, total: Some(total), devices }
}

fn add_net(total: &mut NetDev, device: &NetDev) {
    for (sum, value) in [
        (&mut total.rx_bytes, device.rx_bytes),
        (&mut total.rx_packets, device.rx_packets),
        (&mut total.rx_errors, device.rx_errors),
        (&mut total.rx_dropped, device.rx_dropped),
        (&mut total.rx_fifo, device.rx_fifo),
        (&mut total.rx_frame, device.rx_frame),
        (&mut total.rx_compressed, device.rx_compressed),
        (&mut total.rx_multicast, device.rx_multicast),
        (&mut total.tx_bytes, device.tx_bytes),
        (&mut total.tx_packets, device.tx_packets),
        (&mut total.tx_errors, device.tx_errors),
        (&mut total.tx_dropped, device.tx_dropped),
        (&mut total.tx_fifo, device.tx_fifo),
        (&mut total.tx_collisions, device.tx_collisions),
        (&mut total.tx_carrier, device.tx_carrier),
        (&mut total.tx_compressed, device.tx_compressed),
    ] {
        *sum = sum.wrapping_add(value);
    }
}

/// `/proc/diskstats`, with totals.
pub fn disk_stats(text: &str) -> DiskStats {
    let mut total = DiskStat::default();
    let mut devices = Vec::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let Some(name) = words.get(2) else { continue };
        let number = |index: usize| words.get(index + 3).and_then(|word| word.parse().ok()).unwrap_or(0);
        let device = DiskStat {
            name: (*name).to_owned(),
            read_completed: number(0),
            read_merged: number(1),
            read_sectors: number(2),
            read_time_ms: number(3),
            write_completed: number(4),
            write_merged: number(5),
            write_sectors: number(6),
            write_time_ms: number(7),
            io_in_progress: number(8),
            io_time_ms: number(9),
            io_time_weighted_ms: number(10),
            discard_completed: number(11),
            discard_merged: number(12),
            discard_sectors: number(13),
            discard_time_ms: number(14),
        };
        add_disk(&mut total, &device);
        devices.push(device);
    }
    DiskStats { metadata: None, total: Some(total), devices }
}

fn add_disk(total: &mut DiskStat, device: &DiskStat) {
    for (sum, value) in [
        (&mut total.read_completed, device.read_completed),
        (&mut total.read_merged, device.read_merged),
        (&mut total.read_sectors, device.read_sectors),
        (&mut total.read_time_ms, device.read_time_ms),
        (&mut total.write_completed, device.write_completed),
        (&mut total.write_merged, device.write_merged),
        (&mut total.write_sectors, device.write_sectors),
        (&mut total.write_time_ms, device.write_time_ms),
        (&mut total.io_in_progress, device.io_in_progress),
        (&mut total.io_time_ms, device.io_time_ms),
        (&mut total.io_time_weighted_ms, device.io_time_weighted_ms),
        (&mut total.discard_completed, device.discard_completed),
        (&mut total.discard_merged, device.discard_merged),
        (&mut total.discard_sectors, device.discard_sectors),
        (&mut total.discard_time_ms, device.discard_time_ms),
    ] {
        *sum = sum.wrapping_add(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn load_averages_are_read() {
        let load = load_avg("0.52 0.58 1.59 1/467 12345\n").unwrap();
        assert_eq!((load.load1, load.load5, load.load15), (0.52, 0.58, 1.59));
        assert!(load_avg("nonsense").is_none());
    }

    #[test]
    fn system_statistics_are_in_seconds() {
        let stat = system_stat(
            "cpu  100 0 200 4000 0 0 0 0 0 0\ncpu0 50 0 100 2000 0 0 0 0 0 0\nintr 30 10 20\nctxt 7\n\
             btime 1700000000\nprocesses 9\nprocs_running 2\nprocs_blocked 1\nsoftirq 10 1 2 3 4\n",
        );
        assert_eq!(stat.cpu_total.unwrap().system, 2.0);
        assert_eq!(stat.cpu.len(), 1);
        assert_eq!((stat.irq_total, stat.irq), (30, vec![10, 20]));
        assert_eq!(stat.soft_irq.unwrap().net_rx, 4);
        assert_eq!(stat.boot_time, 1_700_000_000);
    }

    #[test]
    fn processors_are_told_apart() {
        let cpus = cpu_info(
            "processor\t: 0\nmodel name\t: Fast\ncpu MHz\t\t: 2000.5\nflags\t: fpu vme\ncpu cores\t: 4\n\nprocessor\t: 1\n",
        );
        assert_eq!(cpus.len(), 2);
        assert_eq!((cpus[0].model_name.as_str(), cpus[0].cpu_cores), ("Fast", 4));
        assert_eq!(cpus[0].flags, ["fpu", "vme"]);
        assert_eq!(cpus[1].processor, 1);
    }

    #[test]
    fn network_counters_add_up() {
        let stats = network_devices(
            "Inter-|   Receive\n face |bytes\n    lo: 10 1 0 0 0 0 0 0 10 1 0 0 0 0 0 0\n  eth0: 5 2 0 0 0 0 0 0 7 3 0 0 0 0 0 0\n",
        );
        let total = stats.total.unwrap();
        assert_eq!((total.rx_bytes, total.tx_packets), (15, 4));
        assert_eq!(total.name, "eth0, lo");
        assert_eq!(stats.devices[1].name, "eth0");
    }

    #[test]
    fn disk_counters_add_up() {
        let stats = disk_stats(
            "   8       0 sda 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17\n   8  1 sda1 1 0 0 0 0 0 0 0 0 0 0\n",
        );
        assert_eq!(stats.devices[0].discard_time_ms, 15);
        assert_eq!(stats.total.unwrap().read_completed, 2);
    }
}
