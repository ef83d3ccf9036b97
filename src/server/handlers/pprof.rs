//! CPU profiles in pprof's format (gzipped `profile.proto` of google/pprof), for `go tool pprof`. Pure.

use crate::host::profile::{PERIOD, Profile};
use flate2::Compression;
use flate2::write::GzEncoder;
use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write as _};
use std::time::Duration;
use wire::{Function, Line, Location, Mapping, Sample, ValueType};

/// The generated messages.
#[allow(missing_docs, clippy::all)]
pub mod wire {
    tonic::include_proto!("perftools.profiles");
}

/// Builds the string table.
#[derive(Default)]
struct StringTable {
    numbers: HashMap<String, i64>,
    texts: Vec<String>,
}

impl StringTable {
    fn index_of(&mut self, text: &str) -> i64 {
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        let number = i64::try_from(self.texts.len()).unwrap_or(0);
        self.texts.push(text.to_owned());
        self.numbers.insert(text.to_owned(), number);
        number
    }
}

/// Builds the message of a profile that started at `time` (since 1970) and took `took`.
pub fn message(profile: &Profile, time: Duration, took: Duration) -> wire::Profile {
    let nanos = |time: Duration| i64::try_from(time.as_nanos()).unwrap_or(i64::MAX);
    let mut texts = StringTable::default();
    texts.index_of("");
    let samples = ValueType { r#type: texts.index_of("samples"), unit: texts.index_of("count") };
    let cpu = ValueType { r#type: texts.index_of("cpu"), unit: texts.index_of("nanoseconds") };
    let mapping: Vec<Mapping> = (1..)
        .zip(&profile.mappings)
        .map(|(id, mapping)| Mapping {
            id,
            memory_start: mapping.start,
            memory_limit: mapping.end,
            file_offset: mapping.offset,
            filename: texts.index_of(&mapping.path),
            build_id: texts.index_of(&mapping.build_id),
            has_functions: true,
        })
        .collect();
    let mut functions: BTreeMap<i64, Function> = BTreeMap::new();
    let mut locations: BTreeMap<u64, Location> = BTreeMap::new();
    let mut sample = Vec::new();
    for (stack, times) in &profile.stacks {
        let mut location_id = Vec::with_capacity(stack.len());
        for address in stack {
            let next = locations.len() as u64 + 1;
            let location = locations.entry(*address).or_insert_with(|| {
                let of_it = |mapping: &&Mapping| {
                    (mapping.memory_start..mapping.memory_limit).contains(address)
                };
                let line = profile.functions.get(address).map(|function| {
                    let system_name = texts.index_of(&function.symbol);
                    let id = functions.len() as u64 + 1;
                    let known = functions.entry(system_name).or_insert(Function {
                        id,
                        name: texts.index_of(&function.name),
                        system_name,
                    });
                    Line { function_id: known.id }
                });
                Location {
                    id: next,
                    mapping_id: mapping.iter().find(of_it).map_or(0, |mapping| mapping.id),
                    address: *address,
                    line: line.into_iter().collect(),
                }
            });
            location_id.push(location.id);
        }
        let times = i64::try_from(*times).unwrap_or(i64::MAX);
        let value = vec![times, times.saturating_mul(nanos(PERIOD))];
        sample.push(Sample { location_id, value });
    }
    let missed = format!("{} samples were missed", profile.missed);
    let comment = (profile.missed > 0).then(|| texts.index_of(&missed));
    wire::Profile {
        sample_type: vec![samples, cpu],
        sample,
        mapping,
        location: locations.into_values().collect(),
        function: functions.into_values().collect(),
        time_nanos: nanos(time),
        duration_nanos: nanos(took),
        period_type: Some(cpu),
        period: nanos(PERIOD),
        comment: comment.into_iter().collect(),
        string_table: texts.texts,
    }
}

/// Encodes and compresses the profile.
///
/// # Errors
/// Compression failed; it does not for a writer in memory.
pub(in crate::server) fn file(message: &wire::Profile) -> io::Result<Vec<u8>> {
    let mut file = GzEncoder::new(Vec::new(), Compression::fast());
    file.write_all(&prost::Message::encode_to_vec(message))?;
    file.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::profile::{Function, Mapping};

    #[test]
    fn stacks_share_locations_functions_and_texts() {
        let function = |name: &str| Function { name: name.into(), symbol: format!("_{name}") };
        let profile = Profile {
            stacks: vec![(vec![10, 20, 30], 2), (vec![11, 20, 99], 1)],
            functions: [(10, function("inner")), (11, function("inner")), (20, function("outer"))]
                .into(),
            mappings: vec![Mapping {
                start: 5,
                end: 40,
                path: "/bin/x".into(),
                ..Mapping::default()
            }],
            missed: 3,
        };
        let message = message(&profile, Duration::from_secs(5), Duration::from_secs(1));
        let text = |number: i64| message.string_table[usize::try_from(number).unwrap()].as_str();
        assert_eq!(text(0), "");
        let place = |id: u64| message.location.iter().find(|l| l.id == id).unwrap();
        let name = |id: u64| {
            let line = place(id).line.first()?;
            let function = message.function.iter().find(|f| f.id == line.function_id)?;
            Some(text(function.name))
        };
        let shown: Vec<(Vec<_>, &[i64])> = message
            .sample
            .iter()
            .map(|s| (s.location_id.iter().map(|id| name(*id)).collect(), &*s.value))
            .collect();
        let stack = vec![Some("inner"), Some("outer"), None];
        let expected: Vec<(Vec<_>, &[i64])> =
            vec![(stack.clone(), &[2, 20_000_000]), (stack, &[1, 10_000_000])];
        assert_eq!(shown, expected);
        assert_eq!((message.function.len(), message.location.len()), (2, 5));
        let outside = message.location.iter().filter(|l| l.mapping_id == 0);
        assert_eq!(outside.map(|l| l.address).collect::<Vec<_>>(), [99]);
        assert_eq!(text(message.comment[0]), "3 samples were missed");
        assert_eq!((message.time_nanos, message.duration_nanos), (5_000_000_000, 1_000_000_000));
    }
}
