//! What the kernel says about this machine, as replies.

use std::path::Path;

use tonic::{Response, Status};

use ichor_sys::{host, memory, mountinfo, process};
use ichor_wire::machine;

use super::proc;
use super::reply::io_status;
use crate::lanes::{HOST, MOUNTS};

async fn file(path: &'static str) -> Result<String, Status> {
    HOST.run(move || {
        std::fs::read(path)
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .map_err(|error| io_status("open", Path::new(path), &error))
    })
    .await?
}

/// The kernel's host name.
pub fn hostname() -> Response<machine::HostnameResponse> {
    let message = machine::Hostname { metadata: None, hostname: host::uname().node };
    Response::new(machine::HostnameResponse { messages: vec![message] })
}

/// Load averages.
pub async fn load_avg() -> Result<Response<machine::LoadAvgResponse>, Status> {
    let text = file("/proc/loadavg").await?;
    let message = proc::load_avg(&text).ok_or_else(|| Status::unknown("cannot read /proc/loadavg"))?;
    Ok(Response::new(machine::LoadAvgResponse { messages: vec![message] }))
}

/// Memory counters.
pub async fn memory() -> Result<Response<machine::MemoryResponse>, Status> {
    let info = HOST
        .run(memory::MemInfo::read)
        .await?
        .map_err(|error| io_status("open", Path::new("/proc/meminfo"), &error))?;
    let message = machine::Memory { metadata: None, meminfo: Some(proc::mem_info(&info)) };
    Ok(Response::new(machine::MemoryResponse { messages: vec![message] }))
}

/// Processor and interrupt counters.
pub async fn system_stat() -> Result<Response<machine::SystemStatResponse>, Status> {
    let message = proc::system_stat(&file("/proc/stat").await?);
    Ok(Response::new(machine::SystemStatResponse { messages: vec![message] }))
}

/// Processors.
pub async fn cpu_info() -> Result<Response<machine::CpuInfoResponse>, Status> {
    let cpu_info = proc::cpu_info(&file("/proc/cpuinfo").await?);
    let message = machine::CpUsInfo { metadata: None, cpu_info };
    Ok(Response::new(machine::CpuInfoResponse { messages: vec![message] }))
}

/// Frequencies of the processors, where the kernel scales them.
pub async fn cpu_freq_stats() -> Result<Response<machine::CpuFreqStatsResponse>, Status> {
    let cpu_freq_stats = HOST
        .run(|| {
            (0..host::cores())
                .map(|cpu| {
                    let read = |name: &str| {
                        let path = format!("/sys/devices/system/cpu/cpu{cpu}/cpufreq/{name}");
                        std::fs::read_to_string(path).unwrap_or_default().trim().to_owned()
                    };
                    // What the hardware says; not every driver tells, so what the governor wants comes second.
                    let number = |first: &str, second: &str| {
                        read(first).parse().or_else(|_| read(second).parse()).unwrap_or(0)
                    };
                    machine::CpuFreqStats {
                        current_frequency: number("cpuinfo_cur_freq", "scaling_cur_freq"),
                        minimum_frequency: number("cpuinfo_min_freq", "scaling_min_freq"),
                        maximum_frequency: number("cpuinfo_max_freq", "scaling_max_freq"),
                        governor: read("scaling_governor"),
                    }
                })
                .collect()
        })
        .await?;
    let message = machine::CpUsFreqStats { metadata: None, cpu_freq_stats };
    Ok(Response::new(machine::CpuFreqStatsResponse { messages: vec![message] }))
}

/// Network counters.
pub async fn network_device_stats() -> Result<Response<machine::NetworkDeviceStatsResponse>, Status> {
    let message = proc::network_devices(&file("/proc/net/dev").await?);
    Ok(Response::new(machine::NetworkDeviceStatsResponse { messages: vec![message] }))
}

/// Disk counters.
pub async fn disk_stats() -> Result<Response<machine::DiskStatsResponse>, Status> {
    let message = proc::disk_stats(&file("/proc/diskstats").await?);
    Ok(Response::new(machine::DiskStatsResponse { messages: vec![message] }))
}

/// The process table.
pub async fn processes() -> Result<Response<machine::ProcessesResponse>, Status> {
    let list =
        HOST.run(process::list).await?.map_err(|error| io_status("open", Path::new("/proc"), &error))?;
    // What has no program is a thread of the kernel or dead; clients do not expect them.
    let processes = list
        .into_iter()
        .filter(|process| !process.executable.is_empty())
        .map(|process| machine::ProcessInfo {
            pid: process.pid,
            ppid: process.ppid,
            state: process.state.to_string(),
            threads: process.threads,
            cpu_time: process.cpu_time,
            virtual_memory: process.virtual_memory,
            resident_memory: process.resident_memory,
            command: process.command,
            executable: process.executable,
            args: process.args,
            label: process.label,
        })
        .collect();
    let message = machine::Process { metadata: None, processes };
    Ok(Response::new(machine::ProcessesResponse { messages: vec![message] }))
}

/// Mounts with their sizes.
pub async fn mounts() -> Result<Response<machine::MountsResponse>, Status> {
    let mounts = HOST
        .run(mountinfo::mounts)
        .await?
        .map_err(|error| io_status("open", Path::new("/proc/self/mountinfo"), &error))?;
    // A dead network filesystem would block for ever; its thread may, the call does not.
    let stats = MOUNTS.run(move || mounts.into_iter().map(mount_stat).collect::<Vec<_>>());
    let stats = tokio::time::timeout(STATFS_MAX, stats)
        .await
        .map_err(|_| Status::deadline_exceeded("a mounted filesystem does not answer"))??;
    let message = machine::Mounts { metadata: None, stats };
    Ok(Response::new(machine::MountsResponse { messages: vec![message] }))
}

/// All filesystems together answer within this.
const STATFS_MAX: std::time::Duration = std::time::Duration::from_secs(10);

fn mount_stat(mount: mountinfo::Mount) -> machine::MountStat {
    // A file that is mounted over another has no size of its own.
    let target = Path::new(&mount.target);
    let usage = target.is_dir().then(|| mountinfo::usage(target).ok()).flatten();
    machine::MountStat {
        filesystem: mount.source,
        size: usage.as_ref().map_or(0, |usage| usage.size),
        available: usage.as_ref().map_or(0, |usage| usage.available),
        mounted_on: mount.target,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_counter_of_this_machine_can_be_read() {
        assert!(!hostname().into_inner().messages[0].hostname.is_empty());
        load_avg().await.unwrap();
        let memory = memory().await.unwrap().into_inner();
        assert!(memory.messages[0].meminfo.as_ref().unwrap().memtotal > 0);
        assert!(system_stat().await.unwrap().into_inner().messages[0].boot_time > 0);
        assert!(!cpu_info().await.unwrap().into_inner().messages[0].cpu_info.is_empty());
        assert!(!cpu_freq_stats().await.unwrap().into_inner().messages[0].cpu_freq_stats.is_empty());
        network_device_stats().await.unwrap();
        disk_stats().await.unwrap();
        let own = i32::try_from(std::process::id()).unwrap();
        let processes = processes().await.unwrap().into_inner();
        assert!(processes.messages[0].processes.iter().any(|process| process.pid == own));
        let mounts = mounts().await.unwrap().into_inner();
        assert!(mounts.messages[0].stats.iter().any(|mount| mount.mounted_on == "/"));
    }
}
