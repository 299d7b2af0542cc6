//! The message of an attempt that could not apply everything. The agent writes it, and `why` reads the part about files.

use crate::conditions::cut;

/// Begins the part about files.
pub const UNREADABLE: &str = "the source can't be read completely";
/// Files that a message names: each has to be corrected, and a message has 1,024 characters.
const NAMED: usize = 3;
/// Bytes of the message about each file if there are several, so that there is room for the objects.
const MAX_NAMED: usize = 200;

/// The parts of the message. `errors`: the files that can't be read. `unapplied`: the objects that were not applied, with
/// reasons, of `stated` objects in total. Empty: everything was applied.
pub fn describe_incomplete(errors: &[String], unapplied: &[String], stated: usize) -> Vec<String> {
    let more = match errors.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" (and {more} more)"),
    };
    let named: Vec<String> = match errors {
        [one] => vec![cut(one, NAMED * MAX_NAMED)],
        several => several.iter().take(NAMED).map(|error| cut(error, MAX_NAMED)).collect(),
    };
    let named = named.join("; ");
    let files = (!errors.is_empty()).then(|| format!("{UNREADABLE}: {named}{more}"));
    let objects = unapplied
        .first()
        .map(|first| format!("{} of {stated} objects not applied: {first}", unapplied.len()));
    files.into_iter().chain(objects).collect()
}

/// The part about files of a message with these parts, joined by `; `. None: every file could be read.
pub fn unreadable_files(message: &str) -> Option<&str> {
    let part = &message[message.find(UNREADABLE)?..];
    let objects = part
        .match_indices("; ")
        .find(|(at, _)| is_about_objects(&part[at + 2..]));
    Some(&part[..objects.map_or(part.len(), |(at, _)| at)])
}

fn is_about_objects(part: &str) -> bool {
    let is_number = |word: &str| word.parse::<usize>().is_ok();
    let words: Vec<&str> = part.splitn(7, ' ').collect();
    matches!(words.as_slice(), [unapplied, "of", stated, "objects", "not", "applied:", ..]
        if is_number(unapplied) && is_number(stated))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_told_apart_from_objects() {
        let check = |errors: &[&str], unapplied: &[&str], message: &str, files: Option<&str>| {
            let owned = |texts: &[&str]| texts.iter().map(ToString::to_string).collect::<Vec<_>>();
            let told = describe_incomplete(&owned(errors), &owned(unapplied), 4).join("; ");
            assert_eq!((told.as_str(), unreadable_files(&told)), (message, files));
        };
        check(&[], &[], "", None);
        check(
            &[],
            &["Service web: forbidden"],
            "1 of 4 objects not applied: Service web: forbidden",
            None,
        );
        let one = "the source can't be read completely: a.yaml: line 1; 2 of 3 braces";
        check(&["a.yaml: line 1; 2 of 3 braces"], &[], one, Some(one));
        check(
            &["a.yaml: no YAML", "b.yaml: no YAML"],
            &["x: no", "y: no"],
            "the source can't be read completely: a.yaml: no YAML; b.yaml: no YAML; 2 of 4 objects not applied: x: no",
            Some("the source can't be read completely: a.yaml: no YAML; b.yaml: no YAML"),
        );
        let many = "the source can't be read completely: a; b; c (and 2 more)";
        check(&["a", "b", "c", "d", "e"], &[], many, Some(many));

        let long = vec!["x".repeat(900); 3];
        let told = describe_incomplete(&long, &["Service web: forbidden".to_owned()], 4);
        assert!(told[0].len() < 700 && told[1].ends_with("forbidden"), "{told:?}");
    }
}
