//! Deleted services and clusters.

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use farwater_api::{
    ADMIN_NAMESPACE, CONFIRM_RESTORED,
    objects::{Health, Outcome},
    protocol::{AcceptedStatement, Action, Entry, Statement, Verbatim},
    service_deployment::DeletionPolicy,
};
use farwater_store::delivery::distrust_sources;
use farwater_testkit::wire;

use crate::{
    agent::{Agent, said},
    delivering::applied,
    rig::{Rig, condition, message, repository},
};

fn removed(entry: &Entry) -> bool {
    matches!(entry.action, Action::Remove { policy: DeletionPolicy::Delete, .. })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_service_stays_listed_until_its_agent_has_confirmed() {
    let (server, _git) = repository().await;
    let mut rig = Rig::start().await;
    rig.cluster("east").await;
    rig.repository(ADMIN_NAMESPACE, "infra", &server.url("infra.git")).await;
    let uid = rig.service(ADMIN_NAMESPACE, "web", "east", "apps/web").await;
    let mut agent = Agent::join(&rig, "east").await;
    let (_, applied_entry) = agent.wait_entry(&rig, &uid, |entry| applied(entry).is_some()).await;
    agent.say(&rig, &uid, said(&applied_entry, Outcome::Applied, &[])).await;
    rig.delete("ServiceDeployment", ADMIN_NAMESPACE, "web").await;
    let (_, entry) = agent.wait_entry(&rig, &uid, removed).await;

    // What was removed of an older entry confirms nothing.
    agent.say(&rig, &uid, said(&applied_entry, Outcome::Removed, &[])).await;
    agent.say(&rig, &uid, said(&entry, Outcome::Applying, &[])).await;
    rig = rig.restart().await;
    rig.wait_loaded().await;
    agent.wait_entry(&rig, &uid, removed).await;
    assert!(rig.get("ServiceDeployment", ADMIN_NAMESPACE, "web").await.is_some());

    agent.say(&rig, &uid, said(&entry, Outcome::Removed, &[])).await;
    rig.wait_gone("ServiceDeployment", ADMIN_NAMESPACE, "web").await;
    agent.wait_empty(&rig).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_finalizer_that_somebody_takes_away_is_set_again() {
    let rig = Rig::start().await;
    rig.cluster("east").await;
    rig.service(ADMIN_NAMESPACE, "web", "east", "").await;
    for _ in 0..2 {
        rig.wait_for("ServiceDeployment", ADMIN_NAMESPACE, "web", |s| s["metadata"]["finalizers"].is_array()).await;
        rig.wait_idle().await;
        rig.edit("ServiceDeployment", ADMIN_NAMESPACE, "web", |service| {
            service["metadata"].as_object_mut().unwrap().remove("finalizers");
        })
        .await;
    }
    rig.wait_for("ServiceDeployment", ADMIN_NAMESPACE, "web", |s| s["metadata"]["finalizers"].is_array()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_goes_at_once_where_nobody_can_confirm() {
    let rig = Rig::start().await;
    rig.cluster("east").await;
    rig.service(ADMIN_NAMESPACE, "never-joined", "east", "").await;
    rig.service(ADMIN_NAMESPACE, "no-cluster", "nowhere", "").await;
    for name in ["never-joined", "no-cluster"] {
        rig.wait_for("ServiceDeployment", ADMIN_NAMESPACE, name, |s| s["metadata"]["finalizers"].is_array()).await;
        rig.delete("ServiceDeployment", ADMIN_NAMESPACE, name).await;
        rig.wait_gone("ServiceDeployment", ADMIN_NAMESPACE, name).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn deleting_a_cluster_refuses_its_agent_and_removes_nothing_there() {
    let (server, _git) = repository().await;
    let rig = Rig::start().await;
    rig.cluster("east").await;
    rig.repository(ADMIN_NAMESPACE, "infra", &server.url("infra.git")).await;
    let uid = rig.service(ADMIN_NAMESPACE, "web", "east", "apps/web").await;
    let agent = Agent::join(&rig, "east").await;
    agent.wait_entry(&rig, &uid, |entry| applied(entry).is_some()).await;
    rig.delete("Cluster", ADMIN_NAMESPACE, "east").await;
    rig.wait_for("ServiceDeployment", ADMIN_NAMESPACE, "web", |s| condition(s, "Stalled") == "True/ClusterNotFound")
        .await;
    assert_eq!(agent.poll(&rig, None).await.refusal(), "401 IdentityUnknown");
    // Made again under its name it is another cluster: it may be joined, and has the service anew.
    rig.cluster("east").await;
    rig.wait_for("Cluster", ADMIN_NAMESPACE, "east", |c| c["status"]["conditions"].is_array()).await;
    assert_eq!(agent.poll(&rig, None).await.refusal(), "401 IdentityUnknown");
    let again = Agent::join(&rig, "east").await;
    again.wait_entry(&rig, &uid, |entry| applied(entry).is_some()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newer_statement_of_this_hub_proves_a_restore_and_holds_deletions() {
    let (server, _git) = repository().await;
    let rig = Rig::start().await;
    rig.cluster("east").await;
    rig.repository(ADMIN_NAMESPACE, "infra", &server.url("infra.git")).await;
    let uid = rig.service(ADMIN_NAMESPACE, "web", "east", "apps/web").await;
    let mut agent = Agent::join(&rig, "east").await;
    let (state, entry) = agent.wait_entry(&rig, &uid, |entry| applied(entry).is_some()).await;
    assert!(applied(&entry).unwrap().prune);

    // Signed by the hub, and newer than all that its database knows: what a restored backup forgot.
    // And by a newer hub, which says more in it.
    let mut statement = serde_json::to_value(&state.statement).unwrap();
    statement["generation"] = (state.statement.generation + 7).into();
    statement[wire::UNKNOWN_MEMBER] = true.into();
    let statement: Verbatim<Statement> = serde_json::from_value(statement).unwrap();
    let forged = AcceptedStatement { statement: statement.clone(), signature: BASE64.encode([0; 64]) };
    agent.show(&rig, forged).await;
    assert_eq!(agent.desired(&rig).await.statement.epoch, state.statement.epoch, "a forged one proves nothing");

    let signature = BASE64.encode(rig.identity.sign(&statement.message()));
    agent.show(&rig, AcceptedStatement { statement: statement.clone(), signature }).await;
    let (after, _) = agent.wait_entry(&rig, &uid, |entry| applied(entry).is_some_and(|d| !d.prune)).await;
    assert_eq!(after.statement.epoch, state.statement.epoch + 1);
    let cluster =
        rig.wait_for("Cluster", ADMIN_NAMESPACE, "east", |c| condition(c, "Restored").starts_with("True")).await;
    let epoch = after.statement.epoch.to_string();
    assert!(message(&cluster, "Restored").contains(&format!("{CONFIRM_RESTORED}={epoch}")));

    rig.delete("ServiceDeployment", ADMIN_NAMESPACE, "web").await;
    agent.wait_entry(&rig, &uid, |entry| matches!(entry.action, Action::Hold { .. })).await;
    rig.edit("Cluster", ADMIN_NAMESPACE, "east", |cluster| {
        cluster["metadata"]["annotations"][CONFIRM_RESTORED] = epoch.clone().into();
    })
    .await;
    agent.wait_entry(&rig, &uid, removed).await;
    rig.wait_for("Cluster", ADMIN_NAMESPACE, "east", |c| condition(c, "Restored") == "absent").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restore_that_is_confirmed_before_the_agent_is_heard_leaves_no_service_waiting() {
    let (server, _git) = repository().await;
    let rig = Rig::start().await;
    rig.cluster("east").await;
    rig.repository(ADMIN_NAMESPACE, "infra", &server.url("infra.git")).await;
    let web = rig.service(ADMIN_NAMESPACE, "web", "east", "apps/web").await;
    let mut agent = Agent::join(&rig, "east").await;
    let (_, entry) = agent.wait_entry(&rig, &web, |entry| applied(entry).is_some()).await;
    agent.say(&rig, &web, said(&entry, Outcome::Applied, &[("web", Health::Current)])).await;
    let is_ready = |service: &serde_json::Value| condition(service, "Ready").starts_with("True");
    rig.wait_for("ServiceDeployment", ADMIN_NAMESPACE, "web", is_ready).await;
    let backup = rig.path().join("backup");
    farwater_store::archive::backup(rig.store.location(), &backup, false).await.unwrap();

    let rig = rig.restart_after(async |location, key| {
        let allow = farwater_store::archive::Allow { replace: true, damage: false };
        farwater_store::archive::restore(&backup, location, key, allow).await.unwrap();
    });
    let rig = rig.await;
    rig.wait_loaded().await;
    // What it was last asked for is not what it shall do until then.
    rig.wait_for("ServiceDeployment", ADMIN_NAMESPACE, "web", |service| !is_ready(service)).await;
    let cluster =
        rig.wait_for("Cluster", ADMIN_NAMESPACE, "east", |c| condition(c, "Restored").starts_with("True")).await;
    let epoch = message(&cluster, "Restored").rsplit('=').next().unwrap_or_default().to_owned();
    rig.edit("Cluster", ADMIN_NAMESPACE, "east", |cluster| {
        cluster["metadata"]["annotations"][CONFIRM_RESTORED] = epoch.clone().into();
    })
    .await;
    // It is again, so the agent has nothing to say.
    rig.wait_for("ServiceDeployment", ADMIN_NAMESPACE, "web", is_ready).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restored_backup_is_newer_than_what_agents_know_and_deletes_nothing_until_confirmed() {
    let (server, _git) = repository().await;
    let rig = Rig::start().await;
    rig.cluster("east").await;
    rig.repository(ADMIN_NAMESPACE, "infra", &server.url("infra.git")).await;
    let web = rig.service(ADMIN_NAMESPACE, "web", "east", "apps/web").await;
    let agent = Agent::join(&rig, "east").await;
    agent.wait_entry(&rig, &web, |entry| applied(entry).is_some()).await;
    let backup = rig.path().join("backup");
    farwater_store::archive::backup(rig.store.location(), &backup, false).await.unwrap();
    // What the backup forgets: a service that the agent has applied since.
    let later = rig.service(ADMIN_NAMESPACE, "later", "east", "apps/web").await;
    let (before, _) = agent.wait_entry(&rig, &later, |entry| applied(entry).is_some()).await;

    let rig = rig.restart_after(async |location, key| {
        farwater_store::archive::restore(
            &backup,
            location,
            key,
            farwater_store::archive::Allow { replace: true, damage: false },
        )
        .await
        .unwrap();
    });
    let rig = rig.await;
    rig.wait_loaded().await;
    let (after, _) = agent.wait_entry(&rig, &web, |entry| applied(entry).is_some_and(|d| !d.prune)).await;
    assert!(after.statement.epoch > before.statement.epoch, "the agent takes it for news");
    // It isn't listed, and what is not listed as removed is kept.
    assert!(after.entries.iter().all(|entry| entry.service.uid != later));
    let epoch = after.statement.epoch.to_string();
    let cluster =
        rig.wait_for("Cluster", ADMIN_NAMESPACE, "east", |c| condition(c, "Restored").starts_with("True")).await;
    assert!(message(&cluster, "Restored").contains(&format!("{CONFIRM_RESTORED}={epoch}")));
    rig.delete("ServiceDeployment", ADMIN_NAMESPACE, "web").await;
    agent.wait_entry(&rig, &web, |entry| matches!(entry.action, Action::Hold { .. })).await;
    rig.edit("Cluster", ADMIN_NAMESPACE, "east", |cluster| {
        cluster["metadata"]["annotations"][CONFIRM_RESTORED] = epoch.clone().into();
    })
    .await;
    agent.wait_entry(&rig, &web, removed).await;
}

/// What the backup has assigned may lack what was made since.
#[tokio::test(flavor = "multi_thread")]
async fn after_a_restore_nothing_is_pruned_by_what_the_backup_had_assigned() {
    let (server, _git) = repository().await;
    let rig = Rig::start().await;
    rig.cluster("east").await;
    rig.repository(ADMIN_NAMESPACE, "infra", &server.url("infra.git")).await;
    let uid = rig.service(ADMIN_NAMESPACE, "web", "east", "apps/web").await;
    let agent = Agent::join(&rig, "east").await;
    let held = |entry: &Entry| applied(entry).is_some_and(|deployment| deployment.hold_prune.is_some());
    agent.wait_entry(&rig, &uid, |entry| applied(entry).is_some() && !held(entry)).await;
    let point = async |path: &str| {
        rig.edit("ServiceDeployment", ADMIN_NAMESPACE, "web", |service| service["spec"]["path"] = path.into()).await;
    };
    point("nowhere").await;
    rig.wait_for("ServiceDeployment", ADMIN_NAMESPACE, "web", |s| condition(s, "Stalled") == "True/BundleFailed").await;
    let distrusted = rig.store.transact(|tx| Box::pin(async move { distrust_sources(tx, None).await }));
    distrusted.await.unwrap();

    // The source has been asked, and what it has can't be assigned.
    rig.ask(ADMIN_NAMESPACE, "infra").await;
    point("nowhere-either").await;
    let (_, entry) = agent.wait_entry(&rig, &uid, held).await;
    assert!(applied(&entry).unwrap().hold_prune.as_ref().unwrap().contains("is not assigned yet"));
    rig.wait_idle().await;
    assert!(held(&agent.desired(&rig).await.entries[0]));
    point("apps/web").await;
    agent.wait_entry(&rig, &uid, |entry| applied(entry).is_some() && !held(entry)).await;
}
