//! A candidate may print anything: it is read or refused, and what was read can be printed and read again.

use ichor_fuzz::{Target, shape};
use ichor_render::difference::{Told, differences, tell};
use ichor_render::stream::Printed;
use ichor_render::{Facts, Rendering};

const SEEDS: &[&str] = &[
    "note: x\nrendering: 1\n---\nthing: etcd\nspec:\n    args:\n        - --a=b\n        - \"1\"\n    image: x:v1\nrendering ends: 1\n",
    "rendering: 1\n---\nthing: a\nspec: {}\n---\nthing: b\nspec: |\n    one\n     two\nrendering ends: 2\n",
    "rendering: 2\nanything\n",
    "rendering: 1\nrendering ends: 0\n",
];

const WORDS: &[&str] = &[
    "rendering: 1\n",
    "rendering ends: 1\n",
    "---\n",
    "thing: ",
    "spec:\n    ",
    "- ",
    ": ",
    "|\n",
    "\"",
    "&x ",
    "*x",
    "\u{85}",
    "\r",
];

#[test]
fn fuzz_renderings() {
    Target::text("rendering").seeds(SEEDS.iter().copied()).words(WORDS.iter().copied()).rounds(4_000).run(
        |input| {
            let text = String::from_utf8_lossy(input);
            match Rendering::find(&text) {
                Ok(Printed::Rendering(read)) => {
                    assert_eq!(Rendering::find(&read.print()), Ok(Printed::Rendering(read.clone())));
                    let told = Told { lines_max: 10, line_max: 50, context: true };
                    let lines = tell(&differences(&Rendering::default(), &read), told);
                    assert!(lines.len() <= 10 && lines.iter().all(|line| line.chars().count() <= 50));
                    format!("read {}", read.names().count().min(3))
                }
                Ok(Printed::Nothing) => "nothing".to_owned(),
                Ok(Printed::OtherForm(_)) => "another form".to_owned(),
                Err(error) => shape(&error.to_string()),
            }
        },
    );
}

#[test]
fn fuzz_facts() {
    let seed = Facts::default().to_json();
    Target::text("facts").seeds([seed.as_str()]).rounds(4_000).run(|input| match Facts::from_json(input) {
        Ok(facts) => {
            assert_eq!(Facts::from_json(facts.to_json().as_bytes()).unwrap(), facts);
            "read".to_owned()
        }
        Err(_) => "refused".to_owned(),
    });
}
