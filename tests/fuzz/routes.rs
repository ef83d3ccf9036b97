//! Methods and targets of requests: the routes that they match, and the rights that these need.

use crate::engine::{Target, fuzz, path};
use crate::spoken::{SEEDS, WORDS};
use crate::written::written;
use http::{Method, Uri};
use kubelet::host::{ConfinedFile, open_confined};
use kubelet::server::{
    Port, ROUTE_TABLE, Route, RouteEntry, RouteError, auth, route, subresources,
};
use std::collections::BTreeSet;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::OnceLock;

const PORTS: [Port; 4] = [Port::Health, Port::ReadOnly, Port::Main, Port::Local];

/// A directory of logs with links in it that lead everywhere, and a file outside that must not be readable.
struct Tree {
    _dir: tempfile::TempDir,
    root: PathBuf,
}

/// Every name below the root.
const NAMES: &[&str] = &[
    "a.log", "pods", "x", "0.log", "out", "abs", "loop", "in", "up", "back", "<x>&\"'", "%2e",
    "a b+c",
];

fn tree() -> &'static Tree {
    static TREE: OnceLock<Tree> = OnceLock::new();
    TREE.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        let (root, outside) = (base.join("root"), base.join("outside"));
        std::fs::create_dir_all(root.join("pods/x")).unwrap();
        std::fs::create_dir_all(&outside).unwrap();
        std::fs::write(outside.join("secret"), "secret").unwrap();
        for name in ["a.log", "pods/x/0.log", "<x>&\"'", "%2e", "a b+c"] {
            std::fs::write(root.join(name), "what is in it\n").unwrap();
        }
        let links = [
            ("out", "../outside".to_owned()),
            ("abs", outside.to_str().unwrap().to_owned()),
            ("loop", "loop".to_owned()),
            ("in", "a.log".to_owned()),
            ("up", "..".to_owned()),
            ("pods/back", root.to_str().unwrap().to_owned()),
        ];
        for (name, to) in links {
            symlink(to, root.join(name)).unwrap();
        }
        Tree { _dir: dir, root }
    })
}

/// Where the logs of the node are, for those who serve them.
pub(crate) fn log_root() -> PathBuf {
    tree().root.clone()
}

fn run(input: &[u8]) -> u64 {
    let line = input.split(|byte| matches!(byte, b'\r' | b'\n')).next();
    let line = line.unwrap_or_default();
    let mut words = line.splitn(3, |byte| *byte == b' ');
    let (method, target) = (words.next(), words.next());
    let method = Method::from_bytes(method.unwrap_or_default()).unwrap_or(Method::GET);
    let target = target.unwrap_or_default();
    let mut led = Vec::new();
    // As our server parses it, and any other text as a path.
    if let Ok(uri) = Uri::try_from(target) {
        led.push(judge(&method, uri.path(), uri.query()));
    }
    let text = String::from_utf8_lossy(target);
    let (path_text, query) = match text.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (&*text, None),
    };
    led.push(judge(&method, path_text, query));
    path(&led)
}

/// Everything that must hold of one request, on every port; says where it led.
fn judge(method: &Method, target: &str, query: Option<&str>) -> u64 {
    let mut led = Vec::new();
    for port in PORTS {
        let rows: Vec<&RouteEntry> = rows(port, target).collect();
        assert!(rows.len() <= 1, "two rows match {target:?}");
        let row = rows.first().copied();
        // The needed rights depend on the row alone.
        let needed = row.map_or(auth::PROXY, |row| row.subresources);
        assert_eq!(subresources(port, target), needed, "{target:?}");
        match route(port, method, target, query) {
            Ok((entry, found)) => {
                let row = row.expect("a route without a row");
                assert!(std::ptr::eq(entry, row), "{target:?}");
                assert!(entry.is_on(port) && entry.allows(method.as_str()));
                assert_eq!(entry.subresources, needed);
                same_again(port, method, entry, &found);
                same_escaped(port, method, target, query, &found);
                if let Route::NodeLogs(below, _) = &found {
                    led.push(path(&stays_inside(below)));
                }
                led.push(path(&(entry.pattern, size(&found))));
            }
            Err(RouteError::NotFound) => {
                // Either no row, or a name that is none.
                let names = row.is_none_or(|row| row.pattern.contains('{'));
                assert!(names || row.is_some_and(|row| row.pattern.is_empty()), "{target:?}");
                led.push(path(&row.map(|row| row.pattern)));
            }
            Err(RouteError::MethodNotAllowed(methods)) => {
                let row = row.expect("a row that takes other methods");
                assert_eq!(row.methods, methods);
                assert!(!row.allows(method.as_str()));
                led.push(path(&(row.pattern, "method")));
            }
            Err(error @ RouteError::BadQuery(_)) => {
                let row = row.expect("a row that reads the query");
                assert!(row.allows(method.as_str()));
                let text = error.to_string();
                assert!(!text.chars().any(char::is_control), "{text:?}");
                led.push(path(&(row.pattern, "query", text.len().min(40))));
            }
        }
    }
    path(&led)
}

// -- the table once more, read as simply as can be ------------------------------------------------------

/// The rows whose pattern a path has.
fn rows<'a>(port: Port, target: &'a str) -> impl Iterator<Item = &'static RouteEntry> + 'a {
    let on_port = ROUTE_TABLE.iter().filter(move |entry| entry.ports.contains(&port));
    on_port.filter(move |entry| matches(entry.pattern, target))
}

fn matches(pattern: &str, target: &str) -> bool {
    let (pattern, target): (Vec<_>, Vec<_>) =
        (pattern.split('/').collect(), target.split('/').collect());
    let rest = pattern.iter().position(|segment| segment.ends_with("...}"));
    if let Some(rest) = rest {
        let same = target.len() > rest && pattern[..rest].iter().zip(&target).all(|(p, t)| p == t);
        return same && decoded(&target[rest..].join("/")).is_some();
    }
    // A slash at the end of a pattern may be left out.
    let short =
        pattern.last() == Some(&"") && pattern.len() > 2 && target.len() + 1 == pattern.len();
    let same_length = short || target.len() == pattern.len();
    same_length
        && pattern.iter().zip(&target).all(|(pattern, target)| {
            if pattern.starts_with('{') {
                decoded(target).is_some_and(|name| !name.is_empty() && !name.contains('/'))
            } else {
                pattern == target
            }
        })
}

/// One decoding, of all of it or not at all.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, others @ ..] = rest {
        rest = others;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let (digits, others) = others.split_at_checked(2)?;
        let digits = std::str::from_utf8(digits).ok()?;
        if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return None;
        }
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        rest = others;
    }
    String::from_utf8(bytes).ok()
}

pub(crate) fn escaped(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02x}")).collect()
}

/// The same request with everything escaped that varies leads to the same; and with anything else escaped, to
/// nothing.
fn same_escaped(port: Port, method: &Method, target: &str, query: Option<&str>, found: &Route) {
    let entry = rows(port, target).next().unwrap();
    let pattern: Vec<_> = entry.pattern.split('/').collect();
    let segments: Vec<_> = target.split('/').collect();
    let mut same = Vec::new();
    for (at, segment) in segments.iter().enumerate() {
        let part = pattern.get(at).copied().unwrap_or(pattern[pattern.len() - 1]);
        if part.starts_with('{') {
            same.push(escaped(&decoded(segment).unwrap()))
        } else {
            same.push((*segment).to_owned())
        }
    }
    let again = route(port, method, &same.join("/"), query).map(|(_, route)| route);
    assert_eq!(again.as_ref(), Ok(found));
    let first = segments.get(1).copied().unwrap_or_default();
    if !first.is_empty() {
        let hidden = target.replacen(first, &escaped(first), 1);
        let hidden = route(port, method, &hidden, query).map(|(_, route)| route);
        assert_eq!(hidden, Err(RouteError::NotFound), "{target:?}");
    }
}

/// What was read, written down and read again, is the same.
fn same_again(port: Port, method: &Method, entry: &'static RouteEntry, found: &Route) {
    let (names, query) = written(found);
    let mut target = entry.pattern.to_owned();
    for name in names {
        let (start, end) = (target.find('{').unwrap(), target.find('}').unwrap());
        target.replace_range(start..=end, &escaped(&name));
    }
    assert!(!target.contains('{'), "{target}: {found:?}");
    let query: Vec<String> =
        query.iter().map(|(key, value)| format!("{key}={}", escaped(value))).collect();
    let again = route(port, method, &target, Some(&query.join("&"))).map(|(_, route)| route);
    assert_eq!(again.as_ref(), Ok(found), "{target}?{}", query.join("&"));
}

/// A number for how much a route has in it, so that the search goes on inside one row too.
fn size(route: &Route) -> usize {
    let (names, pairs) = written(route);
    let lengths = names.iter().map(|name| name.len().min(4));
    lengths.chain(pairs.iter().map(|(key, _)| key.len())).sum()
}

/// What is shown of the logs is below their root, whatever the path; says what it is.
fn stays_inside(below: &str) -> &'static str {
    if below.contains('\0') {
        return "null";
    }
    let tree = tree();
    match open_confined(&tree.root, below.as_ref(), 100) {
        Ok(ConfinedFile::File(file, _)) => {
            use std::os::fd::AsRawFd as _;
            let real = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
            assert!(real.starts_with(&tree.root), "{below:?} is {real:?}");
            "file"
        }
        Ok(ConfinedFile::Directory(names)) => {
            let known: BTreeSet<&str> = NAMES.iter().copied().collect();
            let strange = names.iter().find(|(name, _)| !known.contains(name.as_str()));
            assert_eq!(strange, None, "{below:?}");
            "directory"
        }
        Err(_) => "nothing",
    }
}

#[test]
fn routes() {
    fuzz(&Target {
        name: "routes",
        seeds: SEEDS.iter().map(|seed| seed.as_bytes().to_vec()).collect(),
        words: WORDS,
        run: &run,
    });
}
