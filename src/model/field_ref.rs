//! Resource fields of the downward API (`resourceFieldRef`). Pure.

use super::requests::{self, InvalidQuantity, Resources};
use super::{NodeFacts, Pod, PodExt, Quantity, QuantityError};
use k8s_openapi::api::core::v1::{Container, ResourceFieldSelector};

/// Why a resource field cannot be resolved; the texts are upstream's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FieldRefError {
    /// The downward API does not support this resource.
    #[error("unsupported container resource : {0}")]
    Resource(String),
    /// `containerName` is not a container of the pod.
    #[error("container {0} not found")]
    Container(String),
    /// `divisor` is not a valid quantity.
    #[error("divisor of resourceFieldRef for {0}")]
    Divisor(String, #[source] QuantityError),
    /// A resource amount of the pod cannot be parsed.
    #[error(transparent)]
    Amount(#[from] InvalidQuantity),
}

/// The value in units of the divisor, rounded up. `own` is the container with the reference, which is used if the
/// reference has no container name. Without a limit, the pod's limit counts, else the node's allocatable.
pub fn field_ref_value(
    pod: &Pod,
    own: Option<&Container>,
    wanted: &ResourceFieldSelector,
    node: &NodeFacts,
) -> Result<String, FieldRefError> {
    let name = wanted.container_name.as_deref().unwrap_or_default();
    let target = match name {
        "" => own,
        name => pod.container(name),
    };
    let target = target.ok_or_else(|| FieldRefError::Container(name.to_string()))?;
    let divisor = match &wanted.divisor {
        Some(divisor) => Quantity::from_api(divisor)
            .map_err(|e| FieldRefError::Divisor(wanted.resource.clone(), e))?,
        None => Quantity::ZERO,
    };
    let divisor = if divisor.is_zero() { Quantity::from_units(1) } else { divisor };
    let resources: Resources = requests::of_container(target)?;
    let unknown = || FieldRefError::Resource(wanted.resource.clone());
    let (list, name) = wanted.resource.split_once('.').ok_or_else(unknown)?;
    let countable = matches!(name, requests::CPU | requests::MEMORY | requests::EPHEMERAL_STORAGE)
        || name.starts_with(requests::HUGEPAGES_PREFIX);
    let amount = match list {
        "requests" if countable => resources.request(name).unwrap_or_default(),
        "limits" if countable => match resources.limit(name) {
            Some(limit) if !limit.is_zero() => limit,
            _ => ceiling(pod, name, node)?,
        },
        _ => return Err(unknown()),
    };
    let count = match name {
        requests::CPU => amount.milli_quotient(divisor),
        _ => amount.unit_quotient(divisor),
    };
    Ok(count.to_string())
}

/// The limit of a container that has none: the pod's, else the node's allocatable.
fn ceiling(pod: &Pod, resource: &str, node: &NodeFacts) -> Result<Quantity, InvalidQuantity> {
    if let Some(limit) = requests::of_pod_level::<Quantity>(pod)?.limit(resource) {
        return Ok(limit);
    }
    Ok(match resource {
        requests::CPU => Quantity::from_milli(node.allocatable_milli_cpu),
        requests::MEMORY => Quantity::from_units(node.allocatable_memory_bytes),
        requests::EPHEMERAL_STORAGE => {
            Quantity::from_units(node.allocatable_ephemeral_storage_bytes)
        }
        _ => Quantity::ZERO,
    })
}
