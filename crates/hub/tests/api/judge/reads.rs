//! Get, list and delete.

use crate::support::Served;

use super::court::*;

#[tokio::test(flavor = "multi_thread")]
async fn reads_and_deletes_answer_as_kubernetes_does() {
    let served = Served::start().await;
    let mut court = Court::sit(&served).await;
    let all = Equal::All;
    let one = format!("{GRANTS}/NS-a");
    let one = one.as_str();
    court
        .same(
            "POST",
            GRANTS,
            JSON,
            &GRANT.replace(
                "\"labels\"",
                "\"finalizers\":[\"example.com/x\",\"example.com/y\"],\"labels\"",
            ),
            all,
        )
        .await;
    court
        .same("POST", GRANTS, JSON, &GRANT.replace("NS-a", "NS-b"), all)
        .await;
    for accept in [JSON, TABLE, PARTIAL] {
        court.same_read(one, accept).await;
    }
    for accept in [JSON, TABLE, PARTIAL_LIST] {
        court.same_read(&format!("{GRANTS}?labelSelector=of=NS"), accept).await;
        court
            .same_read(&format!("{GRANTS}?labelSelector=of=NS&limit=1"), accept)
            .await;
        court
            .same_read(&format!("{GRANTS}?labelSelector=of%20in%20(NS,b),!of"), accept)
            .await;
        court
            .same_read(&format!("{GRANTS}?fieldSelector=metadata.name=NS-a"), accept)
            .await;
    }
    for query in [
        "labelSelector=a%20b%20c",
        "fieldSelector=spec.x=1",
        "limit=x",
        "resourceVersion=x",
        "resourceVersionMatch=Exact",
        "watch=1&sendInitialEvents=true",
        "resourceVersion=1&resourceVersionMatch=Foo",
    ] {
        court.same_read(&format!("{GRANTS}?{query}"), JSON).await;
    }
    court
        .same("DELETE", one, JSON, r#"{"preconditions":{"uid":"x"}}"#, Equal::ButText)
        .await;
    court
        .same("DELETE", one, JSON, r#"{"propagationPolicy":"Foo"}"#, all)
        .await;
    court.remember("UID", one, "/metadata/uid").await;
    court
        .same(
            "DELETE",
            &format!("{one}?dryRun=All"),
            JSON,
            r#"{"preconditions":{"uid":"$UID"}}"#,
            all,
        )
        .await;
    court.same("DELETE", &format!("{one}?dryRun=All"), JSON, "", all).await;
    court
        .same(
            "PATCH",
            one,
            MERGE,
            r#"{"metadata":{"finalizers":["example.com/y"]}}"#,
            all,
        )
        .await;
    court
        .same("DELETE", one, JSON, r#"{"propagationPolicy":"Background"}"#, all)
        .await;
    court.same("DELETE", one, JSON, "", all).await;
    court
        .same(
            "PATCH",
            one,
            MERGE,
            r#"{"metadata":{"finalizers":["example.com/y","example.com/z"]}}"#,
            all,
        )
        .await;
    court
        .same("PATCH", one, MERGE, r#"{"metadata":{"finalizers":null}}"#, all)
        .await;
    court.same("DELETE", one, JSON, "", all).await;
    court
        .same("DELETE", &format!("{GRANTS}?labelSelector=of=none"), JSON, "", all)
        .await;
    court
        .same("DELETE", &format!("{GRANTS}?labelSelector=of=NS"), JSON, "", all)
        .await;
    court.sentence();
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_goes_with_what_is_in_it() {
    let served = Served::start().await;
    let mut court = Court::sit(&served).await;
    let kept = r#"{"metadata":{"name":"a","finalizers":["example.com/x"]}}"#;
    court.same("POST", "CORE/configmaps", JSON, kept, Equal::All).await;
    court.same("DELETE", "CORE", JSON, "", Equal::Reason).await;
    court
        .wait_until(Step::get("CORE/configmaps/a"), |a| {
            a.value["metadata"]["deletionTimestamp"].is_string()
        })
        .await;
    court
        .same(
            "POST",
            "CORE/configmaps",
            JSON,
            r#"{"metadata":{"name":"b"}}"#,
            Equal::All,
        )
        .await;
    court
        .same(
            "PATCH",
            "CORE/configmaps/a",
            MERGE,
            r#"{"metadata":{"finalizers":null}}"#,
            Equal::All,
        )
        .await;
    court.wait_until(Step::get("CORE"), |answer| answer.code == 404).await;
    court.sentence();
    served.stop().await;
}
