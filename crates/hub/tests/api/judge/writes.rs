//! Create, update, patch and status of our kinds, beside the same kinds as custom resources.

use std::time::Duration;

use crate::support::Served;

use super::court::*;

#[tokio::test(flavor = "multi_thread")]
async fn our_kinds_are_served_as_custom_resources_are() {
    let served = Served::start().await;
    let mut court = Court::sit(&served).await;
    // The administrators' namespace needs no grant; the real server knows no grants.
    let spec = r#""spec":{"clusterRef":{"name":"east"},"targetNamespace":"web","sourceRef":{"name":"infra"}}"#;
    let list = "OWN/gitrepositories";
    let repo = |name: &str, url: &str| {
        format!(
            r#"{{"apiVersion":"farwater.dev/v1alpha1","kind":"GitRepository","metadata":{{"name":"{name}","labels":{{"app":"a"}}}},"spec":{{"url":"{url}"}}}}"#
        )
    };
    let all = Equal::All;
    court.same("POST", list, JSON, &repo("a", "https://x/y"), all).await;
    court.same("POST", list, JSON, &repo("a", "https://x/y"), all).await;
    court.same("POST", list, JSON, &repo("b", "file:///x"), all).await;
    court.same("POST", list, JSON, &repo("B_", "https://x/y"), all).await;
    court
        .same(
            "POST",
            list,
            JSON,
            &repo("c", "https://x/y").replace("spec", "spcc"),
            all,
        )
        .await;
    court
        .same(
            "POST",
            &format!("{list}?fieldValidation=Strict"),
            JSON,
            &repo("c", "https://x/y").replace("\"url\"", "\"urk\":1,\"url\""),
            all,
        )
        .await;
    court
        .same(
            "POST",
            &format!("{list}?fieldValidation=Warn&dryRun=All"),
            JSON,
            &repo("c", "https://x/y").replace("\"url\"", "\"urk\":1,\"url\""),
            all,
        )
        .await;
    court
        .same(
            "POST",
            &format!("{list}?dryRun=Some"),
            JSON,
            &repo("c", "https://x/y"),
            all,
        )
        .await;
    court
        .same(
            "POST",
            &format!("{list}?fieldValidation=Some"),
            JSON,
            &repo("c", "https://x/y"),
            all,
        )
        .await;
    court
        .same("POST", list, "text/plain", &repo("c", "https://x/y"), Equal::Reason)
        .await;
    court.same("POST", list, "application/yaml", "apiVersion: farwater.dev/v1alpha1\nkind: GitRepository\nmetadata: {name: yaml}\nspec: {url: 'https://x/y'}\n", all).await;
    court.same("POST", "OWN/servicedeployments?dryRun=All", JSON, r#"SD{"metadata":{"name":"x"},"spec":{"clusterRef":{},"targetNamespace":"A_b","path":5,"deletionPolicy":"Foo","prune":"yes"}}"#, all).await;
    court
        .same(
            "POST",
            "OWN/servicedeployments",
            JSON,
            r#"SD{"metadata":{"name":"x"}}"#,
            all,
        )
        .await;
    court
        .same("POST", "OWN/servicedeployments", JSON, r#"SD{"metadata":{}}"#, all)
        .await;
    court
        .same(
            "POST",
            "OWN/servicedeployments",
            JSON,
            r#"SD{"metadata":{"labels":5}}"#,
            all,
        )
        .await;
    court
        .same(
            "POST",
            "OWN/servicedeployments",
            JSON,
            r#"SD{"metadata":{"name":"x","namespace":"other"},"spec":{}}"#,
            all,
        )
        .await;
    court
        .same("POST", "OWN/servicedeployments", JSON, "{", Equal::ButText)
        .await;
    court
        .same("POST", "OWN/servicedeployments", JSON, "[]", Equal::ButText)
        .await;
    court
        .same(
            "POST",
            "OWN/servicedeployments",
            JSON,
            r#"{"apiVersion":"v1","kind":"ConfigMap"}"#,
            all,
        )
        .await;
    court
        .same(
            "POST",
            "/apis/farwater.dev/v1alpha1/namespaces/none-such/servicedeployments",
            JSON,
            &format!(r#"SD{{"metadata":{{"name":"x"}},{spec}}}"#),
            all,
        )
        .await;
    court.sentence();
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn updates_and_patches_leave_what_kubernetes_leaves() {
    let served = Served::start().await;
    let mut court = Court::sit(&served).await;
    let all = Equal::All;
    let one = format!("{GRANTS}/NS-a");
    let one = one.as_str();
    court.same("POST", GRANTS, JSON, GRANT, all).await;
    for (kind, patch) in [
        (
            MERGE,
            r#"{"spec":{"serviceAccountName":"b"},"status":{"observedGeneration":7}}"#,
        ),
        (MERGE, r#"{"metadata":{"labels":{"b":"c"}}}"#),
        (MERGE, r#"{"spec":{"namespaces":null,"serviceAccountName":null}}"#),
        (MERGE, r#"{"spec":{"allowedSources":null}}"#),
        (MERGE, r#"{"metadata":{"uid":"x"}}"#),
        (MERGE, r#"{"metadata":{"resourceVersion":"1"}}"#),
        (MERGE, r#"{"metadata":{"name":"z"}}"#),
        (MERGE, r#"{"metadata":{"finalizers":["x","example.com/y"]}}"#),
        (
            JSON_PATCH,
            r#"[{"op":"replace","path":"/spec/verbs/0","value":"view"}]"#,
        ),
        (JSON_PATCH, r#"[{"op":"replace","path":"/spec/verbs/0","value":3}]"#),
    ] {
        court.same("PATCH", one, kind, patch, all).await;
    }
    let failing = r#"[{"op":"test","path":"/spec/serviceAccountName","value":"x"}]"#;
    court.same("PATCH", one, JSON_PATCH, failing, Equal::Reason).await;
    court.same("PATCH", one, STRATEGIC, "{}", Equal::ButText).await;
    court.same("PATCH", one, MERGE, "{", Equal::ButText).await;
    court
        .same("PATCH", &format!("{GRANTS}/NS-none"), MERGE, "{}", all)
        .await;
    court.same("PATCH", &format!("{one}/status"), MERGE, "{}", all).await;
    let versioned = GRANT.replace("\"labels\"", "\"resourceVersion\":\"1\",\"labels\"");
    court.same("PUT", one, JSON, GRANT, Equal::Reason).await;
    court.same("PUT", one, JSON, &GRANT.replace("NS-a", "NS-z"), all).await;
    court
        .same(
            "PUT",
            &format!("{GRANTS}/NS-none"),
            JSON,
            &versioned.replace("NS-a", "NS-none"),
            all,
        )
        .await;
    court.same("PUT", one, JSON, &versioned, all).await;
    court.sentence();
    served.stop().await;
}

/// Judged on a source that waits for a finalizer: its controller writes no status any more.
#[tokio::test(flavor = "multi_thread")]
async fn a_status_is_written_as_kubernetes_writes_it() {
    let served = Served::start().await;
    let mut court = Court::sit(&served).await;
    let source = r#"{"apiVersion":"farwater.dev/v1alpha1","kind":"GitRepository","metadata":{"name":"a","finalizers":["example.com/x"]},"spec":{"url":"https://x/y","suspend":true}}"#;
    court
        .same("POST", "OWN/gitrepositories", JSON, source, Equal::All)
        .await;
    let one = "OWN/gitrepositories/a";
    farwater_testkit::wait_for("the controller's status", Duration::from_secs(30), || async {
        let source = court.ours.ask(&Step::get(one).accept(JSON)).await.value;
        Ok((source["status"]["observedGeneration"] == 1).then_some(()))
    })
    .await
    .unwrap();
    court.same("DELETE", one, JSON, "", Equal::Reason).await;

    let status = format!("{one}/status");
    let conditions = r#"{"status":{"observedGeneration":1,"conditions":[{"type":"Ready","status":"True","reason":"R","message":"m","lastTransitionTime":"2026-01-01T00:00:00Z"}]},"spec":{"url":"https://q/r"}}"#;
    let twice = r#",{"type":"Ready","status":"Maybe","reason":"R","message":"m","lastTransitionTime":"x"}]}"#;
    court
        .same("PATCH", &status, MERGE, r#"{"status":null}"#, Equal::All)
        .await;
    court.same("PATCH", &status, MERGE, conditions, Equal::All).await;
    court
        .same("PATCH", &status, MERGE, &conditions.replace("]}", twice), Equal::All)
        .await;
    court
        .same(
            "PATCH",
            one,
            MERGE,
            r#"{"status":{"observedGeneration":7}}"#,
            Equal::All,
        )
        .await;
    court
        .same("PATCH", one, MERGE, r#"{"metadata":{"finalizers":null}}"#, Equal::All)
        .await;
    court.sentence();
    served.stop().await;
}
