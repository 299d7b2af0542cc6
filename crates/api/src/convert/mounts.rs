//! Folders of sources that hold values files beside a service's own files.

use serde_json::{Map, Value, json};

/// Name of such a folder among the service's files, followed by a number.
const FOLDER: &str = "farwater-values";

/// Mounted folders. Each folder of a source has its own path.
#[derive(Debug, Default)]
pub(super) struct Mounts(Vec<(Value, String)>);

impl Mounts {
    /// Path of a source's file, from the root of the service's files. `reference` is the `sourceRef`.
    pub fn file(&mut self, reference: &Value, file: &str) -> String {
        let (folder, name) = file.rsplit_once('/').unwrap_or(("", file));
        let known = self
            .0
            .iter()
            .position(|(source, at)| source == reference && at == folder);
        let number = known.unwrap_or_else(|| {
            self.0.push((reference.clone(), folder.to_owned()));
            self.0.len() - 1
        });
        format!("/{FOLDER}-{}/{name}", number + 1)
    }

    /// `spec.sources` of the service.
    pub fn into_sources(self) -> Vec<Value> {
        let each = self.0.into_iter().enumerate().map(|(n, (reference, folder))| {
            let mut source = Map::from_iter([
                ("sourceRef".to_owned(), reference),
                ("mountPath".to_owned(), json!(format!("{FOLDER}-{}", n + 1))),
            ]);
            if !folder.is_empty() {
                source.insert("path".to_owned(), folder.into());
            }
            source.into()
        });
        each.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_one_folder_lie_in_one_place() {
        let git = json!({"kind": "GitRepository", "name": "infra"});
        let mut mounts = Mounts::default();
        assert_eq!(mounts.file(&git, "envs/prod/a.yaml"), "/farwater-values-1/a.yaml");
        assert_eq!(mounts.file(&git, "envs/prod/b.yaml"), "/farwater-values-1/b.yaml");
        assert_eq!(mounts.file(&git, "c.yaml"), "/farwater-values-2/c.yaml");
        assert_eq!(
            mounts.into_sources(),
            [
                json!({"sourceRef": git, "path": "envs/prod", "mountPath": "farwater-values-1"}),
                json!({"sourceRef": git, "mountPath": "farwater-values-2"}),
            ]
        );
    }
}
