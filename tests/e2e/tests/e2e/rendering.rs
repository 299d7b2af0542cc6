//! Charts, overlays and templates from Git to the cluster, and the same on a user's machine.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use farwater_api::{HelmRepository, REQUESTED_AT, ServiceDeployment};
use farwater_e2e::{Fleet, config_map};
use farwater_testkit::{
    Helm, Launch, Origin, Plane, Tools,
    helm::{borrowed, chart},
    shared, wait_for,
};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

const CHART: &str = "apiVersion: v2\nname: shop\nversion: 1.0.0\n";
const TEMPLATE: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: {{ .Release.Name }}-settings}\n\
                        data: {size: {{ .Values.size }}, colour: {{ .Values.colour }}, from: {{ .Release.Namespace }}}\n";

async fn fleet(plane: &Plane) -> Result<Fleet> {
    // All servers of tests are on this machine.
    let mut fleet = Fleet::launch(Launch::environment(&[("FARWATER_ALLOW_PRIVATE_LINKS", "127.0.0.0/8")])).await?;
    fleet.join("east", plane).await?;
    Ok(fleet)
}

async fn change(fleet: &Fleet, service: &str, spec: Value) -> kube::Result<ServiceDeployment> {
    let patch = Patch::Merge(json!({"spec": spec}));
    fleet
        .api::<ServiceDeployment>()
        .patch(service, &PatchParams::default(), &patch)
        .await
}

async fn has(plane: &Plane, namespace: &str, name: &str, expected: Value) -> Result<()> {
    let maps: Api<ConfigMap> = Api::namespaced(plane.client().await?, namespace);
    let maps = &maps;
    wait_for(
        &format!("{name} to hold {expected}"),
        farwater_e2e::PATIENCE,
        || async {
            let data = maps.get_opt(name).await?.and_then(|map| map.data);
            Ok((json!(data) == expected).then_some(()))
        },
    )
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chart_follows_its_repository_its_values_and_its_patches() -> Result<()> {
    let plane = shared(1).await?;
    let fleet = fleet(plane).await?;
    let files = [
        ("charts/shop/Chart.yaml", CHART),
        ("charts/shop/values.yaml", "size: small\ncolour: red\n"),
        ("charts/shop/prod.yaml", "size: large\n"),
        ("charts/shop/templates/settings.yaml", TEMPLATE),
    ];
    let repository = fleet.repository("infra", &files).await?;
    let renderers = json!({"renderers": [{"helm": {"valuesFiles": ["prod.yaml"]}}]});
    fleet
        .deploy_with("shop", "east", "infra", "charts/shop", renderers)
        .await?;
    let first = repository.branch("main").context("a commit")?;
    fleet.until_applied("shop", &first).await?;
    let (namespace, name) = (fleet.namespace("shop"), "shop-settings");
    has(
        plane,
        &namespace,
        name,
        json!({"size": "large", "colour": "red", "from": namespace}),
    )
    .await?;

    // A value that only the service has is a change like any other.
    let values = json!({"renderers": [{"helm": {"valuesFiles": ["prod.yaml"], "values": {"colour": "blue"}}}]});
    change(&fleet, "shop", values).await?;
    has(
        plane,
        &namespace,
        name,
        json!({"size": "large", "colour": "blue", "from": namespace}),
    )
    .await?;

    let patch = "- {op: remove, path: /data/size}";
    change(
        &fleet,
        "shop",
        json!({"patches": [{"target": {"kind": "ConfigMap"}, "patch": patch}]}),
    )
    .await?;
    has(plane, &namespace, name, json!({"colour": "blue", "from": namespace})).await?;

    // A rendering error is reported, and existing objects stay.
    let second = repository.change(
        "main",
        &[("charts/shop/templates/settings.yaml", Some("{{ fail \"not today\" }}"))],
    )?;
    fleet.reconcile("infra").await?;
    fleet.until_assigned("shop", &second).await?;
    fleet.until_condition("shop", "Ready", "False", "not today").await?;
    has(plane, &namespace, name, json!({"colour": "blue", "from": namespace})).await?;

    let refused = change(&fleet, "shop", json!({"renderers": [{"type": "Raw", "helm": {}}]})).await;
    let said = refused
        .err()
        .context("the hub accepted options that have no effect")?
        .to_string();
    ensure!(said.contains("spec.renderers[0].helm"), "{said}");
    Ok(())
}

/// A chart of a repository with values from Git, a chart in Git that depends on it, and an overlay of another
/// repository's base.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_comes_from_elsewhere_is_rendered_without_a_network() -> Result<()> {
    let plane = shared(1).await?;
    let fleet = fleet(plane).await?;
    let (helm, folder) = (Helm::new(&Tools::find_renderers()?)?, tempfile::tempdir()?);
    helm.package(&borrowed(&chart("greeter", "1.2.0")), folder.path())?;
    helm.index(folder.path(), None)?;
    let charts = Origin::of_folder(folder.path(), None).await?;
    let spec = serde_json::from_value(json!({"url": charts.url()}))?;
    fleet
        .api::<HelmRepository>()
        .create(&PostParams::default(), &HelmRepository::new("charts", spec))
        .await?;
    let base = fleet.git.create("base")?;
    base.commit(
        "main",
        &[
            ("k/kustomization.yaml", "resources: [m.yaml]\n"),
            ("k/m.yaml", &config_map("m", "base")),
        ],
    )?;
    let depends = format!(
        "{CHART}dependencies: [{{name: greeter, version: ~1.2, repository: '{}'}}]\n",
        charts.url()
    );
    let overlay = format!(
        "resources: ['{}//k?ref=main']\nnamePrefix: k-\nhelmCharts: [{{name: greeter, repo: '{}', version: 1.2.0, releaseName: in}}]\n",
        fleet.git.url("base"),
        charts.url()
    );
    let files = [
        ("values/prod.yaml", "greeting: from git\n"),
        ("charts/shop/Chart.yaml", depends.as_str()),
        ("charts/shop/values.yaml", "greeter: {greeting: from above}\n"),
        ("overlay/kustomization.yaml", overlay.as_str()),
    ];
    fleet.repository("infra", &files).await?;
    let direct = json!({
        "sourceRef": {"kind": "HelmRepository", "name": "charts"},
        "chart": {"name": "greeter", "version": "1.x"},
        "sources": [{"sourceRef": {"name": "infra"}, "path": "values", "mountPath": "from-git"}],
        "renderers": [{"helm": {"valuesFiles": ["from-git/prod.yaml"]}}],
    });
    fleet.deploy_with("direct", "east", "charts", "", direct).await?;
    fleet.deploy("above", "east", "infra", "charts/shop").await?;
    fleet.deploy("overlay", "east", "infra", "overlay").await?;
    let said = |greeting: &str| json!({"version": "1.2.0", "greeting": greeting});
    has(plane, &fleet.namespace("direct"), "direct-greeter", said("from git")).await?;
    has(plane, &fleet.namespace("above"), "above-greeter", said("from above")).await?;
    has(plane, &fleet.namespace("overlay"), "k-in-greeter", said("hello")).await?;
    has(plane, &fleet.namespace("overlay"), "k-m", json!({"value": "base"})).await?;

    // The CLI gets everything from the hub and from no other server.
    charts.forget_seen();
    let renderer = Tools::find_renderers()?.renderer().to_string_lossy().into_owned();
    let ran = fleet
        .cli()
        .expect(0, &["render", "overlay", "--renderer", &renderer, "-o", "json"])?;
    let list: Value = serde_json::from_str(&ran.stdout)?;
    ensure!(list["items"].as_array().is_some_and(|items| items.len() == 2), "{list}");
    ensure!(charts.seen().is_empty(), "{:?}", charts.seen());
    // A commit that only changes the base is delivered.
    base.change("main", &[("k/m.yaml", Some(&config_map("m", "changed")))])?;
    fleet.annotate("overlay", REQUESTED_AT, "1").await?;
    has(plane, &fleet.namespace("overlay"), "k-m", json!({"value": "changed"})).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_command_line_renders_is_what_the_cluster_gets() -> Result<()> {
    let plane = shared(1).await?;
    let fleet = fleet(plane).await?;
    let base = config_map("m", "base");
    let overlay = "resources: [../base]\nnamePrefix: k-\npatches: [{target: {kind: ConfigMap}, path: patch.yaml}]\n";
    let files = [
        ("base/kustomization.yaml", "resources: [m.yaml]\n"),
        ("base/m.yaml", base.as_str()),
        ("prod/kustomization.yaml", overlay),
        (
            "prod/patch.yaml.liquid",
            "- {op: replace, path: /data/value, value: {{ 'prod' | quote }}}\n",
        ),
    ];
    let repository = fleet.repository("infra", &files).await?;
    fleet.deploy("app", "east", "infra", "prod").await?;
    let folder = tempfile::tempdir()?;
    // References work as far as a checkout reaches.
    fs::create_dir(folder.path().join(".git"))?;
    for (path, text) in files {
        let path = folder.path().join(path);
        fs::create_dir_all(path.parent().context("a folder")?)?;
        fs::write(path, text)?;
    }
    let renderer = Tools::find_renderers()?.renderer();
    let (prod, renderer) = (folder.path().join("prod"), renderer.to_string_lossy().into_owned());
    let arguments = ["render", &prod.to_string_lossy(), "--renderer", &renderer, "-o", "json"];
    let ran = fleet.cli().expect(0, &arguments)?;
    let list: Value = serde_json::from_str(&ran.stdout)?;
    ensure!(list["items"].as_array().is_some_and(|items| items.len() == 1), "{list}");
    let rendered = &list["items"][0];
    ensure!(
        rendered["metadata"]["name"] == "k-m" && rendered["data"]["value"] == "prod",
        "{rendered}"
    );
    fleet
        .until_applied("app", &repository.branch("main").context("a commit")?)
        .await?;
    has(plane, &fleet.namespace("app"), "k-m", rendered["data"].clone()).await?;

    // The hub has the same files, and the Kubernetes version for them.
    for arguments in [
        &["render", "app"][..],
        &["render", "farwater-admin/app", "--cluster", "farwater-admin/east"],
    ] {
        let ran = fleet
            .cli()
            .expect(0, &[arguments, &["--renderer", &renderer, "-o", "json"]].concat())?;
        let same: Value = serde_json::from_str(&ran.stdout)?;
        ensure!(
            same["items"][0]["data"] == rendered["data"] && ran.stderr.contains("for cluster east"),
            "{same} {}",
            ran.stderr
        );
    }
    let missing = fleet.cli().run(&["render", "nothing"])?;
    ensure!(
        missing.code == 4 && missing.stderr.contains("there is no ServiceDeployment"),
        "{}",
        missing.stderr
    );
    Ok(())
}
