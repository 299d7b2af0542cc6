//! Order of applies, and how objects are applied, from a commit through hub and agent to a cluster.

use anyhow::{Context as _, Result, ensure};
use farwater_api::{Cluster, HealthRule, HealthRuleSpec, objects::SyncState};
use farwater_e2e::{Fleet, config_map, polls};
use farwater_testkit::{Launch, ports, shared};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::ConfigMap};
use kube::{
    Api,
    api::{ApiResource, DynamicObject, Patch, PatchParams},
    core::GroupVersionKind,
};
use serde_json::{Value, json};

/// Never healthy, because no node has the label of its selector.
fn deployment(selector: &str) -> String {
    format!(
        "apiVersion: apps/v1
kind: Deployment
metadata: {{name: database, annotations: {{argocd.argoproj.io/sync-wave: '-1'}}}}
spec:
  selector: {{matchLabels: {{app: database}}}}
  template:
    metadata: {{labels: {{app: database}}}}
    spec: {{nodeSelector: {{{selector}}}, containers: [{{name: database, image: postgres}}]}}
"
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wave_waits_for_the_one_before_and_a_fix_ends_the_wait() -> Result<()> {
    let plane = shared(1).await?;
    // Without connections, every poll happens at its interval and can be counted.
    let mut fleet = Fleet::launch(Launch::environment(&[("FARWATER_MAX_CONNECTED_AGENTS", "0")])).await?;
    let agent = format!("127.0.0.1:{}", ports::free()?);
    fleet
        .join_with("east", plane, Launch::arguments(&["--health-listen", &agent]))
        .await?;
    // Longer than an apply takes on a busy machine.
    let interval = Patch::Merge(json!({"spec": {"pollInterval": "5s"}}));
    fleet
        .api::<Cluster>()
        .patch("east", &PatchParams::default(), &interval)
        .await?;
    let (nowhere, anywhere) = (deployment("nobody: has-this"), deployment(""));
    let map = config_map("web", "one");
    let repository = fleet
        .repository("infra", &[("app/a.yaml", &map), ("app/b.yaml", &nowhere)])
        .await?;
    fleet.deploy("app", "east", "infra", "app").await?;
    fleet
        .until_condition("app", "Reconciling", "True", "1 object waits: Deployment.apps")
        .await?;
    let namespace = fleet.namespace("app");
    let maps: Api<ConfigMap> = Api::namespaced(plane.client().await?, &namespace);
    ensure!(maps.get_opt("web").await?.is_none(), "the later wave has not begun");
    let held = fleet
        .objects("app")
        .await?
        .into_iter()
        .find(|o| o.object.kind == "ConfigMap")
        .context("a ConfigMap")?;
    ensure!(held.sync == SyncState::Waiting, "{held:?}");
    ensure!(
        held.waits_for.as_ref().is_some_and(|object| object.name == "database"),
        "{held:?}"
    );
    let why = fleet.cli().why("app")?;
    ensure!(
        why["sentence"]
            .as_str()
            .is_some_and(|said| said.contains("database is not ready")),
        "{why}"
    );
    ensure!(
        why["next"].to_string().contains("describe deployment.apps database"),
        "{why}"
    );

    let next = repository.change("main", &[("app/b.yaml", Some(&anywhere))])?;
    fleet.reconcile("infra").await?;
    fleet.until_assigned("app", &next).await?;
    let assigned = polls(&agent).await?;
    let deployments: Api<Deployment> = Api::namespaced(plane.client().await?, &namespace);
    fleet
        .until("the fix to be applied", || async {
            let template = deployments
                .get("database")
                .await?
                .spec
                .and_then(|spec| spec.template.spec);
            let selector = template.and_then(|pod| pod.node_selector).unwrap_or_default();
            Ok(selector.is_empty().then_some(()))
        })
        .await?;
    let applied = polls(&agent).await?;
    ensure!(
        applied - assigned <= 2,
        "applied {} polls after it was assigned",
        applied - assigned
    );
    fleet.until_applied("app", &next).await?;
    let available = deployments
        .get("database")
        .await?
        .status
        .and_then(|s| s.available_replicas);
    ensure!(available == Some(1), "{available:?}");
    maps.get("web").await?;
    // The cancelled attempt does not count as a failed one.
    fleet
        .until("the history to say so", || async {
            let ran = fleet.cli().expect(0, &["history", "app", "-o", "json"])?;
            let history: Vec<Value> = serde_json::from_str(&ran.stdout)?;
            let results: Vec<_> = history.iter().map(|version| version["result"].as_str()).collect();
            Ok((results == [Some("Healthy"), Some("Superseded")]).then_some(()))
        })
        .await?;
    Ok(())
}

/// A kind whose objects have a phase, an object of it, and an object that comes after it.
fn boats(group: &str) -> [(&'static str, String); 3] {
    let definition = format!(
        "apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {{name: boats.{group}}}
spec:
  group: {group}
  scope: Namespaced
  names: {{kind: Boat, plural: boats, singular: boat}}
  versions:
  - {{name: v1, served: true, storage: true, schema: {{openAPIV3Schema: {{type: object, x-kubernetes-preserve-unknown-fields: true}}}}}}
"
    );
    let boat = format!("apiVersion: {group}/v1\nkind: Boat\nmetadata: {{name: ark}}\n");
    let crew = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: crew, annotations: {farwater.dev/wave: '1'}}\n";
    [
        ("app/boats.yaml", definition),
        ("app/ark.yaml", boat),
        ("app/crew.yaml", crew.to_owned()),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rule_of_the_hub_says_when_the_next_wave_may_begin() -> Result<()> {
    let plane = shared(1).await?;
    let mut fleet = Fleet::start().await?;
    fleet.join("east", plane).await?;
    let group = format!("{}.example.com", fleet.unique);
    let rule = HealthRuleSpec {
        group: group.clone(),
        kind: "Boat".to_owned(),
        in_progress: Some("!has(self.status)".to_owned()),
        failed: None,
        current: "self.status.phase == 'Afloat'".to_owned(),
        message: Some("has(self.status) ? 'it is ' + self.status.phase : 'it has no phase'".to_owned()),
    };
    let rules: Api<HealthRule> = Api::all(fleet.client.clone());
    rules
        .create(&Default::default(), &HealthRule::new("boats", rule))
        .await?;
    let files = boats(&group);
    let files: Vec<_> = files.iter().map(|(path, text)| (*path, text.as_str())).collect();
    let repository = fleet.repository("infra", &files).await?;
    fleet.deploy("app", "east", "infra", "app").await?;
    fleet
        .until_condition("app", "Reconciling", "True", "it has no phase")
        .await?;

    let (client, namespace) = (plane.client().await?, fleet.namespace("app"));
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), &namespace);
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk(&group, "v1", "Boat"));
    let boats: Api<DynamicObject> = Api::namespaced_with(client, &namespace, &kind);
    let phase = async |phase: &str| {
        let patch = Patch::Merge(json!({"status": {"phase": phase}}));
        boats.patch("ark", &PatchParams::default(), &patch).await
    };
    phase("Leaking").await?;
    fleet
        .until_condition("app", "Reconciling", "True", "it is Leaking")
        .await?;
    ensure!(maps.get_opt("crew").await?.is_none(), "the wave behind it has begun");
    phase("Afloat").await?;
    fleet
        .until_applied("app", &repository.branch("main").unwrap_or_default())
        .await?;
    maps.get("crew").await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_services_options_reach_its_objects() -> Result<()> {
    let plane = shared(2).await?;
    let mut fleet = Fleet::start().await?;
    fleet.join("west", plane).await?;
    let map = config_map("web", "one");
    let repository = fleet.repository("infra", &[("app/a.yaml", &map)]).await?;
    fleet
        .deploy_with("app", "west", "infra", "app", json!({"apply": {"drift": "Report"}}))
        .await?;
    fleet
        .until_applied("app", &repository.branch("main").unwrap_or_default())
        .await?;
    let maps: Api<ConfigMap> = Api::namespaced(plane.client().await?, &fleet.namespace("app"));
    let by = PatchParams {
        field_manager: Some("somebody".to_owned()),
        ..PatchParams::default()
    };
    maps.patch("web", &by, &Patch::Merge(json!({"data": {"value": "theirs"}})))
        .await?;
    fleet
        .until_condition("app", "Drifted", "True", ".data.value (somebody)")
        .await?;
    fleet.until_condition("app", "Ready", "True", "").await?;
    ensure!(maps.get("web").await?.data.unwrap_or_default()["value"] == "theirs");

    let patch = json!({"spec": {"apply": {"drift": "Correct"}}});
    let services: Api<farwater_api::ServiceDeployment> = fleet.api();
    services
        .patch("app", &PatchParams::default(), &Patch::Merge(patch))
        .await?;
    fleet
        .until("the drift to be corrected", || async {
            let map = maps.get("web").await?;
            Ok((map.data.unwrap_or_default()["value"] == "one").then_some(()))
        })
        .await?;
    fleet
        .until_service("app", "show no drift", |s| {
            s.status
                .iter()
                .flat_map(|s| &s.conditions)
                .all(|c| c.type_ != "Drifted" || c.status != "True")
        })
        .await?;
    let wrong = Patch::Merge(json!({"spec": {"apply": {"drift": "Sometimes"}}}));
    let refused = services.patch("app", &PatchParams::default(), &wrong).await;
    let error = refused.err().context("a wrong value is refused")?.to_string();
    ensure!(
        error.contains("spec.apply.drift") && error.contains("Report"),
        "{error}"
    );
    Ok(())
}
