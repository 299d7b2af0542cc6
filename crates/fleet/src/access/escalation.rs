//! Prevents privilege escalation: a user may only grant rights that the user holds.
//!
//! A user may write a role if the user holds all its rules, or the verb `escalate` on it; and a binding if the user
//! holds all rules of its role, or the verb `bind` on that role. After
//! `k8s.io/component-helpers/auth/rbac/validation/policy_comparator.go` and
//! `pkg/registry/rbac/{role,rolebinding}/policybased`.

use std::collections::BTreeSet;

use serde_json::Value;
use thiserror::Error;

use super::{
    Attributes, Policy, PolicyKind, RBAC_GROUP, RoleRef, Rule, User, path_matches,
    policy::{parse_role_ref, parse_rules},
};

/// Combinations of verb, group, resource and name that one role may list; each is compared with every rule of the
/// writer. The largest role that Kubernetes ships has about 2,000.
const MAX_COMBINATIONS: usize = 100_000;
/// Missing rules that a message names.
const SHOWN: usize = 64;

/// Why a role or binding may not be written by this user.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Escalation {
    #[error(
        "user {user:?} (groups={}) is attempting to grant RBAC permissions not currently held:\n{}",
        quoted(.groups),
        describe(.missing)
    )]
    NotHeld {
        user: String,
        groups: Vec<String>,
        missing: Vec<Rule>,
    },
    /// The role does not exist, so its rules can't be compared. A user who may `bind` it may still name it in advance.
    #[error("{}", .role.absent())]
    RoleMissing { role: RoleRef },
    #[error("the roleRef of the binding can't be read")]
    NoRole,
    #[error("the rules of the role spell out more than {MAX_COMBINATIONS} combinations; use \"*\" or several roles")]
    TooMany,
}

/// One line for each missing rule, in the form and order of kube-apiserver: verbs on the same thing share a line.
fn describe(missing: &[Rule]) -> String {
    let mut together: Vec<Rule> = Vec::new();
    for rule in missing {
        let same = |known: &&mut Rule| {
            Rule {
                verbs: rule.verbs.clone(),
                ..(*known).clone()
            } == *rule
        };
        match together
            .iter_mut()
            .find(same)
            .filter(|_| rule.non_resource_urls.is_empty())
        {
            Some(known) => known.verbs.extend(rule.verbs.iter().cloned()),
            None => together.push(rule.clone()),
        }
    }
    let lines: BTreeSet<String> = together.iter().map(line).collect();
    let shown: Vec<&str> = lines.iter().take(SHOWN).map(String::as_str).collect();
    let more = lines.len().saturating_sub(SHOWN);
    shown.join("\n")
        + &if more > 0 {
            format!("\nand {more} more")
        } else {
            String::new()
        }
}

fn line(rule: &Rule) -> String {
    let fields = [
        ("APIGroups", &rule.api_groups),
        ("Resources", &rule.resources),
        ("NonResourceURLs", &rule.non_resource_urls),
        ("ResourceNames", &rule.resource_names),
        ("Verbs", &rule.verbs),
    ];
    let told = fields
        .iter()
        .filter(|(_, list)| !list.is_empty())
        .map(|(name, list)| format!("{name}:{}", quoted(list)));
    format!("{{{}}}", told.collect::<Vec<_>>().join(", "))
}

/// Formats a list as Go does.
fn quoted(list: &[String]) -> String {
    format!(
        "[{}]",
        list.iter()
            .map(|text| format!("{text:?}"))
            .collect::<Vec<_>>()
            .join(" ")
    )
}

impl Policy {
    /// Whether a user may write this role or binding. Objects of other kinds pass.
    pub fn check_escalation(&self, user: &User, object: &Value) -> Result<(), Escalation> {
        let Some(kind) = object["kind"].as_str().and_then(PolicyKind::of) else {
            return Ok(());
        };
        if user.is_master() {
            return Ok(());
        }
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();

        match kind {
            PolicyKind::Role | PolicyKind::ClusterRole => {
                let name = object["metadata"]["name"].as_str().unwrap_or_default();
                if self.may(user, "escalate", kind.plural(), namespace, name) {
                    return Ok(());
                }
                self.confirm_held(user, namespace, &parse_rules(object))
            }
            PolicyKind::RoleBinding | PolicyKind::ClusterRoleBinding => {
                let role = parse_role_ref(object).ok_or(Escalation::NoRole)?;
                let (resource, name) = match &role {
                    RoleRef::ClusterRole(name) => (PolicyKind::ClusterRole.plural(), name),
                    RoleRef::Role(name) => (PolicyKind::Role.plural(), name),
                };
                if self.may(user, "bind", resource, namespace, name) {
                    return Ok(());
                }
                match self.role(&role, namespace) {
                    Some(rules) => self.confirm_held(user, namespace, rules),
                    None => Err(Escalation::RoleMissing { role }),
                }
            }
        }
    }

    fn may(&self, user: &User, verb: &str, resource: &str, namespace: &str, name: &str) -> bool {
        let request = Attributes {
            verb: verb.to_owned(),
            group: RBAC_GROUP.to_owned(),
            version: "v1".to_owned(),
            resource: resource.to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            ..Attributes::default()
        };
        self.authorize(user, &request).is_allowed()
    }

    fn confirm_held(&self, user: &User, namespace: &str, wanted: &[Rule]) -> Result<(), Escalation> {
        let missing = missing_rules(&self.rules(user, namespace), wanted)?;
        if missing.is_empty() {
            return Ok(());
        }
        Err(Escalation::NotHeld {
            user: user.name.clone(),
            groups: user.groups.clone(),
            missing,
        })
    }
}

/// The parts of `wanted` that no single rule of `held` covers, each reduced to one verb on one thing.
pub fn missing_rules(held: &[Rule], wanted: &[Rule]) -> Result<Vec<Rule>, Escalation> {
    let total = wanted
        .iter()
        .fold(0usize, |sum, rule| sum.saturating_add(combinations(rule)));
    if total > MAX_COMBINATIONS {
        return Err(Escalation::TooMany);
    }
    let parts = wanted.iter().flat_map(break_down);
    Ok(parts
        .filter(|part| !held.iter().any(|rule| covers(rule, part)))
        .collect())
}

fn combinations(rule: &Rule) -> usize {
    let resources = rule.api_groups.len().saturating_mul(rule.resources.len());
    let named = resources.saturating_mul(rule.resource_names.len().max(1));
    rule.verbs
        .len()
        .saturating_mul(named.saturating_add(rule.non_resource_urls.len()))
}

fn break_down(rule: &Rule) -> Vec<Rule> {
    let one = |text: &String| vec![text.clone()];
    let mut parts = Vec::with_capacity(combinations(rule));
    for verb in &rule.verbs {
        for group in &rule.api_groups {
            for resource in &rule.resources {
                let part = Rule {
                    verbs: one(verb),
                    api_groups: one(group),
                    resources: one(resource),
                    ..Rule::default()
                };
                if rule.resource_names.is_empty() {
                    parts.push(part);
                    continue;
                }
                parts.extend(rule.resource_names.iter().map(|name| Rule {
                    resource_names: one(name),
                    ..part.clone()
                }));
            }
        }
        parts.extend(rule.non_resource_urls.iter().map(|path| Rule {
            verbs: one(verb),
            non_resource_urls: one(path),
            ..Rule::default()
        }));
    }
    parts
}

/// Whether `held` allows everything that the reduced `part` allows.
fn covers(held: &Rule, part: &Rule) -> bool {
    let names_held = held.resource_names.is_empty()
        || (!part.resource_names.is_empty()
            && part
                .resource_names
                .iter()
                .all(|name| held.resource_names.contains(name)));
    all_held(&held.verbs, &part.verbs)
        && all_held(&held.api_groups, &part.api_groups)
        && part
            .resources
            .iter()
            .all(|resource| resource_held(&held.resources, resource))
        && names_held
        && part
            .non_resource_urls
            .iter()
            .all(|path| held.non_resource_urls.iter().any(|own| path_covers(own, path)))
}

fn all_held(held: &[String], wanted: &[String]) -> bool {
    wanted.iter().all(|value| super::holds(held, value))
}

fn resource_held(held: &[String], wanted: &str) -> bool {
    let any_parent = wanted
        .split_once('/')
        .map(|(_, subresource)| format!("*/{subresource}"));
    held.iter()
        .any(|own| own == "*" || own == wanted || Some(own) == any_parent.as_ref())
}

/// A wanted pattern is covered by an equal one or by a prefix: `/*` covers `/a*`, but not the reverse.
fn path_covers(held: &str, wanted: &str) -> bool {
    held == wanted || (held.ends_with('*') && path_matches(held, wanted.trim_end_matches('*')))
}
