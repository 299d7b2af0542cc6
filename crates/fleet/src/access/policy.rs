//! The roles and bindings of a hub, indexed by subject.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde_json::Value;

use super::{Attributes, Decision, Grant, RBAC_GROUP, RoleRef, Rule, Subject, User};

/// The four kinds of objects in a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PolicyKind {
    ClusterRole,
    ClusterRoleBinding,
    Role,
    RoleBinding,
}

impl PolicyKind {
    pub const ALL: [Self; 4] = [
        Self::ClusterRole,
        Self::ClusterRoleBinding,
        Self::Role,
        Self::RoleBinding,
    ];

    pub fn plural(self) -> &'static str {
        match self {
            Self::ClusterRole => "clusterroles",
            Self::ClusterRoleBinding => "clusterrolebindings",
            Self::Role => "roles",
            Self::RoleBinding => "rolebindings",
        }
    }

    /// The kind by an object's `kind` field.
    pub fn of(kind: &str) -> Option<Self> {
        match kind {
            "ClusterRole" => Some(Self::ClusterRole),
            "ClusterRoleBinding" => Some(Self::ClusterRoleBinding),
            "Role" => Some(Self::Role),
            "RoleBinding" => Some(Self::RoleBinding),
            _ => None,
        }
    }
}

/// (namespace, name). The namespace of cluster-scoped objects is empty.
type Place = (String, String);

#[derive(Clone, Debug)]
struct Binding {
    role: RoleRef,
    subjects: Vec<Subject>,
}

/// Every role and binding. Updated object by object; an unreadable object grants nothing.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    roles: BTreeMap<Place, Vec<Rule>>,
    bindings: BTreeMap<Place, Binding>,
    /// (namespace, subject) → names of bindings, so that a request looks up its few subjects and not every binding.
    by_subject: HashMap<(String, Subject), BTreeSet<String>>,
}

/// A binding of a user, with the rules of its role. None: the role does not exist.
struct Held<'a> {
    place: &'a Place,
    role: &'a RoleRef,
    subject: Subject,
    rules: Option<&'a [Rule]>,
}

impl Policy {
    /// Stores the current state of one object. None: it was removed.
    pub fn apply(&mut self, kind: PolicyKind, namespace: &str, name: &str, object: Option<&Value>) {
        let place = (namespace.to_owned(), name.to_owned());
        match kind {
            PolicyKind::ClusterRole | PolicyKind::Role => match object {
                Some(object) => _ = self.roles.insert(place, parse_rules(object)),
                None => _ = self.roles.remove(&place),
            },
            PolicyKind::ClusterRoleBinding | PolicyKind::RoleBinding => {
                self.remove_binding(&place);
                if let Some(binding) = object.and_then(|object| parse_binding(object, namespace)) {
                    self.add_binding(place, binding);
                }
            }
        }
    }

    fn add_binding(&mut self, place: Place, binding: Binding) {
        for subject in &binding.subjects {
            let names = self.by_subject.entry((place.0.clone(), subject.clone())).or_default();
            names.insert(place.1.clone());
        }
        self.bindings.insert(place, binding);
    }

    fn remove_binding(&mut self, place: &Place) {
        let Some(binding) = self.bindings.remove(place) else {
            return;
        };
        for subject in binding.subjects {
            let key = (place.0.clone(), subject);
            if let Some(names) = self.by_subject.get_mut(&key) {
                names.remove(&place.1);
                if names.is_empty() {
                    self.by_subject.remove(&key);
                }
            }
        }
    }

    /// Whether a user may make the request, and which binding allows it.
    pub fn authorize(&self, user: &User, request: &Attributes) -> Decision {
        if user.is_master() {
            return Decision::Allowed(Grant::Master);
        }
        let mut missing = Vec::new();
        for held in self.held(user, &request.namespace) {
            match held.rules {
                None => missing.push(held.role.clone()),
                Some(rules) if rules.iter().any(|rule| rule.allows(request)) => {
                    return Decision::Allowed(held.grant());
                }
                Some(_) => {}
            }
        }
        missing.dedup();
        Decision::Denied { missing }
    }

    /// All rules that a user holds in a namespace, including hub-wide ones, without duplicates.
    pub fn rules(&self, user: &User, namespace: &str) -> Vec<Rule> {
        if user.is_master() {
            return vec![Rule::everything(), Rule::every_path()];
        }
        let mut rules = Vec::new();
        for rule in self.held(user, namespace).filter_map(|held| held.rules).flatten() {
            if !rules.contains(rule) {
                rules.push(rule.clone());
            }
        }
        rules
    }

    /// The rules of the role that a binding refers to. None: the role does not exist.
    pub fn role(&self, role: &RoleRef, namespace: &str) -> Option<&[Rule]> {
        let place = match role {
            RoleRef::ClusterRole(name) => (String::new(), name.clone()),
            RoleRef::Role(name) => (namespace.to_owned(), name.clone()),
        };
        self.roles.get(&place).map(Vec::as_slice)
    }

    /// Hub-wide bindings first, then those of the namespace.
    fn held<'a>(&'a self, user: &User, namespace: &str) -> impl Iterator<Item = Held<'a>> {
        let subjects: Vec<Subject> = user.subjects().collect();
        let scopes = if namespace.is_empty() {
            vec![""]
        } else {
            vec!["", namespace]
        };
        let keys: Vec<(String, Subject)> = scopes
            .iter()
            .flat_map(|scope| subjects.iter().map(|subject| ((*scope).to_owned(), subject.clone())))
            .collect();
        keys.into_iter().flat_map(move |(scope, subject)| {
            let names = self.by_subject.get(&(scope.clone(), subject.clone()));
            names.into_iter().flatten().filter_map(move |name| {
                let (place, binding) = self.bindings.get_key_value(&(scope.clone(), name.clone()))?;
                let rules = self.role(&binding.role, &place.0);
                Some(Held {
                    place,
                    role: &binding.role,
                    subject: subject.clone(),
                    rules,
                })
            })
        })
    }
}

impl Held<'_> {
    fn grant(self) -> Grant {
        let (namespace, name) = self.place.clone();
        let (role, subject) = (self.role.clone(), self.subject);
        if namespace.is_empty() {
            Grant::ClusterRoleBinding { name, role, subject }
        } else {
            Grant::RoleBinding {
                namespace,
                name,
                role,
                subject,
            }
        }
    }
}

impl Rule {
    pub fn everything() -> Self {
        let all = || vec!["*".to_owned()];
        Self {
            verbs: all(),
            api_groups: all(),
            resources: all(),
            ..Self::default()
        }
    }

    pub fn every_path() -> Self {
        Self {
            verbs: vec!["*".to_owned()],
            non_resource_urls: vec!["*".to_owned()],
            ..Self::default()
        }
    }
}

/// The rules of a role. An unreadable rule grants nothing.
pub(super) fn parse_rules(object: &Value) -> Vec<Rule> {
    let rules = object["rules"].as_array().map(Vec::as_slice).unwrap_or_default();
    rules
        .iter()
        .filter_map(|rule| serde_json::from_value(rule.clone()).ok())
        .collect()
}

pub(super) fn parse_role_ref(object: &Value) -> Option<RoleRef> {
    let reference = &object["roleRef"];
    if reference["apiGroup"].as_str().is_some_and(|group| group != RBAC_GROUP) {
        return None;
    }
    let name = reference["name"].as_str()?.to_owned();
    match reference["kind"].as_str()? {
        "ClusterRole" => Some(RoleRef::ClusterRole(name)),
        "Role" => Some(RoleRef::Role(name)),
        _ => None,
    }
}

fn parse_binding(object: &Value, namespace: &str) -> Option<Binding> {
    let subjects = object["subjects"].as_array().map(Vec::as_slice).unwrap_or_default();
    let subjects = subjects
        .iter()
        .filter_map(|subject| parse_subject(subject, namespace))
        .collect();
    Some(Binding {
        role: parse_role_ref(object)?,
        subjects,
    })
}

fn parse_subject(subject: &Value, namespace: &str) -> Option<Subject> {
    let name = subject["name"].as_str().filter(|name| !name.is_empty())?.to_owned();
    match subject["kind"].as_str()? {
        "User" => Some(Subject::User(name)),
        "Group" => Some(Subject::Group(name)),
        "ServiceAccount" => {
            let own = subject["namespace"].as_str().unwrap_or(namespace);
            (!own.is_empty()).then(|| Subject::ServiceAccount(own.to_owned(), name))
        }
        _ => None,
    }
}
