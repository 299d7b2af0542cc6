//! Server-side apply, and who owns which field.

use serde_json::{Value, json};

use crate::support::Served;

use super::court::*;

/// An apply by a manager, forced or not.
fn apply(path: &str, manager: &str, force: bool, config: &str) -> Step {
    let force = if force { "&force=true" } else { "" };
    let joint = if path.contains('?') { '&' } else { '?' };
    Step::new("PATCH", &format!("{path}{joint}fieldManager={manager}{force}")).send(APPLY, config)
}

fn config_map(data: &Value) -> String {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": data}).to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn applies_merge_conflict_and_give_up_as_in_kubernetes() {
    let served = Served::start().await;
    let mut court = Court::sit(&served).await;
    let one = "CORE/configmaps/a";
    for (manager, force, data) in [
        ("one", false, json!({"a": "1", "b": "1"})),
        ("one", false, json!({"a": "1", "b": "1"})),
        ("two", false, json!({"a": "1"})),
        ("two", false, json!({"a": "2"})),
        ("two", false, json!({"a": "2", "b": "2"})),
        ("two", true, json!({"a": "2", "c": "2"})),
        ("one", false, json!({"b": "1"})),
        ("one", false, json!({})),
        ("two", false, Value::Null),
        ("", false, json!({"a": "1"})),
        ("one", false, json!({"a": 5})),
        ("one", false, json!(["a"])),
    ] {
        court.judge(apply(one, manager, force, &config_map(&data))).await;
    }
    for (method, kind, body) in [
        ("PATCH", MERGE, r#"{"data":{"x":"1","y":"1"}}"#),
        ("PATCH", STRATEGIC, r#"{"data":{"x":null,"z":"1"},"metadata":{"finalizers":["example.com/a"]}}"#),
        ("PATCH", JSON_PATCH, r#"[{"op":"add","path":"/metadata/finalizers/-","value":"example.com/b"}]"#),
        ("PUT", JSON, r#"{"metadata":{"name":"a","finalizers":["example.com/b"]},"data":{"y":"2"}}"#),
    ] {
        court.same(method, &format!("{one}?fieldManager=writer"), kind, body, Equal::All).await;
    }
    court.judge(apply(one, "two", false, &config_map(&json!({"y": "3"})))).await;
    court.judge(apply(one, "two", true, &config_map(&json!({"y": "3"})))).await;
    court.same_read(one, JSON).await;
    court.sentence();
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn applies_of_our_kinds_are_judged_by_their_types() {
    let served = Served::start().await;
    let mut court = Court::sit(&served).await;
    let one = format!("{GRANTS}/NS-a");
    let grant = |spec: Value| {
        json!({"apiVersion": "farwater.dev/v1alpha1", "kind": "ClusterGrant", "metadata": {"name": "NS-a"}, "spec": spec})
            .to_string()
    };
    let full = json!({"clusterSelector": {"matchLabels": {"a": "b"}}, "namespaces": ["NS"], "verbs": ["deploy"],
        "serviceAccountName": "x"});
    for (manager, force, spec) in [
        ("one", false, json!({"namespaces": ["NS"]})),
        ("one", false, full.clone()),
        ("two", false, json!({"namespaces": ["other"], "allowedKinds": ["Secret", "apps/Deployment"]})),
        ("two", false, json!({"namespaces": ["other", "other"]})),
        ("three", false, json!({"clusterSelector": {"matchLabels": {"c": "d"}}})),
        ("three", true, json!({"clusterSelector": {"matchLabels": {"c": "d"}}})),
        ("two", false, json!({"unknown": 1})),
        ("two", false, json!({"serviceAccountName": 1, "namespaces": {"a": true}})),
        ("two", false, json!({"namespaces": ["NS", "other"], "allowedKinds": []})),
        ("two", false, json!({})),
        ("one", true, full),
    ] {
        let order_is_luck = if spec["namespaces"].is_object() { Equal::ButText } else { Equal::All };
        court.judge(apply(&one, manager, force, &grant(spec)).equal(order_is_luck)).await;
    }
    court.same_read(&one, JSON).await;
    court.same("DELETE", &one, JSON, "", Equal::All).await;
    court.sentence();
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_apply_is_refused_as_kubernetes_refuses_it() {
    let served = Served::start().await;
    let mut court = Court::sit(&served).await;
    let one = "CORE/configmaps/a";
    let body = config_map(&json!({"a": "1"}));
    let with = |metadata: Value| {
        let mut object: Value = serde_json::from_str(&body).unwrap();
        object["metadata"] = metadata;
        object.to_string()
    };
    for step in [
        Step::new("PATCH", one).send(APPLY, &body),
        Step::new("PATCH", &format!("{one}?fieldManager=x&dryRun=Foo&fieldValidation=Bar")).send(APPLY, &body),
        Step::new("PATCH", &format!("{one}?force=true")).send(MERGE, "{}"),
        Step::new("PATCH", &format!("{one}?fieldManager={}", "x".repeat(129))).send(APPLY, &body),
        Step::new("PATCH", &format!("{one}?fieldManager=a%07b")).send(APPLY, &body).equal(Equal::ButText),
        Step::new("PATCH", &format!("{one}?fieldManager=a%E2%80%8Bb")).send(APPLY, &body).equal(Equal::ButText),
        Step::new("PATCH", one).send("application/apply-patch+cbor", &body),
        Step::new("PATCH", one).send("text/plain", &body),
        apply(one, "x", false, "{").equal(Equal::ButText),
        apply(one, "x", false, "[1]").equal(Equal::ButText),
        apply(one, "x", false, ""),
        apply(one, "x", false, "{}"),
        apply(one, "x", false, r#"{"apiVersion":"v1","kind":"Secret"}"#),
        apply(one, "x", false, r#"{"apiVersion":"v2","kind":"ConfigMap"}"#),
        apply(one, "x", false, &with(json!({}))),
        apply(one, "x", false, &with(json!({"name": "b"}))),
        apply(one, "x", false, &with(json!({"generateName": "a"}))),
        apply(one, "x", false, &with(json!({"name": "a", "namespace": "other"}))),
        apply(one, "x", false, &with(json!({"name": "a", "uid": "1"}))),
        apply(one, "x", false, &with(json!({"name": "a", "managedFields": []}))),
        apply(one, "x", false, &with(json!({"name": "a", "managedFields": [{}]}))),
        apply(one, "x", false, &with(json!({"name": "a", "managedFields": null}))),
        apply(&format!("{one}?dryRun=All"), "x", false, &with(json!({"name": "a", "labels": {"a": "b"}}))),
        apply("CORE/configmaps/c", "x", false, &with(json!({"name": "c", "resourceVersion": "5"}))),
        apply("CORE/configmaps/a%20b", "x", false, &with(json!({"name": "a b"}))),
        apply("CORE/configmaps", "x", false, &body).equal(Equal::Reason),
        apply("/api/v1/namespaces/none-such/configmaps/a", "x", false, &body),
        apply(one, "x", false, &with(json!({"name": "a", "uid": "1"}))),
        apply(one, "x", false, &with(json!({"name": "a", "resourceVersion": "5"}))),
        apply(one, "x", false, &with(json!({"name": "a", "labels": {"a b": "c"}}))),
        apply(one, "x", false, &with(json!({"name": "a", "labels": {"a": "b"}, "bogus": 1}))),
        apply(
            &format!("{one}?fieldValidation=Strict"),
            "x",
            false,
            "{apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: {a: b, a: c}}",
        )
        .equal(Equal::ButText),
        apply(one, "x", false, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {a: 'yes', b: \"2\"}\n"),
        apply(
            "RBAC/roles/r",
            "x",
            false,
            r#"{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"Role","metadata":{"name":"r"},"rules":[{"resources":["x"]}]}"#,
        ),
        apply(
            "CORE/secrets/s",
            "x",
            false,
            r#"{"apiVersion":"v1","kind":"Secret","metadata":{"name":"s"},"stringData":{"a":"b"}}"#,
        ),
        apply(
            "CORE/secrets/s",
            "x",
            false,
            r#"{"apiVersion":"v1","kind":"Secret","metadata":{"name":"s"},"data":{"a":"b"}}"#,
        )
        .equal(Equal::Reason),
        apply(
            "CORE/secrets/s",
            "x",
            false,
            r#"{"apiVersion":"v1","kind":"Secret","metadata":{"name":"s"},"type":"Foo"}"#,
        ),
        apply(
            "RBAC/roles/empty",
            "x",
            false,
            r#"{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"Role","metadata":{"name":"empty"}}"#,
        ),
        apply(
            "RBAC/rolebindings/b",
            "x",
            false,
            r#"{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"RoleBinding","metadata":{"name":"b"},"roleRef":{"kind":"Role","name":"r"},"subjects":[{"kind":"User","name":"u"}]}"#,
        ),
        apply(
            "RBAC/rolebindings/b",
            "y",
            false,
            r#"{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"RoleBinding","metadata":{"name":"b"},"roleRef":{"kind":"Role","name":"q"}}"#,
        ),
        apply(
            "CORE/serviceaccounts/sa",
            "x",
            false,
            r#"{"apiVersion":"v1","kind":"ServiceAccount","metadata":{"name":"sa"},"secrets":[{"name":"one"},{"name":"two","namespace":"z"}],"imagePullSecrets":[{"name":"p"}]}"#,
        ),
        apply(
            "CORE/serviceaccounts/sa",
            "y",
            false,
            r#"{"apiVersion":"v1","kind":"ServiceAccount","metadata":{"name":"sa"},"secrets":[{"name":"two"},{"name":"three"}],"imagePullSecrets":[{"name":"q"}]}"#,
        ),
        apply(
            "CORE/serviceaccounts/sa",
            "y",
            true,
            r#"{"apiVersion":"v1","kind":"ServiceAccount","metadata":{"name":"sa"},"secrets":[{"name":"two"},{"name":"three"}],"imagePullSecrets":[{"name":"q"}]}"#,
        ),
        apply(
            "CORE/serviceaccounts/sa",
            "x",
            false,
            r#"{"apiVersion":"v1","kind":"ServiceAccount","metadata":{"name":"sa"},"secrets":[{"kind":"x"}]}"#,
        ),
    ] {
        court.judge(step).await;
    }
    court.sentence();
    served.stop().await;
}
