//! `conformance`: the tests of Kubernetes itself, and those of `health --run-e2e`.

use std::io::Write as _;
use std::path::PathBuf;

use ichor_ops::conformance::{self, Event, IMAGE, Plan, Run};
use ichor_ops::fleet::Members;

use crate::connection::Connection;
use crate::failure::{Context as _, Failure};
use crate::parse::Call;
use crate::session::block_on;
use crate::table::{Command, Complete, Flag, Group};
use crate::{files, fleet, say};

/// More at once than any machine bears.
const PARALLEL_MAX: u32 = 64;

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
               fetches the results for a certification into v1.35/talos. The machines must reach the image; a local\n\
               cluster that was made with the images of `make conformance` has it in its registry.",
        examples: &[
            "conformance kubernetes",
            "conformance kubernetes --mode certified",
            "conformance kubernetes --focus 'sig-network.*Conformance' --parallel 4 --results build/network",
        ],
        flags: &[
            Flag::text("focus", "run only tests whose names match this regular expression (mode fast)"),
            Flag::text("image", "image with the tests").default(IMAGE),
            Flag::text("k8s-endpoint", "address of the Kubernetes API"),
            Flag::text("mode", "fast or certified")
                .default("fast")
                .complete(Complete::Words(&["fast", "certified"])),
            Flag::int("parallel", "16", "tests at the same time (mode fast)"),
            Flag::text("results", "write the log and the JUnit file of each part into this directory")
                .complete(Complete::File),
            Flag::switch("verbose", "print each test when it ends, with what it did"),
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
    /// Where the files of the tests go, if anybody wants them.
    results: Option<Results>,
}

/// A directory for what the tests wrote.
enum Results {
    /// As a certification asks for it.
    Certification(PathBuf),
    /// One below it for each plan.
    Parts(PathBuf),
}

impl ConformanceFlags {
    fn of(call: &Call) -> Result<Self, Failure> {
        let image = call.text("image");
        let mut plans = match (call.text("mode"), call.some_text("focus")) {
            ("fast", None) => Plan::fast(image),
            ("fast", Some(focus)) => Plan::focused(image, focus),
            ("certified", None) => Plan::certified(image),
            ("certified", Some(_)) => {
                return Err(Failure::new("a certification has all tests")
                    .hint("leave out --focus, or use --mode fast"));
            }
            (mode, _) => {
                return Err(Failure::new(format!("unsupported conformance mode {mode}"))
                    .hint("use fast or certified"));
            }
        };
        let parallel =
            u32::try_from(call.int("parallel")).ok().filter(|count| (1..=PARALLEL_MAX).contains(count));
        let parallel = parallel.ok_or_else(|| {
            Failure::new(format!(
                "--parallel {} is not a number from 1 to {PARALLEL_MAX}",
                call.text("parallel")
            ))
        })?;
        let results = match (call.some_text("results"), call.text("mode")) {
            (Some(place), _) => Some(Results::Parts(place.into())),
            (None, "certified") => Some(Results::Certification("v1.35/talos".into())),
            (None, _) => None,
        };
        for plan in &mut plans {
            plan.results = results.is_some();
            plan.verbose = call.on("verbose");
            plan.parallel = plan.parallel.min(parallel);
        }
        let endpoint = call.text("k8s-endpoint").to_owned();
        Ok(Self { connection: call.connection(), endpoint, plans, results })
    }
}

fn run(call: &Call) -> Result<(), Failure> {
    let flags = ConformanceFlags::of(call)?;
    block_on(async {
        // Tests that failed do not keep the next part from running; a cluster that cannot run them does.
        let mut ended = Ok(());
        for plan in &flags.plans {
            let run = one(&flags.connection, &Members::default(), &flags.endpoint, plan).await?;
            if let Some(results) = &flags.results {
                results.write(plan, &run)?;
            }
            ended = ended.and(run.passed());
        }
        ended.map_err(Failure::from)
    })
}

impl Results {
    fn write(&self, plan: &Plan, run: &Run) -> Result<(), Failure> {
        let place = match self {
            Self::Certification(place) => place.clone(),
            Self::Parts(place) => place.join(plan.name),
        };
        std::fs::create_dir_all(&place).context(format!("make {}", place.display()))?;
        for file in &run.files {
            files::write(&place.join(file.name), &file.content, 0o644)?;
        }
        match self {
            Self::Certification(_) => files::write(&place.join("PRODUCT.yaml"), product().as_bytes(), 0o644),
            Self::Parts(_) => Ok(()),
        }
    }
}

/// The tests that `health --run-e2e` runs.
pub async fn run_e2e(connection: &Connection, members: &Members, endpoint: &str) -> Result<(), Failure> {
    Ok(one(connection, members, endpoint, &Plan::basic()).await?.passed()?)
}

async fn one(
    connection: &Connection,
    members: &Members,
    endpoint: &str,
    plan: &Plan,
) -> Result<Run, Failure> {
    let route = fleet::route(connection, endpoint)?;
    let session = fleet::connect(connection).await?;
    let fleet = fleet::open(&session, members, &route).await?;
    Ok(conformance::run(&session.endpoint(), &fleet, plan, &|event: Event| tell(&event)).await?)
}

fn tell(event: &Event) {
    match event {
        Event::Started { version, focus } => {
            say(&format!("running conformance tests version {version}\nrunning tests: {focus}"));
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
