//! Which kind of resource a word means: ours are known, the rest is the hub's discovery to say.

use farwater_api::{GROUP, VERSION};

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
    /// Path of the collection, or of one object.
    pub fn path(&self, namespace: Option<&str>, name: Option<&str>) -> String {
        let root = if self.group.is_empty() { "/api".to_owned() } else { format!("/apis/{}", self.group) };
        let namespace = namespace.filter(|_| self.namespaced).map(|ns| format!("/namespaces/{ns}")).unwrap_or_default();
        let name = name.map(|name| format!("/{name}")).unwrap_or_default();
        format!("{root}/{}{namespace}/{}{name}", self.version, self.plural)
    }

    /// `servicedeployment.farwater.dev/web`, as kubectl prints names.
    pub fn qualified(&self, name: &str) -> String {
        if self.group.is_empty() {
            format!("{}/{name}", self.singular)
        } else {
            format!("{}.{}/{name}", self.singular, self.group)
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

/// Our own kinds; a test compares them with the definitions.
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

/// The kinds that a comma-separated list of words means: a name, a short name or a category each.
pub async fn resolve(session: &Session, words: &str) -> Result<Vec<Kind>> {
    let mut found: Vec<Kind> = Vec::new();
    let mut served: Option<Vec<Kind>> = None;
    for word in words.split(',').map(str::to_lowercase) {
        if let Some(kind) = ours().into_iter().find(|kind| kind.answers_to(&word)) {
            found.push(kind);
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
    Ok(found)
}

fn unknown(word: &str, served: &[Kind]) -> Failure {
    let failure = Failure::usage(format!("the hub serves no kind {word:?}"));
    let words = served.iter().flat_map(|kind| [kind.plural.as_str(), kind.singular.as_str()]);
    match suggest(word, words) {
        Some(near) => failure.evidence(format!("did you mean {near:?}?")),
        None => {
            let plurals: Vec<&str> = served.iter().map(|kind| kind.plural.as_str()).collect();
            failure.evidence(format!("it serves {}", plurals.join(", ")))
        }
    }
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
        let Some(version) = group.versions.into_iter().next() else { continue };
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
                singular: resource.singular_resource.filter(|s| !s.is_empty()).unwrap_or_else(|| kind.to_lowercase()),
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
    fn a_kind_answers_to_its_names() {
        let ours = ours();
        let service = ours.iter().find(|kind| kind.kind == "ServiceDeployment").unwrap();
        for word in ["sd", "servicedeployment", "servicedeployments", "servicedeployments.farwater.dev"] {
            assert!(service.answers_to(word), "{word}");
        }
        assert!(!service.answers_to("servicedeployments.example.com"));
        assert_eq!(
            service.path(Some("team-a"), Some("web")),
            "/apis/farwater.dev/v1alpha1/namespaces/team-a/servicedeployments/web"
        );
    }
}
