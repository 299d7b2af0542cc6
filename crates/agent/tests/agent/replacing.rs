//! Objects whose change an API server refuses as impossible. They are recreated if that is allowed, and the old state
//! is always kept.

use std::collections::BTreeMap;

use crate::support::{PATIENCE, api, config_map, config_maps, gone, object, outcome, report, value, world::world};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use farwater_api::{
    AGENT_NAMESPACE, SECRET_CONTENT,
    deletion::undo_request,
    objects::{Outcome, SyncState},
};
use farwater_testkit::wait_for;
use kube::{
    Api, Client,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

const RECREATE: &str = "kustomize.toolkit.fluxcd.io/force: enabled";

/// A ConfigMap whose data is immutable.
fn sealed(name: &str, value: &str, annotation: &str) -> String {
    format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}, annotations: {{{annotation}}}}}\n\
         data: {{value: \"{value}\"}}\nimmutable: true\n"
    )
}

/// The states of deleted objects that the agent keeps, by uid.
async fn tombstones(client: &Client) -> BTreeMap<String, Value> {
    let secrets = api(client, "", "v1", "Secret", AGENT_NAMESPACE)
        .list(&ListParams::default())
        .await
        .unwrap();
    let mut states = BTreeMap::new();
    for secret in secrets {
        if !secret.metadata.name.unwrap().starts_with("farwater-tombstone-") {
            continue;
        }
        let content = STANDARD
            .decode(secret.data["data"][SECRET_CONTENT].as_str().unwrap())
            .unwrap();
        let content: Value = serde_json::from_slice(&zstd::bulk::decompress(&content, 16 << 20).unwrap()).unwrap();
        // The first part of a deletion describes it, and the others hold states.
        for kept in content.as_array().into_iter().flatten() {
            let uid = kept["state"]["metadata"]["uid"].as_str().unwrap().to_owned();
            states.insert(uid, kept["state"].clone());
        }
    }
    states
}

async fn uid(maps: &Api<DynamicObject>, name: &str) -> String {
    maps.get(name).await.unwrap().metadata.uid.unwrap()
}

#[tokio::test]
async fn what_can_not_be_changed_is_made_anew_where_that_is_allowed() {
    let world = world().await;
    let place = world.hub.place("sealed");
    let client = world.client().await;
    let files = |value: &str| [("free", RECREATE), ("kept", RECREATE), ("fixed", "")].map(|(n, a)| sealed(n, value, a));
    let [free, kept, fixed] = files("1");
    let first = [("a.yaml", free.as_str()), ("b.yaml", &kept), ("c.yaml", &fixed)];
    let service = world.applied("sealed", &first).await;
    let maps = config_maps(&client, &place);
    let (before, protected) = (uid(&maps, "free").await, uid(&maps, "kept").await);
    let protect = Patch::Merge(json!({"metadata": {"annotations": {"farwater.dev/prune": "disabled"}}}));
    maps.patch("kept", &PatchParams::default(), &protect).await.unwrap();

    let [free, kept, fixed] = files("2");
    let second = [("a.yaml", free.as_str()), ("b.yaml", &kept), ("c.yaml", &fixed)];
    let entry = world.hub.set(service.with(&world.hub, &second).entry());
    let failed = outcome(&world.hub, &entry, Outcome::Failed).await;
    assert_eq!(
        object(&failed, "ConfigMap", "free").sync,
        SyncState::Synced,
        "{failed:#?}"
    );
    assert_ne!(uid(&maps, "free").await, before);
    value(&maps, "free", "2").await;
    let message = &object(&failed, "ConfigMap", "fixed").message;
    assert!(
        message.contains("annotate it in the source with farwater.dev/immutable: Recreate"),
        "{message}"
    );
    value(&maps, "fixed", "1").await;
    // Somebody has protected the live object.
    let message = &object(&failed, "ConfigMap", "kept").message;
    assert!(message.contains("immutable"), "{message}");
    assert!(
        message.contains("its annotation farwater.dev/prune: disabled protects it"),
        "{message}"
    );
    assert_eq!(uid(&maps, "kept").await, protected);
    // The state of the replaced object is kept, but not as a deletion to undo: the object exists again.
    let states = tombstones(&client).await;
    assert_eq!(states[&before]["data"]["value"], "1");
    assert!(!states.contains_key(&protected));
    assert_eq!(failed.deletion, None);
}

/// Makes the API server refuse new objects of this name. It is in effect when this returns.
async fn refuse_new(client: &Client, place: &str, name: &str) {
    let rule = json!({"apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"], "operations": ["CREATE"]});
    let policy = json!({
        "metadata": {"name": place},
        "spec": {
            "matchConstraints": {
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": place}},
                "resourceRules": [rule]},
            "validations": [{"expression": format!("object.metadata.name != '{name}'"), "message": "no new one"}],
            "failurePolicy": "Fail"}});
    let binding = json!({"metadata": {"name": place}, "spec": {"policyName": place, "validationActions": ["Deny"]}});
    for (kind, object) in [
        ("ValidatingAdmissionPolicy", policy),
        ("ValidatingAdmissionPolicyBinding", binding),
    ] {
        let policies = api(client, "admissionregistration.k8s.io", "v1", kind, "");
        policies
            .create(&PostParams::default(), &serde_json::from_value(object).unwrap())
            .await
            .unwrap();
    }
    until_refused(client, place, name, true).await;
}

async fn refuse_no_more(client: &Client, place: &str, name: &str) {
    let bindings = api(
        client,
        "admissionregistration.k8s.io",
        "v1",
        "ValidatingAdmissionPolicyBinding",
        "",
    );
    bindings.delete(place, &DeleteParams::default()).await.unwrap();
    until_refused(client, place, name, false).await;
}

async fn until_refused(client: &Client, place: &str, name: &str, refused: bool) {
    let maps = config_maps(client, place);
    let probe = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    wait_for("the policy to be in force, or no more", PATIENCE, || async {
        let said = maps.create(&dry_run, &probe).await.err().map(|error| error.to_string());
        Ok((said.is_some_and(|said| said.contains("no new one")) == refused).then_some(()))
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn what_could_not_be_made_anew_is_a_deletion_that_can_be_undone() {
    let world = world().await;
    let place = world.hub.place("unmade");
    let client = world.client().await;
    let other = config_map("other", "1");
    let first = [("a.yaml", sealed("lost", "1", RECREATE)), ("b.yaml", other.clone())];
    let first = first.each_ref().map(|(name, text)| (*name, text.as_str()));
    let service = world.applied("unmade", &first).await;
    let maps = config_maps(&client, &place);
    refuse_new(&client, &place, "lost").await;
    let second = [("a.yaml", sealed("lost", "2", RECREATE)), ("b.yaml", other.clone())];
    let second = second.each_ref().map(|(name, text)| (*name, text.as_str()));
    let entry = world.hub.set(service.with(&world.hub, &second).entry());
    let failed = report(&world.hub, &entry, |report| report.deletion.is_some()).await;
    assert!(
        object(&failed, "ConfigMap", "lost").message.contains("no new one"),
        "{failed:#?}"
    );
    let deletion = failed.deletion.unwrap();
    assert_eq!((deletion.count, deletion.objects[0].name.as_str()), (1, "lost"));
    gone(&maps, "lost").await;

    let mut without = service.with(&world.hub, &[("b.yaml", &other)]);
    let entry = world.hub.set(without.entry());
    outcome(&world.hub, &entry, Outcome::Applied).await;
    refuse_no_more(&client, &place, "lost").await;
    without.deployment.undo = Some(undo_request(&deletion.digest, "1"));
    let entry = world.hub.set(without.entry());
    let applied = outcome(&world.hub, &entry, Outcome::Applied).await;
    let undone = applied.deletion.unwrap().undone.unwrap();
    assert_eq!((undone.restored, undone.failed), (1, 0), "{undone:#?}");
    value(&maps, "lost", "1").await;
}
