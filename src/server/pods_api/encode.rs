//! Encodes pods as Kubernetes' protobuf does. Pure.
//!
//! The API types implement JSON only. Protobuf fields have the same names, so the encoder walks the JSON value with the
//! descriptors of `proto/core/v1/pod.proto`.

use anyhow::Context as _;
use jiff::Timestamp;
use prost::Message as _;
use prost::encoding::{WireType, encode_key, encode_varint};
use prost_types::{
    DescriptorProto, FieldDescriptorProto, FileDescriptorSet, field_descriptor_proto,
};
use serde_json::Value;
use std::collections::HashMap;

const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/pods_api/pod.desc"));

/// Go's embedded structs (`json:",inline"`): messages in protobuf whose fields are members of the enclosing object in
/// JSON.
pub(super) const INLINE: [&str; 4] =
    ["ephemeralContainerCommon", "handler", "localObjectReference", "volumeSource"];

/// The messages of a pod and their fields.
pub(super) struct PodEncoder {
    pub(super) messages: HashMap<String, Vec<FieldDescriptor>>,
}

pub(super) struct FieldDescriptor {
    pub(super) name: String,
    number: u32,
    /// The kind of one value.
    pub(super) kind: FieldKind,
    shape: FieldShape,
}

enum FieldShape {
    Single,
    List,
    /// An object in JSON, with text as keys.
    Map,
}

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
        Ok(Self { messages: messages.collect::<anyhow::Result<_>>()? })
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
                None if INLINE.contains(&&*field.name) => self.field(field, value, out),
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
        let (number, kind) = (field.number, &field.kind);
        match field.shape {
            FieldShape::Single => self.value(number, kind, value, out),
            FieldShape::List => {
                let mut list = value.as_array().context("not a list")?.iter();
                list.try_for_each(|value| self.value(number, kind, value, out))
            }
            FieldShape::Map => {
                let object = value.as_object().context("not an object")?;
                for (key, value) in object {
                    let mut body = Vec::new();
                    bytes(1, key.as_bytes(), &mut body);
                    self.value(2, kind, value, &mut body).with_context(|| key.clone())?;
                    bytes(number, &body, out);
                }
                Ok(())
            }
        }
    }

    fn value(
        &self,
        number: u32,
        kind: &FieldKind,
        value: &Value,
        out: &mut Vec<u8>,
    ) -> anyhow::Result<()> {
        let text = || value.as_str().context("not text");
        let mut body = Vec::new();
        match kind {
            FieldKind::Bool => {
                let value = value.as_bool().context("not true or false")?;
                integer(number, value.into(), out);
                return Ok(());
            }
            FieldKind::Integer => {
                integer(number, value.as_i64().context("not a number")?, out);
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
                value => integer(2, value.as_i64().context("neither number nor text")?, &mut body),
            },
            FieldKind::Raw => bytes(1, value.to_string().as_bytes(), &mut body),
            FieldKind::Message(name) => self.message(name, value, &mut body)?,
        }
        bytes(number, &body, out);
        Ok(())
    }
}

impl FieldDescriptor {
    fn of(field: &FieldDescriptorProto, nested: &[DescriptorProto]) -> anyhow::Result<Self> {
        // A map is a list of messages with a key and, as field 2, a value.
        let name = message_name(field);
        let entry = nested.iter().find(|entry| entry.name() == name);
        let values = entry.and_then(|entry| entry.field.iter().find(|field| field.number() == 2));
        let shape = match (values, field.label()) {
            (Some(_), _) => FieldShape::Map,
            (None, field_descriptor_proto::Label::Repeated) => FieldShape::List,
            (None, _) => FieldShape::Single,
        };
        Ok(Self {
            name: field.name().to_owned(),
            number: u32::try_from(field.number())?,
            kind: FieldKind::of(values.unwrap_or(field)),
            shape,
        })
    }
}

impl FieldKind {
    fn of(field: &FieldDescriptorProto) -> Self {
        use field_descriptor_proto::Type;
        match field.r#type() {
            Type::Bool => Self::Bool,
            Type::Int32 | Type::Int64 => Self::Integer,
            Type::String => Self::Text,
            Type::Message => match message_name(field) {
                "Quantity" => Self::Quantity,
                "Time" | "MicroTime" => Self::Time,
                "IntOrString" => Self::IntOrString,
                "FieldsV1" => Self::Raw,
                name => Self::Message(name.to_owned()),
            },
            // Bytes occur only in `FieldsV1.raw`; `FieldsV1` is encoded as a whole, so this kind is not used.
            _ => Self::Raw,
        }
    }
}

/// The message that a field has, without its package.
fn message_name(field: &FieldDescriptorProto) -> &str {
    field.type_name().rsplit('.').next().unwrap_or_default()
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
