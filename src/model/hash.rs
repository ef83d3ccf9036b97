//! Hashes and the comparison of manifest digests. [`container_hash`] must equal upstream's, so that this kubelet and
//! the Go one adopt each other's containers.

use k8s_openapi::api::core::v1::Container;
use std::fmt::Write as _;
use std::iter;

const FNV32_OFFSET: u32 = 0x811c_9dc5;
const FNV32_PRIME: u32 = 0x0100_0193;
const FNV64_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV64_PRIME: u64 = 0x0000_0100_0000_01b3;

/// 64-bit FNV-1a.
fn fnv64a(bytes: impl IntoIterator<Item = u8>) -> u64 {
    bytes
        .into_iter()
        .fold(FNV64_OFFSET, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(FNV64_PRIME))
}

/// 32-bit FNV-1a.
pub fn fnv32a(bytes: impl IntoIterator<Item = u8>) -> u32 {
    bytes
        .into_iter()
        .fold(FNV32_OFFSET, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(FNV32_PRIME))
}

/// The value of the `io.kubernetes.container.hash` annotation: 32-bit FNV-1a of Go's dump of `{"image":…,"name":…}`,
/// in lower-case hexadecimal digits without padding (upstream's form since 1.31).
pub fn container_hash(container: &Container) -> String {
    let mut json = String::with_capacity(64);
    json.push_str("{\"image\":");
    push_go_json_string(&mut json, container.image.as_deref().unwrap_or_default());
    json.push_str(",\"name\":");
    push_go_json_string(&mut json, &container.name);
    json.push('}');
    let numbers = json.bytes().flat_map(|byte| iter::once(b' ').chain(decimal(byte)));
    let dump = b"([]uint8)[".iter().copied();
    let dump = dump.chain(numbers.skip(1)).chain([b']']);
    format!("{:x}", fnv32a(dump))
}

/// The digits of a decimal number.
fn decimal(number: u8) -> impl Iterator<Item = u8> {
    let leading_zeros = match number {
        0..=9 => 2,
        10..=99 => 1,
        100.. => 0,
    };
    let digits = [number / 100, number / 10 % 10, number % 10].into_iter();
    digits.skip(leading_zeros).map(|digit| b'0' + digit)
}

/// Appends a JSON string as Go's encoder does, with HTML escaping.
fn push_go_json_string(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' | '\0'..='\u{1f}' => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

/// The key of a container's restart back-off: a changed image or resources reset it (upstream's `GetBackoffKey`).
pub fn back_off_key(pod_name: &str, namespace: &str, uid: &str, container: &Container) -> u64 {
    let resources = container
        .resources
        .as_ref()
        .and_then(|resources| serde_json::to_string(resources).ok())
        .unwrap_or_default();
    let image = container.image.as_deref().unwrap_or_default();
    let parts = [pod_name, namespace, uid, &container.name, image, &resources];
    fnv64a(parts.into_iter().flat_map(|part| part.bytes().chain([b'/'])))
}

/// Whether two manifests are the same by their digests ([`super::keys::MANIFEST_DIGEST`]); `None` if that is unknown: one
/// has no digest, or the digests are of different versions.
pub fn same_manifest(one: Option<&str>, other: Option<&str>) -> Option<bool> {
    let (version, digest) = one?.split_once(':')?;
    let (other_version, other) = other?.split_once(':')?;
    (version == other_version).then_some(digest == other)
}

/// Whether two manifests are known to differ. Those whose digests cannot be compared count as equal.
pub fn is_other_manifest(one: Option<&str>, other: Option<&str>) -> bool {
    same_manifest(one, other) == Some(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_has_its_decimal_digits() {
        for byte in 0..=u8::MAX {
            assert_eq!(
                decimal(byte).collect::<Vec<_>>(),
                byte.to_string().bytes().collect::<Vec<_>>()
            );
        }
    }
}
