//! OAuth2 device flow (RFC 8628) for the download of a configuration: somebody confirms on another device that this machine may
//! have it. The address and the code to confirm are told on the console.

use std::time::Duration;

use http::{Method, Request, header};
use ichor_http::client::{Client, ClientError, collect};
use ichor_http::full;
use ichor_types::Cmdline;
use serde_json::Value;
use tokio::time::{Instant, sleep, timeout};
use tracing::warn;

use crate::download::{Facts, escape};

const PREFIX: &str = "talos.config.oauth.";
const GRANT: &str = "urn:ietf:params:oauth:grant-type:device_code";
/// A pause between two questions, where the server names none, and what it is at most.
const INTERVAL: Duration = Duration::from_secs(5);
const INTERVAL_MAX: Duration = Duration::from_secs(60);
/// What a server that wants fewer questions adds to it.
const SLOWER: Duration = Duration::from_secs(5);
/// A code is good for so long, where the server does not say, and is not waited for longer.
const EXPIRES: Duration = Duration::from_secs(15 * 60);
const EXPIRES_MAX: Duration = Duration::from_secs(60 * 60);
const ANSWER_TIME: Duration = Duration::from_secs(60);
const ANSWER_MAX: usize = 1 << 20;

/// Why there is no token.
#[derive(Debug, thiserror::Error)]
pub enum OauthError {
    /// The server cannot be asked.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// Its answer is not one.
    #[error("{url}: {reason}")]
    Answer {
        /// Where.
        url: String,
        /// What is wrong.
        reason: String,
    },
    /// Nobody confirmed, or somebody declined.
    #[error("{url}: the request was not granted: {reason}")]
    Refused {
        /// Where.
        url: String,
        /// The server's word for it.
        reason: String,
    },
}

impl OauthError {
    /// Whether to try again from the beginning.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Client(error) => error.is_retryable(),
            Self::Answer { .. } => false,
            // A new code can be confirmed.
            Self::Refused { reason, .. } => reason == "expired_token",
        }
    }
}

/// What the kernel command line says about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    client_id: String,
    client_secret: String,
    audience: String,
    scopes: Vec<String>,
    variables: Vec<String>,
    device_url: String,
    token_url: String,
}

impl Settings {
    /// Settings for a configuration at `url`; none without a client id.
    pub fn read(cmdline: &Cmdline, url: &str) -> Option<Self> {
        let one = |name: &str| cmdline.first(&format!("{PREFIX}{name}")).unwrap_or_default().to_owned();
        let all = |name: &str| cmdline.all(&format!("{PREFIX}{name}")).to_vec();
        let client_id = one("client_id");
        if client_id.is_empty() {
            return None;
        }
        let or_beside = |given: String, path: &str| match given.is_empty() {
            true => format!("{}{path}", origin(url)),
            false => given,
        };
        Some(Self {
            client_id,
            client_secret: one("client_secret"),
            audience: one("audience"),
            scopes: all("scope"),
            variables: all("extra_variable"),
            device_url: or_beside(one("device_auth_url"), "/device/code"),
            token_url: or_beside(one("token_url"), "/token"),
        })
    }

    /// The request for a code.
    fn device_form(&self, facts: &Facts) -> String {
        let mut form = vec![("client_id", self.client_id.clone())];
        if !self.scopes.is_empty() {
            form.push(("scope", self.scopes.join(" ")));
        }
        if !self.audience.is_empty() {
            form.push(("audience", self.audience.clone()));
        }
        for name in &self.variables {
            let value = match name.as_str() {
                "uuid" => &facts.uuid,
                "serial" => &facts.serial,
                "mac" => &facts.mac,
                "hostname" => &facts.hostname,
                "code" => &facts.code,
                _ => continue,
            };
            form.push((name, value.clone()));
        }
        encode(&form)
    }

    /// The question for the token.
    fn token_form(&self, device_code: &str) -> String {
        let mut form = vec![
            ("grant_type", GRANT.to_owned()),
            ("device_code", device_code.to_owned()),
            ("client_id", self.client_id.clone()),
        ];
        if !self.client_secret.is_empty() {
            form.push(("client_secret", self.client_secret.clone()));
        }
        encode(&form)
    }

    /// The header to fetch the configuration with, once somebody has confirmed.
    ///
    /// # Errors
    /// Any of [`OauthError`].
    pub async fn authorize(&self, facts: &Facts) -> Result<(String, String), OauthError> {
        let client = Client::system();
        let (status, answer) = post(&client, &self.device_url, self.device_form(facts)).await?;
        let device = Device::read(status, &answer).map_err(|reason| self.bad(&self.device_url, reason))?;
        // On the console, where whoever installs the machine reads it.
        warn!(
            url = device.url,
            code = device.user_code,
            "confirm this machine in a browser to let it fetch its configuration"
        );
        let deadline = Instant::now() + device.expires;
        let mut pause = device.interval;
        while Instant::now() < deadline {
            sleep(pause).await;
            let asked = post(&client, &self.token_url, self.token_form(&device.device_code)).await;
            let (status, answer) = match asked {
                Err(error) if error.is_retryable() => continue,
                asked => asked?,
            };
            match Outcome::read(status, &answer).map_err(|reason| self.bad(&self.token_url, reason))? {
                Outcome::Token(header) => return Ok(("Authorization".to_owned(), header)),
                Outcome::Pending => {}
                Outcome::Slower => pause = (pause + SLOWER).min(INTERVAL_MAX),
                Outcome::Refused(reason) => {
                    return Err(OauthError::Refused { url: self.token_url.clone(), reason });
                }
            }
        }
        Err(OauthError::Refused { url: self.token_url.clone(), reason: "expired_token".to_owned() })
    }

    fn bad(&self, url: &str, reason: String) -> OauthError {
        OauthError::Answer { url: url.to_owned(), reason }
    }
}

/// Scheme and host of an address.
fn origin(url: &str) -> &str {
    let host = url.find("://").map_or(0, |at| at + 3);
    let end = url[host..].find(['/', '?', '#']).map_or(url.len(), |at| host + at);
    &url[..end]
}

fn encode(form: &[(&str, String)]) -> String {
    let pairs: Vec<String> = form.iter().map(|(name, value)| format!("{name}={}", escape(value))).collect();
    pairs.join("&")
}

/// Sends a form; the status and the text of the answer.
async fn post(client: &Client, url: &str, form: String) -> Result<(u16, Vec<u8>), ClientError> {
    let wrong = || ClientError::Address { url: url.to_owned(), reason: "not an address" };
    let request = Request::builder()
        .method(Method::POST)
        .uri(url)
        .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
        .header(header::ACCEPT, "application/json")
        .body(full(form))
        .map_err(|_| wrong())?;
    let late = |_| Err(ClientError::Timeout { url: url.to_owned(), limit: ANSWER_TIME });
    let whole = async {
        let response = client.send(request, ANSWER_TIME).await?;
        let status = response.status();
        if status.is_server_error() {
            return Err(ClientError::Status { url: url.to_owned(), status });
        }
        Ok((status.as_u16(), collect(response.into_body(), url, ANSWER_MAX).await?.to_vec()))
    };
    timeout(ANSWER_TIME, whole).await.unwrap_or_else(late)
}

fn json(answer: &[u8]) -> Result<Value, String> {
    serde_json::from_slice(answer).map_err(|error| format!("the answer is not JSON: {error}"))
}

fn seconds(value: &Value, default: Duration, max: Duration) -> Duration {
    value.as_u64().map_or(default, Duration::from_secs).min(max)
}

/// What the server gave out for this machine.
#[derive(Debug, PartialEq, Eq)]
struct Device {
    device_code: String,
    user_code: String,
    url: String,
    interval: Duration,
    expires: Duration,
}

impl Device {
    fn read(status: u16, answer: &[u8]) -> Result<Self, String> {
        let value = json(answer)?;
        let text = |name: &str| value[name].as_str().map(str::to_owned).filter(|text| !text.is_empty());
        if status != 200 {
            let reason = text("error").unwrap_or_else(|| format!("status {status}"));
            return Err(format!("no code was given out: {reason}"));
        }
        let whole = text("verification_uri_complete");
        let url = whole.or_else(|| text("verification_uri")).or_else(|| text("verification_url"));
        let missing = |name: &str| format!("the answer has no {name}");
        Ok(Self {
            device_code: text("device_code").ok_or_else(|| missing("device_code"))?,
            user_code: text("user_code").ok_or_else(|| missing("user_code"))?,
            url: url.ok_or_else(|| missing("verification_uri"))?,
            interval: seconds(&value["interval"], INTERVAL, INTERVAL_MAX).max(Duration::from_secs(1)),
            expires: seconds(&value["expires_in"], EXPIRES, EXPIRES_MAX),
        })
    }
}

/// What came of asking for the token.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    /// The value of the header.
    Token(String),
    Pending,
    Slower,
    Refused(String),
}

impl Outcome {
    fn read(status: u16, answer: &[u8]) -> Result<Self, String> {
        let value = json(answer)?;
        if let Some(token) = value["access_token"].as_str().filter(|_| status == 200) {
            let kind = value["token_type"].as_str().unwrap_or("Bearer");
            let kind = if kind.eq_ignore_ascii_case("bearer") { "Bearer" } else { kind };
            return Ok(Self::Token(format!("{kind} {token}")));
        }
        match value["error"].as_str() {
            Some("authorization_pending") => Ok(Self::Pending),
            Some("slow_down") => Ok(Self::Slower),
            Some(reason) => Ok(Self::Refused(reason.to_owned())),
            None => Err(format!("neither a token nor an error in an answer with status {status}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(cmdline: &str) -> Option<Settings> {
        Settings::read(&Cmdline::parse(cmdline), "https://host:8443/a/config?x=1")
    }

    #[test]
    fn addresses_are_beside_the_configuration_unless_given() {
        assert_eq!(settings("talos.config.oauth.scope=a"), None);
        let found = settings("talos.config.oauth.client_id=c").unwrap();
        assert_eq!(found.device_url, "https://host:8443/device/code");
        assert_eq!(found.token_url, "https://host:8443/token");
        let given = "talos.config.oauth.client_id=c talos.config.oauth.device_auth_url=http://d/ talos.config.oauth.token_url=http://t/";
        let found = settings(given).unwrap();
        assert_eq!((found.device_url.as_str(), found.token_url.as_str()), ("http://d/", "http://t/"));
        assert_eq!(origin("http://host"), "http://host");
    }

    #[test]
    fn forms_have_what_is_asked_for() {
        let found = settings(
            "talos.config.oauth.client_id=c talos.config.oauth.client_secret=s talos.config.oauth.audience=a \
             talos.config.oauth.scope=x talos.config.oauth.scope=y talos.config.oauth.extra_variable=uuid \
             talos.config.oauth.extra_variable=mac talos.config.oauth.extra_variable=other",
        )
        .unwrap();
        let facts = Facts { uuid: "u-1".into(), mac: "aa:bb".into(), ..Facts::default() };
        assert_eq!(found.device_form(&facts), "client_id=c&scope=x%20y&audience=a&uuid=u-1&mac=aa%3Abb");
        assert_eq!(
            found.token_form("d c"),
            "grant_type=urn%3Aietf%3Aparams%3Aoauth%3Agrant-type%3Adevice_code&device_code=d%20c&client_id=c&client_secret=s"
        );
    }

    #[test]
    fn answers_are_read_with_bounds() {
        let text = br#"{"device_code":"d","user_code":"U","verification_uri":"http://v","interval":0,"expires_in":999999}"#;
        let device = Device::read(200, text).unwrap();
        assert_eq!((device.url.as_str(), device.user_code.as_str()), ("http://v", "U"));
        assert_eq!((device.interval, device.expires), (Duration::from_secs(1), EXPIRES_MAX));
        for (status, text, told) in [
            (200, "{}", "the answer has no device_code"),
            (400, r#"{"error":"invalid_client"}"#, "no code was given out: invalid_client"),
            (404, "{}", "no code was given out: status 404"),
        ] {
            assert_eq!(Device::read(status, text.as_bytes()).unwrap_err(), told);
        }
        assert!(Device::read(200, b"<html>").unwrap_err().starts_with("the answer is not JSON"));
    }

    #[test]
    fn a_token_is_waited_for_until_it_is_refused() {
        let read = |status, text: &str| Outcome::read(status, text.as_bytes());
        let token = r#"{"access_token":"t","token_type":"bearer"}"#;
        assert_eq!(read(200, token), Ok(Outcome::Token("Bearer t".to_owned())));
        assert_eq!(read(400, r#"{"error":"authorization_pending"}"#), Ok(Outcome::Pending));
        assert_eq!(read(400, r#"{"error":"slow_down"}"#), Ok(Outcome::Slower));
        assert_eq!(
            read(400, r#"{"error":"access_denied"}"#),
            Ok(Outcome::Refused("access_denied".to_owned()))
        );
        assert!(read(500, "{}").is_err());
    }
}
