//! What `why` prints, and what the client itself can say about a machine that does not answer. Pure.

use std::fmt::Write as _;

use ichor_wire::ichor::node::{Finding, Reason, Why};
use serde_json::{Value, json};

/// The answer about one machine.
pub type Answer = (String, Why);

/// What is known of the client when a machine does not answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Own {
    /// When the client's certificate ends, in seconds since 1970.
    pub not_after: Option<i64>,
    /// The same as a date.
    pub not_after_text: String,
    /// Now, in seconds since 1970.
    pub now: i64,
    /// The same as a date.
    pub now_text: String,
}

/// The answers as text, machine by machine.
pub fn text(answers: &[Answer]) -> String {
    let mut out = String::new();
    for (node, why) in answers {
        if !out.is_empty() {
            out.push('\n');
        }
        let _ = writeln!(out, "{node}: {}", why.summary);
        for finding in &why.findings {
            out.push('\n');
            push(&mut out, finding);
        }
    }
    out
}

fn push(out: &mut String, finding: &Finding) {
    let _ = writeln!(out, "{}", finding.summary);
    for Reason { text, evidence } in &finding.because {
        let _ = writeln!(out, "  because  {text}");
        if !evidence.is_empty() {
            let _ = writeln!(out, "           ({evidence})");
        }
    }
    for also in &finding.also {
        let _ = writeln!(out, "  so also  {also}");
    }
    if !finding.advice.is_empty() {
        let _ = writeln!(out, "  do       {}", finding.advice);
    }
}

/// The answers as JSON. Keys are only ever added.
pub fn to_json(answers: &[Answer]) -> Value {
    let finding = |finding: &Finding| {
        let because: Vec<Value> = finding
            .because
            .iter()
            .map(|reason| json!({ "text": reason.text, "evidence": reason.evidence }))
            .collect();
        json!({
            "kind": finding.kind, "subject": finding.subject, "summary": finding.summary,
            "because": because, "also": finding.also, "advice": finding.advice,
        })
    };
    let nodes: Vec<Value> = answers
        .iter()
        .map(|(node, why)| {
            let findings: Vec<Value> = why.findings.iter().map(finding).collect();
            json!({ "node": node, "healthy": why.healthy, "summary": why.summary, "findings": findings })
        })
        .collect();
    json!({ "healthy": answers.iter().all(|(_, why)| why.healthy), "nodes": nodes })
}

/// Where an error came up: on the way from here, or from the endpoint to another machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hop {
    /// Between this client and its endpoint.
    First,
    /// Between the endpoint and the machine.
    Second,
}

/// What an error of a connection or call means, as the answer of a machine that could not give one.
pub fn silent(error: &str, hop: Hop, own: &Own) -> Why {
    let Story { kind, summary, because, advice } = story(error, hop, own);
    let mut steps = vec![Reason { text: because, evidence: error.to_owned() }];
    if kind == "clock" {
        steps.push(Reason {
            text: format!("here it is {}", own.now_text),
            evidence: "the clock of this computer".into(),
        });
    }
    let finding = Finding {
        kind: kind.to_owned(),
        subject: "connection".to_owned(),
        summary: summary.to_owned(),
        because: steps,
        advice,
        also: Vec::new(),
    };
    Why { metadata: None, healthy: false, summary: "it does not answer".to_owned(), findings: vec![finding] }
}

struct Story {
    kind: &'static str,
    summary: &'static str,
    because: String,
    advice: String,
}

fn story(error: &str, hop: Hop, own: &Own) -> Story {
    let lower = error.to_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| lower.contains(word));
    let new = |kind, summary, because: &str, advice: &str| Story {
        kind,
        summary,
        because: because.to_owned(),
        advice: advice.to_owned(),
    };
    let own_expired = own.not_after.is_some_and(|end| end < own.now);
    if has(&["alert: certificateexpired", "certificate has expired"])
        || (own_expired && has(&["tls", "certificate"]))
    {
        return Story {
            kind: "certificate",
            summary: "your certificate is refused",
            because: format!("your certificate has ended ({})", own.not_after_text),
            advice: "get a new one from an administrator (`ichorctl config new`), or with the secrets of the cluster: \
                     `ichorctl gen config --with-secrets FILE --output-types talosconfig`"
                .to_owned(),
        };
    }
    if has(&["notvalidyet", "not valid yet", "not valid before"]) {
        return new(
            "clock",
            "the certificate there is not valid yet",
            "the two clocks disagree: the certificate is of the future for this computer",
            "set the clock of this computer; if it is right, the machine's clock runs ahead: `ichorctl time` on a neighbour",
        );
    }
    if has(&["expired"]) {
        return new(
            "clock",
            "the certificate there is not valid any more",
            "the machine renews its certificate by itself, so one of the clocks is wrong, or the machine cannot renew",
            "set the clock of this computer if it is wrong; else ask a neighbour: `ichorctl -n NEIGHBOUR why`",
        );
    }
    if has(&["unknownissuer", "unknown issuer", "unknownca", "badsignature", "unknown authority"]) {
        return match hop {
            Hop::First => new(
                "certificate",
                "the machine is of another cluster, or has no configuration yet",
                "its certificate is not of the CA of this context",
                "check the context (`ichorctl config info`); a machine without configuration answers `why --insecure`",
            ),
            Hop::Second => new(
                "certificate",
                "the machine is of another cluster, or has no configuration yet",
                "its certificate is not of the CA of the endpoint",
                "ask it itself: `ichorctl why --insecure -n ADDRESS`",
            ),
        };
    }
    if has(&["notvalidforname", "not valid for name"]) {
        return new(
            "certificate",
            "the machine has another name",
            "its certificate is for other names and addresses",
            "use one of those names as endpoint, or add this one to `machine.certSANs`",
        );
    }
    if has(&["certificaterequired", "certificate required", "badcertificate", "bad certificate"]) {
        return new(
            "certificate",
            "your certificate is refused",
            "the machine wants a client certificate of its own CA",
            "use a context that has one (`ichorctl config contexts`)",
        );
    }
    if has(&["no such host", "lookup", "not known"]) {
        return new(
            "dns",
            "the endpoint's name does not resolve",
            "this computer finds no address for it",
            "check the name, or give an address: `-e ADDRESS`",
        );
    }
    if has(&["connection refused"]) {
        return new(
            "refused",
            "the machine is up, its API is not",
            "nothing listens on port 50000 there",
            "wait if it is booting; a worker opens its API once a control plane has signed its certificate: check that it \
             reaches `cluster.controlPlane.endpoint` on port 50001, and read its console (`ichorctl cluster list` shows \
             where local machines keep theirs)",
        );
    }
    if has(&["no route to host", "network is unreachable", "host is down"]) {
        return new(
            "network",
            "there is no way to the machine",
            "nobody answers for that address",
            "check the address and that the machine is powered on; `-e ADDRESS` takes another way in",
        );
    }
    if has(&["timeout", "timed out", "no answer", "deadline"]) {
        return new(
            "timeout",
            "the machine does not answer",
            "packets to port 50000 get no reply: it is off, its network is down, or a firewall drops them",
            "check that it is powered on and that TCP port 50000 is let through; `-e ADDRESS` takes another way in",
        );
    }
    if has(&["no request forwarding"]) {
        return new(
            "endpoint",
            "the endpoint does not pass questions on",
            "it is a worker, and workers answer for themselves only",
            "use a control plane machine as endpoint: `-e ADDRESS`",
        );
    }
    if has(&["unknown service ichor.node", "unknown method why"]) {
        return new(
            "version",
            "the machine cannot answer this question",
            "it runs another system, or an older version",
            "`ichorctl version` shows what it runs; `ichorctl services` and `ichorctl dmesg` work there",
        );
    }
    if has(&["not authorized", "permissiondenied"]) {
        return new(
            "role",
            "you may not ask this",
            "your certificate has no role that may read",
            "`ichorctl config info` shows your roles; `os:reader` is enough",
        );
    }
    new(
        "connection",
        "the question got no answer",
        "the connection failed",
        "try again; then check the endpoint with `ichorctl config info`",
    )
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;

    fn own() -> Own {
        Own {
            not_after: Some(2_000),
            not_after_text: "2026-01-01 00:00".into(),
            now: 1_000,
            now_text: "2025-12-31 00:00".into(),
        }
    }

    #[track_caller]
    fn check(error: &str, hop: Hop, own: &Own, expect: Expect) {
        expect.assert_eq(&text(&[("10.5.0.2".into(), silent(error, hop, own))]));
    }

    #[test]
    fn a_refused_connection_is_a_machine_without_its_api() {
        check(
            "transport: Error while dialing: dial tcp 10.5.0.3:50000: connect: connection refused",
            Hop::Second,
            &own(),
            expect![[r#"
                10.5.0.2: it does not answer

                the machine is up, its API is not
                  because  nothing listens on port 50000 there
                           (transport: Error while dialing: dial tcp 10.5.0.3:50000: connect: connection refused)
                  do       wait if it is booting; a worker opens its API once a control plane has signed its certificate: check that it reaches `cluster.controlPlane.endpoint` on port 50001, and read its console (`ichorctl cluster list` shows where local machines keep theirs)
            "#]],
        );
    }

    #[test]
    fn each_error_has_its_kind() {
        let expired = Own { not_after: Some(10), ..own() };
        for (error, own, kind) in [
            ("dial tcp 10.5.0.9:50000: i/o timeout", own(), "timeout"),
            ("dial tcp 10.5.0.9:50000: connect: no route to host", own(), "network"),
            ("dial tcp: lookup nowhere.example: no such host", own(), "dns"),
            ("tls: invalid peer certificate: UnknownIssuer", own(), "certificate"),
            ("tls: invalid peer certificate: certificate not valid yet: verification time 1", own(), "clock"),
            ("tls: invalid peer certificate: certificate expired: verification time 9", own(), "clock"),
            ("tls: received fatal alert: CertificateExpired", expired, "certificate"),
            (
                "rpc error: code = Unimplemented desc = unknown service ichor.node.NodeService",
                own(),
                "version",
            ),
            ("rpc error: code = PermissionDenied desc = not authorized", own(), "role"),
            ("something else", own(), "connection"),
        ] {
            assert_eq!(silent(error, Hop::First, &own).findings[0].kind, kind, "{error}");
        }
    }

    #[test]
    fn json_has_every_part() {
        let answer = silent("i/o timeout", Hop::First, &own());
        let value = to_json(&[("a".into(), answer)]);
        assert_eq!(value["healthy"], false);
        assert_eq!(value["nodes"][0]["node"], "a");
        let finding = &value["nodes"][0]["findings"][0];
        let keys: Vec<_> = finding.as_object().unwrap().keys().cloned().collect();
        assert_eq!(keys, ["kind", "subject", "summary", "because", "also", "advice"]);
        assert_eq!(finding["because"][0]["evidence"], "i/o timeout");
    }
}
