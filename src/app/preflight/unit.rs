//! The command line that systemd makes from a service's unit file, its drop-ins and its environment files. Pure.
//!
//! What of systemd's format a unit of a kubelet does not need is not interpreted but reported, with file and line.

use crate::app::Finding;
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

/// The name of the kubelet's unit.
pub(super) const UNIT: &str = "kubelet.service";
const WHITESPACE: [char; 3] = [' ', '\t', '\n'];
/// What may come before the program of `ExecStart=`.
const PREFIXES: [char; 6] = ['@', '-', ':', '+', '!', '|'];

/// The text of a unit file, a drop-in or an environment file.
#[derive(Clone, Debug)]
pub(super) struct UnitFile {
    pub(super) path: PathBuf,
    pub(super) text: String,
}

/// Where something is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) path: PathBuf,
    /// Counted from 1.
    pub(super) line: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.path.display(), self.line)
    }
}

/// An `EnvironmentFile=`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EnvironmentFile {
    pub(super) place: Place,
    pub(super) path: String,
    /// The file may be missing.
    pub(super) is_optional: bool,
}

type Variables = BTreeMap<String, (String, Place)>;

/// The settings of a service that make its command line.
#[derive(Debug, Default)]
pub(super) struct Service {
    start: Option<(String, Place)>,
    variables: Variables,
    /// `WorkingDirectory=`.
    directory: Option<PathBuf>,
    pub(super) environment_files: Vec<EnvironmentFile>,
    /// What cannot be interpreted, and what is given twice, each with its place.
    pub(super) problems: Vec<Finding>,
}

/// The command line of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UnitCommand {
    pub(super) program: String,
    pub(super) args: Vec<String>,
    pub(super) place: Place,
    /// The environment.
    pub(super) variables: BTreeMap<String, String>,
    /// The working directory.
    pub(super) directory: PathBuf,
}

/// Lines joined at a backslash at their end, without comments, each with the number of its first line. `joint` replaces
/// the backslash and the line break.
fn logical_lines(text: &str, joint: &str) -> Vec<(usize, String)> {
    let mut lines = Vec::new();
    let mut open: Option<(usize, String)> = None;
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.starts_with(['#', ';']) {
            // Comments do not end a continued line.
            continue;
        }
        let (number, mut joined) = open.take().unwrap_or((index + 1, String::new()));
        match line.strip_suffix('\\') {
            Some(part) => {
                joined.push_str(part);
                joined.push_str(joint);
                open = Some((number, joined));
            }
            None => {
                joined.push_str(line);
                lines.push((number, joined));
            }
        }
    }
    lines.extend(open);
    lines
}

impl Service {
    /// Reads a unit file and its drop-ins, in the order in which systemd does.
    pub(super) fn of(files: &[UnitFile]) -> Self {
        let mut service = Self::default();
        for file in files {
            let mut in_service = false;
            for (line, text) in logical_lines(&file.text, " ") {
                let place = Place { path: file.path.clone(), line };
                if text.starts_with('[') {
                    in_service = text == "[Service]";
                } else if in_service && let Some((key, value)) = text.split_once('=') {
                    service.set(key.trim(), value.trim(), place);
                } else if in_service && !text.is_empty() {
                    service.warn(&place, "the line is no setting, and systemd ignores it");
                }
            }
        }
        service
    }

    fn warn(&mut self, place: &Place, message: &str) {
        let finding = Finding::warning("unit", format!("{place}: {message}"));
        self.problems.push(finding);
    }

    /// Notes a setting that may change the command line, or what it means, in a way that is not known here.
    fn not_interpreted(&mut self, place: &Place, key: &str) {
        let finding = Finding::unknown("unit", format!("{place}: {key}= is not interpreted"));
        self.problems.push(finding);
    }

    fn set(&mut self, key: &str, value: &str, place: Place) {
        match key {
            "ExecStart" if value.is_empty() => self.start = None,
            "ExecStart" => {
                if let Some((_, earlier)) = &self.start {
                    let problem = format!(
                        "{place}: ExecStart= is given here and at {earlier}; systemd refuses the unit"
                    );
                    self.problems.push(Finding::error("unit", problem));
                }
                self.start = Some((value.to_owned(), place));
            }
            "Environment" if value.is_empty() => self.variables.clear(),
            "Environment" => self.set_variables(value, &place),
            "EnvironmentFile" if value.is_empty() => self.environment_files.clear(),
            "EnvironmentFile" if value.contains(['%', '*', '?', '[']) => {
                self.not_interpreted(&place, key);
            }
            "EnvironmentFile" => self.environment_files.push(EnvironmentFile {
                place,
                path: value.trim_start_matches('-').to_owned(),
                is_optional: value.starts_with('-'),
            }),
            "WorkingDirectory" if value.contains(['%', '~']) => self.not_interpreted(&place, key),
            "WorkingDirectory" => {
                let path = value.trim_start_matches('-');
                self.directory = (!path.is_empty()).then(|| path.into());
            }
            "PassEnvironment" | "RootDirectory" | "RootImage" => {
                self.not_interpreted(&place, key);
            }
            _ => {}
        }
    }

    fn set_variables(&mut self, value: &str, place: &Place) {
        let words = match split_words(value) {
            Ok(words) => words,
            Err(why) => return self.warn(place, &format!("Environment=: {why}")),
        };
        for word in words {
            match word.split_once('=') {
                Some((name, value)) => self.set_variable(name, value, place),
                None => self.warn(place, "Environment=: a word is no assignment"),
            }
        }
    }

    fn set_variable(&mut self, name: &str, value: &str, place: &Place) {
        let given = (value.to_owned(), place.clone());
        let earlier = self.variables.insert(name.to_owned(), given);
        if let Some((other, at)) = earlier
            && other != value
        {
            let message = format!("{name} is given here and at {at}; this one counts");
            self.warn(place, &message);
        }
    }

    /// Adds the variables of an environment file, which override others.
    pub(super) fn add_environment_file(&mut self, file: &UnitFile) {
        for (line, text) in logical_lines(&file.text, "") {
            let place = Place { path: file.path.clone(), line };
            let Some((name, value)) = text.split_once('=') else {
                if !text.is_empty() {
                    self.warn(&place, "the line is no assignment");
                }
                continue;
            };
            match unquote(value.trim()) {
                Ok(value) => self.set_variable(name.trim(), &value, &place),
                Err(why) => self.warn(&place, &why),
            }
        }
    }

    /// The command line; `None` if the unit has none. `hostname` is the machine's.
    ///
    /// # Errors
    /// It cannot be interpreted; with file and line.
    pub(super) fn command(&self, hostname: &str) -> Option<Result<UnitCommand, String>> {
        let (line, place) = self.start.as_ref()?;
        let read = self.read_command(line, place, hostname);
        Some(read.map_err(|why| format!("{place}: ExecStart=: {why}")))
    }

    fn read_command(
        &self,
        line: &str,
        place: &Place,
        hostname: &str,
    ) -> Result<UnitCommand, String> {
        let bare = line.trim_start_matches(PREFIXES);
        let prefix = line.strip_suffix(bare).unwrap_or_default();
        let mut words = split_words(bare)?.into_iter();
        let program = words.next().ok_or("there is no program")?;
        if prefix.contains('@') {
            words.next();
        }
        let mut args = Vec::new();
        for word in words {
            let word = without_specifiers(&word, hostname)?;
            if prefix.contains(':') {
                args.push(word);
            } else {
                self.expand(&word, &mut args)?;
            }
        }
        let variables = self.variables.iter();
        Ok(UnitCommand {
            program: without_specifiers(&program, hostname)?,
            args,
            place: place.clone(),
            variables: variables.map(|(name, (value, _))| (name.clone(), value.clone())).collect(),
            directory: self.directory.clone().unwrap_or_else(|| "/".into()),
        })
    }

    fn value(&self, name: &str) -> &str {
        self.variables.get(name).map_or("", |(value, _)| value)
    }

    /// Replaces variables: a word that is one becomes as many words as its value has.
    fn expand(&self, word: &str, args: &mut Vec<String>) -> Result<(), String> {
        let is_name = |name: &&str| {
            let mut chars = name.chars();
            let begins = chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_');
            begins && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
        };
        if let Some(name) = word.strip_prefix('$').filter(is_name) {
            args.extend(split_words(self.value(name))?);
            return Ok(());
        }
        let (mut expanded, mut rest) = (String::new(), word);
        while let Some((before, after)) = rest.split_once('$') {
            expanded.push_str(before);
            let braced = after.strip_prefix('{').and_then(|it| it.split_once('}'));
            rest = match (after.strip_prefix('$'), braced) {
                (Some(after), _) => {
                    expanded.push('$');
                    after
                }
                (None, Some((name, after))) => {
                    expanded.push_str(self.value(name));
                    after
                }
                (None, None) => {
                    expanded.push('$');
                    after
                }
            };
        }
        expanded.push_str(rest);
        args.push(expanded);
        Ok(())
    }
}

/// Splits at white space outside of quotes.
fn split_words(text: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match (c, quote) {
            (c, Some(open)) if c == open => quote = None,
            ('"' | '\'', None) => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            ('\\', _) => {
                let escaped = chars.next().ok_or("a backslash at the end")?;
                let word = word.get_or_insert_default();
                match escaped {
                    'n' => word.push('\n'),
                    't' => word.push('\t'),
                    's' => word.push(' '),
                    '\\' | '"' | '\'' | ' ' => word.push(escaped),
                    other => return Err(format!("the escape \\{other} is not interpreted")),
                }
            }
            (c, None) if WHITESPACE.contains(&c) => words.extend(word.take()),
            (c, _) => word.get_or_insert_default().push(c),
        }
    }
    if quote.is_some() {
        return Err("a quote is not closed".to_owned());
    }
    words.extend(word);
    Ok(words)
}

/// The value of a line of an environment file. Within quotes white space stays; without them it is part of the value.
fn unquote(value: &str) -> Result<String, String> {
    let mut text = String::new();
    let mut quote = None;
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match (c, quote) {
            (c, Some(open)) if c == open => quote = None,
            ('"' | '\'', None) => quote = Some(c),
            ('\\', Some('"') | None) => text.push(chars.next().unwrap_or('\\')),
            (c, _) => text.push(c),
        }
    }
    if quote.is_some() {
        return Err("a quote is not closed".to_owned());
    }
    Ok(text)
}

fn without_specifiers(word: &str, hostname: &str) -> Result<String, String> {
    let mut text = String::new();
    let mut chars = word.chars();
    while let Some(c) = chars.next() {
        match c {
            '%' => match chars.next() {
                Some('%') => text.push('%'),
                Some('H' | 'l') => text.push_str(hostname),
                Some('n') => text.push_str(UNIT),
                Some('N' | 'p' | 'P') => text.push_str("kubelet"),
                other => {
                    let name = other.map(String::from).unwrap_or_default();
                    return Err(format!("the specifier %{name} is not interpreted"));
                }
            },
            c => text.push(c),
        }
    }
    Ok(text)
}

/// Whether a program has the name of a kubelet. A name such as `kubelet.new` is that of one, too.
pub(super) fn is_kubelet(program: &Path) -> bool {
    let name = program.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| name == "kubelet" || name.starts_with("kubelet."))
}

#[cfg(test)]
mod tests;
