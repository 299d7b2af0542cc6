//! Which namespaces a command speaks of, and how a service is named.

use crate::{
    connection::Session,
    failure::{Failure, Result},
};

#[derive(Clone, Debug, Default, clap::Args)]
pub struct NamespaceArgs {
    /// Namespace of the hub [default: the context's].
    #[arg(short, long, value_name = "NS")]
    pub namespace: Option<String>,
}

impl NamespaceArgs {
    pub fn or_default<'a>(&'a self, session: &'a Session) -> &'a str {
        self.namespace.as_deref().unwrap_or(&session.namespace)
    }
}

#[derive(Clone, Debug, Default, clap::Args)]
pub struct ScopeArgs {
    #[command(flatten)]
    pub namespace: NamespaceArgs,
    /// Every namespace that you may read.
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    pub all_namespaces: bool,
}

impl ScopeArgs {
    /// The namespace, or none for all of them.
    pub fn namespace<'a>(&'a self, session: &'a Session) -> Option<&'a str> {
        if self.all_namespaces { None } else { Some(self.namespace.or_default(session)) }
    }
}

/// `NAME`, `NAMESPACE/NAME`, or either behind `servicedeployment/` or `sd/`.
pub fn service_name<'a>(argument: &'a str, default: &'a str) -> Result<(&'a str, &'a str)> {
    let parts: Vec<&str> = argument.split('/').collect();
    let is_kind = |word: &str| {
        matches!(
            word,
            "sd" | "servicedeployment"
                | "servicedeployments"
                | "servicedeployments.farwater.dev"
                | "servicedeployment.farwater.dev"
        )
    };
    let named = match parts.as_slice() {
        [name] => Some((default, *name)),
        [kind, name] if is_kind(kind) => Some((default, *name)),
        [namespace, name] => Some((*namespace, *name)),
        [kind, namespace, name] if is_kind(kind) => Some((*namespace, *name)),
        _ => None,
    };
    named.filter(|(namespace, name)| is_label(namespace) && is_name(name)).ok_or_else(|| no_name(argument, "service"))
}

/// `NAME` or `NAMESPACE/NAME`.
pub fn any_name<'a>(argument: &'a str, default: &'a str, what: &str) -> Result<(&'a str, &'a str)> {
    let named = argument.split_once('/').unwrap_or((default, argument));
    Some(named).filter(|(namespace, name)| is_label(namespace) && is_name(name)).ok_or_else(|| no_name(argument, what))
}

fn no_name(argument: &str, what: &str) -> Failure {
    Failure::usage(format!("{argument:?} names no {what}")).evidence("expected NAME or NAMESPACE/NAME")
}

/// `NAME` or `NAMESPACE/NAME` behind `serviceset/` or `sds/`; none where it is no set that is named.
pub fn set_name<'a>(argument: &'a str, default: &'a str) -> Option<Result<(&'a str, &'a str)>> {
    const KINDS: [&str; 5] =
        ["sds", "serviceset", "servicesets", "serviceset.farwater.dev", "servicesets.farwater.dev"];
    let (_, rest) = argument.split_once('/').filter(|(kind, _)| KINDS.contains(kind))?;
    let (namespace, name) = rest.split_once('/').unwrap_or((default, rest));
    Some(match is_label(namespace) && is_name(name) {
        true => Ok((namespace, name)),
        false => Err(Failure::usage(format!("{argument:?} names no set"))
            .evidence("expected serviceset/NAME or serviceset/NAMESPACE/NAME")),
    })
}

/// RFC 1123 label: what Kubernetes allows as the name of a namespace.
pub fn is_label(text: &str) -> bool {
    is_name(text) && text.len() <= 63 && !text.contains('.')
}

/// RFC 1123 subdomain: what Kubernetes allows as the name of most objects. It is safe inside a path.
pub fn is_name(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.';
    let edge = |b: Option<&u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    text.len() <= 253 && text.bytes().all(inner) && edge(text.as_bytes().first()) && edge(text.as_bytes().last())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_are_named_with_or_without_their_namespace() {
        assert_eq!(service_name("web", "team-a").unwrap(), ("team-a", "web"));
        assert_eq!(service_name("team-b/web", "team-a").unwrap(), ("team-b", "web"));
        assert_eq!(service_name("sd/web", "team-a").unwrap(), ("team-a", "web"));
        assert_eq!(service_name("servicedeployment.farwater.dev/web", "team-a").unwrap(), ("team-a", "web"));
    }

    #[test]
    fn sets_are_named_by_their_kind() {
        let named = |argument| set_name(argument, "team-a").map(|named| named.ok());
        assert_eq!(named("serviceset/web"), Some(Some(("team-a", "web"))));
        assert_eq!(named("sds/team-b/web"), Some(Some(("team-b", "web"))));
        assert_eq!(named("sds/../web"), Some(None));
        assert_eq!((named("web"), named("team-b/web"), named("sd/web")), (None, None, None));
    }

    #[test]
    fn what_would_leave_the_path_is_no_name() {
        for argument in ["", "../secrets", "a/b/c", "Web", "web?x", "web/", "team-a/../x"] {
            assert!(service_name(argument, "team-a").is_err(), "{argument}");
        }
    }
}
