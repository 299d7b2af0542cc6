//! Access: Kubernetes RBAC as a pure function of roles, bindings and one request. Default deny.
//!
//! The rules of matching are those of `k8s.io/kubernetes/pkg/apis/rbac/v1/evaluation_helpers.go` and
//! `plugin/pkg/auth/authorizer/rbac/rbac.go`; those of escalation are in [`escalation`].

pub mod escalation;
mod policy;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};

pub use policy::{Policy, PolicyKind};

/// Members of this group may do everything, whatever the roles say. It is the way back in when a role is broken.
pub const MASTERS_GROUP: &str = "system:masters";
pub const AUTHENTICATED_GROUP: &str = "system:authenticated";
pub const RBAC_GROUP: &str = "rbac.authorization.k8s.io";
/// Prefix of the user names of service accounts; namespace, `:` and name follow.
pub const SERVICE_ACCOUNT_PREFIX: &str = "system:serviceaccount:";

/// Who sent a request, as established by authentication.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    pub name: String,
    pub uid: String,
    pub groups: Vec<String>,
    pub extra: BTreeMap<String, Vec<String>>,
}

impl User {
    /// The user that a service account's token authenticates.
    pub fn service_account(namespace: &str, name: &str, uid: &str) -> Self {
        Self {
            name: format!("{SERVICE_ACCOUNT_PREFIX}{namespace}:{name}"),
            uid: uid.to_owned(),
            groups: vec![
                "system:serviceaccounts".to_owned(),
                format!("system:serviceaccounts:{namespace}"),
                AUTHENTICATED_GROUP.to_owned(),
            ],
            extra: BTreeMap::new(),
        }
    }

    /// The name for fair sharing. All service accounts of a namespace have one share, because a user that may create
    /// one may create many.
    pub fn share_name(&self) -> &str {
        let account = self
            .name
            .strip_prefix("system:serviceaccount:")
            .and_then(|rest| rest.rsplit_once(':'));
        account.map_or(&self.name, |(namespace, _)| {
            &self.name[.."system:serviceaccount:".len() + namespace.len()]
        })
    }

    pub fn is_master(&self) -> bool {
        self.groups.iter().any(|group| group == MASTERS_GROUP)
    }

    /// All subjects of bindings that match this user.
    fn subjects(&self) -> impl Iterator<Item = Subject> + '_ {
        let account = self
            .name
            .strip_prefix(SERVICE_ACCOUNT_PREFIX)
            .and_then(|rest| rest.split_once(':'));
        std::iter::once(Subject::User(self.name.clone()))
            .chain(self.groups.iter().cloned().map(Subject::Group))
            .chain(account.map(|(namespace, name)| Subject::ServiceAccount(namespace.to_owned(), name.to_owned())))
    }
}

/// The parsed request. A non-resource request has only `path` and `verb`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// Lower case: `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`, or a virtual one.
    pub verb: String,
    pub group: String,
    pub version: String,
    /// Plural. Empty for a non-resource request.
    pub resource: String,
    pub subresource: String,
    /// Empty for cluster-scoped resources and for all namespaces.
    pub namespace: String,
    pub name: String,
    /// Path of a non-resource request; otherwise empty.
    pub path: String,
}

impl Attributes {
    pub fn non_resource(verb: &str, path: &str) -> Self {
        Self {
            verb: verb.to_owned(),
            path: path.to_owned(),
            ..Self::default()
        }
    }

    /// `resource` or `resource/subresource`.
    pub fn combined_resource(&self) -> String {
        if self.subresource.is_empty() {
            self.resource.clone()
        } else {
            format!("{}/{}", self.resource, self.subresource)
        }
    }

    /// The message of a 403, word for word that of kube-apiserver, because people and tools search for it.
    pub fn forbidden_message(&self, user: &User) -> String {
        let name = &user.name;
        if self.resource.is_empty() {
            return format!("User {name:?} cannot {} path {:?}", self.verb, self.path);
        }
        let place = if self.namespace.is_empty() {
            "at the cluster scope".to_owned()
        } else {
            format!("in the namespace {:?}", self.namespace)
        };
        let resource = self.combined_resource();
        format!(
            "User {name:?} cannot {} resource {resource:?} in API group {:?} {place}",
            self.verb, self.group
        )
    }
}

/// One rule of a role: everything that it names is allowed in every combination.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rule {
    #[serde(default, deserialize_with = "null_as_empty")]
    pub verbs: Vec<String>,
    #[serde(default, deserialize_with = "null_as_empty", skip_serializing_if = "Vec::is_empty")]
    pub api_groups: Vec<String>,
    #[serde(default, deserialize_with = "null_as_empty", skip_serializing_if = "Vec::is_empty")]
    pub resources: Vec<String>,
    #[serde(default, deserialize_with = "null_as_empty", skip_serializing_if = "Vec::is_empty")]
    pub resource_names: Vec<String>,
    #[serde(
        default,
        deserialize_with = "null_as_empty",
        rename = "nonResourceURLs",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub non_resource_urls: Vec<String>,
}

/// Go clients write an absent list as null.
fn null_as_empty<'de, D: serde::Deserializer<'de>, T: Deserialize<'de> + Default>(from: D) -> Result<T, D::Error> {
    Ok(Option::<T>::deserialize(from)?.unwrap_or_default())
}

impl Rule {
    pub fn allows(&self, request: &Attributes) -> bool {
        if !holds(&self.verbs, &request.verb) {
            return false;
        }
        if request.resource.is_empty() {
            return self
                .non_resource_urls
                .iter()
                .any(|pattern| path_matches(pattern, &request.path));
        }
        holds(&self.api_groups, &request.group)
            && self.allows_resource(request)
            && (self.resource_names.is_empty() || self.resource_names.contains(&request.name))
    }

    fn allows_resource(&self, request: &Attributes) -> bool {
        let combined = request.combined_resource();
        self.resources.iter().any(|resource| {
            resource == "*"
                || *resource == combined
                || (!request.subresource.is_empty() && resource.strip_prefix("*/") == Some(&request.subresource))
        })
    }
}

/// Whether a list that may contain `*` matches the value.
fn holds(list: &[String], value: &str) -> bool {
    list.iter().any(|item| item == "*" || item == value)
}

fn path_matches(pattern: &str, path: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => path.starts_with(prefix),
        None => pattern == path,
    }
}

/// A subject of a binding.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subject {
    User(String),
    Group(String),
    /// Namespace and name.
    ServiceAccount(String, String),
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(name) => write!(f, "User {name:?}"),
            Self::Group(name) => write!(f, "Group {name:?}"),
            Self::ServiceAccount(namespace, name) => write!(f, "ServiceAccount \"{name}/{namespace}\""),
        }
    }
}

/// The role that a binding refers to. A `Role` is in the binding's namespace.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RoleRef {
    ClusterRole(String),
    Role(String),
}

impl fmt::Display for RoleRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ClusterRole(name) => write!(f, "ClusterRole {name:?}"),
            Self::Role(name) => write!(f, "Role {name:?}"),
        }
    }
}

impl RoleRef {
    /// The message that the role does not exist, in Kubernetes' words.
    pub fn absent(&self) -> String {
        match self {
            Self::ClusterRole(name) => format!("clusterrole.{RBAC_GROUP} {name:?} not found"),
            Self::Role(name) => format!("role.{RBAC_GROUP} {name:?} not found"),
        }
    }

    pub fn name(&self) -> &str {
        match self {
            Self::ClusterRole(name) | Self::Role(name) => name,
        }
    }
}

/// The binding that allowed a request. Its text is kube-apiserver's reason, for `kubectl auth can-i -v` and audits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Grant {
    /// The user is a member of [`MASTERS_GROUP`].
    Master,
    ClusterRoleBinding {
        name: String,
        role: RoleRef,
        subject: Subject,
    },
    RoleBinding {
        namespace: String,
        name: String,
        role: RoleRef,
        subject: Subject,
    },
}

impl fmt::Display for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // Kubernetes allows this before it reads any role, and gives no reason.
            Self::Master => Ok(()),
            Self::ClusterRoleBinding { name, role, subject } => {
                write!(f, "RBAC: allowed by ClusterRoleBinding {name:?} of {role} to {subject}")
            }
            Self::RoleBinding {
                namespace,
                name,
                role,
                subject,
            } => {
                write!(
                    f,
                    "RBAC: allowed by RoleBinding \"{name}/{namespace}\" of {role} to {subject}"
                )
            }
        }
    }
}

/// Whether a request is allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    Allowed(Grant),
    /// No binding allows it. `missing` lists roles that bindings of this user refer to but that don't exist.
    Denied {
        missing: Vec<RoleRef>,
    },
}

impl Decision {
    pub fn is_allowed(&self) -> bool {
        matches!(self, Self::Allowed(_))
    }

    /// The reason, as in `status.reason` of an access review. Empty if the only reason is that no binding allows it.
    pub fn reason(&self) -> String {
        match self {
            Self::Allowed(grant) => grant.to_string(),
            Self::Denied { missing } if missing.is_empty() => String::new(),
            Self::Denied { missing } => {
                let absent: Vec<String> = missing.iter().map(RoleRef::absent).collect();
                match absent.as_slice() {
                    [one] => format!("RBAC: {one}"),
                    several => format!("RBAC: [{}]", several.join(", ")),
                }
            }
        }
    }
}
