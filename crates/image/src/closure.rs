//! Programs that are linked to libraries, with these.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use crate::{Node, Root};

#[derive(Debug, thiserror::Error)]
pub enum ClosureError {
    #[error("read {path} as a program or library")]
    Parse {
        path: PathBuf,
        source: goblin::error::Error,
    },
    #[error("{path} needs {library}, which is in none of the places that libraries are taken from")]
    Missing { path: PathBuf, library: String },
}

/// Libraries by the name that programs ask for: where they lie in the image, and their content.
pub type Libraries = BTreeMap<String, (PathBuf, Vec<u8>)>;

/// Puts a program, its interpreter and all libraries that it needs into an image. One that is linked to none is put there
/// alone.
pub fn add_program(root: &mut Root, path: &str, content: Vec<u8>, libraries: &Libraries) -> Result<(), ClosureError> {
    let mut waiting = vec![(PathBuf::from(path), content)];
    while let Some((path, content)) = waiting.pop() {
        for name in needed(&path, &content)? {
            let missing = || ClosureError::Missing {
                path: path.clone(),
                library: name.clone(),
            };
            let (library, content) = libraries.get(&name).ok_or_else(missing)?;
            if !root.contains(library) {
                // Before it is looked into: libraries may need each other.
                root.add(library, Node::program(content.clone()));
                waiting.push((library.clone(), content.clone()));
            }
        }
        root.add(path, Node::program(content));
    }
    Ok(())
}

fn needed(path: &Path, content: &[u8]) -> Result<Vec<String>, ClosureError> {
    let parsed = goblin::elf::Elf::parse(content);
    let elf = parsed.map_err(|source| ClosureError::Parse {
        path: path.to_owned(),
        source,
    })?;
    let interpreter = elf.interpreter.and_then(|path| path.rsplit('/').next());
    Ok(elf
        .libraries
        .iter()
        .copied()
        .chain(interpreter)
        .map(str::to_owned)
        .collect())
}
