//! Counters of a machine over time, as rates. Pure.

use ichor_wire::machine::{CpuStat, MemInfo};

/// Values kept of each series.
const VALUES_MAX: usize = 240;
/// Bytes in a sector, as the kernel counts them.
const SECTOR: u64 = 512;

/// Counters of one moment.
#[derive(Debug, Clone, Default)]
pub struct Counters {
    /// When, in seconds.
    pub at: f64,
    /// CPU time of all cores since boot.
    pub cpu: CpuStat,
    /// Cores.
    pub cores: usize,
    /// When the machine booted, in seconds since 1970.
    pub boot_time: u64,
    /// Processes that run.
    pub running: u64,
    /// Memory.
    pub memory: MemInfo,
    /// Load averages.
    pub load: [f64; 3],
    /// Bytes received and sent since boot.
    pub network: (u64, u64),
    /// Sectors read and written since boot.
    pub disk: (u64, u64),
}

/// The last values of each series, the newest last.
#[derive(Debug, Clone, Default)]
pub struct History {
    /// Busy share of all cores.
    pub cpu: Vec<f64>,
    /// Share of the CPU in user programs.
    pub user: Vec<f64>,
    /// Share of the CPU in the kernel.
    pub system: Vec<f64>,
    /// Used share of the memory.
    pub used: Vec<f64>,
    /// Load of the last minute.
    pub load: Vec<f64>,
    /// Bytes received each second.
    pub received: Vec<f64>,
    /// Bytes sent each second.
    pub sent: Vec<f64>,
    /// Bytes read each second.
    pub read: Vec<f64>,
    /// Bytes written each second.
    pub written: Vec<f64>,
    /// Memory at the last look.
    pub memory: MemInfo,
    /// Load at the last look.
    pub loads: [f64; 3],
    /// Cores.
    pub cores: usize,
    /// When the machine booted.
    pub boot_time: u64,
    /// Processes that ran at the last look.
    pub running: u64,
    last: Option<Counters>,
}

impl History {
    /// Takes the counters of a moment.
    pub fn push(&mut self, now: Counters) {
        let used = share(now.memory.memtotal.saturating_sub(available(&now.memory)), now.memory.memtotal);
        add(&mut self.used, used);
        add(&mut self.load, now.load[0]);
        if let Some(last) = self.last.take() {
            let seconds = (now.at - last.at).max(0.1);
            let (busy, total) = (busy(&now.cpu) - busy(&last.cpu), total(&now.cpu) - total(&last.cpu));
            let part = |value: f64| if total > 0.0 { (value / total).clamp(0.0, 1.0) } else { 0.0 };
            add(&mut self.cpu, part(busy));
            add(&mut self.user, part(now.cpu.user + now.cpu.nice - last.cpu.user - last.cpu.nice));
            add(&mut self.system, part(now.cpu.system - last.cpu.system));
            let rate = |now: u64, last: u64| now.saturating_sub(last) as f64 / seconds;
            add(&mut self.received, rate(now.network.0, last.network.0));
            add(&mut self.sent, rate(now.network.1, last.network.1));
            add(&mut self.read, rate(now.disk.0, last.disk.0) * SECTOR as f64);
            add(&mut self.written, rate(now.disk.1, last.disk.1) * SECTOR as f64);
        }
        self.memory = now.memory;
        (self.loads, self.cores, self.boot_time, self.running) =
            (now.load, now.cores, now.boot_time, now.running);
        self.last = Some(now);
    }

    /// When the counters were last taken, in seconds; nothing before the first time.
    pub fn at(&self) -> Option<f64> {
        self.last.as_ref().map(|last| last.at)
    }
}

/// Memory that programs could still have.
pub fn available(memory: &MemInfo) -> u64 {
    if memory.memavailable > 0 {
        memory.memavailable
    } else {
        memory.memfree + memory.buffers + memory.cached
    }
}

fn add(values: &mut Vec<f64>, value: f64) {
    if values.len() == VALUES_MAX {
        values.remove(0);
    }
    values.push(value);
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

fn busy(cpu: &CpuStat) -> f64 {
    total(cpu) - cpu.idle - cpu.iowait
}

fn total(cpu: &CpuStat) -> f64 {
    cpu.user + cpu.nice + cpu.system + cpu.idle + cpu.iowait + cpu.irq + cpu.soft_irq + cpu.steal
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_become_rates() {
        let mut history = History::default();
        let at = |at: f64, user: f64, idle: f64, bytes: u64| Counters {
            at,
            cpu: CpuStat { user, idle, ..CpuStat::default() },
            memory: MemInfo { memtotal: 1000, memavailable: 250, ..MemInfo::default() },
            network: (bytes, 0),
            disk: (bytes, 0),
            ..Counters::default()
        };
        history.push(at(0.0, 10.0, 90.0, 100));
        assert!(history.cpu.is_empty());
        history.push(at(2.0, 11.0, 93.0, 300));
        assert_eq!((history.cpu[0], history.received[0], history.read[0]), (0.25, 100.0, 51_200.0));
        assert_eq!(history.used, [0.75, 0.75]);
        // Counters that start over, as after a reboot, are no rate.
        history.push(at(4.0, 0.0, 1.0, 0));
        assert_eq!(history.received[1], 0.0);
        for _ in 0..500 {
            history.push(at(5.0, 1.0, 1.0, 1));
        }
        assert_eq!(history.used.len(), VALUES_MAX);
    }
}
