use super::*;
use crate::config::kubelet_configuration::KubeletConfiguration;

fn tree(text: &str) -> Node {
    parse(&Arc::from("k.yaml"), text).unwrap()
}

fn lines(text: &str) -> Vec<String> {
    match parse(&Arc::from("k.yaml"), text) {
        Err(problem) => vec![problem.to_string()],
        Ok(tree) => match decode::<KubeletConfiguration>(&tree) {
            Ok(_) => Vec::new(),
            Err(problems) => problems.iter().map(Problem::to_string).collect(),
        },
    }
}

#[test]
fn every_unknown_and_mistyped_field_is_named_with_line_and_column() {
    let text = "\
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
maxPod: 5
syncFrequency: 60
evictionHard:
  memory.available: 100
clusterDNS:
  - 10.0.0.10
  - 5
  - yes
crashLoopBackOff:
  maxContainerRestartPeriod: 5 minutes
  typo: 1
failSwapOn: maybe
port: 99999999999
";
    assert_eq!(
        lines(text),
        [
            "k.yaml:3:1: maxPod: unknown field; did you mean \"maxPods\"?",
            "k.yaml:4:16: syncFrequency: expected a string (put it in quotes), got the number 60",
            "k.yaml:6:21: evictionHard.memory.available: expected a string (put it in quotes), \
             got the number 100",
            "k.yaml:9:5: clusterDNS[1]: expected a string (put it in quotes), got the number 5",
            "k.yaml:10:5: clusterDNS[2]: expected a string (put it in quotes), got true",
            "k.yaml:12:30: crashLoopBackOff.maxContainerRestartPeriod: \"5 minutes\" is unknown \
             unit \" minutes\": the units are ns, us, ms, s, m and h",
            "k.yaml:13:3: crashLoopBackOff.typo: unknown field",
            "k.yaml:14:13: failSwapOn: expected true or false, got the string \"maybe\"",
            "k.yaml:15:7: port: 99999999999 is out of range: must be between -2147483648 and \
             2147483647",
        ]
    );
}

#[test]
fn broken_syntax_duplicate_keys_and_second_documents_are_named_with_their_line() {
    for (text, expected) in [
        (
            "a: 1\nmaxPods: 1\nmaxPods: 2\n",
            "k.yaml:3:1: duplicate key \"maxPods\"",
        ),
        ("{\"a\": 1, \"a\": 2}", "k.yaml:1:10: duplicate key \"a\""),
    ] {
        assert_eq!(lines(text), [expected]);
    }
    assert!(lines("a: 1\n---\nb: 2\n")[0].contains("more than one document"));
    assert!(
        lines("a: [1\nb: 2\n")[0].starts_with("k.yaml:"),
        "{:?}",
        lines("a: [1\nb: 2\n")
    );
    assert!(lines("\u{0}")[0].starts_with("k.yaml:"));
}

#[test]
fn an_alias_bomb_is_refused() {
    let mut text = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for level in 1..8 {
        let prior = level - 1;
        let items = vec![format!("*a{prior}"); 10].join(", ");
        text.push_str(&format!("a{level}: &a{level} [{items}]\n"));
    }
    assert_eq!(lines(&text).len(), 1);
    let deep = "[".repeat(100) + &"]".repeat(100);
    assert_eq!(lines(&deep).len(), 1);
}

#[test]
fn json_and_yaml_1_1_spellings_are_read() {
    let json = decode::<KubeletConfiguration>(&tree(
        "{\"maxPods\": 7, \"failSwapOn\": false, \"syncFrequency\": \"10s\"}",
    ));
    let yaml = decode::<KubeletConfiguration>(&tree(
        "maxPods: 007\nfailSwapOn: off\nsyncFrequency: 10s\n",
    ));
    assert_eq!(json.unwrap(), yaml.unwrap());
    let empty: KubeletConfiguration = decode(&tree("maxPods:\nclusterDNS: ~\n")).unwrap();
    assert_eq!(empty, KubeletConfiguration::default());
}

#[test]
fn layers_merge_mappings_by_key_and_replace_everything_else() {
    let mut base = tree("a: {x: 1, y: [1, 2]}\nb: 1\nc: {z: 1}\n");
    base.merge(tree("a: {y: [3], w: 4}\nb: null\nc: 5\nd: 6\n"));
    let strip = |text: &str| format!("{:?}", plain(&tree(text)));
    assert_eq!(
        format!("{:?}", plain(&base)),
        strip("a: {x: 1, y: [3], w: 4}\nc: 5\nd: 6\n")
    );
}

/// The tree without origins.
fn plain(node: &Node) -> Value {
    let bare = |node: &Node| Node {
        value: plain(node),
        origin: Origin::Flag(""),
    };
    match &node.value {
        Value::List(items) => Value::List(items.iter().map(bare).collect()),
        Value::Map(entries) => Value::Map(
            entries
                .iter()
                .map(|e| Entry {
                    key: e.key.clone(),
                    origin: Origin::Flag(""),
                    node: bare(&e.node),
                })
                .collect(),
        ),
        other => other.clone(),
    }
}

#[test]
fn values_are_set_removed_and_located_by_dotted_path() {
    let mut node = tree("a: 1\nb:\n  c: 2\n");
    let flag = |value| Node {
        value,
        origin: Origin::Flag("f"),
    };
    node.set("b.c", flag(Value::Int(3)));
    node.set("x.y.z", flag(Value::Bool(true)));
    assert_eq!(node.lookup("b.c").map(|n| &n.value), Some(&Value::Int(3)));
    assert_eq!(node.origin_of("b.c"), Some(Origin::Flag("f")));
    assert_eq!(node.origin_of("x.y.z.more"), Some(Origin::Flag("f")));
    assert_eq!(node.origin_of("a").unwrap().to_string(), "k.yaml:1:4");
    assert_eq!(node.origin_of("nothing"), None);
    node.remove("x.y");
    assert_eq!(node.lookup("x.y.z"), None);
}

mod properties {
    use proptest::prelude::*;

    use super::*;

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            any::<bool>().prop_map(Value::Bool),
            any::<i32>().prop_map(|n| Value::Int(n.into())),
            "[a-z]{0,3}".prop_map(Value::String),
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            let node = inner
                .prop_map(|value| Node {
                    value,
                    origin: Origin::Flag("p"),
                })
                .boxed();
            let entries = proptest::collection::btree_map("[a-c]", node.clone(), 0..3);
            prop_oneof![
                proptest::collection::vec(node, 0..3).prop_map(Value::List),
                entries.prop_map(|map| Value::Map(
                    map.into_iter()
                        .map(|(key, node)| Entry {
                            key,
                            origin: Origin::Flag("p"),
                            node
                        })
                        .collect()
                )),
            ]
        })
    }

    fn node() -> impl Strategy<Value = Node> {
        value().prop_map(|value| Node {
            value,
            origin: Origin::Flag("p"),
        })
    }

    proptest! {
        #[test]
        fn merging_a_layer_twice_is_merging_it_once(base in node(), over in node()) {
            let mut once = base;
            once.merge(over.clone());
            let mut twice = once.clone();
            twice.merge(over);
            prop_assert_eq!(once, twice);
        }

        #[test]
        fn a_merged_layer_wins_for_every_scalar_it_gives(base in node(), over in node()) {
            fn covered(result: &Node, over: &Node) -> bool {
                match &over.value {
                    Value::Map(entries) => {
                        entries.iter().all(|e| {
                            result.get(&e.key).is_some_and(|node| covered(node, &e.node))
                        })
                    }
                    other => &result.value == other,
                }
            }
            let mut result = base;
            result.merge(over.clone());
            prop_assert!(covered(&result, &over));
        }

        #[test]
        fn no_text_makes_the_reader_panic(text in "[\\PC\n]{0,80}") {
            let _ = lines(&text);
        }
    }
}
