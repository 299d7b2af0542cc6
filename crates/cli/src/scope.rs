//! The namespaces that a command works on, and the names of services and other objects.

use std::borrow::Cow;

use farwater_api::managed_namespace;
pub use farwater_api::names::is_object_name as is_name;
use farwater_hub::kinds::meta::{check_label_value, check_qualified_name};

use crate::{
    connection::Session,
    failure::{Failure, Result},
    kinds::{self, Kind},
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
    /// The namespace. None: all namespaces.
    pub fn namespace<'a>(&'a self, session: &'a Session) -> Option<&'a str> {
        if self.all_namespaces {
            None
        } else {
            Some(self.namespace.or_default(session))
        }
    }
}

/// The object of one of Farwater's kinds that a command is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedObject<'a> {
    pub kind: Kind,
    /// Without meaning if the kind is not namespaced.
    pub namespace: &'a str,
    pub name: &'a str,
}

/// Parses `NAME` and `NAMESPACE/NAME`, which are services, and `KIND/NAME` and `KIND/NAMESPACE/NAME` with any of
/// Farwater's kinds.
pub fn object_name<'a>(argument: &'a str, default: &'a str) -> Result<NamedObject<'a>> {
    let stated = argument
        .split_once('/')
        .and_then(|(word, rest)| Some((kinds::find(word)?, rest)));
    let (kind, rest) = match stated {
        Some((kind, rest)) => (Some(kind), rest),
        None => (kinds::find("servicedeployment"), argument),
    };
    let (namespace, name) = rest.split_once('/').unwrap_or((default, rest));
    let named = kind.map(|kind| NamedObject { kind, namespace, name });
    named
        .filter(|named| is_label(named.namespace) && is_name(named.name))
        .ok_or_else(|| {
            Failure::usage(format!("{argument:?} names nothing of Farwater"))
                .evidence("expected NAME or NAMESPACE/NAME of a service, or KIND/NAME")
        })
}

/// Parses `NAME` or `NAMESPACE/NAME`, with or without `servicedeployment/` or `sd/` in front.
pub fn service_name<'a>(argument: &'a str, default: &'a str) -> Result<(&'a str, &'a str)> {
    let named = object_name(argument, default).map_err(|_| no_name(argument, "service"))?;
    if named.kind.plural != "servicedeployments" {
        return Err(Failure::usage(format!(
            "{argument:?} names a {}, and a service is needed",
            named.kind.kind
        ))
        .evidence("expected NAME or NAMESPACE/NAME of a service"));
    }
    Ok((named.namespace, named.name))
}

/// Parses `NAME` or `NAMESPACE/NAME`. `what`: the kind of object, for the error message.
pub fn any_name<'a>(argument: &'a str, default: &'a str, what: &str) -> Result<(&'a str, &'a str)> {
    let named = argument.split_once('/').unwrap_or((default, argument));
    Some(named)
        .filter(|(namespace, name)| is_label(namespace) && is_name(name))
        .ok_or_else(|| no_name(argument, what))
}

fn no_name(argument: &str, what: &str) -> Failure {
    Failure::usage(format!("{argument:?} names no {what}")).evidence("expected NAME or NAMESPACE/NAME")
}

/// The set that a command is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedSet<'a> {
    pub namespace: &'a str,
    /// Name of the set.
    pub name: Cow<'a, str>,
    /// Name of the ManagedNamespace that makes the set and holds its spec. None: the set has its own spec.
    pub maker: Option<&'a str>,
}

impl<'a> NamedSet<'a> {
    pub fn plain(namespace: &'a str, name: &'a str) -> Self {
        Self {
            namespace,
            name: name.into(),
            maker: None,
        }
    }

    /// Namespace and name of the set.
    pub fn names(&self) -> (&str, &str) {
        (self.namespace, &self.name)
    }

    /// Plural, kind and name of the object whose spec defines the set.
    pub fn stated(&self) -> (&'static str, &'static str, &str) {
        match self.maker {
            Some(maker) => ("managednamespaces", "ManagedNamespace", maker),
            None => ("servicesets", "ServiceSet", &self.name),
        }
    }

    /// The set as an argument of a command.
    pub fn argument(&self) -> String {
        match self.maker {
            Some(maker) => format!("managednamespace/{maker}"),
            None => self.name.to_string(),
        }
    }
}

/// Parses `NAME` or `NAMESPACE/NAME` after `serviceset/`, `sds/`, `managednamespace/` or `fwmn/`. None: the argument
/// names no set.
pub fn set_name<'a>(argument: &'a str, default: &'a str) -> Option<Result<NamedSet<'a>>> {
    const SETS: [&str; 5] = [
        "sds",
        "serviceset",
        "servicesets",
        "serviceset.farwater.dev",
        "servicesets.farwater.dev",
    ];
    const MAKERS: [&str; 5] = [
        "fwmn",
        "managednamespace",
        "managednamespaces",
        "managednamespace.farwater.dev",
        "managednamespaces.farwater.dev",
    ];
    let (kind, rest) = argument.split_once('/')?;
    let is_made = MAKERS.contains(&kind);
    if !is_made && !SETS.contains(&kind) {
        return None;
    }
    let (namespace, name) = rest.split_once('/').unwrap_or((default, rest));
    if !is_label(namespace) || !is_name(name) {
        let word = if is_made { "managednamespace" } else { "serviceset" };
        return Some(Err(Failure::usage(format!("{argument:?} names no set"))
            .evidence(format!("expected {word}/NAME or {word}/NAMESPACE/NAME"))));
    }
    Some(Ok(match is_made {
        true => NamedSet {
            namespace,
            name: managed_namespace::set_name(name).into(),
            maker: Some(name),
        },
        false => NamedSet::plain(namespace, name),
    }))
}

/// Parses a label, `KEY=VALUE`, by the syntax of Kubernetes.
pub fn parse_label(text: &str) -> Result<(String, String), String> {
    let (key, value) = text
        .split_once('=')
        .ok_or_else(|| format!("{text:?} is not KEY=VALUE"))?;
    match check_qualified_name(key).or_else(|| check_label_value(value)) {
        Some(problem) => Err(format!("{text:?} is no label: {problem}")),
        None => Ok((key.to_owned(), value.to_owned())),
    }
}

/// Whether the text is an RFC 1123 label, which Kubernetes requires for the name of a namespace.
pub fn is_label(text: &str) -> bool {
    is_name(text) && text.len() <= 63 && !text.contains('.')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_are_named_with_or_without_their_namespace() {
        assert_eq!(service_name("web", "team-a").unwrap(), ("team-a", "web"));
        assert_eq!(service_name("team-b/web", "team-a").unwrap(), ("team-b", "web"));
        assert_eq!(service_name("sd/web", "team-a").unwrap(), ("team-a", "web"));
        assert_eq!(
            service_name("servicedeployment.farwater.dev/web", "team-a").unwrap(),
            ("team-a", "web")
        );
    }

    #[test]
    fn objects_are_named_by_their_kind_and_services_without_one() {
        let named = |argument| {
            let named = object_name(argument, "team-a").ok()?;
            Some((named.kind.kind, named.namespace.to_owned(), named.name.to_owned()))
        };
        let of =
            |kind: &str, namespace: &str, name: &str| Some((kind.to_owned(), namespace.to_owned(), name.to_owned()));
        assert_eq!(named("web"), of("ServiceDeployment", "team-a", "web"));
        assert_eq!(named("team-b/web"), of("ServiceDeployment", "team-b", "web"));
        assert_eq!(named("gitrepository/infra"), of("GitRepository", "team-a", "infra"));
        assert_eq!(named("sds/team-b/site"), of("ServiceSet", "team-b", "site"));
        assert_eq!(named("serviceset/../site"), None);
        let refused = service_name("serviceset/site", "team-a").unwrap_err();
        assert_eq!(
            refused.cause,
            "\"serviceset/site\" names a ServiceSet, and a service is needed"
        );
    }

    #[test]
    fn sets_are_named_by_their_kind() {
        let named = |argument| set_name(argument, "team-a").map(|named| named.ok());
        assert_eq!(named("serviceset/web"), Some(Some(NamedSet::plain("team-a", "web"))));
        assert_eq!(named("sds/team-b/web"), Some(Some(NamedSet::plain("team-b", "web"))));
        let made = named("managednamespace/team-b/shop").flatten().unwrap();
        assert_eq!((made.names(), made.stated().2), (("team-b", "namespace-shop"), "shop"));
        assert_eq!(made.argument(), "managednamespace/shop");
        assert_eq!(named("sds/../web"), Some(None));
        assert_eq!((named("web"), named("team-b/web"), named("sd/web")), (None, None, None));
    }

    #[test]
    fn a_label_has_a_key_and_a_value_of_kubernetes() {
        let label = |key: &str, value: &str| Ok((key.to_owned(), value.to_owned()));
        assert_eq!(parse_label("env=prod"), label("env", "prod"));
        assert_eq!(parse_label("farwater.dev/set=web"), label("farwater.dev/set", "web"));
        assert_eq!(parse_label("env="), label("env", ""));
        for wrong in ["env", "=prod", "a b=c", "env=a b", "env=a=b", "/env=a"] {
            assert!(parse_label(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_would_leave_the_path_is_no_name() {
        for argument in ["", "../secrets", "a/b/c", "Web", "web?x", "web/", "team-a/../x"] {
            assert!(service_name(argument, "team-a").is_err(), "{argument}");
        }
    }
}
