//! Whatever a manifest says or a server answers is read or refused, never with a panic.

use bytes::Bytes;
use futures_util::future::BoxFuture;
use ichor_fuzz::{Target, shape};
use ichor_kube::{Chunks, Client, Error, Kind, Reply, Request, Select, Transport, manifest};

/// A server that answers everything with the same bytes.
struct Parrot(Bytes);

struct Once(Option<Bytes>);

impl Chunks for Once {
    fn next(&mut self) -> BoxFuture<'_, Option<Result<Bytes, String>>> {
        Box::pin(std::future::ready(self.0.take().map(Ok)))
    }
}

impl Transport for Parrot {
    fn send(&self, request: Request) -> BoxFuture<'_, Result<Reply, Error>> {
        let list = br#"{"items":[],"metadata":{"resourceVersion":"1"}}"#;
        let body = match request.path.contains("/configmaps") && !request.path.contains("watch=true") {
            true => Bytes::from_static(list),
            false => self.0.clone(),
        };
        let code = if self.0.first() == Some(&b'!') { 409 } else { 200 };
        let body = Box::new(Once(Some(body)));
        Box::pin(std::future::ready(Ok(Reply { code, location: None, body })))
    }
}

#[test]
fn manifests() {
    let seeds = [
        "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Pod, metadata: {name: a}}\n",
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a}\n---\n# nothing\n---\n",
    ];
    Target::text("kube-manifests").seeds(seeds).words(["kind:", "List", "items:", "---"]).run(|input| {
        match manifest::parse(&String::from_utf8_lossy(input)) {
            Ok(objects) => objects.len().min(4).to_string(),
            Err(error) => shape(&error.to_string()),
        }
    });
}

#[test]
fn answers() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let seeds = [
        r#"{"items":[{"metadata":{"name":"a"}}],"metadata":{"resourceVersion":"7"}}"#,
        r#"{"resources":[{"name":"pods","kind":"Pod","namespaced":true}]}"#,
        "{\"type\":\"ADDED\",\"object\":{\"metadata\":{\"name\":\"a\"}}}\n{\"type\":\"BOOKMARK\",\"object\":{}}\n",
        "{\"type\":\"ERROR\",\"object\":{\"kind\":\"Status\",\"code\":410}}\n",
        r#"{"kind":"Status","code":409,"details":{"causes":[{"message":"conflict with \"a\""}]}}"#,
    ];
    let words = ["\"object\":", "\"items\":", "null", "[]", "{}", "\n", "\"metadata\":"];
    Target::text("kube-answers").seeds(seeds).words(words).run(|input| {
        let client = Client::over(Parrot(Bytes::copy_from_slice(input)));
        runtime.block_on(async {
            let list = client.list(&Kind::PODS, "", Select::default()).await;
            let kind = client.discover("v1", "Pod").await;
            let mut watch = client.watch(Kind::CONFIG_MAPS, "", Select::default());
            let mut seen = Vec::new();
            for _ in 0..4 {
                // A stream without an event ends and is begun again for ever; here the time is short.
                let next = tokio::time::timeout(std::time::Duration::ZERO, watch.next()).await;
                seen.push(next.map(|event| event.is_ok()).ok());
            }
            (
                list.map(|list| list.items.len().min(4)).map_err(|error| shape(&error.chain())),
                kind.is_ok(),
                seen,
            )
        })
    });
}
