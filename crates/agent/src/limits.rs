//! Limits of the agent itself: they are set at installation, and no hub can widen them.
//!
//! They are checked in one place that every request for a service passes.

use std::{
    fmt,
    str::FromStr,
    sync::Mutex,
    time::{Duration, Instant},
};

use farwater_api::{AGENT_NAMESPACE, cluster::AgentLimits, protocol::ServiceAccount};
use http::Method;

use crate::{
    kubernetes::{ApiError, Fault},
    sync::lock,
};

/// Namespaces of the cluster itself: only their exact names allow them, no pattern does.
const PROTECTED: [&str; 3] = ["kube-system", "kube-public", "kube-node-lease"];
/// Default for deletions per minute. A larger prune continues in the next minute.
pub const DELETIONS_PER_MINUTE: u32 = 1000;
const MINUTE: Duration = Duration::from_secs(60);

/// A Kubernetes name in which `*` matches anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(String);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no pattern of a name: letters, digits, '-', '.', ':' and '*'")]
pub struct PatternError(String);

impl FromStr for Pattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, PatternError> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | ':' | '*' | '/');
        let is_pattern = !text.is_empty() && text.len() <= 512 && text.chars().all(allowed);
        is_pattern
            .then(|| Self(text.to_owned()))
            .ok_or_else(|| PatternError(text.chars().take(80).collect()))
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Pattern {
    fn matches(&self, name: &str) -> bool {
        let mut parts = self.0.split('*');
        let Some(mut rest) = parts.next().and_then(|first| name.strip_prefix(first)) else {
            return false;
        };
        let mut parts: Vec<&str> = parts.collect();
        let Some(last) = parts.pop() else {
            return rest.is_empty();
        };
        for part in parts {
            let Some((_, after)) = rest.split_once(part) else {
                return false;
            };
            rest = after;
        }
        rest.ends_with(last)
    }

    fn allows_namespace(&self, namespace: &str) -> bool {
        if PROTECTED.contains(&namespace) {
            self.0 == namespace
        } else {
            self.matches(namespace)
        }
    }

    /// Whether a pattern `NAMESPACE/NAME` matches.
    fn allows_account(&self, account: &ServiceAccount) -> bool {
        let Some((namespace, name)) = self.0.split_once('/') else {
            return false;
        };
        let [namespace, name] = [namespace, name].map(|part| Self(part.to_owned()));
        namespace.allows_namespace(&account.namespace) && name.matches(&account.name)
    }

    /// Whether a pattern `RESOURCE[.GROUP]` matches.
    fn is_resource(&self, resource: &str, group: &str) -> bool {
        self.matches(&if group.is_empty() {
            resource.to_owned()
        } else {
            format!("{resource}.{group}")
        })
    }
}

/// Patterns that allow accounts and namespaces, and patterns that deny kinds.
#[derive(Debug)]
pub struct Limits {
    accounts: Vec<Pattern>,
    namespaces: Vec<Pattern>,
    denied_kinds: Vec<Pattern>,
    deletions_per_minute: u32,
    /// Deletions left in the present minute, and when it began.
    left: Mutex<(u32, Instant)>,
}

impl Default for Limits {
    fn default() -> Self {
        Self::new(Vec::new(), Vec::new(), Vec::new(), DELETIONS_PER_MINUTE)
    }
}

/// The object or collection that a path of the API server names.
struct Subject<'a> {
    namespace: &'a str,
    group: &'a str,
    resource: &'a str,
}

impl<'a> Subject<'a> {
    /// None: the path names no resource.
    fn of(path: &'a str) -> Option<Self> {
        let path = path.split('?').next().unwrap_or_default();
        let mut segments = path.trim_matches('/').split('/');
        let group = match segments.next()? {
            "api" => "",
            "apis" => segments.next()?,
            _ => return None,
        };
        segments.next()?;
        let rest: Vec<&str> = segments.collect();
        Some(match rest[..] {
            ["namespaces", namespace, resource, ..] if !matches!(resource, "status" | "finalize") => Self {
                namespace,
                group,
                resource,
            },
            // A Namespace counts as being in itself.
            ["namespaces", namespace, ..] => Self {
                namespace,
                group,
                resource: "namespaces",
            },
            [resource, ..] => Self {
                namespace: "",
                group,
                resource,
            },
            [] => return None,
        })
    }
}

impl Limits {
    /// If no accounts or namespaces are given, all are allowed except those of the cluster itself.
    pub fn new(
        accounts: Vec<Pattern>,
        namespaces: Vec<Pattern>,
        denied_kinds: Vec<Pattern>,
        deletions_per_minute: u32,
    ) -> Self {
        let or_all = |patterns: Vec<Pattern>, all: &str| {
            if patterns.is_empty() {
                vec![Pattern(all.to_owned())]
            } else {
                patterns
            }
        };
        Self {
            accounts: or_all(accounts, "*/*"),
            namespaces: or_all(namespaces, "*"),
            denied_kinds,
            deletions_per_minute,
            left: Mutex::new((deletions_per_minute, Instant::now())),
        }
    }

    /// The limits as the hub shows them.
    pub fn describe(&self) -> AgentLimits {
        let texts = |patterns: &[Pattern]| patterns.iter().map(ToString::to_string).collect();
        AgentLimits {
            accounts: texts(&self.accounts),
            namespaces: texts(&self.namespaces),
            denied_kinds: texts(&self.denied_kinds),
            deletions_per_minute: self.deletions_per_minute,
        }
    }

    /// Checks a request as an account.
    ///
    /// # Errors
    ///
    /// As the API server would refuse it: 403, or 429 with the time after which a deletion is allowed again.
    pub fn check(&self, account: &ServiceAccount, method: &Method, path: &str) -> Result<(), ApiError> {
        if !self.accounts.iter().any(|pattern| pattern.allows_account(account)) {
            let ServiceAccount { namespace, name } = account;
            return Err(forbidden(
                &format!("act as the service account {namespace}/{name}"),
                "its option --allow-accounts",
            ));
        }
        let Some(Subject {
            namespace,
            group,
            resource,
        }) = Subject::of(path)
        else {
            return Ok(());
        };
        // The limits are in the agent's own Deployment.
        if namespace == AGENT_NAMESPACE {
            return Err(forbidden(
                &format!("touch its own namespace {namespace} for a service"),
                "none allows it",
            ));
        }
        if !namespace.is_empty()
            && !self
                .namespaces
                .iter()
                .any(|pattern| pattern.allows_namespace(namespace))
        {
            return Err(forbidden(
                &format!("touch the namespace {namespace}"),
                "its option --allow-namespaces",
            ));
        }
        if *method == Method::GET {
            return Ok(());
        }
        if self
            .denied_kinds
            .iter()
            .any(|pattern| pattern.is_resource(resource, group))
        {
            return Err(forbidden(&format!("change {resource}"), "its option --deny-kinds"));
        }
        if *method == Method::DELETE && !path.contains("dryRun=All") {
            return self.take_deletion(Instant::now());
        }
        Ok(())
    }

    fn take_deletion(&self, now: Instant) -> Result<(), ApiError> {
        let mut left = lock(&self.left);
        if now.duration_since(left.1) >= MINUTE {
            *left = (self.deletions_per_minute, now);
        }
        if left.0 == 0 {
            let wait = MINUTE
                .saturating_sub(now.duration_since(left.1))
                .max(Duration::from_secs(1));
            return Err(ApiError::Status {
                code: 429,
                reason: "TooManyRequests".to_owned(),
                message: format!(
                    "this agent deletes {} objects per minute at most (its option --max-deletions)",
                    self.deletions_per_minute
                ),
                retry_after: Some(wait),
                fault: Fault::Other,
            });
        }
        left.0 -= 1;
        Ok(())
    }
}

fn forbidden(what: &str, option: &str) -> ApiError {
    ApiError::Status {
        code: 403,
        reason: "Forbidden".to_owned(),
        message: format!("this agent may not {what}, whatever its hub says ({option})"),
        retry_after: None,
        fault: Fault::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patterns(texts: &[&str]) -> Vec<Pattern> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn account(namespace: &str, name: &str) -> ServiceAccount {
        ServiceAccount {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }

    fn code(limits: &Limits, account: &ServiceAccount, method: Method, path: &str) -> u16 {
        limits
            .check(account, &method, path)
            .err()
            .map_or(200, |error| error.code())
    }

    #[test]
    fn without_options_nothing_of_the_cluster_itself_is_touched() {
        let limits = Limits::default();
        let web = account("team-a", "deployer");
        for (path, expected) in [
            ("/api/v1/namespaces/team-a/configmaps/a", 200),
            ("/api/v1/namespaces/kube-system/configmaps/a", 403),
            ("/api/v1/namespaces/kube-system", 403),
            ("/api/v1/namespaces/kube-public/status", 403),
            (
                "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n?fieldManager=x",
                403,
            ),
            ("/apis/rbac.authorization.k8s.io/v1/clusterroles/x", 200),
            ("/version", 200),
            (
                "/apis/apps/v1/namespaces/farwater-system/deployments/farwater-agent",
                403,
            ),
            ("/api/v1/namespaces/farwater-system/secrets/x", 403),
        ] {
            for method in [Method::PATCH, Method::DELETE, Method::GET] {
                assert_eq!(code(&limits, &web, method, path), expected, "{path}");
            }
        }
        let controller = account("kube-system", "namespace-controller");
        assert_eq!(
            code(
                &limits,
                &controller,
                Method::PATCH,
                "/api/v1/namespaces/team-a/configmaps/a"
            ),
            403
        );
    }

    #[test]
    fn accounts_namespaces_and_kinds_are_narrowed_and_the_clusters_own_are_named_in_full() {
        let limits = Limits::new(
            patterns(&["team-*/deployer", "kube-system/web"]),
            patterns(&["team-*", "kube-system"]),
            patterns(&["secrets", "*.admissionregistration.k8s.io"]),
            1000,
        );
        let web = account("team-a", "deployer");
        for (path, expected) in [
            ("/api/v1/namespaces/team-a/configmaps/a", 200),
            ("/api/v1/namespaces/kube-system/configmaps/a", 200),
            ("/api/v1/namespaces/kube-public/configmaps/a", 403),
            ("/api/v1/namespaces/other/configmaps/a", 403),
            ("/api/v1/namespaces/team-a/secrets/a", 403),
            (
                "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/a",
                403,
            ),
        ] {
            assert_eq!(code(&limits, &web, Method::PATCH, path), expected, "{path}");
        }
        assert_eq!(
            code(&limits, &web, Method::GET, "/api/v1/namespaces/team-a/secrets/a"),
            200,
            "kinds are read"
        );
        for (namespace, name, expected) in [
            ("kube-system", "web", 200),
            ("kube-system", "other", 403),
            ("team-b", "other", 403),
            ("x", "deployer", 403),
        ] {
            assert_eq!(
                code(&limits, &account(namespace, name), Method::GET, "/version"),
                expected,
                "{namespace}/{name}"
            );
        }
        let stars = Limits::new(patterns(&["*/*"]), patterns(&["kube-*"]), Vec::new(), 1000);
        assert_eq!(
            code(&stars, &web, Method::GET, "/api/v1/namespaces/kube-system/pods"),
            403,
            "by no pattern"
        );
        assert!("".parse::<Pattern>().is_err() && "a b".parse::<Pattern>().is_err());
    }

    #[test]
    fn deletions_are_counted_by_the_minute() {
        let limits = Limits::new(Vec::new(), Vec::new(), Vec::new(), 2);
        let begun = lock(&limits.left).1;
        assert!(limits.take_deletion(begun).is_ok() && limits.take_deletion(begun).is_ok());
        let error = limits.take_deletion(begun + Duration::from_secs(20)).unwrap_err();
        assert_eq!(
            (error.code(), error.retry_after()),
            (429, Some(Duration::from_secs(40)))
        );
        assert!(limits.take_deletion(begun + MINUTE).is_ok());
        let path = "/api/v1/namespaces/a/configmaps/b?dryRun=All";
        for _ in 0..3 {
            assert_eq!(
                code(&limits, &account("a", "b"), Method::DELETE, path),
                200,
                "a rehearsal deletes nothing"
            );
        }
    }
}
