//! A command's conversation with machines: opens the client, knows the nodes, sorts the replies.

use std::future::Future;
use std::time::Duration;

use ichor_client::{Client, NodeError, Reply, Target, split, status_text};
use tokio::signal::unix::{SignalKind, signal};
use tonic::{Code, Status};

use crate::connection::Connection;
use crate::explain;
use crate::failure::Failure;
use crate::{term, text};

/// How long machines may take to tell their version before the command goes on without it.
const SKEW_TIMEOUT: Duration = Duration::from_secs(5);

/// An open client and the machines the command is for.
pub struct Session {
    client: Client,
    /// The machines, as they were named.
    pub nodes: Vec<String>,
    /// The name for replies that carry none: the address at the other end.
    pub label: String,
    /// Calls name their machines; not so when talking to a machine without configuration.
    routed: bool,
    /// The command's name, for errors.
    command: String,
}

impl Session {
    /// Connects to the machines of the command line or the client configuration.
    pub async fn open(connection: &Connection) -> Result<Self, Failure> {
        let profile = crate::profile::load(connection)?;
        if profile.nodes.is_empty() {
            return Err(Failure::new(
                "nodes are not set for the command: please use `--nodes` flag or configuration file \
                 to set the nodes to run the command against",
            )
            .hint("give them with `-n ADDRESS`, or keep them with `ichorctl config node ADDRESS...`"));
        }
        let client = profile.client()?;
        let peer = connect(&client).await?;
        crate::credentials::renew_if_wanted(connection, &client).await;
        Ok(Self::over(client, profile.nodes, peer, true).named(connection))
    }

    /// Connects to the only machine that is named; when none is, to an endpoint, which then answers itself. For
    /// programs in pods, whose client configuration names endpoints alone.
    pub async fn open_near(connection: &Connection) -> Result<Self, Failure> {
        if !crate::profile::load(connection)?.nodes.is_empty() {
            let session = Self::open(connection).await?;
            return session.only().map(|_| session);
        }
        let client = crate::profile::load(connection)?.client()?;
        let peer = connect(&client).await?;
        Ok(Self::over(client, vec![peer.clone()], peer, false).named(connection))
    }

    /// The client of the machine that [`Session::open_near`] found.
    pub fn near(&self) -> Client {
        self.node(&self.nodes[0])
    }

    /// Connects to a machine that has no configuration yet: the nodes themselves, without a client
    /// certificate, pinned to `fingerprints` when there are any.
    pub async fn open_insecure(connection: &Connection, fingerprints: &[String]) -> Result<Self, Failure> {
        let nodes = connection.nodes.clone();
        if nodes.is_empty() {
            return Err(Failure::new("nodes are not set for the command: please use `--nodes` flag").hint(
                "with --insecure the nodes are connected to directly, no client configuration is read",
            ));
        }
        let client = crate::profile::insecure_client(&nodes, fingerprints)?;
        let peer = connect(&client).await?;
        Ok(Self::over(client, nodes, peer, false).named(connection))
    }

    /// [`Session::open_insecure`] with `insecure`, else [`Session::open`].
    pub async fn open_either(connection: &Connection, insecure: bool) -> Result<Self, Failure> {
        if insecure { Self::open_insecure(connection, &[]).await } else { Self::open(connection).await }
    }

    fn over(client: Client, nodes: Vec<String>, peer: String, routed: bool) -> Self {
        Self { client, nodes, label: peer, routed, command: String::new() }
    }

    fn named(self, connection: &Connection) -> Self {
        Self { command: connection.command.clone(), ..self }
    }

    /// Waits for the answer to a question, and says so when it takes long.
    pub async fn ask<T>(&self, question: impl Future<Output = T>) -> T {
        term::patient(&format!("waiting for {}", self.nodes.join(", ")), question).await
    }

    /// A client whose calls go to all machines. One machine is asked the same way as many, so that replies
    /// and errors carry its name and look alike.
    pub fn all(&self) -> Client {
        match self.routed {
            false => self.client.clone(),
            true => self.client.to(Target::Nodes(self.nodes.clone())),
        }
    }

    /// A client whose calls go to the endpoint itself.
    pub fn endpoint(&self) -> Client {
        self.client.clone()
    }

    /// A client whose calls go to one machine.
    pub fn node(&self, node: &str) -> Client {
        if self.routed { self.client.to_node(node) } else { self.client.clone() }
    }

    /// The machines to ask one by one: all of them, or the one that is really connected to.
    pub fn each(&self) -> &[String] {
        if self.routed { &self.nodes } else { &self.nodes[..1] }
    }

    /// The name of a machine in the column of resources: scripts know it empty for machines that wait for
    /// their configuration.
    pub fn shown<'a>(&self, node: &'a str) -> &'a str {
        if self.routed { node } else { "" }
    }

    /// The client for a command that works with one machine only.
    pub fn only(&self) -> Result<Client, Failure> {
        match self.nodes.as_slice() {
            [node] => Ok(self.node(node)),
            _ => Err(Failure::new(format!(
                "command \"{}\" is not supported with multiple nodes",
                self.command
            ))
            .hint("name one machine with `-n ADDRESS`")),
        }
    }

    /// Reads a stream to its end and hands every message to `take` with its machine. Errors of single
    /// machines go to `errors`, to be told when everything else is.
    pub async fn read<T: Reply>(
        &self,
        doing: &str,
        stream: Result<tonic::Response<tonic::Streaming<T>>, Status>,
        mut take: impl FnMut(String, T) -> Result<(), Failure>,
        errors: &mut StreamErrors,
    ) -> Result<(), Failure> {
        let mut stream = stream.map_err(|status| explain::status(doing, &status))?.into_inner();
        loop {
            match stream.message().await {
                Ok(Some(message)) => match ichor_client::sort(message, &self.label) {
                    Ok((node, message)) => take(node, message)?,
                    Err(error) => errors.push(error),
                },
                Ok(None) => return Ok(()),
                Err(status) => {
                    errors.broken(&self.label, &status);
                    return Ok(());
                }
            }
        }
    }

    /// Sorts a unary reply. Machines that failed become a warning; when none answered, a failure.
    pub fn gather<T: Reply>(
        &self,
        doing: &str,
        result: Result<Vec<T>, Status>,
    ) -> Result<Vec<(String, T)>, Failure> {
        let messages = result.map_err(|status| explain::status(doing, &status))?;
        let mut split = split(messages, &self.label);
        // The gateway merges in the order of answers; people read in the order they asked.
        let place = |node: &str| self.nodes.iter().position(|known| known == node).unwrap_or(usize::MAX);
        split.ok.sort_by_key(|(node, _)| place(node));
        split.failed.sort_by_key(|error| place(&error.node));
        if split.failed.is_empty() {
            return Ok(split.ok);
        }
        if split.ok.is_empty() {
            return Err(explain::nodes(doing, &split.failed));
        }
        term::warn(&errors_text(&split.failed));
        Ok(split.ok)
    }
}

impl Session {
    /// The client and the machines of a command that explains itself why a connection fails.
    pub fn prepare(connection: &Connection, insecure: bool) -> Result<(Client, Vec<String>), Failure> {
        if insecure {
            let nodes = connection.nodes.clone();
            if nodes.is_empty() {
                return Err(Failure::new("nodes are not set for the command: please use `--nodes` flag"));
            }
            return Ok((crate::profile::insecure_client(&nodes, &[])?, nodes));
        }
        let profile = crate::profile::load(connection)?;
        if profile.nodes.is_empty() {
            return Err(Failure::new("nodes are not set for the command: please use `--nodes` flag")
                .hint("give them with `-n ADDRESS`, or keep them with `ichorctl config node ADDRESS...`"));
        }
        Ok((profile.client()?, profile.nodes))
    }

    /// A session over a client that is connected.
    pub fn over_client(client: Client, nodes: Vec<String>, routed: bool) -> Self {
        let peer = nodes.join(", ");
        Self::over(client, nodes, peer, routed)
    }
}

async fn connect(client: &Client) -> Result<String, Failure> {
    let connected = term::patient("connecting", client.connect()).await;
    connected.map_err(|error| explain::unreachable(&error))
}

/// Errors of machines that were met along a stream; told at its end.
#[derive(Default)]
pub struct StreamErrors(Vec<NodeError>);

impl StreamErrors {
    /// Notes an error.
    pub fn push(&mut self, error: NodeError) {
        self.0.push(error);
    }

    /// Notes that the stream itself broke.
    pub fn broken(&mut self, node: &str, status: &Status) {
        self.push(NodeError { node: node.to_owned(), text: status_text(status), code: Some(status.code()) });
    }

    /// Tells all errors, if there are any, as the command's failure.
    pub fn finish(self) -> Result<(), Failure> {
        if self.0.is_empty() {
            return Ok(());
        }
        term::red(&errors_text(&self.0));
        Err(Failure::told())
    }
}

/// The block of errors, a line for each machine.
pub fn errors_text(errors: &[NodeError]) -> String {
    text::errors_block(&errors.iter().map(ToString::to_string).collect::<Vec<_>>())
}

/// Asks every machine for its version and warns of those older than this client. Never an error: a machine
/// that cannot answer this will say so when asked the real question.
pub async fn warn_of_old_versions(session: &Session) {
    let mut machine = session.all().machine();
    let Ok(Ok(reply)) = tokio::time::timeout(SKEW_TIMEOUT, machine.version(())).await else { return };
    for (node, version) in split(reply.into_inner().messages, &session.label).ok {
        let Some(tag) = version.version.map(|version| version.tag) else { continue };
        if older(&tag, crate::identity::TAG) {
            term::warn(&format!(
                "{node}: server version {tag} is older than client version {}",
                crate::identity::TAG
            ));
        }
    }
}

fn older(tag: &str, than: &str) -> bool {
    match (numbers(tag), numbers(than)) {
        (Some(left), Some(right)) => left < right,
        _ => false,
    }
}

fn numbers(tag: &str) -> Option<[u64; 3]> {
    let mut parts = tag.trim_start_matches('v').split(['-', '+']).next()?.split('.');
    let mut next = || parts.next()?.parse().ok();
    Some([next()?, next()?, next()?])
}

/// Runs a command's conversation to its end, or until Ctrl-C.
pub fn block_on<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new(format!("start the runtime: {error}")))?;
    let result = runtime.block_on(async {
        tokio::select! {
            result = work => result,
            () = interrupted() => Err(Failure::new("interrupted")),
        }
    });
    // Nobody waits for name lookups or half-open connections that are still running.
    runtime.shutdown_background();
    result
}

async fn interrupted() {
    let (Ok(mut interrupt), Ok(mut terminate)) =
        (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
    else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    eprintln!("Signal received, aborting, press Ctrl+C once again to abort immediately...");
}

/// True when trying again may help.
pub fn is_transient(status: &Status) -> bool {
    matches!(status.code(), Code::Unavailable | Code::DeadlineExceeded)
}
