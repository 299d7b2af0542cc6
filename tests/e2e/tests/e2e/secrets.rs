//! A Secret of the hub in a cluster: sealed in transit, in plain text only in the two API servers.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use farwater_e2e::{Fleet, config_map, files_with};
use farwater_testkit::{Plane, shared};
use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::json;

const FIRST: &str = "correct-horse-battery";
const SECOND: &str = "staple-of-another-kind";

async fn password(plane: &Plane, namespace: &str) -> Result<Option<String>> {
    let api: Api<Secret> = Api::namespaced(plane.client().await?, namespace);
    let secret = api.get_opt("database").await?;
    let value = secret.and_then(|s| s.data?.get("password").cloned());
    Ok(value.map(|value| String::from_utf8_lossy(&value.0).into_owned()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_secret_of_the_hub_reaches_the_cluster_sealed_and_follows_its_changes() -> Result<()> {
    let plane = shared(1).await?;
    let mut fleet = Fleet::start().await?;
    fleet.join("east", plane).await?;
    let secrets: Api<Secret> = fleet.api();
    let secret = |value: &str| json!({"metadata": {"name": "database"}, "stringData": {"password": value}});
    secrets
        .create(&PostParams::default(), &serde_json::from_value(secret(FIRST))?)
        .await?;
    let (a, b) = (config_map("a", "one"), config_map("b", "one"));
    let repository = fleet
        .repository("infra", &[("app/a.yaml", &a), ("app/b.yaml", &b)])
        .await?;
    fleet
        .deploy_with(
            "app",
            "east",
            "infra",
            "app",
            json!({"secrets": [{"name": "database"}]}),
        )
        .await?;
    fleet
        .until_applied("app", &repository.branch("main").unwrap_or_default())
        .await?;
    let namespace = fleet.namespace("app");
    ensure!(password(plane, &namespace).await?.as_deref() == Some(FIRST));
    let objects = fleet.objects("app").await?;
    ensure!(
        objects
            .iter()
            .any(|o| o.object.kind == "Secret" && o.object.name == "database"),
        "{objects:#?}"
    );

    // A new value arrives without a commit. A change in the cluster is undone.
    secrets
        .patch(
            "database",
            &PatchParams::default(),
            &Patch::Merge(json!({"stringData": {"password": SECOND}})),
        )
        .await?;
    let arrives = || async { Ok((password(plane, &namespace).await?.as_deref() == Some(SECOND)).then_some(())) };
    fleet.until("the new password to arrive", arrives).await?;
    let there: Api<Secret> = Api::namespaced(plane.client().await?, &namespace);
    let other = json!({"stringData": {"password": "changed by hand"}});
    there
        .patch("database", &PatchParams::default(), &Patch::Merge(other))
        .await?;
    fleet.until("the password to be put back", arrives).await?;

    // With the hub away and the state directory lost, the agent still corrects drift: the sealed copy is in the
    // cluster.
    fleet.hub.kill9();
    fleet.agent("east")?.kill9();
    fs::remove_dir_all(fleet.state_dir("east"))?;
    there.delete("database", &DeleteParams::default()).await?;
    fleet.agent("east")?.restart()?;
    fleet
        .until("the Secret to be made again with the hub away", arrives)
        .await?;
    fleet.hub.restart().await?;

    // The hub's files, the agent's files and the agent's Secrets in the cluster contain no value in plain text.
    let texts = [FIRST.to_owned(), SECOND.to_owned(), base64(FIRST), base64(SECOND)];
    let found = files_with(fleet.hub.dir(), &texts)?;
    ensure!(found.is_empty(), "in the clear: {found:?}");
    let found = files_with(&fleet.state_dir("east"), &texts)?;
    ensure!(found.is_empty(), "in the clear: {found:?}");
    let own: Api<Secret> = Api::namespaced(plane.client().await?, "farwater-system");
    for secret in own.list(&ListParams::default()).await? {
        for value in secret.data.into_iter().flatten().map(|(_, value)| value.0) {
            let text = String::from_utf8_lossy(&value).into_owned();
            ensure!(
                texts.iter().all(|secret| !text.contains(secret)),
                "in the clear: {:?}",
                secret.metadata.name
            );
        }
    }

    // Deleted at the hub, nothing is deleted in the cluster: the service is held and says why.
    secrets.delete("database", &DeleteParams::default()).await?;
    fleet
        .until_condition("app", "Ready", "False", "Secret database does not exist")
        .await?;
    fleet
        .stays("the Secret stays", "app", || async {
            Ok(password(plane, &namespace).await?.as_deref() == Some(SECOND))
        })
        .await?;

    // When it is no longer referenced, it is pruned like any object that left the source.
    let patch = json!({"spec": {"secrets": null}});
    fleet
        .api::<farwater_api::ServiceDeployment>()
        .patch("app", &PatchParams::default(), &Patch::Merge(patch))
        .await
        .context("drop the Secret from the service")?;
    fleet
        .until("the Secret to go", || async {
            Ok(password(plane, &namespace).await?.is_none().then_some(()))
        })
        .await?;
    Ok(())
}

/// Base64, as in a Secret's data.
fn base64(text: &str) -> String {
    let value = serde_json::to_value(ByteString(text.as_bytes().to_vec())).unwrap_or_default();
    value.as_str().unwrap_or_default().to_owned()
}
