//! Which modules of the hub may use which: the ground and the memory are below everything else (ADR 45).

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

use crate::repository;

const HUB: &str = "crates/hub/src";

/// Modules, and the modules of the crate that they may use.
type Room = (&'static [&'static str], &'static [&'static str]);

const ROOMS: &[Room] = &[
    (
        &["kinds", "resources", "queue", "errors"],
        &["kinds", "resources", "queue", "errors"],
    ),
    (&["memory"], &["memory", "kinds", "resources", "queue", "errors"]),
];

/// One violation for each use that no room allows.
pub fn check() -> Result<Vec<String>> {
    let hub = repository::root()?.join(HUB);
    let mut violations = Vec::new();
    for (modules, allowed) in ROOMS {
        for module in *modules {
            for file in files(&hub, module)? {
                let text = fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
                let used = used_modules(&text);
                let name = file.strip_prefix(&hub).unwrap_or(&file).display();
                let wrong = used.iter().filter(|used| !allowed.contains(&used.as_str()));
                violations.extend(wrong.map(|used| format!("{HUB}/{name} uses crate::{used}, which is above it")));
            }
        }
    }
    Ok(violations)
}

/// `module.rs` and the files of `module/`.
fn files(parent: &Path, module: &str) -> Result<Vec<PathBuf>> {
    let file = parent.join(module).with_extension("rs");
    let mut found = vec![file];
    let mut folders = vec![parent.join(module)];
    while let Some(folder) = folders.pop() {
        if !folder.exists() {
            continue;
        }
        for entry in fs::read_dir(&folder).with_context(|| format!("read {}", folder.display()))? {
            let path = entry?.path();
            match path.is_dir() {
                true => folders.push(path),
                false => found.push(path),
            }
        }
    }
    found.sort();
    Ok(found)
}

/// The modules of the crate that a file names after `crate::`.
fn used_modules(text: &str) -> BTreeSet<String> {
    let code = text
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .collect::<Vec<_>>()
        .join("\n");
    let mut used = BTreeSet::new();
    for (_, rest) in code
        .match_indices("crate::")
        .map(|(at, found)| code.split_at(at + found.len()))
    {
        match rest.strip_prefix('{') {
            Some(tree) => used.extend(roots(tree)),
            None => used.extend(first_word(rest)),
        }
    }
    used
}

/// The first word of each branch of a use tree, after its opening brace.
fn roots(tree: &str) -> Vec<String> {
    let (mut found, mut depth, mut starts) = (Vec::new(), 0_usize, true);
    for (at, letter) in tree.char_indices() {
        match letter {
            '}' if depth == 0 => break,
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => starts = true,
            letter if starts && !letter.is_whitespace() => {
                found.extend(first_word(&tree[at..]));
                starts = false;
            }
            _ => {}
        }
    }
    found
}

fn first_word(text: &str) -> Option<String> {
    let word: String = text
        .chars()
        .take_while(|letter| letter.is_alphanumeric() || *letter == '_')
        .collect();
    (!word.is_empty()).then_some(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uses_are_found_in_trees_and_in_paths() {
        let text = "use crate::{\n    errors::{self, chain},\n    memory::Memory,\n};\n// crate::comment::is_none\nfn f() { crate::kinds::find(); }\n";
        assert_eq!(
            used_modules(text).into_iter().collect::<Vec<_>>(),
            ["errors", "kinds", "memory"]
        );
    }
}
