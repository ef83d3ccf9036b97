//! The table of metrics beside the facts from the Go kubelet.

use crate::metric_facts::{self, Deviations};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// The labels that all `container_` families of `/metrics/cadvisor` have, as the prose above their table says.
const OF_CONTAINERS: [&str; 6] = ["container", "id", "image", "name", "namespace", "pod"];

#[test]
fn each_family_of_the_go_kubelet_is_in_the_table_as_it_is_there_or_is_a_deviation() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let table = fs::read_to_string(root.join("docs/metrics.md")).unwrap();
    let mut page = "";
    let mut documented = BTreeMap::new();
    for line in table.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            page = heading;
        } else if line.starts_with("| `") {
            let cells: Vec<_> = line.split(" | ").collect();
            let name = cells[0].trim_matches(['|', ' ', '`']);
            let labels = cells[2].split(',').map(str::trim).filter(|it| !it.is_empty());
            let mut labels: BTreeSet<String> = labels.map(str::to_owned).collect();
            if page == "/metrics/cadvisor"
                && name.starts_with("container_")
                && name != "container_scrape_error"
            {
                labels.extend(OF_CONTAINERS.map(str::to_owned));
            }
            documented.insert((page.to_owned(), name.to_owned()), (cells[1].to_owned(), labels));
        }
    }
    let deviations = Deviations::read();
    let facts = metric_facts::recorded();
    assert!(facts.len() > 200, "the facts were not found");
    let mut wrong = Vec::new();
    for (key, fact) in &facts {
        let (page, name) = key;
        match documented.get(key) {
            Some(_) if deviations.have(name) => {
                wrong.push(format!("{page} {name} is served, and a deviation"));
            }
            Some((kind, labels)) if (kind, labels) != (&fact.kind, &fact.labels) => {
                wrong.push(format!(
                    "{page} {name} is {kind} {labels:?}, the Go kubelet has {} {:?}",
                    fact.kind, fact.labels
                ));
            }
            None if !deviations.have(name) => {
                wrong.push(format!("{page} {name} is neither served nor a deviation"));
            }
            _ => {}
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    let names = deviations.names().iter();
    let idle: Vec<_> = names
        .filter(|name| {
            let means = |(_, family): &&(String, String)| Deviations::means(name, family);
            !facts.keys().any(|key| means(&key)) && !SELDOM.contains(&name.as_str())
        })
        .collect();
    assert!(idle.is_empty(), "no such family: {idle:?}");
}

/// Families that only some nodes of the Go kubelet have.
const SELDOM: [&str; 1] = ["volume_manager_selinux_*"];
