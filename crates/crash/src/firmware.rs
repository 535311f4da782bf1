//! What firmware and boot loader start from a disk, written from their manuals and sharing no code with what writes the
//! disk: a small interpreter of GRUB's language, and systemd-boot's choice.

use std::collections::BTreeMap;

use ichor_boot::plan::Volume;

use crate::Kind;

use crate::disk::{SECTOR, State};

/// A system that was started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Started {
    /// Which.
    pub system: u32,
    /// The entry.
    pub entry: String,
    /// It was named for this boot only.
    pub once: bool,
}

/// Starts a machine without UEFI: GRUB from the BOOT filesystem. Changes the environment block as GRUB does.
pub fn start_grub(state: &mut State) -> Result<Started, String> {
    let config = state.file(Volume::Boot, "grub/grub.cfg").ok_or("no grub.cfg")?;
    let config = String::from_utf8(config).map_err(|_| "grub.cfg is no text")?;
    let mut grub = Grub { variables: BTreeMap::new(), entries: Vec::new(), saved: false };
    grub.run(&config, state)?;
    let once = grub.saved;
    let default = grub.variables.get("default").cloned().unwrap_or_default();
    let fallback = grub.variables.get("fallback").cloned();
    for title in [Some(default), fallback].into_iter().flatten() {
        let Some(entry) = grub.entries.iter().find(|entry| entry.0 == title) else { continue };
        let load = |path: &str| state.file(Volume::Boot, path.trim_start_matches('/'));
        let (Some(kernel), Some(initramfs)) = (load(&entry.1), load(&entry.2)) else { continue };
        let system = whole(&kernel, "kernel")?;
        if whole(&initramfs, "initramfs")? != system {
            return Err(format!("{title}: kernel and initramfs are of different systems"));
        }
        return Ok(Started { system, entry: title, once });
    }
    Err("no menu entry can be loaded".into())
}

impl Kind {
    /// Whether the boot loader has this entry, and all of what it names is there.
    pub fn has(self, state: &State, entry: &str) -> bool {
        match self {
            Self::Grub => {
                let mut grub = Grub { variables: BTreeMap::new(), entries: Vec::new(), saved: false };
                let text =
                    state.file(Volume::Boot, "grub/grub.cfg").and_then(|text| String::from_utf8(text).ok());
                // A copy: reading takes the one-shot entry back.
                let read = text.is_some_and(|text| grub.run(&text, &mut state.clone()).is_ok());
                let is_whole = |path: &str, kind: &str| {
                    let bytes = state.file(Volume::Boot, path.trim_start_matches('/'));
                    bytes.is_some_and(|bytes| whole(&bytes, kind).is_ok())
                };
                read && grub.entries.iter().any(|(title, kernel, initramfs)| {
                    title == entry && is_whole(kernel, "kernel") && is_whole(initramfs, "initramfs")
                })
            }
            Self::SdBoot => {
                let image = state.file(Volume::Efi, &format!("EFI/Linux/{entry}"));
                image.is_some_and(|bytes| whole(&bytes, "uki").is_ok())
            }
        }
    }
}

struct Grub {
    variables: BTreeMap<String, String>,
    /// Title, kernel, initramfs.
    entries: Vec<(String, String, String)>,
    /// The environment block had an entry, and was written without it.
    saved: bool,
}

impl Grub {
    fn run(&mut self, config: &str, state: &mut State) -> Result<(), String> {
        // Of each open `if`, whether its inside counts.
        let mut open: Vec<bool> = Vec::new();
        let mut inside: Option<(String, String, String)> = None;
        for line in config.lines() {
            let words = self.words(line);
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            if let Some(entry) = &mut inside {
                match words.as_slice() {
                    ["linux", kernel, ..] => entry.1 = (*kernel).to_owned(),
                    ["initrd", path] => entry.2 = (*path).to_owned(),
                    ["set", ..] => {}
                    ["}"] => self.entries.extend(inside.take()),
                    other => return Err(format!("unknown command in a menu entry: {other:?}")),
                }
                continue;
            }
            let counts = open.iter().all(|counts| *counts);
            match words.as_slice() {
                [] | ["insmod" | "terminal_input" | "terminal_output", _] => {}
                ["if", test @ .., "then"] => {
                    let holds = counts && self.test(test, state)?;
                    open.push(holds);
                }
                ["fi"] => drop(open.pop()),
                _ if !counts => {}
                ["set", assignment] => {
                    let (name, value) = assignment.split_once('=').ok_or("set without =")?;
                    self.variables.insert(name.to_owned(), value.to_owned());
                }
                ["load_env", name] => {
                    if let Some(value) = environment(state, name) {
                        self.variables.insert((*name).to_owned(), value);
                    }
                }
                ["menuentry", title, "{"] => {
                    inside = Some(((*title).to_owned(), String::new(), String::new()))
                }
                other => return Err(format!("unknown command: {other:?}")),
            }
        }
        if inside.is_some() || !open.is_empty() {
            Err("the end of grub.cfg is missing".into())
        } else {
            Ok(())
        }
    }

    fn test(&mut self, words: &[&str], state: &mut State) -> Result<bool, String> {
        match words {
            ["[", "-s", path, "]", ";"] => {
                let path = path.strip_prefix('/').ok_or("a path without the prefix")?;
                Ok(state.file(Volume::Boot, &format!("grub/{path}")).is_some_and(|file| !file.is_empty()))
            }
            ["[", "-n", text, "]", ";"] => Ok(!text.is_empty()),
            ["save_env", name, ";"] => {
                let value = self.variables.get(*name).cloned().unwrap_or_default();
                assert!(value.is_empty(), "only taking it back is known here");
                self.saved = take_back(state, name);
                Ok(self.saved)
            }
            other => Err(format!("unknown test: {other:?}")),
        }
    }

    /// Words with variables put in: backslashes escape, double quotes keep spaces, a hash begins a comment.
    fn words(&self, line: &str) -> Vec<String> {
        let mut words = Vec::new();
        let mut word: Option<String> = None;
        let mut quoted = false;
        let mut chars = line.chars().peekable();
        while let Some(c) = chars.next() {
            match c {
                '\\' => word.get_or_insert_default().extend(chars.next()),
                '"' => {
                    quoted = !quoted;
                    word.get_or_insert_default();
                }
                '$' => {
                    let mut name = String::new();
                    while let Some(c) = chars.next_if(|c| c.is_ascii_alphanumeric() || *c == '_') {
                        name.push(c);
                    }
                    // The folder of the configuration is the root of paths here.
                    let value = self.variables.get(&name).cloned().unwrap_or_default();
                    word.get_or_insert_default().push_str(&value);
                }
                '#' if word.is_none() && !quoted => break,
                ';' if !quoted => {
                    words.extend(word.take());
                    words.push(";".into());
                }
                c if c.is_whitespace() && !quoted => words.extend(word.take()),
                c => word.get_or_insert_default().push(c),
            }
        }
        words.extend(word);
        words
    }
}

fn block(state: &State) -> Option<Vec<u8>> {
    let block = state.file(Volume::Boot, "grub/grubenv")?;
    (block.len() == 1024 && block.starts_with(b"# GRUB Environment Block\n")).then_some(block)
}

fn environment(state: &State, name: &str) -> Option<String> {
    let block = String::from_utf8(block(state)?).ok()?;
    let line = block.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='))?;
    Some(line.to_owned())
}

/// GRUB writes the sectors of the file itself.
fn take_back(state: &mut State, name: &str) -> bool {
    let Some(old) = block(state) else { return false };
    let text = String::from_utf8_lossy(&old).into_owned();
    let kept: Vec<&str> =
        text.lines().filter(|line| !line.starts_with(name) && !(line.starts_with("##"))).collect();
    let mut new = format!("{}\n{name}=\n", kept.join("\n")).into_bytes();
    new.resize(1024, b'#');
    state.write_in_place(Volume::Boot, "grub/grubenv", &new);
    true
}

/// Starts a machine with UEFI and systemd-boot. Deletes the one-shot variable as the boot loader does.
pub fn start_sd_boot(state: &mut State) -> Result<Started, String> {
    let loader = state.file(Volume::Efi, "EFI/boot/BOOTX64.efi").ok_or("no boot loader")?;
    whole(&loader, "loader")?;
    let mut entries: Vec<(String, Vec<u8>)> = state
        .files(Volume::Efi)
        .into_iter()
        .filter_map(|(path, content)| {
            let name = path.to_lowercase().strip_prefix("efi/linux/")?.to_owned();
            (name.ends_with(".efi") && content.starts_with(b"uki ")).then_some((name, content))
        })
        .collect();
    // The newest first.
    entries.sort_by(|a, b| b.0.cmp(&a.0));
    let once = variable(state, "LoaderEntryOneShot");
    state.variables.retain(|file, _| !file.starts_with("LoaderEntryOneShot-"));
    let conf = state.file(Volume::Efi, "loader/loader.conf").unwrap_or_default();
    // What comes after a NUL is not seen.
    let conf = String::from_utf8_lossy(conf.split(|byte| *byte == 0).next().unwrap_or_default()).into_owned();
    let in_conf =
        conf.lines().filter_map(|line| line.strip_prefix("default ")).next_back().map(str::to_lowercase);
    for (name, is_once) in [(once, true), (variable(state, "LoaderEntryDefault"), false), (in_conf, false)] {
        if let Some((entry, content)) = entries.iter().find(|(entry, _)| Some(entry) == name.as_ref()) {
            return Ok(Started { system: whole(content, "uki")?, entry: entry.clone(), once: is_once });
        }
    }
    let (entry, content) = entries.first().ok_or("no image")?;
    Ok(Started { system: whole(content, "uki")?, entry: entry.clone(), once: false })
}

fn variable(state: &State, name: &str) -> Option<String> {
    let (_, bytes) = state.variables.iter().find(|(file, _)| file.starts_with(&format!("{name}-")))?;
    assert_eq!(bytes[..4], [7, 0, 0, 0], "non-volatile, boot services, run time");
    let value = &bytes[4..];
    assert!(value.len() % 2 == 0 && value.ends_with(&[0, 0]), "UTF-16 with a NUL");
    let text: String = value[..value.len() - 2].chunks(2).map(|unit| char::from(unit[0])).collect();
    Some(text.to_lowercase())
}

/// The system of a part, if every sector of it is in its place.
fn whole(bytes: &[u8], kind: &str) -> Result<u32, String> {
    let first = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let head = String::from_utf8_lossy(first).into_owned();
    let mut words = head.split(' ');
    let (found, system) = (words.next(), words.next().and_then(|word| word.parse::<u32>().ok()));
    let count = words.nth(1).and_then(|word| word.parse::<usize>().ok());
    let (Some(system), Some(count)) = (system.filter(|_| found == Some(kind)), count) else {
        return Err(format!("this is no {kind}: {head:.40}"));
    };
    let is_whole = bytes.len() == count * SECTOR
        && bytes
            .chunks(SECTOR)
            .enumerate()
            .all(|(at, sector)| sector.starts_with(format!("{kind} {system} {at} {count}\n").as_bytes()));
    if is_whole { Ok(system) } else { Err(format!("{kind} of system {system} is torn")) }
}
