//! select_health_rules: HealthRules → those that agents get, and the status that says which ones.
//!
//! Agents get them with their desired states, so a changed rule changes the state of every cluster.

use farwater_api::{
    HealthRule, HealthRuleStatus,
    health_rule::{HealthRules, NamedRule},
};
use farwater_fleet::{
    conditions::{self, Verdict},
    health::{
        rules::problems,
        selection::{Unused, select},
    },
};
use farwater_store::{Resource, Store, StoreError, delivery::mark_all};
use jiff::Timestamp;

use crate::{
    replica::Replica,
    resources::{self, Name},
};

/// The rules in force; None: there are none.
pub async fn load(store: &Store) -> Result<Option<HealthRules>, StoreError> {
    let rules = list(store)
        .await?
        .iter()
        .map(|(resource, rule)| named(resource, rule))
        .collect();
    let rules = select(rules).in_force;
    Ok((!rules.is_empty()).then_some(HealthRules { rules }))
}

/// A rule was written or deleted, so every cluster's state may change.
pub async fn follow(replica: &Replica) -> Result<(), StoreError> {
    replica
        .store
        .transact(|tx| Box::pin(async move { mark_all(tx).await }))
        .await?;
    replica.wake_after_mark();
    write_statuses(&replica.store).await
}

/// Writes the status of each rule, if it differs.
pub async fn write_statuses(store: &Store) -> Result<(), StoreError> {
    let rows = list(store).await?;
    let selection = select(rows.iter().map(|(resource, rule)| named(resource, rule)).collect());
    for (resource, rule) in &rows {
        let verdicts = judge(rule, selection.unused.get(&resource.key.name));
        let previous = rule
            .status
            .as_ref()
            .map(|status| status.conditions.as_slice())
            .unwrap_or_default();
        let generation = rule.metadata.generation.unwrap_or(0);
        let status = HealthRuleStatus {
            observed_generation: Some(generation),
            conditions: conditions::resolve(previous, verdicts, generation, Timestamp::now()),
        };
        let name = Name::new("", &resource.key.name);
        resources::write_status::<HealthRule>(store, &name, &resource.uid, &status).await?;
    }
    Ok(())
}

fn judge(rule: &HealthRule, unused: Option<&Unused>) -> Vec<Verdict> {
    if let Some(why) = unused {
        return Verdict::stalled(why.reason(), why.to_string());
    }
    // Admission refuses these. If an older hub admitted one, agents report that they can't use it.
    match problems(&rule.spec).first() {
        Some((field, problem)) => Verdict::stalled("InvalidExpression", format!("spec.{field}: {problem}")),
        None => Verdict::ready("InForce", "agents judge by it"),
    }
}

async fn list(store: &Store) -> Result<Vec<(Resource, HealthRule)>, StoreError> {
    let mut rows = Vec::new();
    resources::list_pages::<HealthRule>(store, None, |resource| rows.push(resource)).await?;
    let parse = |resource: Resource| {
        let rule = resources::parse::<HealthRule>(&resource)?;
        Ok((resource, rule))
    };
    rows.into_iter().map(parse).collect()
}

fn named(resource: &Resource, rule: &HealthRule) -> NamedRule {
    NamedRule {
        name: resource.key.name.clone(),
        rule: rule.spec.clone(),
    }
}
