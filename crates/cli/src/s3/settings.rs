//! Where a bucket is and who may ask it, from flags, the environment and the file of credentials.

use zeroize::Zeroizing;

use super::Credentials;
use crate::failure::Failure;

/// The region of those who name none.
const REGION: &str = "us-east-1";

/// `s3://bucket/key`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The bucket.
    pub bucket: String,
    /// What is behind it; may be empty.
    pub key: String,
}

impl Place {
    /// Reads an address; none for what does not begin with `s3://`.
    pub fn parse(text: &str) -> Option<Result<Self, Failure>> {
        let rest = text.strip_prefix("s3://")?;
        let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
        Some(Self::new(bucket, key))
    }

    /// A place in a bucket.
    pub fn new(bucket: &str, key: &str) -> Result<Self, Failure> {
        let good = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if !(3..=63).contains(&bucket.len()) || !bucket.bytes().all(good) {
            return Err(Failure::new(format!("{bucket:?} is not the name of a bucket"))
                .hint("write the place as s3://BUCKET/PREFIX"));
        }
        let steps = key.split('/').any(|part| part == "." || part == "..");
        if steps || key.chars().any(char::is_control) {
            return Err(Failure::new(format!("{key:?} cannot be the name of an object")));
        }
        Ok(Self { bucket: bucket.to_owned(), key: key.to_owned() })
    }
}

/// What the command line says.
#[derive(Debug, Clone, Copy, Default)]
pub struct Given<'a> {
    /// The service, unless it is AWS.
    pub endpoint: Option<&'a str>,
    /// The region.
    pub region: Option<&'a str>,
    /// The bucket goes into the path, not into the name of the host.
    pub path_style: Option<bool>,
}

/// Everything a request needs.
#[derive(Clone)]
pub struct Settings {
    /// The bucket.
    pub bucket: String,
    /// TLS or not.
    pub secure: bool,
    /// Host and port of the service.
    pub host: String,
    /// The bucket goes into the path, not into the name of the host.
    pub path_style: bool,
    /// The region.
    pub region: String,
    /// Who asks.
    pub credentials: Credentials,
}

impl Settings {
    /// Puts flags and environment together; `read` reads a file that may be missing.
    pub fn resolve(
        bucket: &str,
        given: Given<'_>,
        env: &dyn Fn(&str) -> Option<String>,
        read: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, Failure> {
        let env = |name: &str| env(name).filter(|value| !value.is_empty());
        let first = |names: &[&str]| names.iter().find_map(|name| env(name));
        let region = given.region.map(str::to_owned).or_else(|| first(&["AWS_REGION", "AWS_DEFAULT_REGION"]));
        let region = region.unwrap_or_else(|| REGION.to_owned());
        let variables = ["CUSTOM_S3_ENDPOINT", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"];
        let endpoint = given.endpoint.map(str::to_owned).or_else(|| first(&variables));
        let named = endpoint.is_some();
        let endpoint = endpoint.unwrap_or_else(|| format!("s3.{region}.amazonaws.com"));
        let (secure, host) = match endpoint.strip_prefix("http://") {
            Some(host) => (false, host),
            None => (true, endpoint.strip_prefix("https://").unwrap_or(&endpoint)),
        };
        let host = host.trim_end_matches('/');
        let good = |byte: u8| byte.is_ascii_alphanumeric() || b".-:[]_".contains(&byte);
        if host.is_empty() || !host.bytes().all(good) {
            return Err(Failure::new(format!("{endpoint:?} is not the address of a service"))
                .hint("write it as HOST, https://HOST:PORT or http://HOST:PORT"));
        }
        // Services of one's own seldom have a name for each bucket. The variable can only ask for it: where it said
        // "false" two versions of the original did the opposite.
        let asked = env("USE_PATH_STYLE").as_deref() == Some("true");
        let path_style = given.path_style.unwrap_or(named || asked || bucket.contains('.'));
        let credentials = credentials(&env, read)?;
        Ok(Self { bucket: bucket.to_owned(), secure, host: host.to_owned(), path_style, region, credentials })
    }

    /// Host and path of an escaped key.
    pub fn address(&self, key: &str) -> (String, String) {
        match self.path_style {
            true => (self.host.clone(), format!("/{}/{key}", self.bucket)),
            false => (format!("{}.{}", self.bucket, self.host), format!("/{key}")),
        }
    }
}

fn credentials(
    env: &dyn Fn(&str) -> Option<String>,
    read: &dyn Fn(&str) -> Option<String>,
) -> Result<Credentials, Failure> {
    if let (Some(id), Some(secret)) = (env("AWS_ACCESS_KEY_ID"), env("AWS_SECRET_ACCESS_KEY")) {
        return Ok(Credentials { id, secret: Zeroizing::new(secret), token: env("AWS_SESSION_TOKEN") });
    }
    let path = env("AWS_SHARED_CREDENTIALS_FILE")
        .or_else(|| env("HOME").map(|home| format!("{home}/.aws/credentials")));
    let profile = env("AWS_PROFILE").unwrap_or_else(|| "default".to_owned());
    let found = path.as_deref().and_then(read).and_then(|text| in_file(&text, &profile));
    found.ok_or_else(|| {
        Failure::new("there are no credentials for the bucket")
            .hint("set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or write them into ~/.aws/credentials")
    })
}

/// One section of a file of credentials.
fn in_file(text: &str, profile: &str) -> Option<Credentials> {
    let header = format!("[{profile}]");
    let lines = text.lines().map(str::trim).skip_while(|line| *line != header).skip(1);
    let section: Vec<(&str, &str)> = lines
        .take_while(|line| !line.starts_with('['))
        .filter(|line| !line.starts_with(['#', ';']))
        .filter_map(|line| line.split_once('='))
        .map(|(name, value)| (name.trim(), value.trim()))
        .collect();
    let value =
        |name: &str| section.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
    Some(Credentials {
        id: value("aws_access_key_id")?,
        secret: Zeroizing::new(value("aws_secret_access_key")?),
        token: value("aws_session_token"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(given: Given<'_>, env: &[(&str, &str)]) -> Result<String, String> {
        let keys = [("AWS_ACCESS_KEY_ID", "id"), ("AWS_SECRET_ACCESS_KEY", "secret")];
        let env = |name: &str| {
            let found = env.iter().chain(&keys).find(|(key, _)| *key == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        let found =
            Settings::resolve("backups", given, &env, &|_| None).map_err(|failure| failure.to_string())?;
        let (host, path) = found.address("a/b");
        let scheme = if found.secure { "https" } else { "http" };
        Ok(format!("{scheme}://{host}{path} {}", found.region))
    }

    #[test]
    fn services_are_found_as_people_name_them() {
        for (given, env, expected) in [
            (Given::default(), &[][..], "https://backups.s3.us-east-1.amazonaws.com/a/b us-east-1"),
            (
                Given::default(),
                &[("AWS_REGION", "eu-central-1"), ("USE_PATH_STYLE", "true")],
                "https://s3.eu-central-1.amazonaws.com/backups/a/b eu-central-1",
            ),
            (
                Given::default(),
                &[("CUSTOM_S3_ENDPOINT", "http://minio:9000/"), ("USE_PATH_STYLE", "false")],
                "http://minio:9000/backups/a/b us-east-1",
            ),
            (
                Given { endpoint: Some("s3.example.org"), region: Some("x"), path_style: Some(false) },
                &[("CUSTOM_S3_ENDPOINT", "http://other")],
                "https://backups.s3.example.org/a/b x",
            ),
        ] {
            assert_eq!(resolve(given, env).unwrap(), expected);
        }
        assert!(resolve(Given { endpoint: Some("ftp://x/y"), ..Given::default() }, &[]).is_err());
    }

    #[test]
    fn credentials_are_in_the_environment_or_in_a_file() {
        let file = "# mine\n[other]\naws_access_key_id=no\n[default]\naws_access_key_id = id\n\
                    aws_secret_access_key = a=b\n[last]\n";
        let home = |name: &str| (name == "HOME").then(|| "/h".to_owned());
        let read = |path: &str| (path == "/h/.aws/credentials").then(|| file.to_owned());
        let found = credentials(&home, &read).unwrap_or_else(|failure| panic!("{failure}"));
        assert_eq!((found.id.as_str(), found.secret.as_str()), ("id", "a=b"));
        assert!(credentials(&|_| None, &read).is_err());
        assert!(in_file(file, "other").is_none());
    }

    #[test]
    fn places_are_buckets_and_what_is_in_them() {
        let shown = |text: &str| {
            Place::parse(text).map(|place| place.map(|place| (place.bucket, place.key)).map_err(drop))
        };
        let place = |bucket: &str, key: &str| Some(Ok((bucket.to_owned(), key.to_owned())));
        assert_eq!(shown("s3://backups/a/b"), place("backups", "a/b"));
        assert_eq!(shown("s3://backups"), place("backups", ""));
        for bad in ["s3://", "s3://a b/c", "s3://backups/../x"] {
            assert_eq!(shown(bad), Some(Err(())), "{bad}");
        }
        assert_eq!(shown("/var/backups"), None);
    }
}
