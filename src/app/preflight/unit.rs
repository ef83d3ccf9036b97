//! The command line that systemd makes from a service's unit file, its drop-ins and its environment files. Pure.
//!
//! What of systemd's format a unit of a kubelet does not need is not interpreted but reported, with file and line.

use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
};

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
    pub(super) environment_files: Vec<EnvironmentFile>,
    /// What cannot be interpreted, and what is given twice, each with its place.
    pub(super) problems: Vec<String>,
}

/// The command line of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UnitCommand {
    pub(super) program: String,
    pub(super) args: Vec<String>,
    pub(super) place: Place,
    /// The environment.
    pub(super) variables: BTreeMap<String, String>,
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
                let place = Place {
                    path: file.path.clone(),
                    line,
                };
                if text.starts_with('[') {
                    in_service = text == "[Service]";
                } else if in_service && let Some((key, value)) = text.split_once('=') {
                    service.set(key.trim(), value.trim(), place);
                } else if in_service && !text.is_empty() {
                    let problem = format!("{place}: the line is no setting: {text:?}");
                    service.problems.push(problem);
                }
            }
        }
        service
    }

    fn set(&mut self, key: &str, value: &str, place: Place) {
        match key {
            "ExecStart" if value.is_empty() => self.start = None,
            "ExecStart" => {
                if let Some((_, earlier)) = &self.start {
                    let problem = format!(
                        "{place}: ExecStart= is given here and at {earlier}; systemd refuses the unit"
                    );
                    self.problems.push(problem);
                }
                self.start = Some((value.to_owned(), place));
            }
            "Environment" if value.is_empty() => self.variables.clear(),
            "Environment" => self.set_variables(value, &place),
            "EnvironmentFile" if value.is_empty() => self.environment_files.clear(),
            "EnvironmentFile" => self.environment_files.push(EnvironmentFile {
                place,
                path: value.trim_start_matches('-').to_owned(),
                is_optional: value.starts_with('-'),
            }),
            "PassEnvironment" | "RootDirectory" | "RootImage" => {
                let problem = format!("{place}: {key}= is not interpreted");
                self.problems.push(problem);
            }
            _ => {}
        }
    }

    fn set_variables(&mut self, value: &str, place: &Place) {
        let words = match split_words(value) {
            Ok(words) => words,
            Err(why) => return self.problems.push(format!("{place}: Environment=: {why}")),
        };
        for word in words {
            match word.split_once('=') {
                Some((name, value)) => self.set_variable(name, value, place),
                None => {
                    let problem = format!("{place}: Environment=: {word:?} is no assignment");
                    self.problems.push(problem);
                }
            }
        }
    }

    fn set_variable(&mut self, name: &str, value: &str, place: &Place) {
        let given = (value.to_owned(), place.clone());
        let earlier = self.variables.insert(name.to_owned(), given);
        if let Some((other, at)) = earlier
            && other != value
        {
            let problem = format!("{place}: {name} is given here and at {at}; this one counts");
            self.problems.push(problem);
        }
    }

    /// Adds the variables of an environment file, which override others.
    pub(super) fn add_environment_file(&mut self, file: &UnitFile) {
        for (line, text) in logical_lines(&file.text, "") {
            let place = Place {
                path: file.path.clone(),
                line,
            };
            let Some((name, value)) = text.split_once('=') else {
                if !text.is_empty() {
                    let problem = format!("{place}: the line is no assignment");
                    self.problems.push(problem);
                }
                continue;
            };
            match unquote(value.trim()) {
                Ok(value) => self.set_variable(name.trim(), &value, &place),
                Err(why) => self.problems.push(format!("{place}: {why}")),
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
            variables: variables
                .map(|(name, (value, _))| (name.clone(), value.clone()))
                .collect(),
        })
    }

    fn value(&self, name: &str) -> &str {
        self.variables.get(name).map_or("", |(value, _)| value)
    }

    /// Replaces variables: a word that is one becomes as many words as its value has.
    fn expand(&self, word: &str, args: &mut Vec<String>) -> Result<(), String> {
        let is_name = |name: &&str| {
            let mut chars = name.chars();
            let begins = chars
                .next()
                .is_some_and(|c| c.is_ascii_alphabetic() || c == '_');
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
                Some('n') => text.push_str(super::UNIT),
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
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> UnitFile {
        UnitFile {
            path: path.into(),
            text: text.to_owned(),
        }
    }

    fn command(files: &[(&str, &str)], environment: &[(&str, &str)]) -> (Vec<String>, Vec<String>) {
        let files: Vec<_> = files.iter().map(|(path, text)| file(path, text)).collect();
        let mut service = Service::of(&files);
        for (path, text) in environment {
            service.add_environment_file(&file(path, text));
        }
        match service.command("host1") {
            Some(Ok(command)) => {
                let all = [command.program].into_iter().chain(command.args).collect();
                (all, service.problems)
            }
            Some(Err(why)) => (Vec::new(), [service.problems, vec![why]].concat()),
            None => (Vec::new(), service.problems),
        }
    }

    const UNIT: &str =
        "[Unit]\nDescription=kubelet\n[Service]\nExecStart=/usr/bin/kubelet\nRestart=always\n";
    const KUBEADM: &str = "# kubeadm's\n[Service]\n\
        Environment=\"KUBELET_KUBECONFIG_ARGS=--bootstrap-kubeconfig=/b --kubeconfig=/k\"\n\
        Environment=\"KUBELET_CONFIG_ARGS=--config=/var/lib/kubelet/config.yaml\"\n\
        EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env\n\
        ExecStart=\n\
        ExecStart=/usr/bin/kubelet $KUBELET_KUBECONFIG_ARGS $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS\n";

    #[test]
    fn the_unit_of_kubeadm_gives_its_command_line() {
        let flags = "KUBELET_KUBEADM_ARGS=\"--node-ip=10.0.0.1 --pod-infra-container-image=p:1\"\n";
        let (args, problems) = command(
            &[("/u", UNIT), ("/u.d/10-kubeadm.conf", KUBEADM)],
            &[("/var/lib/kubelet/kubeadm-flags.env", flags)],
        );
        let expected = "/usr/bin/kubelet --bootstrap-kubeconfig=/b --kubeconfig=/k \
            --config=/var/lib/kubelet/config.yaml --node-ip=10.0.0.1 --pod-infra-container-image=p:1";
        assert_eq!(args.join(" "), expected);
        assert_eq!(problems, [""; 0]);
        let service = Service::of(&[file("/u", KUBEADM)]);
        assert!(service.environment_files[0].is_optional);
        assert_eq!(service.environment_files[0].place.to_string(), "/u:5");
    }

    #[test]
    fn words_quotes_variables_and_specifiers_are_as_systemd_reads_them() {
        for (line, expected) in [
            ("/k a  b", &["a", "b"][..]),
            ("-/k a", &["a"]),
            ("@/k name a", &["a"]),
            ("/k \"a b\" 'c \"d\"'", &["a b", "c \"d\""]),
            ("/k a\"b c\"d", &["ab cd"]),
            ("/k --x=\"\" ''", &["--x=", ""]),
            ("/k $TWO", &["1", "2"]),
            ("/k ${TWO}", &["1 2"]),
            ("/k --x=${ONE}y", &["--x=1y"]),
            ("/k --x=$ONE", &["--x=$ONE"]),
            ("/k '$TWO'", &["1", "2"]),
            ("/k $QUOTED", &["a b", "c"]),
            ("/k $NONE ${NONE}", &[""]),
            ("/k $$ONE", &["$ONE"]),
            (":/k $ONE", &["$ONE"]),
            ("/k %% %H %n", &["%", "host1", "kubelet.service"]),
            ("/k a\\\n  b", &["a", "b"]),
            ("/k a\\\n# c\n b", &["a", "b"]),
            ("/k a\\sb \\\"", &["a b", "\""]),
        ] {
            let unit = format!(
                "[Service]\nEnvironment=ONE=1 \"TWO=1 2\" 'QUOTED=\"a b\" c'\nExecStart={line}\n"
            );
            let (args, problems) = command(&[("/u", &unit)], &[]);
            assert_eq!(problems, [""; 0], "{line}");
            assert_eq!(args[1..], *expected, "{line}");
        }
    }

    #[test]
    fn what_cannot_be_interpreted_is_said_with_file_and_line() {
        for (text, expected) in [
            (
                "[Service]\nExecStart=/k \"a\n",
                "/u:2: ExecStart=: a quote is not closed",
            ),
            (
                "[Service]\n\nExecStart=/k %t/x\n",
                "/u:3: ExecStart=: the specifier %t is not interpreted",
            ),
            (
                "[Service]\nExecStart=/k a\\qb\n",
                "/u:2: ExecStart=: the escape \\q is not interpreted",
            ),
            (
                "[Service]\nExecStart=-\n",
                "/u:2: ExecStart=: there is no program",
            ),
            (
                "[Service]\nEnvironment='A=b\n",
                "/u:2: Environment=: a quote is not closed",
            ),
            (
                "[Service]\nEnvironment=A\n",
                "/u:2: Environment=: \"A\" is no assignment",
            ),
            (
                "[Service]\nRootDirectory=/r\n",
                "/u:2: RootDirectory= is not interpreted",
            ),
            (
                "[Service]\nwords\n",
                "/u:2: the line is no setting: \"words\"",
            ),
            (
                "[Service]\nExecStart=/k\nExecStart=/l\n",
                "/u:3: ExecStart= is given here and at /u:2; systemd refuses the unit",
            ),
        ] {
            let (_, problems) = command(&[("/u", text)], &[]);
            assert_eq!(problems, [expected], "{text}");
        }
        let broken = [("/e", "A='b\n"), ("/f", "export\n")];
        let (_, problems) = command(&[("/u", UNIT)], &broken);
        assert_eq!(
            problems,
            [
                "/e:1: a quote is not closed",
                "/f:1: the line is no assignment"
            ]
        );
    }

    #[test]
    fn drop_ins_that_contradict_one_another_are_said_and_the_last_one_counts() {
        let set = |value: &str| format!("[Service]\nEnvironment=EXTRA=--v={value}\n");
        let unit = "[Service]\nExecStart=/k $EXTRA\n";
        let files = [
            ("/u", unit),
            ("/u.d/1.conf", &set("1")),
            ("/u.d/2.conf", &set("2")),
        ];
        let (args, problems) = command(&files, &[]);
        assert_eq!(args, ["/k", "--v=2"]);
        assert_eq!(
            problems,
            ["/u.d/2.conf:2: EXTRA is given here and at /u.d/1.conf:2; this one counts"]
        );
        // Other sections, and what resets a list.
        let reset =
            "[Install]\nExecStart=/x\n[Service]\nEnvironment=\nExecStart=\nExecStart=/k $EXTRA a\n";
        let (args, problems) = command(&[files[0], files[1], ("/u.d/3.conf", reset)], &[]);
        assert_eq!((args.join(" ").as_str(), problems.len()), ("/k a", 0));
        assert!(
            Service::of(&[file("/u", "[Service]\n")])
                .command("h")
                .is_none()
        );
    }

    #[test]
    fn values_of_environment_files_may_be_quoted() {
        for (line, expected) in [
            ("A=b c", &["b", "c"][..]),
            ("A=\"b c\"", &["b", "c"]),
            ("A='--x=1'", &["--x=1"]),
            ("A=", &[]),
            ("A=b\\\nc", &["bc"]),
            ("# A=x\n; A=y\n\nA=b", &["b"]),
        ] {
            let unit = "[Service]\nEnvironment=A=old\nExecStart=/k $A\n";
            let (args, _) = command(&[("/u", unit)], &[("/e", line)]);
            assert_eq!(args[1..], *expected, "{line}");
        }
    }

    #[test]
    fn a_kubelet_is_known_by_the_name_of_its_program() {
        for (path, is) in [
            ("/usr/bin/kubelet", true),
            ("/usr/bin/kubelet.go", true),
            ("kubelet", true),
            ("/usr/bin/kubelet-wrapper", false),
            ("/bin/sh", false),
            ("/", false),
        ] {
            assert_eq!(is_kubelet(Path::new(path)), is, "{path}");
        }
    }
}
