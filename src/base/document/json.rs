//! Writes a [`DocumentNode`] tree as JSON.

use super::{DocumentNode, DocumentValue};

/// The largest integer up to which a float represents all integers exactly.
const MAX_WHOLE_FLOAT: f64 = 9_007_199_254_740_992.0;

impl DocumentNode {
    /// The tree as JSON, without rejected entries. Each value is on a line of its own, so that the line in a JSON
    /// parser's error identifies the value: [`DocumentNode::on_json_line`].
    pub fn to_json(&self) -> Vec<u8> {
        let mut text = Vec::new();
        self.write(&mut text);
        text
    }

    fn write(&self, out: &mut Vec<u8>) {
        match &self.value {
            DocumentValue::Null | DocumentValue::Rejected => out.extend(b"null"),
            DocumentValue::Bool(value) => out.extend(value.to_string().bytes()),
            DocumentValue::Int(value) => out.extend(value.to_string().bytes()),
            #[expect(clippy::cast_possible_truncation, reason = "whole and in range")]
            DocumentValue::Float(value)
                if value.fract() == 0.0 && value.abs() <= MAX_WHOLE_FLOAT =>
            {
                out.extend((*value as i64).to_string().bytes());
            }
            DocumentValue::Float(value) => {
                out.extend(serde_json::Value::from(*value).to_string().bytes())
            }
            DocumentValue::String(text) => write_text(text, out),
            DocumentValue::List(items) => {
                out.push(b'[');
                for (index, item) in items.iter().enumerate() {
                    out.extend(if index > 0 { &b",\n"[..] } else { b"\n" });
                    item.write(out);
                }
                out.push(b']');
            }
            DocumentValue::Map(entries) => {
                out.push(b'{');
                let written = entries.iter().filter(|entry| !entry.node.is_rejected());
                for (index, entry) in written.enumerate() {
                    out.extend(if index > 0 { &b",\n"[..] } else { b"\n" });
                    write_text(&entry.key, out);
                    out.push(b':');
                    entry.node.write(out);
                }
                out.push(b'}');
            }
        }
    }

    /// The child indices that lead to the value on this line of the JSON text.
    pub fn on_json_line(&self, line: usize) -> Vec<usize> {
        let mut steps = Vec::new();
        self.find_line(&mut line.saturating_sub(1), &mut steps);
        steps
    }

    /// Counts down `before` by the values of this subtree; true when the value was found.
    fn find_line(&self, before: &mut usize, steps: &mut Vec<usize>) -> bool {
        if *before == 0 {
            return true;
        }
        let (items, entries) = match &self.value {
            DocumentValue::List(items) => (items.as_slice(), [].as_slice()),
            DocumentValue::Map(entries) => ([].as_slice(), entries.as_slice()),
            _ => return false,
        };
        let entries = entries.iter().map(|entry| &entry.node).enumerate();
        let entries = entries.filter(|(_, node)| !node.is_rejected());
        items.iter().enumerate().chain(entries).any(|(index, child)| {
            *before -= 1;
            steps.push(index);
            let found = child.find_line(before, steps);
            if !found {
                steps.pop();
            }
            found
        })
    }

    fn is_rejected(&self) -> bool {
        matches!(self.value, DocumentValue::Rejected)
    }
}

fn write_text(text: &str, out: &mut Vec<u8>) {
    // Writing to memory does not fail.
    let _ = serde_json::to_writer(out, text);
}
