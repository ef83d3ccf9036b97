use super::*;
use crate::apiserver::Unreadable;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

const ONE: &str = "-----BEGIN CERTIFICATE-----\nAQEB\n-----END CERTIFICATE-----\n";
const TWO: &str = "-----BEGIN CERTIFICATE-----\nAgIC\n-----END CERTIFICATE-----\n";

fn item(name: &str, signer: &str, labels: &Value, text: &str) -> ApiItem<ClusterTrustBundle> {
    let bundle = json!({
        "metadata": {"name": name, "labels": labels},
        "spec": {"signerName": signer, "trustBundle": text},
    });
    Ok(Box::new(serde_json::from_value(bundle).unwrap()))
}

fn bundles(items: Vec<ApiItem<ClusterTrustBundle>>) -> Bundles {
    let mut bundles = Bundles::default();
    bundles.apply(WatchEvent::Listed(items));
    bundles
}

fn choice(source: Value) -> Result<BundleChoice, TrustBundleError> {
    BundleChoice::of(&serde_json::from_value(source).unwrap())
}

#[test]
fn a_bundle_is_chosen_by_name_or_by_signer_and_labels() {
    let bundles = bundles(vec![
        item("plain", "", &json!({}), ONE),
        item("x:a", "x", &json!({"env": "live"}), TWO),
        item("x:b", "x", &json!({"env": "test"}), &format!("{TWO}{ONE}")),
        item("y:a", "y", &json!({"env": "live"}), ONE),
    ]);
    let both = format!("{ONE}{TWO}");
    let no_match =
        "combination of signerName and labelSelector matched zero ClusterTrustBundles".to_owned();
    let expression = |operator: &str, values: Value| {
        let expression = json!({"key": "env", "operator": operator, "values": values});
        json!({"path": "p", "signerName": "x", "labelSelector": {"matchExpressions": [expression]}})
    };
    let signer =
        |selector: Value| json!({"path": "p", "signerName": "x", "labelSelector": selector});
    for (source, expected) in [
        (json!({"path": "p", "name": "plain"}), Ok(ONE)),
        (json!({"path": "p", "name": "x:b"}), Ok(both.as_str())),
        (
            json!({"path": "p", "name": "none"}),
            Err(
                r#"while getting ClusterTrustBundle: clustertrustbundle.certificates.k8s.io "none" not found"#,
            ),
        ),
        (signer(json!({})), Ok(both.as_str())),
        (signer(json!({"matchLabels": {"env": "live"}})), Ok(TWO)),
        (signer(json!({"matchLabels": {"env": "none"}})), Err(no_match.as_str())),
        (expression("In", json!(["test", "none"])), Ok(both.as_str())),
        (expression("NotIn", json!(["test"])), Ok(TWO)),
        (expression("Exists", json!(null)), Ok(both.as_str())),
        (expression("DoesNotExist", json!(null)), Err(no_match.as_str())),
        // Without a selector nothing matches.
        (json!({"path": "p", "signerName": "x"}), Err(no_match.as_str())),
        (json!({"path": "p", "signerName": "z", "labelSelector": {}}), Err(no_match.as_str())),
    ] {
        let choice = choice(source.clone()).unwrap();
        let found = bundles.trust_anchors(&choice, false);
        let found = found.map_err(|error| error.to_string());
        let found = found.map(|text| String::from_utf8(text.to_vec()).unwrap());
        assert_eq!(found.as_deref().map_err(String::as_str), expected, "{source}");
        let optional = bundles.trust_anchors(&choice, true).unwrap();
        assert_eq!(optional, expected.unwrap_or_default(), "{source}");
    }
}

#[test]
fn a_source_that_chooses_nothing_is_refused() {
    let error = choice(json!({"path": "p"})).unwrap_err();
    assert_eq!(error, TrustBundleError::NoSource);
    let wrong = json!({"matchExpressions": [{"key": "k", "operator": "Like"}]});
    let error = choice(json!({"path": "p", "signerName": "x", "labelSelector": wrong}));
    assert!(matches!(error, Err(TrustBundleError::Selector(_))));
}

#[test]
fn certificates_are_written_in_one_form_whatever_theirs_is() {
    let long: Vec<u8> = (0..=100).collect();
    let encoded = STANDARD.encode(&long);
    let odd = format!(
        "a comment\n-----BEGIN CERTIFICATE-----\r\n{}\r\n{}\r\n-----END CERTIFICATE-----\r\nmore\n\
         -----BEGIN CERTIFICATE-----\n!!!\n-----END CERTIFICATE-----\n{TWO}{TWO}",
        &encoded[..20],
        &encoded[20..]
    );
    let bundles = bundles(vec![item("odd", "", &json!({}), &odd)]);
    let choice = BundleChoice::Name("odd".into());
    let text = bundles.trust_anchors(&choice, false).unwrap();
    let expected = format!(
        "-----BEGIN CERTIFICATE-----\n{}\n{}\n{}\n-----END CERTIFICATE-----\n{TWO}",
        &encoded[..64],
        &encoded[64..128],
        &encoded[128..]
    );
    assert_eq!(text, expected);
}

#[test]
fn a_bundle_that_cannot_be_decoded_stays_what_it_was() {
    let mut bundles = bundles(vec![item("a", "", &json!({}), ONE), item("b", "", &json!({}), TWO)]);
    let unreadable = || {
        let metadata = serde_json::from_value(json!({"name": "a"})).unwrap();
        Err(Unreadable { metadata, why: "invalid".into() })
    };
    let anchors = |bundles: &Bundles, name: &str| {
        bundles.trust_anchors(&BundleChoice::Name(name.into()), false)
    };
    bundles.apply(WatchEvent::Applied(unreadable()));
    assert_eq!(anchors(&bundles, "a").unwrap(), ONE);
    bundles.apply(WatchEvent::Listed(vec![unreadable()]));
    assert_eq!(anchors(&bundles, "a").unwrap(), ONE);
    assert!(anchors(&bundles, "b").is_err());
    bundles.apply(WatchEvent::Deleted(unreadable()));
    assert!(anchors(&bundles, "a").is_err());
}
