//! Attacks that once worked, each as it was found.

use std::time::Duration;

use farwater_testkit::{kube::client, wait_for};
use http::Request;
use http_body_util::BodyExt as _;
use kube::{Client, client::Body};
use serde_json::{Value, json};

use crate::support::Served;

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
/// For what happens soon.
const PATIENCE: Duration = Duration::from_secs(30);

struct World {
    served: Served,
    admin: Client,
}

impl World {
    /// Two tenants' namespaces. `viewer` may read team-a, and `owner` do anything in it.
    async fn start() -> Self {
        let served = Served::start().await;
        let admin = client(&served.running.admin_kubeconfig, None).await.unwrap();
        let world = Self { served, admin };
        for name in ["team-a", "team-b"] {
            world
                .make("/api/v1/namespaces", json!({"metadata": {"name": name}}))
                .await;
        }
        world
            .bind("team-a", "view", json!({"kind": "User", "name": "viewer"}))
            .await;
        world
            .bind("team-a", "cluster-admin", json!({"kind": "User", "name": "owner"}))
            .await;
        world
    }

    async fn send(&self, user: Option<&str>, method: &str, path: &str, kind: &str, body: &Value) -> (u16, Value) {
        let mut request = Request::builder().method(method).uri(path).header("content-type", kind);
        if let Some(user) = user {
            request = request.header("impersonate-user", user);
        }
        let answer = self
            .admin
            .send(request.body(Body::from(body.to_string().into_bytes())).unwrap());
        let answer = tokio::time::timeout(PATIENCE, answer).await.unwrap().unwrap();
        let code = answer.status().as_u16();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        (code, serde_json::from_slice(&body).unwrap_or_default())
    }

    async fn make(&self, path: &str, body: Value) -> Value {
        let (code, answer) = self.send(None, "POST", path, "application/json", &body).await;
        assert!((200..300).contains(&code), "{path}: {answer:#}");
        answer
    }

    async fn bind(&self, namespace: &str, role: &str, mut subject: Value) {
        if subject["kind"] == "User" {
            subject["apiGroup"] = "rbac.authorization.k8s.io".into();
        }
        let name = format!("{role}-{}", subject["name"].as_str().unwrap());
        let body = json!({
            "metadata": {"name": name}, "subjects": [subject],
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        });
        self.make(&format!("{RBAC}/namespaces/{namespace}/rolebindings"), body)
            .await;
    }

    async fn delete(&self, path: &str) {
        let (code, answer) = self.send(None, "DELETE", path, "application/json", &json!({})).await;
        assert_eq!(code, 200, "{path}: {answer:#}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_is_not_reached_through_another() {
    let world = World::start().await;
    let mine = "/api/v1/namespaces/team-a";
    let merge = "application/merge-patch+json";
    let label = json!({"metadata": {"annotations": {"farwater.dev/freeze-prunes": "true"}}});
    for (method, path, kind, body) in [
        ("GET", format!("{mine}/namespaces"), "application/json", json!({})),
        (
            "GET",
            format!("{mine}/namespaces?watch=true&timeoutSeconds=1"),
            "application/json",
            json!({}),
        ),
        (
            "GET",
            format!("{mine}/namespaces/team-b"),
            "application/json",
            json!({}),
        ),
        (
            "GET",
            format!("{mine}/namespaces?fieldSelector=metadata.name=team-b"),
            "application/json",
            json!({}),
        ),
        (
            "GET",
            format!("{mine}/%6eamespaces/team-b"),
            "application/json",
            json!({}),
        ),
        (
            "POST",
            format!("{mine}/namespaces"),
            "application/json",
            json!({"metadata": {"name": "team-c"}}),
        ),
        (
            "PATCH",
            format!("{mine}/namespaces/farwater-admin"),
            merge,
            label.clone(),
        ),
        (
            "PATCH",
            format!("{mine}/namespaces/team-b/status"),
            merge,
            label.clone(),
        ),
        (
            "PUT",
            format!("{mine}/namespaces/team-b"),
            "application/json",
            json!({"metadata": {"name": "team-b"}}),
        ),
        (
            "DELETE",
            format!("{mine}/namespaces/team-b"),
            "application/json",
            json!({}),
        ),
        ("DELETE", format!("{mine}/namespaces"), "application/json", json!({})),
        // Kinds that lie in no namespace, and a namespace in itself.
        (
            "GET",
            format!("{RBAC}/namespaces/team-a/clusterroles"),
            "application/json",
            json!({}),
        ),
        (
            "GET",
            format!("{mine}/namespaces/team-a"),
            "application/json",
            json!({}),
        ),
    ] {
        for user in ["viewer", "owner"] {
            let (code, answer) = world.send(Some(user), method, &path, kind, &body).await;
            assert!(matches!(code, 403 | 404), "{user} {method} {path}: {code} {answer:#}");
            assert!(
                answer["metadata"]["uid"].is_null() && answer["items"].is_null(),
                "{path}: {answer:#}"
            );
        }
        let (code, answer) = world.send(None, method, &path, kind, &body).await;
        assert_eq!(code, 404, "also for administrators: {method} {path}: {answer:#}");
    }
    let (_, list) = world
        .send(None, "GET", "/api/v1/namespaces", "application/json", &json!({}))
        .await;
    let found = |name: &str| {
        list["items"]
            .as_array()
            .unwrap()
            .iter()
            .find(|item| item["metadata"]["name"] == name)
    };
    assert!(found("team-b").unwrap()["metadata"]["deletionTimestamp"].is_null() && found("team-c").is_none());
    assert!(found("farwater-admin").unwrap()["metadata"]["annotations"]["farwater.dev/freeze-prunes"].is_null());
    // The canonical path is served as before.
    let (code, _) = world
        .send(Some("owner"), "GET", mine, "application/json", &json!({}))
        .await;
    assert_eq!(code, 200);
    world.served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_that_is_sent_is_nested_deeper_than_what_is_stored() {
    let world = World::start().await;
    let path = "/api/v1/namespaces/team-a/configmaps";
    world.make(path, json!({"metadata": {"name": "a"}})).await;
    let nested = |levels: usize| (0..levels).fold(json!(1), |inner, _| json!({"a": inner}));
    // Six copies into their own depths once overflowed the stack and ended the process.
    let mut operations = vec![json!({"op": "add", "path": "/x", "value": nested(100)})];
    let mut place = "/x".to_owned() + &"/a".repeat(100);
    for _ in 0..6 {
        operations.push(json!({"op": "copy", "from": "/x", "path": place}));
        place = format!("{place}{}", &place[2..]);
    }
    let policy = json!({
        "apiVersion": "farwater.dev/v1alpha1", "kind": "ServiceContext", "metadata": {"name": "deep"},
        "spec": {"configuration": nested(115)},
    });
    let contexts = "/apis/farwater.dev/v1alpha1/namespaces/team-a/servicecontexts";
    for (method, path, kind, body) in [
        (
            "PATCH",
            format!("{path}/a"),
            "application/json-patch+json",
            json!(operations),
        ),
        (
            "PATCH",
            format!("{path}/a"),
            "application/merge-patch+json",
            json!({"data": nested(115)}),
        ),
        (
            "PATCH",
            format!("{path}/a"),
            "application/strategic-merge-patch+json",
            json!({"data": nested(115)}),
        ),
        ("POST", contexts.to_owned(), "application/json", policy.clone()),
    ] {
        let (code, answer) = world.send(None, method, &path, kind, &body).await;
        assert_eq!(code, 422, "{method} {path} {kind}: {answer:#}");
        assert!(
            answer["message"]
                .as_str()
                .unwrap()
                .contains("nested more than 110 levels deep"),
            "{answer:#}"
        );
    }
    // YAML ends earlier.
    let apply = format!("{contexts}/deep?fieldManager=x");
    let (code, answer) = world
        .send(None, "PATCH", &apply, "application/apply-patch+yaml", &policy)
        .await;
    assert_eq!(code, 400, "{answer:#}");
    world.make(path, json!({"metadata": {"name": "b"}})).await;
    world.served.stop().await;
}

/// A watch of the Secrets of team-a with this token, and whether it ends with this code in the time that is promised.
async fn ends_with(world: &World, change: impl AsyncFnOnce(), token: &str, code: u16) {
    let secrets = "/api/v1/namespaces/team-a/secrets";
    let kubeconfig = kube::config::Kubeconfig::read_from(&world.served.running.admin_kubeconfig).unwrap();
    let options = kube::config::KubeConfigOptions::default();
    let mut config = kube::Config::from_custom_kubeconfig(kubeconfig, &options)
        .await
        .unwrap();
    config.auth_info = kube::config::AuthInfo {
        token: Some(token.to_owned().into()),
        ..Default::default()
    };
    let watcher = Client::try_from(config).unwrap();
    let request = Request::get(format!("{secrets}?watch=true&timeoutSeconds=100000000"))
        .body(Body::empty())
        .unwrap();
    let mut watch = watcher.send(request).await.unwrap().into_body();
    change().await;
    let begun = std::time::Instant::now();
    let mut seen = Vec::new();
    let ending = async {
        while let Some(frame) = watch.frame().await {
            seen.extend_from_slice(&frame.unwrap().into_data().unwrap_or_default());
        }
    };
    tokio::time::timeout(PATIENCE, ending).await.expect("the watch ends");
    let took = begun.elapsed();
    world
        .make(secrets, json!({"metadata": {"generateName": "later-"}}))
        .await;
    let last = seen
        .split(|byte| *byte == b'\n')
        .rfind(|line| !line.is_empty())
        .unwrap();
    let last: Value = serde_json::from_slice(last).unwrap();
    assert_eq!(
        (&last["type"], &last["object"]["code"]),
        (&json!("ERROR"), &json!(code)),
        "{last:#}"
    );
    assert!(took < PATIENCE, "{took:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_ends_with_the_right_and_with_the_account_that_it_was_opened_with() {
    let world = World::start().await;
    let accounts = "/api/v1/namespaces/team-a/serviceaccounts";
    world.make(accounts, json!({"metadata": {"name": "reader"}})).await;
    world
        .bind(
            "team-a",
            "admin",
            json!({"kind": "ServiceAccount", "name": "reader", "namespace": "team-a"}),
        )
        .await;
    let token = world
        .make(&format!("{accounts}/reader/token"), json!({"spec": {}}))
        .await;
    let token = token["status"]["token"].as_str().unwrap().to_owned();
    let binding = format!("{RBAC}/namespaces/team-a/rolebindings/admin-reader");
    ends_with(&world, async || world.delete(&binding).await, &token, 403).await;
    world
        .bind(
            "team-a",
            "admin",
            json!({"kind": "ServiceAccount", "name": "reader", "namespace": "team-a"}),
        )
        .await;
    ends_with(
        &world,
        async || world.delete(&format!("{accounts}/reader")).await,
        &token,
        401,
    )
    .await;
    world.served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_lies_in_another_namespace_holds_no_deletion() {
    let world = World::start().await;
    let maps = |namespace: &str| format!("/api/v1/namespaces/{namespace}/configmaps");
    let owner = world
        .make(&maps("team-a"), json!({"metadata": {"name": "owner"}}))
        .await;
    let reference = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"], "blockOwnerDeletion": true,
    });
    let held = json!({"metadata": {"name": "held", "finalizers": ["example.com/x"], "ownerReferences": [reference]}});
    world.make(&maps("team-b"), held).await;
    let path = format!("{}/owner", maps("team-a"));
    let foreground = json!({"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Foreground"});
    world.send(None, "DELETE", &path, "application/json", &foreground).await;
    wait_for("the owner to go", PATIENCE, || async {
        let (code, _) = world.send(None, "GET", &path, "application/json", &json!({})).await;
        Ok((code == 404).then_some(()))
    })
    .await
    .unwrap();
    world.served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policys_limit_that_makes_no_sense_is_refused() {
    let world = World::start().await;
    let policy = json!({
        "apiVersion": "farwater.dev/v1alpha1", "kind": "AgentPolicy", "metadata": {"name": "a"},
        "spec": {"clusterSelector": {}, "image": "example.com/agent:0.2.0", "maxUnavailable": "nonsense"},
    });
    let path = "/apis/farwater.dev/v1alpha1/agentpolicies";
    let (code, answer) = world.send(None, "POST", path, "application/json", &policy).await;
    assert_eq!(code, 422, "{answer:#}");
    assert!(
        answer["message"].as_str().unwrap().contains("spec.maxUnavailable"),
        "{answer:#}"
    );
    world.served.stop().await;
}
