//! Fetches configurations and manifests from elsewhere: bounded in time, size and redirects.

use std::time::Duration;

use ichor_http::client::{Client, ClientError, Limits};

/// What a download may cost, redirects included; a configuration that is larger is none.
const LIMITS: Limits = Limits { time: Duration::from_secs(3 * 60), bytes: 32 << 20, redirects: 5 };

/// Facts about the machine that an address can ask for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    /// The machine's UUID.
    pub uuid: String,
    /// Its serial number.
    pub serial: String,
    /// The address of its first network card.
    pub mac: String,
    /// Its name.
    pub hostname: String,
    /// The code that META holds for this.
    pub code: String,
}

/// Fills `${uuid}` and the like in the query, in any case; a bare `uuid=` too.
pub fn fill(url: &str, facts: &Facts) -> String {
    let Some((base, query)) = url.split_once('?') else { return url.to_owned() };
    let known = [
        ("${uuid}", &facts.uuid),
        ("${serial}", &facts.serial),
        ("${mac}", &facts.mac),
        ("${hostname}", &facts.hostname),
        ("${code}", &facts.code),
    ];
    let pairs: Vec<String> = query
        .split('&')
        .map(|pair| match pair {
            "uuid=" | "uuid" => format!("uuid={}", escape(&facts.uuid)),
            pair => {
                known.iter().fold(pair.to_owned(), |text, (name, value)| replace(&text, name, &escape(value)))
            }
        })
        .collect();
    format!("{base}?{}", pairs.join("&"))
}

/// Whether an address asks for the code that a person enters.
pub fn wants_code(url: &str) -> bool {
    url.split_once('?').is_some_and(|(_, query)| query.to_ascii_lowercase().contains("${code}"))
}

fn replace(text: &str, name: &str, value: &str) -> String {
    let lower = text.to_ascii_lowercase();
    let mut out = String::new();
    let mut from = 0;
    while let Some(at) = lower[from..].find(name) {
        out.push_str(&text[from..from + at]);
        out.push_str(value);
        from += at + name.len();
    }
    out.push_str(&text[from..]);
    out
}

/// A value as it stands in a query or a form.
pub(crate) fn escape(value: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    value
        .bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

/// Downloads what is at `url`. Servers with TLS are checked against the authorities of the machine.
///
/// # Errors
/// Any of [`ClientError`].
pub async fn fetch(url: &str, headers: &[(String, String)]) -> Result<Vec<u8>, ClientError> {
    Client::system().get(url, headers, LIMITS).await.map(Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_filled_in_where_the_address_asks() {
        let facts =
            Facts { uuid: "u-1".into(), serial: "s 1".into(), mac: "aa:bb".into(), ..Facts::default() };
        for (url, want) in [
            ("http://a/b", "http://a/b"),
            ("http://a/${uuid}?x=${UUID}&s=${serial}", "http://a/${uuid}?x=u-1&s=s%201"),
            ("http://a/?uuid=&mac=${mac}&code=${code}", "http://a/?uuid=u-1&mac=aa%3Abb&code="),
        ] {
            assert_eq!(fill(url, &facts), want);
        }
        assert!(wants_code("http://a/?c=${Code}") && !wants_code("http://a/${code}?c=1"));
    }
}
