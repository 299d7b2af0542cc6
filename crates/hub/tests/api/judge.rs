//! The real kube-apiserver judges ours: the same requests go to it, with our kinds installed as custom resources, and to a
//! hub, and the answers must be equal but for uids, times and versions.

use std::time::Duration;

use crate::support::Served;
use farwater_testkit::kube::{client, shared, unique_name};
use http::Request;
use http_body_util::BodyExt as _;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Client,
    api::{Api, PostParams},
    client::Body,
};
use serde_json::{Value, json};

const JSON: &str = "application/json";
const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const JSON_PATCH: &str = "application/json-patch+json";
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
const PARTIAL: &str = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";
const PARTIAL_LIST: &str = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";

/// How much of two answers must be equal.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Equal {
    All,
    /// All but `message` and the causes' messages: Go's own words of a parser, or a longer explanation of ours.
    ButText,
    /// Status code, reason and kind.
    Reason,
}

struct Step {
    method: &'static str,
    path: String,
    kind: &'static str,
    accept: &'static str,
    body: String,
    equal: Equal,
}

/// The servers side by side, in a namespace of one name on both.
struct Court {
    real: Client,
    ours: Client,
    namespace: String,
    differences: Vec<String>,
}

fn normalize(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|key, value| {
                let same_when_empty = matches!(key.as_str(), "continue" | "format");
                !matches!(key.as_str(), "managedFields" | "remainingItemCount")
                    && !(same_when_empty && (value == "" || value.is_null()))
            });
            for (key, value) in map.iter_mut() {
                match key.as_str() {
                    "uid"
                    | "resourceVersion"
                    | "creationTimestamp"
                    | "deletionTimestamp"
                    | "lastTransitionTime"
                    | "continue"
                    | "expirationTimestamp"
                    | "token"
                        if value.is_string() =>
                    {
                        *value = json!("*");
                    }
                    "description" => *value = json!(""),
                    // A nil slice of Go's.
                    "items" if value.is_null() => *value = json!([]),
                    "cells" => value.as_array_mut().unwrap().iter_mut().for_each(normalize_cell),
                    _ => normalize(value),
                }
            }
            // Go's order of causes is that of a map.
            if let Some(causes) = map.get_mut("causes").and_then(Value::as_array_mut) {
                causes.sort_by_key(|c| (c["field"].to_string(), c["message"].to_string()));
                causes.dedup();
                map.get_mut("message").map(Value::take);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(normalize),
        _ => {}
    }
}

/// Ages.
fn normalize_cell(cell: &mut Value) {
    let age = |text: &str| {
        text.len() < 8 && text.ends_with(['s', 'm', 'h']) && text.starts_with(|c: char| c.is_ascii_digit())
    };
    if cell.as_str().is_some_and(age) {
        *cell = json!("*");
    }
}

/// Both messages where Go's is a list in no certain order.
fn sort_message(status: &mut Value) {
    if status["details"]["causes"].is_array() {
        status["message"] = Value::Null;
    }
}

fn drop_text(value: &mut Value) {
    value["message"] = Value::Null;
    for cause in value["details"]["causes"].as_array_mut().into_iter().flatten() {
        cause["message"] = Value::Null;
    }
}

impl Court {
    async fn ask(client: &Client, step: &Step) -> (u16, Value, Vec<String>) {
        let request = Request::builder()
            .method(step.method)
            .uri(&step.path)
            .header("content-type", step.kind)
            .header("accept", step.accept)
            .body(Body::from(step.body.clone().into_bytes()))
            .unwrap();
        let response = tokio::time::timeout(Duration::from_secs(30), client.send(request)).await.unwrap().unwrap();
        let code = response.status().as_u16();
        let warnings = response.headers().get_all("warning").iter().map(|w| w.to_str().unwrap().to_owned()).collect();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        let value = serde_json::from_slice(&bytes).unwrap_or_else(|_| {
            let lines = bytes.split(|b| *b == b'\n').filter(|l| !l.is_empty());
            lines.map(|l| serde_json::from_slice(l).unwrap_or(Value::Null)).collect()
        });
        (code, value, warnings)
    }

    async fn judge(&mut self, step: Step) {
        let mut real = Self::ask(&self.real, &step).await;
        let mut ours = Self::ask(&self.ours, &step).await;
        for (_, value, _) in [&mut real, &mut ours] {
            normalize(value);
            sort_message(value);
            match step.equal {
                Equal::All => {}
                Equal::ButText => drop_text(value),
                Equal::Reason => *value = json!([value["reason"], value["kind"]]),
            }
        }
        if real != ours {
            self.differences.push(format!(
                "{} {} {}\n  real: {} {} {:?}\n  ours: {} {} {:?}",
                step.method, step.path, step.body, real.0, real.1, real.2, ours.0, ours.1, ours.2
            ));
        }
    }

    /// `path` and `body` with the namespace in place of `NS`.
    async fn same(&mut self, method: &'static str, path: &str, kind: &'static str, body: &str, equal: Equal) {
        self.judge(self.step(method, path, kind, JSON, body, equal)).await;
    }

    async fn same_read(&mut self, path: &str, accept: &'static str) {
        self.judge(self.step("GET", path, JSON, accept, "", Equal::All)).await;
    }

    fn step(
        &self,
        method: &'static str,
        path: &str,
        kind: &'static str,
        accept: &'static str,
        body: &str,
        equal: Equal,
    ) -> Step {
        let core = format!("/api/v1/namespaces/{}", self.namespace);
        let own = format!("/apis/farwater.dev/v1alpha1/namespaces/{}", self.namespace);
        let rbac = format!("/apis/rbac.authorization.k8s.io/v1/namespaces/{}", self.namespace);
        let path =
            path.replace("CORE", &core).replace("OWN", &own).replace("RBAC", &rbac).replace("NS", &self.namespace);
        let body = body
            .replace("SD{", r#"{"apiVersion":"farwater.dev/v1alpha1","kind":"ServiceDeployment","#)
            .replace("NS", &self.namespace);
        Step { method, path, kind, accept, body, equal }
    }

    fn sentence(self) {
        assert!(
            self.differences.is_empty(),
            "{} answers differ:\n{}",
            self.differences.len(),
            self.differences.join("\n")
        );
    }
}

async fn install_kinds(real: &Client) {
    let crds: Api<CustomResourceDefinition> = Api::all(real.clone());
    for crd in farwater_api::custom_resource_definitions() {
        match crds.create(&PostParams::default(), &crd).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(error) => panic!("{error}"),
        }
    }
    farwater_testkit::wait_for("our kinds to be served", Duration::from_secs(30), || async {
        let list = Request::get("/apis/farwater.dev/v1alpha1/servicedeployments").body(Vec::new())?;
        real.request_text(list).await?;
        Ok(Some(()))
    })
    .await
    .unwrap();
}

async fn court(served: &Served) -> Court {
    let real = shared(1).await.unwrap().client().await.unwrap();
    install_kinds(&real).await;
    let ours = client(&served.running.admin_kubeconfig, None).await.unwrap();
    let mut court = Court { real, ours, namespace: unique_name("judge"), differences: Vec::new() };
    court.same("POST", "/api/v1/namespaces", JSON, r#"{"metadata":{"name":"NS"}}"#, Equal::All).await;
    court
}

#[tokio::test(flavor = "multi_thread")]
async fn our_kinds_are_served_as_custom_resources_are() {
    let served = Served::start().await;
    let mut court = court(&served).await;
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
    court.same("POST", list, JSON, &repo("c", "https://x/y").replace("spec", "spcc"), all).await;
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
    court.same("POST", &format!("{list}?dryRun=Some"), JSON, &repo("c", "https://x/y"), all).await;
    court.same("POST", &format!("{list}?fieldValidation=Some"), JSON, &repo("c", "https://x/y"), all).await;
    court.same("POST", list, "text/plain", &repo("c", "https://x/y"), Equal::Reason).await;
    court.same("POST", list, "application/yaml", "apiVersion: farwater.dev/v1alpha1\nkind: GitRepository\nmetadata: {name: yaml}\nspec: {url: 'https://x/y'}\n", all).await;
    court.same("POST", "OWN/servicedeployments?dryRun=All", JSON, r#"SD{"metadata":{"name":"x"},"spec":{"clusterRef":{},"targetNamespace":"A_b","path":5,"deletionPolicy":"Foo","prune":"yes"}}"#, all).await;
    court.same("POST", "OWN/servicedeployments", JSON, r#"SD{"metadata":{"name":"x"}}"#, all).await;
    court.same("POST", "OWN/servicedeployments", JSON, r#"SD{"metadata":{}}"#, all).await;
    court.same("POST", "OWN/servicedeployments", JSON, r#"SD{"metadata":{"labels":5}}"#, all).await;
    court
        .same(
            "POST",
            "OWN/servicedeployments",
            JSON,
            r#"SD{"metadata":{"name":"x","namespace":"other"},"spec":{}}"#,
            all,
        )
        .await;
    court.same("POST", "OWN/servicedeployments", JSON, "{", Equal::ButText).await;
    court.same("POST", "OWN/servicedeployments", JSON, "[]", Equal::ButText).await;
    court.same("POST", "OWN/servicedeployments", JSON, r#"{"apiVersion":"v1","kind":"ConfigMap"}"#, all).await;
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

/// A kind that no controller writes to, so that both servers have the same.
const GRANT: &str = r#"{"apiVersion":"farwater.dev/v1alpha1","kind":"ClusterGrant","metadata":{"name":"NS-a","labels":{"of":"NS"}},"spec":{"clusterSelector":{},"namespaces":["NS"],"verbs":["deploy"],"serviceAccountName":"a"}}"#;
const GRANTS: &str = "/apis/farwater.dev/v1alpha1/clustergrants";

#[tokio::test(flavor = "multi_thread")]
async fn updates_and_patches_leave_what_kubernetes_leaves() {
    let served = Served::start().await;
    let mut court = court(&served).await;
    let all = Equal::All;
    let one = format!("{GRANTS}/NS-a");
    let one = one.as_str();
    court.same("POST", GRANTS, JSON, GRANT, all).await;
    for (kind, patch) in [
        (MERGE, r#"{"spec":{"serviceAccountName":"b"},"status":{"observedGeneration":7}}"#),
        (MERGE, r#"{"metadata":{"labels":{"b":"c"}}}"#),
        (MERGE, r#"{"spec":{"namespaces":null,"serviceAccountName":null}}"#),
        (MERGE, r#"{"spec":{"allowedSources":null}}"#),
        (MERGE, r#"{"metadata":{"uid":"x"}}"#),
        (MERGE, r#"{"metadata":{"resourceVersion":"1"}}"#),
        (MERGE, r#"{"metadata":{"name":"z"}}"#),
        (MERGE, r#"{"metadata":{"finalizers":["x","example.com/y"]}}"#),
        (JSON_PATCH, r#"[{"op":"replace","path":"/spec/verbs/0","value":"view"}]"#),
        (JSON_PATCH, r#"[{"op":"replace","path":"/spec/verbs/0","value":3}]"#),
    ] {
        court.same("PATCH", one, kind, patch, all).await;
    }
    let failing = r#"[{"op":"test","path":"/spec/serviceAccountName","value":"x"}]"#;
    court.same("PATCH", one, JSON_PATCH, failing, Equal::Reason).await;
    court.same("PATCH", one, STRATEGIC, "{}", Equal::ButText).await;
    court.same("PATCH", one, MERGE, "{", Equal::ButText).await;
    court.same("PATCH", &format!("{GRANTS}/NS-none"), MERGE, "{}", all).await;
    court.same("PATCH", &format!("{one}/status"), MERGE, "{}", all).await;
    let versioned = GRANT.replace("\"labels\"", "\"resourceVersion\":\"1\",\"labels\"");
    court.same("PUT", one, JSON, GRANT, Equal::Reason).await;
    court.same("PUT", one, JSON, &GRANT.replace("NS-a", "NS-z"), all).await;
    court.same("PUT", &format!("{GRANTS}/NS-none"), JSON, &versioned.replace("NS-a", "NS-none"), all).await;
    court.same("PUT", one, JSON, &versioned, all).await;
    court.sentence();
    served.stop().await;
}

/// Judged on a source that waits for a finalizer: its controller writes no status any more.
#[tokio::test(flavor = "multi_thread")]
async fn a_status_is_written_as_kubernetes_writes_it() {
    let served = Served::start().await;
    let mut court = court(&served).await;
    let source = r#"{"apiVersion":"farwater.dev/v1alpha1","kind":"GitRepository","metadata":{"name":"a","finalizers":["example.com/x"]},"spec":{"url":"https://x/y","suspend":true}}"#;
    court.same("POST", "OWN/gitrepositories", JSON, source, Equal::All).await;
    let one = "OWN/gitrepositories/a";
    farwater_testkit::wait_for("the controller's status", Duration::from_secs(30), || async {
        let (_, object, _) = Court::ask(&court.ours, &court.step("GET", one, JSON, JSON, "", Equal::All)).await;
        Ok((object["status"]["observedGeneration"] == 1).then_some(()))
    })
    .await
    .unwrap();
    court.same("DELETE", one, JSON, "", Equal::Reason).await;

    let status = format!("{one}/status");
    let conditions = r#"{"status":{"observedGeneration":1,"conditions":[{"type":"Ready","status":"True","reason":"R","message":"m","lastTransitionTime":"2026-01-01T00:00:00Z"}]},"spec":{"url":"https://q/r"}}"#;
    let twice = r#",{"type":"Ready","status":"Maybe","reason":"R","message":"m","lastTransitionTime":"x"}]}"#;
    court.same("PATCH", &status, MERGE, r#"{"status":null}"#, Equal::All).await;
    court.same("PATCH", &status, MERGE, conditions, Equal::All).await;
    court.same("PATCH", &status, MERGE, &conditions.replace("]}", twice), Equal::All).await;
    court.same("PATCH", one, MERGE, r#"{"status":{"observedGeneration":7}}"#, Equal::All).await;
    court.same("PATCH", one, MERGE, r#"{"metadata":{"finalizers":null}}"#, Equal::All).await;
    court.sentence();
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_and_deletes_answer_as_kubernetes_does() {
    let served = Served::start().await;
    let mut court = court(&served).await;
    let all = Equal::All;
    let one = format!("{GRANTS}/NS-a");
    let one = one.as_str();
    court
        .same(
            "POST",
            GRANTS,
            JSON,
            &GRANT.replace("\"labels\"", "\"finalizers\":[\"example.com/x\",\"example.com/y\"],\"labels\""),
            all,
        )
        .await;
    court.same("POST", GRANTS, JSON, &GRANT.replace("NS-a", "NS-b"), all).await;
    for accept in [JSON, TABLE, PARTIAL] {
        court.same_read(one, accept).await;
    }
    for accept in [JSON, TABLE, PARTIAL_LIST] {
        court.same_read(&format!("{GRANTS}?labelSelector=of=NS"), accept).await;
        court.same_read(&format!("{GRANTS}?labelSelector=of=NS&limit=1"), accept).await;
        court.same_read(&format!("{GRANTS}?labelSelector=of%20in%20(NS,b),!of"), accept).await;
        court.same_read(&format!("{GRANTS}?fieldSelector=metadata.name=NS-a"), accept).await;
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
    court.same("DELETE", one, JSON, r#"{"preconditions":{"uid":"x"}}"#, Equal::ButText).await;
    court.same("DELETE", one, JSON, r#"{"propagationPolicy":"Foo"}"#, all).await;
    court.same("DELETE", &format!("{one}?dryRun=All"), JSON, "", all).await;
    court.same("PATCH", one, MERGE, r#"{"metadata":{"finalizers":["example.com/y"]}}"#, all).await;
    court.same("DELETE", one, JSON, r#"{"propagationPolicy":"Background"}"#, all).await;
    court.same("DELETE", one, JSON, "", all).await;
    court.same("PATCH", one, MERGE, r#"{"metadata":{"finalizers":["example.com/y","example.com/z"]}}"#, all).await;
    court.same("PATCH", one, MERGE, r#"{"metadata":{"finalizers":null}}"#, all).await;
    court.same("DELETE", one, JSON, "", all).await;
    court.same("DELETE", &format!("{GRANTS}?labelSelector=of=none"), JSON, "", all).await;
    court.same("DELETE", &format!("{GRANTS}?labelSelector=of=NS"), JSON, "", all).await;
    court.sentence();
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn built_in_kinds_are_served_as_kubernetes_serves_them() {
    let served = Served::start().await;
    let mut court = court(&served).await;
    let all = Equal::All;
    let post = |list: &'static str, body: &'static str| (list, body);
    for (list, body) in [
        post("CORE/configmaps", r#"{"metadata":{"name":"a","labels":{"of":"test"}},"data":{"a":"x"}}"#),
        post("CORE/configmaps", r#"{"metadata":{"name":"b"},"data":{"a b":"x"}}"#),
        post(
            "CORE/configmaps?fieldValidation=Strict",
            r#"{"metadata":{"name":"b","zz":1},"data":{"a":"5"},"bogus":1}"#,
        ),
        post(
            "CORE/configmaps?dryRun=All",
            r#"{"metadata":{"name":"b","finalizers":["a","example.com/x"],"annotations":{"a b":"c"},"ownerReferences":[{"uid":"1"}]}}"#,
        ),
        post("CORE/secrets", r#"{"metadata":{"name":"a"},"type":"kubernetes.io/tls","data":{"a":"eA=="}}"#),
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
        post("CORE/serviceaccounts", r#"{"metadata":{"name":"a","labels":{"of":"test"}},"secrets":[{"name":"one"}]}"#),
        post("CORE/serviceaccounts/a/token", r#"{"spec":{"expirationSeconds":10}}"#),
        post("CORE/serviceaccounts/none/token", r#"{"spec":{}}"#),
        post("CORE/serviceaccounts/a/token", r#"{"metadata":{"name":"b"},"spec":{}}"#),
        post("CORE/events", r#"{"metadata":{"name":"a"},"involvedObject":{"namespace":"zz"}}"#),
        post(
            "CORE/events",
            r#"{"metadata":{"name":"a","labels":{"of":"test"}},"involvedObject":{"namespace":"NS","name":"x","kind":"Cluster"},"reason":"r","message":"m","type":"Normal"}"#,
        ),
        post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", r#"{"spec":{}}"#),
        post("/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", r#"{"spec":{}}"#),
    ] {
        // A review without attributes has no kind in Kubernetes' own message.
        let equal = if list.contains("accessreviews") || body.contains("zz") { Equal::Reason } else { all };
        court.same("POST", list, JSON, body, equal).await;
    }
    court.same("POST", "CORE/configmaps", JSON, r#"{"metadata":{"name":"c"},"data":{"a":5}}"#, Equal::ButText).await;
    court.same("POST", "CORE/secrets", JSON, r#"{"metadata":{"name":"c"},"data":{"a":"x"}}"#, Equal::ButText).await;
    for (path, kind, patch) in [
        ("CORE/configmaps/a", STRATEGIC, r#"{"data":{"a":null,"b":"2"},"metadata":{"finalizers":["a.b/c"]}}"#),
        (
            "CORE/configmaps/a",
            STRATEGIC,
            r#"{"metadata":{"finalizers":["a.b/d"],"$setElementOrder/finalizers":["a.b/d","a.b/c"]}}"#,
        ),
        ("CORE/configmaps/a", STRATEGIC, r#"{"metadata":{"$deleteFromPrimitiveList/finalizers":["a.b/c","a.b/d"]}}"#),
        ("CORE/configmaps/a", STRATEGIC, r#"{"metadata":{"labels":{"$patch":"replace","of":"test"}}}"#),
        ("CORE/serviceaccounts/a", STRATEGIC, r#"{"secrets":[{"name":"two"}]}"#),
        (
            "CORE/serviceaccounts/a",
            STRATEGIC,
            r#"{"$setElementOrder/secrets":[{"name":"one"},{"name":"two"}],"secrets":[{"$patch":"delete","name":"two"}]}"#,
        ),
        ("CORE/serviceaccounts/a", STRATEGIC, r#"{"imagePullSecrets":[{"name":"p"}]}"#),
        ("CORE/secrets/a", MERGE, r#"{"data":{"a":"eHg="},"type":"x"}"#),
        ("CORE/secrets/a", MERGE, r#"{"data":{"a":"eHg="},"immutable":false}"#),
        ("RBAC/rolebindings/a", MERGE, r#"{"metadata":{"labels":{"of":"test"}}}"#),
        ("RBAC/roles/a:b", MERGE, r#"{"metadata":{"labels":{"of":"test"}}}"#),
    ] {
        court.same("PATCH", path, kind, patch, all).await;
    }
    court.same("PATCH", "RBAC/rolebindings/a", MERGE, r#"{"roleRef":{"name":"q"}}"#, Equal::ButText).await;
    court
        .same(
            "PUT",
            "CORE/configmaps/a",
            JSON,
            r#"{"metadata":{"name":"a","labels":{"of":"test"}},"data":{"a":"y"}}"#,
            all,
        )
        .await;
    court.same("PUT", "CORE/configmaps/a", JSON, r#"{"metadata":{"name":"a","resourceVersion":"1"}}"#, all).await;
    court.same("PUT", "CORE/configmaps/none", JSON, r#"{"metadata":{"name":"none"}}"#, all).await;
    for list in
        ["CORE/configmaps", "CORE/secrets", "CORE/serviceaccounts", "CORE/events", "RBAC/roles", "RBAC/rolebindings"]
    {
        for accept in [JSON, TABLE, PARTIAL_LIST] {
            court.same_read(&format!("{list}?labelSelector=of=test"), accept).await;
        }
    }
    court.same_read("CORE/events?fieldSelector=involvedObject.name=x,involvedObject.kind=Cluster", JSON).await;
    court.same_read("CORE/events?fieldSelector=foo=bar", JSON).await;
    court.same_read("CORE/secrets?fieldSelector=type=Opaque", JSON).await;
    court.same_read("/api/v1/namespaces/NS", TABLE).await;
    court.same_read("/api/v2", JSON).await;
    for (method, path) in
        [("POST", "CORE"), ("PUT", "CORE/configmaps"), ("DELETE", "/api/v1/namespaces"), ("POST", "CORE/configmaps/a")]
    {
        court.same(method, path, JSON, "{}", Equal::Reason).await;
    }
    court.same("DELETE", "CORE/configmaps/a", JSON, r#"{"propagationPolicy":"Background"}"#, all).await;
    court.same("DELETE", "CORE/secrets/none", JSON, "", all).await;
    court.same("DELETE", "RBAC/rolebindings?labelSelector=of=test", JSON, "", all).await;
    court.sentence();
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn watches_begin_and_go_on_as_kubernetes_has_them() {
    let served = Served::start().await;
    let mut court = court(&served).await;
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
    for client in [&court.real, &court.ours] {
        let step = court.step("GET", &format!("{GRANTS}?{bookmarks}"), JSON, JSON, "", Equal::All);
        let (code, events, _) = Court::ask(client, &step).await;
        let events = events.as_array().unwrap();
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
