//! Server-side apply, and who owns which field.

use std::time::Duration;

use farwater_testkit::wait_for;
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
        (
            "PATCH",
            STRATEGIC,
            r#"{"data":{"x":null,"z":"1"},"metadata":{"finalizers":["example.com/a"]}}"#,
        ),
        (
            "PATCH",
            JSON_PATCH,
            r#"[{"op":"add","path":"/metadata/finalizers/-","value":"example.com/b"}]"#,
        ),
        (
            "PUT",
            JSON,
            r#"{"metadata":{"name":"a","finalizers":["example.com/b"]},"data":{"y":"2"}}"#,
        ),
    ] {
        court
            .same(method, &format!("{one}?fieldManager=writer"), kind, body, Equal::All)
            .await;
    }
    court
        .judge(apply(one, "two", false, &config_map(&json!({"y": "3"}))))
        .await;
    court
        .judge(apply(one, "two", true, &config_map(&json!({"y": "3"}))))
        .await;
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
        (
            "two",
            false,
            json!({"namespaces": ["other"], "allowedKinds": ["Secret", "apps/Deployment"]}),
        ),
        ("two", false, json!({"namespaces": ["other", "other"]})),
        ("three", false, json!({"clusterSelector": {"matchLabels": {"c": "d"}}})),
        ("three", true, json!({"clusterSelector": {"matchLabels": {"c": "d"}}})),
        ("two", false, json!({"unknown": 1})),
        (
            "two",
            false,
            json!({"serviceAccountName": 1, "namespaces": {"a": true}}),
        ),
        ("two", false, json!({"namespaces": ["NS", "other"], "allowedKinds": []})),
        ("two", false, json!({})),
        ("one", true, full),
    ] {
        let order_is_luck = if spec["namespaces"].is_object() {
            Equal::ButText
        } else {
            Equal::All
        };
        court
            .judge(apply(&one, manager, force, &grant(spec)).equal(order_is_luck))
            .await;
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
        Step::new("PATCH", &format!("{one}?fieldManager=a%07b"))
            .send(APPLY, &body)
            .equal(Equal::ButText),
        Step::new("PATCH", &format!("{one}?fieldManager=a%E2%80%8Bb"))
            .send(APPLY, &body)
            .equal(Equal::ButText),
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
        apply(
            &format!("{one}?dryRun=All"),
            "x",
            false,
            &with(json!({"name": "a", "labels": {"a": "b"}})),
        ),
        apply(
            "CORE/configmaps/c",
            "x",
            false,
            &with(json!({"name": "c", "resourceVersion": "5"})),
        ),
        apply("CORE/configmaps/a%20b", "x", false, &with(json!({"name": "a b"}))),
        apply("CORE/configmaps", "x", false, &body).equal(Equal::Reason),
        apply("/api/v1/namespaces/none-such/configmaps/a", "x", false, &body),
        apply(one, "x", false, &with(json!({"name": "a", "uid": "1"}))),
        apply(one, "x", false, &with(json!({"name": "a", "resourceVersion": "5"}))),
        apply(one, "x", false, &with(json!({"name": "a", "labels": {"a b": "c"}}))),
        apply(
            one,
            "x",
            false,
            &with(json!({"name": "a", "labels": {"a": "b"}, "bogus": 1})),
        ),
        apply(
            &format!("{one}?fieldValidation=Strict"),
            "x",
            false,
            "{apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: {a: b, a: c}}",
        )
        .equal(Equal::ButText),
        apply(
            one,
            "x",
            false,
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {a: 'yes', b: \"2\"}\n",
        ),
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

/// Judged on a source that waits for a finalizer: its controller writes no status any more.
#[tokio::test(flavor = "multi_thread")]
async fn a_status_is_applied_by_those_who_own_it() {
    let served = Served::start().await;
    let mut court = Court::sit(&served).await;
    let one = "OWN/gitrepositories/a";
    let status = "OWN/gitrepositories/a/status";
    let source = |rest: Value| {
        let mut object =
            json!({"apiVersion": "farwater.dev/v1alpha1", "kind": "GitRepository", "metadata": {"name": "a"}});
        object
            .as_object_mut()
            .unwrap()
            .extend(rest.as_object().unwrap().clone());
        object.to_string()
    };
    let held = json!({"metadata": {"name": "a", "finalizers": ["example.com/x"]}, "spec": {"url": "https://x/y", "suspend": true}});
    let first = apply(one, "one", false, &source(held));
    court.judge(first).await;
    wait_for("the controller's status", Duration::from_secs(30), || async {
        let source = court.ours.ask(&Step::get(one).accept(JSON)).await.value;
        Ok((source["status"]["observedGeneration"] == 1).then_some(()))
    })
    .await
    .unwrap();
    court
        .wait_until(Step::new("DELETE", one), |answer| {
            answer.value["metadata"]["deletionTimestamp"].is_string()
        })
        .await;
    // What the controller wrote before, and who it was.
    court
        .same("PATCH", status, MERGE, r#"{"status":null}"#, Equal::Reason)
        .await;
    let forget = r#"{"metadata":{"managedFields":[{}]}}"#;
    court.same("PATCH", one, MERGE, forget, Equal::Reason).await;

    let ready = |kind: &str, status: &str| {
        let condition = json!({"type": kind, "status": status, "reason": "R", "message": "m",
            "lastTransitionTime": "2026-01-01T00:00:00Z"});
        json!({"conditions": [condition]})
    };
    for (path, manager, force, rest) in [
        (status, "one", false, json!({"status": ready("Ready", "True")})),
        (status, "two", false, json!({"status": ready("Other", "True")})),
        (status, "two", false, json!({"status": ready("Ready", "False")})),
        (
            status,
            "two",
            true,
            json!({"status": ready("Ready", "False"), "spec": {"url": "https://q/r"}}),
        ),
        (
            one,
            "one",
            false,
            json!({"spec": {"url": "https://x/y", "suspend": true}, "status": {"observedGeneration": 9}}),
        ),
        (status, "one", false, json!({"status": {}})),
        (status, "one", false, json!({})),
        (
            status,
            "two",
            false,
            json!({"status": {"conditions": [{"status": "True"}]}}),
        ),
        (status, "two", false, json!({"status": {"conditions": []}})),
        (
            one,
            "two",
            false,
            json!({"metadata": {"name": "a", "finalizers": ["example.com/x", "example.com/y"]}}),
        ),
        (
            one,
            "two",
            false,
            json!({"metadata": {"name": "a", "finalizers": ["example.com/x"]}}),
        ),
        (
            "OWN/gitrepositories/none/status",
            "two",
            false,
            json!({"metadata": {"name": "none"}, "status": {}}),
        ),
    ] {
        court.judge(apply(path, manager, force, &source(rest))).await;
    }
    let merge = r#"{"status":{"revision":"r","conditions":null},"spec":{"url":"https://q/r"}}"#;
    court.same("PATCH", status, MERGE, merge, Equal::All).await;
    court
        .same(
            "PATCH",
            one,
            MERGE,
            r#"{"metadata":{"labels":{"a":"b"}},"status":{"revision":"q"}}"#,
            Equal::All,
        )
        .await;
    court
        .judge(apply(
            one,
            "one",
            false,
            &source(json!({"spec": {"url": "https://x/y", "suspend": true}})),
        ))
        .await;
    court.judge(apply(one, "two", false, &source(json!({})))).await;
    court.sentence();
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn managers_may_be_changed_and_forgotten_by_clients() {
    let served = Served::start().await;
    let mut court = Court::sit(&served).await;
    for (one, version, body) in [
        ("CORE/configmaps/a", "v1", config_map(&json!({"a": "1", "b": "1"}))),
        (
            "/apis/farwater.dev/v1alpha1/clustergrants/NS-a",
            "farwater.dev/v1alpha1",
            GRANT.to_owned(),
        ),
    ] {
        court.judge(apply(one, "one", false, &body)).await;
        let touched = |managed: &str| {
            let managed = managed.replace("VERSION", version);
            format!(r#"{{"metadata":{{"labels":{{"x":"y"}},"managedFields":{managed}}}}}"#)
        };
        let foreign = r#"[{"manager":"m","operation":"Update","apiVersion":"VERSION","fieldsType":"FieldsV1","fieldsV1":{"f:metadata":{"f:labels":{"f:x":{}}}}}]"#;
        for managed in [
            "null",
            "[]",
            foreign,
            "[{}]",
            r#"[{"manager":"m"}]"#,
            r#"[{"manager":"m","operation":"Foo","apiVersion":"VERSION","fieldsType":"FieldsV1"}]"#,
            r#"[{"manager":"m","operation":"Apply","fieldsType":"FieldsV1"}]"#,
            r#"[{"manager":"m","operation":"Apply","apiVersion":"VERSION"}]"#,
            r#"[{"manager":"m","operation":"Apply","apiVersion":"VERSION","fieldsType":"FieldsV2"}]"#,
            r#"[{"manager":"m","operation":"Apply","apiVersion":"VERSION","fieldsType":"FieldsV1","fieldsV1":{"a":{}}}]"#,
            r#"[{"manager":"m","operation":"Apply","apiVersion":"VERSION","fieldsType":"FieldsV1","fieldsV1":{"f:data":{}},"time":"2026-01-01T00:00:00Z"}]"#,
        ] {
            court.same("PATCH", one, MERGE, &touched(managed), Equal::All).await;
            court
                .same("PATCH", one, MERGE, r#"{"metadata":{"labels":{"x":"z"}}}"#, Equal::All)
                .await;
            court.judge(apply(one, "one", true, &body)).await;
        }
        for operation in [
            r#"[{"op":"replace","path":"/metadata/managedFields","value":[{}]}]"#,
            r#"[{"op":"add","path":"/metadata/labels","value":{"q":"r"}}]"#,
        ] {
            court.same("PATCH", one, JSON_PATCH, operation, Equal::All).await;
        }
        court.judge(apply(one, "two", false, &body)).await;
        court.judge(apply(one, "two", true, &body)).await;
    }
    court.sentence();
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_is_spared_conflicts_with_its_own_past() {
    let served = Served::start().await;
    let mut court = Court::sit(&served).await;
    let last = config_map(&json!({"a": "1", "b": "1", "c": "1"}));
    let body = |data: Value| {
        let mut object: Value = serde_json::from_str(&config_map(&data)).unwrap();
        object["metadata"]["annotations"] = json!({"kubectl.kubernetes.io/last-applied-configuration": last, "x": "y"});
        object.to_string()
    };
    let create = "CORE/configmaps?fieldManager=kubectl-client-side-apply";
    court
        .same(
            "POST",
            create,
            JSON,
            &body(json!({"a": "1", "b": "1", "c": "1"})),
            Equal::All,
        )
        .await;
    let one = "CORE/configmaps/a";
    court
        .same(
            "PATCH",
            &format!("{one}?fieldManager=other"),
            MERGE,
            r#"{"data":{"c":"7"}}"#,
            Equal::All,
        )
        .await;
    for (manager, force, data) in [
        ("someone", false, json!({"a": "2"})),
        ("kubectl", false, json!({"a": "2", "c": "2"})),
        ("kubectl", false, json!({"a": "2", "b": "<1>"})),
        ("kubectl", true, json!({"a": "3", "c": "3"})),
        ("kubectl", false, json!({"a": "3"})),
    ] {
        court.judge(apply(one, manager, force, &config_map(&data))).await;
    }
    court.sentence();
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_oldest_updaters_are_remembered_as_one() {
    let served = Served::start().await;
    let mut court = Court::sit(&served).await;
    court
        .judge(apply(
            "CORE/configmaps/a",
            "one",
            false,
            &config_map(&json!({"a": "1"})),
        ))
        .await;
    for n in 1..=13 {
        let path = format!("CORE/configmaps/a?fieldManager=m{n:02}");
        court
            .same(
                "PATCH",
                &path,
                MERGE,
                &format!(r#"{{"data":{{"k{n}":"x"}}}}"#),
                Equal::All,
            )
            .await;
    }
    court.sentence();
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn items_that_must_differ_are_told_in_the_same_words() {
    let served = Served::start().await;
    let mut court = Court::sit(&served).await;
    let twice = GRANT.replace(r#"["NS"]"#, r#"["NS","other","NS"]"#);
    court.same("POST", GRANTS, JSON, &twice, Equal::All).await;
    court.same("POST", GRANTS, JSON, GRANT, Equal::All).await;
    let one = format!("{GRANTS}/NS-a");
    court
        .same(
            "PATCH",
            &one,
            MERGE,
            r#"{"spec":{"verbs":["deploy","deploy"]}}"#,
            Equal::All,
        )
        .await;
    court
        .same(
            "PATCH",
            &one,
            MERGE,
            r#"{"spec":{"deniedKinds":["a","a","b","b"]}}"#,
            Equal::All,
        )
        .await;
    let service = r#"SD{"metadata":{"name":"x"},"spec":{"clusterRef":{"name":"east"},"targetNamespace":"web","sourceRef":{"name":"infra"},"secrets":[{"name":"a"},{"name":"a"}]}}"#;
    court
        .same("POST", "OWN/servicedeployments", JSON, service, Equal::All)
        .await;
    court.sentence();
    served.stop().await;
}

/// What says how lists and objects are merged, by schema and field.
fn merge_keywords(document: &Value) -> Vec<(String, Value)> {
    let keywords = |schema: &Value| -> Value {
        let fields = schema.as_object().into_iter().flatten();
        let told = [
            "list-type",
            "list-map-keys",
            "map-type",
            "patch-strategy",
            "patch-merge-key",
            "preserve-unknown-fields",
        ];
        fields
            .filter(|(name, _)| {
                name.strip_prefix("x-kubernetes-")
                    .is_some_and(|name| told.contains(&name))
            })
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect::<serde_json::Map<_, _>>()
            .into()
    };
    let mut found = Vec::new();
    let mut open: Vec<(String, &Value)> = Vec::new();
    open.extend(
        document["components"]["schemas"]
            .as_object()
            .into_iter()
            .flatten()
            .map(|(k, v)| (k.clone(), v)),
    );
    while let Some((path, schema)) = open.pop() {
        found.push((path.clone(), keywords(schema)));
        let properties = schema["properties"].as_object().into_iter().flatten();
        open.extend(properties.map(|(name, schema)| (format!("{path}.{name}"), schema)));
        open.extend(schema.get("items").map(|items| (format!("{path}[]"), items)));
    }
    found.retain(|(_, keywords)| keywords.as_object().is_some_and(|map| !map.is_empty()));
    // No CustomResourceDefinition can state this kind.
    found.retain(|(path, _)| !path.contains(".GrantedCluster"));
    found.sort_by(|a, b| a.0.cmp(&b.0));
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_and_objects_are_merged_as_kubernetes_documents_it() {
    let served = Served::start().await;
    let court = Court::sit(&served).await;
    for document in [
        "api/v1",
        "apis/rbac.authorization.k8s.io/v1",
        "apis/farwater.dev/v1alpha1",
    ] {
        let step = Step::get(&format!("/openapi/v3/{document}")).accept(JSON);
        let (real, ours) = (court.real.ask(&step).await.value, court.ours.ask(&step).await.value);
        let served = |path: &str| {
            let schemas = ours["components"]["schemas"].as_object().unwrap();
            schemas.keys().any(|name| {
                path.strip_prefix(name.as_str())
                    .is_some_and(|r| r.is_empty() || r.starts_with(['.', '[']))
            })
        };
        let mut expected = merge_keywords(&real);
        expected.retain(|(path, _)| served(path));
        assert!(!expected.is_empty());
        assert_eq!(merge_keywords(&ours), expected, "{document}");
    }
    let step = Step::get("/openapi/v3/api/v1").accept(JSON);
    for side in [&court.real, &court.ours] {
        let document = side.ask(&step).await.value;
        let patch = &document["paths"]["/api/v1/namespaces/{namespace}/configmaps/{name}"]["patch"];
        let named = |name: &str| {
            patch["parameters"]
                .as_array()
                .unwrap()
                .iter()
                .any(|p| p["name"] == name)
        };
        assert!(named("force") && named("fieldManager") && named("fieldValidation"));
        assert!(patch["requestBody"]["content"][APPLY].is_object());
    }
    served.stop().await;
}
