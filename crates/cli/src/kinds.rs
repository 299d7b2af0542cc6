//! Finds the kind of resource for a word. Farwater's kinds are known, and others come from the hub's discovery.

use farwater_api::{GROUP, SourceKind, VERSION};

use crate::{
    connection::Session,
    failure::{Failure, Result, suggest},
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kind {
    pub group: String,
    pub version: String,
    pub plural: String,
    pub singular: String,
    pub kind: String,
    pub short: Vec<String>,
    pub categories: Vec<String>,
    pub namespaced: bool,
}

impl Kind {
    /// Path of the collection. With `name`: path of one object.
    pub fn path(&self, namespace: Option<&str>, name: Option<&str>) -> String {
        let root = if self.group.is_empty() {
            "/api".to_owned()
        } else {
            format!("/apis/{}", self.group)
        };
        let namespace = namespace
            .filter(|_| self.namespaced)
            .map(|ns| format!("/namespaces/{ns}"))
            .unwrap_or_default();
        let name = name.map(|name| format!("/{name}")).unwrap_or_default();
        format!("{root}/{}{namespace}/{}{name}", self.version, self.plural)
    }

    /// For example `servicedeployment.farwater.dev/web`, as kubectl prints names.
    pub fn qualified(&self, name: &str) -> String {
        if self.group.is_empty() {
            format!("{}/{name}", self.singular)
        } else {
            format!("{}.{}/{name}", self.singular, self.group)
        }
    }

    /// For example `farwater.dev/v1alpha1`, or `v1` in the core group.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.clone()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    fn answers_to(&self, word: &str) -> bool {
        let qualified =
            |base: &str| word.strip_prefix(base).and_then(|rest| rest.strip_prefix('.')) == Some(&self.group);
        word == self.plural
            || word == self.singular
            || self.short.iter().any(|short| short == word)
            || (!self.group.is_empty() && (qualified(&self.plural) || qualified(&self.singular)))
    }
}

/// Farwater's kinds. A test compares them with the definitions.
pub fn ours() -> Vec<Kind> {
    let kind = |plural: &str, kind: &str, short: &[&str], namespaced| Kind {
        group: GROUP.to_owned(),
        version: VERSION.to_owned(),
        plural: plural.to_owned(),
        singular: kind.to_lowercase(),
        kind: kind.to_owned(),
        short: short.iter().map(ToString::to_string).collect(),
        categories: vec!["farwater".to_owned()],
        namespaced,
    };
    vec![
        kind("agentpolicies", "AgentPolicy", &["fwap"], false),
        kind("changewindows", "ChangeWindow", &["fwcw"], true),
        kind("clusters", "Cluster", &["fwc"], true),
        kind("clustergrants", "ClusterGrant", &[], false),
        kind("gitrepositories", "GitRepository", &["fwgit"], true),
        kind("healthrules", "HealthRule", &[], false),
        kind("helmrepositories", "HelmRepository", &["fwhelm"], true),
        kind("managednamespaces", "ManagedNamespace", &["fwmn"], true),
        kind("notificationproviders", "NotificationProvider", &[], true),
        kind("notificationrules", "NotificationRule", &[], true),
        kind("ocirepositories", "OCIRepository", &["fwoci"], true),
        kind("pipelines", "Pipeline", &["fwpl"], true),
        kind("receivers", "Receiver", &["fwrecv"], true),
        kind("servicecontexts", "ServiceContext", &["fwctx"], true),
        kind("servicedeployments", "ServiceDeployment", &["sd"], true),
        kind("servicesets", "ServiceSet", &["sds"], true),
    ]
}

/// The clusters that a tenant may deploy to, as the tenant sees them.
pub fn granted_clusters() -> Kind {
    Kind {
        group: GROUP.to_owned(),
        version: VERSION.to_owned(),
        plural: "grantedclusters".to_owned(),
        singular: "grantedcluster".to_owned(),
        kind: "GrantedCluster".to_owned(),
        short: Vec::new(),
        categories: Vec::new(),
        namespaced: true,
    }
}

/// One of our kinds, by a name or a short name.
pub fn find(word: &str) -> Option<Kind> {
    let mut all = ours().into_iter().chain([granted_clusters()]);
    all.find(|kind| kind.answers_to(word))
}

/// Words that stand for all kinds of sources.
const SOURCES: [&str; 2] = ["source", "sources"];

/// The kinds for a comma-separated list of words, without duplicates. Each word is a name, a short name or a category.
pub async fn resolve(session: &Session, words: &str) -> Result<Vec<Kind>> {
    let mut found: Vec<Kind> = Vec::new();
    let mut served: Option<Vec<Kind>> = None;
    for word in words.split(',').map(str::to_lowercase) {
        let known = ours_of(&word);
        if !known.is_empty() {
            found.extend(known);
            continue;
        }
        if served.is_none() {
            served = Some(discover(session).await?);
        }
        let served = served.as_deref().unwrap_or_default();
        let matching: Vec<&Kind> = match served.iter().find(|kind| kind.answers_to(&word)) {
            Some(kind) => vec![kind],
            None => served.iter().filter(|kind| kind.categories.contains(&word)).collect(),
        };
        if matching.is_empty() {
            return Err(unknown(&word, served));
        }
        found.extend(matching.into_iter().cloned());
    }
    Ok(unique(found))
}

/// The kinds of Farwater that a word stands for, without a request to the hub. Empty: none.
fn ours_of(word: &str) -> Vec<Kind> {
    let is_source = |kind: &Kind| SourceKind::ALL.iter().any(|source| source.plural() == kind.plural);
    let is_all = SOURCES.contains(&word);
    ours()
        .into_iter()
        .filter(|kind| if is_all { is_source(kind) } else { kind.answers_to(word) })
        .collect()
}

fn unique(kinds: Vec<Kind>) -> Vec<Kind> {
    let mut unique: Vec<Kind> = Vec::new();
    for kind in kinds {
        if !unique.contains(&kind) {
            unique.push(kind);
        }
    }
    unique
}

fn unknown(word: &str, served: &[Kind]) -> Failure {
    let failure = Failure::usage(format!("unknown resource type {word:?}")).next("{program} get farwater");
    let names = served
        .iter()
        .flat_map(|kind| [&kind.plural, &kind.singular].into_iter().chain(&kind.short));
    let near = suggest(word, names.map(String::as_str)).or_else(|| {
        // Suggests `fwcw` for `cw`.
        let mut short = served.iter().flat_map(|kind| &kind.short).map(String::as_str);
        short.find(|short| short.strip_prefix("fw") == Some(word))
    });
    if let Some(near) = near {
        return failure.evidence(format!("did you mean {near:?}?"));
    }
    let mut words: Vec<String> = Vec::new();
    for kind in served {
        let short = kind.short.join(", ");
        let told = if short.is_empty() {
            kind.plural.clone()
        } else {
            format!("{} ({short})", kind.plural)
        };
        // Two groups serve events, which are listed once.
        let is_told = words.iter().any(|word| word.split(' ').next() == Some(&kind.plural));
        if !is_told {
            words.push(told);
        }
    }
    failure.evidence(format!(
        "the hub serves {}; and sources, which is all kinds of them",
        words.join(", ")
    ))
}

async fn discover(session: &Session) -> Result<Vec<Kind>> {
    let attempt = "ask which kinds the hub serves";
    let (core, groups) = tokio::try_join!(
        session.bounded(attempt, session.client.list_core_api_versions_aggregated()),
        session.bounded(attempt, session.client.list_api_groups_aggregated()),
    )?;

    let mut kinds = Vec::new();
    for group in core.items.into_iter().chain(groups.items) {
        let name = group.metadata.and_then(|metadata| metadata.name).unwrap_or_default();
        // The first version is the one that the server prefers.
        let Some(version) = group.versions.into_iter().next() else {
            continue;
        };
        for resource in version.resources {
            let (Some(plural), Some(kind)) = (resource.resource, resource.response_kind.and_then(|gvk| gvk.kind))
            else {
                continue;
            };
            if !resource.verbs.iter().any(|verb| verb == "list") {
                continue;
            }
            kinds.push(Kind {
                group: name.clone(),
                version: version.version.clone().unwrap_or_default(),
                singular: resource
                    .singular_resource
                    .filter(|s| !s.is_empty())
                    .unwrap_or_else(|| kind.to_lowercase()),
                plural,
                kind,
                short: resource.short_names,
                categories: resource.categories,
                namespaced: resource.scope.as_deref() == Some("Namespaced"),
            });
        }
    }
    Ok(kinds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_kinds_are_those_of_the_definitions() {
        let mut defined: Vec<Kind> = farwater_api::custom_resource_definitions()
            .into_iter()
            .map(|crd| Kind {
                group: crd.spec.group,
                version: crd.spec.versions[0].name.clone(),
                singular: crd.spec.names.singular.unwrap_or_default(),
                plural: crd.spec.names.plural,
                kind: crd.spec.names.kind,
                short: crd.spec.names.short_names.unwrap_or_default(),
                categories: crd.spec.names.categories.unwrap_or_default(),
                namespaced: crd.spec.scope == "Namespaced",
            })
            .collect();
        for kind in &mut defined {
            kind.categories = vec!["farwater".to_owned()];
        }
        assert_eq!(ours(), defined);
    }

    #[test]
    fn sources_are_all_kinds_of_them_and_no_kind_is_named_twice() {
        let plurals = |kinds: &[Kind]| kinds.iter().map(|kind| kind.plural.clone()).collect::<Vec<_>>();
        let sources = ours_of("sources");
        assert_eq!(
            plurals(&sources),
            ["gitrepositories", "helmrepositories", "ocirepositories"]
        );
        assert_eq!(plurals(&unique([ours_of("fwgit"), sources].concat())).len(), 3);
        assert_eq!(ours_of("farwater"), Vec::new());
    }

    #[test]
    fn an_unknown_word_is_told_with_names_short_names_and_each_kind_once() {
        let event = |group: &str| Kind {
            group: group.to_owned(),
            plural: "events".to_owned(),
            singular: "event".to_owned(),
            short: vec!["ev".to_owned()],
            ..ours().remove(0)
        };
        let served = [event(""), event("events.k8s.io")]
            .into_iter()
            .chain(ours())
            .collect::<Vec<_>>();
        let told = |word: &str| unknown(word, &served).evidence.unwrap();
        assert_eq!(told("cw"), "did you mean \"fwcw\"?");
        assert_eq!(told("clsuters"), "did you mean \"clusters\"?");
        let all = told("nonsense");
        assert!(
            all.starts_with("the hub serves events (ev), agentpolicies (fwap), "),
            "{all}"
        );
        assert_eq!(all.matches("events").count(), 1, "{all}");
    }

    #[test]
    fn a_kind_answers_to_its_names() {
        let ours = ours();
        let service = ours.iter().find(|kind| kind.kind == "ServiceDeployment").unwrap();
        for word in [
            "sd",
            "servicedeployment",
            "servicedeployments",
            "servicedeployments.farwater.dev",
        ] {
            assert!(service.answers_to(word), "{word}");
        }
        assert!(!service.answers_to("servicedeployments.example.com"));
        assert_eq!(
            service.path(Some("team-a"), Some("web")),
            "/apis/farwater.dev/v1alpha1/namespaces/team-a/servicedeployments/web"
        );
    }
}
