//! Rules for iSCSI and Fibre Channel volumes. Pure.

use super::super::{Errors, Path};
use k8s_openapi::api::core::v1::{FCVolumeSource, ISCSIVolumeSource};

const NO_NAME: &str = "must be valid format starting with iqn, eui, or naa";
const MAX_LUN: i32 = 255;

pub(super) fn iscsi(source: &ISCSIVolumeSource, path: &Path<'_>, errors: &mut Errors) {
    if source.target_portal.is_empty() {
        errors.required(&path.child("targetPortal"), "");
    }
    if source.iqn.is_empty() {
        errors.required(&path.child("iqn"), "");
    } else {
        name(&source.iqn, &path.child("iqn"), errors);
    }
    lun(source.lun, &path.child("lun"), errors);
    let authenticates = [source.chap_auth_discovery, source.chap_auth_session];
    if authenticates.contains(&Some(true)) && source.secret_ref.is_none() {
        errors.required(&path.child("secretRef"), "");
    }
    if let Some(initiator) = &source.initiator_name {
        name(initiator, &path.child("initiatorname"), errors);
    }
}

pub(super) fn fc(source: &FCVolumeSource, path: &Path<'_>, errors: &mut Errors) {
    let ports = source.target_wwns.as_deref().unwrap_or_default();
    let units = source.wwids.as_deref().unwrap_or_default();
    let at = path.child("targetWWNs");
    match (ports, units) {
        ([], []) => errors.required(&at, "must specify either targetWWNs or wwids, but not both"),
        ([_, ..], [_, ..]) => {
            let detail = "targetWWNs and wwids can not be specified simultaneously";
            errors.invalid_raw(&at, format_args!("{ports:?}"), detail);
        }
        _ => {}
    }
    match source.lun {
        _ if ports.is_empty() => {}
        None => errors.required(&path.child("lun"), "lun is required if targetWWNs is specified"),
        Some(of) => lun(of, &path.child("lun"), errors),
    }
}

fn lun(lun: i32, path: &Path<'_>, errors: &mut Errors) {
    if !(0..=MAX_LUN).contains(&lun) {
        let detail = format!("must be between 0 and {MAX_LUN}, inclusive");
        errors.invalid_raw(path, lun, detail);
    }
}

/// The name of a target or an initiator.
fn name(name: &str, path: &Path<'_>, errors: &mut Errors) {
    let digits = |prefix: &str, count: usize| {
        let rest = name.strip_prefix(prefix).and_then(|rest| rest.strip_prefix('.'));
        rest.is_some_and(|it| it.len() == count && it.bytes().all(|c| c.is_ascii_alphanumeric()))
    };
    let is_valid = match name.get(..3) {
        Some("iqn") => is_iqn(name),
        Some("eui") => digits("eui", 16),
        Some("naa") => digits("naa", 32),
        _ => return errors.invalid(path, name, NO_NAME),
    };
    if !is_valid {
        errors.invalid(path, name, "must be valid format");
    }
}

/// Whether it is `iqn.YYYY-MM.AUTHORITY:NAME`.
fn is_iqn(name: &str) -> bool {
    let parse = || {
        let (date, rest) = name.strip_prefix("iqn.")?.split_once('.')?;
        let (year, month) = date.split_once('-')?;
        let (authority, own) = rest.split_once(':')?;
        let digits =
            |text: &str, count| text.len() == count && text.bytes().all(|c| c.is_ascii_digit());
        let of_authority = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.');
        let excluded =
            |c: char| c.is_whitespace() || matches!(c, ',' | ';' | '*' | '&' | '$' | '|');
        Some(
            digits(year, 4)
                && digits(month, 2)
                && !authority.is_empty()
                && authority.chars().all(of_authority)
                && !own.is_empty()
                && !own.contains(excluded),
        )
    };
    parse().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{from_value, json};

    #[test]
    fn the_names_of_targets_have_upstreams_forms() {
        for (text, expected) in [
            ("iqn.2001-04.com.example:storage.disk2", None),
            ("iqn.2001-04.com.example:a:b", None),
            ("eui.0123456789abcdef", None),
            ("naa.60000970000123456789533030324141", None),
            ("iqn.2001-4.com.example:a", Some("must be valid format")),
            ("iqn.2001-04.com.example", Some("must be valid format")),
            ("iqn.2001-04.com.example:", Some("must be valid format")),
            ("iqn.2001-04.com.example:a b", Some("must be valid format")),
            ("iqn.2001-04.com/example:a", Some("must be valid format")),
            ("eui.0123", Some("must be valid format")),
            ("naa.0123", Some("must be valid format")),
            ("x", Some(NO_NAME)),
        ] {
            let mut errors = Errors::default();
            name(text, &Path::root("iqn"), &mut errors);
            let found: Vec<_> = errors.into_vec().iter().map(ToString::to_string).collect();
            let expected = expected.map(|why| format!("iqn: Invalid value: {text:?}: {why}"));
            assert_eq!(found, expected.into_iter().collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_disk_has_to_be_named_as_upstream_wants_it() {
        let lines = |check: &dyn Fn(&Path<'_>, &mut Errors)| {
            let mut errors = Errors::default();
            check(&Path::root("v"), &mut errors);
            let lines = errors.into_vec();
            lines.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let bad: ISCSIVolumeSource = from_value(json!({
            "targetPortal": "", "iqn": "", "lun": 256, "chapAuthSession": true, "initiatorName": "x"}))
        .unwrap();
        assert_eq!(
            lines(&|path, errors| iscsi(&bad, path, errors)),
            [
                "v.targetPortal: Required value".to_owned(),
                "v.iqn: Required value".to_owned(),
                "v.lun: Invalid value: 256: must be between 0 and 255, inclusive".to_owned(),
                "v.secretRef: Required value".to_owned(),
                format!("v.initiatorname: Invalid value: \"x\": {NO_NAME}"),
            ]
        );
        for (source, expected) in [
            (json!({"targetWWNs": ["500a"], "lun": 0}), &[][..]),
            (json!({"wwids": ["3600"]}), &[]),
            (
                json!({}),
                &[
                    "v.targetWWNs: Required value: must specify either targetWWNs or wwids, but not both",
                ],
            ),
            (
                json!({"targetWWNs": ["500a"]}),
                &["v.lun: Required value: lun is required if targetWWNs is specified"],
            ),
            (
                json!({"targetWWNs": ["500a"], "lun": -1}),
                &["v.lun: Invalid value: -1: must be between 0 and 255, inclusive"],
            ),
            (
                json!({"targetWWNs": ["500a"], "lun": 0, "wwids": ["3600"]}),
                &[
                    "v.targetWWNs: Invalid value: [\"500a\"]: targetWWNs and wwids can not be specified simultaneously",
                ],
            ),
        ] {
            let source: FCVolumeSource = from_value(source).unwrap();
            assert_eq!(lines(&|path, errors| fc(&source, path, errors)), expected);
        }
    }
}
