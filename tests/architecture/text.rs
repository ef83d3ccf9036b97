//! Reads Rust sources as text: code without comments and strings, and words in it.

use std::ops::Range;

/// Whether a character may be part of a name.
pub(crate) fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Where `word` stands alone.
pub(crate) fn find_words<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    code.match_indices(word).map(|(at, _)| at).filter(move |at| {
        !code[..*at].ends_with(is_word) && !code[at + word.len()..].starts_with(is_word)
    })
}

/// The word that follows each `prefix`.
pub(crate) fn words_after<'a>(
    code: &'a str,
    prefix: &'a str,
) -> impl Iterator<Item = (usize, &'a str)> + 'a {
    code.match_indices(prefix).filter(|(at, _)| !code[..*at].ends_with(is_word)).map(
        move |(at, _)| {
            let rest = &code[at + prefix.len()..];
            (at, &rest[..rest.find(|c| !is_word(c)).unwrap_or(rest.len())])
        },
    )
}

/// The text with comments, strings and character literals blanked, byte by byte the same length.
pub(crate) fn without_comments_and_strings(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let raw = rest
            .trim_start_matches(['b', 'c'])
            .strip_prefix('r')
            .map(|r| r.len() - r.trim_start_matches('#').len());
        let hashes = "#".repeat(raw.unwrap_or(0));
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if raw.is_some()
            && !code.ends_with(is_word)
            && rest.trim_start_matches(['b', 'c', 'r', '#']).starts_with('"')
        {
            let open = rest.find('"').unwrap() + 1;
            rest[open..]
                .find(&format!("\"{hashes}"))
                .map_or(rest.len(), |end| open + end + 1 + hashes.len())
        } else if c == '"' {
            let mut escaped = true;
            let end = rest.find(|c| {
                let ends = c == '"' && !escaped;
                escaped = c == '\\' && !escaped;
                ends
            });
            end.map_or(rest.len(), |end| end + 1)
        } else if c == '\'' && rest[1..].starts_with('\\') {
            rest[3..].find('\'').map_or(rest.len(), |end| end + 4)
        } else if c == '\'' && rest.chars().nth(2) == Some('\'') {
            2 + rest.chars().nth(1).map_or(0, char::len_utf8)
        } else {
            code.push(c);
            rest = &rest[c.len_utf8()..];
            continue;
        };
        blank(&rest[..length], &mut code);
        rest = &rest[length..];
    }
    code
}

/// Appends as many blanks as `text` has bytes, and its line ends.
fn blank(text: &str, to: &mut String) {
    to.extend(text.bytes().map(|b| if b == b'\n' { '\n' } else { ' ' }));
}

/// Code (without comments and strings) with its test items blanked, byte by byte the same length.
pub(crate) fn without_tests(code: &str) -> String {
    let (mut kept, mut at) = (String::with_capacity(code.len()), 0);
    for item in test_items(code) {
        kept.push_str(&code[at..item.start]);
        blank(&code[item.clone()], &mut kept);
        at = item.end;
    }
    kept.push_str(&code[at..]);
    kept
}

/// Where the test items of code (without comments and strings) are.
pub(crate) fn test_items(code: &str) -> Vec<Range<usize>> {
    const TEST: &str = "#[cfg(test)]";
    let (mut items, mut from) = (Vec::new(), 0);
    while let Some(at) = code[from..].find(TEST) {
        let start = from + at;
        from = start + TEST.len() + item_length(&code[start + TEST.len()..]);
        items.push(start..from);
    }
    items
}

/// How long the item is that `code` begins with, its attributes included: up to a semicolon or the
/// end of a block. A `use` or a `static` ends only with its semicolon.
pub(crate) fn item_length(code: &str) -> usize {
    let (mut depth, mut ends_with_block) = (0_usize, true);
    for (at, c) in code.char_indices() {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => {
                depth = depth.saturating_sub(1);
                if depth == 0 && c == '}' && ends_with_block {
                    return at + 1;
                }
            }
            ';' if depth == 0 => return at + 1,
            ' ' if depth == 0 => {
                let word = code[..at].rsplit(|c| !is_word(c)).next();
                ends_with_block &= !matches!(word, Some("use" | "static"));
            }
            _ => {}
        }
    }
    code.len()
}
