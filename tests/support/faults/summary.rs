//! The tables of a run.

use std::collections::BTreeMap;
use std::time::Duration;

use super::findings::{Goal, Sum};
use super::settings::{Fault, Settings};
use crate::support::kubelet_process;
use crate::support::report::{self, Table};

/// Prints what came of a run, keeps it in `target/faults` when it was a measured one, and returns the goals that
/// were missed.
pub fn summarize(runtime: &str, settings: &Settings, sums: &BTreeMap<Fault, Sum>) -> Vec<String> {
    let missed = sums.iter().flat_map(|(fault, sum)| {
        let counted = |goal: &Goal| !settings.uncounted.contains(goal);
        let missed = sum.missed().into_iter().filter(counted);
        missed.map(|goal| {
            let (number, examples) = (sum.count(goal), sum.examples(goal));
            format!("{}: {number} {} ({examples})", fault.text(), goal.text())
        })
    });
    let missed: Vec<_> = missed.collect();
    let tables = || [counts(runtime, settings, sums), times(sums), machine(settings)];
    if settings.is_measured {
        report::write("faults", &format!("{runtime}.md"), &tables());
    } else if !missed.is_empty() {
        println!("{}", tables().each_ref().map(Table::markdown).join("\n"));
    }
    missed
}

fn head<'t>(first: &[&'t str], sums: &BTreeMap<Fault, Sum>) -> Vec<&'t str> {
    let faults = sums.keys().map(|fault| fault.text());
    first.iter().copied().chain(faults).collect()
}

fn row(first: &[&str], sums: &BTreeMap<Fault, Sum>, cell: impl Fn(&Sum) -> String) -> Vec<String> {
    let first = first.iter().map(|text| (*text).to_owned());
    first.chain(sums.values().map(cell)).collect()
}

fn counts(runtime: &str, settings: &Settings, sums: &BTreeMap<Fault, Sum>) -> Table {
    let title = format!("Faults on {runtime}");
    let mut table = Table::new(&title, &head(&["counted", "goal"], sums));
    table.row(row(&["faults", ""], sums, |sum| sum.faults.to_string()));
    table.row(row(&["nodes", ""], sums, |sum| sum.episodes.to_string()));
    table.row(row(&["changes of manifests", ""], sums, |sum| sum.changes.to_string()));
    table.row(row(&["containers started", ""], sums, |sum| sum.starts.to_string()));
    for goal in Goal::ALL {
        let wanted = if goal.is_informational() { "" } else { "0" };
        let is_counted = !settings.uncounted.contains(goal);
        let count = |sum: &Sum| {
            if is_counted { sum.count(*goal).to_string() } else { "-".to_owned() }
        };
        table.row(row(&[goal.text(), wanted], sums, count));
    }
    table
}

/// The middle, 99 of 100, and the longest, in milliseconds.
fn spread(times: &[Duration]) -> String {
    let mut times = times.to_vec();
    times.sort();
    let at = |hundredths: usize| {
        let place = (times.len() * hundredths / 100).min(times.len().saturating_sub(1));
        let time = times.get(place);
        time.map_or("-".to_owned(), |time| time.as_millis().to_string())
    };
    format!("{} / {} / {}", at(50), at(99), at(100))
}

fn times(sums: &BTreeMap<Fault, Sum>) -> Table {
    let mut table = Table::new("Times in ms (mid/99%/max)", &head(&["time"], sums));
    let seen = |sum: &Sum| format!("{} of {}", sum.recoveries.len(), sum.faults);
    table.row(row(&["until the statuses are right"], sums, |sum| spread(&sum.recoveries)));
    table.row(row(&["seen before the next fault"], sums, seen));
    table.row(row(&["until all is settled after the last"], sums, |sum| spread(&sum.settled)));
    table.row(row(&["until nothing is left of removed pods"], sums, |sum| spread(&sum.emptied)));
    table
}

fn machine(settings: &Settings) -> Table {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let value = |text: &str, key: &str| {
        let line = text.lines().find(|line| line.starts_with(key));
        let value = line.and_then(|line| line.split_once(':'));
        value.map_or_else(String::new, |(_, value)| value.trim().to_owned())
    };
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let program = kubelet_process::Settings::program_under_test();
    let name = program.file_name().unwrap_or_default();
    let directory = program.parent().and_then(|path| path.file_name());
    let mut table = Table::new("Run", &["what", "is"]);
    let mut line = |what: &str, is: String| table.row(vec![what.to_owned(), is]);
    line("seed", settings.seed.to_string());
    line("episodes at once", settings.lanes.to_string());
    line("kubelet", format!("{}/{}", directory.unwrap_or_default().display(), name.display()));
    line("CPUs", format!("{cpus} of {}", value(&read("/proc/cpuinfo"), "model name")));
    line("memory", value(&read("/proc/meminfo"), "MemTotal"));
    line("kernel", read("/proc/sys/kernel/osrelease").trim().to_owned());
    table
}
