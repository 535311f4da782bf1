//! `patch`: changes the configuration of machines by patches.

use ichor_client::resources::Query;
use ichor_wire::cosi::resource::Resource;

use crate::cmd::{apply, get};
use crate::explain;
use crate::failure::Failure;
use crate::flags::flags;
use crate::machineconfig;
use crate::parse::Call;
use crate::session::{Session, block_on, warn_of_old_versions};
use crate::table::{Args, Command, Complete, Flag, Group};

/// The type whose resources are machine configurations.
pub const CONFIG_TYPE: &str = "MachineConfigs.config.talos.dev";
/// The id of the configuration a machine runs with.
pub const ACTIVE: &str = "v1alpha1";

/// The command.
pub static PATCH: Command = Command {
    name: "patch",
    group: Group::Machines,
    about: "Change the configuration of machines by patches",
    examples: &[
        "patch mc -p '{\"machine\": {\"network\": {\"hostname\": \"n1\"}}}'",
        "patch mc --patch @patch.yaml --mode try",
    ],
    args: Args::between("machineconfig [ID]", 1, 2)
        .complete(&[Complete::Words(&["machineconfig"]), Complete::Nothing]),
    flags: &[
        Flag::repeated("patch", "patch as text or @file").short('p'),
        Flag::text("patch-file", "file that holds a patch").complete(Complete::File),
        Flag::text("mode", "auto, no-reboot, reboot, staged or try")
            .short('m')
            .default("auto")
            .complete(apply::MODES),
        Flag::duration("timeout", "1m0s", "with --mode try, return to the old configuration after this time"),
        Flag::switch("dry-run", "show what would change and change nothing"),
        Flag::text("namespace", "namespace, if not the type's own"),
    ],
    run: Some(run),
    ..Command::EMPTY
};

flags! {
    /// The configuration that commands change, as it is named.
    pub(super) ActiveFlags {
        connection: connection(),
        resource_type: arg(0),
        id: some_arg(1),
        namespace: some("namespace"),
    }
}

fn run(call: &Call) -> Result<(), Failure> {
    let mut patches = call.list("patch");
    if let Some(file) = call.some_text("patch-file") {
        patches.push(format!("@{file}"));
    }
    if patches.is_empty() {
        return Err(Failure::new("either --patch or --patch-file should be defined"));
    }
    let (apply, active) = (apply::ApplyFlags::of(call)?, ActiveFlags::of(call));
    block_on(async {
        let session = Session::open(&active.connection).await?;
        warn_of_old_versions(&session).await;
        for node in &session.nodes {
            for config in configurations(&session, &active, node).await? {
                let before = ichor_ops::node_config::text_of(&config)?;
                let after = machineconfig::patched(before.clone().into_bytes(), &patches)?;
                let unchanged = before.as_bytes() == after;
                let request = apply.request(after);
                let reply = session.ask(session.node(node).machine().apply_configuration(request)).await;
                let reply =
                    reply.map_err(|status| explain::status(&format!("{node}: error patching"), &status))?;
                let name = name_of(&config);
                eprintln!("patched {name} at the node {node}");
                for reply in reply.into_inner().messages {
                    apply::tell(node, &reply);
                }
                if unchanged {
                    eprintln!("Apply was skipped: no changes detected.");
                }
            }
        }
        Ok(())
    })
}

/// The active configuration of a machine, found by the type and id on the command line.
pub(super) async fn configurations(
    session: &Session,
    active: &ActiveFlags,
    node: &str,
) -> Result<Vec<Resource>, Failure> {
    let client = session.node(node);
    let doing = format!("{node}: error reading the configuration");
    let (_, definitions) = client.definitions().await.map_err(|status| explain::status(&doing, &status))?;
    let definition = get::resolve(&definitions, &active.resource_type)?;
    if definition.resource_type != CONFIG_TYPE {
        return Err(Failure::new(format!("resource type {} cannot be changed", definition.resource_type))
            .hint("only the machine configuration can: use machineconfig, or mc for short"));
    }
    let id = active.id.as_deref().unwrap_or(ACTIVE);
    if id != ACTIVE {
        return Err(Failure::new(format!("configuration \"{id}\" cannot be changed"))
            .hint(format!("only the active one can, its id is {ACTIVE}")));
    }
    let namespace = active.namespace.as_ref().unwrap_or(&definition.default_namespace);
    let query = Query {
        namespace: namespace.to_owned(),
        resource_type: CONFIG_TYPE.to_owned(),
        id: Some(id.to_owned()),
    };
    client.list(&query).await.map_err(|status| explain::status(&doing, &status))
}

/// `type/id` of a resource.
pub fn name_of(resource: &Resource) -> String {
    let metadata = resource.metadata.clone().unwrap_or_default();
    format!("{}/{}", metadata.r#type, metadata.id)
}
