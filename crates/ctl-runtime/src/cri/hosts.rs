//! What a container runtime is told of registries: where each is looked for, and who we are there.

use std::collections::BTreeMap;

use ichor_resource::cri::{RegistryConfig, RegistryTLSConfig};

use super::toml::{Item, Table, Value, render};

/// Where the runtime looks for hosts.
pub const HOSTS: &str = "/etc/cri/conf.d/hosts";

/// The plugin that pulls images.
pub const IMAGES: &str = "io.containerd.cri.v1.images";

/// Files by directory and name.
pub type Directories = BTreeMap<String, BTreeMap<String, Vec<u8>>>;

/// The host that a registry's name stands for.
fn default_host(name: &str) -> &str {
    if name == "docker.io" { "registry-1.docker.io" } else { name }
}

/// The directory of a host: a port is set off by underscores, `*` stands for all others.
fn directory(host: &str) -> String {
    if host == "*" {
        return "_default".to_owned();
    }
    match host.rsplit_once(':') {
        Some((name, port)) if !name.is_empty() => format!("{name}_{port}_"),
        _ => host.to_owned(),
    }
}

/// The part of the runtime's configuration that holds credentials.
pub fn part(registries: &RegistryConfig) -> String {
    let configs: Table = registries
        .auths
        .iter()
        .map(|(host, auth)| {
            let fields = [
                ("auth", &auth.auth),
                ("identitytoken", &auth.identity_token),
                ("password", &auth.password),
                ("username", &auth.username),
            ];
            let auth: Table = fields.into_iter().map(|(key, text)| (key, text.as_str())).collect();
            (default_host(host), table([("auth", auth)]))
        })
        .collect();
    let registry: Table =
        [("config_path", Item::from(HOSTS)), ("configs", configs.into())].into_iter().collect();
    render(table([("plugins", table([(IMAGES, table([("registry", registry)]))]))]))
}

fn table<V: Into<Item>, const N: usize>(entries: [(&str, V); N]) -> Table {
    entries.into_iter().collect()
}

/// The host and port of a URL.
fn host_of(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
    host.rsplit_once('@').map_or(host, |(_, host)| host)
}

/// TLS settings were given for all registries at once, which this form cannot say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("TLS settings cannot be given for all registries at once")]
pub struct WildcardTls;

/// All directories of hosts.
///
/// # Errors
/// With TLS settings for all others, which cannot be said in this form.
pub fn directories(registries: &RegistryConfig) -> Result<Directories, WildcardTls> {
    let mut all = Directories::new();
    for (registry, mirror) in &registries.mirrors {
        let dir = directory(registry);
        let mut files = BTreeMap::new();
        let mut entries: Vec<(&str, Table)> = Vec::new();
        for endpoint in &mirror.endpoints {
            let mut entry = table([("capabilities", ["pull", "resolve"].into_iter().collect::<Value>())]);
            if endpoint.override_path {
                entry.insert("override_path", true.into());
            }
            trust(registries, host_of(&endpoint.endpoint), &dir, &mut entry, &mut files);
            entries.push((&endpoint.endpoint, entry));
        }
        // The last one stands in for the registry itself, which is asked in the end.
        let server = if mirror.skip_fallback { entries.pop() } else { None };
        files.insert("hosts.toml".to_owned(), hosts_toml(server, entries).into_bytes());
        all.insert(dir, files);
    }
    for (host, tls) in &registries.tls {
        let dir = directory(host);
        let says = !tls.ca.0.is_empty() || tls.client_identity.is_some() || tls.insecure_skip_verify;
        if all.contains_key(&dir) || !says {
            continue;
        }
        if host == "*" {
            return Err(WildcardTls);
        }
        let (mut entry, mut files) = (Table::new(), BTreeMap::new());
        trust(registries, host, &dir, &mut entry, &mut files);
        let server = format!("https://{}", default_host(host));
        files.insert("hosts.toml".to_owned(), hosts_toml(Some((&server, entry)), Vec::new()).into_bytes());
        all.insert(dir, files);
    }
    Ok(all)
}

/// Adds what is known of a host's certificates.
fn trust(
    registries: &RegistryConfig,
    host: &str,
    dir: &str,
    entry: &mut Table,
    files: &mut BTreeMap<String, Vec<u8>>,
) {
    let Some(RegistryTLSConfig { client_identity, ca, insecure_skip_verify }) = registries.tls.get(host)
    else {
        return;
    };
    let mut file = |name: String, content: &[u8]| -> Value {
        let path = format!("{HOSTS}/{dir}/{name}");
        files.insert(name, content.to_vec());
        path.into()
    };
    if *insecure_skip_verify {
        entry.insert("skip_verify", true.into());
    }
    if !ca.0.is_empty() {
        entry.insert("ca", file(format!("{host}-ca.crt"), &ca.0).into());
    }
    if let Some(pair) = client_identity {
        let crt = file(format!("{host}-client.crt"), &pair.crt);
        let key = file(format!("{host}-client.key"), &pair.key);
        let pair: Value = [crt, key].into_iter().collect();
        entry.insert("client", [pair].into_iter().collect::<Value>().into());
    }
}

/// The hosts in their order, which a sorted table cannot keep.
fn hosts_toml(server: Option<(&str, Table)>, entries: Vec<(&str, Table)>) -> String {
    let mut text = String::new();
    if let Some((url, entry)) = server {
        text = render(table([("server", url)])) + &render(entry);
    }
    for (at, (url, entry)) in entries.into_iter().enumerate() {
        let one = render(table([("host", table([(url, entry)]))]));
        text.push_str(if at > 0 { one.strip_prefix("[host]\n").unwrap_or(&one) } else { &one });
    }
    text
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use ichor_resource::cri::{RegistryAuthConfig, RegistryEndpointConfig, RegistryMirrorConfig};
    use ichor_resource::value::PemCertificateAndKey;

    use super::*;

    fn endpoint(endpoint: &str, override_path: bool) -> RegistryEndpointConfig {
        RegistryEndpointConfig { endpoint: endpoint.to_owned(), override_path }
    }

    fn show(registries: &RegistryConfig) -> String {
        let mut text = String::new();
        for (dir, files) in directories(registries).unwrap() {
            for (name, content) in files {
                text += &format!("== {dir}/{name}\n{}", String::from_utf8(content).unwrap());
            }
        }
        text
    }

    #[test]
    fn mirrors_keep_their_order_and_bring_their_certificates() {
        let mut registries = RegistryConfig::default();
        registries.mirrors.insert(
            "docker.io".into(),
            RegistryMirrorConfig {
                endpoints: vec![endpoint("https://z.example:5000/v2/x", true), endpoint("http://a", false)],
                skip_fallback: false,
            },
        );
        registries.mirrors.insert(
            "*".into(),
            RegistryMirrorConfig {
                endpoints: vec![endpoint("http://a", false), endpoint("http://b", false)],
                skip_fallback: true,
            },
        );
        let pair = PemCertificateAndKey { crt: b"crt\n".to_vec().into(), key: b"key\n".to_vec().into() };
        let tls = RegistryTLSConfig { client_identity: Some(pair), ..Default::default() };
        registries.tls.insert("z.example:5000".into(), tls);
        expect![[r#"
            == _default/hosts.toml
            server = 'http://b'
            capabilities = ['pull', 'resolve']
            [host]
              [host.'http://a']
                capabilities = ['pull', 'resolve']
            == docker.io/hosts.toml
            [host]
              [host.'https://z.example:5000/v2/x']
                capabilities = ['pull', 'resolve']
                client = [['/etc/cri/conf.d/hosts/docker.io/z.example:5000-client.crt', '/etc/cri/conf.d/hosts/docker.io/z.example:5000-client.key']]
                override_path = true
              [host.'http://a']
                capabilities = ['pull', 'resolve']
            == docker.io/z.example:5000-client.crt
            crt
            == docker.io/z.example:5000-client.key
            key
            == z.example_5000_/hosts.toml
            server = 'https://z.example:5000'
            client = [['/etc/cri/conf.d/hosts/z.example_5000_/z.example:5000-client.crt', '/etc/cri/conf.d/hosts/z.example_5000_/z.example:5000-client.key']]
            == z.example_5000_/z.example:5000-client.crt
            crt
            == z.example_5000_/z.example:5000-client.key
            key
        "#]]
        .assert_eq(&show(&registries));
    }

    #[test]
    fn tls_for_all_others_is_refused() {
        let mut registries = RegistryConfig::default();
        let tls = RegistryTLSConfig { insecure_skip_verify: true, ..Default::default() };
        registries.tls.insert("*".into(), tls);
        assert!(directories(&registries).is_err());
    }

    #[test]
    fn credentials_go_to_the_host_behind_the_name() {
        let mut registries = RegistryConfig::default();
        let auth = RegistryAuthConfig { username: "root".into(), password: "p".into(), ..Default::default() };
        registries.auths.insert("docker.io".into(), auth);
        expect![[r#"
            [plugins]
              [plugins.'io.containerd.cri.v1.images']
                [plugins.'io.containerd.cri.v1.images'.registry]
                  config_path = '/etc/cri/conf.d/hosts'

                  [plugins.'io.containerd.cri.v1.images'.registry.configs]
                    [plugins.'io.containerd.cri.v1.images'.registry.configs.'registry-1.docker.io']
                      [plugins.'io.containerd.cri.v1.images'.registry.configs.'registry-1.docker.io'.auth]
                        auth = ''
                        identitytoken = ''
                        password = 'p'
                        username = 'root'
        "#]]
        .assert_eq(&part(&registries));
    }

    #[test]
    fn the_host_of_a_url_is_found() {
        assert_eq!(host_of("https://u:p@h:1/x"), "h:1");
        assert_eq!(host_of("http://h"), "h");
    }
}
