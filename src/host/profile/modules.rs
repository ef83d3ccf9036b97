//! The executable mappings of the process (the program and its libraries), with their unwind information and function
//! names.

use super::Function;
use framehop::{ExplicitModuleSectionInfo, Module};
use object::elf::PF_X;
use object::{
    Object as _, ObjectSection as _, ObjectSegment, ObjectSymbol as _, ReadCache, SegmentFlags,
    SymbolKind,
};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::path::Path;

/// A file with an executable mapping.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mapping {
    /// Addresses from the start of the file's first mapping to the end of its last one.
    pub range: Range<u64>,
    /// Start address of the executable mapping,
    pub start: u64,
    /// its end address,
    pub end: u64,
    /// and its offset in the file, in bytes.
    pub offset: u64,
    /// The file's path.
    pub path: String,
    /// The build ID in hexadecimal digits; may be empty.
    pub build_id: String,
    /// The difference between an address in memory and the one in the file.
    pub(crate) bias: u64,
}

/// Parses the executable mappings in `/proc/self/maps`; fields from the files themselves are left empty.
fn parse_maps(text: &str) -> Vec<Mapping> {
    let mut ranges: BTreeMap<&str, Range<u64>> = BTreeMap::new();
    let mut running = Vec::new();
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        let (Some(range), Some(rights), Some(offset)) = (words.next(), words.next(), words.next())
        else {
            continue;
        };
        let Some(path) = words.nth(2).filter(|path| path.starts_with('/')) else {
            continue;
        };
        // A path may contain spaces.
        let path = line.find(path).and_then(|at| line.get(at..)).unwrap_or(path);
        let number = |text: &str| u64::from_str_radix(text, 16).ok();
        let range = range.split_once('-');
        let Some((start, end)) = range.and_then(|(a, b)| Some((number(a)?, number(b)?))) else {
            continue;
        };
        let whole = ranges.entry(path).or_insert(start..end);
        *whole = whole.start.min(start)..whole.end.max(end);
        if rights.contains('x') {
            running.push(Mapping {
                start,
                end,
                offset: number(offset).unwrap_or(0),
                path: path.to_owned(),
                ..Mapping::default()
            });
        }
    }
    for mapping in &mut running {
        mapping.range = ranges.get(&*mapping.path).cloned().unwrap_or_default();
    }
    running
}

/// Opens the mapped file itself, even if its path was replaced since.
fn open(mapping: &Mapping) -> io::Result<File> {
    let mapped = format!("/proc/self/map_files/{:x}-{:x}", mapping.start, mapping.end);
    File::open(mapped).or_else(|_| File::open(Path::new(&mapping.path)))
}

/// The difference between a segment's addresses in memory and in the file, if the segment is the mapped one. The
/// mapping starts at the segment's first page, which the segment may fill only in part.
fn bias<'data>(mapping: &Mapping, segment: &impl ObjectSegment<'data>) -> Option<u64> {
    let SegmentFlags::Elf { p_flags, .. } = segment.flags() else {
        return None;
    };
    let (at, size) = segment.file_range();
    let mapped = mapping.offset..mapping.offset + (mapping.end - mapping.start);
    let overlaps = mapped.start < at + size && at < mapped.end;
    let bias = || (mapping.start + at).checked_sub(mapping.offset)?.checked_sub(segment.address());
    ((p_flags & PF_X).0 != 0 && overlaps).then(bias).flatten()
}

/// All executable mappings with their unwind information. Unreadable ones are skipped.
pub(super) fn modules() -> io::Result<Vec<(Mapping, Module<Vec<u8>>)>> {
    let maps = fs::read_to_string("/proc/self/maps")?;
    let read = parse_maps(&maps).into_iter().filter_map(|mut mapping| {
        let cache = ReadCache::new(open(&mapping).ok()?);
        let file = object::File::parse(&cache).ok()?;
        mapping.bias = file.segments().find_map(|segment| bias(&mapping, &segment))?;
        let id = file.build_id().ok().flatten();
        mapping.build_id = id.map(crate::base::hex).unwrap_or_default();
        let section = |name: &str| {
            let section = file.section_by_name(name)?;
            let range = section.address()..section.address().checked_add(section.size())?;
            Some((range, section))
        };
        let data = |name: &str| Some(section(name)?.1.data().ok()?.to_vec());
        let place = |name: &str| Some(section(name)?.0);
        let sections = ExplicitModuleSectionInfo {
            base_svma: 0,
            text_svma: place(".text"),
            text: data(".text"),
            got_svma: place(".got"),
            eh_frame_svma: place(".eh_frame"),
            eh_frame: data(".eh_frame"),
            eh_frame_hdr_svma: place(".eh_frame_hdr"),
            eh_frame_hdr: data(".eh_frame_hdr"),
            ..ExplicitModuleSectionInfo::default()
        };
        let module =
            Module::new(mapping.path.clone(), mapping.range.clone(), mapping.bias, sections);
        Some((mapping, module))
    });
    Ok(read.collect())
}

/// The functions of these sorted addresses, as far as the file has symbols for them.
pub(super) fn functions(mapping: &Mapping, addresses: &[u64]) -> BTreeMap<u64, Function> {
    let mut found = BTreeMap::new();
    let Ok(file) = open(mapping) else {
        return found;
    };
    let cache = ReadCache::new(file);
    let Ok(file) = object::File::parse(&cache) else {
        return found;
    };
    for symbol in file.dynamic_symbols().chain(file.symbols()) {
        if symbol.kind() != SymbolKind::Text || symbol.size() == 0 {
            continue;
        }
        let start = symbol.address().wrapping_add(mapping.bias);
        let end = start.saturating_add(symbol.size());
        let from = addresses.partition_point(|address| *address < start);
        let inside = addresses.get(from..).unwrap_or_default().iter();
        let mut inside = inside.take_while(|address| **address < end).peekable();
        // Names are read only for symbols that contain an address.
        if inside.peek().is_none() {
            continue;
        }
        let Ok(name) = symbol.name() else {
            continue;
        };
        for address in inside {
            found.entry(*address).or_insert_with(|| Function {
                name: format!("{:#}", rustc_demangle::demangle(name)),
                symbol: name.to_owned(),
            });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_runs_is_read_from_the_map_of_the_process() {
        let text = "\
            55d0c0000000-55d0c0100000 r--p 00000000 fe:00 17  /usr/bin/a b\n\
            55d0c0100000-55d0c0900000 r-xp 00100000 fe:00 17  /usr/bin/a b\n\
            55d0c0900000-55d0c0a00000 rw-p 00900000 fe:00 17  /usr/bin/a b\n\
            55d0c1000000-55d0c1100000 rw-p 00000000 00:00 0  [heap]\n\
            7f0000000000-7f0000021000 rw-p 00000000 00:00 0\n\
            7f1000000000-7f1000001000 r-xp 00000000 00:00 0  [vdso]\n\
            strange line\n\
            zz-yy r-xp 0 0 0 /lib/x\n";
        let expected = Mapping {
            range: 0x55d0_c000_0000..0x55d0_c0a0_0000,
            start: 0x55d0_c010_0000,
            end: 0x55d0_c090_0000,
            offset: 0x10_0000,
            path: "/usr/bin/a b".into(),
            ..Mapping::default()
        };
        assert_eq!(parse_maps(text), [expected]);
    }

    #[test]
    fn this_program_is_found_with_its_frames_and_names() {
        let modules = modules().unwrap();
        let here = this_program_is_found_with_its_frames_and_names as *const () as u64;
        let (mapping, _) = modules
            .iter()
            .find(|(mapping, _)| (mapping.start..mapping.end).contains(&here))
            .unwrap();
        let named = functions(mapping, &[here + 1]);
        let name = &named[&(here + 1)].name;
        assert!(name.contains("this_program_is_found"), "{name}");
    }
}
