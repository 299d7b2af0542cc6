//! HealthRules on their way to agents.

use farwater_api::{
    ADMIN_NAMESPACE,
    health_rule::MAX_RULES,
    protocol::{DesiredState, Verbatim},
};
use serde_json::{Value, json};

use crate::{
    agent::Agent,
    delivering::applied,
    rig::{Rig, condition, message, repository},
};

fn rule(kind: &str, current: &str) -> Value {
    json!({"spec": {"group": "example.com", "kind": kind, "current": current}})
}

/// What a rule's condition says, once it is this one.
async fn told(rig: &Rig, name: &str, kind: &str, expected: &str) -> String {
    let rule = rig
        .wait_for("HealthRule", "", name, |rule| condition(rule, kind) == expected)
        .await;
    message(&rule, kind)
}

/// By name, with what they call healthy.
fn rules(state: &DesiredState) -> Vec<(String, String)> {
    let rules = state.health.iter().flat_map(|health| &health.rules);
    rules
        .map(|named| (named.name.clone(), named.rule.current.clone()))
        .collect()
}

/// The signed state, once these and no others are its rules.
async fn wait_rules(rig: &Rig, agent: &Agent, expected: &[(&str, &str)]) -> DesiredState {
    let expected: Vec<(String, String)> = expected
        .iter()
        .map(|(name, current)| ((*name).to_owned(), (*current).to_owned()))
        .collect();
    rig.wait_until("the rules are in the signed state", async || {
        rules(&agent.desired(rig).await) == expected
    })
    .await;
    let state = agent.desired(rig).await;
    assert_eq!(
        state.statement.health,
        state.health.as_ref().map(Verbatim::digest),
        "they are signed"
    );
    state
}

#[tokio::test(flavor = "multi_thread")]
async fn health_rules_reach_the_signed_state_and_change_no_service() {
    let (server, _git) = repository().await;
    let rig = Rig::start().await;
    rig.cluster("east").await;
    rig.repository(ADMIN_NAMESPACE, "infra", &server.url("infra.git")).await;
    let uid = rig.service(ADMIN_NAMESPACE, "web", "east", "apps/web").await;
    let agent = Agent::join(&rig, "east").await;
    let (before, _) = agent.wait_entry(&rig, &uid, |entry| applied(entry).is_some()).await;
    assert_eq!((&before.health, before.statement.health), (&None, None));

    rig.create("HealthRule", "", "boats", rule("Boat", "self.status.afloat"))
        .await;
    let made = wait_rules(&rig, &agent, &[("boats", "self.status.afloat")]).await;
    assert_eq!(made.entries, before.entries);
    assert!(made.statement.generation > before.statement.generation);
    assert_eq!(told(&rig, "boats", "Ready", "True/InForce").await, "agents judge by it");

    rig.edit("HealthRule", "", "boats", |rule| {
        rule["spec"]["current"] = "self.status.moored".into()
    })
    .await;
    let changed = wait_rules(&rig, &agent, &[("boats", "self.status.moored")]).await;
    assert!(changed.statement.generation > made.statement.generation);

    // Of two for one kind the first by name is in force, and the other says so.
    rig.create("HealthRule", "", "a", rule("Boat", "true")).await;
    wait_rules(&rig, &agent, &[("a", "true")]).await;
    let why = told(&rig, "boats", "Stalled", "True/Overridden").await;
    assert!(
        why.starts_with("HealthRule a comes before it by name and judges the same kind"),
        "{why}"
    );
    rig.delete("HealthRule", "", "a").await;
    wait_rules(&rig, &agent, &[("boats", "self.status.moored")]).await;
    told(&rig, "boats", "Ready", "True/InForce").await;

    rig.delete("HealthRule", "", "boats").await;
    let none = wait_rules(&rig, &agent, &[]).await;
    assert_eq!((&none.health, none.statement.health), (&None, None));
    assert_eq!(none.entries, before.entries);
}

#[tokio::test(flavor = "multi_thread")]
async fn more_rules_than_agents_take_are_refused_at_the_rule() {
    let rig = Rig::start().await;
    rig.cluster("east").await;
    let agent = Agent::join(&rig, "east").await;
    agent.wait_polled(&rig).await;
    let name = |n: usize| format!("rule-{n:03}");
    for n in 0..=MAX_RULES {
        rig.create("HealthRule", "", &name(n), rule(&format!("Kind{n}"), "true"))
            .await;
    }
    let last = name(MAX_RULES);
    let why = told(&rig, &last, "Stalled", "True/TooManyRules").await;
    assert!(
        why.starts_with("64 HealthRules are in force, as many as agents take: delete one"),
        "{why}"
    );
    let in_force = async || {
        rules(&agent.desired(&rig).await)
            .into_iter()
            .map(|(name, _)| name)
            .collect::<Vec<_>>()
    };
    let all_but_the_last: Vec<String> = (0..MAX_RULES).map(name).collect();
    rig.wait_until("as many as agents take are signed", async || {
        in_force().await == all_but_the_last
    })
    .await;

    rig.delete("HealthRule", "", &name(0)).await;
    told(&rig, &last, "Ready", "True/InForce").await;
    rig.wait_until("the last one is signed too", async || in_force().await.contains(&last))
        .await;
}
