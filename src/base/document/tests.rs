use super::*;

const LIMITS: DocumentLimits =
    DocumentLimits { kind: "test", nodes: 1000, depth: 32, text: 10_000, replayed: 1000 };

fn tree(text: &str) -> DocumentNode {
    parse(&Arc::from("k.yaml"), text, &LIMITS).unwrap()
}

#[test]
fn layers_merge_mappings_by_key_and_replace_everything_else() {
    let mut base = tree("a: {x: 1, y: [1, 2]}\nb: 1\nc: {z: 1}\n");
    base.merge(tree("a: {y: [3], w: 4}\nb: null\nc: 5\nd: 6\n"));
    let strip = |text: &str| format!("{:?}", plain(&tree(text)));
    assert_eq!(format!("{:?}", plain(&base)), strip("a: {x: 1, y: [3], w: 4}\nc: 5\nd: 6\n"));
}

#[test]
fn a_null_removes_a_key_at_any_depth_also_where_there_is_none() {
    let mut base = tree("a: {x: 1}\nb: 1\n");
    base.merge(tree("a: {x: null, y: {z: null, w: 1}}\nb: {c: null}\nd: {e: null}\n"));
    assert_eq!(plain(&base), plain(&tree("a: {y: {w: 1}}\nb: {}\nd: {}\n")));
}

#[test]
fn of_a_duplicate_key_the_last_value_counts_where_it_is_accepted() {
    let text = "a: 1\nb: {c: 1, c: 2}\na: [{d: 3, d: 4}]\n\"1\": x\n1: y\n";
    let file = Arc::from("k.yaml");
    let (node, duplicates) = parse_last_wins(&file, text, &LIMITS).unwrap();
    assert_eq!(plain(&node), plain(&tree("a: [{d: 4}]\nb: {c: 2}\n\"1\": y\n")));
    let shown: Vec<_> = duplicates
        .iter()
        .map(|key| format!("{} {} {}", key.field, key.origin, key.before))
        .collect();
    assert_eq!(
        shown,
        [
            "b.c k.yaml:2:11 k.yaml:2:5",
            "a[0].d k.yaml:3:12 k.yaml:3:6",
            "a k.yaml:3:1 k.yaml:1:1",
            "1 k.yaml:5:1 k.yaml:4:1",
        ]
    );
    for (text, line) in [("a: 1\nmaxPods: 1\nmaxPods: 2\n", 3), ("{\"a\": 1, \"a\": 2}", 1)] {
        let error = parse(&file, text, &LIMITS).unwrap_err();
        assert!(error.message.starts_with("duplicate key"), "{error}");
        assert_eq!(error.line, Some(line));
    }
}

/// The tree without origins.
fn plain(node: &DocumentNode) -> DocumentValue {
    let bare =
        |node: &DocumentNode| DocumentNode { value: plain(node), origin: DocumentOrigin::Flag("") };
    match &node.value {
        DocumentValue::List(items) => DocumentValue::List(items.iter().map(bare).collect()),
        DocumentValue::Map(entries) => DocumentValue::Map(
            entries
                .iter()
                .map(|e| DocumentEntry {
                    key: e.key.clone(),
                    origin: DocumentOrigin::Flag(""),
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
    let flag = |value| DocumentNode { value, origin: DocumentOrigin::Flag("f") };
    node.set("b.c", flag(DocumentValue::Int(3)));
    node.set("x.y.z", flag(DocumentValue::Bool(true)));
    assert_eq!(node.lookup("b.c").map(|n| &n.value), Some(&DocumentValue::Int(3)));
    assert_eq!(node.origin_of("b.c"), Some(DocumentOrigin::Flag("f")));
    assert_eq!(node.origin_of("x.y.z.more"), Some(DocumentOrigin::Flag("f")));
    assert_eq!(node.origin_of("a").unwrap().to_string(), "k.yaml:1:4");
    assert_eq!(node.origin_of("nothing"), None);
    node.remove("x.y");
    assert_eq!(node.lookup("x.y.z"), None);
}

#[test]
fn each_line_of_the_json_is_the_place_of_a_value() {
    let node = tree("a: [1, {b: \"x\\ny\"}, []]\n2: {}\nyes: ~\nc: 1.5\nd: 2e1\n");
    let json = String::from_utf8(node.to_json()).unwrap();
    assert_eq!(
        json,
        "{\n\"a\":[\n1,\n{\n\"b\":\"x\\ny\"},\n[]],\n\"2\":{},\n\"true\":null,\n\"c\":1.5,\n\"d\":20}"
    );
    let paths: Vec<_> = (1..=json.lines().count())
        .map(|line| node.at(&node.on_json_line(line)).unwrap().2)
        .collect();
    assert_eq!(paths, ["", "a", "a[0]", "a[1]", "a[1].b", "a[2]", "2", "true", "c", "d"]);
}

mod properties {
    use proptest::prelude::*;

    use super::*;

    fn value() -> impl Strategy<Value = DocumentValue> {
        let leaf = prop_oneof![
            any::<bool>().prop_map(DocumentValue::Bool),
            any::<i32>().prop_map(|n| DocumentValue::Int(n.into())),
            "[a-z]{0,3}".prop_map(DocumentValue::String),
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            let node = inner
                .prop_map(|value| DocumentNode { value, origin: DocumentOrigin::Flag("p") })
                .boxed();
            let entries = proptest::collection::btree_map("[a-c]", node.clone(), 0..3);
            prop_oneof![
                proptest::collection::vec(node, 0..3).prop_map(DocumentValue::List),
                entries.prop_map(|map| DocumentValue::Map(
                    map.into_iter()
                        .map(|(key, node)| DocumentEntry {
                            key,
                            origin: DocumentOrigin::Flag("p"),
                            node
                        })
                        .collect()
                )),
            ]
        })
    }

    fn node() -> impl Strategy<Value = DocumentNode> {
        value().prop_map(|value| DocumentNode { value, origin: DocumentOrigin::Flag("p") })
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
            fn covered(result: &DocumentNode, over: &DocumentNode) -> bool {
                match &over.value {
                    DocumentValue::Map(entries) => {
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
    }
}
