//! Lists and watches that show a part of a kind.

use std::sync::Arc;

use ichor_resource::Kind;
use regex::Regex;

use super::{Feed, Outcome, create, draft, equal, good, ids};
use crate::core_state::CoreState;
use crate::event::EventKind;
use crate::query::{LabelOp, LabelQuery, LabelTerm, Query};
use crate::watch::WatchOptions;

fn term(key: &str, op: LabelOp, values: &[&str], invert: bool) -> LabelTerm {
    LabelTerm { key: key.to_owned(), op, values: values.iter().map(ToString::to_string).collect(), invert }
}

fn any(queries: Vec<Vec<LabelTerm>>) -> Query {
    let labels = queries.into_iter().map(|terms| LabelQuery { terms }).collect();
    Query { labels, id: None }
}

fn regex(text: &str) -> Result<Query, String> {
    let id = Regex::new(text).map_err(|error| error.to_string())?;
    Ok(Query { labels: Vec::new(), id: Some(id) })
}

pub(super) async fn label_queries_select<S: CoreState>(state: &S, kind: &Arc<Kind>) -> Outcome {
    let table: [(&str, &[(&str, &str)]); 3] = [
        ("a", &[("app", "one"), ("cold", ""), ("weight", "10kg")]),
        ("b", &[("app", "two"), ("cold", ""), ("weight", "20kg")]),
        ("c", &[("app", "zero")]),
    ];
    for (id, labels) in table {
        let mut draft = draft(kind, id);
        for (key, value) in labels {
            draft.meta_mut().set_label(*key, *value);
        }
        good(state.create(draft, "").await)?;
    }

    use LabelOp::*;
    let cases: [(Vec<Vec<LabelTerm>>, &str); 13] = [
        (vec![], "abc"),
        (vec![vec![]], "abc"),
        (vec![vec![term("cold", Exists, &[], false)]], "ab"),
        (vec![vec![term("cold", Exists, &[], true)]], "c"),
        (vec![vec![term("app", Equal, &["two"], false)]], "b"),
        (vec![vec![term("app", Equal, &["two"], true)]], "ac"),
        (vec![vec![term("app", In, &["two", "zero"], false)]], "bc"),
        (vec![vec![term("app", Less, &["two"], false)]], "a"),
        (vec![vec![term("app", LessOrEqual, &["two"], false)]], "ab"),
        (vec![vec![term("weight", LessNumeric, &["12000"], false)]], "a"),
        (vec![vec![term("weight", LessOrEqualNumeric, &["20k"], true)]], ""),
        (vec![vec![term("cold", Exists, &[], false), term("app", Equal, &["zero"], false)]], ""),
        (vec![vec![term("app", Equal, &["one"], false)], vec![term("app", Equal, &["zero"], false)]], "ac"),
    ];
    for (terms, expected) in cases {
        let query = any(terms);
        let found = ids(state, kind, &query).await?.concat();
        equal((&query.labels, &*found), (&query.labels, expected))?;
    }
    Ok(())
}

pub(super) async fn id_queries_select<S: CoreState>(state: &S, kind: &Arc<Kind>) -> Outcome {
    for number in 0..10 {
        create(state, kind, &format!("item/path{number}")).await?;
    }
    let query = regex("^item/.+[2-4]$")?;
    let expected = ["item/path2", "item/path3", "item/path4"];
    equal(ids(state, kind, &query).await?, expected.map(str::to_owned).to_vec())?;
    // Not anchored.
    equal(ids(state, kind, &regex("path")?).await?.len(), 10)?;

    let options = WatchOptions { query, ..WatchOptions::with_contents() };
    let mut feed = Feed::new(state.watch_kind(kind, options).await)?;
    for id in expected {
        feed.expect(EventKind::Created, id).await?;
    }
    feed.expect(EventKind::Bootstrapped, "").await?;
    for number in 0..10 {
        good(state.destroy(kind, &format!("item/path{number}"), "").await)?;
    }
    for id in expected {
        feed.expect(EventKind::Destroyed, id).await?;
    }
    Ok(())
}

pub(super) async fn a_filtered_watch_sees_resources_come_and_go<S: CoreState>(
    state: &S,
    kind: &Arc<Kind>,
) -> Outcome {
    create(state, kind, "a").await?;
    create(state, kind, "b").await?;
    let options = WatchOptions { query: Query::label("shown"), ..WatchOptions::with_contents() };
    let mut feed = Feed::new(state.watch_kind(kind, options).await)?;
    feed.expect(EventKind::Bootstrapped, "").await?;

    let edits: [(&str, &str, Option<&str>); 5] = [
        ("b", "other", Some("")),
        ("a", "shown", Some("1")),
        ("a", "shown", Some("2")),
        ("a", "shown", None),
        ("b", "shown", Some("1")),
    ];
    for (id, key, value) in edits {
        let edit = |meta: &mut ichor_resource::Metadata| match value {
            Some(value) => meta.set_label(key, value),
            None => {
                meta.remove_label(key);
            }
        };
        good(state.update_with(kind, id, "", None, edit).await)?;
    }
    good(state.destroy(kind, "b", "").await)?;

    let came = feed.expect(EventKind::Created, "a").await?;
    equal(came.old.is_none(), true)?;
    let changed = feed.expect(EventKind::Updated, "a").await?;
    let old = changed.old.ok_or("an update without the old resource")?;
    equal(old.meta().label("shown"), Some("1"))?;
    equal(changed.resource.meta().label("shown"), Some("2"))?;
    let went = feed.expect(EventKind::Destroyed, "a").await?;
    equal(went.old.is_none(), true)?;
    feed.expect(EventKind::Created, "b").await?;
    feed.expect(EventKind::Destroyed, "b").await?;
    Ok(())
}
