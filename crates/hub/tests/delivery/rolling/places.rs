//! Where clusters are, and whether they are there at all.

use farwater_api::{ADMIN_NAMESPACE, service_set::ProgressCounts};
use serde_json::{Value, json};

use super::{Fleet, SET};
use crate::rig::condition;

#[tokio::test(flavor = "multi_thread")]
async fn a_change_goes_through_one_region_before_it_comes_to_another() {
    let policy = json!({"partitionBy": "region", "canary": {"count": 0}, "maxUnavailable": "100%"});
    let mut fleet = Fleet::start(&["a", "b", "c", "d"], policy).await;
    fleet.until_complete().await;
    for text in ["two", "three"] {
        let before = fleet.course.len();
        fleet.commit(text).await;
        fleet
            .until("all have it", |fleet, _| fleet.course.len() == before + 4)
            .await;
        fleet.until_complete().await;
        let (east, west) = fleet.course[before..].split_at(2);
        let region = |(name, _): &(&str, _)| *name < "c";
        assert!(
            region(&east[0]) == region(&east[1]) && region(&west[0]) == region(&west[1]),
            "{:?}",
            fleet.course
        );
    }
    // Where two may be under way, the other does not wait for the first one's soak.
    fleet
        .rig
        .edit("ServiceSet", ADMIN_NAMESPACE, SET, |set| {
            set["spec"]["rollout"]["maxPartitions"] = 2.into();
            set["spec"]["rollout"]["soak"] = "1h".into();
        })
        .await;
    let before = fleet.course.len();
    fleet.commit("four").await;
    fleet
        .until("all have it", |fleet, _| fleet.course.len() == before + 4)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_cluster_is_deferred_and_no_failure_and_catches_up() {
    let mut fleet = Fleet::start(&["a", "b", "c"], json!({"progressDeadline": "30s"})).await;
    let first = fleet.until_complete().await;
    // It counts as silent after nine seconds.
    fleet
        .rig
        .edit("Cluster", ADMIN_NAMESPACE, "c", |cluster| {
            cluster["spec"]["pollInterval"] = "1s".into()
        })
        .await;
    let away = fleet.agents.remove("c").unwrap();
    let is_silent = |cluster: &Value| condition(cluster, "Ready") == "False/AgentSilent";
    fleet.rig.pass(10);
    fleet.rig.wait_for("Cluster", ADMIN_NAMESPACE, "c", is_silent).await;
    fleet.commit("two").await;
    let is_over = |fleet: &Fleet, set: &Value| {
        let status = &set["status"]["rollout"];
        status["phase"] == "Complete" && status["updated"] == 2 && fleet.bundles()["a"] != first
    };
    let over = fleet.until("the others have it", is_over).await;
    assert_eq!(over["status"]["rollout"]["deferred"], 1, "{over:#}");
    assert!(over["status"]["rollout"]["haltedBy"].is_null(), "{over:#}");
    let counts = fleet
        .survey()
        .await
        .stages
        .into_iter()
        .fold((0, 0), |(deferred, failed), stage| {
            let ProgressCounts {
                deferred: some,
                failed: more,
                ..
            } = stage.counts;
            (deferred + some, failed + more)
        });
    assert_eq!(counts, (1, 0));
    assert_eq!(fleet.bundles()["c"], first);
    fleet.agents.insert("c", away);
    let second = fleet.until_complete().await;
    assert_ne!(second, first);
}
