//! The authorization attributes of a request. Pure.
//!
//! Upstream: `NewNodeAuthorizerAttributesGetter` in `pkg/kubelet/server/auth.go`.

use super::user::User;
use http::Method;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReviewSpec, SubjectAccessReviewStatus,
};

/// Subresources of the node, of which the user needs access to one. Checked in this order, the most specific first.
pub type Subresources = &'static [&'static str];

/// The subresource of routes without one of their own, and of unknown paths.
pub const PROXY: Subresources = &["proxy"];

/// The API verb for a method; empty if there is none. With `strict_upgrade`, a request that upgrades its connection and
/// may run commands, it is `create`: upstream lets a WebSocket, whose method is GET, do so with `get`, and agents that only
/// read often have that.
pub(super) fn verb(method: &Method, strict_upgrade: bool) -> &'static str {
    match *method {
        _ if strict_upgrade => "create",
        Method::GET | Method::HEAD => "get",
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "",
    }
}

/// The SubjectAccessReview for this access to a subresource of the node.
pub(super) fn access_review(
    user: &User,
    verb: &str,
    node_name: &str,
    subresource: &str,
) -> SubjectAccessReviewSpec {
    let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    let extra = user.extra.clone();
    SubjectAccessReviewSpec {
        user: some(&user.name),
        uid: some(&user.uid),
        groups: Some(user.groups.clone()).filter(|groups| !groups.is_empty()),
        extra: Some(extra).filter(|extra| !extra.is_empty()),
        resource_attributes: Some(ResourceAttributes {
            verb: some(verb),
            version: some("v1"),
            resource: some("nodes"),
            subresource: some(subresource),
            name: some(node_name),
            ..ResourceAttributes::default()
        }),
        ..SubjectAccessReviewSpec::default()
    }
}

/// Whether the review allows the access.
///
/// # Errors
/// The result is both allowed and denied.
pub(super) fn allows(status: &SubjectAccessReviewStatus) -> Result<bool, &'static str> {
    match (status.allowed, status.denied == Some(true)) {
        (true, true) => Err("webhook subject access review returned both allow and deny response"),
        (allowed, denied) => Ok(allowed && !denied),
    }
}

/// Upstream's text for a forbidden request.
pub(super) fn forbidden(user: &str, verb: &str, subresources: Subresources) -> String {
    let tried = subresources.join(" ");
    format!("Forbidden (user={user}, verb={verb}, resource=nodes, subresource(s)=[{tried}])")
}

/// Upstream's text for a failed review.
pub(super) fn review_failed(user: &str, verb: &str, subresource: &str) -> String {
    format!(
        "Authorization error (user={user}, verb={verb}, resource=nodes, subresource={subresource})"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verbs_follow_methods() {
        let rows = [
            ("GET", "get"),
            ("HEAD", "get"),
            ("POST", "create"),
            ("PUT", "update"),
            ("PATCH", "patch"),
            ("DELETE", "delete"),
            ("OPTIONS", ""),
            ("BREW", ""),
        ];
        for (method, expected) in rows {
            let method: Method = method.parse().unwrap();
            assert_eq!(verb(&method, false), expected, "{method}");
            assert_eq!(verb(&method, true), "create", "{method}");
        }
    }

    #[test]
    fn a_review_is_about_this_node() {
        let user = User { name: "who".into(), groups: vec!["g".into()], ..User::default() };
        let review = access_review(&user, "get", "n1", "pods");
        let expected = serde_json::json!({
            "user": "who",
            "groups": ["g"],
            "resourceAttributes": {
                "verb": "get", "version": "v1", "resource": "nodes", "subresource": "pods", "name": "n1",
            },
        });
        assert_eq!(serde_json::to_value(review).unwrap(), expected);
    }

    #[test]
    fn only_an_unambiguous_review_allows() {
        let status = |allowed, denied| SubjectAccessReviewStatus {
            allowed,
            denied,
            ..SubjectAccessReviewStatus::default()
        };
        assert_eq!(allows(&status(true, None)), Ok(true));
        assert_eq!(allows(&status(true, Some(false))), Ok(true));
        assert_eq!(allows(&status(false, None)), Ok(false));
        assert_eq!(allows(&status(false, Some(true))), Ok(false));
        assert!(allows(&status(true, Some(true))).is_err());
    }

    #[test]
    fn refusals_have_upstreams_texts() {
        assert_eq!(
            forbidden("who", "get", &["pods", "proxy"]),
            "Forbidden (user=who, verb=get, resource=nodes, subresource(s)=[pods proxy])"
        );
        assert_eq!(
            review_failed("who", "get", "proxy"),
            "Authorization error (user=who, verb=get, resource=nodes, subresource=proxy)"
        );
    }
}
