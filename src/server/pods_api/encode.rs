//! Encodes pods as Kubernetes' protobuf does. Pure.
//!
//! The API types implement JSON only. Protobuf fields have the same names, so the encoder walks the JSON value with the
//! descriptors of `proto/core/v1/pod.proto`.

use anyhow::{Context as _, anyhow};
use jiff::Timestamp;
use prost::{
    Message as _,
    encoding::{WireType, encode_key, encode_varint},
};
use prost_types::{
    DescriptorProto, FieldDescriptorProto, FileDescriptorSet, field_descriptor_proto,
};
use serde_json::{Map, Value};
use std::collections::HashMap;

const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/pods_api/pod.desc"));

/// Go's embedded structs (`json:",inline"`): messages in protobuf whose fields are members of the enclosing object in
/// JSON.
pub(super) const INLINE: [&str; 4] = [
    "ephemeralContainerCommon",
    "handler",
    "localObjectReference",
    "volumeSource",
];

/// The messages of a pod and their fields.
pub(super) struct PodEncoder {
    pub(super) messages: HashMap<String, Vec<FieldDescriptor>>,
}

pub(super) struct FieldDescriptor {
    pub(super) name: String,
    number: u32,
    pub(super) kind: FieldKind,
    is_list: bool,
}

#[derive(Clone)]
pub(super) enum FieldKind {
    Bool,
    Integer,
    Text,
    /// Text in JSON.
    Quantity,
    /// RFC 3339 in JSON.
    Time,
    /// A number or text in JSON.
    IntOrString,
    /// Any JSON value.
    Raw,
    Message(String),
    /// An object in JSON, with text as keys.
    Map(Box<FieldKind>),
}

impl PodEncoder {
    /// Reads the descriptors.
    ///
    /// # Errors
    /// The compiled-in descriptor set cannot be decoded.
    pub(super) fn new() -> anyhow::Result<Self> {
        let files = FileDescriptorSet::decode(DESCRIPTORS)?;
        let messages = files.file.into_iter().flat_map(|file| file.message_type);
        let messages = messages.map(|message| {
            let fields = message.field.iter();
            let fields = fields.map(|field| FieldDescriptor::of(field, &message.nested_type));
            let fields = fields.collect::<anyhow::Result<_>>()?;
            Ok((message.name().to_owned(), fields))
        });
        Ok(Self {
            messages: messages.collect::<anyhow::Result<_>>()?,
        })
    }

    /// Encodes a pod from its JSON form.
    ///
    /// # Errors
    /// A field does not have the type of its descriptor; the error names it.
    pub(super) fn pod(&self, pod: &Value) -> anyhow::Result<Vec<u8>> {
        let mut out = Vec::new();
        self.message("Pod", pod, &mut out).context("the pod")?;
        Ok(out)
    }

    fn message(&self, name: &str, value: &Value, out: &mut Vec<u8>) -> anyhow::Result<()> {
        let fields = self.messages.get(name).context("no descriptor")?;
        let object = value.as_object().context("not an object")?;
        for field in fields {
            let encoded = match object.get(&field.name) {
                Some(Value::Null) => Ok(()),
                Some(value) => self.field(field, value, out),
                None if INLINE.contains(&&*field.name) => self.value(field, value, out),
                None => Ok(()),
            };
            encoded.with_context(|| field.name.clone())?;
        }
        Ok(())
    }

    fn field(
        &self,
        field: &FieldDescriptor,
        value: &Value,
        out: &mut Vec<u8>,
    ) -> anyhow::Result<()> {
        match (&field.kind, field.is_list) {
            (FieldKind::Map(kind), _) => {
                let object = value.as_object().context("not an object")?;
                self.map(field.number, kind, object, out)
            }
            (_, true) => {
                let mut list = value.as_array().context("not a list")?.iter();
                list.try_for_each(|value| self.value(field, value, out))
            }
            (_, false) => self.value(field, value, out),
        }
    }

    fn map(
        &self,
        number: u32,
        kind: &FieldKind,
        object: &Map<String, Value>,
        out: &mut Vec<u8>,
    ) -> anyhow::Result<()> {
        let entry = FieldDescriptor {
            name: String::new(),
            number: 2,
            kind: kind.clone(),
            is_list: false,
        };
        for (key, value) in object {
            let mut body = Vec::new();
            bytes(1, key.as_bytes(), &mut body);
            self.value(&entry, value, &mut body)
                .with_context(|| key.clone())?;
            bytes(number, &body, out);
        }
        Ok(())
    }

    fn value(
        &self,
        field: &FieldDescriptor,
        value: &Value,
        out: &mut Vec<u8>,
    ) -> anyhow::Result<()> {
        let text = || value.as_str().context("not text");
        let mut body = Vec::new();
        match &field.kind {
            FieldKind::Bool => {
                let value = value.as_bool().context("not true or false")?;
                integer(field.number, value.into(), out);
                return Ok(());
            }
            FieldKind::Integer => {
                integer(field.number, value.as_i64().context("not a number")?, out);
                return Ok(());
            }
            FieldKind::Text => body.extend_from_slice(text()?.as_bytes()),
            FieldKind::Quantity => bytes(1, text()?.as_bytes(), &mut body),
            FieldKind::Time => {
                let time: Timestamp = text()?.parse()?;
                integer(1, time.as_second(), &mut body);
                integer(2, time.subsec_nanosecond().into(), &mut body);
            }
            FieldKind::IntOrString => match value {
                Value::String(text) => {
                    integer(1, 1, &mut body);
                    bytes(3, text.as_bytes(), &mut body);
                }
                value => integer(
                    2,
                    value.as_i64().context("neither number nor text")?,
                    &mut body,
                ),
            },
            FieldKind::Raw => bytes(1, value.to_string().as_bytes(), &mut body),
            FieldKind::Message(name) => self.message(name, value, &mut body)?,
            // Protobuf has no repeated maps.
            FieldKind::Map(_) => return Err(anyhow!("a list of maps")),
        }
        bytes(field.number, &body, out);
        Ok(())
    }
}

impl FieldDescriptor {
    fn of(field: &FieldDescriptorProto, nested: &[DescriptorProto]) -> anyhow::Result<Self> {
        let number = u32::try_from(field.number())?;
        let is_list = field.label() == field_descriptor_proto::Label::Repeated;
        Ok(Self {
            name: field.name().to_owned(),
            number,
            kind: FieldKind::of(field, nested)?,
            is_list,
        })
    }
}

impl FieldKind {
    fn of(field: &FieldDescriptorProto, nested: &[DescriptorProto]) -> anyhow::Result<Self> {
        use field_descriptor_proto::Type;
        let of_message = field.type_name().rsplit('.').next().unwrap_or_default();
        let entry = nested.iter().find(|entry| entry.name() == of_message);
        Ok(match field.r#type() {
            Type::Bool => Self::Bool,
            Type::Int32 | Type::Int64 => Self::Integer,
            Type::String => Self::Text,
            Type::Message => match (of_message, entry) {
                (_, Some(entry)) => {
                    let value = entry.field.iter().find(|field| field.number() == 2);
                    let value = value.context("a map without values")?;
                    Self::Map(Box::new(Self::of(value, &[])?))
                }
                ("Quantity", _) => Self::Quantity,
                ("Time" | "MicroTime", _) => Self::Time,
                ("IntOrString", _) => Self::IntOrString,
                ("FieldsV1", _) => Self::Raw,
                (name, None) => Self::Message(name.to_owned()),
            },
            // Bytes occur only in `FieldsV1.raw`; `FieldsV1` is encoded as a whole, so this kind is not used.
            _ => Self::Raw,
        })
    }
}

fn integer(number: u32, value: i64, out: &mut Vec<u8>) {
    encode_key(number, WireType::Varint, out);
    // Negative numbers of all sizes have ten bytes.
    encode_varint(value.cast_unsigned(), out);
}

fn bytes(number: u32, value: &[u8], out: &mut Vec<u8>) {
    encode_key(number, WireType::LengthDelimited, out);
    encode_varint(u64::try_from(value.len()).unwrap_or(u64::MAX), out);
    out.extend_from_slice(value);
}
