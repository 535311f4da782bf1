//! `conformance`: the tests of Kubernetes itself, and those of `health --run-e2e`.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use ichor_ops::conformance::{self, Event, IMAGE, Plan, VERSION};
use ichor_ops::fleet::Members;

use crate::connection::Connection;
use crate::failure::{Context as _, Failure};
use crate::parse::Call;
use crate::session::block_on;
use crate::table::{Command, Complete, Flag, Group};
use crate::{files, fleet, say};

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

/// The command line, resolved.
struct ConformanceFlags {
    connection: Connection,
    endpoint: String,
    plans: Vec<Plan>,
    /// Where the files of a certification go.
    results: PathBuf,
}

impl ConformanceFlags {
    fn of(call: &Call) -> Result<Self, Failure> {
        let image = call.text("image");
        let plans = match call.text("mode") {
            "fast" => Plan::fast(image),
            "certified" => Plan::certified(image),
            mode => {
                return Err(Failure::new(format!("unsupported conformance mode {mode}"))
                    .hint("use fast or certified"));
            }
        };
        let endpoint = call.text("k8s-endpoint").to_owned();
        Ok(Self { connection: call.connection(), endpoint, plans, results: "v1.35/talos".into() })
    }
}

fn run(call: &Call) -> Result<(), Failure> {
    let flags = ConformanceFlags::of(call)?;
    block_on(async {
        for plan in &flags.plans {
            one(&flags.connection, &Members::default(), &flags.endpoint, plan, &flags.results).await?;
        }
        Ok(())
    })
}

/// The tests that `health --run-e2e` runs.
pub async fn run_e2e(connection: &Connection, members: &Members, endpoint: &str) -> Result<(), Failure> {
    one(connection, members, endpoint, &Plan::basic(), Path::new("")).await
}

async fn one(
    connection: &Connection,
    members: &Members,
    endpoint: &str,
    plan: &Plan,
    results: &Path,
) -> Result<(), Failure> {
    let route = fleet::route(connection, endpoint)?;
    let session = fleet::connect(connection).await?;
    let fleet = fleet::open(&session, members, &route).await?;
    let written = conformance::run(&session.endpoint(), &fleet, plan, &|event: Event| tell(&event)).await?;
    if !plan.results {
        return Ok(());
    }
    std::fs::create_dir_all(results).context(format!("make {}", results.display()))?;
    for file in written {
        files::write(&results.join(file.name), &file.content, 0o644)?;
    }
    files::write(&results.join("PRODUCT.yaml"), product().as_bytes(), 0o644)
}

fn tell(event: &Event) {
    match event {
        Event::Started { focus } => {
            say(&format!("running conformance tests version {VERSION}\nrunning tests: {focus}"));
        }
        Event::Output(bytes) => {
            let mut out = std::io::stdout();
            // A reader that went away does not end the tests.
            let _ = out.write_all(bytes).and_then(|()| out.flush());
        }
        Event::Finished { after } => say(&format!("tests finished after {}s.", after.as_secs())),
        Event::Passed => say("tests completed successfully"),
    }
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
