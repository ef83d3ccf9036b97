//! Volumes whose files the kubelet writes: names of files from manifests and objects, in a volume into
//! which a container with rights over the node has put whatever it likes.

use crate::engine::{Target, fuzz, path};
use bytes::Bytes;
use kubelet::volumes::kinds::content::{Payload, Written, write_files};
use kubelet::volumes::{PathError, VolumeGroup};
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::{fs, io};

/// A line is the path of a file, unless it begins with one of these.
const END_OF_VERSION: &str = "=";
const PLANT: char = '!';

const SEEDS: &[&str] = &[
    "color\nshape\n",
    "a/b\na/c\nd\n=\na/b\n=\na/b\na/c\nd\n=\na/b\na/c\nd\n",
    "a\n=\na/b\n=\na\n",
    "./a//b/./c\n../x\n..x\n/x\na/../b\n...\n\n",
    "!la\na\n=\n!l..data\nb\n=\n!d..data_tmp\nc\n=\n!f..data\nd\n",
    "!dnested\n!fplain\nnested\nplain\nother\n=\n!l..2026_01_01_00_00_00.1\n!d..x\nother\n",
    "!d..mine\n!l..data>..mine\na\n=\n!la>..data/../../outside\na\n=\n!l..data>../outside\na\n",
    "a/a/a/a/a/a/a/a/a/a/a/a\n=\na/a/a/a\n",
];

const WORDS: &[&str] = &[
    "\n=\n",
    "\n!l",
    "\n!d",
    "\n!f",
    ">",
    "..data",
    "..data_tmp",
    "..data/",
    "..",
    "../",
    "./",
    "/",
    "//",
    "...",
    "a/",
    "a",
    "\0",
    "é",
    "\u{feff}",
    " ",
    "~",
    "-",
    "\\",
    "%2e%2e",
    "nested",
];

/// Limit of lines that are checked: each costs disk reads.
const LINES: usize = 60;
/// Longest path that is read through the volume's own, bytes.
const READABLE: usize = 3000;

struct Place {
    /// Nothing in it may change.
    outside: PathBuf,
    volume: PathBuf,
    /// Names in the volume that the writer did not make.
    planted: BTreeSet<String>,
}

fn text_of(path: &str, version: usize) -> Bytes {
    Bytes::from(format!("{version}:{path}"))
}

fn mode_of(path: &str) -> u32 {
    [0o644, 0o400, 0o755, 0o440][path.len() % 4]
}

impl Place {
    fn new(directory: &Path) -> Self {
        let (outside, volume) = (directory.join("outside"), directory.join("volume"));
        fs::create_dir_all(outside.join("a")).unwrap();
        fs::write(outside.join("a/b"), "theirs").unwrap();
        fs::create_dir(&volume).unwrap();
        let planted = BTreeSet::new();
        Self { outside, volume, planted }
    }

    /// Puts something into the volume under one plain name, instead of what is there.
    fn plant(&mut self, line: &str) {
        let (kind, rest) = line.split_at_checked(1).unwrap_or_default();
        let (name, target) = rest.split_once('>').unwrap_or((rest, ""));
        if matches!(name, "" | "." | "..") || name.len() > 200 || name.contains(['/', '\0']) {
            return;
        }
        let at = self.volume.join(name);
        match fs::symlink_metadata(&at) {
            Ok(there) if there.is_dir() => fs::remove_dir_all(&at).unwrap(),
            Ok(_) => fs::remove_file(&at).unwrap(),
            Err(_) => {}
        }
        match kind {
            "l" if target.is_empty() => symlink(&self.outside, &at).unwrap(),
            // One that the kernel does not take is none.
            "l" => drop(symlink(target, &at)),
            "d" => {
                fs::create_dir(&at).unwrap();
                symlink(&self.outside, at.join("a")).unwrap();
            }
            _ => fs::write(&at, "planted").unwrap(),
        }
        self.planted.insert(name.to_owned());
    }

    /// Whatever was written, nothing outside of the volume is other than before.
    fn nothing_outside_changed(&self) {
        let names = |path: &Path| -> Vec<_> {
            let entries = fs::read_dir(path).unwrap();
            entries.map(|entry| entry.unwrap().file_name()).collect()
        };
        assert_eq!(names(&self.outside), ["a"]);
        assert_eq!(names(&self.outside.join("a")), ["b"]);
        let theirs = fs::read(self.outside.join("a/b")).unwrap();
        assert_eq!(theirs, b"theirs");
    }

    /// Each file is there with its text and mode, and the volume shows nothing else of the writer's.
    fn shows(&self, payload: &Payload, group: VolumeGroup) {
        let data = self.volume.join("..data");
        for (path, content) in payload.files().filter(|(path, _)| path.len() < READABLE) {
            let file = data.join(path);
            assert_eq!(fs::read(&file).unwrap(), content.data, "{path}");
            let mode = fs::symlink_metadata(&file).unwrap().permissions().mode();
            let for_group = if group.0.is_some() { 0o440 } else { 0 };
            assert_eq!(mode & 0o7777, content.mode | for_group, "{path}");
            let first = path.split('/').next().unwrap();
            if !self.planted.contains(first) {
                let link = fs::read_link(self.volume.join(first)).unwrap();
                assert_eq!(link, Path::new("..data").join(first));
            }
        }
        let version = fs::read_link(&data).unwrap();
        let firsts: BTreeSet<&str> =
            payload.files().filter_map(|(path, _)| path.split('/').next()).collect();
        for entry in fs::read_dir(&self.volume).unwrap() {
            let name = entry.unwrap().file_name();
            let known = name == "..data" || name.as_os_str() == version.as_os_str();
            let name = name.to_str().unwrap();
            let expected = firsts.contains(name) || self.planted.contains(name);
            let own = name.starts_with("..");
            assert!(known || expected && !own, "{name} is left");
        }
    }
}

/// What distinguishes refusals.
fn kind(error: &PathError) -> String {
    let text = format!("{error:?}");
    text.split('(').next().unwrap_or_default().to_owned()
}

fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(0)
}

fn run(input: &[u8]) -> u64 {
    let directory = tempfile::tempdir_in(scratch()).unwrap();
    let mut place = Place::new(directory.path());
    let gid = fs::metadata(&place.volume).unwrap().gid();
    let text = String::from_utf8_lossy(input);
    let mut led = Vec::new();
    let mut payload = Payload::default();
    let mut files: BTreeMap<String, usize> = BTreeMap::new();
    let mut version = 0;
    for line in text.split('\n').take(LINES).chain([END_OF_VERSION]) {
        if let Some(plant) = line.strip_prefix(PLANT) {
            place.plant(plant);
            led.push("planted".to_owned());
        } else if line == END_OF_VERSION {
            let group = VolumeGroup((version % 2 == 1).then_some(gid));
            led.push(write(&mut place, &payload, group));
            version += 1;
            payload = Payload::default();
        } else {
            match payload.insert(line, text_of(line, version / 2), mode_of(line)) {
                Ok(()) => *files.entry(line.to_owned()).or_default() += 1,
                Err(error) => led.push(kind(&error)),
            }
        }
    }
    let again = files.values().any(|count| *count > 1);
    led.dedup();
    led.truncate(12);
    path(&(led, again, files.len().min(6)))
}

fn write(place: &mut Place, payload: &Payload, group: VolumeGroup) -> String {
    if let Err(error) = payload.check() {
        // A volume like that is refused before anything is written.
        return kind(&error);
    }
    let written = write_files(&place.volume, payload, group);
    place.nothing_outside_changed();
    let led = match written {
        Ok(written) => {
            place.shows(payload, group);
            let again = write_files(&place.volume, payload, group).unwrap();
            assert_eq!(again, Written::Before, "what is shown is not written again");
            format!("{written:?}")
        }
        Err(error) => format!("error {}", errno(&error)),
    };
    place.planted.retain(|name| {
        // The writer removes what has a name of its own.
        place.volume.join(name).symlink_metadata().is_ok()
    });
    led
}

/// In memory where that is possible: a volume is made for every input.
fn scratch() -> PathBuf {
    let memory = PathBuf::from("/dev/shm");
    match tempfile::tempdir_in(&memory) {
        Ok(_) => memory,
        Err(_) => std::env::temp_dir(),
    }
}

#[test]
fn volume_files() {
    fuzz(&Target {
        name: "volume_files",
        seeds: SEEDS.iter().map(|seed| seed.as_bytes().to_vec()).collect(),
        words: WORDS,
        run: &run,
    });
}
