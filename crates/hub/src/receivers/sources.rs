//! The sources of a namespace, indexed by the names in deliveries, so that one of thousands is found directly.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use farwater_api::{
    ReceiverSpec, SourceKind,
    git_repository::GitReference,
    receiver::{EVERY, ReceiverType},
};
use farwater_fleet::webhooks::hint::{Address, Hint};
use farwater_store::{Resource, Store, StoreError};
use serde::Deserialize as _;

use crate::{
    resources::{Name, SourceName},
    sources,
};

pub struct Source {
    pub name: SourceName,
    pub uid: String,
    kind: SourceKind,
    /// Name of the resource.
    own_name: String,
    /// The reference that a Git repository follows.
    reference: Option<GitReference>,
    labels: BTreeMap<String, String>,
}

impl Source {
    fn read(kind: SourceKind, row: Resource) -> Result<Self, StoreError> {
        let (metadata, spec) = (&row.object["metadata"], &row.object["spec"]);
        let reference = match kind {
            SourceKind::GitRepository => Option::deserialize(&spec["ref"]).map_err(StoreError::abort)?,
            SourceKind::HelmRepository | SourceKind::OciRepository | SourceKind::ManagedNamespace => None,
        };
        let labels: Option<_> = Option::deserialize(&metadata["labels"]).map_err(StoreError::abort)?;
        let name = SourceName::Resource(kind, Name::new(&row.key.namespace, &row.key.name));
        Ok(Self {
            name,
            uid: row.uid,
            kind,
            own_name: row.key.name,
            reference,
            labels: labels.unwrap_or_default(),
        })
    }

    /// References in a hint are those of a Git repository.
    fn is_moved_by(&self, hint: &Hint) -> bool {
        self.kind != SourceKind::GitRepository || hint.concerns(self.reference.as_ref())
    }
}

#[derive(Default)]
pub struct Sources {
    all: Vec<Source>,
    by_name: HashMap<(SourceKind, String), usize>,
    /// Git repositories, by the addresses that hosts name.
    by_address: HashMap<Address, Vec<usize>>,
    /// By path: hosts have several names, inside and outside; paths are the same.
    by_path: HashMap<String, Vec<usize>>,
}

impl Sources {
    pub async fn load(store: &Store, namespace: &str) -> Result<Self, StoreError> {
        let mut rows = Vec::new();
        sources::each(store, Some(namespace), |kind, resource| rows.push((kind, resource))).await?;
        let mut sources = Self::default();
        for (kind, row) in rows {
            let url = row.object["spec"]["url"].as_str().unwrap_or_default().to_owned();
            sources.add(Source::read(kind, row)?, &url);
        }
        Ok(sources)
    }

    fn add(&mut self, source: Source, url: &str) {
        let place = self.all.len();
        if let Some(address) = Address::parse(url).filter(|_| source.kind == SourceKind::GitRepository) {
            self.by_path.entry(address.path.clone()).or_default().push(place);
            self.by_address.entry(address).or_default().push(place);
        }
        self.by_name.insert((source.kind, source.own_name.clone()), place);
        self.all.push(source);
    }

    /// The sources of a receiver that a hint is about. None: it names another repository.
    pub fn concerned(&self, receiver: &ReceiverSpec, hint: &Hint) -> Option<Vec<&Source>> {
        let places = if hint.repositories.is_empty() {
            self.named(receiver)
        } else {
            let listed = |places: BTreeSet<usize>| -> Option<BTreeSet<usize>> {
                let listed = places
                    .into_iter()
                    .filter(|place| self.is_listed(receiver, *place))
                    .collect::<BTreeSet<_>>();
                (!listed.is_empty()).then_some(listed)
            };
            let at = |address: &Address| self.by_address.get(address).into_iter().flatten().copied();
            let below = |address: &Address| self.by_path.get(&address.path).into_iter().flatten().copied();
            listed(hint.repositories.iter().flat_map(at).collect())
                .or_else(|| listed(hint.repositories.iter().flat_map(below).collect()))?
        };
        let sources = places.into_iter().filter_map(|place| self.all.get(place));
        Some(sources.filter(|source| source.is_moved_by(hint)).collect())
    }

    /// The sources of a delivery that names no repository. If hosts of this type name one with each push, such a
    /// delivery can't be relied on, so sources that are only listed by `*` are not fetched.
    fn named(&self, receiver: &ReceiverSpec) -> BTreeSet<usize> {
        if receiver.r#type == ReceiverType::GenericHmac {
            return (0..self.all.len())
                .filter(|place| self.is_listed(receiver, *place))
                .collect();
        }
        let named = |kind, name: &str| self.by_name.get(&(kind, name.to_owned())).copied();
        receiver
            .resources
            .iter()
            .filter_map(|resource| named(resource.kind, &resource.name))
            .collect()
    }

    fn is_listed(&self, receiver: &ReceiverSpec, place: usize) -> bool {
        let Some(source) = self.all.get(place) else {
            return false;
        };
        receiver
            .resources
            .iter()
            .filter(|resource| resource.kind == source.kind)
            .any(|resource| {
                let has = |(label, value): (&String, &String)| source.labels.get(label) == Some(value);
                resource.name == source.own_name || (resource.name == EVERY && resource.match_labels.iter().all(has))
            })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn sources() -> Sources {
        let mut sources = Sources::default();
        for (name, url, branch, team) in [
            ("infra", "https://git.example.com/team/infra.git", "main", "a"),
            ("infra-next", "https://git.example.com/team/infra.git", "next", "b"),
            ("inside", "http://gitea.svc:3000/team/inside", "main", "a"),
            ("other", "https://elsewhere.example.com/team/infra", "main", "b"),
        ] {
            let source = Source {
                name: SourceName::git(Name::new("ns", name)),
                uid: name.to_owned(),
                kind: SourceKind::GitRepository,
                own_name: name.to_owned(),
                reference: Some(GitReference {
                    branch: Some(branch.to_owned()),
                    ..GitReference::default()
                }),
                labels: BTreeMap::from([("team".to_owned(), team.to_owned())]),
            };
            sources.add(source, url);
        }
        let kind = SourceKind::OciRepository;
        let name = SourceName::Resource(kind, Name::new("ns", "infra"));
        let (own_name, labels) = ("infra".to_owned(), BTreeMap::new());
        let artifact = Source {
            name,
            uid: "artifact".to_owned(),
            kind,
            own_name,
            reference: None,
            labels,
        };
        sources.add(artifact, "oci://registry.example.com/team/infra");
        sources
    }

    fn check(kind: &str, resources: Value, payload: Value, expected: Option<&[&str]>) {
        let spec = json!({"type": kind, "resources": resources, "secretRef": {"name": "x"}});
        let spec: ReceiverSpec = serde_json::from_value(spec).unwrap();
        let hint = Hint::parse(payload.to_string().as_bytes(), true).unwrap();
        let sources = sources();
        let found = sources.concerned(&spec, &hint);
        let found = found.map(|found| found.into_iter().map(|source| source.uid.as_str()).collect::<Vec<_>>());
        assert_eq!(found.as_deref(), expected, "{payload}");
    }

    #[test]
    fn a_delivery_concerns_listed_sources_of_its_repository_and_reference() {
        let every = || json!([{"name": "*"}]);
        let push = |url: &str, reference: &str| json!({"repository": {"clone_url": url}, "ref": reference});
        let infra = "https://git.example.com/team/infra.git";
        check("github", every(), push(infra, "refs/heads/main"), Some(&["infra"]));
        check("github", every(), push(infra, "refs/heads/next"), Some(&["infra-next"]));
        check("github", every(), push(infra, "refs/heads/topic"), Some(&[]));
        check(
            "github",
            every(),
            json!({"repository": {"url": infra}}),
            Some(&["infra", "infra-next"]),
        );
        check(
            "github",
            json!([{"name": "infra-next"}]),
            push(infra, "refs/heads/main"),
            Some(&[]),
        );
        let theirs = json!([{"name": "*", "matchLabels": {"team": "b"}}]);
        check("github", theirs, push(infra, "refs/heads/next"), Some(&["infra-next"]));
        // The host uses its outer name.
        check(
            "gitea",
            every(),
            push("https://git.example.com/team/inside.git", "refs/heads/main"),
            Some(&["inside"]),
        );
        check(
            "gitea",
            json!([{"name": "other"}]),
            push(infra, "refs/heads/main"),
            Some(&["other"]),
        );
        check(
            "github",
            every(),
            push("https://git.example.com/team/unknown", "refs/heads/main"),
            None,
        );
        check(
            "github",
            json!([{"name": "inside"}]),
            push(infra, "refs/heads/main"),
            None,
        );
    }

    #[test]
    fn a_delivery_that_names_no_repository_concerns_what_is_listed_by_name() {
        let all = json!([{"name": "*"}, {"name": "inside"}]);
        check("github", all.clone(), json!({}), Some(&["inside"]));
        check(
            "generic-hmac",
            all,
            json!({}),
            Some(&["infra", "infra-next", "inside", "other"]),
        );
        check(
            "generic-hmac",
            json!([{"name": "*"}]),
            json!({"ref": "refs/heads/next"}),
            Some(&["infra-next"]),
        );
        let artifact = json!([{"kind": "OCIRepository", "name": "infra"}]);
        check(
            "generic-hmac",
            artifact.clone(),
            json!({"ref": "refs/heads/next"}),
            Some(&["artifact"]),
        );
        let push = json!({"repository": {"clone_url": "https://registry.example.com/team/infra"}});
        check("github", artifact, push, None);
    }
}
