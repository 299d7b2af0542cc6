//! The differences between two trees that may change closures.

use std::collections::HashMap;

use crate::{
    manifests::IGNORE_FILE,
    path::RelPath,
    tree::{Entry, Mode, ObjectId, Tree, TreeError},
};

/// Most nested folders that are compared; a path contains no more names.
const MAX_DEPTH: usize = 256;

/// The paths at which two trees differ: files, and folders that only one of them has. A file that decides which others
/// are read ([`IGNORE_FILE`]) counts as its folder. Folders that are equal in both are not read. None: there are more
/// than `most`, or some with unreadable names; then anything may differ.
pub fn changed_paths<T: Tree>(
    tree: &T,
    before: &ObjectId,
    after: &ObjectId,
    most: usize,
) -> Result<Option<Vec<RelPath>>, TreeError> {
    let mut changed = Vec::new();
    let mut open = vec![(RelPath::root(), *before, *after, 0)];
    while let Some((folder, before, after, depth)) = open.pop() {
        if before == after {
            continue;
        }
        if depth > MAX_DEPTH {
            return Ok(None);
        }
        let (was, now) = (tree.entries(&before)?, tree.entries(&after)?);
        let mut old: HashMap<&[u8], &Entry> = was.iter().map(|entry| (entry.name.as_slice(), entry)).collect();
        // With two entries of one name it is unknown which one counts.
        if old.len() != was.len() {
            return Ok(None);
        }
        let mut names = Vec::new();
        for entry in &now {
            match old.remove(entry.name.as_slice()) {
                Some(same) if same.mode == entry.mode && same.id == entry.id => {}
                Some(other) if other.mode == Mode::Tree && entry.mode == Mode::Tree => {
                    let Ok(path) = folder.join_name(&entry.name) else {
                        return Ok(None);
                    };
                    open.push((path, other.id, entry.id, depth + 1));
                }
                _ => names.push(&entry.name),
            }
        }
        names.extend(old.values().map(|entry| &entry.name));
        for name in names {
            let Ok(path) = folder.join_name(name) else {
                return Ok(None);
            };
            let path = match path.file_name() {
                IGNORE_FILE => path.parent().unwrap_or_default(),
                _ => path,
            };
            if path.is_root() || changed.len() == most {
                return Ok(None);
            }
            changed.push(path);
        }
    }

    Ok(Some(changed))
}

/// Whether a change at a path may concern what was found or looked for at another: one of them contains the other.
pub fn concerns(changed: &RelPath, root: &RelPath) -> bool {
    changed.is_within(root) || root.is_within(changed)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::{closure, limits::Limits, tree::MemoryTree};

    fn changes(before: &[(&str, &str)], after: &[(&str, &str)]) -> Vec<String> {
        let mut tree = MemoryTree::default();
        let (before, after) = (
            tree.add_files(before.iter().copied()),
            tree.add_files(after.iter().copied()),
        );
        let changed = changed_paths(&tree, &before, &after, 100).unwrap().unwrap();
        let mut changed: Vec<_> = changed.iter().map(ToString::to_string).collect();
        changed.sort();
        changed
    }

    #[test]
    fn files_and_folders_of_one_side_are_named() {
        let before = [("a/x", "1"), ("a/y", "1"), ("b/x", "1"), ("c", "1"), ("same/x", "1")];
        assert!(changes(&before, &before).is_empty());
        let after = [
            ("a/x", "2"),
            ("a/y", "1"),
            ("c/x", "1"),
            ("new/deep/x", "1"),
            ("same/x", "1"),
        ];
        assert_eq!(changes(&before, &after), ["a/x", "b", "c", "new"]);
        assert_eq!(changes(&[("a/x", "1")], &[("a/x", "-> 1")]), ["a/x"]);
    }

    #[test]
    fn a_sourceignore_concerns_all_of_its_folder() {
        let before = [("a/b/x", "1"), ("a/.sourceignore", "x")];
        assert_eq!(changes(&before, &[("a/b/x", "1"), ("a/.sourceignore", "y")]), ["a"]);
        assert_eq!(changes(&before, &[("a/b/x", "1")]), ["a"]);
        let mut tree = MemoryTree::default();
        let trees = [
            tree.add_files(before),
            tree.add_files([before[0], before[1], (".sourceignore", "b")]),
        ];
        assert_eq!(changed_paths(&tree, &trees[0], &trees[1], 100).unwrap(), None);
    }

    #[test]
    fn more_than_is_asked_for_may_be_anything() {
        let mut tree = MemoryTree::default();
        let (before, after) = (
            tree.add_files([("a", "1"), ("b", "1")]),
            tree.add_files([("a", "2"), ("b", "2")]),
        );
        assert!(changed_paths(&tree, &before, &after, 1).unwrap().is_none());
        assert_eq!(changed_paths(&tree, &before, &after, 2).unwrap().unwrap().len(), 2);
        // Names that no path may contain.
        let blob = tree.add_blob(b"x");
        let hostile = tree.add_tree(vec![Entry {
            name: b"..".to_vec(),
            mode: Mode::File,
            id: blob,
        }]);
        assert!(changed_paths(&tree, &before, &hostile, 100).unwrap().is_none());
    }

    /// Few names and texts, so that files collide and references lead somewhere.
    fn repository() -> impl Strategy<Value = BTreeMap<String, String>> {
        let name = prop::sample::select(vec!["a", "b", "kustomization.yaml", "Chart.yaml", IGNORE_FILE]);
        let path = prop::collection::vec(name, 1..4).prop_map(|names| names.join("/"));
        let text = prop::sample::select(vec![
            "1",
            "2",
            "-> a",
            "-> ../b",
            "-> ../a/b",
            "-> b/../a",
            "resources: [../a]",
            "resources: [b, ../../b]",
            "resources: [../b/a]\ncomponents: [missing]",
            "dependencies: [{name: x, version: 1, repository: 'file://../a'}]",
        ]);
        prop::collection::btree_map(path, text.prop_map(str::to_owned), 0..10).prop_map(|mut files| {
            // A path can't be a file and a folder.
            let folders: Vec<String> = files
                .keys()
                .flat_map(|path| path.match_indices('/').map(|(at, _)| path[..at].to_owned()))
                .collect();
            files.retain(|path, _| !folders.contains(path));
            files
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 4096, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn a_change_that_concerns_none_of_its_roots_leaves_a_closure_as_it_was(
            before in repository(), after in repository(), keep in prop::collection::vec(any::<bool>(), 10),
        ) {
            // Most files of a commit are unchanged.
            let mut next = before.clone();
            for ((path, text), keep) in after.iter().zip(keep) {
                match keep {
                    true => { next.remove(path); }
                    false if !next.keys().any(|other| {
                        other.starts_with(&format!("{path}/")) || path.starts_with(&format!("{other}/"))
                    }) => { next.insert(path.clone(), text.clone()); }
                    false => {}
                }
            }
            let mut tree = MemoryTree::default();
            let mut add = |files: &BTreeMap<String, String>| {
                tree.add_files(files.iter().map(|(path, text)| (path.as_str(), text.as_str())))
            };
            let (old, new) = (add(&before), add(&next));
            // None: the ignore file of the root changed, which concerns everything.
            let changed = changed_paths(&tree, &old, &new, 1000).unwrap().unwrap_or(vec![RelPath::root()]);
            for path in ["a", "b", "a/b"] {
                let path = RelPath::parse_folder(path).unwrap();
                let Ok(was) = closure(&tree, &old, &path, &Limits::default()) else { continue };
                if was.roots.iter().any(|root| changed.iter().any(|changed| concerns(changed, root))) {
                    continue;
                }
                let now = closure(&tree, &new, &path, &Limits::default());
                prop_assert!(now.is_ok(), "{path}: {:?}", now);
                prop_assert_eq!(now.unwrap(), was);
            }
        }
    }
}
