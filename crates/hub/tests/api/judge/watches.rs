//! How watches begin and what they send.

use crate::support::Served;

use super::court::*;

#[tokio::test(flavor = "multi_thread")]
async fn watches_begin_and_go_on_as_kubernetes_has_them() {
    let served = Served::start().await;
    let mut court = Court::sit(&served).await;
    court.same("POST", GRANTS, JSON, GRANT, Equal::All).await;
    for query in [
        "watch=1&timeoutSeconds=1&labelSelector=of=NS",
        "watch=1&timeoutSeconds=1&resourceVersion=0&labelSelector=of=none",
        "watch=1&timeoutSeconds=1&fieldSelector=metadata.name=NS-a",
        "watch=1&timeoutSeconds=1&labelSelector=of=NS&sendInitialEvents=true&resourceVersionMatch=NotOlderThan",
    ] {
        court.same_read(&format!("{GRANTS}?{query}"), JSON).await;
    }
    let bookmarks = "watch=1&timeoutSeconds=1&labelSelector=of=NS&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    for side in [&court.real, &court.ours] {
        let Answer { code, value, .. } = side.ask(&Step::get(&format!("{GRANTS}?{bookmarks}")).accept(JSON)).await;
        let events = value.as_array().unwrap();
        assert_eq!(
            (code, events[0]["type"].as_str(), events[1]["type"].as_str()),
            (200, Some("ADDED"), Some("BOOKMARK"))
        );
        assert_eq!(events[1]["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
        assert_eq!(events[1]["object"]["kind"], "ClusterGrant");
    }
    court.sentence();
    served.stop().await;
}
