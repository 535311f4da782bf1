//! `mounts`: filesystems and how full they are.

use ichor_wire::machine::Mounts;

use crate::failure::Failure;
use crate::parse::Call;
use crate::print;
use crate::session::{Session, block_on};
use crate::table::{Command, Group};
use crate::tabs::Table;

/// The command.
pub static MOUNTS: Command = Command {
    name: "mounts",
    aliases: &["mount"],
    group: Group::Machines,
    about: "List mounted filesystems",
    run: Some(run),
    ..Command::EMPTY
};

fn run(call: &Call) -> Result<(), Failure> {
    let connection = call.connection();
    block_on(async {
        let session = Session::open(&connection).await?;
        let reply = session.ask(session.all().machine().mounts(())).await;
        let replies =
            session.gather("error getting mounts", reply.map(|reply| reply.into_inner().messages))?;
        print(&table_text(&replies))
    })
}

/// The table, in powers of a thousand.
pub fn table_text(replies: &[(String, Mounts)]) -> String {
    const GB: f64 = 1e9;
    let mut table = Table::with_header([
        "NODE",
        "FILESYSTEM",
        "SIZE(GB)",
        "USED(GB)",
        "AVAILABLE(GB)",
        "PERCENT USED",
        "MOUNTED ON",
    ]);
    for (node, mounts) in replies {
        for mount in &mounts.stats {
            // Filesystems without a size, such as proc, have nothing to tell.
            if mount.size == 0 {
                continue;
            }
            let used = mount.size.saturating_sub(mount.available);
            let percent = 100.0 * used as f64 / mount.size as f64;
            table.row([
                node.clone(),
                mount.filesystem.clone(),
                format!("{:.2}", mount.size as f64 / GB),
                format!("{:.2}", used as f64 / GB),
                format!("{:.2}", mount.available as f64 / GB),
                format!("{percent:.2}%"),
                mount.mounted_on.clone(),
            ]);
        }
    }
    table.take()
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use ichor_wire::machine::MountStat;

    use super::*;

    #[test]
    fn sizes_are_in_powers_of_a_thousand_and_filesystems_without_one_are_left_out() {
        let mount = |filesystem: &str, size: u64, available: u64, mounted_on: &str| MountStat {
            filesystem: filesystem.into(),
            size,
            available,
            mounted_on: mounted_on.into(),
        };
        let stats =
            vec![mount("/dev/vda1", 10_000_000_000, 2_500_000_000, "/var"), mount("proc", 0, 0, "/proc")];
        expect![[r#"
            NODE       FILESYSTEM   SIZE(GB)   USED(GB)   AVAILABLE(GB)   PERCENT USED   MOUNTED ON
            10.5.0.2   /dev/vda1    10.00      7.50       2.50            75.00%         /var
        "#]]
        .assert_eq(&table_text(&[("10.5.0.2".to_owned(), Mounts { metadata: None, stats })]));
    }
}
