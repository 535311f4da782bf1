//! Programs of a shell in the place of candidates, started by init's own server.

use ichor_sys::supervisor::local;
use ichor_yaml::Node;
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::*;
use crate::supervisor::Supervisor;

const HELP: &str = "  installer check [flags]\n      --render    print\n";

fn port() -> Supervisor {
    let (power, _) = mpsc::channel(1);
    Supervisor::connect(local::start().unwrap(), &Handle::current(), power).unwrap().0
}

fn candidate<'a>(port: &'a Supervisor, script: &str, most: Duration) -> Candidate<'a> {
    let script = script.to_owned();
    let program = move |args: Vec<String>| ProcessSpec {
        path: "/bin/sh".to_owned(),
        args: ["sh", "-c", &script, "installer"].map(str::to_owned).into_iter().chain(args).collect(),
        privileged: true,
        ..ProcessSpec::default()
    };
    Candidate { port, program: Box::new(program), most }
}

fn questions() -> Questions {
    Questions { folder: PathBuf::from("/does/not/exist"), platform: "metal".to_owned() }
}

fn rendering(things: &[(&str, &str)]) -> Rendering {
    Rendering::of(things.iter().map(|(name, text)| ((*name).to_owned(), Node::string(*text))))
}

fn own() -> Rendering {
    rendering(&[("etcd", "v3.6.7"), ("kubelet", "v1.35.0")])
}

/// What comes of a candidate that is this script.
async fn assessed(script: &str, most: Duration) -> Result<Assessment, String> {
    let port = port();
    candidate(&port, script, most).assess(HELP, &questions(), own).await
}

const MOST: Duration = Duration::from_secs(30);

fn printing(rendering: &Rendering) -> String {
    format!("cat <<'END'\nnote: mind the gap\n{}END\n", rendering.print())
}

#[tokio::test]
async fn a_candidate_that_renders_something_else_shows_what() {
    let other = rendering(&[("etcd", "v3.7.0"), ("kubelet", "v1.35.0")]);
    let found = assessed(&printing(&other), MOST).await.unwrap();
    let differences =
        vec![Difference { thing: "etcd".to_owned(), text: "@@ -1 +1 @@\n-v3.6.7\n+v3.7.0\n".to_owned() }];
    assert_eq!(found, Assessment { notes: vec!["mind the gap".to_owned()], differences: Some(differences) });
}

#[tokio::test]
async fn a_candidate_that_renders_the_same_differs_in_nothing() {
    let found = assessed(&printing(&own()), MOST).await.unwrap();
    assert_eq!(found.differences, Some(vec![]));
}

#[tokio::test]
async fn a_candidate_is_asked_with_the_files_of_the_machine() {
    let port = port();
    let script = "echo \"note: $*\"";
    let asked = candidate(&port, script, MOST);
    let found = asked.assess(HELP, &questions(), own).await.unwrap();
    assert_eq!(
        found.notes,
        [
            "check --platform=metal --machine-config=/does/not/exist/config.yaml --render --facts=/does/not/exist/facts.json",
            "it did not say what it would run; what would differ is not known"
        ]
    );
    let older = asked.assess("  installer check [flags]\n", &questions(), own).await.unwrap();
    assert_eq!(
        older,
        Assessment {
            notes: vec![
                "check --platform=metal --machine-config=/does/not/exist/config.yaml".to_owned(),
                "it renders no configuration; what would differ is not known".to_owned()
            ],
            differences: None
        }
    );
}

#[tokio::test]
async fn a_candidate_that_checks_nothing_is_taken_with_a_note_and_not_asked() {
    let port = port();
    let foreign = candidate(&port, "exit 1", MOST);
    let found = foreign.assess("Usage: installer install\n", &questions(), own).await.unwrap();
    assert_eq!(found.notes, ["it checks no configuration; whether it can run with this one is not known"]);
}

#[tokio::test]
async fn a_later_form_is_taken_with_a_note() {
    let found = assessed("echo 'rendering: 2'; echo anything", MOST).await.unwrap();
    assert!(found.notes[0].starts_with("it renders in the form \"2\""), "{found:?}");
    assert_eq!(found.differences, None);
}

#[tokio::test]
async fn one_that_fails_is_refused_in_its_own_words() {
    for (script, expected) in [
        ("echo 'note: x'; echo 'error: unknown document Odd'; exit 1", "unknown document Odd"),
        (
            "echo \"thread 'main' (7) panicked at a.rs:1:2:\"; echo 'index out of bounds'; echo 'note: run with'; exit 101",
            "thread 'main' (7) panicked at a.rs:1:2: index out of bounds",
        ),
        ("printf 'error: bad:\\n\\t* unknown type\\n\\n'; exit 1", "bad: * unknown type"),
        ("kill -9 $$", "it ended by signal: killed: it said nothing"),
        ("exit 3", "it said nothing"),
        ("printf 'rendering: 1\\n---\\nthing: a\\n'", "the rendering breaks off"),
        ("printf 'error: \\033[2J%s' \"$(head -c 5000 /dev/zero | tr '\\0' x)\"; exit 1", "\u{fffd}[2Jxxx"),
    ] {
        let error = assessed(script, MOST).await.unwrap_err();
        assert!(error.starts_with(expected), "{script}: {error}");
        assert!(error.chars().count() <= REASON_MAX + 40, "{script}: {}", error.len());
    }
}

#[tokio::test]
async fn one_that_hangs_is_ended_and_refused() {
    let begun = std::time::Instant::now();
    let error = assessed("exec sleep 600", Duration::from_secs(1)).await.unwrap_err();
    assert_eq!(error, "it did not answer within 1 s");
    // It holds on to nothing: the next one is started under the same name.
    let silent = assessed("exec >/dev/null 2>&1; exec sleep 600", Duration::from_secs(1)).await.unwrap_err();
    assert_eq!(silent, "it did not answer within 1 s");
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn one_that_floods_is_ended_and_refused() {
    let port = port();
    let flood = candidate(&port, "exec yes flood", MOST);
    let error = flood.assess(HELP, &questions(), own).await.unwrap_err();
    assert_eq!(error, format!("it prints more than {OUTPUT_MAX} bytes, beginning with \"flood\""));
    let after = candidate(&port, "echo well", MOST).help().await;
    assert_eq!(after.as_deref(), Ok("well\n"), "its place is free again");
}

#[tokio::test]
async fn an_own_rendering_that_panics_keeps_nobody_from_an_upgrade() {
    let port = port();
    let asked = candidate(&port, &printing(&own()), MOST);
    let found = asked.assess(HELP, &questions(), || panic!("on purpose")).await.unwrap();
    assert_eq!(found.notes, ["mind the gap", OWN]);
    assert_eq!(found.differences, None);
}

#[test]
fn a_candidate_sees_its_questions_and_nothing_else_of_the_machine() {
    let folder = Path::new("/system/run/installer/candidate");
    let spec = contained("/snapshots", "lowerdir=1/fs", folder, vec!["check".to_owned()]);
    assert!(spec.sealed && !spec.privileged && spec.uid == CANDIDATE_UID);
    let root = spec.root.unwrap();
    assert_eq!(root.options, "ro:lowerdir=1/fs");
    let shown: Vec<String> = root.parts().into_iter().skip(2).collect();
    assert_eq!(shown, [format!("r{}", folder.display()), folder.display().to_string()]);
    let spec = own_program();
    assert!(spec.sealed && !spec.privileged && spec.uid == CANDIDATE_UID);
    assert_eq!(spec.view, ["r/system/run/installer/candidate"]);
    assert_eq!(spec.args, ["ichor", "installer", "--help"]);
}

fn own_program() -> ProcessSpec {
    super::own("/usr/bin/ichor", Path::new("/system/run/installer/candidate"), vec!["--help".to_owned()])
}

#[test]
fn questions_are_for_the_candidate_alone_and_do_not_stay() {
    use std::os::unix::fs::MetadataExt;

    assert!(is_root(), "needs root, like every node");
    let dir = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _inside = runtime.enter();
    let installer = Installer::new(std::sync::Arc::new(port()), dir.path(), Path::new("/nowhere"));
    let questions = installer.questions(b"version: v1alpha1\n", &Facts::default()).unwrap();
    let paths = [CONFIG, FACTS].map(|name| questions.path(name));
    for path in &paths {
        let found = std::fs::metadata(path).unwrap();
        assert_eq!((found.uid(), found.mode() & 0o777), (CANDIDATE_UID, 0o400), "{}", path.display());
    }
    drop(questions);
    assert!(paths.iter().all(|path| !path.exists()));
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|found| std::os::unix::fs::MetadataExt::uid(&found) == 0)
}
