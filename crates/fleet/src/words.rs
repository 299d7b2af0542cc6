//! Numbers in sentences.

use std::fmt::Display;

/// `1 object`, `3 objects`. `noun`: one whose plural ends in `s`.
pub fn counted<N: Display + PartialEq + From<u8>>(count: N, noun: &str) -> String {
    let ending = verb(&count, "", "s");
    format!("{count} {noun}{ending}")
}

/// The verb for so many.
pub fn verb<'a, N: PartialEq + From<u8>>(count: &N, one: &'a str, many: &'a str) -> &'a str {
    if *count == N::from(1) { one } else { many }
}
