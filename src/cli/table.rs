//! Text in columns. Pure.
//!
//! Most cells come from outside (manifests, images, the runtime, termination messages), so terminal escape sequences
//! are removed.

use crate::base::is_printable;

/// Number of spaces between columns.
const GAP: usize = 3;

/// Replaces every character by a space that a terminal would interpret.
pub fn plain(text: &str) -> String {
    let shown = |c: char| if is_printable(c) { c } else { ' ' };
    text.chars().map(shown).collect()
}

/// Formats rows with columns as wide as their widest cell. Cells are made [`plain`]; lines have no trailing spaces.
pub fn table(rows: &[Vec<String>]) -> Vec<String> {
    let plain_row = |row: &Vec<String>| row.iter().map(|cell| plain(cell)).collect();
    let rows: Vec<Vec<String>> = rows.iter().map(plain_row).collect();
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            line.push_str(cell);
            let pad = width + GAP - cell.chars().count();
            line.extend(std::iter::repeat_n(' ', pad));
        }
        line.truncate(line.trim_end().len());
        line
    };
    rows.iter().map(line).collect()
}

/// A [`plain`] text with single spaces, truncated to `most` characters.
pub fn one_line(text: &str, most: usize) -> String {
    let text = plain(text);
    let words = text.split(' ');
    let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
    let line = words.join(" ");
    match line.char_indices().nth(most) {
        Some((at, _)) => format!("{}…", line.get(..at).unwrap_or_default().trim_end()),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(rows: &[&[&str]]) -> Vec<Vec<String>> {
        let row = |row: &&[&str]| row.iter().map(ToString::to_string).collect();
        rows.iter().map(row).collect()
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let lines = table(&rows(&[&["A", "BB", "C"], &["ää", "b", ""], &["a"]]));
        assert_eq!(lines, ["A    BB   C", "ää   b", "a"]);
        assert!(table(&[]).is_empty());
    }

    #[test]
    fn foreign_text_has_no_terminal_commands() {
        let hostile = "a\x1b]0;b\x07\u{9b}2J\u{202e}c\r\n";
        assert_eq!(plain(hostile), "a ]0;b  2J c  ");
        assert_eq!(plain("e\u{301} ü 世界"), "e\u{301} ü 世界");
        assert_eq!(one_line(hostile, 99), "a ]0;b 2J c");
        let lines = table(&rows(&[&[hostile, "x"], &["b", "x"]]));
        assert_eq!(lines, ["a ]0;b  2J c     x", "b                x"]);
    }

    #[test]
    fn a_text_of_many_lines_becomes_one() {
        assert_eq!(one_line("a\n\tb\x1b[31m  c", 99), "a b [31m c");
        assert_eq!(one_line("äöü äöü", 3), "äöü…");
        assert_eq!(one_line("äöü", 3), "äöü");
    }
}
