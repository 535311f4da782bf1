//! The client certificate and its end: a warning in time, renewal while it is valid, a clear word when it is too late.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ichor_client::Client;
use ichor_client::profile::{Overrides, Profile};
use ichor_config::talosconfig::{ClientConfig, Context};
use ichor_pki::CertInfo;
use ichor_wire::machine::{GenerateClientConfiguration, GenerateClientConfigurationRequest};
use jiff::Timestamp;
use tonic::Code;

use crate::connection::Connection;
use crate::failure::{Context as _, Failure};
use crate::{explain, files, profile, term, text};

/// From when on the end of a certificate is told.
const WARN_BEFORE: Duration = Duration::from_secs(60 * 24 * 60 * 60);

/// Set to `1`, certificates that end soon are renewed by whatever command finds them so.
pub const AUTO_RENEW: &str = "ICHOR_AUTO_RENEW";

/// Longest wait for a new certificate that nobody asked for.
const AUTO_TIMEOUT: Duration = Duration::from_secs(10);

/// How a certificate stands.
#[derive(Debug, PartialEq, Eq)]
enum Standing {
    Fine,
    Ending,
    Expired,
}

fn standing(not_after: Timestamp, now: Timestamp) -> Standing {
    let left = not_after.as_second() - now.as_second();
    match u64::try_from(left) {
        Err(_) | Ok(0) => Standing::Expired,
        Ok(left) if left < WARN_BEFORE.as_secs() => Standing::Ending,
        Ok(_) => Standing::Fine,
    }
}

/// The certificate of a context; contexts may prove who is asking in other ways.
fn certificate(context: &Context) -> Option<CertInfo> {
    CertInfo::parse(context.crt_pem().ok()??).ok()
}

/// True where the person wants certificates to be renewed without being asked.
fn is_automatic() -> bool {
    std::env::var(AUTO_RENEW).is_ok_and(|value| value == "1" || value == "true")
}

/// Warns once when the certificate of a context ends soon; one that is over fails here, where the reason is known.
pub fn check(name: &str, context: &Context) -> Result<(), Failure> {
    static TOLD: AtomicBool = AtomicBool::new(false);
    let Some(info) = certificate(context) else { return Ok(()) };
    let now = Timestamp::now();
    let (end, date) = (text::relative(info.not_after, now), text::date(info.not_after));
    match standing(info.not_after, now) {
        Standing::Fine => Ok(()),
        Standing::Ending if is_automatic() || TOLD.swap(true, Ordering::Relaxed) => Ok(()),
        Standing::Ending => {
            term::warn(&format!(
                "the client certificate of context \"{name}\" ends {end} ({date}); `ichorctl config renew` gets a new one"
            ));
            Ok(())
        }
        Standing::Expired => Err(Failure::new(format!(
            "the client certificate of context \"{name}\" ended {end} ({date}); machines refuse it"
        ))
        .hint("with the secrets of the cluster: `ichorctl gen config CLUSTER ENDPOINT --with-secrets secrets.yaml -t talosconfig -o new`, then `ichorctl config merge new`")
        .hint("with a control plane's configuration: `ichorctl gen secrets --from-controlplane-config FILE` gives those secrets")
        .hint("with a colleague whose certificate is valid: `ichorctl config new FILE` makes one for you")
        .hint(format!("this computer says it is {}; if that is wrong, set its clock", text::date(now)))),
    }
}

/// `config renew`: a new certificate in the place of the one that ends, as long-lived as that was unless `ttl` says
/// otherwise.
pub async fn renew(connection: &Connection, ttl: Option<Duration>) -> Result<(), Failure> {
    let loaded = profile::load(connection)?;
    let (config, path) = profile::open(connection)?;
    let (name, context) = profile::context(&config, connection.context.as_deref())?;
    let Some(old) = certificate(context) else {
        return Err(Failure::new(format!("context \"{name}\" has no client certificate"))
            .hint("`ichorctl config contexts` lists the others, --context NAME names one"));
    };
    let client = loaded.client()?;
    let peer = term::patient("connecting", client.connect()).await;
    peer.map_err(|error| explain::unreachable(&error))?;
    // The endpoint itself issues; a machine is named only when it was asked for.
    let client = match connection.nodes.as_slice() {
        [] => client,
        [node] => client.to_node(node),
        _ => {
            return Err(Failure::new("one machine issues the certificate").hint("name one with `-n ADDRESS`"));
        }
    };
    let ttl = ttl.unwrap_or_else(|| lifetime(&old));
    let issued = term::patient("waiting for the certificate", request(&client, &old, ttl)).await?;
    let end = replace(connection, &path, name, &old, &issued).await?;
    eprintln!(
        "renewed the client certificate of context \"{name}\" in {}: it ends {} ({})",
        path.display(),
        text::relative(end, Timestamp::now()),
        text::date(end)
    );
    Ok(())
}

/// Renews a certificate that ends soon, where that was asked for. Never an error: the old one is still good.
pub async fn renew_if_wanted(connection: &Connection, client: &Client) {
    if !is_automatic() {
        return;
    }
    let Ok((config, path)) = profile::open(connection) else { return };
    let Ok((name, context)) = profile::context(&config, connection.context.as_deref()) else { return };
    let Some(old) = certificate(context) else { return };
    if standing(old.not_after, Timestamp::now()) != Standing::Ending {
        return;
    }
    let work = async {
        let issued = request(client, &old, lifetime(&old)).await?;
        replace(connection, &path, name, &old, &issued).await
    };
    let done = tokio::time::timeout(AUTO_TIMEOUT, work).await;
    match done.unwrap_or_else(|_| Err(Failure::new(format!("no answer within {AUTO_TIMEOUT:?}")))) {
        Ok(end) => eprintln!(
            "renewed the client certificate of context \"{name}\": it ends {} ({})",
            text::relative(end, Timestamp::now()),
            text::date(end)
        ),
        Err(failure) => term::warn(&format!(
            "the client certificate of context \"{name}\" ends {} and was not renewed: {failure}",
            text::relative(old.not_after, Timestamp::now())
        )),
    }
}

/// As long as the old one was meant to last.
fn lifetime(old: &CertInfo) -> Duration {
    let seconds = old.not_after.as_second() - old.not_before.as_second();
    Duration::from_secs(u64::try_from(seconds).unwrap_or_default().max(60))
}

async fn request(
    client: &Client,
    old: &CertInfo,
    ttl: Duration,
) -> Result<GenerateClientConfiguration, Failure> {
    let request = GenerateClientConfigurationRequest {
        roles: old.organizations.clone(),
        crt_ttl: Some(prost_types::Duration {
            seconds: i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX),
            nanos: i32::try_from(ttl.subsec_nanos()).unwrap_or_default(),
        }),
    };
    let doing = "error renewing the client certificate";
    let reply = client.machine().generate_client_configuration(request).await.map_err(|status| {
        let failure = Failure::new(format!("{doing}: {}", ichor_client::status_text(&status)));
        match status.code() {
            Code::PermissionDenied => failure.hint(
                "only administrators issue certificates: ask one for `ichorctl config new FILE --roles ...`, then `ichorctl config merge FILE`",
            ),
            Code::FailedPrecondition => failure.hint("workers cannot issue one: name a control plane with `-e ADDRESS`"),
            _ => failure,
        }
    })?;
    let first = reply.into_inner().messages.into_iter().next();
    first.ok_or_else(|| Failure::new(format!("{doing}: the machine's reply is empty")))
}

/// Puts a new certificate in the place of the old one, after it has been tried.
async fn replace(
    connection: &Connection,
    path: &Path,
    name: &str,
    old: &CertInfo,
    issued: &GenerateClientConfiguration,
) -> Result<Timestamp, Failure> {
    // Read again: another command may have changed the file in the meantime.
    let mut config = profile::read(path)?;
    let context = config.contexts.entries_mut().get_mut(name);
    let context = context.ok_or_else(|| Failure::new(format!("context \"{name}\" is gone")))?;
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).context("the machine's reply");
    let new = Context::new(&[], &text(&issued.ca)?, &text(&issued.crt)?, &text(&issued.key)?);
    let info = CertInfo::parse(&issued.crt).context("the new certificate")?;
    if standing(info.not_after, Timestamp::now()) == Standing::Expired || info.not_after <= old.not_after {
        return Err(Failure::new(format!(
            "the new certificate would end {}, no later than the old one",
            text::date(info.not_after)
        ))
        .hint("give it more time with --crt-ttl"));
    }
    (context.crt, context.key) = (new.crt, new.key);
    if !new.ca.is_empty() {
        context.ca = new.ca;
    }
    try_out(&config, name, connection.endpoints.clone()).await?;
    save(&config, path)?;
    Ok(info.not_after)
}

/// A certificate that machines do not take must not replace one that they do.
async fn try_out(config: &ClientConfig, name: &str, endpoints: Vec<String>) -> Result<(), Failure> {
    let overrides = Overrides { context: Some(name.to_owned()), endpoints, ..Overrides::default() };
    let client = Profile::resolve(config, &overrides).and_then(|profile| profile.client()).plain()?;
    match client.machine().version(()).await {
        Err(status) if status.code() != Code::PermissionDenied => {
            let text = ichor_client::status_text(&status);
            Err(Failure::new(format!("the new certificate does not work: {text}"))
                .hint("the old one was kept"))
        }
        _ => Ok(()),
    }
}

/// Replaces the file whole, with the mode it has; a link stays a link.
fn save(config: &ClientConfig, path: &Path) -> Result<(), Failure> {
    if path == Path::new(ichor_client::profile::SERVICE_ACCOUNT_PATH) {
        return profile::save(config, path);
    }
    let target = path.canonicalize().context(format!("find {}", path.display()))?;
    let mode = target.metadata().map(|found| found.permissions().mode() & 0o777).unwrap_or(0o600);
    files::write(&target, &profile::encode(config), mode)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_is_told_from_sixty_days_before() {
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        let at = |days: i64, seconds: i64| {
            Timestamp::from_second(now.as_second() + days * 86_400 + seconds).unwrap()
        };
        assert_eq!(standing(at(60, 0), now), Standing::Fine);
        assert_eq!(standing(at(60, -1), now), Standing::Ending);
        assert_eq!(standing(at(0, 1), now), Standing::Ending);
        assert_eq!(standing(at(0, 0), now), Standing::Expired);
        assert_eq!(standing(at(-400, 0), now), Standing::Expired);
    }
}
