//! Whatever is handed in as configuration, patch, secrets or client configuration is taken or refused with a place,
//! never with a panic; what is taken can be written, read and written again.

#[path = "../examples/support/random.rs"]
mod random;

use std::fs;
use std::path::{Path, PathBuf};

use ichor_config::generate::Secrets;
use ichor_config::patch::{self, Patch, StrategicPatch, Target as PatchTarget, derive};
use ichor_config::talosconfig::ClientConfig;
use ichor_config::{CommentMode, Diagnostics, Documents, Mode, ValidateOptions};
use ichor_fuzz::{Target, shape};
use ichor_yaml::Node;

const HERE: &str = env!("CARGO_MANIFEST_DIR");

/// Inputs that failed once.
fn known(name: &str) -> PathBuf {
    Path::new(HERE).join("tests/fuzz").join(name)
}

fn fixtures(below: &str) -> PathBuf {
    Path::new(HERE).join("tests/fixtures").join(below)
}

/// Keys and values that configurations are made of.
const WORDS: &[&str] = &[
    "$patch: delete\n",
    "$patch: replace\n",
    "---\n",
    "apiVersion: v1alpha1\n",
    "kind: ",
    "name: eth0\n",
    "machine:\n",
    "cluster:\n",
    "  - ",
    "<<: *a\n",
    "&a ",
    "*a",
    "!!binary ",
    "!!null ",
    "|\n",
    ">-\n",
    "LinkConfig",
    "BondConfig",
    "VolumeConfig",
    "UserVolumeConfig",
    "NetworkRuleConfig",
    "ExtensionServiceConfig",
    "EPHEMERAL",
    "disk.size > 10u * GiB",
    "10GiB",
    "50%",
    "10.0.0.0/8",
    "https://[::1]:6443",
    "1-65535",
    "0o644",
    "1h0m0s",
    "aGVsbG8=",
    "00:11:22:33:44:55",
    "******",
    "{}",
    "[]",
    "null",
    "yes",
];

/// Every problem has a place, and together they are not too much to read.
fn told(text: &[u8], problems: &Diagnostics) -> String {
    let shown = String::from_utf8_lossy(text);
    assert!(!problems.is_empty());
    assert!(problems.items.len() <= 102, "{} problems", problems.items.len());
    for item in &problems.items {
        assert!(item.span.is_known(), "{item:?}\n{shown}");
    }
    let _ = (problems.render("a.yaml", &shown), problems.to_json().to_string(), problems.positions());
    shape(&problems.to_string())
}

#[test]
fn fuzz_decoder() {
    let mut read = 0;
    let whole = Target::text("config-decoder")
        .corpus(fixtures("types"))
        .corpus(fixtures("decode"))
        .corpus(fixtures("generate"))
        .corpus(known("config-decoder"))
        .words(WORDS)
        .generator(|random| {
            let documents = random::documents(&mut random::Random::new(random.number()));
            documents.encode(CommentMode::None).into_bytes()
        })
        .rounds(1_200)
        .run(|input| {
            let documents = match Documents::load(input) {
                Ok(documents) => documents,
                Err(problems) => return told(input, &problems),
            };
            read += 1;
            let written = documents.encode(CommentMode::None);
            let again = Documents::load(written.as_bytes())
                .unwrap_or_else(|error| panic!("{}\n{written}", error.render("written", &written)));
            assert_eq!(again.encode(CommentMode::None), written);
            let commented = documents.encode(CommentMode::All);
            if let Err(error) = Documents::load(commented.as_bytes()) {
                panic!("{}\n{commented}", error.render("commented", &commented));
            }
            let _ = documents.redacted("******").encode(CommentMode::None);
            let options = ValidateOptions { strict: true, deprecations: true };
            match documents.validate_with(Mode::METAL, options) {
                Ok(warnings) => format!("fine {}", warnings.len().min(3)),
                Err(problems) => told(input, &problems),
            }
        });
    assert!(!whole || (read > 100), "{read} were read");
}

#[test]
fn fuzz_patches() {
    let base = fs::read(fixtures("patch/delete-controlplane/config.yaml")).unwrap();
    let two =
        b"machine:\n  type: worker\n---\napiVersion: v1alpha1\nkind: LinkConfig\nname: eth0\nmtu: 9000\n";
    let (base_documents, mut applied) = (Documents::load(&base).unwrap(), 0);
    let whole = Target::text("config-patches")
        .corpus(fixtures("patch"))
        .corpus(fixtures("strategic-merge"))
        .corpus(known("config-patches"))
        .words(WORDS)
        .generator(|random| {
            let documents = random::documents(&mut random::Random::new(random.number()));
            documents.encode(CommentMode::None).into_bytes()
        })
        .rounds(1_000)
        .run(|input| {
            let patch = match Patch::load(input) {
                Ok(patch) => patch,
                Err(error) => return shape(&error.to_string()),
            };
            let _ = patch::apply_to_bytes(two, std::slice::from_ref(&patch));
            let bytes = patch::apply_to_bytes(&base, std::slice::from_ref(&patch));
            let target = PatchTarget::Documents(base_documents.clone());
            let documents = patch::apply(target, std::slice::from_ref(&patch));
            match (bytes, documents) {
                (Ok(bytes), Ok(documents)) => {
                    applied += 1;
                    if let Patch::Strategic(_) = patch {
                        assert_eq!(bytes, documents.into_bytes());
                        if let Err(error) = Documents::load(&bytes) {
                            let text = String::from_utf8_lossy(&bytes);
                            panic!("{}\n{text}", error.render("patched", &text));
                        }
                    }
                    format!("applied {}", (bytes.len() / 256).min(40))
                }
                (Err(one), Err(other)) => shape(&format!("{one} {other}")),
                // Operations on documents that were decoded meet other keys than those on the text.
                (Ok(_), Err(error)) | (Err(error), Ok(_)) if matches!(patch, Patch::Json(_)) => {
                    shape(&error.to_string())
                }
                (one, other) => panic!("{:?} {:?}", one.is_ok(), other.is_ok()),
            }
        });
    assert!(!whole || (applied > 50), "{applied} were applied");
}

/// Lists whose items patches match by name, and the names.
const MATCHED: &[(&str, &[&str])] = &[
    ("interfaces", &["interface", "deviceSelector"]),
    ("vlans", &["vlanId"]),
    ("admissionControl", &["name"]),
    ("configFiles", &["mountPath"]),
];

/// True if two items of such a list have the same name.
fn has_twins(node: &Node) -> bool {
    let lists = node.as_map().unwrap_or_default().iter().any(|(key, value)| {
        let names = MATCHED.iter().find(|(list, _)| key.as_str() == Some(list));
        let named = |item: &Node| {
            let names = names.map_or(&[][..], |(_, names)| names);
            names.iter().find_map(|name| item.get(name)).map(ichor_yaml::emit).unwrap_or_default()
        };
        let items: Vec<String> = names.and(value.as_seq()).unwrap_or_default().iter().map(named).collect();
        (1..items.len()).any(|i| items[..i].contains(&items[i])) || has_twins(value)
    });
    lists || node.as_seq().unwrap_or_default().iter().any(has_twins)
}

/// Stands between the two configurations of an input.
const BETWEEN: &[u8] = b"\n=====\n";

#[test]
fn fuzz_differences() {
    let pairs = ["001", "002", "004", "005", "006"].map(|case| {
        let read = |side: &str| fs::read(fixtures(&format!("strategic-merge/{case}/{side}.yaml"))).unwrap();
        [read("left"), BETWEEN.to_vec(), read("expected")].concat()
    });
    let mut compared = 0;
    let whole = Target::text("config-differences")
        .seeds(pairs)
        .corpus(known("config-differences"))
        .words(WORDS)
        .words([BETWEEN])
        .rounds(800)
        .run(|input| {
            let Some(at) = input.windows(BETWEEN.len()).position(|window| window == BETWEEN) else {
                return "one".to_owned();
            };
            let (one, two) = (Documents::load(&input[..at]), Documents::load(&input[at + BETWEEN.len()..]));
            let (one, two) = match (one, two) {
                (Ok(one), Ok(two)) => (one, two),
                (Err(error), _) | (_, Err(error)) => return shape(&error.to_string()),
            };
            // The root document cannot be deleted; such pairs have no patch.
            if one.root().is_some() && two.root().is_none() {
                return "no root".to_owned();
            }
            // Items of a patch with one name become one item, in the original as well: no patch leads there.
            if [&one, &two]
                .iter()
                .any(|documents| documents.iter().any(|document| has_twins(&document.encode())))
            {
                return "twins".to_owned();
            }
            compared += 1;
            let patches = derive(&one, &two);
            let mut result = one;
            for text in &patches {
                let patch =
                    StrategicPatch::load(text.as_bytes()).unwrap_or_else(|error| panic!("{error}\n{text}"));
                result = patch.apply(result).unwrap_or_else(|error| panic!("{error}\n{text}"));
            }
            let sorted = |documents: &Documents| {
                let mut texts: Vec<String> =
                    documents.iter().map(|document| ichor_yaml::emit(&document.encode())).collect();
                texts.sort();
                texts.join("---\n")
            };
            let difference = ichor_config::diff::diff_text(&sorted(&result), &sorted(&two));
            assert!(difference.is_empty(), "{difference}\n{}", patches.join("=====\n"));
            format!("{} {}", patches.len(), patches.concat().lines().count())
        });
    assert!(!whole || (compared > 50), "{compared} were compared");
}

#[test]
fn fuzz_secrets() {
    Target::text("config-secrets")
        .corpus(fixtures("secrets"))
        .corpus(fixtures("generate/inputs"))
        .corpus(known("config-secrets"))
        .words(["certs:\n", "crt: ", "key: ", "LS0tLS1CRUdJTg==", "null"])
        .rounds(800)
        .run(|input| match Secrets::load(input) {
            Ok(secrets) => {
                let written = secrets.to_yaml();
                assert_eq!(Secrets::load(written.as_bytes()).unwrap().to_yaml(), written);
                shape(&secrets.problems().join(" "))
            }
            Err(problems) => told(input, &problems),
        });
}

#[test]
fn fuzz_client_configuration() {
    let good = "context: a\ncontexts:\n    a:\n        endpoints: [10.0.0.1, \"[::1]:50000\"]\n        nodes: [b]\n        \
                ca: YQ==\n        crt: YQ==\n        key: YQ==\n        cluster: c\n    b:\n        target: 10.0.0.2\n        \
                auth:\n            basic: {username: u, password: p}\n            siderov1: {identity: i}\n";
    Target::text("config-talosconfig")
        .seeds([good])
        .corpus(known("config-talosconfig"))
        .words(["contexts:\n", "https://", "[", "]:1", ":65536", "LS0tLS1CRUdJTg=="])
        .rounds(4_000)
        .run(|input| match ClientConfig::load(input) {
            Ok(mut config) => {
                let written = config.to_yaml();
                let again = ClientConfig::load(written.as_bytes()).unwrap();
                assert_eq!(again.to_yaml(), written);
                let renamed = config.merge_from(&again).len();
                let chosen = config.select(None).map(|context| {
                    let parts =
                        (context.ca_pem().is_ok(), context.crt_pem().is_ok(), context.key_pem().is_ok());
                    format!("{parts:?} {:?}", context.addresses().map(|all| all.len()).ok())
                });
                format!("{renamed} {:?}", chosen.map_err(|error| shape(&error.to_string())))
            }
            Err(problems) => told(input, &problems),
        });
}
