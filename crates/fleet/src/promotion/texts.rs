//! Texts that belong to a commit: the sets and services of the first stage state them, and must agree.

use std::collections::BTreeMap;

/// Most bytes of names and texts together, because every service's entry holds them.
pub const MAX_BYTES: usize = 4096;

/// The texts that one set or service states, and its name for people.
pub type Stated = (String, BTreeMap<String, String>);

/// The texts of these names, or why they are not known.
pub fn agree(names: &[String], stated: &[Stated]) -> Result<BTreeMap<String, String>, String> {
    let mut texts = BTreeMap::new();
    for name in names {
        let mut found = stated.iter().filter_map(|(what, texts)| Some((what, texts.get(name)?)));
        let Some((first, text)) = found.next() else {
            return Err(format!(
                "nothing of it states configuration.{name}, which is to be promoted"
            ));
        };
        if let Some((other, _)) = found.find(|(_, other)| *other != text) {
            return Err(format!(
                "{first} and {other} state configuration.{name} differently, which is to be promoted"
            ));
        }
        texts.insert(name.clone(), text.clone());
    }
    let bytes = texts.iter().map(|(name, text)| name.len() + text.len()).sum::<usize>();
    if bytes > MAX_BYTES {
        return Err(format!(
            "the texts that are to be promoted have {bytes} bytes; at most {MAX_BYTES} are"
        ));
    }
    Ok(texts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_stated_by_nobody_differently_or_at_length_is_told() {
        let texts = |pairs: &[(&str, &str)]| {
            pairs
                .iter()
                .map(|(name, text)| (name.to_string(), text.to_string()))
                .collect()
        };
        let stated = |what: &str, pairs: &[(&str, &str)]| (what.to_owned(), texts(pairs));
        let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        let all = [
            stated("ServiceSet a", &[("tag", "1"), ("host", "a")]),
            stated("ServiceSet b", &[("host", "b")]),
        ];
        assert_eq!(agree(&names(&["tag"]), &all), Ok(texts(&[("tag", "1")])));
        assert_eq!(agree(&[], &all), Ok(BTreeMap::new()));
        let check = |name: &str, expected: &str| assert_eq!(agree(&names(&[name]), &all).unwrap_err(), expected);
        check(
            "size",
            "nothing of it states configuration.size, which is to be promoted",
        );
        check(
            "host",
            "ServiceSet a and ServiceSet b state configuration.host differently, which is to be promoted",
        );
        let long = [stated("ServiceSet a", &[("tag", &"x".repeat(5000))])];
        let told = "the texts that are to be promoted have 5003 bytes; at most 4096 are";
        assert_eq!(agree(&names(&["tag"]), &long).unwrap_err(), told);
    }
}
