//! A Node object that may have fields of other types than this kubelet knows. Pure.

use k8s_openapi::api::core::v1::{Node, NodeSpec, NodeStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::{ClusterResourceScope, Resource};
use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

/// A Node object without the parts that cannot be decoded. One such field must not keep the kubelet from reporting the
/// status: the node would stay as it was last reported.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LenientNode {
    /// The object.
    pub node: Node,
    /// The fields that were left out, whole or in part, such as `status.images`.
    pub left_out: Vec<String>,
}

impl Resource for LenientNode {
    const API_VERSION: &'static str = Node::API_VERSION;
    const GROUP: &'static str = Node::GROUP;
    const KIND: &'static str = Node::KIND;
    const VERSION: &'static str = Node::VERSION;
    const URL_PATH_SEGMENT: &'static str = Node::URL_PATH_SEGMENT;
    type Scope = ClusterResourceScope;
}

impl From<Node> for LenientNode {
    fn from(node: Node) -> Self {
        Self { node, left_out: Vec::new() }
    }
}

impl Serialize for LenientNode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.node.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for LenientNode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        match Node::deserialize(&value) {
            Ok(node) => Ok(node.into()),
            Err(error) => readable(&value).ok_or_else(|| D::Error::custom(error)),
        }
    }
}

/// What can be decoded; `None` if the metadata cannot, because the object is then unknown.
fn readable(value: &Value) -> Option<LenientNode> {
    let metadata = ObjectMeta::deserialize(value.get("metadata")?).ok()?;
    let mut left_out = Vec::new();
    let spec = value.get("spec");
    let spec = spec.and_then(|spec| readable_fields::<NodeSpec>(spec, "spec", &mut left_out));
    let status = value.get("status");
    let status =
        status.and_then(|status| readable_fields::<NodeStatus>(status, "status", &mut left_out));
    let node = Node { metadata, spec, status };
    Some(LenientNode { node, left_out })
}

/// The fields of a struct that can be decoded, each by itself; of a list, its elements.
fn readable_fields<T: DeserializeOwned>(
    value: &Value,
    path: &str,
    left_out: &mut Vec<String>,
) -> Option<T> {
    let fits = |name: &str, field: Value| {
        let alone = Map::from_iter([(name.to_owned(), field)]);
        T::deserialize(&Value::Object(alone)).is_ok()
    };
    let Value::Object(fields) = value else {
        left_out.push(path.to_owned());
        return None;
    };
    let mut kept = Map::new();
    for (name, field) in fields {
        if fits(name, field.clone()) {
            kept.insert(name.clone(), field.clone());
            continue;
        }
        left_out.push(format!("{path}.{name}"));
        if let Value::Array(items) = field {
            let items = items.iter().cloned();
            let fitting = items.filter(|item| fits(name, Value::Array(vec![item.clone()])));
            kept.insert(name.clone(), fitting.collect());
        }
    }
    T::deserialize(&Value::Object(kept)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_cannot_be_decoded_is_left_out_by_name_and_nothing_else() {
        let metadata = json!({"name": "n", "uid": "u"});
        let taint = json!({"key": "a", "effect": "NoExecute"});
        for (spec, status, left_out) in [
            (json!({"taints": [taint]}), json!({"capacity": {"cpu": "1"}}), vec![]),
            (
                json!({"taints": [taint, {"key": 7}]}),
                json!({"capacity": {"cpu": "1"}}),
                vec!["spec.taints"],
            ),
            (
                json!({"taints": [taint], "unschedulable": "no"}),
                json!({"capacity": {"cpu": "1"}, "images": "x"}),
                vec!["spec.unschedulable", "status.images"],
            ),
        ] {
            let node = json!({"metadata": metadata, "spec": spec, "status": status});
            let read: LenientNode = serde_json::from_value(node).unwrap();
            assert_eq!(read.left_out, left_out);
            let kept = json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata,
                "spec": {"taints": [taint]}, "status": {"capacity": {"cpu": "1"}}});
            assert_eq!(serde_json::to_value(&read).unwrap(), kept, "{left_out:?}");
        }
        let parts = json!({"metadata": metadata, "spec": 7, "status": []});
        let read: LenientNode = serde_json::from_value(parts).unwrap();
        assert_eq!(read.left_out, ["spec", "status"]);
        let unknown = serde_json::from_value::<LenientNode>(json!({"metadata": {"name": 7}}));
        assert!(unknown.is_err());
    }
}
