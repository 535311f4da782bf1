//! `memory`: how much of it is used.

use std::fmt::Write as _;

use ichor_wire::machine::{MemInfo, Memory};

use crate::failure::Failure;
use crate::parse::Call;
use crate::print;
use crate::session::{Session, block_on};
use crate::table::{Command, Flag, Group};
use crate::tabs::Table;

/// The command.
pub static MEMORY: Command = Command {
    name: "memory",
    aliases: &["m", "free"],
    group: Group::Machines,
    about: "Show memory usage",
    flags: &[Flag::switch("verbose", "show everything the kernel tells").short('v')],
    run: Some(run),
    ..Command::EMPTY
};

fn run(call: &Call) -> Result<(), Failure> {
    let (connection, verbose) = (call.connection(), call.on("verbose"));
    block_on(async {
        let session = Session::open(&connection).await?;
        let reply = session.ask(session.all().machine().memory(())).await;
        let replies =
            session.gather("error getting memory stats", reply.map(|reply| reply.into_inner().messages))?;
        print(&if verbose { verbose_text(&replies) } else { table_text(&replies) })
    })
}

/// The table, in MiB.
pub fn table_text(replies: &[(String, Memory)]) -> String {
    let header = ["NODE", "TOTAL", "USED", "FREE", "SHARED", "BUFFERS", "CACHE", "AVAILABLE"];
    let mut table = Table::with_header(header);
    for (node, memory) in replies {
        let info = memory.meminfo.unwrap_or_default();
        let used = info.memtotal.saturating_sub(info.memfree + info.cached + info.buffers);
        let numbers =
            [info.memtotal, used, info.memfree, info.shmem, info.buffers, info.cached, info.memavailable];
        table.row([node.clone()].into_iter().chain(numbers.map(|kib| (kib / 1024).to_string())));
    }
    table.take()
}

/// Everything, in the kernel's own look.
pub fn verbose_text(replies: &[(String, Memory)]) -> String {
    let mut out = String::new();
    for (node, memory) in replies {
        let _ = writeln!(out, "NODE: {node}");
        for (name, value, unit) in lines(&memory.meminfo.unwrap_or_default()) {
            let _ = writeln!(out, "{name}: {value}{unit}");
        }
    }
    out
}

fn lines(info: &MemInfo) -> Vec<(&'static str, u64, &'static str)> {
    const KB: &str = " kB";
    vec![
        ("MemTotal", info.memtotal, KB),
        ("MemFree", info.memfree, KB),
        ("MemAvailable", info.memavailable, KB),
        ("Buffers", info.buffers, KB),
        ("Cached", info.cached, KB),
        ("SwapCached", info.swapcached, KB),
        ("Active", info.active, KB),
        ("Inactive", info.inactive, KB),
        ("ActiveAnon", info.activeanon, KB),
        ("InactiveAnon", info.inactiveanon, KB),
        ("ActiveFile", info.activefile, KB),
        ("InactiveFile", info.inactivefile, KB),
        ("Unevictable", info.unevictable, KB),
        ("Mlocked", info.mlocked, KB),
        ("SwapTotal", info.swaptotal, KB),
        ("SwapFree", info.swapfree, KB),
        ("Dirty", info.dirty, KB),
        ("Writeback", info.writeback, KB),
        ("AnonPages", info.anonpages, KB),
        ("Mapped", info.mapped, KB),
        ("Shmem", info.shmem, KB),
        ("Slab", info.slab, KB),
        ("SReclaimable", info.sreclaimable, KB),
        ("SUnreclaim", info.sunreclaim, KB),
        ("KernelStack", info.kernelstack, KB),
        ("PageTables", info.pagetables, KB),
        ("NFSUnstable", info.nfsunstable, KB),
        ("Bounce", info.bounce, KB),
        ("WritebackTmp", info.writebacktmp, KB),
        ("CommitLimit", info.commitlimit, KB),
        ("CommittedAS", info.committedas, KB),
        ("VmallocTotal", info.vmalloctotal, KB),
        ("VmallocUsed", info.vmallocused, KB),
        ("VmallocChunk", info.vmallocchunk, KB),
        ("HardwareCorrupted", info.hardwarecorrupted, KB),
        ("AnonHugePages", info.anonhugepages, KB),
        ("ShmemHugePages", info.shmemhugepages, KB),
        ("ShmemPmdMapped", info.shmempmdmapped, KB),
        ("CmaTotal", info.cmatotal, KB),
        ("CmaFree", info.cmafree, KB),
        ("HugePagesTotal", info.hugepagestotal, ""),
        ("HugePagesFree", info.hugepagesfree, ""),
        ("HugePagesRsvd", info.hugepagesrsvd, ""),
        ("HugePagesSurp", info.hugepagessurp, ""),
        ("Hugepagesize", info.hugepagesize, KB),
        ("DirectMap4k", info.directmap4k, KB),
        ("DirectMap2M", info.directmap2m, KB),
        ("DirectMap1G", info.directmap1g, KB),
    ]
}
