//! `wipe disk`: empties block devices.

use ichor_wire::storage::block_device_wipe_descriptor::Method;
use ichor_wire::storage::{BlockDeviceWipeDescriptor, BlockDeviceWipeRequest};

use crate::failure::Failure;
use crate::parse::Call;
use crate::session::{Session, block_on};
use crate::table::{Args, Command, Complete, Flag, Group};

/// The parent.
pub static WIPE: Command = Command {
    name: "wipe",
    group: Group::Machines,
    about: "Wipe block devices",
    subcommands: &[&DISK],
    ..Command::EMPTY
};

static DISK: Command = Command {
    name: "disk",
    about: "Wipe disks or partitions that nothing uses",
    examples: &["wipe disk sdb", "wipe disk vda5 --drop-partition"],
    args: Args::between("<device names>...", 1, usize::MAX),
    flags: &[
        Flag::switch("drop-partition", "remove the partition afterwards"),
        Flag::switch("insecure", "talk to a machine that waits for its configuration").short('i'),
        Flag::text("method", "FAST or ZEROES").default("FAST").complete(Complete::Words(&["FAST", "ZEROES"])),
        Flag::switch("skip-volume-check", "do not look for volumes on the device").hidden(),
        Flag::switch("skip-secondary-check", "do not look for devices on top of it").hidden(),
    ],
    run: Some(disk),
    ..Command::EMPTY
};

fn disk(call: &Call) -> Result<(), Failure> {
    let Some(method) = Method::from_str_name(call.text("method")) else {
        return Err(Failure::new(format!("invalid wipe method \"{}\"", call.text("method")))
            .hint("use FAST or ZEROES"));
    };
    let devices = call.args.iter().map(|device| BlockDeviceWipeDescriptor {
        device: device.clone(),
        method: method.into(),
        skip_volume_check: call.on("skip-volume-check"),
        drop_partition: call.on("drop-partition"),
        skip_secondary_check: call.on("skip-secondary-check"),
    });
    let request = BlockDeviceWipeRequest { devices: devices.collect() };
    let (connection, insecure) = (call.connection(), call.on("insecure"));
    block_on(async {
        let session = Session::open_either(&connection, insecure).await?;
        let reply = session.ask(session.all().storage().block_device_wipe(request)).await;
        session.gather("error wiping", reply.map(|reply| reply.into_inner().messages))?;
        Ok(())
    })
}
