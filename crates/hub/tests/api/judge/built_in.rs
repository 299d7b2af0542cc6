//! The kinds that Kubernetes itself brings.

use crate::support::Served;

use super::court::*;

#[tokio::test(flavor = "multi_thread")]
async fn built_in_kinds_are_served_as_kubernetes_serves_them() {
    let served = Served::start().await;
    let mut court = Court::sit(&served).await;
    let all = Equal::All;
    let post = |list: &'static str, body: &'static str| (list, body);
    for (list, body) in [
        post(
            "CORE/configmaps",
            r#"{"metadata":{"name":"a","labels":{"of":"test"}},"data":{"a":"x"}}"#,
        ),
        post("CORE/configmaps", r#"{"metadata":{"name":"b"},"data":{"a b":"x"}}"#),
        post(
            "CORE/configmaps?fieldValidation=Strict",
            r#"{"metadata":{"name":"b","zz":1},"data":{"a":"5"},"bogus":1}"#,
        ),
        post(
            "CORE/configmaps?dryRun=All",
            r#"{"metadata":{"name":"b","finalizers":["a","example.com/x"],"annotations":{"a b":"c"},"ownerReferences":[{"uid":"1"}]}}"#,
        ),
        post(
            "CORE/secrets",
            r#"{"metadata":{"name":"a"},"type":"kubernetes.io/tls","data":{"a":"eA=="}}"#,
        ),
        post(
            "CORE/secrets",
            r#"{"metadata":{"name":"a","labels":{"of":"test"}},"immutable":true,"stringData":{"a":"b"}}"#,
        ),
        post(
            "RBAC/roles",
            r#"{"metadata":{"name":"b"},"rules":[{"resources":["x"]},{"verbs":["get"],"nonResourceURLs":["/x"]},{"verbs":["get"]}]}"#,
        ),
        post(
            "RBAC/roles",
            r#"{"metadata":{"name":"a:b"},"rules":[{"verbs":["get"],"apiGroups":[""],"resources":["pods"]}]}"#,
        ),
        post("RBAC/roles", r#"{"metadata":{"name":"a/b"},"rules":[]}"#),
        post(
            "RBAC/rolebindings",
            r#"{"metadata":{"name":"b"},"roleRef":{"kind":"Foo","name":"a"},"subjects":[{"kind":"User"},{"kind":"ServiceAccount","name":"x"},{"kind":"Foo","name":"x"}]}"#,
        ),
        post(
            "RBAC/rolebindings",
            r#"{"metadata":{"name":"a"},"roleRef":{"kind":"Role","name":"a:b"},"subjects":[{"kind":"User","name":"x"},{"kind":"ServiceAccount","name":"x","namespace":"n"}]}"#,
        ),
        post(
            "CORE/serviceaccounts",
            r#"{"metadata":{"name":"a","labels":{"of":"test"}},"secrets":[{"name":"one"}]}"#,
        ),
        post("CORE/serviceaccounts/a/token", r#"{"spec":{"expirationSeconds":10}}"#),
        post("CORE/serviceaccounts/none/token", r#"{"spec":{}}"#),
        post("CORE/serviceaccounts/a/token", r#"{"metadata":{"name":"b"},"spec":{}}"#),
        post(
            "CORE/events",
            r#"{"metadata":{"name":"a"},"involvedObject":{"namespace":"zz"}}"#,
        ),
        post(
            "CORE/events",
            r#"{"metadata":{"name":"a","labels":{"of":"test"}},"involvedObject":{"namespace":"NS","name":"x","kind":"Cluster"},"reason":"r","message":"m","type":"Normal"}"#,
        ),
        post(
            "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
            r#"{"spec":{}}"#,
        ),
        post(
            "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews",
            r#"{"spec":{}}"#,
        ),
    ] {
        // A review without attributes has no kind in Kubernetes' own message.
        let equal = if list.contains("accessreviews") || body.contains("zz") {
            Equal::Reason
        } else {
            all
        };
        court.same("POST", list, JSON, body, equal).await;
    }
    court
        .same(
            "POST",
            "CORE/configmaps",
            JSON,
            r#"{"metadata":{"name":"c"},"data":{"a":5}}"#,
            Equal::ButText,
        )
        .await;
    court
        .same(
            "POST",
            "CORE/secrets",
            JSON,
            r#"{"metadata":{"name":"c"},"data":{"a":"x"}}"#,
            Equal::ButText,
        )
        .await;
    for (path, kind, patch) in [
        (
            "CORE/configmaps/a",
            STRATEGIC,
            r#"{"data":{"a":null,"b":"2"},"metadata":{"finalizers":["a.b/c"]}}"#,
        ),
        (
            "CORE/configmaps/a",
            STRATEGIC,
            r#"{"metadata":{"finalizers":["a.b/d"],"$setElementOrder/finalizers":["a.b/d","a.b/c"]}}"#,
        ),
        (
            "CORE/configmaps/a",
            STRATEGIC,
            r#"{"metadata":{"$deleteFromPrimitiveList/finalizers":["a.b/c","a.b/d"]}}"#,
        ),
        (
            "CORE/configmaps/a",
            STRATEGIC,
            r#"{"metadata":{"labels":{"$patch":"replace","of":"test"}}}"#,
        ),
        ("CORE/serviceaccounts/a", STRATEGIC, r#"{"secrets":[{"name":"two"}]}"#),
        (
            "CORE/serviceaccounts/a",
            STRATEGIC,
            r#"{"$setElementOrder/secrets":[{"name":"one"},{"name":"two"}],"secrets":[{"$patch":"delete","name":"two"}]}"#,
        ),
        (
            "CORE/serviceaccounts/a",
            STRATEGIC,
            r#"{"imagePullSecrets":[{"name":"p"}]}"#,
        ),
        ("CORE/secrets/a", MERGE, r#"{"data":{"a":"eHg="},"type":"x"}"#),
        ("CORE/secrets/a", MERGE, r#"{"data":{"a":"eHg="},"immutable":false}"#),
        ("RBAC/rolebindings/a", MERGE, r#"{"metadata":{"labels":{"of":"test"}}}"#),
        ("RBAC/roles/a:b", MERGE, r#"{"metadata":{"labels":{"of":"test"}}}"#),
    ] {
        court.same("PATCH", path, kind, patch, all).await;
    }
    court
        .same(
            "PATCH",
            "RBAC/rolebindings/a",
            MERGE,
            r#"{"roleRef":{"name":"q"}}"#,
            Equal::ButText,
        )
        .await;
    court
        .same(
            "PUT",
            "CORE/configmaps/a",
            JSON,
            r#"{"metadata":{"name":"a","labels":{"of":"test"}},"data":{"a":"y"}}"#,
            all,
        )
        .await;
    court
        .same(
            "PUT",
            "CORE/configmaps/a",
            JSON,
            r#"{"metadata":{"name":"a","resourceVersion":"1"}}"#,
            all,
        )
        .await;
    court
        .same(
            "PUT",
            "CORE/configmaps/none",
            JSON,
            r#"{"metadata":{"name":"none"}}"#,
            all,
        )
        .await;
    for list in [
        "CORE/configmaps",
        "CORE/secrets",
        "CORE/serviceaccounts",
        "CORE/events",
        "RBAC/roles",
        "RBAC/rolebindings",
    ] {
        for accept in [JSON, TABLE, PARTIAL_LIST] {
            court.same_read(&format!("{list}?labelSelector=of=test"), accept).await;
        }
    }
    court
        .same_read(
            "CORE/events?fieldSelector=involvedObject.name=x,involvedObject.kind=Cluster",
            JSON,
        )
        .await;
    court.same_read("CORE/events?fieldSelector=foo=bar", JSON).await;
    court.same_read("CORE/secrets?fieldSelector=type=Opaque", JSON).await;
    court.same_read("/api/v1/namespaces/NS", TABLE).await;
    court.same_read("/api/v2", JSON).await;
    for (method, path) in [
        ("POST", "CORE"),
        ("PUT", "CORE/configmaps"),
        ("DELETE", "/api/v1/namespaces"),
        ("POST", "CORE/configmaps/a"),
    ] {
        court.same(method, path, JSON, "{}", Equal::Reason).await;
    }
    court
        .same(
            "DELETE",
            "CORE/configmaps/a",
            JSON,
            r#"{"propagationPolicy":"Background"}"#,
            all,
        )
        .await;
    court.same("DELETE", "CORE/secrets/none", JSON, "", all).await;
    court
        .same("DELETE", "RBAC/rolebindings?labelSelector=of=test", JSON, "", all)
        .await;
    court.sentence();
    served.stop().await;
}
