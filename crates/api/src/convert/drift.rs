//! Fields that others may change.

use serde_json::{Map, Value, json};

use super::{Fields, NotConverted, Told};

/// Checks that JSON pointers lead through maps, as ours must. None: one leads into a list, or is the object itself.
pub(super) fn pointers(paths: &[String]) -> Option<Vec<String>> {
    let leads_through_maps = |path: &&String| {
        path.starts_with('/')
            && path.len() > 1
            && path
                .split('/')
                .skip(1)
                .all(|part| part != "-" && !part.is_empty() && part.parse::<u32>().is_err())
    };
    paths
        .iter()
        .all(|path| leads_through_maps(&path))
        .then(|| paths.to_vec())
}

/// A path of jq that names one field through maps (`.spec.replicas`, `.metadata.annotations["a/b"]`) as a JSON pointer.
pub(super) fn pointer_of_jq(text: &str) -> Option<String> {
    let mut pointer = String::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let quoted = ["[\"", ".[\"", ".\""]
            .into_iter()
            .find_map(|start| rest.strip_prefix(start).map(|after| (start, after)));
        let name = if let Some((start, after)) = quoted {
            let (name, after) = after.split_once('"')?;
            rest = if start.contains('[') {
                after.strip_prefix(']')?
            } else {
                after
            };
            name
        } else {
            let after = rest.strip_prefix('.')?;
            let end = after.find(['.', '[']).unwrap_or(after.len());
            let (name, after) = after.split_at(end);
            let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
            if name.is_empty() || !name.chars().all(is_plain) {
                return None;
            }
            rest = after;
            name
        };
        if name.contains('\\') {
            return None;
        }
        pointer.push('/');
        pointer.push_str(&name.replace('~', "~0").replace('/', "~1"));
    }
    pointers(&[pointer]).and_then(|mut one| one.pop())
}

/// Flux's rules: `paths`, and a `target` whose names are regular expressions. `lost` receives the rules that ours
/// cannot express, with their place.
pub(super) fn flux_rules(
    rules: Vec<Fields>,
    told: &mut Told,
    mut lost: impl FnMut(&str, &mut Told),
) -> Result<Vec<Value>, NotConverted> {
    let mut made = Vec::new();
    for mut rule in rules {
        let path = rule.path.clone();
        let paths = rule.texts("paths")?;
        let mut target = rule.map("target")?;
        let mut selects = Map::new();
        let mut is_plain = true;
        for name in ["group", "kind", "namespace", "name"] {
            match target.text(name)?.as_deref() {
                None | Some(".*") => {}
                Some(text)
                    if text
                        .chars()
                        .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.')) =>
                {
                    selects.insert(name.to_owned(), text.into());
                }
                Some(_) => is_plain = false,
            }
        }
        for selector in ["labelSelector", "annotationSelector"] {
            is_plain &= target.text(selector)?.is_none();
        }
        // A group has one kind of this name, whatever its version.
        target.take("version");
        target.finish(told);
        rule.finish(told);
        match pointers(&paths).filter(|_| is_plain) {
            Some(pointers) => {
                selects.insert("jsonPointers".to_owned(), json!(pointers));
                made.push(selects.into());
            }
            None => lost(&path, told),
        }
    }
    Ok(made)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_of_jq_through_maps_is_a_pointer() {
        for (jq, pointer) in [
            (".spec.replicas", "/spec/replicas"),
            (".data", "/data"),
            (".metadata.annotations[\"a.b/c\"].d", "/metadata/annotations/a.b~1c/d"),
            (".metadata.\"x-y\"", "/metadata/x-y"),
        ] {
            assert_eq!(pointer_of_jq(jq).as_deref(), Some(pointer), "{jq}");
        }
        for jq in [
            ".webhooks[].clientConfig",
            ".webhooks[0]",
            "select(.a)",
            ".a | .b",
            "",
            ".",
            ".a..b",
            ".a[\"b\\\"c\"]",
        ] {
            assert_eq!(pointer_of_jq(jq), None, "{jq}");
        }
    }

    #[test]
    fn pointers_into_lists_are_none_of_ours() {
        let check = |paths: &[&str]| pointers(&paths.iter().map(ToString::to_string).collect::<Vec<_>>()).is_some();
        assert!(check(&["/spec/replicas", "/metadata/annotations/a~1b"]));
        for path in ["/spec/containers/0/image", "/a/-", "", "/", "spec"] {
            assert!(!check(&[path]), "{path}");
        }
    }
}
