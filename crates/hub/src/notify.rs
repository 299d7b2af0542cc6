//! Notifications: the providers that an event concerns, pending notifications, and the protocol of each provider.
//!
//! ```text
//! NotificationRule, NotificationProvider ─ route_changes ─► Notifications ─ targets ─┐
//!            rollouts, summarize_reports ─ postings, in the transaction of the thing ─► threads
//!                                              provider ◄─ channel ─ send_notifications ◄──┘
//! ```

mod channel;
mod chat;
pub mod check_rules;
mod email;
pub mod events;
mod git_hosts;
mod line;
mod pace;
mod posting;
pub mod send_notifications;
mod teams;
mod webhook;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

use farwater_api::{
    NotificationProviderSpec, NotificationRuleSpec,
    notification_provider::MAX_PROVIDERS,
    notification_rule::{EventKind, EventSeverity, MAX_RULES},
};
use farwater_fleet::notify::selects;

use crate::{queue::WorkQueue, resources::Name};

pub use self::{
    channel::{Channel, Content, Letter, Sent, every, gap, load_data, signing_token},
    line::{Fault, Line, Trouble},
    pace::{Pace, Paces},
    posting::{
        Commit, MemberNews, Posting, Postings, RolloutChange, farewell_postings, is_end, is_lapsed, service_posting,
    },
    webhook::open_signed,
};

/// Providers and rules in the memory of this replica. Code that writes news asks here which providers it concerns.
#[derive(Default)]
pub struct Notifications {
    known: RwLock<KnownRoutes>,
    paces: Mutex<Paces>,
    pub providers: Arc<WorkQueue<Name>>,
    pub rules: Arc<WorkQueue<Name>>,
}

#[derive(Default)]
struct KnownRoutes {
    providers: BTreeMap<Name, Provider>,
    rules: BTreeMap<Name, NotificationRuleSpec>,
}

struct Provider {
    uid: String,
    spec: Arc<NotificationProviderSpec>,
}

/// A provider to notify.
#[derive(Clone, Debug)]
pub struct Target {
    pub provider: Name,
    pub uid: String,
    pub spec: Arc<NotificationProviderSpec>,
    /// Least severity of news that begins a thread.
    pub severity: EventSeverity,
    /// Summary of the first of its matching rules.
    pub summary: String,
}

/// Why a rule has no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unused {
    TooManyRules,
    NoProvider,
}

/// The objects of a namespace that are in force: the first ones by name.
fn first_of<'m, T>(
    all: &'m BTreeMap<Name, T>,
    namespace: &'m str,
    most: usize,
) -> impl Iterator<Item = (&'m Name, &'m T)> {
    all.range(Name::new(namespace, "")..)
        .take_while(move |(name, _)| name.namespace == namespace)
        .take(most)
}

impl Notifications {
    fn known(&self) -> RwLockReadGuard<'_, KnownRoutes> {
        self.known.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self) -> RwLockWriteGuard<'_, KnownRoutes> {
        self.known.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn paces(&self) -> MutexGuard<'_, Paces> {
        self.paces.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces everything that is known.
    pub fn learn(
        &self,
        providers: impl IntoIterator<Item = (Name, String, NotificationProviderSpec)>,
        rules: impl IntoIterator<Item = (Name, NotificationRuleSpec)>,
    ) {
        let provider = |(name, uid, spec)| {
            (
                name,
                Provider {
                    uid,
                    spec: Arc::new(spec),
                },
            )
        };
        let providers = providers.into_iter().map(provider).collect();
        let known = KnownRoutes {
            providers,
            rules: rules.into_iter().collect(),
        };
        known.providers.keys().for_each(|name| self.providers.add(name.clone()));
        known.rules.keys().for_each(|name| self.rules.add(name.clone()));
        *self.change() = known;
    }

    /// A provider was written, or deleted (`found`: None).
    pub fn know_provider(&self, name: &Name, found: Option<(&str, NotificationProviderSpec)>) {
        let mut known = self.change();
        match found {
            Some((uid, spec)) => {
                known.providers.insert(
                    name.clone(),
                    Provider {
                        uid: uid.to_owned(),
                        spec: Arc::new(spec),
                    },
                );
            }
            None => drop(known.providers.remove(name)),
        }
        drop(known);
        // All of its namespace: one provider more or less may put another one in force.
        self.look_at(&name.namespace);
    }

    /// A rule was written, or deleted (`found`: None).
    pub fn know_rule(&self, name: &Name, found: Option<NotificationRuleSpec>) {
        let mut known = self.change();
        match found {
            Some(spec) => drop(known.rules.insert(name.clone(), spec)),
            None => drop(known.rules.remove(name)),
        }
        let rules: Vec<Name> = first_of(&known.rules, &name.namespace, usize::MAX)
            .map(|(name, _)| name.clone())
            .collect();
        drop(known);
        rules.into_iter().for_each(|name| self.rules.add(name));
    }

    /// Requeues every provider and rule of a namespace, to update their status.
    fn look_at(&self, namespace: &str) {
        let known = self.known();
        first_of(&known.providers, namespace, usize::MAX).for_each(|(name, _)| self.providers.add(name.clone()));
        first_of(&known.rules, namespace, usize::MAX).for_each(|(name, _)| self.rules.add(name.clone()));
    }

    pub fn is_provider_in_force(&self, name: &Name) -> bool {
        first_of(&self.known().providers, &name.namespace, MAX_PROVIDERS).any(|(other, _)| other == name)
    }

    /// Why a rule has no effect; None: it is in force.
    pub fn unused(&self, name: &Name, spec: &NotificationRuleSpec) -> Option<Unused> {
        let known = self.known();
        if !first_of(&known.rules, &name.namespace, MAX_RULES).any(|(other, _)| other == name) {
            return Some(Unused::TooManyRules);
        }
        let provider = Name::new(&name.namespace, &spec.provider_ref.name);
        (!known.providers.contains_key(&provider)).then_some(Unused::NoProvider)
    }

    /// Requeues the providers that name a Secret, even if they failed lately.
    pub fn hurry_users_of(&self, secret: &Name) {
        let known = self.known();
        let names = |reference: &Option<farwater_api::git_repository::LocalReference>| {
            reference
                .as_ref()
                .is_some_and(|reference| reference.name == secret.name)
        };
        for (name, provider) in first_of(&known.providers, &secret.namespace, usize::MAX) {
            if names(&provider.spec.secret_ref) || names(&provider.spec.cert_secret_ref) {
                self.paces().of(&provider.uid).hurry();
                self.providers.add(name.clone());
            }
        }
    }

    /// Whether any rule of a namespace may match.
    pub fn is_anybody_told(&self, namespace: &str) -> bool {
        first_of(&self.known().rules, namespace, 1).next().is_some()
    }

    /// The providers that news about an object concerns, each once.
    pub fn targets(
        &self,
        namespace: &str,
        (kind, name): (EventKind, &str),
        labels: &BTreeMap<String, String>,
    ) -> Vec<Target> {
        let known = self.known();
        let mut targets: Vec<Target> = Vec::new();
        for (_, rule) in first_of(&known.rules, namespace, MAX_RULES) {
            if rule.suspend || !selects(&rule.event_sources, kind, name, labels) {
                continue;
            }
            let provider = Name::new(namespace, &rule.provider_ref.name);
            if let Some(target) = targets.iter_mut().find(|target| target.provider == provider) {
                target.severity = target.severity.min(rule.event_severity);
                continue;
            }
            let found = first_of(&known.providers, namespace, MAX_PROVIDERS).find(|(name, _)| **name == provider);
            let Some((_, Provider { uid, spec })) = found else {
                continue;
            };
            targets.push(Target {
                uid: uid.clone(),
                spec: Arc::clone(spec),
                severity: rule.event_severity,
                summary: rule.summary.clone(),
                provider,
            });
        }
        targets
    }

    /// Requeues providers that have pending notifications.
    pub fn wake(&self, providers: impl IntoIterator<Item = Name>) {
        providers.into_iter().for_each(|name| self.providers.add(name));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn provider(kind: &str) -> NotificationProviderSpec {
        serde_json::from_value(json!({"type": kind, "secretRef": {"name": "token"}})).unwrap()
    }

    fn rule(provider: &str, severity: &str, name: &str) -> NotificationRuleSpec {
        let sources = json!([{"kind": "ServiceSet", "name": name}]);
        let spec = json!({"providerRef": {"name": provider}, "eventSeverity": severity, "eventSources": sources});
        serde_json::from_value(spec).unwrap()
    }

    #[test]
    fn each_provider_is_told_once_and_by_the_mildest_of_its_rules() {
        let (all, labels) = (Notifications::default(), BTreeMap::new());
        let found = |namespace: &str, name: &str| -> Vec<(String, EventSeverity)> {
            let targets = all.targets(namespace, (EventKind::ServiceSet, name), &labels);
            targets
                .into_iter()
                .map(|target| (target.uid, target.severity))
                .collect()
        };
        all.know_rule(&Name::new("a", "1"), Some(rule("chat", "error", "*")));
        assert_eq!(found("a", "web"), [], "there is no provider yet");
        all.know_provider(&Name::new("a", "chat"), Some(("uid-chat", provider("slack"))));
        all.know_provider(&Name::new("b", "chat"), Some(("uid-other", provider("slack"))));
        assert_eq!(found("a", "web"), [("uid-chat".to_owned(), EventSeverity::Error)]);
        all.know_rule(&Name::new("a", "2"), Some(rule("chat", "info", "web")));
        assert_eq!(found("a", "web"), [("uid-chat".to_owned(), EventSeverity::Info)]);
        assert_eq!(found("a", "db"), [("uid-chat".to_owned(), EventSeverity::Error)]);
        assert_eq!(found("b", "web"), []);
        assert_eq!(all.unused(&Name::new("a", "1"), &rule("chat", "info", "*")), None);
        all.know_provider(&Name::new("a", "chat"), None);
        assert_eq!(found("a", "web"), []);
        assert_eq!(
            all.unused(&Name::new("a", "1"), &rule("chat", "info", "*")),
            Some(Unused::NoProvider)
        );
    }

    #[test]
    fn of_too_many_the_first_by_name_are_in_force() {
        let (all, labels) = (Notifications::default(), BTreeMap::new());
        for n in 0..=MAX_PROVIDERS {
            all.know_provider(
                &Name::new("a", &format!("p{n:03}")),
                Some((&format!("uid{n}"), provider("slack"))),
            );
            all.know_rule(
                &Name::new("a", &format!("r{n:03}")),
                Some(rule(&format!("p{n:03}"), "info", "*")),
            );
        }
        assert_eq!(
            all.targets("a", (EventKind::ServiceSet, "web"), &labels).len(),
            MAX_RULES.min(MAX_PROVIDERS)
        );
        assert!(
            all.is_provider_in_force(&Name::new("a", "p063")) && !all.is_provider_in_force(&Name::new("a", "p064"))
        );
        let last = rule("p000", "info", "*");
        assert_eq!(all.unused(&Name::new("a", "r064"), &last), Some(Unused::TooManyRules));
    }
}
