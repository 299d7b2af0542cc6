//! A cluster that is disconnected for days. It keeps its last accepted state, and continues from there when its hub is
//! back.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use farwater_api::{AGENT_NAMESPACE, Cluster};
use farwater_e2e::{Fleet, config_map, polls};
use farwater_testkit::{Launch, Plane, faketime, ports, shared};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{
    Api, ResourceExt as _,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::json;

/// Without connections, every poll happens at its interval and can be counted.
const LIMIT: (&str, &str) = ("FARWATER_MAX_CONNECTED_AGENTS", "0");
/// Poll interval: longer than an apply takes on a busy machine.
const INTERVAL: &str = "3s";

/// Uid of each ConfigMap by name.
async fn uids(maps: &Api<ConfigMap>) -> Result<BTreeMap<String, String>> {
    let maps = maps.list(&ListParams::default()).await?.items.into_iter();
    let uids = maps.filter_map(|map| Some((map.name_any(), map.metadata.uid?)));
    Ok(uids.filter(|(name, _)| name != "kube-root-ca.crt").collect())
}

/// Versions of each ConfigMap and of everything that the agent stores in the cluster.
async fn versions(maps: &Api<ConfigMap>, plane: &Plane) -> Result<BTreeMap<String, Option<String>>> {
    let secrets: Api<Secret> = Api::namespaced(plane.client().await?, AGENT_NAMESPACE);
    let (maps, secrets) = (
        maps.list(&ListParams::default()).await?,
        secrets.list(&ListParams::default()).await?,
    );
    let maps = maps
        .items
        .into_iter()
        .map(|map| (map.name_any(), map.metadata.resource_version));
    let secrets = secrets
        .items
        .into_iter()
        .map(|secret| (secret.name_any(), secret.metadata.resource_version));
    Ok(maps.chain(secrets).collect())
}

/// The same, after a poll without a write. Some writes follow a report.
async fn versions_at_rest(
    fleet: &Fleet,
    maps: &Api<ConfigMap>,
    plane: &Plane,
    agent: &str,
) -> Result<BTreeMap<String, Option<String>>> {
    fleet
        .until("nothing to be written any more", || async {
            let (first, answered) = (versions(maps, plane).await?, polls(agent).await?);
            fleet
                .until("another poll", || async {
                    Ok((polls(agent).await? > answered).then_some(()))
                })
                .await?;
            Ok((versions(maps, plane).await? == first).then_some(first))
        })
        .await
}

async fn change(maps: &Api<ConfigMap>, name: &str) -> Result<()> {
    let theirs = Patch::Merge(json!({"data": {"value": "theirs"}}));
    let by = PatchParams {
        field_manager: Some("somebody".to_owned()),
        ..PatchParams::default()
    };
    maps.patch(name, &by, &theirs).await?;
    Ok(())
}

/// Waits until a change by hand is undone.
async fn until_repaired(fleet: &Fleet, maps: &Api<ConfigMap>, name: &str) -> Result<()> {
    fleet
        .until(&format!("{name} to be put back"), || async {
            let data = maps.get(name).await?.data.unwrap_or_default();
            Ok((data["value"] == "one").then_some(()))
        })
        .await
}

/// Time of a change by hand that was undone, as the hub shows it.
async fn changed_at(fleet: &Fleet, name: &str) -> Result<Timestamp> {
    let objects = fleet.objects("app").await?;
    let object = objects
        .iter()
        .find(|one| one.object.name == name)
        .with_context(|| format!("{name} in {objects:?}"))?;
    let told = object
        .message
        .split_once("took fields of others: .data.value (somebody), last at ");
    let (_, time) = told.with_context(|| object.message.clone())?;
    Ok(time.split(';').next().unwrap_or_default().parse()?)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_was_alone_for_days_is_repaired_meanwhile_and_has_what_is_new_two_polls_after() -> Result<()> {
    let plane = shared(1).await?;
    let mut fleet = Fleet::launch(Launch::environment(&[LIMIT])).await?;
    let agent = format!("127.0.0.1:{}", ports::free()?);
    fleet
        .join_with("east", plane, Launch::arguments(&["--health-listen", &agent]))
        .await?;
    let interval = Patch::Merge(json!({"spec": {"pollInterval": INTERVAL}}));
    fleet
        .api::<Cluster>()
        .patch("east", &PatchParams::default(), &interval)
        .await?;
    let files = ["m0", "m1", "m2"].map(|name| (format!("app/{name}.yaml"), config_map(name, "one")));
    let files: Vec<_> = files
        .iter()
        .map(|(path, text)| (path.as_str(), text.as_str()))
        .collect();
    let repository = fleet.repository("infra", &files).await?;
    fleet.deploy("app", "east", "infra", "app").await?;
    fleet
        .until_applied("app", &repository.branch("main").context("a branch")?)
        .await?;
    let maps: Api<ConfigMap> = Api::namespaced(plane.client().await?, &fleet.namespace("app"));
    let before = uids(&maps).await?;

    // The hub is down, and the agent restarts days later.
    fleet.hub.kill9();
    fleet.agent("east")?.kill9();
    change(&maps, "m0").await?;
    let later = faketime::environment("+3d")?;
    fleet.agent("east")?.set_environment(later.clone());
    fleet.agent("east")?.restart()?;
    until_repaired(&fleet, &maps, "m0").await?;
    change(&maps, "m1").await?;
    until_repaired(&fleet, &maps, "m1").await?;

    // The hub is back equally late, and Git has new commits.
    let (two, new) = (config_map("m2", "two"), config_map("m3", "new"));
    let commit = repository.change("main", &[("app/m2.yaml", Some(&two)), ("app/m3.yaml", Some(&new))])?;
    let back = Timestamp::now();
    let limit = (LIMIT.0.to_owned(), LIMIT.1.to_owned());
    fleet.hub.set_environment(later.into_iter().chain([limit]).collect());
    fleet.hub.restart().await?;
    fleet.reconcile("infra").await?;
    fleet.until_assigned("app", &commit).await?;
    let assigned = polls(&agent).await?;
    fleet
        .until("what is new to be there", || async { Ok(maps.get_opt("m3").await?) })
        .await?;
    let applied = polls(&agent).await?;
    ensure!(
        applied - assigned <= 2,
        "applied {} polls after it was assigned",
        applied - assigned
    );
    fleet.until_applied("app", &commit).await?;
    let mut after = uids(&maps).await?;
    ensure!(after.remove("m3").is_some() && after == before, "{before:?}\n{after:?}");
    // The agent reports what happened while the hub was down.
    for name in ["m0", "m1"] {
        let time = changed_at(&fleet, name).await?;
        ensure!(
            time < back,
            "{name} was changed at {time}, and the hub was back at {back}"
        );
    }

    // Both restart at the same time, and neither writes anything.
    let before = versions_at_rest(&fleet, &maps, plane, &agent).await?;
    fleet.hub.kill9();
    fleet.agent("east")?.kill9();
    fleet.agent("east")?.restart()?;
    fleet.hub.restart().await?;
    fleet
        .until("two polls", || async { Ok((polls(&agent).await? >= 2).then_some(())) })
        .await?;
    fleet.until_applied("app", &commit).await?;
    ensure!(versions(&maps, plane).await? == before);
    Ok(())
}
