//! `inspect dependencies`: the graph of controllers and resources.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use ichor_wire::cosi::resource::Resource;
use ichor_wire::inspect::{ControllerDependencyEdge, DependencyEdgeType};

use ichor_client::resources::Query;

use crate::explain;
use crate::failure::Failure;
use crate::parse::Call;
use crate::print;
use crate::session::{Session, block_on};
use crate::table::{Command, Flag, Group};

/// The parent.
pub static INSPECT: Command = Command {
    name: "inspect",
    group: Group::Machines,
    about: "Look inside a machine",
    subcommands: &[&DEPENDENCIES],
    ..Command::EMPTY
};

static DEPENDENCIES: Command = Command {
    name: "dependencies",
    about: "Print the graph of controllers and resources for graphviz",
    examples: &["inspect dependencies | dot -Tsvg > graph.svg"],
    flags: &[Flag::switch("with-resources", "show single resources in place of types")],
    run: Some(run),
    ..Command::EMPTY
};

fn run(call: &Call) -> Result<(), Failure> {
    block_on(async {
        let session = Session::open(call).await?;
        let client = session.only(call)?;
        let reply = session.ask(client.inspect().controller_runtime_dependencies(())).await;
        let doing = "error getting controller runtime dependencies";
        let replies = session.gather(doing, reply.map(|reply| reply.into_inner().messages))?;
        let edges: Vec<ControllerDependencyEdge> =
            replies.into_iter().flat_map(|(_, reply)| reply.edges).collect();
        if !call.on("with-resources") {
            return print(&graph(&edges));
        }
        let mut resources = Vec::new();
        let kinds: BTreeSet<(String, String)> = edges
            .iter()
            .filter(|edge| !edge.resource_namespace.is_empty())
            .map(|edge| (edge.resource_namespace.clone(), edge.resource_type.clone()))
            .collect();
        for (namespace, resource_type) in kinds {
            let query = Query { namespace, resource_type, id: None };
            match client.list(&query).await {
                Ok(found) => resources.extend(found),
                // Sensitive kinds and kinds without a namespace cannot be listed by everyone.
                Err(status) if status.code() == tonic::Code::PermissionDenied => {}
                Err(status) => return Err(explain::status("error listing resources", &status)),
            }
        }
        print(&graph_with_resources(&edges, &resources))
    })
}

/// The graph of controllers and types.
pub fn graph(edges: &[ControllerDependencyEdge]) -> String {
    let mut out = String::from("digraph {\n");
    push_nodes(&mut out, edges);
    for edge in edges {
        let (controller, kind) = (&edge.controller_name, &edge.resource_type);
        let line = match edge.edge_type() {
            DependencyEdgeType::OutputExclusive => format!("{controller:?} -> {kind:?} [style=bold]"),
            DependencyEdgeType::OutputShared => format!("{controller:?} -> {kind:?}"),
            DependencyEdgeType::InputStrong => format!("{kind:?} -> {controller:?} [label=\"strong\"]"),
            DependencyEdgeType::InputWeak => format!("{kind:?} -> {controller:?} [style=dotted]"),
            DependencyEdgeType::InputDestroyReady => format!("{kind:?} -> {controller:?} [style=dashed]"),
        };
        let _ = writeln!(out, "    {line};");
    }
    out.push_str("}\n");
    out
}

fn push_nodes(out: &mut String, edges: &[ControllerDependencyEdge]) {
    let controllers: BTreeSet<&str> = edges.iter().map(|edge| edge.controller_name.as_str()).collect();
    let kinds: BTreeSet<&str> = edges.iter().map(|edge| edge.resource_type.as_str()).collect();
    for controller in controllers {
        let _ = writeln!(out, "    {controller:?} [shape=box];");
    }
    for kind in kinds {
        let _ = writeln!(out, "    {kind:?} [shape=note];");
    }
}

/// The graph of controllers and single resources: who owns what, who reads what.
pub fn graph_with_resources(edges: &[ControllerDependencyEdge], resources: &[Resource]) -> String {
    let mut out = String::from("digraph {\n");
    let controllers: BTreeSet<&str> = edges.iter().map(|edge| edge.controller_name.as_str()).collect();
    for controller in controllers {
        let _ = writeln!(out, "    {controller:?} [shape=box];");
    }
    for metadata in resources.iter().filter_map(|resource| resource.metadata.as_ref()) {
        let name = format!("{}({}/{})", metadata.r#type, metadata.namespace, metadata.id);
        let _ = writeln!(out, "    {name:?} [shape=note];");
        if !metadata.owner.is_empty() {
            let _ = writeln!(out, "    {:?} -> {name:?};", metadata.owner);
        }
        for edge in edges.iter().filter(|edge| {
            is_input(edge)
                && edge.resource_type == metadata.r#type
                && edge.resource_namespace == metadata.namespace
                && (edge.resource_id.is_empty() || edge.resource_id == metadata.id)
        }) {
            let _ = writeln!(out, "    {name:?} -> {:?};", edge.controller_name);
        }
    }
    out.push_str("}\n");
    out
}

fn is_input(edge: &ControllerDependencyEdge) -> bool {
    match edge.edge_type() {
        DependencyEdgeType::InputStrong
        | DependencyEdgeType::InputWeak
        | DependencyEdgeType::InputDestroyReady => true,
        DependencyEdgeType::OutputExclusive | DependencyEdgeType::OutputShared => false,
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn the_graph_points_from_inputs_to_outputs() {
        let edge = |kind: DependencyEdgeType, resource: &str| ControllerDependencyEdge {
            controller_name: "net.A".into(),
            edge_type: kind.into(),
            resource_type: resource.into(),
            ..ControllerDependencyEdge::default()
        };
        let edges = [
            edge(DependencyEdgeType::InputWeak, "In"),
            edge(DependencyEdgeType::InputStrong, "Held"),
            edge(DependencyEdgeType::OutputExclusive, "Out"),
        ];
        expect![[r#"
            digraph {
                "net.A" [shape=box];
                "Held" [shape=note];
                "In" [shape=note];
                "Out" [shape=note];
                "In" -> "net.A" [style=dotted];
                "Held" -> "net.A" [label="strong"];
                "net.A" -> "Out" [style=bold];
            }
        "#]]
        .assert_eq(&graph(&edges));
    }
}
