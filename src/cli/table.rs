//! Columns of text. Pure.

/// Spaces between two columns.
const GAP: usize = 3;

/// Lines of columns that are as wide as their widest cell. No line ends in spaces.
pub fn table(rows: &[Vec<String>]) -> Vec<String> {
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

/// A text on one line: what is no letter of it becomes a space, and it ends after so many characters.
pub fn one_line(text: &str, most: usize) -> String {
    let words = text.split(|c: char| c.is_control() || c == ' ');
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
    fn a_text_of_many_lines_becomes_one() {
        assert_eq!(one_line("a\n\tb\x1b[31m  c", 99), "a b [31m c");
        assert_eq!(one_line("äöü äöü", 3), "äöü…");
        assert_eq!(one_line("äöü", 3), "äöü");
    }
}
