//! `conformance`: the tests of Kubernetes itself, and those of `health --run-e2e`.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ichor_wire::machine::ReadRequest;

use crate::failure::{Context as _, Failure};
use crate::kubernetes::conformance::{self, Outcome, Plan};
use crate::parse::Call;
use crate::session::{Session, block_on};
use crate::table::{Command, Complete, Flag, Group};
use crate::{explain, files, fleet, print};

/// The version that is tested.
const VERSION: &str = "1.35.0";
/// The image with the tests.
const IMAGE: &str = "registry.k8s.io/conformance:v1.35.0";
const MINUTE: Duration = Duration::from_secs(60);
/// What `health --run-e2e` runs: that pods and services work.
const BASIC: [&str; 3] = [
    "Pods should be submitted and removed",
    "Services should serve a basic endpoint from pods",
    "Services should be able to change the type from ExternalName to ClusterIP",
];
/// What the tests leave behind.
const RESULTS: [&str; 2] = ["e2e.log", "junit_01.xml"];

/// `conformance`.
pub static CONFORMANCE: Command = Command {
    name: "conformance",
    group: Group::Machines,
    about: "Run conformance tests",
    subcommands: &[&Command {
        name: "kubernetes",
        aliases: &["k8s"],
        about: "Run the conformance tests of Kubernetes",
        long: "Runs the tests of Kubernetes v1.35.0 in the cluster, in the namespace conformance, and shows what they\n\
               say. fast runs most of them side by side and then the others; certified runs all one by one and\n\
               fetches the results for a certification into v1.35/talos. The machines must reach the image.",
        examples: &["conformance kubernetes", "conformance kubernetes --mode certified"],
        flags: &[
            Flag::text("image", "image with the tests").default(IMAGE),
            Flag::text("k8s-endpoint", "address of the Kubernetes API"),
            Flag::text("mode", "fast or certified")
                .default("fast")
                .complete(Complete::Words(&["fast", "certified"])),
        ],
        run: Some(run),
        ..Command::EMPTY
    }],
    ..Command::EMPTY
};

fn plan(image: &str, focus: &str, skip: &str, parallel: u32, minutes: u32) -> Plan {
    Plan {
        image: image.to_owned(),
        focus: focus.to_owned(),
        skip: skip.to_owned(),
        parallel,
        limit: MINUTE * minutes,
        clean: MINUTE * 5,
        pause: Duration::from_secs(1),
    }
}

fn run(call: &Call) -> Result<(), Failure> {
    let image = call.text("image");
    let (plans, results) = match call.text("mode") {
        "fast" => (
            vec![
                plan(image, r"\[Conformance\]", r"\[Serial\]", 16, 60),
                plan(image, r"\[Serial\].*\[Conformance\]", "", 1, 60),
            ],
            None,
        ),
        "certified" => {
            (vec![plan(image, r"\[Conformance\]", "", 1, 120)], Some(PathBuf::from("v1.35/talos")))
        }
        mode => {
            return Err(
                Failure::new(format!("unsupported conformance mode {mode}")).hint("use fast or certified")
            );
        }
    };
    block_on(async {
        for plan in plans {
            one(call, &plan, results.as_deref()).await?;
        }
        Ok(())
    })
}

/// The tests that `health --run-e2e` runs.
pub async fn run_e2e(call: &Call) -> Result<(), Failure> {
    one(call, &Plan { clean: MINUTE * 3, ..plan(IMAGE, &BASIC.join("|"), "", 2, 10) }, None).await
}

async fn one(call: &Call, plan: &Plan, results: Option<&Path>) -> Result<(), Failure> {
    let (session, hosts) = fleet::connect(call).await?;
    let fleet = fleet::open(call, &session, &hosts, call.text("k8s-endpoint")).await?;
    let client = fleet.kubernetes.client().await.map_err(Failure::new)?;
    conformance::clean(&client, plan).await.map_err(Failure::new)?;
    print(&format!("running conformance tests version {VERSION}\nrunning tests: {}\n", plan.focus))?;
    let start = Instant::now();
    let mut out = std::io::stdout();
    let mut tell = |bytes: &[u8]| {
        // A reader that went away does not end the tests.
        let _ = out.write_all(bytes).and_then(|()| out.flush());
    };
    let ended = conformance::run(&client, plan, &mut tell).await;
    let fetched = match (&ended, results) {
        (Ok(outcome), Some(to)) => fetch(&session, outcome, to).await,
        _ => Ok(()),
    };
    let cleaned = conformance::clean(&client, plan).await;
    let outcome = ended.map_err(|text| Failure::new(text).whole())?;
    print(&format!("tests finished after {}s.\n", start.elapsed().as_secs()))?;
    if outcome.code != 0 {
        return Err(Failure::new(format!("tests failed: code {}", outcome.code)).whole());
    }
    fetched?;
    print("tests completed successfully\n")?;
    cleaned.map_err(Failure::new)
}

/// Brings what the tests wrote from the machine they ran on.
async fn fetch(session: &Session, outcome: &Outcome, to: &Path) -> Result<(), Failure> {
    std::fs::create_dir_all(to).context(format!("make {}", to.display()))?;
    for name in RESULTS {
        let doing = format!("read {name} of the tests");
        let path = format!("{}/{name}", outcome.results);
        let stream = session.node(&outcome.machine).machine().read(ReadRequest { path }).await;
        let mut stream = stream.map_err(|status| explain::status(&doing, &status))?.into_inner();
        let mut content = Vec::new();
        while let Some(message) = stream.message().await.map_err(|status| explain::status(&doing, &status))? {
            let (_, data) = ichor_client::sort(message, &outcome.machine)
                .map_err(|error| explain::nodes(&doing, std::slice::from_ref(&error)))?;
            content.extend_from_slice(&data.bytes);
        }
        files::write(&to.join(name), &content, 0o644)?;
    }
    files::write(&to.join("PRODUCT.yaml"), product().as_bytes(), 0o644)
}

/// Who was tested.
fn product() -> String {
    let tag = crate::identity::TAG;
    format!(
        "vendor: Ichor\nname: Ichor\nversion: {tag}\nwebsite_url: \"\"\nrepo_url: \"\"\ndocumentation_url: \"\"\n\
         product_logo_url: \"\"\ntype: installer\ndescription: An operating system for Kubernetes\n\
         contact_email_address: \"\"\n"
    )
}
