//! Placement: which clusters a tenant may deploy to, what from, and as whom.
//!
//! RBAC says who may write a ServiceDeployment. It can't say which cluster, source or target namespace that service may
//! name; a [`ClusterGrantSpec`] does. The same function decides at admission and when a desired state is computed, so a
//! revoked grant also affects services that were admitted under it. The agent gets the result as a [`Ceiling`].

use std::collections::BTreeMap;

use farwater_api::{
    ADMIN_NAMESPACE, ADMIN_SERVICE_ACCOUNT, AGENT_NAMESPACE, ClusterGrantSpec, GrantVerb,
    protocol::{Ceiling, ServiceAccount},
    service_deployment::ClusterReference,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};

/// The placement that a service asks for.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The tenant: the service's namespace in the hub.
    pub namespace: &'a str,
    /// The cluster's name, for messages.
    pub cluster: &'a str,
    pub cluster_labels: &'a BTreeMap<String, String>,
    /// URLs of all known sources. Empty while a service is older than its sources.
    pub sources: &'a [String],
    pub target_namespace: &'a str,
}

/// Why a service may not be placed where it asks to be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    #[error("no ClusterGrant lets namespace {namespace} deploy to cluster {cluster}")]
    NoGrant { namespace: String, cluster: String },
    #[error("ClusterGrant {grant} does not allow source {source_url}; it allows {}", some_of(.allowed))]
    Source {
        grant: String,
        source_url: String,
        allowed: Vec<String>,
    },
    #[error("ClusterGrant {grant} does not allow target namespace {target}; it allows {}", some_of(.allowed))]
    TargetNamespace {
        grant: String,
        target: String,
        allowed: Vec<String>,
    },
    #[error(
        "target namespace {AGENT_NAMESPACE} is the agent's own; only the administrators' namespace may deploy to it"
    )]
    AgentNamespace,
    #[error("ClusterGrant {grant} names no usable service account: {name:?} is not NAME or NAMESPACE/NAME")]
    ServiceAccount { grant: String, name: String },
}

/// Patterns that a refusal lists; a grant may have thousands.
const TOLD: usize = 5;

/// As a refusal says what is allowed.
pub(crate) fn some_of(patterns: &[String]) -> String {
    match patterns {
        [] => "none".to_owned(),
        _ if patterns.len() <= TOLD => patterns.join(", "),
        _ => format!("{} and {} more", patterns[..TOLD].join(", "), patterns.len() - TOLD),
    }
}

/// One grant with its name.
pub type NamedGrant = (String, ClusterGrantSpec);

/// The ceiling that a service is deployed under, or why it may not be deployed.
///
/// One grant must allow everything: two grants don't add up to a right that neither gives. Of several matching grants
/// the first by name is used, so the result doesn't depend on the order of reading. If none allows it, the refusal is
/// that of the grant that came closest.
pub fn check(request: Request<'_>, grants: &[NamedGrant]) -> Result<Ceiling, Denied> {
    if request.namespace == ADMIN_NAMESPACE {
        return Ok(administrators_ceiling());
    }
    let applicable = grants_on(request.namespace, request.cluster_labels, grants);
    if applicable.is_empty() {
        return Err(Denied::NoGrant {
            namespace: request.namespace.to_owned(),
            cluster: request.cluster.to_owned(),
        });
    }
    if request.target_namespace == AGENT_NAMESPACE {
        return Err(Denied::AgentNamespace);
    }
    let mut refusal = None;
    for (name, grant) in applicable {
        match check_grant(&request, name, grant) {
            Ok(ceiling) => return Ok(ceiling),
            Err(denied) => {
                refusal.get_or_insert(denied);
            }
        }
    }
    Err(refusal.expect("a list that is not empty gave an answer or a refusal"))
}

/// Whether a tenant may deploy to a cluster with these labels at all; what from, and where to in it, [`check`] says.
pub fn is_granted(namespace: &str, cluster_labels: &BTreeMap<String, String>, grants: &[NamedGrant]) -> bool {
    namespace == ADMIN_NAMESPACE || !grants_on(namespace, cluster_labels, grants).is_empty()
}

/// The grants that let a tenant deploy to a cluster with these labels, by name.
pub fn grants_on<'a>(
    namespace: &str,
    cluster_labels: &BTreeMap<String, String>,
    grants: &'a [NamedGrant],
) -> Vec<&'a NamedGrant> {
    let applies = |grant: &ClusterGrantSpec| {
        grant.verbs.contains(&GrantVerb::Deploy)
            && grant.namespaces.iter().any(|granted| granted == namespace)
            && selects(&grant.cluster_selector, cluster_labels)
    };
    let mut applicable: Vec<&NamedGrant> = grants.iter().filter(|(_, grant)| applies(grant)).collect();
    applicable.sort_by(|a, b| a.0.cmp(&b.0));
    applicable
}

fn check_grant(request: &Request<'_>, name: &str, grant: &ClusterGrantSpec) -> Result<Ceiling, Denied> {
    if let Some(allowed) = &grant.allowed_sources {
        let denied = |source: &&String| !allowed.iter().any(|prefix| allows_source(prefix, source));
        if let Some(source) = request.sources.iter().find(denied) {
            return Err(Denied::Source {
                grant: name.to_owned(),
                source_url: source.clone(),
                allowed: allowed.clone(),
            });
        }
    }
    if let Some(allowed) = &grant.target_namespaces
        && !allowed
            .iter()
            .any(|pattern| allows_namespace(pattern, request.target_namespace))
    {
        return Err(Denied::TargetNamespace {
            grant: name.to_owned(),
            target: request.target_namespace.to_owned(),
            allowed: allowed.clone(),
        });
    }
    let service_account = service_account(&grant.service_account_name, request.target_namespace).ok_or_else(|| {
        Denied::ServiceAccount {
            grant: name.to_owned(),
            name: grant.service_account_name.clone(),
        }
    })?;
    Ok(Ceiling {
        service_account,
        target_namespaces: grant.target_namespaces.clone(),
        allowed_kinds: grant.allowed_kinds.clone(),
        denied_kinds: grant.denied_kinds.clone(),
    })
}

/// The ceiling of the administrators' namespace, which is granted every cluster and everything in it.
fn administrators_ceiling() -> Ceiling {
    Ceiling {
        service_account: ServiceAccount {
            namespace: AGENT_NAMESPACE.to_owned(),
            name: ADMIN_SERVICE_ACCOUNT.to_owned(),
        },
        target_namespaces: None,
        allowed_kinds: None,
        denied_kinds: None,
    }
}

fn service_account(name: &str, target_namespace: &str) -> Option<ServiceAccount> {
    let (namespace, name) = name.split_once('/').unwrap_or((target_namespace, name));
    let usable = |part: &str| !part.is_empty() && !part.contains(['/', ':']);
    (usable(namespace) && usable(name)).then(|| ServiceAccount {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    })
}

/// Whether a URL is below a prefix: equal to it, or continued at a path boundary. So neither
/// `https://git.example.com/team-evil` nor `https://git.example.com.evil.example` matches its shorter neighbour. Scheme
/// and host are compared without case. A path that climbs (`..`, also percent-encoded) is below nothing.
fn allows_source(prefix: &str, url: &str) -> bool {
    let url = lower_authority(url);
    let prefix = lower_authority(prefix);
    let climbs = url.split(['/', '?', '#']).any(|part| {
        let part = part.to_ascii_lowercase().replace("%2e", ".");
        part == ".." || part.contains("%2f") || part.contains('\\')
    });
    if climbs {
        return false;
    }
    let Some(rest) = url.strip_prefix(prefix.as_str()) else {
        return false;
    };
    rest.is_empty() || rest == ".git" || prefix.ends_with('/') || rest.starts_with('/')
}

fn lower_authority(url: &str) -> String {
    let start = url.find("://").map_or(0, |at| at + 3);
    let end = url[start..].find('/').map_or(url.len(), |at| start + at);
    format!("{}{}", url[..end].to_ascii_lowercase(), &url[end..])
}

/// Whether a pattern of `targetNamespaces` matches a namespace.
pub(crate) fn allows_namespace(pattern: &str, namespace: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => namespace.starts_with(prefix),
        None => pattern == namespace,
    }
}

/// Kubernetes' label selectors: an empty selector selects everything; an unknown operator selects nothing.
pub fn selects(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> bool {
    let equal = selector
        .match_labels
        .iter()
        .flatten()
        .all(|(key, value)| labels.get(key) == Some(value));
    equal
        && selector
            .match_expressions
            .iter()
            .flatten()
            .all(|requirement| satisfies(requirement, labels))
}

/// As an argument of `-l`: `env=prod,tier in (a,b),!old`; empty: it selects everything.
pub fn describe_selector(selector: &LabelSelector) -> String {
    let equal = selector
        .match_labels
        .iter()
        .flatten()
        .map(|(key, value)| format!("{key}={value}"));
    let required =
        selector
            .match_expressions
            .iter()
            .flatten()
            .map(|LabelSelectorRequirement { key, operator, values }| {
                let values = values
                    .iter()
                    .flatten()
                    .map(String::as_str)
                    .collect::<Vec<_>>()
                    .join(",");
                match operator.as_str() {
                    "In" => format!("{key} in ({values})"),
                    "NotIn" => format!("{key} notin ({values})"),
                    "Exists" => key.clone(),
                    "DoesNotExist" => format!("!{key}"),
                    other => format!("{key} {other} ({values})"),
                }
            });
    equal.chain(required).collect::<Vec<_>>().join(",")
}

/// Why a set has no members, for its condition.
pub fn describe_no_clusters(selector: &LabelSelector) -> String {
    let selector = match describe_selector(selector) {
        selector if selector.is_empty() => "its empty selector".to_owned(),
        selector => format!("its selector {selector}"),
    };
    format!(
        "pending: {selector} selects no cluster that this namespace may deploy to; label a cluster, correct spec.clusterSelector, or ask for \
         a ClusterGrant"
    )
}

fn satisfies(requirement: &LabelSelectorRequirement, labels: &BTreeMap<String, String>) -> bool {
    let value = labels.get(&requirement.key);
    let listed = |value: &String| requirement.values.as_ref().is_some_and(|values| values.contains(value));
    match requirement.operator.as_str() {
        "In" => value.is_some_and(listed),
        "NotIn" => value.is_none_or(|value| !listed(value)),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        _ => false,
    }
}

/// The clusters that a reference may mean, as (namespace, name) in order of preference.
pub fn cluster_candidates<'a>(reference: &'a ClusterReference, service_namespace: &'a str) -> Vec<(&'a str, &'a str)> {
    match reference.namespace.as_deref() {
        Some(namespace) => vec![(namespace, &reference.name)],
        None if service_namespace == ADMIN_NAMESPACE => vec![(ADMIN_NAMESPACE, &reference.name)],
        None => vec![(service_namespace, &reference.name), (ADMIN_NAMESPACE, &reference.name)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRANTS: &str = r"
- name: b-wide
  clusterSelector: {matchLabels: {env: prod}}
  namespaces: [team-a]
  verbs: [deploy]
  allowedSources: ['https://git.example.com/team-a']
  targetNamespaces: ['a-*', shared]
  deniedKinds: [ClusterRole.rbac.authorization.k8s.io]
  serviceAccountName: deployer
- name: d-elsewhere
  clusterSelector: {matchExpressions: [{key: env, operator: NotIn, values: [prod]}]}
  namespaces: [team-a]
  verbs: [deploy]
  serviceAccountName: tenants/team-a
";

    fn grants() -> Vec<NamedGrant> {
        let rows: Vec<serde_json::Value> = serde_saphyr::from_str(GRANTS).unwrap();
        rows.into_iter()
            .map(|row| {
                (
                    row["name"].as_str().unwrap().to_owned(),
                    serde_json::from_value(row).unwrap(),
                )
            })
            .collect()
    }

    #[track_caller]
    fn check_case(namespace: &str, env: &str, source: &str, target: &str, expected: &str) {
        let labels = BTreeMap::from([("env".to_owned(), env.to_owned())]);
        let sources: Vec<String> = source.split(' ').map(str::to_owned).collect();
        let request = Request {
            namespace,
            cluster: "east",
            cluster_labels: &labels,
            sources: &sources,
            target_namespace: target,
        };
        let answer = match check(request, &grants()) {
            Ok(ceiling) => format!("{}/{}", ceiling.service_account.namespace, ceiling.service_account.name),
            Err(denied) => denied.to_string(),
        };
        assert_eq!(answer, expected);
    }

    #[test]
    fn one_grant_must_allow_all_of_it() {
        let own = "https://git.example.com/team-a/web.git";
        check_case("team-a", "prod", own, "a-web", "a-web/deployer");
        check_case("team-a", "prod", own, "shared", "shared/deployer");
        check_case("team-a", "test", "https://elsewhere.example/x", "any", "tenants/team-a");
        check_case(
            "team-a",
            "prod",
            own,
            "b-web",
            "ClusterGrant b-wide does not allow target namespace b-web; it allows a-*, shared",
        );
        check_case(
            "team-a",
            "prod",
            "https://git.example.com/team-ab",
            "a-web",
            "ClusterGrant b-wide does not allow source https://git.example.com/team-ab; it allows https://git.example.com/team-a",
        );
        let two = format!("{own} oci://registry.example.com/charts/web");
        check_case(
            "team-a",
            "prod",
            &two,
            "a-web",
            "ClusterGrant b-wide does not allow source oci://registry.example.com/charts/web; it allows https://git.example.com/team-a",
        );
        check_case(
            "team-c",
            "prod",
            own,
            "x",
            "no ClusterGrant lets namespace team-c deploy to cluster east",
        );
    }

    #[test]
    fn administrators_need_no_grant_and_only_they_may_deploy_to_the_agents_namespace() {
        let source = "https://git.example.com/x";
        let administrator = "farwater-system/farwater-administrator";
        check_case(ADMIN_NAMESPACE, "prod", source, "anything", administrator);
        check_case(ADMIN_NAMESPACE, "prod", source, AGENT_NAMESPACE, administrator);
        check_case(
            "team-a",
            "test",
            source,
            AGENT_NAMESPACE,
            &Denied::AgentNamespace.to_string(),
        );
    }

    #[test]
    fn a_source_prefix_ends_at_a_boundary() {
        for (prefix, url, expected) in [
            ("https://git.example.com", "https://git.example.com/a", true),
            (
                "https://git.example.com",
                "https://git.example.com.evil.example/a",
                false,
            ),
            ("https://git.example.com/", "https://GIT.example.com/a", true),
            ("https://git.example.com/a", "https://git.example.com/a", true),
            ("https://git.example.com/a", "https://git.example.com/a.git", true),
            ("https://git.example.com/a", "https://git.example.com/a.git.evil", false),
            ("https://git.example.com/a", "https://git.example.com/A", false),
            ("https://git.example.com/a", "https://git.example.com/a/../b", false),
            ("https://git.example.com/a", "https://git.example.com/a/%2E%2e/b", false),
            (
                "https://git.example.com/a",
                "https://git.example.com/a/x%2f..%2fb",
                false,
            ),
            ("https://git.example.com/a", "http://git.example.com/a", false),
            (
                "oci://registry.example.com/team-a",
                "oci://Registry.example.com/team-a/web",
                true,
            ),
            (
                "oci://registry.example.com/team-a",
                "oci://registry.example.com/team-ab/web",
                false,
            ),
        ] {
            assert_eq!(allows_source(prefix, url), expected, "{prefix} {url}");
        }
    }

    #[test]
    fn selectors_follow_kubernetes() {
        let labels = BTreeMap::from([("env".to_owned(), "prod".to_owned())]);
        for (selector, expected) in [
            ("{}", true),
            ("{matchLabels: {env: prod}}", true),
            ("{matchLabels: {env: test}}", false),
            (
                "{matchExpressions: [{key: env, operator: In, values: [prod, test]}]}",
                true,
            ),
            ("{matchExpressions: [{key: zone, operator: NotIn, values: [a]}]}", true),
            ("{matchExpressions: [{key: env, operator: Exists}]}", true),
            ("{matchExpressions: [{key: env, operator: DoesNotExist}]}", false),
            ("{matchExpressions: [{key: env, operator: Gt, values: ['1']}]}", false),
        ] {
            let parsed: LabelSelector = serde_saphyr::from_str(selector).unwrap();
            assert_eq!(selects(&parsed, &labels), expected, "{selector}");
        }
    }

    #[test]
    fn a_cluster_is_looked_for_at_home_and_then_at_the_administrators() {
        let reference = |namespace: Option<&str>| ClusterReference {
            name: "east".to_owned(),
            namespace: namespace.map(str::to_owned),
        };
        assert_eq!(cluster_candidates(&reference(Some("x")), "team-a"), [("x", "east")]);
        assert_eq!(
            cluster_candidates(&reference(None), "team-a"),
            [("team-a", "east"), (ADMIN_NAMESPACE, "east")]
        );
        assert_eq!(
            cluster_candidates(&reference(None), ADMIN_NAMESPACE),
            [(ADMIN_NAMESPACE, "east")]
        );
    }

    #[test]
    fn a_selector_is_named_as_an_argument() {
        let check = |yaml: &str, expected: &str| {
            let selector: LabelSelector = serde_saphyr::from_str(yaml).unwrap();
            assert_eq!(describe_selector(&selector), expected);
        };
        check("{}", "");
        check("matchLabels: {env: prod, tier: a}", "env=prod,tier=a");
        let more = "matchExpressions: [{key: tier, operator: In, values: [a, b]}, {key: old, operator: DoesNotExist}]";
        check(more, "tier in (a,b),!old");
    }
}
