//! The templates of schema files: the part of Go's template language that columns need.
//!
//! Text with actions between `{{` and `}}`: fields, variables, calls, pipes, `if`, `range`, `with`, and the
//! functions `printf`, `print`, `len`, `index`, `not`, `and`, `or`, `eq`, `ne`, `lt`, `le`, `gt`, `ge`.

mod eval;
mod parse;

use super::Group;

/// Why a template cannot be read or followed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TemplateError(pub String);

/// Makes the error of a template.
pub(super) fn error<T>(text: impl Into<String>) -> Result<T, TemplateError> {
    Err(TemplateError(text.into()))
}

/// A template that was read.
#[derive(Debug)]
pub struct Template(Vec<Step>);

/// A part of a template.
#[derive(Debug)]
enum Step {
    Text(String),
    /// Prints what the pipe ends with; with a variable it is only kept.
    Print(Option<String>, Pipe),
    If(Pipe, Vec<Step>, Vec<Step>),
    With(Pipe, Vec<Step>, Vec<Step>),
    /// Variables for key and value, what is gone through, the body, and what stands for nothing.
    Range(Vec<String>, Pipe, Vec<Step>, Vec<Step>),
}

/// Calls whose results are handed on as last arguments.
type Pipe = Vec<Vec<Operand>>;

/// A word of a call.
#[derive(Debug, Clone)]
enum Operand {
    /// The current value, with fields below it.
    Dot(Vec<String>),
    Variable(String, Vec<String>),
    Function(String),
    Text(String),
    Number(i64),
    Bool(bool),
    Nil,
    Inner(Pipe, Vec<String>),
}

impl Template {
    /// Reads a template.
    pub fn parse(text: &str) -> Result<Self, TemplateError> {
        parse::template(text).map(Self)
    }

    /// The text for a group.
    pub fn render(&self, group: &Group, parent: Option<&Group>) -> Result<String, TemplateError> {
        eval::render(&self.0, group, parent)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests_support::group;
    use super::*;

    #[track_caller]
    fn check(template: &str, expected: &str) {
        let parent = group(&[("memory.current", "4096"), ("cpu.stat", "user_usec 200\n")]);
        let group = group(&[
            ("memory.current", "1024"),
            ("memory.max", "max"),
            ("cpu.max", "max 100000"),
            ("cpu.stat", "user_usec 50\nsystem_usec 1500000\n"),
            ("cpuset.cpus", "0-3"),
            ("cgroup.procs", "1\n2\n3\n"),
            ("io.stat", "8:0 rbytes=2048\n8:16 rbytes=1\n"),
        ]);
        let rendered = Template::parse(template).and_then(|template| template.render(&group, Some(&parent)));
        let text = rendered.unwrap_or_else(|error| format!("error: {error}"));
        assert_eq!(text, expected, "{template}");
    }

    #[test]
    fn fields_methods_and_pipes() {
        check("{{ .MemoryCurrent }}", "1024");
        check("a {{- .MemoryMax -}} b", "amaxb");
        check("{{ .MemoryCurrent.HumanizeIBytes | printf \"%8s\" }}|", " 1.0 KiB|");
        check("{{ .CPUStat.user_usec.DivideBy .Parent.CPUStat.user_usec | printf \"%6s%%\" }}", " 25.00%");
        check("{{ .CPUStat.system_usec.UsecToDuration }}", "1.5s");
        check("{{ .CPUStat.nothing }}", "unset");
        check("{{ .IOPressure.some.avg10 | printf \"%6s\" }}", " unset");
        check("{{ .CPUMax | printf \"%6s\" }}", "[   max 100000]");
        check("{{ .CgroupProcs | len | printf \"%3d\" }}", "  3");
        check("{{ .CPUSetCPUs | printf \"%-5s|\" }}", "0-3  |");
        check("{{/* nothing */}}x", "x");
    }

    #[test]
    fn conditions_and_loops() {
        check("{{ if .Parent }}yes{{ else }}no{{ end }}", "yes");
        check("{{ if not .Parent }}yes{{ else if eq 1 1 }}other{{ end }}", "other");
        check("{{ range $disk, $v := .IOStat }}{{ $disk }}={{ $v.rbytes }} {{ end }}", "8:0=2048 8:16=1 ");
        check("{{ range .CgroupProcs }}{{ . }},{{ end }}", "1,2,3,");
        check("{{ range .MemoryStat }}x{{ else }}none{{ end }}", "none");
        check("{{ $x := .MemoryCurrent }}{{ $x.HumanizeIBytes }}", "1.0 KiB");
        check("{{ with .MemoryMax }}{{ . }}{{ end }}", "max");
        check("{{ if gt (.MemoryCurrent.Float64 | printf \"%.0f\" | len) 3 }}long{{ end }}", "long");
        check("{{ index .CPUStat \"user_usec\" }}", "50");
    }

    #[test]
    fn mistakes_are_told() {
        for bad in
            ["{{ .MemoryCurrent", "{{ if .Parent }}x", "{{ end }}", "{{ | }}", "{{ \"x }}", "{{ nosuch 1 }}"]
        {
            assert!(Template::parse(bad).is_err(), "{bad}");
        }
        check("{{ .NoSuchField }}", "error: can't evaluate field NoSuchField");
        check("{{ $x }}", "error: undefined variable \"$x\"");
    }
}
