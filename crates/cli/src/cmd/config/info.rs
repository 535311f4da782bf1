//! `config info`: the current context and its certificate.

use ichor_config::talosconfig::Context;
use ichor_pki::CertInfo;
use jiff::Timestamp;
use serde_json::json;

use crate::failure::Failure;
use crate::output::json::pretty;
use crate::parse::Call;
use crate::{print, profile, text};

/// The command.
pub(super) fn run(call: &Call) -> Result<(), Failure> {
    let output = call.text("output").to_owned();
    if !["text", "json", "yaml"].contains(&output.as_str()) {
        return Err(
            Failure::new(format!("unknown output format: \"{output}\"")).hint("use text, json or yaml")
        );
    }
    let connection = call.connection();
    let (config, _) = profile::open(&connection)?;
    let (name, context) = profile::context(&config, connection.context.as_deref())?;
    let info = Info::of(name, context);
    print(&match output.as_str() {
        "json" => info.json(),
        "yaml" => info.yaml(),
        _ => info.text(Timestamp::now()),
    })
}

/// What there is to know about a context.
pub(super) struct Info {
    name: String,
    nodes: Vec<String>,
    endpoints: Vec<String>,
    certificate: Option<CertInfo>,
}

impl Info {
    /// Reads the context's certificate, if it has one that can be read.
    pub(super) fn of(name: &str, context: &Context) -> Self {
        Self {
            name: name.to_owned(),
            nodes: context.nodes.to_vec(),
            endpoints: context.endpoints.to_vec(),
            certificate: context.crt_pem().ok().flatten().and_then(|crt| CertInfo::parse(crt).ok()),
        }
    }

    fn roles(&self) -> Vec<String> {
        self.certificate.as_ref().map(|info| info.organizations.clone()).unwrap_or_default()
    }

    fn ttl(&self, now: Timestamp) -> String {
        self.certificate.as_ref().map_or(String::new(), |info| text::relative(info.not_after, now))
    }

    /// Lines for people.
    pub(super) fn text(&self, now: Timestamp) -> String {
        let or_none =
            |list: &[String]| if list.is_empty() { "not defined".to_owned() } else { list.join(", ") };
        let mut rows = vec![
            ("Current context:", self.name.clone()),
            ("Nodes:", or_none(&self.nodes)),
            ("Endpoints:", or_none(&self.endpoints)),
        ];
        if let Some(certificate) = &self.certificate {
            rows.push(("Roles:", self.roles().join(", ")));
            let date = text::date(certificate.not_after);
            rows.push(("Certificate expires:", format!("{} ({date})", self.ttl(now))));
        }
        rows.into_iter().map(|(label, value)| format!("{label:<21}{value}\n")).collect()
    }

    fn json(&self) -> String {
        let ttl = self.ttl(Timestamp::now());
        let not_after =
            self.certificate.as_ref().map(|info| text::rfc3339(info.not_after)).unwrap_or_default();
        pretty(
            &json!({
                "context": self.name, "nodes": self.nodes, "endpoints": self.endpoints, "roles": self.roles(),
                "certTTL": ttl, "certNotAfter": not_after,
            }),
            "    ",
        )
    }

    fn yaml(&self) -> String {
        use ichor_yaml::Node;
        let list = |items: &[String]| Node::seq(items.iter().map(Node::string).collect());
        let ttl = self.ttl(Timestamp::now());
        let not_after =
            self.certificate.as_ref().map(|info| text::rfc3339(info.not_after)).unwrap_or_default();
        let entries = [
            ("context", Node::string(&self.name)),
            ("nodes", list(&self.nodes)),
            ("endpoints", list(&self.endpoints)),
            ("roles", list(&self.roles())),
            ("certTTL", Node::string(ttl)),
            ("certNotAfter", Node::string(not_after)),
        ];
        let entries = entries.into_iter().map(|(key, value)| (Node::string(key), value));
        ichor_yaml::emit(&Node::map(entries.collect()))
    }
}
