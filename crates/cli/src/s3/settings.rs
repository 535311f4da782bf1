//! Where a bucket is and who may use it, from flags, the environment and AWS's file of credentials.

use std::sync::Arc;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::MicrosoftAzureBuilder;
use object_store::client::HttpConnector;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::{ObjectStore, RetryConfig};

use crate::failure::Failure;

/// The region of those who name none.
const REGION: &str = "us-east-1";
/// Variables that say who asks AWS: keys, a web identity, a container's or an instance's role.
const AWS_VARIABLES: [&str; 12] = [
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_ROLE_ARN",
    "AWS_ROLE_SESSION_NAME",
    "AWS_ENDPOINT_URL_STS",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
    "AWS_METADATA_ENDPOINT",
    "AWS_IMDSV1_FALLBACK",
];
/// The same for Google; without any of them, the instance's service account.
const GOOGLE_VARIABLES: [&str; 4] = [
    "GOOGLE_SERVICE_ACCOUNT",
    "GOOGLE_SERVICE_ACCOUNT_PATH",
    "GOOGLE_SERVICE_ACCOUNT_KEY",
    "GOOGLE_APPLICATION_CREDENTIALS",
];
/// The same for Azure; without any but the account, the instance's managed identity.
const AZURE_VARIABLES: [&str; 10] = [
    "AZURE_STORAGE_ACCOUNT_NAME",
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_SAS_KEY",
    "AZURE_STORAGE_ENDPOINT",
    "AZURE_CLIENT_ID",
    "AZURE_CLIENT_SECRET",
    "AZURE_TENANT_ID",
    "AZURE_AUTHORITY_HOST",
    "AZURE_FEDERATED_TOKEN_FILE",
    "AZURE_MSI_RESOURCE_ID",
];

/// Whose bucket it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Service {
    /// Amazon's, or one that speaks like it.
    S3,
    /// Google's.
    Google,
    /// Microsoft's.
    Azure,
}

impl Service {
    const ALL: [Self; 3] = [Self::S3, Self::Google, Self::Azure];

    /// What addresses begin with.
    pub fn scheme(self) -> &'static str {
        match self {
            Self::S3 => "s3",
            Self::Google => "gs",
            Self::Azure => "az",
        }
    }

    /// What to do without credentials.
    pub(super) fn credentials_hint(self) -> &'static str {
        match self {
            Self::S3 => {
                "no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, write them into \
                 ~/.aws/credentials, or run where a role is given to the instance or pod"
            }
            Self::Google => {
                "no credentials: name a key file with GOOGLE_APPLICATION_CREDENTIALS, or run where a service \
                 account is given to the instance"
            }
            Self::Azure => {
                "no credentials: set AZURE_STORAGE_ACCOUNT_KEY, or run where a managed identity is given to the \
                 instance"
            }
        }
    }
}

/// `s3://bucket/key`, `gs://bucket/key` or `az://container/key`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Whose bucket.
    pub service: Service,
    /// The bucket.
    pub bucket: String,
    /// What is behind it; may be empty.
    pub key: String,
}

impl Place {
    /// Reads an address; none for what does not begin with the scheme of a service.
    pub fn parse(text: &str) -> Option<Result<Self, Failure>> {
        let (scheme, rest) = text.split_once("://")?;
        let service = Service::ALL.into_iter().find(|service| service.scheme() == scheme)?;
        let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
        Some(Self { service, bucket: bucket.to_owned(), key: key.to_owned() }.checked())
    }

    /// A place in a bucket of S3.
    pub fn new(bucket: &str, key: &str) -> Result<Self, Failure> {
        Self { service: Service::S3, bucket: bucket.to_owned(), key: key.to_owned() }.checked()
    }

    fn checked(self) -> Result<Self, Failure> {
        let good = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if !(3..=63).contains(&self.bucket.len()) || !self.bucket.bytes().all(good) {
            return Err(Failure::new(format!("{:?} is not the name of a bucket", self.bucket))
                .hint(format!("write the place as {}://BUCKET/PREFIX", self.service.scheme())));
        }
        let steps = self.key.split('/').any(|part| part == "." || part == "..");
        if steps || self.key.chars().any(char::is_control) {
            return Err(Failure::new(format!("{:?} cannot be the name of an object", self.key)));
        }
        Ok(self)
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

/// Everything a bucket needs to be opened.
pub struct Settings {
    pub(super) place: Place,
    builder: Builder,
}

enum Builder {
    S3(Box<AmazonS3Builder>),
    Google(Box<GoogleCloudStorageBuilder>),
    Azure(Box<MicrosoftAzureBuilder>),
}

type Variables<'a> = &'a dyn Fn(&str) -> Option<String>;

impl Settings {
    /// Puts flags and environment together; `read` reads a file that may be missing.
    pub fn resolve(
        place: &Place,
        given: Given<'_>,
        env: Variables<'_>,
        read: Variables<'_>,
    ) -> Result<Self, Failure> {
        let env = |name: &str| env(name).filter(|value| !value.is_empty());
        let builder = match place.service {
            Service::S3 => Builder::S3(Box::new(s3(&place.bucket, given, &env, read)?)),
            Service::Google => {
                let builder = GoogleCloudStorageBuilder::new().with_bucket_name(&place.bucket);
                Builder::Google(Box::new(known(&GOOGLE_VARIABLES, &env).fold(
                    builder,
                    |builder, (name, value)| match name.parse() {
                        Ok(key) => builder.with_config(key, value),
                        Err(_) => builder,
                    },
                )))
            }
            Service::Azure => {
                let builder = MicrosoftAzureBuilder::new().with_container_name(&place.bucket);
                Builder::Azure(Box::new(known(&AZURE_VARIABLES, &env).fold(
                    builder,
                    |builder, (name, value)| match name.parse() {
                        Ok(key) => builder.with_config(key, value),
                        Err(_) => builder,
                    },
                )))
            }
        };
        Ok(Self { place: place.clone(), builder })
    }

    /// Opens the bucket; nothing is asked yet.
    pub(super) fn open(
        self,
        connector: impl HttpConnector,
        retry: RetryConfig,
    ) -> object_store::Result<Arc<dyn ObjectStore>> {
        Ok(match self.builder {
            Builder::S3(builder) => {
                Arc::new(builder.with_http_connector(connector).with_retry(retry).build()?)
            }
            Builder::Google(builder) => {
                Arc::new(builder.with_http_connector(connector).with_retry(retry).build()?)
            }
            Builder::Azure(builder) => {
                Arc::new(builder.with_http_connector(connector).with_retry(retry).build()?)
            }
        })
    }
}

/// Variables that are set, as the library names them.
fn known<'a>(names: &'a [&str], env: Variables<'a>) -> impl Iterator<Item = (String, String)> {
    names.iter().filter_map(move |name| Some((name.to_ascii_lowercase(), env(name)?)))
}

fn s3(
    bucket: &str,
    given: Given<'_>,
    env: Variables<'_>,
    read: Variables<'_>,
) -> Result<AmazonS3Builder, Failure> {
    let first = |names: &[&str]| names.iter().find_map(|name| env(name));
    let region = given.region.map(str::to_owned).or_else(|| first(&["AWS_REGION", "AWS_DEFAULT_REGION"]));
    let region = region.unwrap_or_else(|| REGION.to_owned());
    let variables = ["CUSTOM_S3_ENDPOINT", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"];
    let endpoint = given.endpoint.map(str::to_owned).or_else(|| first(&variables));
    // Services of one's own seldom have a name for each bucket. The variable can only ask for it: where it said
    // "false" two versions of the original did the opposite.
    let asked = env("USE_PATH_STYLE").as_deref() == Some("true");
    let path_style = given.path_style.unwrap_or(endpoint.is_some() || asked || bucket.contains('.'));
    let mut builder = AmazonS3Builder::new()
        .with_bucket_name(bucket)
        .with_region(region)
        .with_virtual_hosted_style_request(!path_style)
        // Not every service that speaks like S3 knows how to delete many at once.
        .with_disable_bulk_delete(true);
    if let Some(endpoint) = endpoint {
        builder = builder.with_endpoint(address(&endpoint, bucket, path_style)?).with_allow_http(true);
    }
    for (name, value) in known(&AWS_VARIABLES, env) {
        if let Ok(key) = name.parse::<AmazonS3ConfigKey>() {
            builder = builder.with_config(key, value);
        }
    }
    if env("AWS_ACCESS_KEY_ID").is_none() && env("AWS_WEB_IDENTITY_TOKEN_FILE").is_none() {
        builder = from_file(builder, env, read)?;
    }
    Ok(builder)
}

/// The address of a service as people write it, with the bucket in its name where it belongs there.
fn address(endpoint: &str, bucket: &str, path_style: bool) -> Result<String, Failure> {
    let (scheme, host) = match endpoint.strip_prefix("http://") {
        Some(host) => ("http", host),
        None => ("https", endpoint.strip_prefix("https://").unwrap_or(endpoint)),
    };
    let host = host.trim_end_matches('/');
    let good = |byte: u8| byte.is_ascii_alphanumeric() || b".-:[]_".contains(&byte);
    if host.is_empty() || !host.bytes().all(good) {
        return Err(Failure::new(format!("{endpoint:?} is not the address of a service"))
            .hint("write it as HOST, https://HOST:PORT or http://HOST:PORT"));
    }
    Ok(if path_style { format!("{scheme}://{host}") } else { format!("{scheme}://{bucket}.{host}") })
}

/// The profile of AWS's file of credentials, where there is one. A profile that is named must be there.
fn from_file(
    builder: AmazonS3Builder,
    env: Variables<'_>,
    read: Variables<'_>,
) -> Result<AmazonS3Builder, Failure> {
    let path = env("AWS_SHARED_CREDENTIALS_FILE")
        .or_else(|| env("HOME").map(|home| format!("{home}/.aws/credentials")))
        .unwrap_or_default();
    let named = env("AWS_PROFILE");
    let profile = named.as_deref().unwrap_or("default");
    let text = read(&path).unwrap_or_default();
    let value = |name: &str| in_section(&text, profile, name);
    match (value("aws_access_key_id"), value("aws_secret_access_key")) {
        (Some(id), Some(secret)) => {
            let builder = builder.with_access_key_id(id).with_secret_access_key(secret);
            Ok(value("aws_session_token").into_iter().fold(builder, AmazonS3Builder::with_token))
        }
        _ if named.is_some() => Err(Failure::new(format!(
            "no aws_access_key_id and aws_secret_access_key of {profile} in {path}"
        ))
        .hint("set AWS_PROFILE to a profile that has them")),
        _ => Ok(builder),
    }
}

/// A value of one section of a file of credentials.
fn in_section(text: &str, section: &str, name: &str) -> Option<String> {
    let header = format!("[{section}]");
    let lines = text.lines().map(str::trim).skip_while(|line| *line != header).skip(1);
    let mut pairs = lines
        .take_while(|line| !line.starts_with('['))
        .filter(|line| !line.starts_with(['#', ';']))
        .filter_map(|line| line.split_once('='));
    pairs.find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Endpoint, region and style of a bucket called backups.
    fn resolved(given: Given<'_>, env: &[(&str, &str)]) -> Result<[String; 3], String> {
        let env = |name: &str| env.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        let builder = s3("backups", given, &env, &|_| None).map_err(|failure| failure.to_string())?;
        let keys = [
            AmazonS3ConfigKey::Endpoint,
            AmazonS3ConfigKey::Region,
            AmazonS3ConfigKey::VirtualHostedStyleRequest,
        ];
        Ok(keys.map(|key| builder.get_config_value(&key).unwrap_or_default()))
    }

    #[test]
    fn services_are_found_as_people_name_them() {
        for (given, env, expected) in [
            (Given::default(), &[][..], ["", "us-east-1", "true"]),
            (
                Given::default(),
                &[("AWS_REGION", "eu-central-1"), ("USE_PATH_STYLE", "true")],
                ["", "eu-central-1", "false"],
            ),
            (
                Given::default(),
                &[("CUSTOM_S3_ENDPOINT", "http://minio:9000/"), ("USE_PATH_STYLE", "false")],
                ["http://minio:9000", "us-east-1", "false"],
            ),
            (
                Given { endpoint: Some("s3.example.org"), region: Some("x"), path_style: Some(false) },
                &[("CUSTOM_S3_ENDPOINT", "http://other")],
                ["https://backups.s3.example.org", "x", "true"],
            ),
        ] {
            assert_eq!(resolved(given, env).unwrap(), expected);
        }
        assert!(resolved(Given { endpoint: Some("ftp://x/y"), ..Given::default() }, &[]).is_err());
    }

    #[test]
    fn credentials_are_in_the_environment_or_in_a_file() {
        let file = "# mine\n[other]\naws_access_key_id=no\n[default]\naws_access_key_id = id\n\
                    aws_secret_access_key = a=b\n[last]\n";
        let read = |path: &str| (path == "/h/.aws/credentials").then(|| file.to_owned());
        let found = |env: &[(&str, &str)]| {
            let env =
                |name: &str| env.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
            let builder =
                s3("backups", Given::default(), &env, &read).map_err(|failure| failure.to_string())?;
            let keys = [AmazonS3ConfigKey::AccessKeyId, AmazonS3ConfigKey::SecretAccessKey];
            Ok::<_, String>(keys.map(|key| builder.get_config_value(&key).unwrap_or_default()))
        };
        assert_eq!(found(&[("HOME", "/h")]).unwrap(), ["id", "a=b"]);
        let keys = [("HOME", "/h"), ("AWS_ACCESS_KEY_ID", "x"), ("AWS_SECRET_ACCESS_KEY", "y")];
        assert_eq!(found(&keys).unwrap(), ["x", "y"]);
        // Without any the instance is asked; a profile that is named must be there.
        assert_eq!(found(&[]).unwrap(), ["", ""]);
        let missing = found(&[("HOME", "/h"), ("AWS_PROFILE", "other")]).unwrap_err();
        assert!(missing.contains("other in /h/.aws/credentials"), "{missing}");
    }

    #[test]
    fn places_are_buckets_and_what_is_in_them() {
        let shown = |text: &str| {
            let place = Place::parse(text)?.map_err(drop);
            Some(place.map(|place| (place.service, place.bucket, place.key)))
        };
        let place = |service, bucket: &str, key: &str| Some(Ok((service, bucket.to_owned(), key.to_owned())));
        assert_eq!(shown("s3://backups/a/b"), place(Service::S3, "backups", "a/b"));
        assert_eq!(shown("s3://backups"), place(Service::S3, "backups", ""));
        assert_eq!(shown("gs://backups/a"), place(Service::Google, "backups", "a"));
        assert_eq!(shown("az://backups/a"), place(Service::Azure, "backups", "a"));
        for bad in ["s3://", "s3://a b/c", "s3://backups/../x", "gs://x"] {
            assert_eq!(shown(bad), Some(Err(())), "{bad}");
        }
        assert_eq!(shown("/var/backups"), None);
        assert_eq!(shown("https://backups/x"), None);
    }
}
