//! A list, followed by what changes in it.

use ichor_types::deadlines::WATCH_KUBERNETES_SILENCE;
use serde_json::Value;
use tokio::time::timeout;

use crate::client::{Client, Select};
use crate::error::{Error, Status};
use crate::kind::{Kind, with_query};
use crate::transport::Chunks;

/// The largest event.
const EVENT_MAX: usize = 4 << 20;
/// After this long the server ends a watch, and a new one goes on: connections spread anew over servers.
const SECONDS: &str = "1800";

/// Streams that end without a word, or versions that are too old at once, before it counts as a failure.
const FUTILE_MAX: u32 = 3;

/// Something changed.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// These objects are there, and no others. Comes first, and whenever the server has forgotten how to go on.
    Listed(Vec<Value>),
    /// An object is new or changed.
    Changed(Value),
    /// An object is gone; this was its last state.
    Gone(Value),
}

/// All objects of a kind, and then what changes.
pub struct Watch {
    client: Client,
    kind: Kind,
    namespace: String,
    labels: String,
    fields: String,
    version: Option<String>,
    stream: Option<Lines>,
    /// Lists and streams that led nowhere, one after the other.
    futile: u32,
}

impl Watch {
    pub(crate) fn new(client: Client, kind: Kind, namespace: &str, select: Select<'_>) -> Self {
        Self {
            client,
            kind,
            namespace: namespace.to_owned(),
            labels: select.labels.to_owned(),
            fields: select.fields.to_owned(),
            version: None,
            stream: None,
            futile: 0,
        }
    }

    /// The next event. After an error another call goes on where it stopped; when to try is the caller's choice.
    ///
    /// # Errors
    /// When the server cannot be reached, or breaks off, or refuses.
    pub async fn next(&mut self) -> Result<Event, Error> {
        loop {
            let Some(version) = self.version.clone() else { return self.list().await };
            let result = match self.stream {
                Some(_) => self.read().await,
                None => self.open(&version).await.map(|stream| {
                    self.stream = Some(stream);
                    None
                }),
            };
            match result {
                Ok(Some(event)) => return Ok(event),
                Ok(None) => {}
                Err(error) => {
                    self.stream = None;
                    if !error.is_gone() {
                        return Err(error);
                    }
                    self.version = None;
                    self.led_nowhere(error)?;
                }
            }
        }
    }

    /// Counts what led nowhere; too much of it is for the caller to wait out.
    fn led_nowhere(&mut self, error: Error) -> Result<(), Error> {
        self.futile += 1;
        if self.futile < FUTILE_MAX {
            return Ok(());
        }
        self.futile = 0;
        Err(error)
    }

    async fn list(&mut self) -> Result<Event, Error> {
        let select = Select { labels: &self.labels, fields: &self.fields };
        let list = self.client.list(&self.kind, &self.namespace, select).await?;
        self.version = Some(list.version);
        Ok(Event::Listed(list.items))
    }

    async fn open(&self, version: &str) -> Result<Lines, Error> {
        let pairs = [
            ("watch", "true"),
            ("allowWatchBookmarks", "true"),
            ("resourceVersion", version),
            ("timeoutSeconds", SECONDS),
            ("labelSelector", &self.labels),
            ("fieldSelector", &self.fields),
        ];
        let path = with_query(self.kind.path(&self.namespace), &pairs);
        let reply = self.client.open(path).await?;
        Ok(Lines { body: reply.body, buffer: Vec::new(), scanned: 0 })
    }

    /// Reads one line; none when it was for us alone, or the stream ended.
    async fn read(&mut self) -> Result<Option<Event>, Error> {
        let what = || format!("watch {}", self.kind.path(&self.namespace));
        let Some(stream) = &mut self.stream else { return Ok(None) };
        let line = match timeout(WATCH_KUBERNETES_SILENCE, stream.next()).await {
            Err(_) => {
                self.client.reset();
                return Err(Error::Timeout { what: what(), seconds: WATCH_KUBERNETES_SILENCE.as_secs() });
            }
            Ok(Err(Trouble::TooLong)) => return Err(Error::TooLarge { what: what(), limit: EVENT_MAX }),
            Ok(Err(Trouble::Broken(text))) => return Err(Error::Broken { what: what(), text }),
            Ok(Ok(line)) => line,
        };
        let Some(line) = line else {
            self.stream = None;
            let text = "the server ended the watch".to_owned();
            let error = Error::Broken { what: what(), text };
            return self.led_nowhere(error).map(|()| None);
        };
        let mut event: Value =
            serde_json::from_slice(&line).map_err(|source| Error::Json { what: what(), source })?;
        let object = event.get_mut("object").map(Value::take).filter(Value::is_object);
        let Some(object) = object else {
            return Err(Error::Broken { what: what(), text: "an event is none".to_owned() });
        };
        let version = object["metadata"]["resourceVersion"].as_str().map(str::to_owned);
        let event = match event["type"].as_str() {
            Some("ADDED" | "MODIFIED") => Some(Event::Changed(object)),
            Some("DELETED") => Some(Event::Gone(object)),
            Some("ERROR") => {
                let status = Status::from_value(500, &object);
                return Err(Error::Refused { what: what(), status: status.into() });
            }
            // Bookmarks, and whatever comes one day.
            _ => None,
        };
        self.version = version.or(self.version.take());
        if event.is_some() {
            self.futile = 0;
        }
        Ok(event)
    }
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch")
            .field("kind", &self.kind)
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

/// A body by lines.
struct Lines {
    body: Box<dyn Chunks>,
    buffer: Vec<u8>,
    scanned: usize,
}

enum Trouble {
    TooLong,
    Broken(String),
}

impl Lines {
    async fn next(&mut self) -> Result<Option<Vec<u8>>, Trouble> {
        loop {
            if let Some(end) = self.buffer[self.scanned..].iter().position(|byte| *byte == b'\n') {
                let rest = self.buffer.split_off(self.scanned + end + 1);
                let mut line = std::mem::replace(&mut self.buffer, rest);
                self.scanned = 0;
                line.pop();
                if !line.is_empty() {
                    return Ok(Some(line));
                }
                continue;
            }
            self.scanned = self.buffer.len();
            if self.buffer.len() > EVENT_MAX {
                return Err(Trouble::TooLong);
            }
            match self.body.next().await {
                None => return Ok(None),
                Some(Ok(chunk)) => self.buffer.extend_from_slice(&chunk),
                Some(Err(text)) => return Err(Trouble::Broken(text)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::future::BoxFuture;

    use super::*;

    struct Pieces(Vec<&'static str>);

    impl Chunks for Pieces {
        fn next(&mut self) -> BoxFuture<'_, Option<Result<bytes::Bytes, String>>> {
            let next = (!self.0.is_empty()).then(|| Ok(self.0.remove(0).into()));
            Box::pin(std::future::ready(next))
        }
    }

    #[tokio::test]
    async fn lines_are_whole_however_they_come() {
        let pieces = Pieces(vec!["a", "b\n\nc\nd", "", "e\n", "cut off"]);
        let mut lines = Lines { body: Box::new(pieces), buffer: Vec::new(), scanned: 0 };
        let mut seen = Vec::new();
        while let Ok(Some(line)) = lines.next().await {
            seen.push(String::from_utf8(line).unwrap());
        }
        assert_eq!(seen, ["ab", "c", "de"]);
    }
}
