//! The applied objects: ConfigMaps of some 200 bytes, like settings. No controller acts on them, so only the applying
//! client is measured.

use std::{collections::BTreeSet, fmt};

use anyhow::{Result, bail};
use farwater_api::{OWNER_ANNOTATION, SERVICE_LABEL};
use farwater_fleet::ownership::{ObjectKey, owner_annotation, service_label};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client,
    api::{ListParams, Patch, PatchParams, WatchEvent, WatchParams},
};

/// As long as a service's uid.
const SERVICE: &str = "5d1c9b0a-7f0e-4c57-9b51-3f2f8d1f6a30";
/// Objects per file, and per small service.
pub const PER_FILE: usize = 4;

/// Phases of the same objects, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Created,
    /// One value of each object changes.
    Changed,
    /// The same objects again: they are compared, and nothing is written.
    Unchanged,
}

pub const PHASES: [Phase; 3] = [Phase::Created, Phase::Changed, Phase::Unchanged];

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Created => "created",
            Self::Changed => "changed",
            Self::Unchanged => "unchanged",
        })
    }
}

fn manifest(n: usize, phase: Phase) -> String {
    let level = if phase == Phase::Created { "info" } else { "debug" };
    format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: map-{n}}}\n\
         data: {{HOST: host-{n}.example.com, PORT: \"{}\", LEVEL: {level}, MOTTO: \"what is stated is what runs\"}}\n",
        8000 + n
    )
}

/// Path of the file with this number.
pub fn folder(root: &str, n: usize) -> String {
    format!("{root}/{n:04}")
}

/// Content of the file with this number. In the phase `Unchanged` only a comment differs.
pub fn file(n: usize, phase: Phase) -> String {
    let comment = if phase == Phase::Unchanged { "# the same\n" } else { "" };
    let maps = (n * PER_FILE..(n + 1) * PER_FILE).map(|n| format!("---\n{}", manifest(n, phase)));
    format!("{comment}{}", maps.collect::<String>())
}

/// Files below `root` with so many objects.
pub fn files(root: &str, count: usize, phase: Phase) -> Vec<(String, String)> {
    let path = |n| format!("{}/maps.yaml", folder(root, n));
    (0..count / PER_FILE).map(|n| (path(n), file(n, phase))).collect()
}

/// The objects themselves.
pub fn objects(count: usize, phase: Phase) -> Result<Vec<ConfigMap>> {
    (0..count)
        .map(|n| Ok(serde_saphyr::from_str::<ConfigMap>(&manifest(n, phase))?))
        .collect()
}

/// The objects as the agent sends them: in their namespace, with the labels and annotations of a service.
pub fn marked(namespace: &str, mut objects: Vec<ConfigMap>) -> Vec<ConfigMap> {
    for map in &mut objects {
        let metadata = &mut map.metadata;
        let key = ObjectKey::new("", "ConfigMap", namespace, metadata.name.as_deref().unwrap_or_default());
        metadata.namespace = Some(namespace.to_owned());
        metadata.labels = Some([(SERVICE_LABEL.to_owned(), service_label(SERVICE))].into());
        metadata.annotations = Some([(OWNER_ANNOTATION.to_owned(), owner_annotation(SERVICE, &key))].into());
    }
    objects
}

/// Applies objects as a bare client, with so many requests at a time.
pub async fn apply(client: Client, namespace: &str, maps: &[ConfigMap], in_flight: usize) -> Result<()> {
    let api: Api<ConfigMap> = Api::namespaced(client, namespace);
    let parameters = PatchParams::apply("bare-client").force();
    let sends = maps.iter().map(|map| {
        let (api, parameters) = (&api, &parameters);
        let name = map.metadata.name.as_deref().unwrap_or_default();
        async move { api.patch(name, parameters, &Patch::Apply(map)).await }
    });
    let mut answers = stream::iter(sends).buffer_unordered(in_flight);
    while answers.try_next().await?.is_some() {}
    Ok(())
}

/// Times when the first and the last object were written.
pub struct Seen {
    pub first: Timestamp,
    pub last: Timestamp,
}

/// Returns a future that ends when so many ConfigMaps were written in the namespace. The watch is open when this
/// returns.
pub async fn watch(
    client: Client,
    namespace: &str,
    count: usize,
) -> Result<impl Future<Output = Result<Seen>> + Send + use<>> {
    let api: Api<ConfigMap> = Api::namespaced(client, namespace);
    let list = api.list_metadata(&ListParams::default()).await?;
    let mut version = list.metadata.resource_version.unwrap_or_default();
    let mut events = api.watch_metadata(&WatchParams::default(), &version).await?.boxed();
    Ok(async move {
        let mut first = None;
        let mut names = BTreeSet::new();
        loop {
            let map = match events.try_next().await? {
                Some(WatchEvent::Added(map) | WatchEvent::Modified(map)) => map,
                Some(WatchEvent::Error(error)) => bail!("after {} of {count} ConfigMaps: {error}", names.len()),
                Some(_) => continue,
                // A busy API server ends watches that it can't serve in time.
                None => {
                    events = api.watch_metadata(&WatchParams::default(), &version).await?.boxed();
                    continue;
                }
            };
            version = map.metadata.resource_version.unwrap_or(version);
            let Some(name) = map.metadata.name.filter(|name| is_ours(name)) else {
                continue;
            };
            let now = Timestamp::now();
            let first = *first.get_or_insert(now);
            names.insert(name);
            if names.len() == count {
                return Ok(Seen { first, last: now });
            }
        }
    })
}

/// Whether the ConfigMap is one of ours. The control plane adds its own to every namespace. Flux's names have a prefix.
fn is_ours(name: &str) -> bool {
    name.contains("map-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_phase_states_the_same_objects() {
        let names = |phase| -> BTreeSet<_> {
            objects(8, phase)
                .unwrap()
                .into_iter()
                .map(|map| map.metadata.name.unwrap())
                .collect()
        };
        assert_eq!(names(Phase::Created).len(), 8);
        assert!(names(Phase::Created).iter().all(|name| is_ours(name)) && !is_ours("kube-root-ca.crt"));
        assert_eq!(names(Phase::Created), names(Phase::Unchanged));
        assert_ne!(objects(8, Phase::Created).unwrap(), objects(8, Phase::Changed).unwrap());
        assert_eq!(
            objects(8, Phase::Changed).unwrap(),
            objects(8, Phase::Unchanged).unwrap()
        );
        let files = |phase| files("apps", 8, phase);
        assert_eq!(files(Phase::Created)[1].0, "apps/0001/maps.yaml");
        assert!(files(Phase::Created)[1].1.contains("name: map-7}"));
        assert_ne!(files(Phase::Changed), files(Phase::Unchanged));
    }
}
