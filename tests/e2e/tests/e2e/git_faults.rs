//! Faults of Git delete nothing: the last good state stays in use.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context as _, Result, ensure};
use farwater_api::{Digest, GitRepository};
use farwater_e2e::{Fleet, condition, config_map, polls};
use farwater_testkit::{
    Launch, Plane, faketime,
    git::{Auth, Repository},
    ports, shared,
};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use serde_json::json;

/// A fleet with one healthy service of two ConfigMaps.
async fn serving(plane: &Plane) -> Result<(Fleet, Repository)> {
    let mut fleet = Fleet::start().await?;
    fleet.join("east", plane).await?;
    let (a, b) = (config_map("a", "one"), config_map("b", "one"));
    let repository = fleet
        .repository("infra", &[("app/a.yaml", &a), ("app/b.yaml", &b)])
        .await?;
    fleet.deploy("app", "east", "infra", "app").await?;
    fleet
        .until_applied("app", &repository.branch("main").unwrap_or_default())
        .await?;
    Ok((fleet, repository))
}

async fn count(plane: &Plane, fleet: &Fleet) -> Result<usize> {
    let api: Api<ConfigMap> = Api::namespaced(plane.client().await?, &fleet.namespace("app"));
    let list = api.list(&ListParams::default()).await?;
    Ok(list
        .items
        .iter()
        .filter(|c| c.metadata.name.as_deref() != Some("kube-root-ca.crt"))
        .count())
}

async fn until_source(fleet: &Fleet, status: &str, part: &str) -> Result<GitRepository> {
    until_ready(fleet, "infra", status, part).await
}

async fn until_ready(fleet: &Fleet, name: &str, status: &str, part: &str) -> Result<GitRepository> {
    let sources: Api<GitRepository> = fleet.api();
    fleet
        .until(
            &format!("the repository {name} to be Ready={status} with {part:?}"),
            || async {
                let source = sources.get(name).await?;
                let conditions = source.status.clone().unwrap_or_default().conditions;
                let found = conditions
                    .iter()
                    .any(|c| c.type_ == "Ready" && c.status == status && c.message.contains(part));
                Ok(found.then_some(source))
            },
        )
        .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_git_server_that_is_gone_is_survived_by_hub_and_agent() -> Result<()> {
    let plane = shared(1).await?;
    let (mut fleet, repository) = serving(plane).await?;
    fleet.git.stop().await;
    fleet.reconcile("infra").await?;
    let source = until_source(&fleet, "False", "").await?;
    let status = source.status.unwrap_or_default();
    ensure!(
        status.stale_since.is_some() && status.revision.is_some(),
        "staleness is shown beside what is served"
    );

    // The hub restarts without Git, and an agent that lost its state gets everything from it.
    fleet.hub.restart().await?;
    fleet.agent("east")?.kill9();
    std::fs::remove_dir_all(fleet.state_dir("east").join("bundles"))?;
    fleet.agent("east")?.restart()?;
    fleet
        .always("both objects exist", Duration::from_secs(4), || async {
            Ok(count(plane, &fleet).await? == 2)
        })
        .await?;

    fleet.git.resume().await?;
    let next = repository.change("main", &[("app/b.yaml", Some(&config_map("b", "two")))])?;
    fleet.reconcile("infra").await?;
    fleet.until_applied("app", &next).await?;
    let source = until_source(&fleet, "True", "").await?;
    ensure!(source.status.unwrap_or_default().stale_since.is_none());
    Ok(())
}

/// Repositories of one server, each with a service.
const NAMES: [&str; 3] = ["one", "two", "three"];
/// Without connections, every poll happens at its interval and can be counted.
const LIMIT: (&str, &str) = ("FARWATER_MAX_CONNECTED_AGENTS", "0");

/// Assigned revision of each service, and uid and version of its object.
async fn state(plane: &Plane, fleet: &Fleet) -> Result<BTreeMap<&'static str, [String; 3]>> {
    let client = plane.client().await?;
    let mut found = BTreeMap::new();
    for name in NAMES {
        let digest: Option<Digest> = fleet
            .service(name)
            .await?
            .status
            .and_then(|status| status.bundle_digest);
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), &fleet.namespace(name));
        let map = maps.get("a").await?.metadata;
        let (uid, version) = (map.uid.context("a uid")?, map.resource_version.context("a version")?);
        found.insert(name, [digest.context("a bundle")?.to_string(), uid, version]);
    }
    Ok(found)
}

/// Time since when each repository has not answered.
async fn stale_since(fleet: &Fleet) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for name in NAMES {
        let status = until_ready(fleet, name, "False", "stays in use")
            .await?
            .status
            .unwrap_or_default();
        found.push(json!(status.stale_since.context("it is not stale")?).to_string());
    }
    Ok(found)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_day_without_git_changes_nothing_and_after_it_each_repository_is_asked_once() -> Result<()> {
    let plane = shared(2).await?;
    let mut fleet = Fleet::launch(Launch::environment(&[LIMIT])).await?;
    let agent = format!("127.0.0.1:{}", ports::free()?);
    fleet
        .join_with("west", plane, Launch::arguments(&["--health-listen", &agent]))
        .await?;
    for name in NAMES {
        let commit = fleet
            .git
            .create(name)?
            .commit("main", &[("app/a.yaml", &config_map("a", name))])?;
        // A repository that is fetched twice has another reason than its interval.
        let spec = serde_json::from_value(json!({"url": fleet.git.url(name), "interval": "24h"}))?;
        fleet
            .api()
            .create(&PostParams::default(), &GitRepository::new(name, spec))
            .await?;
        fleet.deploy(name, "west", name, "app").await?;
        fleet.until_applied(name, &commit).await?;
    }
    let before = state(plane, &fleet).await?;
    fleet.git.stop().await;
    for name in NAMES {
        fleet.reconcile(name).await?;
    }
    let since = stale_since(&fleet).await?;

    // Hub and agent restart the next day, and Git is still away.
    fleet.hub.kill9();
    fleet.agent("west")?.kill9();
    let later = faketime::environment("+25h")?;
    let limit = (LIMIT.0.to_owned(), LIMIT.1.to_owned());
    fleet.agent("west")?.set_environment(later.clone());
    fleet.hub.set_environment(later.into_iter().chain([limit]).collect());
    fleet.hub.restart().await?;
    fleet.agent("west")?.restart()?;
    fleet
        .until("all to be asked in vain", || async {
            let failed = fleet.counted("farwater_fetches_total{result=\"failed\"}").await?;
            Ok((failed >= NAMES.len() as u64).then_some(()))
        })
        .await?;
    fleet
        .until("three polls", || async {
            Ok((polls(&agent).await? >= 3).then_some(()))
        })
        .await?;
    ensure!(stale_since(&fleet).await? == since, "it is stale since then");
    let why = fleet.cli().why("one")?;
    ensure!(
        why["sentence"]
            .as_str()
            .is_some_and(|said| said.contains("has not answered for")),
        "{why}"
    );
    ensure!(state(plane, &fleet).await? == before);

    // Git is back. Existing content is not fetched, packed, downloaded or applied again.
    let asked = fleet.git.counts();
    fleet.git.resume().await?;
    for name in NAMES {
        let status = until_ready(&fleet, name, "True", "").await?.status.unwrap_or_default();
        ensure!(status.stale_since.is_none(), "{name} is stale and ready");
    }
    let answered = polls(&agent).await?;
    fleet
        .until("two more polls", || async {
            Ok((polls(&agent).await? >= answered + 2).then_some(()))
        })
        .await?;
    let counts = fleet.git.counts();
    ensure!(
        counts.ls_refs == asked.ls_refs + NAMES.len() && counts.fetches == asked.fetches,
        "{asked:?}, {counts:?}"
    );
    ensure!(
        fleet.counted("farwater_bundles_sent_total").await? == 0,
        "a bundle was downloaded again"
    );
    ensure!(state(plane, &fleet).await? == before);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_vanished_branch_and_an_orphan_history_are_not_an_empty_set() -> Result<()> {
    let plane = shared(1).await?;
    let (fleet, repository) = serving(plane).await?;
    repository.delete_branch("main")?;
    fleet.reconcile("infra").await?;
    until_source(&fleet, "False", "main").await?;
    ensure!(count(plane, &fleet).await? == 2);

    // A force-push replaces the history by one without the folder.
    repository.rewrite("main", &[("README.md", "start over")])?;
    fleet.reconcile("infra").await?;
    until_source(&fleet, "True", "").await?;
    fleet.until_condition("app", "Ready", "False", "app").await?;
    fleet
        .always("both objects exist", Duration::from_secs(3), || async {
            Ok(count(plane, &fleet).await? == 2)
        })
        .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn credentials_are_asked_for_refused_and_then_taken() -> Result<()> {
    let plane = shared(1).await?;
    let (fleet, repository) = serving(plane).await?;
    fleet.git.set_auth(Auth::Basic {
        username: "robot".to_owned(),
        password: "right horse".to_owned(),
    });
    fleet.reconcile("infra").await?;
    let source = until_source(&fleet, "False", "").await?;
    let conditions = source.status.unwrap_or_default().conditions;
    ensure!(condition(&conditions, "Ready") == Some("False"));
    let message = conditions.iter().map(|c| c.message.clone()).collect::<String>();
    ensure!(
        message.contains("secretRef") || message.contains("credential"),
        "the remedy is named: {message}"
    );
    ensure!(count(plane, &fleet).await? == 2);

    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "git"},
        "stringData": {"username": "robot", "password": "right horse"},
    });
    let secrets: Api<Secret> = fleet.api();
    secrets
        .create(&PostParams::default(), &serde_json::from_value(secret)?)
        .await?;
    let patch = json!({"spec": {"secretRef": {"name": "git"}}});
    fleet
        .api::<GitRepository>()
        .patch("infra", &PatchParams::default(), &Patch::Merge(patch))
        .await?;
    let next = repository.change("main", &[("app/a.yaml", Some(&config_map("a", "three")))])?;
    fleet.reconcile("infra").await?;
    fleet.until_applied("app", &next).await?;
    Ok(())
}
