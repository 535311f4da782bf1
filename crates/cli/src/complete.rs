//! Completion: the shells ask `ichorctl __complete WORDS…`, which reads the same table as the parser.

use ichor_ops::providers::PROVIDERS;

use crate::table::{CONNECTION_FLAGS, Command, Complete, Flag, Kind, flags_of};

/// The name shells call; hidden from help.
pub const ENTRY: &str = "__complete";

/// Where candidates come from that are not in the table. Each answers quickly or with nothing.
pub trait Sources {
    /// Contexts of the client configuration.
    fn contexts(&self) -> Vec<String>;
    /// Nodes of the current context.
    fn nodes(&self) -> Vec<String>;
    /// Resource types the first node knows.
    fn resource_types(&self) -> Vec<String>;
    /// Services of the first node.
    fn services(&self) -> Vec<String>;
    /// Local clusters.
    fn clusters(&self) -> Vec<String>;
}

/// What the shell is told.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// Words with a short explanation, which may be empty.
    pub candidates: Vec<(String, String)>,
    /// Offer files as well.
    pub files: bool,
}

impl Answer {
    /// The lines that the shell code reads: a candidate each, then one for the kind of answer.
    pub fn lines(&self) -> String {
        let mut out = String::new();
        for (word, about) in &self.candidates {
            out.push_str(word);
            if !about.is_empty() {
                out.push('\t');
                out.push_str(about);
            }
            out.push('\n');
        }
        out.push_str(if self.files { ":files\n" } else { ":words\n" });
        out
    }
}

/// Completes the last of `words`, which may be empty.
pub fn complete(root: &'static Command, words: &[String], sources: &dyn Sources) -> Answer {
    let Some((partial, before)) = words.split_last() else { return Answer::default() };
    let mut path = vec![root];
    let mut args = 0;
    let mut pending: Option<&'static Flag> = None;
    for word in before {
        if pending.take().is_some() {
            continue;
        }
        if word.starts_with('-') && word.len() > 1 {
            pending = wants_value(&path, word);
            continue;
        }
        match path[path.len() - 1].subcommand(word) {
            Some(sub) if args == 0 => path.push(sub),
            _ => args += 1,
        }
    }
    let mut answer = match (pending, partial.split_once('=')) {
        (Some(flag), _) => from(flag.complete, partial, sources),
        (None, Some((name, _))) if name.starts_with("--") => {
            let flag = known_flags(&path).find(|flag| name[2..] == *flag.name);
            let mut answer = flag.map(|flag| from(flag.complete, "", sources)).unwrap_or_default();
            for (word, _) in &mut answer.candidates {
                *word = format!("{name}={word}");
            }
            answer
        }
        (None, _) if partial.starts_with('-') => flags(&path),
        (None, _) => words_at(&path, args, partial, sources),
    };
    answer.candidates.retain(|(word, _)| word.starts_with(partial.as_str()));
    answer
}

fn known_flags(path: &[&'static Command]) -> impl Iterator<Item = &'static Flag> + use<> {
    let early = if path.len() == 1 { CONNECTION_FLAGS } else { &[] };
    flags_of(path).chain(early).collect::<Vec<_>>().into_iter()
}

fn wants_value(path: &[&'static Command], word: &str) -> Option<&'static Flag> {
    let flag = match word.strip_prefix("--") {
        Some(name) => known_flags(path).find(|flag| flag.name == name)?,
        None => {
            let letter = word.chars().last()?;
            known_flags(path).find(|flag| flag.short == Some(letter))?
        }
    };
    (flag.kind != Kind::Bool).then_some(flag)
}

fn flags(path: &[&'static Command]) -> Answer {
    let candidates = known_flags(path)
        .filter(|flag| !flag.hidden)
        .map(|flag| (format!("--{}", flag.name), flag.help.to_owned()))
        .collect();
    Answer { candidates, files: false }
}

fn words_at(path: &[&'static Command], args: usize, partial: &str, sources: &dyn Sources) -> Answer {
    let command = path[path.len() - 1];
    let mut answer = Answer::default();
    if args == 0 {
        let listed = command.subcommands.iter().filter(|sub| !sub.hidden);
        answer.candidates = listed.map(|sub| (sub.name.to_owned(), sub.about.to_owned())).collect();
    }
    if args < command.args.max
        && let Some(kind) = command.args.complete.get(args).or(command.args.complete.last())
    {
        let more = from(*kind, partial, sources);
        answer.candidates.extend(more.candidates);
        answer.files |= more.files;
    }
    answer
}

fn from(kind: Complete, partial: &str, sources: &dyn Sources) -> Answer {
    let words = match kind {
        Complete::Nothing => Vec::new(),
        Complete::File => return Answer { candidates: Vec::new(), files: true },
        Complete::Words(words) => words.iter().map(|word| (*word).to_owned()).collect(),
        Complete::Context => sources.contexts(),
        Complete::Node => sources.nodes(),
        Complete::ResourceType => sources.resource_types(),
        Complete::Service => sources.services(),
        Complete::Cluster => sources.clusters(),
        Complete::Provider => PROVIDERS.names().map(str::to_owned).collect(),
        Complete::ConfigKey => {
            let above = partial.rfind('.').map_or("", |dot| &partial[..=dot]);
            let keys = ichor_config::describe::complete(partial);
            keys.into_iter().map(|key| format!("{above}{key}")).collect()
        }
    };
    Answer { candidates: words.into_iter().map(|word| (word, String::new())).collect(), files: false }
}

/// The shell code for `shell`, or nothing when the shell is not known.
pub fn script(shell: &str) -> Option<&'static str> {
    match shell {
        "bash" => Some(BASH),
        "zsh" => Some(ZSH),
        "fish" => Some(FISH),
        _ => None,
    }
}

/// The shells that [`script`] knows.
pub const SHELLS: &[&str] = &["bash", "fish", "zsh"];

const BASH: &str = r#"# bash completion for ichorctl
_ichorctl() {
    local line kind="" index word cur="${COMP_WORDS[COMP_CWORD]}"
    local words=()
    # bash breaks words at "="; put --flag=value together again.
    for ((index = 1; index <= COMP_CWORD; index++)); do
        word="${COMP_WORDS[index]}"
        if [[ ${#words[@]} -gt 0 && ( $word == "=" || ${words[-1]} == --*= ) ]]; then
            words[-1]+="$word"
        else
            words+=("$word")
        fi
    done
    COMPREPLY=()
    while IFS= read -r line; do
        case "$line" in
            :files|:words) kind="$line" ;;
            *) COMPREPLY+=("${line%%$'\t'*}") ;;
        esac
    done < <("${COMP_WORDS[0]}" __complete "${words[@]}" 2>/dev/null)
    # Only the part behind the "=" is the word that bash replaces.
    if [[ ${words[-1]} == --*=* ]]; then
        COMPREPLY=("${COMPREPLY[@]#*=}")
    fi
    if [[ $kind == :files ]]; then
        [[ $cur == "=" ]] && cur=""
        while IFS= read -r line; do COMPREPLY+=("$line"); done < <(compgen -f -- "$cur")
        compopt -o filenames 2>/dev/null
    fi
}
complete -F _ichorctl ichorctl
"#;

const ZSH: &str = r#"#compdef ichorctl
# zsh completion for ichorctl
_ichorctl() {
    local line kind="" word about
    local -a shown
    while IFS= read -r line; do
        case "$line" in
            :files|:words) kind="$line" ;;
            *)
                word="${line%%$'\t'*}"
                about="${line#"$word"}"
                shown+=("${word//:/\\:}${about:+:${about#$'\t'}}")
                ;;
        esac
    done < <("${words[1]}" __complete "${words[@]:1:$((CURRENT-1))}" 2>/dev/null)
    (( ${#shown} )) && _describe ichorctl shown
    [[ $kind == :files ]] && _files
}
if [ "$funcstack[1]" = "_ichorctl" ]; then
    _ichorctl
else
    compdef _ichorctl ichorctl
fi
"#;

const FISH: &str = r#"# fish completion for ichorctl
function __ichorctl_complete
    set -l words (commandline -opc) (commandline -ct)
    for line in ($words[1] __complete $words[2..-1] 2>/dev/null)
        switch $line
            case ':words'
            case ':files'
                __fish_complete_path (commandline -ct)
            case '*'
                echo $line
        end
    end
end
complete -c ichorctl -f -a '(__ichorctl_complete)'
"#;
