//! A start after an orderly stop goes on where that was; any other start looks at everything.

use farwater_api::{ADMIN_NAMESPACE, Cluster};
use farwater_hub::resources::{self, Name};
use farwater_store::{
    Location, OpenOptions, Store,
    delivery::{assignments_named, delete_assignment},
};
use serde_json::json;

use crate::rig::Rig;

/// Assigned, as far as it goes without a source.
async fn services(rig: &Rig, names: &[&str]) {
    rig.cluster("east").await;
    for name in names {
        rig.service(ADMIN_NAMESPACE, name, "east", "").await;
        rig.wait_for("ServiceDeployment", ADMIN_NAMESPACE, name, |s| {
            s["status"]["conditions"].is_array()
        })
        .await;
    }
    rig.wait_idle().await;
}

/// What only looking at the service mends.
async fn lose_assignment(location: &Location, key: &[u8; 32], service: &str) {
    let store = Store::open(OpenOptions::new(location.clone(), *key)).await.unwrap();
    let row = assignments_named(&mut store.tables().await.unwrap(), ADMIN_NAMESPACE, service)
        .await
        .unwrap()
        .remove(0);
    store
        .transact(move |tx| Box::pin(async move { delete_assignment(tx, &row.service_uid).await }))
        .await
        .unwrap();
    store.close().await;
}

async fn is_assigned(rig: &Rig, service: &str) -> bool {
    !assignments_named(&mut rig.store.tables().await.unwrap(), ADMIN_NAMESPACE, service)
        .await
        .unwrap()
        .is_empty()
}

async fn wait_assigned(rig: &Rig, service: &str) {
    rig.wait_until(&format!("{service} is assigned"), async || {
        is_assigned(rig, service).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_orderly_restart_looks_at_nothing_again() {
    let rig = Rig::start().await;
    services(&rig, &["old"]).await;
    let rig = rig
        .restart_after(async |location, key| lose_assignment(location, key, "old").await)
        .await;
    // It would have come first.
    rig.service(ADMIN_NAMESPACE, "new", "east", "").await;
    wait_assigned(&rig, "new").await;
    assert!(!is_assigned(&rig, "old").await);

    // What the first one found was for it alone.
    let rig = rig.crash_before(async |_, _| {}).await;
    wait_assigned(&rig, "old").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_start_looks_at_is_looked_at_once() {
    let rig = Rig::start().await;
    rig.cluster("east").await;
    rig.wait_for("Cluster", ADMIN_NAMESPACE, "east", |cluster| {
        cluster["status"]["conditions"].is_array()
    })
    .await;
    rig.kill_controllers().await;
    // Nothing is done for them yet: the first look at each changes it.
    for n in 0..20 {
        rig.service(ADMIN_NAMESPACE, &format!("service-{n}"), "east", "").await;
    }
    let rig = rig.crash_before(async |_, _| {}).await;
    for n in 0..20 {
        wait_assigned(&rig, &format!("service-{n}")).await;
    }
    // What a cluster says of itself concerns none of its services, the first time neither.
    let cluster = rig.get("Cluster", ADMIN_NAMESPACE, "east").await.unwrap();
    let status = json!({"kubernetesVersion": "v1.99.0"});
    let (name, uid) = (
        Name::new(ADMIN_NAMESPACE, "east"),
        cluster["metadata"]["uid"].as_str().unwrap(),
    );
    resources::write_status::<Cluster>(&rig.store, &name, uid, &status)
        .await
        .unwrap();
    rig.wait_idle().await;
    let counts = rig.replica.queues.services.counts();
    assert_eq!(counts.done, 20, "{counts:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_left_to_do_is_done_after_the_restart() {
    let rig = Rig::start().await;
    services(&rig, &["queued", "idle"]).await;
    rig.stop_controllers().await;
    rig.replica.queues.services.add(Name::new(ADMIN_NAMESPACE, "queued"));
    // Nobody routes this change.
    rig.service(ADMIN_NAMESPACE, "unrouted", "east", "").await;
    let rig = rig.restart_after(async |location, key| {
        lose_assignment(location, key, "queued").await;
        lose_assignment(location, key, "idle").await;
    });
    let rig = rig.await;
    wait_assigned(&rig, "queued").await;
    wait_assigned(&rig, "unrouted").await;
    assert!(!is_assigned(&rig, "idle").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restored_database_is_looked_at_as_a_whole() {
    let rig = Rig::start().await;
    services(&rig, &["web"]).await;
    let file = rig.path().join("backup");
    let rig = rig.restart_after(async |location, key| {
        lose_assignment(location, key, "web").await;
        // Of a stopped hub: with what it left.
        farwater_store::archive::backup(location, &file, false).await.unwrap();
        farwater_store::archive::restore(
            &file,
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
    wait_assigned(&rig.await, "web").await;
}
