//! How watches begin and what they send.

use futures::future::join_all;

use crate::support::Served;

use super::{court::*, verdict::normalized};

const ALL: &str = "LEASES?watch=1&timeoutSeconds=1";

#[tokio::test(flavor = "multi_thread")]
async fn watches_begin_and_go_on_as_kubernetes_has_them() {
    let served = Served::start().await;
    let mut court = Court::sit(&served).await;
    court.same("POST", GRANTS, JSON, GRANT, Equal::All).await;
    let queries = [
        "watch=1&timeoutSeconds=1&labelSelector=of=NS",
        "watch=1&timeoutSeconds=1&resourceVersion=0&labelSelector=of=none",
        "watch=1&timeoutSeconds=1&fieldSelector=metadata.name=NS-a",
        "watch=1&timeoutSeconds=1&labelSelector=of=NS&sendInitialEvents=true&resourceVersionMatch=NotOlderThan",
    ];
    court
        .judge_all(&queries.map(|query| Step::get(&format!("{GRANTS}?{query}")).accept(JSON)))
        .await;
    let bookmarks = "watch=1&timeoutSeconds=1&labelSelector=of=NS&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    for side in [&court.real, &court.ours] {
        let Answer { code, value, .. } = side
            .ask(&Step::get(&format!("{GRANTS}?{bookmarks}")).accept(JSON))
            .await;
        let events = value.as_array().unwrap();
        assert_eq!(
            (code, events[0]["type"].as_str(), events[1]["type"].as_str()),
            (200, Some("ADDED"), Some("BOOKMARK"))
        );
        assert_eq!(
            events[1]["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"],
            "true"
        );
        assert_eq!(events[1]["object"]["kind"], "ClusterGrant");
    }
    court.sentence();
    served.stop().await;
}

/// What happened after a version, seen through several selectors, in several forms.
#[tokio::test(flavor = "multi_thread")]
async fn objects_enter_and_leave_what_is_watched() {
    let served = Served::start().await;
    let mut court = Court::sit(&served).await;
    court.remember("VERSION", "LEASES", "/metadata/resourceVersion").await;
    let lease = |name: &str, app: &str| format!(r#"{{"metadata":{{"name":"{name}","labels":{{"app":"{app}"}}}}}}"#);
    court.same("POST", "LEASES", JSON, &lease("a", "web"), Equal::All).await;
    court.same("POST", "LEASES", JSON, &lease("b", "api"), Equal::All).await;
    court.remember("MIDDLE", "LEASES", "/metadata/resourceVersion").await;
    let label = |app: &str| format!(r#"{{"metadata":{{"labels":{{"app":{app}}}}}}}"#);
    court
        .same("PATCH", "LEASES/b", MERGE, &label("\"web\""), Equal::All)
        .await;
    court
        .same(
            "PATCH",
            "LEASES/b",
            MERGE,
            r#"{"spec":{"holderIdentity":"x"}}"#,
            Equal::All,
        )
        .await;
    court.same("DELETE", "LEASES/a", JSON, "", Equal::All).await;
    court.same("POST", "LEASES", JSON, &lease("c", "web"), Equal::All).await;
    court.same("DELETE", "LEASES/c", JSON, "", Equal::All).await;
    let mut steps = Vec::new();
    for selector in [
        "",
        "&labelSelector=app=web",
        "&labelSelector=app!=api",
        "&labelSelector=app=none",
        "&labelSelector=!app",
        "&fieldSelector=metadata.name=a",
        "&fieldSelector=metadata.name!=a",
        "&fieldSelector=metadata.name=b&labelSelector=app=web",
    ] {
        let versions = ["&resourceVersion=$VERSION", "&resourceVersion=$MIDDLE", ""];
        steps.extend(versions.map(|version| Step::get(&format!("{ALL}{version}{selector}")).accept(JSON)));
    }
    for (accept, query) in [
        (TABLE, "resourceVersion=$VERSION"),
        (TABLE, "resourceVersion=$MIDDLE&includeObject=Object"),
        (TABLE, "resourceVersion=$VERSION&includeObject=None"),
        (TABLE, "resourceVersion=0"),
        (PARTIAL, "resourceVersion=$VERSION"),
        (PARTIAL, "resourceVersion=0"),
    ] {
        steps.push(Step::get(&format!("{ALL}&labelSelector=app=web&{query}")).accept(accept));
    }
    court.judge_all(&steps).await;
    court.sentence();
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_options_that_have_no_meaning_are_refused() {
    let served = Served::start().await;
    let mut court = Court::sit(&served).await;
    court
        .same("POST", "LEASES", JSON, r#"{"metadata":{"name":"a"}}"#, Equal::All)
        .await;
    let mut steps = Vec::new();
    for query in [
        "resourceVersionMatch=Exact",
        "resourceVersionMatch=NotOlderThan",
        "resourceVersionMatch=Foo",
        "sendInitialEvents=true",
        "sendInitialEvents=false",
        "sendInitialEvents=true&resourceVersionMatch=Exact",
        "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=0",
        "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=1",
        "sendInitialEvents=false&resourceVersionMatch=NotOlderThan",
        "sendInitialEvents=false&resourceVersionMatch=NotOlderThan&resourceVersion=0",
        "sendInitialEvents=&resourceVersionMatch=NotOlderThan",
        "sendInitialEvents=0&resourceVersionMatch=NotOlderThan",
        "labelSelector=a%20b",
        "fieldSelector=spec.x=1",
        "limit=1",
        "limit=x",
        "timeoutSeconds=x",
        "allowWatchBookmarks=false",
        "resourceVersion=0",
        "resourceVersion=",
    ] {
        steps.push(Step::get(&format!("{ALL}&{query}")).accept(JSON));
        steps.push(Step::get(&format!("LEASES/a?watch=1&timeoutSeconds=1&{query}")).accept(JSON));
    }
    for watch in ["true", "1", "", "yes", "0"] {
        steps.push(Step::get(&format!("LEASES?watch={watch}&timeoutSeconds=1")).accept(JSON));
    }
    for accept in [
        TABLE,
        PARTIAL,
        "application/json;stream=watch",
        "application/json;as=Table;g=meta.k8s.io;v=v1",
        "*/*",
    ] {
        steps.push(Step::get(&format!("{ALL}&resourceVersion=0")).accept(accept));
    }
    court.judge_all(&steps).await;
    court
        .judge(Step::get(ALL).accept("text/html").equal(Equal::Reason))
        .await;
    court.sentence();
    served.stop().await;
}

/// The state, then a bookmark that says so, in each form.
#[tokio::test(flavor = "multi_thread")]
async fn a_watch_list_ends_its_state_with_a_bookmark() {
    let served = Served::start().await;
    let mut court = Court::sit(&served).await;
    for name in ["a", "b"] {
        court
            .same(
                "POST",
                "LEASES",
                JSON,
                &format!(r#"{{"metadata":{{"name":"{name}"}}}}"#),
                Equal::All,
            )
            .await;
    }
    let list = format!("{ALL}&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true");
    let mut steps = Vec::new();
    for accept in [JSON, TABLE, PARTIAL] {
        for query in [
            "",
            "&resourceVersion=0",
            "&fieldSelector=metadata.name=a",
            "&labelSelector=of=none",
        ] {
            steps.push(Step::get(&format!("{list}{query}")).accept(accept));
        }
    }
    // They last a second each.
    let asked = steps
        .iter()
        .map(|step| async { tokio::join!(court.real.ask(step), court.ours.ask(step)) });
    for (step, (real, ours)) in steps.iter().zip(join_all(asked).await) {
        // Only up to the bookmark: what follows depends on time.
        let up_to_bookmark = |answer: Answer| {
            let events = answer
                .value
                .as_array()
                .cloned()
                .unwrap_or_else(|| vec![answer.value.clone()]);
            let end = events
                .iter()
                .position(|event| event["type"] == "BOOKMARK")
                .expect("no bookmark");
            let mut events = normalized(events[..=end].to_vec().into());
            // Go writes an empty spec for an object without one.
            events[end]["object"].as_object_mut().unwrap().remove("spec");
            events
        };
        assert_eq!(up_to_bookmark(ours), up_to_bookmark(real), "{step}");
    }
    court.sentence();
    served.stop().await;
}
