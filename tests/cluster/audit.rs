//! The API server's audit log: what the node requests.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use jiff::Timestamp;
use serde_json::Value;

/// One request of the node, by its certificate or by its bootstrap token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    pub user: String,
    pub verb: String,
    /// With the subresource, if there is one: `pods/status`.
    pub resource: String,
    pub namespace: String,
    pub name: String,
    pub code: u64,
    pub received: Timestamp,
}

/// How often each verb was used on each resource.
pub type Counts = BTreeMap<(String, String), usize>;

/// All requests in the log, in the order in which they were answered. A watch counts from its first answer on.
pub fn read(log: &Path) -> Vec<Request> {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let mut seen = BTreeSet::new();
    // The last line may not be complete yet.
    let lines = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    let entries = lines.map(|line| serde_json::from_str::<Value>(line).expect(line));
    entries
        .filter(|entry| seen.insert(text_of(&entry["auditID"])))
        .map(|entry| request(&entry))
        .collect()
}

/// The requests by verb and resource.
pub fn counts<'r>(requests: impl IntoIterator<Item = &'r Request>) -> Counts {
    let mut counts = Counts::new();
    for request in requests {
        let key = (request.verb.clone(), request.resource.clone());
        *counts.entry(key).or_default() += 1;
    }
    counts
}

fn request(entry: &Value) -> Request {
    let object = &entry["objectRef"];
    let mut resource = text_of(&object["resource"]);
    if let Some(subresource) = object["subresource"].as_str() {
        resource = format!("{resource}/{subresource}");
    }
    let received = &entry["requestReceivedTimestamp"];
    Request {
        user: text_of(&entry["user"]["username"]),
        verb: text_of(&entry["verb"]),
        resource,
        namespace: text_of(&object["namespace"]),
        name: text_of(&object["name"]),
        code: entry["responseStatus"]["code"].as_u64().unwrap_or(0),
        received: received.as_str().unwrap().parse().unwrap(),
    }
}

fn text_of(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
