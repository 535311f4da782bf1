//! `etcd snapshot`: a copy of the database in a file.

use std::path::PathBuf;

use ichor_ops::Problem;
use ichor_ops::etcd::{SNAPSHOT_MAX, describe, save};

use crate::failure::Failure;
use crate::parse::Call;
use crate::session::{Session, block_on};
use crate::table::{Args, Command, Complete};
use crate::{files, print};

/// `etcd snapshot`.
pub(super) static SNAPSHOT: Command = Command {
    name: "snapshot",
    about: "Save the database to a file",
    args: Args::between("<path>", 1, 1).complete(&[Complete::File]),
    run: Some(snapshot),
    ..Command::EMPTY
};

fn snapshot(call: &Call) -> Result<(), Failure> {
    let (connection, path) = (call.connection(), PathBuf::from(call.arg(0)));
    block_on(async {
        let session = Session::open(&connection).await?;
        let saved = save(&session.only()?, &session.label, &path).await;
        let size = saved.map_err(|error| {
            let cut = matches!(error.problem(), Problem::SnapshotCut { .. });
            let failure = Failure::from(error);
            if cut { failure.hint("the snapshot arrived incomplete: try again") } else { failure }
        })?;
        let content = files::read_large(&path, SNAPSHOT_MAX)?;
        print(&format!(
            "etcd snapshot saved to {:?} ({size} bytes)\nsnapshot info: {}\n",
            path.display().to_string(),
            describe(&content)?
        ))
    })
}
