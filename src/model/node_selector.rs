//! Matches node selectors with a node. Pure. Upstream: `k8s.io/component-helpers/scheduling/corev1`.

use k8s_openapi::api::core::v1::{Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm};

type Label<'a> = dyn Fn(&str) -> Option<&'a str> + 'a;

/// Whether one of the terms matches the node.
pub fn selects(selector: &NodeSelector, node: &Node) -> bool {
    let labels = node.metadata.labels.as_ref();
    let label = |key: &str| labels?.get(key).map(String::as_str);
    let mut terms = selector.node_selector_terms.iter();
    terms.any(|term| term_matches(term, node, &label))
}

/// An empty term matches nothing.
fn term_matches(term: &NodeSelectorTerm, node: &Node, label: &Label<'_>) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    let name = node.metadata.name.as_deref();
    let field = |key: &str| name.filter(|_| key == "metadata.name");
    !(expressions.is_empty() && fields.is_empty())
        && expressions.iter().all(|wanted| holds(wanted, label(&wanted.key)))
        && fields.iter().all(|wanted| holds(wanted, field(&wanted.key)))
}

fn holds(wanted: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = wanted.values.as_deref().unwrap_or_default();
    let is_one = value.is_some_and(|value| values.iter().any(|one| one == value));
    let number = |text: &str| text.parse::<i64>().ok();
    let compared = || {
        let bound = number(values.first()?)?;
        Some(number(value?)?.cmp(&bound))
    };
    match wanted.operator.as_str() {
        "In" => is_one,
        "NotIn" => !is_one,
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compared().is_some_and(std::cmp::Ordering::is_gt),
        "Lt" => compared().is_some_and(std::cmp::Ordering::is_lt),
        _ => false,
    }
}
