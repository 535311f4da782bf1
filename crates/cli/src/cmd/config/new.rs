//! `config new`: a control plane machine issues a client configuration.

use std::path::Path;

use ichor_wire::machine::GenerateClientConfigurationRequest;

use crate::failure::Failure;
use crate::parse::Call;
use crate::session::{Session, block_on};
use crate::{files, profile};

/// The command.
pub(super) fn run(call: &Call) -> Result<(), Failure> {
    let file = if call.args.is_empty() { "talosconfig" } else { call.arg(0) };
    let path = Path::new(file);
    if path.exists() {
        return Err(Failure::new(format!("talosconfig file already exists: \"{file}\""))
            .hint("name another file, or remove it first"));
    }
    let ttl = call.duration("crt-ttl");
    let request = GenerateClientConfigurationRequest {
        roles: call.list("roles"),
        crt_ttl: Some(prost_types::Duration {
            seconds: i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX),
            nanos: i32::try_from(ttl.subsec_nanos()).unwrap_or_default(),
        }),
    };
    let connection = call.connection();
    block_on(async {
        let session = Session::open(&connection).await?;
        let client = session.only()?;
        let reply = session.ask(client.machine().generate_client_configuration(request)).await;
        let doing = "error generating client configuration";
        let replies = session.gather(doing, reply.map(|reply| reply.into_inner().messages))?;
        let Some((_, reply)) = replies.into_iter().next() else {
            return Err(Failure::new(format!("{doing}: the machine's reply is empty")));
        };
        let mut issued = profile::parse(&reply.talosconfig)?;
        let (config, _) = profile::open(&connection)?;
        let (_, current) = profile::context(&config, connection.context.as_deref())?;
        for context in issued.contexts.entries_mut().values_mut() {
            context.endpoints.clone_from(&current.endpoints);
        }
        files::write_new(path, &profile::encode(&issued), 0o600, false)
    })
}
