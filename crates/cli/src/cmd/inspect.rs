//! `inspect dependencies`: the graph of controllers and resources.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;

use ichor_client::resources::Query;
use ichor_wire::cosi::resource::Resource;
use ichor_wire::inspect::{ControllerDependencyEdge, DependencyEdgeType};

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
    let (connection, with_resources) = (call.connection(), call.on("with-resources"));
    block_on(async {
        let session = Session::open(&connection).await?;
        let client = session.only()?;
        let edges = edges(&session, &client).await?;
        if !with_resources {
            return print(&graph(&edges));
        }
        let (_, definitions) = client
            .definitions()
            .await
            .map_err(|status| explain::status("error listing resource definitions", &status))?;
        let mut kinds: BTreeMap<String, Vec<Resource>> = BTreeMap::new();
        for edge in &edges {
            if kinds.contains_key(&edge.resource_type) {
                continue;
            }
            let namespace = match edge.resource_namespace.as_str() {
                "" => definitions.resolve(&edge.resource_type).map(|found| found.default_namespace.clone()),
                given => Ok(given.to_owned()),
            };
            let Ok(namespace) = namespace else { continue };
            let query = Query { namespace, resource_type: edge.resource_type.clone(), id: None };
            // Not everyone may list everything; a kind that cannot be listed is left out.
            if let Ok(found) = client.list(&query).await {
                kinds.insert(edge.resource_type.clone(), found);
            }
        }
        print(&graph_with_resources(&edges, &kinds))
    })
}

/// Asks one machine for its graph.
pub async fn edges(
    session: &Session,
    client: &ichor_client::Client,
) -> Result<Vec<ControllerDependencyEdge>, Failure> {
    let reply = session.ask(client.inspect().controller_runtime_dependencies(())).await;
    let doing = "error getting controller runtime dependencies";
    let replies = session.gather(doing, reply.map(|reply| reply.into_inner().messages))?;
    Ok(replies.into_iter().flat_map(|(_, reply)| reply.edges).collect())
}

/// Names to numbers, in the order of first use; boxes and subgraphs share the counter.
#[derive(Default)]
struct Numbers<'a> {
    by_name: HashMap<&'a str, usize>,
    last: usize,
}

impl<'a> Numbers<'a> {
    fn of(&mut self, name: &'a str) -> usize {
        if let Some(number) = self.by_name.get(name) {
            return *number;
        }
        self.last += 1;
        self.by_name.insert(name, self.last);
        self.last
    }

    fn skip(&mut self) -> usize {
        self.last += 1;
        self.last
    }
}

const NOTE: &str = "fillcolor=\"azure2\",label={},shape=\"note\",style=\"filled\"";

/// The graph of controllers and types.
pub fn graph(edges: &[ControllerDependencyEdge]) -> String {
    let mut numbers = Numbers::default();
    let mut nodes: BTreeMap<&str, String> = BTreeMap::new();
    let mut lines: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for edge in edges {
        let (controller, kind) = (edge.controller_name.as_str(), edge.resource_type.as_str());
        let number = numbers.of(controller);
        nodes.insert(controller, format!("n{number}[label={controller:?},shape=\"box\"];"));
        let number = numbers.of(kind);
        nodes.insert(kind, format!("n{number}[{}];", NOTE.replace("{}", &format!("{kind:?}"))));
    }
    for edge in edges {
        let (controller, kind) = (edge.controller_name.as_str(), edge.resource_type.as_str());
        let label = match edge.resource_id.as_str() {
            "" => String::new(),
            id => format!("label={id:?},"),
        };
        let (from, to, attributes) = match edge.edge_type() {
            DependencyEdgeType::OutputExclusive => (controller, kind, "style=\"bold\"".to_owned()),
            DependencyEdgeType::OutputShared => (controller, kind, "style=\"solid\"".to_owned()),
            DependencyEdgeType::InputStrong => (kind, controller, format!("{label}style=\"solid\"")),
            DependencyEdgeType::InputWeak => (kind, controller, format!("{label}style=\"dotted\"")),
            // These would only crowd the picture.
            DependencyEdgeType::InputDestroyReady => continue,
        };
        let line = format!("n{}->n{}[{attributes}];", numbers.of(from), numbers.of(to));
        lines.entry(from).or_default().push(line);
    }
    let mut out = String::from("digraph  {\n\t\n");
    for line in nodes.values().chain(lines.values().flatten()) {
        let _ = writeln!(out, "\t{line}");
    }
    out.push_str("\t\n}\n");
    out
}

/// The graph of controllers and single resources: who owns what, who reads what.
pub fn graph_with_resources(
    edges: &[ControllerDependencyEdge],
    kinds: &BTreeMap<String, Vec<Resource>>,
) -> String {
    let named: BTreeMap<&str, Vec<(String, &Resource)>> = kinds
        .iter()
        .map(|(kind, resources)| {
            let resources = resources.iter().filter_map(|resource| {
                let metadata = resource.metadata.as_ref()?;
                Some((format!("{}/{}/{}", metadata.namespace, metadata.r#type, metadata.id), resource))
            });
            (kind.as_str(), resources.collect())
        })
        .collect();
    let mut numbers = Numbers::default();
    let mut controllers: BTreeMap<&str, usize> = BTreeMap::new();
    for edge in edges {
        controllers.insert(&edge.controller_name, numbers.of(&edge.controller_name));
    }
    let mut out = String::from("digraph  {\n");
    for (kind, resources) in &named {
        let _ = write!(out, "\tsubgraph cluster_s{} {{\n\t\tlabel={kind:?};\n", numbers.skip());
        let mut boxes: BTreeMap<&str, usize> = BTreeMap::new();
        for (name, _) in resources {
            boxes.insert(name, numbers.of(name));
        }
        for (name, number) in boxes {
            let _ = writeln!(out, "\t\tn{number}[{}];", NOTE.replace("{}", &format!("{name:?}")));
        }
        out.push_str("\t\t\n\t}\n");
    }
    out.push_str("\t\n");
    for (name, number) in controllers {
        let _ = writeln!(out, "\tn{number}[label={name:?},shape=\"box\"];");
    }
    let mut lines: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for edge in edges {
        for (name, resource) in named.get(edge.resource_type.as_str()).into_iter().flatten() {
            let Some(metadata) = &resource.metadata else { continue };
            if !edge.resource_id.is_empty() && edge.resource_id != metadata.id {
                continue;
            }
            let controller = edge.controller_name.as_str();
            let (from, to, style) = match edge.edge_type() {
                DependencyEdgeType::OutputExclusive | DependencyEdgeType::OutputShared => {
                    if metadata.owner != controller {
                        continue;
                    }
                    (controller, name.as_str(), "solid")
                }
                DependencyEdgeType::InputStrong => (name.as_str(), controller, "solid"),
                DependencyEdgeType::InputWeak => (name.as_str(), controller, "dotted"),
                DependencyEdgeType::InputDestroyReady => continue,
            };
            let line = format!("n{}->n{}[style=\"{style}\"];", numbers.of(from), numbers.of(to));
            lines.entry(from).or_default().push(line);
        }
    }
    for line in lines.values().flatten() {
        let _ = writeln!(out, "\t{line}");
    }
    out.push_str("\t\n}\n");
    out
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn the_graph_points_from_inputs_to_outputs() {
        let edge = |kind: DependencyEdgeType, resource: &str, id: &str| ControllerDependencyEdge {
            controller_name: "net.A".into(),
            edge_type: kind.into(),
            resource_type: resource.into(),
            resource_id: id.into(),
            ..ControllerDependencyEdge::default()
        };
        let edges = [
            edge(DependencyEdgeType::InputWeak, "In", "one"),
            edge(DependencyEdgeType::InputStrong, "Held", ""),
            edge(DependencyEdgeType::OutputExclusive, "Out", ""),
        ];
        expect![[r#"
            digraph  {
            	
            	n3[fillcolor="azure2",label="Held",shape="note",style="filled"];
            	n2[fillcolor="azure2",label="In",shape="note",style="filled"];
            	n4[fillcolor="azure2",label="Out",shape="note",style="filled"];
            	n1[label="net.A",shape="box"];
            	n3->n1[style="solid"];
            	n2->n1[label="one",style="dotted"];
            	n1->n4[style="bold"];
            	
            }
        "#]]
        .assert_eq(&graph(&edges));
    }
}
