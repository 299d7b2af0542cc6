//! Numbers, lists and names in sentences.

use std::fmt::Display;

/// `1 object`, `3 objects`. `noun`: a noun whose plural ends in `s`.
pub fn counted<N: Display + PartialEq + From<u8>>(count: N, noun: &str) -> String {
    let ending = verb(&count, "", "s");
    format!("{count} {noun}{ending}")
}

/// `a, b, c and 2 more`. `all`: the total number, including items that are not named.
pub fn listed(named: &[String], all: usize) -> String {
    let named_text = named.join(", ");
    match all.saturating_sub(named.len()) {
        0 => named_text,
        more => format!("{named_text} and {more} more"),
    }
}

/// ` by ada: slow`, as far as it is known.
pub fn signed(by: Option<&str>, reason: Option<&str>) -> String {
    let by = by
        .filter(|by| !by.is_empty())
        .map(|by| format!(" by {by}"))
        .unwrap_or_default();
    by + &reason.map(|reason| format!(": {reason}")).unwrap_or_default()
}

/// The verb in the form for the count.
pub fn verb<'a, N: PartialEq + From<u8>>(count: &N, one: &'a str, many: &'a str) -> &'a str {
    if *count == N::from(1) { one } else { many }
}
