//! Watches over HTTP, event by event.

use std::time::Duration;

use farwater_testkit::kube::client;
use http::Request;
use http_body_util::BodyExt as _;
use kube::{Client, client::Body};
use serde_json::{Value, json};

use crate::support::Served;

const CONFIG_MAPS: &str = "/api/v1/namespaces/farwater-admin/configmaps";
/// What the hub keeps of changes for watches: 32 MiB. As many bytes of ConfigMaps leave nothing older.
const KEPT: usize = 32 << 20;
const LARGE: usize = 1_000_000;

async fn ask(client: &Client, method: &str, path: &str, body: &Value) -> (u16, Vec<u8>) {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", "application/json");
    let request = request.body(Body::from(body.to_string().into_bytes())).unwrap();
    let answer = tokio::time::timeout(Duration::from_secs(60), client.send(request))
        .await
        .unwrap()
        .unwrap();
    let code = answer.status().as_u16();
    (code, answer.into_body().collect().await.unwrap().to_bytes().to_vec())
}

async fn write(client: &Client, method: &str, path: &str, object: &Value) -> Value {
    let (code, body) = ask(client, method, path, object).await;
    assert!((200..300).contains(&code), "{code}: {}", String::from_utf8_lossy(&body));
    serde_json::from_slice(&body).unwrap()
}

/// The events of a watch that ends by itself.
async fn events(client: &Client, query: &str) -> Vec<Value> {
    let (code, body) = ask(
        client,
        "GET",
        &format!("{CONFIG_MAPS}?watch=true&timeoutSeconds=1{query}"),
        &json!({}),
    )
    .await;
    assert_eq!(code, 200, "{}", String::from_utf8_lossy(&body));
    body.split(|byte| *byte == b'\n')
        .filter(|l| !l.is_empty())
        .map(|l| serde_json::from_slice(l).unwrap())
        .collect()
}

fn config_map(name: &str, value: String) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": value}})
}

fn version(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_from_a_compacted_version_is_told_to_list_again() {
    let served = Served::start().await;
    let client = client(&served.running.admin_kubeconfig, None).await.unwrap();
    let old = version(&write(&client, "POST", CONFIG_MAPS, &config_map("a", "1".into())).await);
    let path = format!("{CONFIG_MAPS}/large");
    write(&client, "POST", CONFIG_MAPS, &config_map("large", String::new())).await;
    for n in 0..=KEPT / LARGE {
        write(
            &client,
            "PUT",
            &path,
            &config_map("large", format!("{n}{}", "x".repeat(LARGE))),
        )
        .await;
    }

    let told = events(&client, &format!("&resourceVersion={old}")).await;
    let [event] = &told[..] else {
        panic!("one event, and the watch ends: {told:?}")
    };
    assert_eq!(event["type"], "ERROR");
    let status = &event["object"];
    assert_eq!(
        (&status["kind"], &status["status"]),
        (&json!("Status"), &json!("Failure"))
    );
    assert_eq!((&status["code"], &status["reason"]), (&json!(410), &json!("Expired")));
    // As kube-apiserver words it, with the oldest version that a watch can begin at.
    let message = status["message"].as_str().unwrap();
    let oldest = message
        .strip_prefix(&format!("too old resource version: {old} ("))
        .and_then(|m| m.strip_suffix(')'));
    let oldest: u64 = oldest
        .and_then(|oldest| oldest.parse().ok())
        .unwrap_or_else(|| panic!("{message}"));
    assert!(oldest > old, "{message}");

    // What client-go does then: it lists, and watches from there.
    let (_, list) = ask(&client, "GET", CONFIG_MAPS, &json!({})).await;
    let listed = version(&serde_json::from_slice(&list).unwrap());
    let changed = version(
        &write(
            &client,
            "PUT",
            &format!("{CONFIG_MAPS}/a"),
            &config_map("a", "2".into()),
        )
        .await,
    );
    let seen = events(&client, &format!("&resourceVersion={listed}&allowWatchBookmarks=true")).await;
    let [modified, bookmark] = &seen[..] else {
        panic!("the change and a bookmark: {seen:?}")
    };
    assert_eq!(
        (modified["type"].as_str(), version(&modified["object"])),
        (Some("MODIFIED"), changed)
    );
    assert_eq!(bookmark["type"], "BOOKMARK");
    let object = &bookmark["object"];
    assert_eq!(
        (&object["kind"], &object["apiVersion"]),
        (&json!("ConfigMap"), &json!("v1"))
    );
    assert!(version(object) >= changed);
    // Nothing but the version: it is no object, and it ends no initial state.
    assert_eq!(object["metadata"].as_object().unwrap().len(), 1, "{object}");
    assert_eq!(
        events(&client, &format!("&resourceVersion={}", version(object))).await,
        Vec::<Value>::new()
    );
    served.stop().await;
}
