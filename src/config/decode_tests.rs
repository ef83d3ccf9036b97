use super::ConfigProblem;
use super::document::parse;
use crate::base::document::DocumentNode;
use crate::config::kubelet_configuration::KubeletConfiguration;

fn tree(text: &str) -> DocumentNode {
    parse("k.yaml", text).unwrap().0
}

fn decode<T: serde::de::DeserializeOwned>(tree: &DocumentNode) -> Result<T, Vec<ConfigProblem>> {
    super::decode::decode(tree).0
}

fn lines(text: &str) -> Vec<String> {
    match parse("k.yaml", text) {
        Err(problem) => vec![problem.to_string()],
        Ok((tree, _)) => match decode::<KubeletConfiguration>(&tree) {
            Ok(_) => Vec::new(),
            Err(problems) => problems.iter().map(ConfigProblem::to_string).collect(),
        },
    }
}

#[test]
fn every_mistyped_field_is_named_with_line_and_column() {
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
fileCheckFrequency: yes
httpCheckFrequency: [1s]
";
    assert_eq!(
        lines(text),
        [
            "k.yaml:4:16: syncFrequency: the number 60 has no unit: write for example \"60s\"",
            "k.yaml:6:21: evictionHard.memory.available: expected a string (put it in quotes), \
             got the number 100",
            "k.yaml:9:5: clusterDNS[1]: expected a string (put it in quotes), got the number 5",
            "k.yaml:10:5: clusterDNS[2]: expected a string (put it in quotes), got true",
            "k.yaml:12:30: crashLoopBackOff.maxContainerRestartPeriod: \"5 minutes\" has the \
             unknown unit \" minutes\": the units are ns, us, ms, s, m and h",
            "k.yaml:14:13: failSwapOn: expected true or false, got the string \"maybe\"",
            "k.yaml:15:7: port: 99999999999 is out of range: must be between -2147483648 and \
             2147483647",
            "k.yaml:16:21: fileCheckFrequency: expected a duration such as \"1m30s\", got true",
            "k.yaml:17:21: httpCheckFrequency: expected a duration such as \"1m30s\", got a list",
        ]
    );
    let (_, unknown) = super::decode::decode::<KubeletConfiguration>(&tree(text));
    let names: Vec<_> = unknown.iter().map(|field| (&field.field[..], field.near)).collect();
    assert_eq!(names, [("maxPod", Some("maxPods")), ("crashLoopBackOff.typo", None)]);
}

#[test]
fn broken_syntax_and_second_documents_are_named_with_their_line() {
    assert!(
        lines("a: 1\n---\nb: 2\n")[0]
            .contains("more than one document: a configuration file must have exactly one")
    );
    assert!(lines("a: [1\nb: 2\n")[0].starts_with("k.yaml:"), "{:?}", lines("a: [1\nb: 2\n"));
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

proptest::proptest! {
    #[test]
    fn no_text_makes_the_reader_panic(text in "[\\PC\n]{0,80}") {
        let _ = lines(&text);
    }
}
