//! `audit`: who called what on the machines, when, and how it ended.

use std::io::{BufWriter, Write as _, stdout};

use ichor_client::lines::Lines;
use ichor_client::sort;
use ichor_wire::common::ContainerDriver;
use ichor_wire::machine::LogsRequest;
use serde_json::{Map, Value};

use crate::explain;
use crate::failure::Failure;
use crate::parse::Call;
use crate::session::{Session, StreamErrors, block_on};
use crate::table::{Command, Complete, Flag, Group};
use crate::tabs::Table;

/// The log that holds the records.
const LOG: &str = "audit";
/// Rows that are gathered before they are shown, so that columns line up.
const ROWS_MAX: usize = 1000;

/// The command.
pub static AUDIT: Command = Command {
    name: "audit",
    group: Group::Machines,
    about: "Show who called what, and how it ended",
    long: "Shows the audit log: every call of the machine API with caller, roles, address, method and outcome. It\n\
           is kept in memory and bounded; log shipping sends it elsewhere.",
    examples: &["audit --tail 20", "audit -f", "audit -o json | jq 'select(.code != \"OK\")'"],
    flags: &[
        Flag::switch("follow", "keep showing new records").short('f'),
        Flag::text("output", "table or json")
            .short('o')
            .default("table")
            .complete(Complete::Words(&["table", "json"])),
        Flag::int32("tail", "-1", "show this many of the last records; -1 means all"),
    ],
    run: Some(run),
    ..Command::EMPTY
};

fn run(call: &Call) -> Result<(), Failure> {
    let json = match call.text("output") {
        "table" => false,
        "json" => true,
        other => {
            return Err(
                Failure::new(format!("output format \"{other}\" is not supported")).hint("use table or json")
            );
        }
    };
    let request = LogsRequest {
        namespace: "system".to_owned(),
        id: LOG.to_owned(),
        driver: ContainerDriver::Containerd.into(),
        follow: call.on("follow"),
        tail_lines: i32::try_from(call.int("tail")).unwrap_or(-1),
    };
    let connection = call.connection();
    block_on(async {
        let session = Session::open(&connection).await?;
        let stream = session.all().machine().logs(request).await;
        let mut stream =
            stream.map_err(|status| explain::status("error fetching the audit log", &status))?.into_inner();
        let mut printer = Printer::new(json);
        let mut lines = Lines::default();
        let mut errors = StreamErrors::default();
        loop {
            let message = if printer.is_empty() || printer.is_full() {
                stream.message().await
            } else {
                // Whatever is on its way comes first; a pause shows what is there.
                match tokio::time::timeout(PAUSE, stream.message()).await {
                    Ok(message) => message,
                    Err(_) => {
                        printer.flush()?;
                        continue;
                    }
                }
            };
            match message {
                Ok(Some(message)) => match sort(message, &session.label) {
                    Ok((node, data)) => lines.push(&node, &data.bytes, |node, line| printer.add(node, line)),
                    Err(error) => errors.push(error),
                },
                Ok(None) => break,
                Err(status) => {
                    errors.broken(&session.label, &status);
                    break;
                }
            }
            if printer.is_full() {
                printer.flush()?;
            }
        }
        lines.finish(|node, line| printer.add(node, line));
        printer.flush()?;
        errors.finish()
    })
}

/// How long a table waits for more rows.
const PAUSE: std::time::Duration = std::time::Duration::from_millis(100);

/// Gathers records and prints them in one of the two forms.
struct Printer {
    json: bool,
    started: bool,
    table: Table,
    rows: usize,
    text: String,
}

impl Printer {
    fn new(json: bool) -> Self {
        Self { json, started: false, table: Table::default(), rows: 0, text: String::new() }
    }

    fn is_empty(&self) -> bool {
        self.rows == 0
    }

    fn is_full(&self) -> bool {
        self.rows >= ROWS_MAX
    }

    /// Adds a line of the log; one that is no record is left out.
    fn add(&mut self, node: &str, line: &[u8]) {
        let Ok(Value::Object(record)) = serde_json::from_slice(line) else { return };
        self.rows += 1;
        if self.json {
            let mut whole = Map::from_iter([("node".to_owned(), node.into())]);
            whole.extend(record);
            self.text.push_str(&Value::Object(whole).to_string());
            self.text.push('\n');
            return;
        }
        if !std::mem::replace(&mut self.started, true) {
            self.table
                .row(["NODE", "TIME", "CALLER", "ROLES", "ADDRESS", "METHOD", "CODE", "DURATION", "NOTE"]);
        }
        self.table.row(cells(node, &record));
    }

    fn flush(&mut self) -> Result<(), Failure> {
        self.rows = 0;
        let text = std::mem::take(&mut self.text) + &self.table.take();
        let mut out = BufWriter::new(stdout());
        out.write_all(text.as_bytes())?;
        out.flush()?;
        Ok(())
    }
}

/// The row of one record.
fn cells(node: &str, record: &Map<String, Value>) -> Vec<String> {
    let text = |key: &str| record.get(key).and_then(Value::as_str).unwrap_or_default();
    // Most certificates of administrators have no name: their fingerprint tells them apart.
    let name = match (text("name"), text("uid"), text("certificate")) {
        ("", "", "") => "-".to_owned(),
        ("", "", certificate) => certificate.to_owned(),
        ("", uid, _) => format!("uid {uid}"),
        (name, _, _) => name.to_owned(),
    };
    let roles: Vec<&str> = record
        .get("roles")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let or_dash = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
    let duration = match record.get("duration_ms").and_then(Value::as_f64) {
        Some(ms) if ms >= 1000.0 => format!("{:.2}s", ms / 1000.0),
        Some(ms) => format!("{ms:.1}ms"),
        None => "-".to_owned(),
    };
    let mut note: Vec<String> = Vec::new();
    if text("msg") != "call" {
        note.push(text("msg").to_owned());
    }
    if let Some(count) = record.get("count").and_then(Value::as_u64) {
        let since = text("since");
        note.push(format!("{count} times{}{since}", if since.is_empty() { "" } else { " since " }));
    }
    for (key, before) in [("target", "of "), ("reason", ""), ("proxy_name", "through ")] {
        if !text(key).is_empty() {
            note.push(format!("{before}{}", text(key)));
        }
    }
    // Seconds are enough to read; JSON has the rest.
    let time = text("time").get(..19).unwrap_or(text("time"));
    vec![
        node.to_owned(),
        time.replace('T', " "),
        name,
        or_dash(&roles.join(",")),
        or_dash(text("address")),
        or_dash(text("method").trim_start_matches('/')),
        or_dash(text("code")),
        duration,
        note.join("; "),
    ]
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn records_become_rows_and_other_lines_are_left_out() {
        let mut printer = Printer::new(false);
        for line in [
            r#"{"time":"2026-11-15T10:20:30.123456Z","level":"info","msg":"call","method":"/machine.MachineService/Version","code":"OK","duration_ms":0.412,"name":"admin","address":"10.5.0.1:40112","roles":["os:admin"]}"#,
            "not a record",
            r#"{"time":"2026-11-15T10:20:31Z","msg":"call","method":"/a.B/C","code":"OK","certificate":"2abd23a5450158c8","address":"10.5.0.1:1"}"#,
            r#"{"time":"2026-11-15T10:20:31.5Z","level":"warn","msg":"calls","method":"/machine.MachineService/Reboot","code":"PermissionDenied","duration_ms":1500.0,"count":12,"since":"2026-11-15T10:20:21Z","name":"bob","address":"10.5.0.9:1","roles":["os:reader"]}"#,
        ] {
            printer.add("n", line.as_bytes());
        }
        expect![[r#"
            NODE   TIME                  CALLER             ROLES       ADDRESS          METHOD                           CODE               DURATION   NOTE
            n      2026-11-15 10:20:30   admin              os:admin    10.5.0.1:40112   machine.MachineService/Version   OK                 0.4ms      
            n      2026-11-15 10:20:31   2abd23a5450158c8   -           10.5.0.1:1       a.B/C                            OK                 -          
            n      2026-11-15 10:20:31   bob                os:reader   10.5.0.9:1       machine.MachineService/Reboot    PermissionDenied   1.50s      calls; 12 times since 2026-11-15T10:20:21Z
        "#]]
        .assert_eq(&printer.table.take());
    }

    #[test]
    fn json_keeps_the_record_and_adds_its_machine() {
        let mut printer = Printer::new(true);
        printer.add("n", br#"{"msg":"call","code":"OK"}"#);
        assert_eq!(printer.text, "{\"node\":\"n\",\"msg\":\"call\",\"code\":\"OK\"}\n");
    }
}
