//! `meta`: keys of the META partition.

use ichor_wire::machine::{MetaDeleteRequest, MetaWriteRequest};

use crate::failure::Failure;
use crate::parse::Call;
use crate::session::{Session, block_on};
use crate::table::{Args, Command, Flag, Group};

/// The parent.
pub static META: Command = Command {
    name: "meta",
    group: Group::Machines,
    about: "Write and delete keys of META",
    shared_flags: &[Flag::switch("insecure", "talk to a machine that waits for its configuration").short('i')],
    subcommands: &[&DELETE, &WRITE],
    ..Command::EMPTY
};

static WRITE: Command = Command {
    name: "write",
    about: "Write a key",
    examples: &["meta write 0x0c value"],
    args: Args::between("key value", 2, 2),
    run: Some(write),
    ..Command::EMPTY
};

static DELETE: Command = Command {
    name: "delete",
    about: "Delete a key",
    args: Args::between("key", 1, 1),
    run: Some(delete),
    ..Command::EMPTY
};

/// Reads a key: one byte, in decimal or with `0x`, `0o`, `0b` in front.
fn key(text: &str) -> Result<u32, Failure> {
    let lower = text.to_lowercase().replace('_', "");
    let number = match lower.as_bytes() {
        [b'0', b'x', ..] => u32::from_str_radix(&lower[2..], 16),
        [b'0', b'o', ..] => u32::from_str_radix(&lower[2..], 8),
        [b'0', b'b', ..] => u32::from_str_radix(&lower[2..], 2),
        [b'0', _, ..] => u32::from_str_radix(&lower[1..], 8),
        _ => lower.parse(),
    };
    match number {
        Ok(key) if key <= 255 => Ok(key),
        _ => Err(Failure::new(format!("\"{text}\" is not a key"))
            .hint("a key is a number from 0 to 255, such as 12 or 0x0c")),
    }
}

fn write(call: &Call) -> Result<(), Failure> {
    let request = MetaWriteRequest { key: key(call.arg(0))?, value: call.arg(1).as_bytes().to_vec() };
    let (connection, insecure) = (call.connection(), call.on("insecure"));
    block_on(async {
        let session = Session::open_either(&connection, insecure).await?;
        let reply = session.ask(session.all().machine().meta_write(request)).await;
        session.gather("error writing the key", reply.map(|reply| reply.into_inner().messages))?;
        Ok(())
    })
}

fn delete(call: &Call) -> Result<(), Failure> {
    let request = MetaDeleteRequest { key: key(call.arg(0))? };
    let (connection, insecure) = (call.connection(), call.on("insecure"));
    block_on(async {
        let session = Session::open_either(&connection, insecure).await?;
        let reply = session.ask(session.all().machine().meta_delete(request)).await;
        session.gather("error deleting the key", reply.map(|reply| reply.into_inner().messages))?;
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::key;

    #[test]
    fn keys_are_bytes_in_any_base() {
        for (text, number) in [("12", 12), ("0x0a", 10), ("0b101", 5), ("0o17", 15), ("017", 15), ("0", 0)] {
            assert_eq!(key(text).unwrap(), number, "{text}");
        }
        for bad in ["256", "-1", "x", "", "0x", "08"] {
            assert!(key(bad).is_err(), "{bad}");
        }
    }
}
