//! Numbers in sentences.

/// `1 object`, `3 objects`. `noun`: one whose plural ends in `s`.
pub fn counted(count: impl Into<i64>, noun: &str) -> String {
    let count = count.into();
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

/// The verb for so many.
pub fn verb<'a>(count: impl Into<i64>, one: &'a str, many: &'a str) -> &'a str {
    if count.into() == 1 { one } else { many }
}
