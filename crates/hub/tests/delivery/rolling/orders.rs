//! What people order of a rollout: that it begins, or goes on in spite of what holds it.

use farwater_api::ADMIN_NAMESPACE;
use serde_json::{Value, json};

use super::{Fleet, SET};

impl Fleet {
    /// Of the rollout that is under way.
    async fn promote(&self, past: &str) {
        let number = self.set().await["status"]["rollout"]["number"].clone();
        let order = json!({"number": number, "promote": past, "reason": "looked at it"});
        self.rig
            .edit("ServiceSet", ADMIN_NAMESPACE, SET, |set| {
                set["spec"]["rollout"]["order"] = order.clone()
            })
            .await;
    }

    async fn until_phase(&mut self, phase: &str) -> Value {
        self.until(&format!("it is {phase}"), |_, set| {
            set["status"]["rollout"]["phase"] == phase
        })
        .await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_on_hold_begins_when_somebody_says_so() {
    let mut fleet = Fleet::start(&["a", "b"], json!({})).await;
    let first = fleet.until_complete().await;
    fleet
        .rig
        .edit("ServiceSet", ADMIN_NAMESPACE, SET, |set| {
            set["spec"]["rollout"]["strategy"] = "OnHold".into()
        })
        .await;
    for text in ["two", "three"] {
        let before = fleet.course.len();
        fleet.commit(text).await;
        fleet.until_phase("OnHold").await;
        fleet.go_on().await;
        assert_eq!(fleet.course.len(), before, "{:?}", fleet.course);
        fleet.promote("Soak").await;
        fleet
            .until("the canary has it", |fleet, _| fleet.course.len() > before)
            .await;
        assert_eq!(fleet.reached(before), ["a"].into());
        assert_ne!(fleet.until_complete_with(|bundle| bundle != first).await, first);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_does_not_get_done_is_waited_for_until_somebody_says_otherwise() {
    let mut fleet = Fleet::start(
        &["a", "b", "c"],
        json!({"progressDeadline": "1h", "maxUnavailable": "100%"}),
    )
    .await;
    fleet.until_complete().await;
    // Its agent looks no more, and is not silent yet.
    let stuck = fleet.agents.remove("a").unwrap();
    let before = fleet.course.len();
    fleet.commit("two").await;
    fleet.until_phase("Progressing").await;
    fleet.go_on().await;
    assert_eq!(fleet.course.len(), before, "{:?}", fleet.course);
    fleet.promote("Step").await;
    fleet
        .until("the others have it", |fleet, _| {
            fleet.reached(before) == ["b", "c"].into()
        })
        .await;
    fleet.agents.insert("a", stuck);
    fleet.until_complete().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_failed_stops_the_others_until_somebody_says_otherwise() {
    let mut fleet = Fleet::start(&["a", "b", "c"], json!({"maxUnavailable": "100%"})).await;
    let first = fleet.until_complete().await;
    fleet.good = Some([first].into());
    let before = fleet.course.len();
    fleet.commit("two").await;
    fleet.until_phase("Halted").await;
    fleet.go_on().await;
    assert_eq!(fleet.reached(before), ["a"].into());
    // It is bad on this one cluster alone.
    let bad = fleet.bundles()["a"];
    fleet.good = Some([first, bad].into());
    fleet.promote("Halt").await;
    fleet
        .until("the others have it", |fleet, _| {
            fleet.reached(before) == ["a", "b", "c"].into()
        })
        .await;
    assert!(fleet.bundles().into_values().all(|bundle| bundle == bad));
}
