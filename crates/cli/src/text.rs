//! Makes text from elsewhere safe for a terminal.

use std::borrow::Cow;

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Whether a character could move the cursor, change colours or reorder the text (as in kubectl's CVE-2021-25743).
fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

/// The text as one line. Line breaks and tabs become spaces, and other control and direction characters are removed.
pub fn plain(text: &str) -> Cow<'_, str> {
    if !text.contains(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let spaced = text.trim_end_matches(['\n', '\r']).chars().map(|c| match c {
        '\n' | '\t' => ' ',
        c => c,
    });
    Cow::Owned(spaced.filter(|c| !is_unsafe(*c)).collect())
}

/// The text without the characters that control a terminal. Tabs and line breaks are kept.
pub fn printable(text: &str) -> Cow<'_, str> {
    let bad = |c: char| is_unsafe(c) && !matches!(c, '\t' | '\n');
    if text.contains(bad) {
        Cow::Owned(text.replace(bad, ""))
    } else {
        Cow::Borrowed(text)
    }
}

/// Escapes control and direction characters in JSON as `\uXXXX`.
pub fn escape_json(json: String) -> String {
    let escaped = |c: char| is_unsafe(c) && c != '\n';
    if !json.contains(escaped) {
        return json;
    }
    let mut safe = String::with_capacity(json.len() + 16);
    for c in json.chars() {
        // All of these characters are in the basic plane, so one UTF-16 unit is enough.
        if escaped(c) {
            safe += &format!("\\u{:04x}", c as u32)
        } else {
            safe.push(c)
        }
    }
    safe
}

pub fn width(text: &str) -> usize {
    UnicodeWidthStr::width(text)
}

/// Cuts the text to `limit` columns. The last column is then an ellipsis.
pub fn fit(text: &str, limit: usize) -> Cow<'_, str> {
    if width(text) <= limit {
        return Cow::Borrowed(text);
    }
    let mut used = 0;
    let mut cut: String = text
        .chars()
        .take_while(|c| {
            used += c.width().unwrap_or(0);
            used < limit
        })
        .collect();
    cut.push('…');
    Cow::Owned(cut)
}

/// Shortens `main@sha1:<40 digits>` to `main@1a2b3c4d5e6f`.
pub fn short_revision(revision: &str) -> String {
    let (name, commit) = revision.rsplit_once('@').unwrap_or(("", revision));
    let hex = commit.rsplit_once(':').map_or(commit, |(_, hex)| hex);
    if hex.len() < 40 || !hex.bytes().all(|b| b.is_ascii_hexdigit()) {
        return revision.to_owned();
    }
    if name.is_empty() {
        hex[..12].to_owned()
    } else {
        format!("{name}@{}", &hex[..12])
    }
}

/// Shortens every commit in a sentence. Digests of 64 digits stay whole, for copying.
pub fn short_commits(text: &str) -> Cow<'_, str> {
    const MARK: &str = "sha1:";
    if !text.contains(MARK) {
        return Cow::Borrowed(text);
    }
    let mut parts = text.split(MARK);
    let mut short = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let digits = part.bytes().take_while(u8::is_ascii_hexdigit).count();
        if digits == 40 {
            short += &part[..12];
            short += &part[40..];
        } else {
            short += MARK;
            short += part;
        }
    }
    Cow::Owned(short)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escape_sequences_and_direction_marks_are_stripped() {
        assert_eq!(plain("a\u{1b}[31mb\tc\nd\u{202e}e\u{9b}f"), "a[31mb c def");
        assert_eq!(plain("plain"), "plain");
    }

    #[test]
    fn json_keeps_every_character_but_none_raw() {
        let escaped = escape_json(serde_json::to_string(&"a\u{9b}\u{202e}b").unwrap());
        assert_eq!(escaped, r#""a\u009b\u202eb""#);
        assert_eq!(serde_json::from_str::<String>(&escaped).unwrap(), "a\u{9b}\u{202e}b");
    }

    #[test]
    fn wide_characters_count_twice() {
        assert_eq!(fit("東京都庁", 5), "東京…");
        assert_eq!(fit("web", 3), "web");
        assert_eq!(fit("website", 4), "web…");
    }

    #[test]
    fn revisions_are_shortened_only_where_they_are_commits() {
        let commit = "a1".repeat(20);
        assert_eq!(short_revision(&format!("main@sha1:{commit}")), "main@a1a1a1a1a1a1");
        assert_eq!(short_revision(&commit), "a1a1a1a1a1a1");
        assert_eq!(short_revision("1.2.0"), "1.2.0");
    }

    #[test]
    fn commits_in_sentences_are_shortened_and_digests_are_not() {
        let commit = "a1".repeat(20);
        assert_eq!(
            short_commits(&format!("applied main@sha1:{commit}; ok")),
            "applied main@a1a1a1a1a1a1; ok"
        );
        for kept in ["sha1:abc", "no commit", &format!("sha256:{}", "0".repeat(64))] {
            assert_eq!(short_commits(kept), kept);
        }
    }
}
