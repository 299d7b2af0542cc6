//! A commit and its image tag are promoted from a staging to a production cluster after a person's approval.

use std::{
    collections::BTreeSet,
    sync::{Mutex, PoisonError},
};

use anyhow::{Result, ensure};
use farwater_api::{Cluster, GitRepository, Pipeline, ServiceDeployment, ServiceSet};
use farwater_e2e::Fleet;
use farwater_testkit::shared;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};

const FILE: &str = "app/a.yaml.liquid";

fn template(text: &str) -> String {
    format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: a}}\ndata: {{value: \"{text} {{{{ configuration.imageTag }}}}\"}}\n"
    )
}

/// Waits until this pair waits for an approval.
async fn until_candidate(fleet: &Fleet, commit: &str, tag: &str) -> Result<()> {
    let api = fleet.api::<Pipeline>();
    let what = format!("{commit} with {tag} to wait");
    let found = fleet.until(&what, || async {
        let stages = api.get("web").await?.status.unwrap_or_default().stages;
        let candidate = stages
            .get(1)
            .and_then(|stage| stage.candidate.clone())
            .unwrap_or_default();
        let is_it =
            candidate.revision.ends_with(commit) && candidate.configuration.get("imageTag").is_some_and(|t| t == tag);
        Ok((is_it && candidate.digest.is_some()).then_some(()))
    });
    found.await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_and_its_tag_get_to_production_together_when_somebody_says_so() -> Result<()> {
    let (staging, production) = (shared(1).await?, shared(2).await?);
    let mut fleet = Fleet::start().await?;
    fleet.join("staging", staging).await?;
    fleet.join("production", production).await?;
    let patch = Patch::Merge(json!({"metadata": {"labels": {"env": "prod"}}}));
    fleet
        .api::<Cluster>()
        .patch("production", &PatchParams::default(), &patch)
        .await?;
    let repository = fleet.repository("infra", &[(FILE, &template("one"))]).await?;
    let promoted = json!({"url": fleet.git.url("infra"), "ref": {"pipeline": "web"}});
    let promoted = GitRepository::new("infra-prod", serde_json::from_value(promoted)?);
    fleet.api().create(&PostParams::default(), &promoted).await?;
    fleet
        .deploy_with(
            "app",
            "staging",
            "infra",
            "app",
            json!({"configuration": {"imageTag": "1.0"}}),
        )
        .await?;
    let set = json!({
        "clusterSelector": {"matchLabels": {"env": "prod"}},
        "rollout": {"soak": "1s", "failAfter": "1s"},
        "template": {"spec": {
            "targetNamespace": fleet.namespace("app"), "sourceRef": {"name": "infra-prod"}, "path": "app",
            "configuration": {"imageTag": "none"},
        }},
    });
    let set = ServiceSet::new("app", serde_json::from_value(set)?);
    fleet.api().create(&PostParams::default(), &set).await?;
    let pipeline = json!({
        "promotes": {"configuration": ["imageTag"]},
        "stages": [
            {"name": "staging", "sourceRef": {"name": "infra"}, "services": ["app"]},
            {"name": "production", "sourceRef": {"name": "infra-prod"}, "sets": ["app"],
             "gates": [{"type": "Soak", "duration": "1s"}, {"type": "Approval"}]},
        ],
    });
    let pipeline = Pipeline::new("web", serde_json::from_value(pipeline)?);
    fleet.api().create(&PostParams::default(), &pipeline).await?;

    let approve = [
        "approve",
        "web",
        "production",
        "-n",
        "farwater-admin",
        "--reason",
        "it works",
    ];
    let status = ["pipeline", "status", "web", "-n", "farwater-admin"];
    let first = repository.branch("main").unwrap_or_default();
    fleet.until_value(staging, "one 1.0").await?;
    until_candidate(&fleet, &first, "1.0").await?;
    ensure!(
        fleet.value(production).await?.is_none(),
        "it was promoted without an approval"
    );
    fleet.cli().expect(0, &approve)?;
    fleet.until_value(production, "one 1.0").await?;
    let settled = fleet.until("nothing to wait", || async {
        let ran = fleet.cli().run(&status)?;
        Ok((ran.code == 0).then_some(ran))
    });
    let settled = settled.await?;
    ensure!(settled.stdout.contains("with imageTag=1.0"), "{settled:?}");
    let told = [
        "explain",
        "parameters",
        "app-production",
        "-n",
        "farwater-admin",
        "-o",
        "json",
    ];
    let told: Value = serde_json::from_str(&fleet.cli().expect(0, &told)?.stdout)?;
    let tag = told["values"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|value| value["name"] == "configuration.imageTag");
    let tag = tag.cloned().unwrap_or_default();
    ensure!(
        tag["value"] == "1.0" && tag["origin"]["kind"] == "GitRepository",
        "{told:#}"
    );
    ensure!(tag["insteadOf"][0]["kind"] == "ServiceDeployment", "{told:#}");

    // Another tag and another commit: staging gets them as they come, production never gets one without the other.
    let patch = Patch::Merge(json!({"spec": {"configuration": {"imageTag": "2.0"}}}));
    fleet
        .api::<ServiceDeployment>()
        .patch("app", &PatchParams::default(), &patch)
        .await?;
    let second = repository.change("main", &[(FILE, Some(&template("two")))])?;
    fleet.reconcile("infra").await?;
    fleet.until_value(staging, "two 2.0").await?;
    until_candidate(&fleet, &second, "2.0").await?;
    let stays = async || Ok(fleet.value(production).await?.as_deref() == Some("one 1.0"));
    fleet.stays("production", "app-production", stays).await?;
    fleet.cli().expect(0, &approve)?;
    let seen = Mutex::new(BTreeSet::new());
    fleet
        .until("both to be there", || async {
            let value = fleet.value(production).await?.unwrap_or_default();
            let is_there = value == "two 2.0";
            seen.lock().unwrap_or_else(PoisonError::into_inner).insert(value);
            Ok(is_there.then_some(()))
        })
        .await?;
    let seen = seen.into_inner().unwrap_or_else(PoisonError::into_inner);
    ensure!(
        seen.iter()
            .all(|value| ["one 1.0", "two 2.0"].contains(&value.as_str())),
        "{seen:?}"
    );
    Ok(())
}
