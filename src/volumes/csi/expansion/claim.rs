//! The size in a claim: what is read of it, and what a node writes to its status. Pure.

use super::decision::{ClaimSize, ClaimUpdate, ResizeStatus};
use crate::apiserver::StrategicPatch;
use crate::model::Quantity;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// The resource whose amount is the size.
const STORAGE: &str = "storage";
/// The field of a claim's status with the progress of expansions.
const STATUSES: &str = "allocatedResourceStatuses";
const PENDING: &str = "NodeResizePending";
const IN_PROGRESS: &str = "NodeResizeInProgress";
const INFEASIBLE: &str = "NodeResizeInfeasible";
/// The condition of a claim whose volume a node could not expand.
const RESIZE_ERROR: &str = "NodeResizeError";
/// The conditions that end with an expansion.
const OF_RESIZES: [&str; 4] =
    ["Resizing", "FileSystemResizePending", "ControllerResizeError", RESIZE_ERROR];
/// Annotation of a claim whose volume nodes do not expand.
const NO_NODE_EXPANSION: &str = "volume.kubernetes.io/node-expansion-not-required";

/// The maximum size, in bytes: larger quantities than the next one are cut off at that.
const MAX_SIZE: i64 = i64::MAX - 1;

type Amounts = Option<BTreeMap<String, ApiQuantity>>;

/// The size of a volume, in bytes.
///
/// # Errors
/// It is none. `field` names it in the text.
pub fn size(field: &str, quantity: &str) -> Result<i64, String> {
    let bytes =
        Quantity::parse(quantity).map_err(|error| format!("{field} is invalid: {error}"))?;
    match bytes.value() {
        bytes @ 1..=MAX_SIZE => Ok(bytes),
        _ => Err(format!("{field} is not the size of a volume")),
    }
}

/// What a claim says about the size of its volume.
///
/// # Errors
/// An amount is invalid.
pub fn claim_size(claim: &PersistentVolumeClaim) -> Result<ClaimSize, String> {
    let status = claim.status.as_ref();
    let capacity = status.and_then(|status| amount(&status.capacity));
    let capacity = capacity.map(|it| size("status.capacity of the claim", &it.0));
    let allocated = status.and_then(|status| amount(&status.allocated_resources));
    let allocated = allocated.map(|it| size("status.allocatedResources of the claim", &it.0));
    let annotations = claim.metadata.annotations.as_ref();
    Ok(ClaimSize {
        capacity: capacity.transpose()?.unwrap_or_default(),
        allocated: allocated.transpose()?,
        status: match resize_status(claim) {
            None | Some("") => ResizeStatus::None,
            Some(PENDING) => ResizeStatus::NodePending,
            Some(IN_PROGRESS) => ResizeStatus::NodeInProgress,
            Some(_) => ResizeStatus::Other,
        },
        no_node_expansion: annotations.is_some_and(|all| all.contains_key(NO_NODE_EXPANSION)),
    })
}

/// The patch before an expansion; `None` if the claim says already that it is in progress.
pub fn begins(claim: &PersistentVolumeClaim) -> Option<StrategicPatch> {
    let is_new = resize_status(claim) != Some(IN_PROGRESS);
    let status = || json!({STATUSES: {STORAGE: IN_PROGRESS}});
    is_new.then(|| patch(claim, status()))
}

/// The patch after an expansion to the size that the claim was to have: the size allocated for it, or the volume's.
pub fn has_ended(claim: &PersistentVolumeClaim, volume: &str) -> StrategicPatch {
    let status = claim.status.as_ref();
    let allocated = status.and_then(|status| amount(&status.allocated_resources));
    let conditions = status.and_then(|status| status.conditions.as_ref());
    let known = conditions.into_iter().flatten().map(|it| it.type_.as_str());
    let over = known.filter(|known| OF_RESIZES.contains(known));
    let over = over.map(|condition| json!({"type": condition, "$patch": "delete"}));
    let mut written = Map::new();
    let size = allocated.map_or(volume, |size| size.0.as_str());
    written.insert("capacity".to_owned(), json!({STORAGE: size}));
    written.insert("conditions".to_owned(), over.collect());
    if resize_status(claim).is_some() {
        written.insert(STATUSES.to_owned(), json!({STORAGE: null}));
    }
    patch(claim, written.into())
}

/// The patch after an expansion that the driver has refused for good, with its error; `None` if the claim says so
/// already, or the claim's controller knows no such status. `is_infeasible` says that the size is what the driver does
/// not accept; a size that the user has changed meanwhile is given up as well.
pub fn has_failed(
    claim: &PersistentVolumeClaim,
    update: ClaimUpdate,
    is_infeasible: bool,
    error: &str,
    now: Timestamp,
) -> Option<StrategicPatch> {
    if update != ClaimUpdate::Status {
        return None;
    }
    let message = format!("failed to expand pvc with {error}");
    let mut written = Map::new();
    if is_infeasible || is_size_changed(claim) {
        written.insert(STATUSES.to_owned(), json!({STORAGE: INFEASIBLE}));
    }
    let conditions = claim.status.as_ref()?.conditions.as_ref();
    let mut conditions = conditions.into_iter().flatten();
    let is_known = conditions.any(|known| {
        let says_so = known.message.as_ref() == Some(&message);
        known.type_ == RESIZE_ERROR && known.status == "True" && says_so
    });
    if !is_known {
        let condition = json!({
            "type": RESIZE_ERROR, "status": "True", "message": message,
            // The API has seconds.
            "lastTransitionTime": now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        });
        written.insert("conditions".to_owned(), json!([condition]));
    }
    let is_new = !written.is_empty();
    is_new.then(|| patch(claim, written.into()))
}

/// Whether the user has changed the requested size since a controller allocated one.
fn is_size_changed(claim: &PersistentVolumeClaim) -> bool {
    let bytes = |quantity: &ApiQuantity| Quantity::from_api(quantity).ok();
    let status = claim.status.as_ref();
    let allocated = status.and_then(|status| amount(&status.allocated_resources));
    let resources = claim.spec.as_ref().and_then(|spec| spec.resources.as_ref());
    let requested = resources.and_then(|resources| amount(&resources.requests));
    requested.and_then(bytes) != allocated.and_then(bytes)
}

fn amount(amounts: &Amounts) -> Option<&ApiQuantity> {
    amounts.as_ref()?.get(STORAGE)
}

fn resize_status(claim: &PersistentVolumeClaim) -> Option<&str> {
    let statuses = claim.status.as_ref()?.allocated_resource_statuses.as_ref()?;
    statuses.get(STORAGE).map(String::as_str)
}

/// A patch of the status of this version of this claim.
fn patch(claim: &PersistentVolumeClaim, status: Value) -> StrategicPatch {
    let (uid, version) = (&claim.metadata.uid, &claim.metadata.resource_version);
    StrategicPatch(json!({
        "metadata": {"uid": uid, "resourceVersion": version},
        "status": status,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(status: Value) -> PersistentVolumeClaim {
        serde_json::from_value(json!({
            "metadata": {"name": "data", "uid": "c1", "resourceVersion": "7"},
            "spec": {"resources": {"requests": {"storage": "2Gi"}}},
            "status": status,
        }))
        .unwrap()
    }

    #[test]
    fn a_size_is_a_positive_number_of_bytes() {
        for (text, expected) in [
            ("2Gi", Ok(2 << 30)),
            ("1", Ok(1)),
            ("1m", Ok(1)),
            ("9223372036854775806", Ok(i64::MAX - 1)),
            ("9223372036854775807", Err("f is not the size of a volume")),
            ("1e30", Err("f is not the size of a volume")),
            ("0", Err("f is not the size of a volume")),
            ("-5Gi", Err("f is not the size of a volume")),
            (
                "big",
                Err(
                    r#"f is invalid: "big" is not a quantity (a number such as 2, 1.5, 500m, 1Gi or 2e3)"#,
                ),
            ),
        ] {
            let found = size("f", text);
            assert_eq!(found, expected.map_err(str::to_owned), "{text}");
        }
    }

    #[test]
    fn the_size_of_a_claim_is_what_its_status_says() {
        let plain = ClaimSize::default();
        let none = serde_json::from_value(json!({"metadata": {}})).unwrap();
        assert_eq!(claim_size(&none), Ok(plain));
        let of = |status: &str| {
            claim_size(&claim(json!({
                "capacity": {"storage": "1Gi"}, "allocatedResources": {"storage": "2Gi"},
                "allocatedResourceStatuses": {"storage": status},
            })))
        };
        for (status, expected) in [
            ("", ResizeStatus::None),
            ("NodeResizePending", ResizeStatus::NodePending),
            ("NodeResizeInProgress", ResizeStatus::NodeInProgress),
            ("NodeResizeInfeasible", ResizeStatus::Other),
            ("ControllerResizeInProgress", ResizeStatus::Other),
            ("odd", ResizeStatus::Other),
        ] {
            let expected = ClaimSize {
                capacity: 1 << 30,
                allocated: Some(2 << 30),
                status: expected,
                no_node_expansion: false,
            };
            assert_eq!(of(status), Ok(expected), "{status}");
        }
        let mut annotated = claim(json!({}));
        annotated.metadata.annotations = Some([(NO_NODE_EXPANSION.into(), String::new())].into());
        assert!(claim_size(&annotated).unwrap().no_node_expansion);
        let absurd = claim(json!({"allocatedResources": {"storage": "-1"}}));
        let expected = "status.allocatedResources of the claim is not the size of a volume";
        assert_eq!(claim_size(&absurd), Err(expected.to_owned()));
    }

    #[test]
    fn an_expansion_begins_once_and_ends_without_its_conditions() {
        let metadata = json!({"uid": "c1", "resourceVersion": "7"});
        let pending = claim(json!({
            "allocatedResources": {"storage": "2Gi"},
            "allocatedResourceStatuses": {"storage": "NodeResizePending"},
            "conditions": [
                {"type": "FileSystemResizePending", "status": "True"},
                {"type": "ModifyingVolume", "status": "True"},
                {"type": "NodeResizeError", "status": "True"},
            ],
        }));
        let begun = json!({"allocatedResourceStatuses": {"storage": "NodeResizeInProgress"}});
        let expected = json!({"metadata": metadata, "status": begun});
        assert_eq!(begins(&pending).unwrap().0, expected);
        assert!(begins(&claim(begun)).is_none());
        let volume = "3Gi";
        let expected = json!({"metadata": metadata, "status": {
            "capacity": {"storage": "2Gi"},
            "allocatedResourceStatuses": {"storage": null},
            "conditions": [
                {"type": "FileSystemResizePending", "$patch": "delete"},
                {"type": "NodeResizeError", "$patch": "delete"},
            ],
        }});
        assert_eq!(has_ended(&pending, volume).0, expected);
        let expected = json!({"metadata": metadata, "status": {
            "capacity": {"storage": "3Gi"}, "conditions": [],
        }});
        assert_eq!(has_ended(&claim(json!({})), volume).0, expected);
    }

    #[test]
    fn a_failure_is_written_once_and_is_final_if_the_size_cannot_be_had_or_was_given_up() {
        let now = Timestamp::UNIX_EPOCH;
        let status = |allocated: &str| {
            json!({
                "allocatedResources": {"storage": allocated},
                "allocatedResourceStatuses": {"storage": "NodeResizeInProgress"},
            })
        };
        let condition = json!({
            "type": "NodeResizeError", "status": "True", "message": "failed to expand pvc with no",
            "lastTransitionTime": "1970-01-01T00:00:00Z",
        });
        let infeasible = json!({"storage": "NodeResizeInfeasible"});
        for (allocated, is_infeasible, is_final) in [
            ("2Gi", false, false),
            ("2048Mi", false, false),
            ("2Gi", true, true),
            ("4Gi", false, true),
        ] {
            let failed = claim(status(allocated));
            let written = has_failed(&failed, ClaimUpdate::Status, is_infeasible, "no", now);
            let written = written.unwrap().0;
            let text = format!("{allocated} {is_infeasible}: {written}");
            assert_eq!(written["status"]["conditions"], json!([condition]), "{text}");
            let statuses = &written["status"]["allocatedResourceStatuses"];
            assert_eq!(
                *statuses,
                if is_final { infeasible.clone() } else { Value::Null },
                "{text}"
            );
            let mut repeated = status(allocated);
            repeated["conditions"] = json!([condition]);
            let again = has_failed(&claim(repeated), ClaimUpdate::Status, is_infeasible, "no", now);
            assert_eq!(again.is_some(), is_final, "{text}");
            for update in [ClaimUpdate::None, ClaimUpdate::Capacity] {
                let written = has_failed(&failed, update, is_infeasible, "no", now);
                assert!(written.is_none(), "{text}");
            }
        }
    }
}
