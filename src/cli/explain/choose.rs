//! Finds the pod that the user's argument names. Pure.

use crate::server::explain::{Overview, PodRow};

/// Maximum number of pods listed in an error.
const LISTED: usize = 12;

/// The pod with that UID, namespace/name, or name; the node name suffix of static pods may be omitted.
///
/// # Errors
/// No pod matches, or several do.
pub(super) fn choose<'a>(
    overview: &'a Overview,
    wanted: &str,
    namespace: Option<&str>,
) -> Result<&'a PodRow, String> {
    let pods = || overview.pods.iter();
    if let Some(pod) = pods().find(|pod| pod.uid == wanted) {
        return Ok(pod);
    }
    let (namespace, name) = match wanted.split_once('/') {
        Some((namespace, name)) => (Some(namespace), name),
        None => (namespace, wanted),
    };
    let suffix = format!("-{}", overview.node);
    let in_namespace = |pod: &&PodRow| namespace.is_none_or(|wanted| pod.namespace == wanted);
    let exactly = |pod: &&PodRow| pod.name == name;
    let without_suffix = |pod: &&PodRow| pod.name.strip_suffix(&suffix) == Some(name);
    let mut found: Vec<&PodRow> = pods().filter(in_namespace).filter(exactly).collect();
    if found.is_empty() {
        found = pods().filter(in_namespace).filter(without_suffix).collect();
    }
    match found.as_slice() {
        [pod] => Ok(pod),
        [] => Err(not_found(overview, wanted)),
        several => {
            let shown = |pod: &&PodRow| format!("{} ({})", shown(pod), pod.uid);
            let list: Vec<_> = several.iter().map(shown).collect();
            let list = list.join(", ");
            Err(format!("several pods are called {wanted:?}: {list}; choose one by its UID"))
        }
    }
}

fn shown(pod: &PodRow) -> String {
    format!("{}/{}", pod.namespace, pod.name)
}

fn not_found(overview: &Overview, wanted: &str) -> String {
    let mut names: Vec<_> = overview.pods.iter().map(shown).collect();
    let more = names.len().saturating_sub(LISTED);
    names.truncate(LISTED);
    let names = match (names.is_empty(), more) {
        (true, _) => "there are no pods on this node".into(),
        (false, 0) => format!("there are {}", names.join(", ")),
        (false, more) => format!("there are {} and {more} more", names.join(", ")),
    };
    format!("no pod {wanted:?}; {names}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(pods: &[(&str, &str, &str)]) -> Overview {
        let pod = |(namespace, name, uid): &(&str, &str, &str)| PodRow {
            namespace: namespace.to_string(),
            name: name.to_string(),
            uid: uid.to_string(),
            ..PodRow::default()
        };
        Overview { node: "n1".into(), pods: pods.iter().map(pod).collect(), ..Overview::default() }
    }

    #[test]
    fn a_pod_is_chosen_by_uid_by_name_or_by_its_name_without_the_nodes_suffix() {
        let node = node(&[
            ("default", "web-n1", "1"),
            ("shop", "web-n1", "2"),
            ("shop", "db-n1", "3"),
            ("shop", "db-n1-n1", "4"),
        ]);
        for (wanted, namespace, uid) in [
            ("2", None, "2"),
            ("shop/web-n1", None, "2"),
            ("shop/web", None, "2"),
            ("web", Some("default"), "1"),
            ("db", None, "3"),
            ("db-n1", None, "3"),
            ("db-n1-n1", None, "4"),
        ] {
            assert_eq!(choose(&node, wanted, namespace).unwrap().uid, uid, "{wanted}");
        }
    }

    #[test]
    fn none_and_several_are_named() {
        let two = node(&[("default", "web-n1", "1"), ("shop", "web-n1", "2")]);
        assert_eq!(
            choose(&two, "web", None).unwrap_err(),
            "several pods are called \"web\": default/web-n1 (1), shop/web-n1 (2); \
             choose one by its UID"
        );
        assert_eq!(
            choose(&two, "other/web", None).unwrap_err(),
            "no pod \"other/web\"; there are default/web-n1, shop/web-n1"
        );
        let none = choose(&node(&[]), "web", None).unwrap_err();
        assert_eq!(none, "no pod \"web\"; there are no pods on this node");
        let many: Vec<_> = (0..20).map(|_| ("a", "b", "c")).collect();
        let error = choose(&node(&many), "web", None).unwrap_err();
        assert!(error.ends_with("a/b and 8 more"), "{error}");
    }
}
