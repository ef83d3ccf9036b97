//! Hints are written as their nodes and a sign: `01+` is preferred, `2-` is not, `*` stands for any node. Resources of
//! one provider are separated by commas.

use super::*;

fn hint(text: &str) -> TopologyHint {
    let preferred = text.ends_with('+');
    let nodes = text.trim_end_matches(['+', '-']);
    let digits = nodes.chars().map(|digit| digit.to_digit(10).unwrap());
    TopologyHint { affinity: (nodes != "*").then(|| NumaMask::of(digits).unwrap()), preferred }
}

fn provider(text: &str) -> ResourceHints {
    if text.is_empty() {
        return ResourceHints::new();
    }
    let resources = text.split(',').enumerate();
    resources
        .map(|(index, list)| {
            let hints = list.split_whitespace().map(hint).collect();
            (format!("resource{index}"), hints)
        })
        .collect()
}

fn machine(distances: &[&[u64]]) -> NumaInfo {
    let nodes = (0..).zip(distances.iter().map(|list| list.to_vec()));
    NumaInfo { nodes: nodes.collect(), prefer_closest: false }
}

fn four_nodes() -> NumaInfo {
    machine(&[&[10, 11, 12, 12], &[11, 10, 12, 12], &[12, 12, 10, 11], &[12, 12, 11, 10]])
}

/// Two sockets of four nodes; the way from 7 to 6 is longer than that back.
fn eight_nodes() -> NumaInfo {
    machine(&[
        &[10, 11, 12, 12, 30, 30, 30, 30],
        &[11, 10, 12, 12, 30, 30, 30, 30],
        &[12, 12, 10, 11, 30, 30, 30, 30],
        &[12, 12, 11, 10, 30, 30, 30, 30],
        &[30, 30, 30, 30, 10, 11, 12, 12],
        &[30, 30, 30, 30, 11, 10, 12, 12],
        &[30, 30, 30, 30, 12, 12, 10, 11],
        &[30, 30, 30, 30, 12, 12, 13, 10],
    ])
}

#[track_caller]
fn merges(policy: TopologyPolicy, numa: &NumaInfo, providers: &[&str], expected: &str) {
    let hints: Vec<_> = providers.iter().map(|text| provider(text)).collect();
    let merged = policy.merge(numa, &hints);
    assert_eq!(merged, hint(expected), "{policy:?} of {providers:?}");
    let reversed: Vec<_> = hints.into_iter().rev().collect();
    let again = policy.merge(numa, &reversed);
    assert_eq!(again, merged, "the order of providers matters");
}

#[test]
fn a_preferred_node_that_all_allow_wins_under_every_policy() {
    let cases: &[(&[&str], &str)] = &[
        (&["0+", "0+"], "0+"),
        (&["1+", "1+"], "1+"),
        (&["", "0+"], "0+"),
        (&["", "1+"], "1+"),
        (&["0+ 1+", "0+"], "0+"),
        (&["0+ 1+", "1+"], "1+"),
        (&["0+ 1+", "0+ 01-"], "0+"),
        (&["1+ 01-", "0+ 1+ 01-"], "1+"),
        (&["1+ 01-,0+ 1+ 01-"], "1+"),
        (&["*+", "1+"], "1+"),
    ];
    for (providers, expected) in cases {
        for policy in ["best-effort", "restricted", "single-numa-node"] {
            let policy = TopologyPolicy::parse(policy).unwrap();
            merges(policy, &four_nodes(), providers, expected);
        }
    }
}

#[test]
fn best_effort_and_restricted_take_the_best_there_is() {
    let cases: &[(&[&str], &str)] = &[
        (&["01+ 02+", "01+ 02+"], "01+"),
        (&[], "0123+"),
        (&[""], "0123+"),
        (&["*+"], "0123+"),
        (&["*-"], "0123-"),
        (&["0+", "1+"], "0123-"),
        (&["0+", "0-"], "0-"),
        (&["1+", "1-"], "1-"),
        (&["0+", "01+"], "0-"),
        (&["0+ 1+", "01-"], "0-"),
        (&["1+", "01+"], "1-"),
        (&["0123- 01-", "01-"], "01-"),
        (&["0123- 01-", "03-"], "03-"),
        (&["0123- 01-", "12-"], "12-"),
        (&["0123- 01-", "23-"], "23-"),
        (&["0123- 01-", "12- 23-"], "12-"),
        (&["0123- 01-", "123- 12- 13- 23-"], "12-"),
        (&["012- 0123-", "01- 012-", "0123-"], "012-"),
    ];
    for (providers, expected) in cases {
        for policy in [TopologyPolicy::BestEffort, TopologyPolicy::Restricted] {
            merges(policy, &four_nodes(), providers, expected);
        }
    }
}

#[test]
fn a_resource_without_hints_cannot_be_had() {
    let impossible = ResourceHints::from([("resource".to_owned(), Vec::new())]);
    let merged = TopologyPolicy::BestEffort.merge(&four_nodes(), std::slice::from_ref(&impossible));
    assert_eq!(merged, hint("0123-"));
    let merged = TopologyPolicy::SingleNumaNode.merge(&four_nodes(), &[impossible]);
    assert_eq!(merged, hint("*-"));
}

#[test]
fn single_numa_node_takes_one_node_or_none() {
    let cases: &[(&[&str], &str)] = &[
        (&[], "*+"),
        (&[""], "*+"),
        (&["*+"], "*+"),
        (&["*-"], "*-"),
        (&["0+", "1+"], "*-"),
        (&["0+", "0-"], "*-"),
        (&["1+", "1-"], "*-"),
        (&["0+ 1+", "01-"], "*-"),
        (&["01+,0+ 1+ 01-"], "*-"),
        (&["0+ 1+ 01-", ""], "0+"),
    ];
    for (providers, expected) in cases {
        merges(TopologyPolicy::SingleNumaNode, &four_nodes(), providers, expected);
    }
}

#[test]
fn nodes_that_are_close_win_if_that_is_wanted() {
    let cases: &[(&[&str], &str, &str)] = &[
        (&["04+ 02+", "04+ 02+"], "02+", "02+"),
        (&["4+ 02+", "4+ 02+"], "4+", "4+"),
        (&["0123- 01-", "12- 23-"], "23-", "12-"),
        (&["0123- 01-", "123- 12- 13- 23-"], "23-", "12-"),
        (&["67+ 45+", ""], "45+", "45+"),
        (&["46+ 67+", ""], "46+", "46+"),
        (&["06+ 67+", ""], "67+", "06+"),
    ];
    for (providers, closest, narrowest) in cases {
        let mut numa = eight_nodes();
        merges(TopologyPolicy::BestEffort, &numa, providers, narrowest);
        numa.prefer_closest = true;
        merges(TopologyPolicy::BestEffort, &numa, providers, closest);
    }
}

#[test]
fn many_resources_with_many_hints_are_merged_at_once() {
    let nodes: Vec<u32> = (0..8).collect();
    let all: Vec<_> = subsets(&nodes)
        .into_iter()
        .map(|mask| TopologyHint::new(mask, mask.count() == 3))
        .collect();
    let resources = (0..12).map(|index| (format!("resource{index}"), all.clone()));
    let hints = [resources.collect()];
    let merged = TopologyPolicy::Restricted.merge(&eight_nodes(), &hints);
    assert_eq!(merged, hint("012+"));
}

#[test]
fn masks_are_enumerated_from_small_to_large() {
    let found: Vec<_> = subsets(&[0, 2, 5]).iter().map(ToString::to_string).collect();
    assert_eq!(found, ["{0}", "{2}", "{5}", "{0,2}", "{0,5}", "{2,5}", "{0,2,5}"]);
    assert_eq!(combinations(&[1, 2, 3], 0), [Vec::<i32>::new()]);
    assert_eq!(combinations(&[1], 2), Vec::<Vec<i32>>::new());
    assert_eq!(NumaMask::of([64]), None);
    assert!(NumaMask::of([63]).unwrap().contains(63));
    assert!(!NumaMask::default().contains(64));
}

/// Lines of `merge_cases.txt` are a policy, whether close nodes are preferred, the hints of providers, and what the Go
/// kubelet merges them to on a machine with [`eight_nodes`].
#[test]
fn hints_merge_to_the_same_as_in_the_go_kubelet() {
    let mut cases = 0;
    for line in include_str!("merge_cases.txt").lines() {
        let [policy, closest, providers, expected, admitted] =
            line.split('|').collect::<Vec<_>>().try_into().unwrap();
        let policy = TopologyPolicy::parse(policy).unwrap();
        let numa = NumaInfo { prefer_closest: closest == "true", ..eight_nodes() };
        let providers: Vec<_> = providers.split(';').collect();
        merges(policy, &numa, &providers, expected);
        assert_eq!(policy.admits(hint(expected)).to_string(), admitted, "{line}");
        cases += 1;
    }
    assert!(cases > 200);
}
