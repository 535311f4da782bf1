//! init as a subreaper, with this test's own executable in the place of machined.
//!
//! The stand-in is the test [`stand_in`] run again by init: it says hello, looks at the list, and starts what the
//! scenario asks for. Everything it learns it writes to one line per generation, which the tests read.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use ichor_sys::supervisor::{ChildState, Client, Event, GuardNotice, RebootCommand, SpawnRequest};

const WAIT: Duration = Duration::from_secs(10);
const KILLS: usize = 200;

struct Init {
    process: Child,
    dir: tempfile::TempDir,
}

impl Init {
    fn start(scenario: &str) -> Self {
        Self::start_with(&["init", "--machined"], scenario)
    }

    fn start_with(args: &[&str], scenario: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let process = Command::new(env!("CARGO_BIN_EXE_ichor"))
            .args(args)
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "stand_in", "--nocapture", "--test-threads=1"])
            .env_clear()
            .env("STAND_IN_DIR", dir.path())
            .env("STAND_IN_SCENARIO", scenario)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self { process, dir }
    }

    fn pid(&self) -> i32 {
        i32::try_from(self.process.id()).unwrap()
    }

    /// What the stand-in of a generation wrote, waiting for it.
    fn generation(&self, number: usize) -> String {
        let path = self.dir.path().join(format!("generation-{number}"));
        let deadline = Instant::now() + WAIT;
        while Instant::now() < deadline {
            if let Ok(text) = fs::read_to_string(&path) {
                return text;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        panic!("generation {number} did not come");
    }

    fn children(&self) -> Vec<(i32, char, String)> {
        ichor_sys::process::list()
            .unwrap()
            .into_iter()
            .filter(|process| process.ppid == self.pid())
            .map(|process| (process.pid, process.state, process.command))
            .collect()
    }

    fn wait(&mut self) -> ExitStatus {
        let deadline = Instant::now() + WAIT;
        loop {
            if let Some(status) = self.process.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "init did not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Init {
    fn drop(&mut self) {
        let children = self.children();
        let _ = self.process.kill();
        let _ = self.process.wait();
        for (pid, ..) in children {
            let _ = ichor_sys::signal::send(pid, 9);
        }
    }
}

fn field<'a>(line: &'a str, key: &str) -> &'a str {
    line.split(' ')
        .find_map(|pair| pair.strip_prefix(key)?.strip_prefix('='))
        .unwrap_or_else(|| panic!("no {key} in {line:?}"))
}

#[test]
fn two_hundred_kills_lose_no_service_no_status_and_leave_no_zombie() {
    let init = Init::start("brief");
    let first = init.generation(1);
    let worker = field(&first, "worker").to_owned();
    let mut times = Vec::new();
    let mut lost = Vec::new();
    for generation in 1..=KILLS {
        let line = init.generation(generation);
        assert_eq!(field(&line, "worker"), worker, "the service goes on: {line}");
        if generation > 1 {
            // The child that the killed generation started has exited with its number since then.
            let expect = format!("{}", (generation - 1) % 200 + 1);
            if field(&line, "brief") != expect {
                lost.push(line.clone());
            }
        }
        // Lives as long as a real one needs to start, so that this measures kills and not crashes.
        std::thread::sleep(Duration::from_millis(100));
        let killed = Instant::now();
        ichor_sys::signal::send(field(&line, "pid").parse().unwrap(), 9).unwrap();
        init.generation(generation + 1);
        times.push(killed.elapsed());
    }
    assert!(lost.is_empty(), "lost exit statuses: {lost:?}");
    // A busy machine may hold one up now and then.
    times.sort_unstable();
    let usual = times[times.len() * 9 / 10];
    assert!(usual < Duration::from_secs(1), "nine of ten within {usual:?}");
    // Orphans of killed stand-ins are gone, too.
    let start = Instant::now();
    loop {
        let zombies: Vec<_> = init.children().into_iter().filter(|(_, state, _)| *state == 'Z').collect();
        if zombies.is_empty() {
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(30), "{zombies:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
    let last = init.generation(KILLS + 1);
    assert_eq!(field(&last, "generation"), (KILLS + 1).to_string());
    let worker = ichor_sys::process::read(worker.parse().unwrap()).unwrap();
    assert_eq!(worker.ppid, init.pid());
}

#[test]
fn output_written_while_machined_is_dead_is_still_there() {
    let init = Init::start("writer");
    let first = init.generation(1);
    ichor_sys::signal::send(field(&first, "pid").parse().unwrap(), 9).unwrap();
    let second = init.generation(2);
    // The writer wrote after the first generation was told of it and before the second looked.
    assert_eq!(field(&second, "output"), "one,two,");
}

#[test]
fn a_reboot_ends_all_and_tells_how() {
    let mut init = Init::start("restart");
    let line = init.generation(1);
    let worker: i32 = field(&line, "worker").parse().unwrap();
    assert_eq!(init.wait().code(), Some(129));
    assert!(ichor_sys::process::read(worker).is_err(), "worker lives");
    let mut init = Init::start("poweroff");
    init.generation(1);
    assert_eq!(init.wait().code(), Some(130));
}

#[test]
fn a_machined_that_hangs_on_trial_ends_in_a_restart() {
    // Says hello, and nothing after it.
    let mut init = Init::start_with(&["init", "--guarded", "--machined"], "hang");
    init.generation(1);
    assert_eq!(init.wait().code(), Some(129));
}

#[test]
fn a_machined_that_makes_progress_and_decides_is_left_alone() {
    let mut init = Init::start_with(&["init", "--guarded", "--machined"], "decide");
    init.generation(1);
    let decided = init.dir.path().join("decided");
    let deadline = Instant::now() + WAIT;
    while !decided.exists() {
        assert!(Instant::now() < deadline, "not decided");
        std::thread::sleep(Duration::from_millis(5));
    }
    // Twice the silence that it would end after.
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(init.process.try_wait().unwrap(), None);
}

#[test]
fn a_trial_that_nobody_decides_ends_in_a_restart() {
    let mut init = Init::start_with(&["init", "--guarded", "--machined"], "progress");
    init.generation(1);
    assert_eq!(init.wait().code(), Some(129));
}

#[test]
fn a_signal_to_init_reaches_machined_and_a_second_one_forces() {
    let mut init = Init::start("deaf");
    init.generation(1);
    ichor_sys::signal::send(init.pid(), 15).unwrap();
    let path = init.dir.path().join("power");
    let deadline = Instant::now() + WAIT;
    while !path.exists() {
        assert!(Instant::now() < deadline, "machined was not told");
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(1100));
    ichor_sys::signal::send(init.pid(), 15).unwrap();
    assert_eq!(init.wait().code(), Some(130));
}

#[test]
fn init_stays_small() {
    let init = Init::start("brief");
    init.generation(1);
    let footprint = ichor_sys::memory::footprint(init.pid()).unwrap();
    // A debug build has several times the relocated constants; the image's own budget is measured live.
    let limit = if cfg!(debug_assertions) { 6 } else { 2 } * 1024 * 1024;
    assert!(footprint.private <= limit, "{footprint:?}");
}

/// Not a test when cargo runs it: init does, in machined's place.
#[test]
fn stand_in() {
    let (Ok(dir), Ok(scenario)) = (std::env::var("STAND_IN_DIR"), std::env::var("STAND_IN_SCENARIO")) else {
        return;
    };
    let client = Client::inherited().unwrap();
    let mut me = StandIn { client, dir: dir.into(), exited: Vec::new() };
    me.run(&scenario);
}

struct StandIn {
    client: Client,
    dir: std::path::PathBuf,
    exited: Vec<String>,
}

impl StandIn {
    fn next(&mut self) -> Event {
        let event = self.client.recv_timeout(WAIT).unwrap().unwrap();
        if let Event::Exited { name, .. } = &event {
            self.exited.push(name.clone());
        }
        event
    }

    fn spawn(&mut self, name: &str, script: &str) -> i32 {
        let request = SpawnRequest {
            args: ["sh", "-c", script].map(str::to_owned).to_vec(),
            env: vec!["PATH=/usr/bin:/bin".to_owned()],
            ..SpawnRequest::new(name, "/bin/sh")
        };
        self.client.spawn(&request, &[]).unwrap();
        loop {
            match self.next() {
                Event::Spawned { child, .. } => return child.pid,
                Event::Failed { failure, .. } => panic!("{name}: {failure}"),
                _ => {}
            }
        }
    }

    fn run(&mut self, scenario: &str) {
        self.client.hello().unwrap();
        let generation = loop {
            if let Event::Welcome { generation, .. } = self.next() {
                break generation;
            }
        };
        // Gives the brief child of the generation before time to end.
        std::thread::sleep(Duration::from_millis(15));
        self.client.list().unwrap();
        let (mut worker, mut brief, mut output) = (0, 0, String::new());
        loop {
            match self.next() {
                Event::Child { child, .. } => {
                    if child.name == "worker" {
                        worker = child.pid;
                    } else if let ChildState::Exited(status) = child.state {
                        brief = status.into_raw() >> 8;
                        let _ = fs::File::from(child.output.unwrap()).read_to_string(&mut output);
                        self.client.release(child.id).unwrap();
                    }
                }
                Event::Done { .. } => break,
                _ => {}
            }
        }
        if worker == 0 {
            worker = self.spawn("worker", "while :; do sleep 1; done");
        }
        match scenario {
            "brief" => {
                let code = generation % 200 + 1;
                self.spawn("brief", &format!("(sleep 0.05 &) ; exit {code}"));
            }
            "writer" if generation == 1 => {
                self.spawn("writer", "echo one; sleep 0.005; echo two");
            }
            _ => {}
        }
        let line = format!(
            "generation={generation} pid={} worker={worker} brief={brief} output={}",
            std::process::id(),
            output.replace('\n', ",")
        );
        write_whole(&self.dir.join(format!("generation-{generation}")), &line);
        match scenario {
            "restart" => drop(self.client.reboot(RebootCommand::Restart).unwrap()),
            "poweroff" => drop(self.client.reboot(RebootCommand::PowerOff).unwrap()),
            "hang" => std::thread::sleep(WAIT),
            "decide" => {
                for _ in 0..20 {
                    self.client.guard(GuardNotice::Progress).unwrap();
                    std::thread::sleep(Duration::from_millis(100));
                }
                self.client.guard(GuardNotice::Decided).unwrap();
                write_whole(&self.dir.join("decided"), "");
            }
            "progress" => {
                while self.client.guard(GuardNotice::Progress).is_ok() {
                    std::thread::sleep(Duration::from_millis(100));
                    while let Ok(Some(_)) = self.client.try_recv() {}
                }
            }
            _ => {}
        }
        loop {
            match self.client.recv_timeout(WAIT) {
                Ok(Some(Event::Power(_))) => write_whole(&self.dir.join("power"), "told"),
                Ok(_) => {}
                Err(_) => return,
            }
        }
    }
}

/// Readers see all of it or nothing.
fn write_whole(path: &Path, text: &str) {
    let part = path.with_extension("part");
    let mut file = fs::File::create(&part).unwrap();
    file.write_all(text.as_bytes()).unwrap();
    fs::rename(part, path).unwrap();
}
