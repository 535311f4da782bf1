//! All that the dashboard knows: what machines told, what is shown, and what keys change. Pure.

use std::collections::{BTreeMap, VecDeque};

use ichor_wire::machine::{MemInfo, ProcessInfo};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use serde_json::Value;

use crate::code::{self, CodeForm};
use crate::form::{Form, Pressed};
use crate::history::{Counters, History};

/// Log lines kept for one machine.
pub const LINES_MAX: usize = 1000;

/// The kinds that are watched: namespace and type.
pub const WATCHED: &[(&str, &str)] = &[
    ("runtime", "MachineStatuses.runtime.talos.dev"),
    ("runtime", "Services.v1alpha1.talos.dev"),
    ("runtime", "TimeStatuses.v1alpha1.talos.dev"),
    ("runtime", "Diagnostics.runtime.talos.dev"),
    ("runtime", "SecurityStates.talos.dev"),
    ("config", "MachineTypes.config.talos.dev"),
    ("hardware", "SystemInformations.hardware.talos.dev"),
    ("cluster", "Infos.cluster.talos.dev"),
    ("cluster", "Members.cluster.talos.dev"),
    ("k8s", "KubeletSpecs.kubernetes.talos.dev"),
    ("k8s", "StaticPodStatuses.kubernetes.talos.dev"),
    ("network", "HostnameStatuses.net.talos.dev"),
    ("network", "NodeAddresses.net.talos.dev"),
    ("network", "RouteStatuses.net.talos.dev"),
    ("network", "ResolverStatuses.net.talos.dev"),
    ("network", "TimeServerStatuses.net.talos.dev"),
    ("network", "NetworkStatuses.net.talos.dev"),
    ("network", "LinkStatuses.net.talos.dev"),
    ("network", "AddressStatuses.net.talos.dev"),
    ("network", "OperatorSpecs.net.talos.dev"),
];

/// A watch: namespace, type and, where not all of them are wanted, an id.
pub type Watched = (&'static str, &'static str, Option<&'static str>);

/// What the page of the configuration's address needs besides: of META that one key, as the others hold secrets.
const WATCHED_FOR_CODE: Watched = ("runtime", "MetaKeys.runtime.talos.dev", Some(code::META_ID));

/// A page of the dashboard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Page {
    /// The machine at a glance.
    #[default]
    Summary,
    /// Graphs and processes.
    Monitor,
    /// Links, addresses, routes.
    Network,
    /// The log of the kernel or of a service.
    Logs,
    /// The address of the configuration.
    ConfigUrl,
}

/// A page with its name.
type Tab = (Page, &'static str);

/// Pages of the client, in the order of their keys.
const CLIENT_PAGES: &[Tab] = &[
    (Page::Summary, "Summary"),
    (Page::Monitor, "Monitor"),
    (Page::Network, "Network Config"),
    (Page::Logs, "Logs"),
];

/// Pages of a console; without the last one where the address of the configuration wants no code. Logs of services are
/// not for everybody who stands before a machine.
const CONSOLE_PAGES: &[Tab] = &[
    (Page::Summary, "Summary"),
    (Page::Monitor, "Monitor"),
    (Page::Network, "Network Config"),
    (Page::ConfigUrl, "Config URL"),
];

/// Something that happened at a machine.
#[derive(Debug, Clone)]
pub struct Update {
    /// The machine's place in the model.
    pub node: usize,
    /// What happened.
    pub news: News,
}

/// What happened.
#[derive(Debug, Clone)]
pub enum News {
    /// A resource of a type, by its id, was made or changed; without contents it is gone.
    Resource(&'static str, String, Option<Value>),
    /// The watch of a type begins anew: what it knew is forgotten.
    Forget(&'static str),
    /// What the machine runs.
    Version(String),
    /// A log's name and a line of it; the kernel's has no name.
    Line(String, String),
    /// Counters of the moment.
    Counters(Box<Counters>),
    /// Processes at a time in seconds.
    Processes(f64, Vec<ProcessInfo>),
    /// The machine answers, or why it does not.
    Contact(Option<String>),
}

/// What is known of one machine.
#[derive(Debug, Clone, Default)]
pub struct Node {
    /// As it was named.
    pub name: String,
    /// Why it does not answer.
    pub trouble: Option<String>,
    /// What it runs.
    pub version: String,
    /// Counters over time.
    pub history: History,
    /// Processes, the busiest first.
    pub processes: Vec<ProcessInfo>,
    /// Seconds of CPU each process had used at the last look, and its share since.
    usage: BTreeMap<i32, (f64, f64)>,
    processes_at: f64,
    resources: BTreeMap<&'static str, BTreeMap<String, Value>>,
    logs: BTreeMap<String, VecDeque<String>>,
}

impl Node {
    /// One resource, by the plural of its type.
    pub fn get(&self, plural: &str, id: &str) -> &Value {
        self.list(plural).find(|(known, _)| *known == id).map_or(&Value::Null, |(_, spec)| spec)
    }

    /// All resources of a type, by the plural of its name.
    pub fn list<'a>(&'a self, plural: &str) -> impl Iterator<Item = (&'a str, &'a Value)> + use<'a> {
        let kind = self.resources.iter().find(|(kind, _)| kind.split('.').next() == Some(plural));
        kind.into_iter().flat_map(|(_, specs)| specs.iter()).map(|(id, spec)| (id.as_str(), spec))
    }

    /// The lines of a log.
    pub fn log(&self, name: &str) -> Option<&VecDeque<String>> {
        self.logs.get(name)
    }

    /// The memory of the machine.
    pub fn memory(&self) -> &MemInfo {
        &self.history.memory
    }

    /// The share of one core a process used since the last look.
    pub fn cpu_of(&self, pid: i32) -> f64 {
        self.usage.get(&pid).map_or(0.0, |(_, share)| *share)
    }

    fn take_processes(&mut self, mut processes: Vec<ProcessInfo>, at: f64) {
        let seconds = at - std::mem::replace(&mut self.processes_at, at);
        let mut usage = BTreeMap::new();
        for process in &processes {
            let before = self.usage.get(&process.pid).map(|(time, _)| *time);
            let share =
                before.map_or(0.0, |before| ((process.cpu_time - before) / seconds.max(0.1)).max(0.0));
            usage.insert(process.pid, (process.cpu_time, share));
        }
        self.usage = usage;
        let key = |process: &ProcessInfo| {
            let share = self.usage.get(&process.pid).map_or(0.0, |(_, share)| *share);
            (
                std::cmp::Reverse((share * 1000.0) as u64),
                std::cmp::Reverse(process.resident_memory),
                process.pid,
            )
        };
        processes.sort_by_key(key);
        self.processes = processes;
    }
}

/// The whole state of the dashboard.
#[derive(Debug, Clone, Default)]
pub struct Model {
    /// The machines.
    pub nodes: Vec<Node>,
    /// The one that is shown.
    pub current: usize,
    /// The page that is shown.
    pub page: Page,
    /// Lines scrolled back (logs) or down (tables).
    pub scroll: usize,
    /// Nothing moves.
    pub paused: bool,
    /// The log that the logs page shows: none is the kernel's.
    pub log: String,
    /// The form of the network page, while it is open.
    pub form: Option<Form>,
    /// It is shown on the machine's own console: nobody leaves it, and the font has few signs.
    pub console: bool,
    /// The address of the configuration, where it wants a code.
    pub template: Option<String>,
    /// The field of that code, while it is open.
    pub code: Option<CodeForm>,
}

/// What a key asks of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reaction {
    /// Nothing.
    Nothing,
    /// Draw again.
    Draw,
    /// Another machine, page or log is shown: ask for what it needs.
    Look,
    /// Keep what the form holds.
    Save,
    /// The end.
    Quit,
}

impl Model {
    /// A dashboard of these machines.
    pub fn new(nodes: &[String]) -> Self {
        let node = |name: &String| Node { name: name.clone(), ..Node::default() };
        Self { nodes: nodes.iter().map(node).collect(), ..Self::default() }
    }

    /// A dashboard of this very machine, on its console. `template` is the address of its configuration.
    pub fn console(name: &str, template: Option<&str>) -> Self {
        let template = template.filter(|address| code::is_wanted(address)).map(str::to_owned);
        Self { console: true, template, ..Self::new(&[name.to_owned()]) }
    }

    /// The pages, in the order of their keys.
    pub fn pages(&self) -> &'static [Tab] {
        match (self.console, &self.template) {
            (false, _) => CLIENT_PAGES,
            (true, Some(_)) => CONSOLE_PAGES,
            (true, None) => &CONSOLE_PAGES[..CONSOLE_PAGES.len() - 1],
        }
    }

    /// What is to be watched.
    pub fn watched(&self) -> impl Iterator<Item = Watched> + Clone + use<> {
        let more = self.template.is_some().then_some(WATCHED_FOR_CODE);
        WATCHED.iter().map(|(namespace, kind)| (*namespace, *kind, None)).chain(more)
    }

    /// The machine that is shown.
    pub fn node(&self) -> &Node {
        &self.nodes[self.current.min(self.nodes.len() - 1)]
    }

    /// Forgets the lines of a log that is about to be read anew.
    pub fn forget_log(&mut self, node: usize, log: &str) {
        if let Some(node) = self.nodes.get_mut(node) {
            node.logs.remove(log);
        }
    }

    /// Takes in what happened. True when it may show.
    pub fn apply(&mut self, update: Update) -> bool {
        let Update { node: index, news } = update;
        let Some(node) = self.nodes.get_mut(index) else { return false };
        match news {
            News::Resource(kind, id, Some(spec)) => {
                node.resources.entry(kind).or_default().insert(id, spec);
            }
            News::Resource(kind, id, None) => {
                node.resources.entry(kind).or_default().remove(&id);
            }
            News::Forget(kind) => {
                node.resources.remove(kind);
            }
            News::Version(tag) => node.version = tag,
            News::Line(log, line) => {
                let lines = node.logs.entry(log).or_default();
                if lines.len() == LINES_MAX {
                    lines.pop_front();
                }
                lines.push_back(line);
            }
            News::Counters(counters) => node.history.push(*counters),
            News::Processes(at, processes) => node.take_processes(processes, at),
            News::Contact(trouble) => {
                let changed = node.trouble != trouble;
                node.trouble = trouble;
                return changed;
            }
        }
        // The names of all machines are always in sight, their contents are not.
        index == self.current && !self.paused
    }

    /// What a key does.
    pub fn press(&mut self, key: KeyEvent) -> Reaction {
        let count = self.nodes.len();
        if let Some(form) = &mut self.form {
            match form.press(key) {
                Pressed::Stay => {}
                Pressed::Save => return Reaction::Save,
                Pressed::Leave => self.form = None,
            }
            return Reaction::Draw;
        }
        if let Some(form) = &mut self.code {
            match form.press(key) {
                Pressed::Stay => {}
                Pressed::Save => return Reaction::Save,
                Pressed::Leave => self.code = None,
            }
            return Reaction::Draw;
        }
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match (key.code, control) {
            (KeyCode::Char('e'), false) if self.page == Page::Network && self.may_edit() => {
                let link = self.node().list("LinkStatuses").find(|(_, link)| link["type"] == "ether");
                self.form = Some(Form::new(link.map_or("eth0", |(name, _)| name)));
            }
            (KeyCode::Char('e'), false) if self.page == Page::ConfigUrl => {
                let kept = self.node().get("MetaKeys", code::META_ID)["value"].as_str().unwrap_or_default();
                self.code = Some(CodeForm::new(kept));
            }
            // Whoever left a console could not come back.
            (KeyCode::Char('q'), false) | (KeyCode::Char('c'), true) if self.console => {
                return Reaction::Nothing;
            }
            (KeyCode::Char('q'), false) | (KeyCode::Char('c'), true) => return Reaction::Quit,
            (KeyCode::Left, _) | (KeyCode::Char('h'), false) => {
                return self.show(self.page, (self.current + count - 1) % count);
            }
            (KeyCode::Right, _) | (KeyCode::Char('l'), false) => {
                return self.show(self.page, (self.current + 1) % count);
            }
            (KeyCode::F(number), _) => return self.turn(usize::from(number)),
            (KeyCode::Char(digit @ '1'..='4'), false) => return self.turn(digit as usize - '0' as usize),
            (KeyCode::Tab, _) if self.page == Page::Logs => return self.next_log(),
            (KeyCode::Char('z'), true) => self.paused = !self.paused,
            (KeyCode::Down, _) | (KeyCode::Char('j'), false) => self.scroll_by(1),
            (KeyCode::Up, _) | (KeyCode::Char('k'), false) => self.scroll_by(-1),
            (KeyCode::Char('d'), true) => self.scroll_by(10),
            (KeyCode::Char('u'), true) => self.scroll_by(-10),
            (KeyCode::Char('f'), true) | (KeyCode::PageDown, _) => self.scroll_by(20),
            (KeyCode::Char('b'), true) | (KeyCode::PageUp, _) => self.scroll_by(-20),
            (KeyCode::Home, _) | (KeyCode::Char('g'), false) => self.scroll_by(-(LINES_MAX as isize)),
            (KeyCode::End, _) | (KeyCode::Char('G'), false) => self.scroll_by(LINES_MAX as isize),
            _ => return Reaction::Nothing,
        }
        Reaction::Draw
    }

    /// Only a machine that waits for its configuration takes its network from META.
    pub fn may_edit(&self) -> bool {
        self.node().get("MachineStatuses", "machine")["stage"] == "maintenance"
    }

    fn turn(&mut self, number: usize) -> Reaction {
        match self.pages().get(number.wrapping_sub(1)) {
            Some((page, _)) => self.show(*page, self.current),
            None => Reaction::Nothing,
        }
    }

    fn show(&mut self, page: Page, node: usize) -> Reaction {
        if (self.page, self.current) == (page, node) {
            return Reaction::Nothing;
        }
        (self.page, self.current, self.scroll) = (page, node, 0);
        Reaction::Look
    }

    /// The kernel's log, then each service's, then the kernel's again.
    fn next_log(&mut self) -> Reaction {
        let services: Vec<String> = self.node().list("Services").map(|(id, _)| id.to_owned()).collect();
        let next = match services.iter().position(|id| *id == self.log) {
            None if self.log.is_empty() => services.first(),
            None => None,
            Some(at) => services.get(at + 1),
        };
        self.log = next.cloned().unwrap_or_default();
        self.scroll = 0;
        Reaction::Look
    }

    /// Logs scroll back from their end, tables down from their beginning.
    fn scroll_by(&mut self, lines: isize) {
        let back = matches!(self.page, Page::Logs | Page::Summary);
        let lines = if back { -lines } else { lines };
        self.scroll = self.scroll.saturating_add_signed(lines).min(LINES_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn control(character: char) -> KeyEvent {
        KeyEvent::new(KeyCode::Char(character), KeyModifiers::CONTROL)
    }

    fn model() -> Model {
        Model::new(&["a".to_owned(), "b".to_owned()])
    }

    #[test]
    fn keys_turn_pages_and_change_machines() {
        let mut model = model();
        assert_eq!(model.press(KeyCode::F(2).into()), Reaction::Look);
        assert_eq!(model.page, Page::Monitor);
        assert_eq!(model.press(KeyCode::Char('2').into()), Reaction::Nothing);
        assert_eq!(model.press(KeyCode::F(9).into()), Reaction::Nothing);
        assert_eq!((model.press(KeyCode::Right.into()), model.current), (Reaction::Look, 1));
        assert_eq!((model.press(KeyCode::Char('l').into()), model.current), (Reaction::Look, 0));
        assert_eq!((model.press(KeyCode::Char('h').into()), model.current), (Reaction::Look, 1));
        assert_eq!(model.press(control('c')), Reaction::Quit);
    }

    #[test]
    fn a_console_has_its_own_pages_and_is_never_left() {
        let mut model = Model::console("machine", Some("https://a/?uuid=${uuid}"));
        assert_eq!(model.press(KeyCode::F(4).into()), Reaction::Nothing, "the address wants no code");
        assert_eq!(model.press(KeyCode::Char('q').into()), Reaction::Nothing);
        assert_eq!(model.press(control('c')), Reaction::Nothing);
        assert_eq!(model.press(KeyCode::Right.into()), Reaction::Nothing, "there is no other machine");
        let mut model = Model::console("machine", Some("https://a/?c=${code}"));
        assert_eq!(model.watched().count(), WATCHED.len() + 1);
        assert_eq!((model.press(KeyCode::F(4).into()), model.page), (Reaction::Look, Page::ConfigUrl));
        model.press(KeyCode::Char('e').into());
        model.press(KeyCode::Char('q').into());
        assert_eq!(model.code.as_ref().map(CodeForm::text), Some("q"), "keys are text now");
        assert_eq!(model.press(KeyCode::Enter.into()), Reaction::Save);
        model.press(KeyCode::Esc.into());
        assert_eq!(model.code, None);
    }

    #[test]
    fn logs_are_bounded_and_scroll_back() {
        let mut model = model();
        for number in 0..LINES_MAX + 5 {
            model.apply(Update { node: 0, news: News::Line(String::new(), number.to_string()) });
        }
        let log = model.nodes[0].log("").unwrap();
        assert_eq!((log.len(), log.front().map(String::as_str)), (LINES_MAX, Some("5")));
        model.press(KeyCode::F(4).into());
        model.press(KeyCode::Up.into());
        model.press(KeyCode::PageUp.into());
        assert_eq!(model.scroll, 21);
        model.press(KeyCode::End.into());
        assert_eq!(model.scroll, 0);
    }

    #[test]
    fn updates_of_other_machines_do_not_draw() {
        let mut model = model();
        let line = |node| Update { node, news: News::Line(String::new(), "x".into()) };
        assert!(model.apply(line(0)));
        assert!(!model.apply(line(1)));
        assert!(!model.apply(line(7)));
        model.press(control('z'));
        assert!(!model.apply(line(0)));
        assert!(model.apply(Update { node: 1, news: News::Contact(Some("gone".into())) }));
        assert!(!model.apply(Update { node: 1, news: News::Contact(Some("gone".into())) }));
    }

    #[test]
    fn the_logs_of_services_come_one_after_the_other() {
        let mut model = model();
        for id in ["apid", "trustd"] {
            let news = News::Resource("Services.v1alpha1.talos.dev", id.into(), Some(Value::Null));
            model.apply(Update { node: 0, news });
        }
        model.press(KeyCode::F(4).into());
        let mut seen = Vec::new();
        for _ in 0..3 {
            assert_eq!(model.press(KeyCode::Tab.into()), Reaction::Look);
            seen.push(model.log.clone());
        }
        assert_eq!(seen, ["apid", "trustd", ""]);
    }
}
