//! Deleted services and clusters.

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use farwater_api::{
    ADMIN_NAMESPACE, CONFIRM_RESTORED, Digest, FREEZE_PRUNES,
    objects::{Health, Outcome},
    protocol::{AcceptedStatement, Action, Entry, Statement, Verbatim},
    service_deployment::{DeletionPolicy, HeldPrune},
};
use farwater_store::{Kind, ListQuery, delivery::distrust_sources};
use farwater_testkit::wire;
use serde_json::{Value, json};

use crate::{
    agent::{Agent, said},
    delivering::applied,
    rig::{Rig, condition, message, repository},
};

fn removed(entry: &Entry) -> bool {
    matches!(
        entry.action,
        Action::Remove {
            policy: DeletionPolicy::Delete,
            ..
        }
    )
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
        rig.wait_for("ServiceDeployment", ADMIN_NAMESPACE, "web", |s| {
            s["metadata"]["finalizers"].is_array()
        })
        .await;
        rig.wait_idle().await;
        rig.edit("ServiceDeployment", ADMIN_NAMESPACE, "web", |service| {
            service["metadata"].as_object_mut().unwrap().remove("finalizers");
        })
        .await;
    }
    rig.wait_for("ServiceDeployment", ADMIN_NAMESPACE, "web", |s| {
        s["metadata"]["finalizers"].is_array()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_goes_at_once_where_nobody_can_confirm() {
    let rig = Rig::start().await;
    rig.cluster("east").await;
    rig.service(ADMIN_NAMESPACE, "never-joined", "east", "").await;
    rig.service(ADMIN_NAMESPACE, "no-cluster", "nowhere", "").await;
    for name in ["never-joined", "no-cluster"] {
        rig.wait_for("ServiceDeployment", ADMIN_NAMESPACE, name, |s| {
            s["metadata"]["finalizers"].is_array()
        })
        .await;
        rig.delete("ServiceDeployment", ADMIN_NAMESPACE, name).await;
        rig.wait_gone("ServiceDeployment", ADMIN_NAMESPACE, name).await;
    }
}

/// What Events with this reason say.
async fn told(rig: &Rig, reason: &str) -> Vec<String> {
    let page = rig.store.list(&ListQuery::all(Kind::new("events", ""))).await.unwrap();
    let events = page.items.iter().filter(|event| event.object["reason"] == reason);
    events
        .map(|event| event.object["message"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_removed_service_left_behind_is_named_when_it_is_gone() {
    let (server, _git) = repository().await;
    let rig = Rig::start().await;
    rig.cluster("east").await;
    rig.repository(ADMIN_NAMESPACE, "infra", &server.url("infra.git")).await;
    let uid = rig.service(ADMIN_NAMESPACE, "web", "east", "apps/web").await;
    let mut agent = Agent::join(&rig, "east").await;
    agent.wait_entry(&rig, &uid, |entry| applied(entry).is_some()).await;
    rig.delete("ServiceDeployment", ADMIN_NAMESPACE, "web").await;
    let (_, entry) = agent.wait_entry(&rig, &uid, removed).await;
    agent
        .say(&rig, &uid, said(&entry, Outcome::Removed, &[("kept", Health::Unknown)]))
        .await;
    rig.wait_gone("ServiceDeployment", ADMIN_NAMESPACE, "web").await;
    let told = told(&rig, "Orphaned").await;
    assert_eq!(
        told,
        ["1 object stays in cluster east without a service: ConfigMap web/kept"]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_agent_holds_up_no_deletion_that_leaves_the_objects() {
    let (server, _git) = repository().await;
    let rig = Rig::start().await;
    rig.cluster("east").await;
    // It counts as silent after nine seconds.
    rig.edit("Cluster", ADMIN_NAMESPACE, "east", |cluster| {
        cluster["spec"]["pollInterval"] = "1s".into()
    })
    .await;
    rig.repository(ADMIN_NAMESPACE, "infra", &server.url("infra.git")).await;
    let web = rig.service(ADMIN_NAMESPACE, "web", "east", "apps/web").await;
    let db = rig.service(ADMIN_NAMESPACE, "db", "east", "apps/db").await;
    let orphan = async |name: &str| {
        let orphan = |service: &mut Value| service["spec"]["deletionPolicy"] = "Orphan".into();
        rig.edit("ServiceDeployment", ADMIN_NAMESPACE, name, orphan).await;
    };
    orphan("db").await;
    let mut agent = Agent::join(&rig, "east").await;
    for uid in [&web, &db] {
        let (_, entry) = agent.wait_entry(&rig, uid, |entry| applied(entry).is_some()).await;
        agent
            .say(&rig, uid, said(&entry, Outcome::Applied, &[("one", Health::Current)]))
            .await;
    }
    // Deleted while it is still heard, and looked at again when it is not.
    rig.delete("ServiceDeployment", ADMIN_NAMESPACE, "db").await;
    rig.wait_gone("ServiceDeployment", ADMIN_NAMESPACE, "db").await;

    rig.delete("ServiceDeployment", ADMIN_NAMESPACE, "web").await;
    let is_stuck = |service: &Value| message(service, "Ready").contains("the agent is silent");
    let stuck = rig
        .wait_for("ServiceDeployment", ADMIN_NAMESPACE, "web", is_stuck)
        .await;
    let exit = "set spec.deletionPolicy to Orphan or delete the Cluster";
    assert!(message(&stuck, "Ready").contains(exit), "{}", message(&stuck, "Ready"));
    orphan("web").await;
    rig.wait_gone("ServiceDeployment", ADMIN_NAMESPACE, "web").await;
    let told = told(&rig, "Orphaned").await;
    assert_eq!(told.len(), 2);
    assert!(
        told.iter()
            .all(|one| one.ends_with("by its last report 1 object stays: ConfigMap web/one")),
        "{told:?}"
    );

    // The agent is back, also after a restart: its state asks it to release its objects, and nothing once it confirmed.
    let rig = rig.restart().await;
    rig.wait_loaded().await;
    let orphaned = |entry: &Entry| {
        matches!(
            entry.action,
            Action::Remove {
                policy: DeletionPolicy::Orphan,
                ..
            }
        )
    };
    for uid in [&web, &db] {
        let (_, entry) = agent.wait_entry(&rig, uid, orphaned).await;
        agent.say(&rig, uid, said(&entry, Outcome::Applying, &[])).await;
        assert!(
            agent
                .desired(&rig)
                .await
                .entries
                .iter()
                .any(|entry| entry.service.uid == *uid)
        );
        agent.say(&rig, uid, said(&entry, Outcome::Removed, &[])).await;
    }
    agent.wait_empty(&rig).await;
}

/// The agent says that a prune of this service is held.
async fn hold(rig: &Rig, agent: &mut Agent, uid: &str, until_applied: bool) {
    let (_, entry) = agent.wait_entry(rig, uid, |entry| applied(entry).is_some()).await;
    let mut report = said(&entry, Outcome::Applied, &[]);
    report.held_prune = Some(HeldPrune {
        digest: Digest::of(uid),
        reason: "6 of 9 objects would be deleted".to_owned(),
        count: 6,
        objects: vec![],
        contents: vec![],
        until_applied,
        earlier: Vec::new(),
    });
    agent.say(rig, uid, report).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_new_holds_stop_all_deletions_of_the_fleet_until_somebody_has_looked() {
    let (server, _git) = repository().await;
    let rig = Rig::start().await;
    rig.create("Namespace", "", ADMIN_NAMESPACE, json!({})).await;
    for cluster in ["east", "west"] {
        rig.cluster(cluster).await;
    }
    rig.repository(ADMIN_NAMESPACE, "infra", &server.url("infra.git")).await;
    let names = ["a", "b", "c", "d", "e", "f"];
    let mut uids = Vec::new();
    for name in names {
        uids.push(rig.service(ADMIN_NAMESPACE, name, "east", "apps/web").await);
    }
    let far = rig.service(ADMIN_NAMESPACE, "far", "west", "apps/web").await;
    let (mut agent, other) = (Agent::join(&rig, "east").await, Agent::join(&rig, "west").await);
    let held = |reason: &'static str| move |service: &Value| condition(service, "PruneHeld") == reason;
    let frozen = |namespace: &Value| namespace["metadata"]["annotations"][FREEZE_PRUNES].is_string();

    // Four are no flood, and what passes by itself doesn't count.
    for (n, name) in [(0, "a"), (1, "b"), (2, "c"), (3, "d"), (5, "f")] {
        hold(&rig, &mut agent, &uids[n], n == 5).await;
        rig.wait_for("ServiceDeployment", ADMIN_NAMESPACE, name, held("True/ApprovalNeeded"))
            .await;
    }
    let rig = rig.restart().await;
    rig.wait_loaded().await;
    assert!(!frozen(&rig.get("Namespace", "", ADMIN_NAMESPACE).await.unwrap()));

    // The fifth one is: also for those that hold nothing, and for approved ones.
    hold(&rig, &mut agent, &uids[4], false).await;
    rig.wait_for("Namespace", "", ADMIN_NAMESPACE, frozen).await;
    let stopped = |entry: &Entry| {
        let reason = applied(entry).and_then(|deployment| deployment.hold_prune.as_deref());
        reason.is_some_and(|reason| reason.contains("all deletions are paused"))
    };
    other.wait_entry(&rig, &far, stopped).await;
    assert_eq!(told(&rig, "PrunesFrozen").await.len(), 1);
    agent.wait_entry(&rig, &uids[0], stopped).await;
    hold(&rig, &mut agent, &uids[0], false).await;
    rig.wait_for("ServiceDeployment", ADMIN_NAMESPACE, "a", held("True/FleetFrozen"))
        .await;
    rig.delete("ServiceDeployment", ADMIN_NAMESPACE, "far").await;
    other
        .wait_entry(&rig, &far, |entry| matches!(entry.action, Action::Hold { .. }))
        .await;

    // It outlives a restart, and ends when somebody takes it off; those that led to it don't do so again.
    let rig = rig.restart().await;
    rig.wait_loaded().await;
    other
        .wait_entry(&rig, &far, |entry| matches!(entry.action, Action::Hold { .. }))
        .await;
    rig.edit("Namespace", "", ADMIN_NAMESPACE, |namespace| {
        namespace["metadata"]["annotations"]
            .as_object_mut()
            .unwrap()
            .remove(FREEZE_PRUNES);
    })
    .await;
    other.wait_entry(&rig, &far, removed).await;
    for (uid, name) in uids.iter().zip(names) {
        agent
            .wait_entry(&rig, uid, |entry| {
                applied(entry).is_some_and(|deployment| deployment.prune)
            })
            .await;
        // That one is new, and alone.
        hold(&rig, &mut agent, uid, name == "f").await;
        // A hold is counted before the status tells of it.
        rig.wait_for("ServiceDeployment", ADMIN_NAMESPACE, name, held("True/ApprovalNeeded"))
            .await;
    }
    assert!(!frozen(&rig.get("Namespace", "", ADMIN_NAMESPACE).await.unwrap()));
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
    rig.wait_for("ServiceDeployment", ADMIN_NAMESPACE, "web", |s| {
        condition(s, "Stalled") == "True/ClusterNotFound"
    })
    .await;
    assert_eq!(agent.poll(&rig, None).await.refusal(), "401 IdentityUnknown");
    // Made again under its name it is another cluster: it may be joined, and has the service anew.
    rig.cluster("east").await;
    rig.wait_for("Cluster", ADMIN_NAMESPACE, "east", |c| {
        c["status"]["conditions"].is_array()
    })
    .await;
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
    let forged = AcceptedStatement {
        statement: statement.clone(),
        signature: BASE64.encode([0; 64]),
    };
    agent.show(&rig, forged).await;
    assert_eq!(
        agent.desired(&rig).await.statement.epoch,
        state.statement.epoch,
        "a forged one proves nothing"
    );

    let signature = BASE64.encode(rig.identity.sign(&statement.message()));
    agent
        .show(
            &rig,
            AcceptedStatement {
                statement: statement.clone(),
                signature,
            },
        )
        .await;
    let (after, _) = agent
        .wait_entry(&rig, &uid, |entry| applied(entry).is_some_and(|d| !d.prune))
        .await;
    assert_eq!(after.statement.epoch, state.statement.epoch + 1);
    let cluster = rig
        .wait_for("Cluster", ADMIN_NAMESPACE, "east", |c| {
            condition(c, "Restored").starts_with("True")
        })
        .await;
    let epoch = after.statement.epoch.to_string();
    assert!(message(&cluster, "Restored").contains(&format!("{CONFIRM_RESTORED}={epoch}")));

    rig.delete("ServiceDeployment", ADMIN_NAMESPACE, "web").await;
    agent
        .wait_entry(&rig, &uid, |entry| matches!(entry.action, Action::Hold { .. }))
        .await;
    rig.edit("Cluster", ADMIN_NAMESPACE, "east", |cluster| {
        cluster["metadata"]["annotations"][CONFIRM_RESTORED] = epoch.clone().into();
    })
    .await;
    agent.wait_entry(&rig, &uid, removed).await;
    rig.wait_for("Cluster", ADMIN_NAMESPACE, "east", |c| {
        condition(c, "Restored") == "absent"
    })
    .await;
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
    agent
        .say(&rig, &web, said(&entry, Outcome::Applied, &[("web", Health::Current)]))
        .await;
    let is_ready = |service: &serde_json::Value| condition(service, "Ready").starts_with("True");
    rig.wait_for("ServiceDeployment", ADMIN_NAMESPACE, "web", is_ready)
        .await;
    let backup = rig.path().join("backup");
    farwater_store::archive::backup(rig.store.location(), &backup, false)
        .await
        .unwrap();

    let rig = rig.restart_after(async |location, key| {
        let allow = farwater_store::archive::Allow {
            replace: true,
            damage: false,
        };
        farwater_store::archive::restore(&backup, location, key, allow)
            .await
            .unwrap();
    });
    let rig = rig.await;
    rig.wait_loaded().await;
    // What it was last asked for is not what it shall do until then.
    rig.wait_for("ServiceDeployment", ADMIN_NAMESPACE, "web", |service| {
        !is_ready(service)
    })
    .await;
    let cluster = rig
        .wait_for("Cluster", ADMIN_NAMESPACE, "east", |c| {
            condition(c, "Restored").starts_with("True")
        })
        .await;
    let epoch = message(&cluster, "Restored")
        .rsplit('=')
        .next()
        .unwrap_or_default()
        .to_owned();
    rig.edit("Cluster", ADMIN_NAMESPACE, "east", |cluster| {
        cluster["metadata"]["annotations"][CONFIRM_RESTORED] = epoch.clone().into();
    })
    .await;
    // It is again, so the agent has nothing to say.
    rig.wait_for("ServiceDeployment", ADMIN_NAMESPACE, "web", is_ready)
        .await;
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
    farwater_store::archive::backup(rig.store.location(), &backup, false)
        .await
        .unwrap();
    // What the backup forgets: a service that the agent has applied since.
    let later = rig.service(ADMIN_NAMESPACE, "later", "east", "apps/web").await;
    let (before, _) = agent.wait_entry(&rig, &later, |entry| applied(entry).is_some()).await;

    let rig = rig.restart_after(async |location, key| {
        farwater_store::archive::restore(
            &backup,
            location,
            key,
            farwater_store::archive::Allow {
                replace: true,
                damage: false,
            },
        )
        .await
        .unwrap();
    });
    let rig = rig.await;
    rig.wait_loaded().await;
    let (after, _) = agent
        .wait_entry(&rig, &web, |entry| applied(entry).is_some_and(|d| !d.prune))
        .await;
    assert!(
        after.statement.epoch > before.statement.epoch,
        "the agent takes it for news"
    );
    // It isn't listed, and what is not listed as removed is kept.
    assert!(after.entries.iter().all(|entry| entry.service.uid != later));
    let epoch = after.statement.epoch.to_string();
    let cluster = rig
        .wait_for("Cluster", ADMIN_NAMESPACE, "east", |c| {
            condition(c, "Restored").starts_with("True")
        })
        .await;
    assert!(message(&cluster, "Restored").contains(&format!("{CONFIRM_RESTORED}={epoch}")));
    rig.delete("ServiceDeployment", ADMIN_NAMESPACE, "web").await;
    agent
        .wait_entry(&rig, &web, |entry| matches!(entry.action, Action::Hold { .. }))
        .await;
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
    agent
        .wait_entry(&rig, &uid, |entry| applied(entry).is_some() && !held(entry))
        .await;
    let point = async |path: &str| {
        rig.edit("ServiceDeployment", ADMIN_NAMESPACE, "web", |service| {
            service["spec"]["path"] = path.into()
        })
        .await;
    };
    point("nowhere").await;
    rig.wait_for("ServiceDeployment", ADMIN_NAMESPACE, "web", |s| {
        condition(s, "Stalled") == "True/BundleFailed"
    })
    .await;
    let distrusted = rig
        .store
        .transact(|tx| Box::pin(async move { distrust_sources(tx, None).await }));
    distrusted.await.unwrap();

    // The source has been asked, and what it has can't be assigned.
    rig.ask(ADMIN_NAMESPACE, "infra").await;
    point("nowhere-either").await;
    let (_, entry) = agent.wait_entry(&rig, &uid, held).await;
    assert!(
        applied(&entry)
            .unwrap()
            .hold_prune
            .as_ref()
            .unwrap()
            .contains("is not assigned yet")
    );
    rig.wait_idle().await;
    assert!(held(&agent.desired(&rig).await.entries[0]));
    point("apps/web").await;
    agent
        .wait_entry(&rig, &uid, |entry| applied(entry).is_some() && !held(entry))
        .await;
}
