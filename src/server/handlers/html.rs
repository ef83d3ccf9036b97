//! Builds HTML. Pure.

use crate::base::is_printable;
use crate::server::explain::times::clock;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};
use std::fmt::Write as _;

/// Characters that are percent-encoded in links: all except letters, digits and unreserved characters.
const NOT_PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_');

/// Maximum length of external text, in characters.
pub(in crate::server) const MAX_TEXT: usize = 2000;
/// Maximum length in a table with one row per pod.
pub(super) const MAX_CELL_TEXT: usize = 200;

/// A fragment of HTML: constant markup, or escaped text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Html(String);

impl Html {
    pub(in crate::server) fn new() -> Self {
        Self::default()
    }

    /// Appends constant HTML.
    pub(super) fn markup(mut self, html: &'static str) -> Self {
        self.0.push_str(html);
        self
    }

    /// Appends external text, escaped, and truncated to `max_chars` characters. Characters that are not printable or
    /// change the text direction become spaces; consecutive spaces become one.
    pub(in crate::server) fn text(mut self, text: &str, max_chars: usize) -> Self {
        let (mut written, mut gap) = (0, false);
        for c in text.chars() {
            if c == ' ' || !is_printable(c) {
                gap = written > 0;
                continue;
            }
            if written + usize::from(gap) >= max_chars {
                self.0.push('…');
                break;
            }
            if std::mem::take(&mut gap) {
                self.0.push(' ');
                written += 1;
            }
            written += 1;
            match c {
                '&' => self.0.push_str("&amp;"),
                '<' => self.0.push_str("&lt;"),
                '>' => self.0.push_str("&gt;"),
                '"' => self.0.push_str("&quot;"),
                '\'' => self.0.push_str("&#39;"),
                c => self.0.push(c),
            }
        }
        self
    }

    /// Appends text within a line, isolated in its text direction.
    pub(in crate::server) fn inline(self, text: &str) -> Self {
        self.markup("<bdi>").text(text, MAX_TEXT).markup("</bdi>")
    }

    /// Appends a path segment or query value of a link. Not truncated, because names are shorter than the limit.
    pub(in crate::server) fn segment(mut self, text: &str) -> Self {
        let bytes = text.as_bytes();
        let bytes = bytes.get(..MAX_TEXT).unwrap_or(bytes);
        self.0.extend(percent_encode(bytes, NOT_PLAIN));
        self
    }

    pub(in crate::server) fn number(mut self, number: i64) -> Self {
        let _ = write!(self.0, "{number}");
        self
    }

    /// Appends a time in UTC and its distance from now.
    pub(in crate::server) fn time(mut self, at: Timestamp, now: Timestamp) -> Self {
        let text = clock(at, now, &TimeZone::UTC);
        let _ = write!(self.0, "<time datetime=\"{at}\">{text}</time>");
        self
    }

    pub(in crate::server) fn with(mut self, more: &Self) -> Self {
        self.0.push_str(&more.0);
        self
    }

    pub(in crate::server) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(in crate::server) fn as_str(&self) -> &str {
        &self.0
    }
}

/// A link to a pod's page.
pub(super) fn pod_link(root: &'static str, namespace: &str, name: &str, uid: &str) -> Html {
    let link = Html::new().markup("<a href=\"").markup(root).markup("pod/");
    let link = link.segment(namespace).markup("/").segment(name);
    let link = match uid {
        "" => link,
        uid => link.markup("?uid=").segment(uid),
    };
    link.markup("\">").text(name, MAX_CELL_TEXT).markup("</a>")
}

pub(super) fn table_head(title: &'static str, columns: &[&'static str]) -> Html {
    let mut head = Html::new().markup("<table aria-label=\"").markup(title);
    head = head.markup("\"><thead><tr>");
    for column in columns {
        head = head.markup("<th scope=\"col\">").markup(column).markup("</th>");
    }
    head.markup("</tr></thead><tbody>")
}

/// A table row. The first cell is a header; on a narrow screen each cell shows its column's name.
pub(super) fn table_row(columns: &[&'static str], cells: &[Html]) -> Html {
    let mut row = Html::new().markup("<tr>");
    for (index, (column, cell)) in columns.iter().zip(cells).enumerate() {
        let (open, close) = match index {
            0 => ("<th scope=\"row\" data-column=\"", "</th>"),
            _ => ("<td data-column=\"", "</td>"),
        };
        row = row.markup(open).markup(column).markup("\">").with(cell).markup(close);
    }
    row.markup("</tr>")
}

/// A section with a table; empty without rows.
pub(super) fn section(title: &'static str, columns: &[&'static str], rows: &[Vec<Html>]) -> Html {
    if rows.is_empty() {
        return Html::new();
    }
    let mut out = Html::new().markup("<section><h2>").markup(title).markup("</h2>");
    out = out.with(&table_head(title, columns));
    for row in rows {
        out = out.with(&table_row(columns, row));
    }
    out.markup("</tbody></table></section>")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> String {
        Html::new().text(text, 40).as_str().to_owned()
    }

    #[test]
    fn foreign_text_is_escaped() {
        let rows = [
            ("", ""),
            ("plain", "plain"),
            ("<script>alert(1)</script>", "&lt;script&gt;alert(1)&lt;/script&gt;"),
            ("\"><img src=x onerror='a()'>", "&quot;&gt;&lt;img src=x onerror=&#39;a()&#39;&gt;"),
            ("&lt; &amp;", "&amp;lt; &amp;amp;"),
            ("a\0b\x1b[31m\r\n\tc\u{7f}\u{9b}d", "a b [31m c d"),
            ("a\u{202e}b\u{2066}c\u{2069}d\u{200f}e\u{200b}f\u{feff}g", "a b c d e f g"),
            ("\u{2028}x\u{2029}", "x"),
            ("  many   spaces  ", "many spaces"),
            ("e\u{301} ü 世界 שלום", "e\u{301} ü 世界 שלום"),
        ];
        for (given, expected) in rows {
            assert_eq!(text(given), expected, "{given:?}");
        }
    }

    #[test]
    fn a_long_text_is_cut_between_characters_and_never_within_an_escape() {
        assert_eq!(text(&"ä".repeat(40)), "ä".repeat(40));
        assert_eq!(text(&"ä".repeat(41)), "ä".repeat(40) + "…");
        assert_eq!(text(&"<".repeat(64 * 1024)), "&lt;".repeat(40) + "…");
        assert_eq!(text(&" ".repeat(64 * 1024)), "");
        assert_eq!(text(&format!("{} b", "a".repeat(39))), "a".repeat(39) + "…");
        let message = format!("a{}", "\u{202e}\n".repeat(64 * 1024));
        assert_eq!(text(&message), "a");
    }

    #[test]
    fn links_are_encoded_so_that_names_cannot_change_their_target() {
        let rows = [
            ("shop", "web-n1.example", "u", "x/pod/shop/web-n1.example?uid=u"),
            ("shop", "web", "", "x/pod/shop/web"),
            ("a/b", "\"><b>", "&c#d", "x/pod/a%2Fb/%22%3E%3Cb%3E?uid=%26c%23d"),
            ("javascript:x", "é", "", "x/pod/javascript%3Ax/%C3%A9"),
        ];
        for (namespace, name, uid, expected) in rows {
            let link = pod_link("x/", namespace, name, uid);
            let start = format!("<a href=\"{expected}\">");
            assert!(link.as_str().starts_with(&start), "{link:?}");
        }
    }

    #[test]
    fn tables_have_headers_for_both_ways_of_reading() {
        let cell = |text| Html::new().text(text, 9);
        let rows = [vec![cell("a<"), cell("1")]];
        let expected = "<section><h2>T</h2><table aria-label=\"T\"><thead><tr><th scope=\"col\">N</th>\
            <th scope=\"col\">V</th></tr></thead><tbody><tr><th scope=\"row\" data-column=\"N\">a&lt;</th>\
            <td data-column=\"V\">1</td></tr></tbody></table></section>";
        assert_eq!(section("T", &["N", "V"], &rows).as_str(), expected);
        assert!(section("T", &["N", "V"], &[]).is_empty());
    }
}
