//! The health rules for a service's objects.

use std::sync::Arc;

use farwater_api::HealthRuleSpec;
use farwater_fleet::{
    health::{
        changes_after_apply,
        rules::{HubRules, Rules},
    },
    plan::ObjectKey,
};

use super::ServiceTask;

/// Compiled rules, and the specs that they were compiled from.
#[derive(Default)]
pub(super) struct Judges {
    own: Vec<HealthRuleSpec>,
    hubs: Arc<HubRules>,
    pub rules: Arc<Rules>,
}

impl ServiceTask {
    /// Replaces the rules if they have changed. Objects that the old or the new ones cover are judged again.
    pub(super) fn take_up_rules(&mut self, own: &[HealthRuleSpec]) {
        let hubs = self.agent.health_rules();
        if self.judges.own == own && Arc::ptr_eq(&self.judges.hubs, &hubs) {
            return;
        }
        let rules = Arc::new(Rules::compile(own, Arc::clone(&hubs)));
        let before = std::mem::replace(
            &mut self.judges,
            Judges {
                own: own.to_vec(),
                hubs,
                rules,
            },
        );
        let is_concerned = |key: &ObjectKey| {
            before.rules.cover(key.group(), key.kind()) || self.judges.rules.cover(key.group(), key.kind())
        };
        let known = self
            .observed
            .statuses
            .keys()
            .cloned()
            .chain(self.running_hooks().map(ObjectKey::from));
        let concerned: Vec<ObjectKey> = known.filter(is_concerned).collect();
        self.hear_of_hooks(concerned.iter());
        for key in concerned {
            self.health.ask_now(key);
        }
    }

    /// The same between two attempts.
    pub(super) fn hear_of_rules(&mut self) {
        let own = self
            .stored
            .deployment
            .as_ref()
            .map(|deployment| deployment.health.clone());
        self.take_up_rules(&own.unwrap_or_default());
    }

    /// Whether the health of such objects can change after they were applied.
    pub(super) fn may_change(&self, group: &str, kind: &str) -> bool {
        changes_after_apply(group, kind) || self.judges.rules.cover(group, kind)
    }
}
