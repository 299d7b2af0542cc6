//! Agents that are changed from the hub, as far as the hub goes; `tests/e2e/tests/node.rs` has a real one that changes itself.

use farwater_api::ADMIN_NAMESPACE;
use farwater_store::delivery::{AgentUpdateRow, save_agent_update};
use serde_json::json;

use crate::{
    agent::Agent,
    rig::{Rig, condition, message},
};

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_row_stops_the_policy_that_selects_its_cluster_and_no_other() {
    let rig = Rig::start().await;
    let mut uids = Vec::new();
    for name in ["east", "west"] {
        uids.push(rig.cluster(name).await);
        rig.edit("Cluster", ADMIN_NAMESPACE, name, |cluster| cluster["metadata"]["labels"]["place"] = name.into())
            .await;
    }
    let _east = Agent::join(&rig, "east").await;
    let west = Agent::join(&rig, "west").await;
    let damaged =
        AgentUpdateRow { cluster_uid: uids[0].clone(), settings: "{".to_owned(), ..AgentUpdateRow::default() };
    rig.store.transact(move |tx| Box::pin(async move { save_agent_update(tx, &damaged).await })).await.unwrap();

    for name in ["east", "west"] {
        let selector = json!({"matchLabels": {"place": name}});
        rig.create("AgentPolicy", "", name, json!({"spec": {"clusterSelector": selector, "log": "debug"}})).await;
    }
    let stalled = |policy: &serde_json::Value| condition(policy, "Stalled") == "True/RowDamaged";
    let policy = rig.wait_for("AgentPolicy", "", "east", stalled).await;
    assert!(message(&policy, "Stalled").contains(&uids[0]), "{policy}");
    assert_eq!((&policy["status"]["clusters"], &policy["status"]["updatingClusters"]), (&json!(1), &json!(0)));
    west.wait_polled(&rig).await;
    rig.wait_until("the other policy goes on", async || {
        let settings = west.desired(&rig).await.agent;
        settings.is_some_and(|settings| settings.log.as_deref() == Some("debug"))
    })
    .await;
}
