//! check_rules: NotificationRules → whether each is in force.

use std::sync::Arc;

use farwater_api::{NotificationRule, NotificationRuleStatus, notification_rule::MAX_RULES};
use farwater_fleet::conditions::{self, Verdict};
use farwater_store::StoreError;
use jiff::Timestamp;

use crate::{
    notify::Unused,
    queue::Next,
    replica::Replica,
    resources::{self, Name},
};

pub async fn check_rule(replica: Arc<Replica>, name: Name) -> Result<Next, StoreError> {
    let found = resources::load::<NotificationRule>(&replica.store, &name).await?;
    let Some((resource, rule)) = found else {
        return Ok(Next::OnChange);
    };
    let provider = &rule.spec.provider_ref.name;
    let verdicts = match replica.notifications.unused(&name, &rule.spec) {
        Some(Unused::TooManyRules) => {
            let message =
                format!("the hub uses the first {MAX_RULES} rules of a namespace by name; this one comes later");
            Verdict::stalled("TooManyRules", message)
        }
        Some(Unused::NoProvider) => Verdict::stalled(
            "ProviderNotFound",
            format!("NotificationProvider {provider} does not exist"),
        ),
        None if rule.spec.suspend => {
            vec![Verdict::new(
                "Ready",
                None,
                "Suspended",
                "suspended; it sends no notifications",
            )]
        }
        None => Verdict::ready("InForce", format!("notifies NotificationProvider {provider}")),
    };
    let previous = rule.status.unwrap_or_default();
    let generation = rule.metadata.generation.unwrap_or(0);
    let status = NotificationRuleStatus {
        observed_generation: Some(generation),
        conditions: conditions::resolve(&previous.conditions, verdicts, generation, Timestamp::now()),
    };
    resources::write_status::<NotificationRule>(&replica.store, &name, &resource.uid, &status).await?;
    Ok(Next::OnChange)
}
