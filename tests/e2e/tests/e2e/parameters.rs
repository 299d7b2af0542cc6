//! Parameters: sealed in transit, kept while the hub is away, and used by templates, charts, overlays and plugins.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use farwater_api::{ADMIN_NAMESPACE, ServiceDeployment};
use farwater_e2e::{Fleet, config_map, files_with};
use farwater_testkit::{Launch, Tools, shared, wait_for};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parameters_outlive_the_hub_and_who_may_not_read_their_object_sees_no_value() -> Result<()> {
    let plane = shared(1).await?;
    let mut fleet = Fleet::start().await?;
    fleet.join("east", plane).await?;
    let maps: Api<ConfigMap> = fleet.api();
    let map = |size: &str| json!({"metadata": {"name": "sizes"}, "data": {"size": size}});
    maps.create(&PostParams::default(), &serde_json::from_value(map("one"))?)
        .await?;
    let repository = fleet
        .repository("infra", &[("app/a.yaml", &config_map("a", "one"))])
        .await?;
    let stated = json!({"parameters": [{"from": {"configMap": "sizes"}}, {"from": {"cluster": "Version"}}]});
    fleet.deploy_with("app", "east", "infra", "app", stated).await?;
    fleet
        .until_applied("app", &repository.branch("main").unwrap_or_default())
        .await?;
    let path = format!("/apis/farwater.dev/v1alpha1/namespaces/{ADMIN_NAMESPACE}/servicedeployments/app/parameters");
    let of = |answer: &Value, name: &str| -> Value {
        let values = answer["status"]["values"].as_array().into_iter().flatten();
        values
            .into_iter()
            .find(|value| value["name"] == name)
            .cloned()
            .unwrap_or_default()
    };
    let answer: Value = fleet
        .client
        .request(http::Request::get(&path).body(Vec::new())?)
        .await?;
    ensure!(of(&answer, "configuration.size")["value"] == "one", "{answer:#}");
    ensure!(of(&answer, "cluster.version")["value"].is_string(), "{answer:#}");

    // A user who may only read services.
    let group = "rbac.authorization.k8s.io";
    let role = json!({"metadata": {"name": "services"}, "rules": [
        {"apiGroups": ["farwater.dev"], "resources": ["servicedeployments", "servicedeployments/parameters"], "verbs": ["get"]}]});
    let binding = json!({"metadata": {"name": "services"}, "roleRef": {"apiGroup": group, "kind": "Role", "name": "services"},
        "subjects": [{"apiGroup": group, "kind": "User", "name": "reader"}]});
    for (kind, object) in [("roles", role), ("rolebindings", binding)] {
        let path = format!("/apis/{group}/v1/namespaces/{ADMIN_NAMESPACE}/{kind}");
        let request = http::Request::post(path).header("content-type", "application/json");
        fleet
            .client
            .request::<Value>(request.body(serde_json::to_vec(&object)?)?)
            .await?;
    }
    let request = http::Request::get(&path)
        .header("impersonate-user", "reader")
        .body(Vec::new())?;
    let answer: Value = fleet.client.request(request).await?;
    for name in ["configuration.size", "cluster.version"] {
        let value = of(&answer, name);
        ensure!(
            value["origin"]["name"].is_string() && value.get("value").is_none(),
            "{answer:#}"
        );
    }
    ensure!(of(&answer, "service.name")["value"] == "app", "{answer:#}");

    // Values of the cluster are read there. Without them nothing is rendered, and running objects stay.
    let own: Api<Secret> = Api::namespaced(plane.client().await?, &fleet.namespace("app"));
    let services: Api<ServiceDeployment> = fleet.api();
    let pick = json!({"spec": {"parameters": [
        {"from": {"configMap": "sizes"}}, {"from": {"clusterSecret": "made-here"}, "keys": ["uri"], "prefix": "db_"}]}});
    services
        .patch("app", &PatchParams::default(), &Patch::Merge(pick))
        .await?;
    let missing = format!(
        "Secret made-here does not exist in namespace {} of the cluster",
        fleet.namespace("app")
    );
    fleet.until_condition("app", "Ready", "False", &missing).await?;
    let made = json!({"metadata": {"name": "made-here"}, "stringData": {"uri": "hunter2"}});
    own.create(&PostParams::default(), &serde_json::from_value(made)?)
        .await?;
    fleet.until_condition("app", "Ready", "True", "").await?;
    let answer: Value = fleet
        .client
        .request(http::Request::get(&path).body(Vec::new())?)
        .await?;
    let uri = of(&answer, "configuration.db_uri");
    ensure!(
        uri["origin"]["kind"] == "ClusterSecret" && uri["secret"] == true,
        "{answer:#}"
    );
    ensure!(!answer.to_string().contains("hunter2"), "{answer:#}");

    // With the hub away and the state directory lost, the agent still has them: sealed, in the cluster.
    fleet.hub.kill9();
    fleet.agent("east")?.kill9();
    fs::remove_dir_all(fleet.state_dir("east"))?;
    let there: Api<ConfigMap> = Api::namespaced(plane.client().await?, &fleet.namespace("app"));
    there.delete("a", &DeleteParams::default()).await?;
    fleet.agent("east")?.restart()?;
    fleet
        .until("the object to be made again", || async {
            Ok(there.get_opt("a").await?.map(drop))
        })
        .await?;
    fleet.hub.restart().await?;

    // A new value is a new entry, which the agent confirms.
    maps.patch("sizes", &PatchParams::default(), &Patch::Merge(map("two")))
        .await?;
    fleet
        .until("the new value to be what is sealed", || async {
            let answer: Value = fleet
                .client
                .request(http::Request::get(&path).body(Vec::new())?)
                .await?;
            Ok((of(&answer, "configuration.size")["value"] == "two").then_some(()))
        })
        .await?;
    fleet
        .until_condition("app", "Ready", "True", "")
        .await
        .context("the agent confirms the new entry")?;
    Ok(())
}

/// Script of a plugin that prints its host parameter.
const TELL: &str = r#"host=$(sed 's/.*"host":"\([^"]*\)".*/\1/' "$1")
printf 'apiVersion: v1\nkind: ConfigMap\nmetadata: {name: of-plugin}\ndata: {host: %s}\n' "$host""#;
const PASSWORD: &str = "hunter2-of-the-database";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_parameter_reaches_templates_charts_overlays_and_plugins() -> Result<()> {
    let plane = shared(1).await?;
    let renderer = Tools::find_renderers()?.renderer().to_string_lossy().into_owned();
    let place = tempfile::tempdir()?;
    let plugins = place.path().join("plugins.yaml");
    let command = ["/bin/sh", "-c", TELL, "sh", "{parameters}"];
    fs::write(
        &plugins,
        json!({"plugins": [{"name": "tell", "command": command}]}).to_string(),
    )?;
    let plugins = plugins.to_str().context("a path")?;
    let mut fleet = Fleet::start().await?;
    let launch = Launch::environment(&[("FARWATER_PLUGINS", plugins)]);
    fleet.join_with("east", plane, launch).await?;

    let maps: Api<ConfigMap> = fleet.api();
    let hosts = |host: &str| json!({"metadata": {"name": "hosts"}, "data": {"host": host}});
    maps.create(
        &PostParams::default(),
        &serde_json::from_value(hosts("one.example.com"))?,
    )
    .await?;
    let secret = json!({"metadata": {"name": "database"}, "stringData": {"password": PASSWORD}});
    fleet
        .api::<Secret>()
        .create(&PostParams::default(), &serde_json::from_value(secret)?)
        .await?;
    let map = |name: &str, host: &str| {
        format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\ndata: {{host: {host}}}\n")
    };
    let host = "{{ configuration.host }}";
    let made = "apiVersion: v1\nkind: Secret\nmetadata: {name: made}\nstringData: {password: {{ configuration.password | quote }}}\n";
    let files = [
        ("app/raw/map.yaml.liquid", map("of-template", host)),
        ("app/raw/made.yaml.liquid", made.to_owned()),
        (
            "app/chart/Chart.yaml",
            "apiVersion: v2\nname: shop\nversion: 1.0.0\n".to_owned(),
        ),
        ("app/chart/values.yaml.liquid", format!("host: {host}\n")),
        ("app/chart/templates/map.yaml", map("of-chart", "{{ .Values.host }}")),
        (
            "app/overlay/kustomization.yaml.liquid",
            "namePrefix: {{ cluster.handle }}-\nresources: [map.yaml]\n".to_owned(),
        ),
        ("app/overlay/map.yaml.liquid", map("of-overlay", host)),
        ("app/plugin/empty.txt", String::new()),
    ];
    let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (*path, text.as_str())).collect();
    let repository = fleet.repository("infra", &files).await?;
    let stated = json!({
        "parameters": [{"from": {"configMap": "hosts"}, "keys": ["host"]}, {"from": {"secret": "database"}, "keys": ["password"]}],
        "renderers": [{"path": "raw"}, {"path": "chart"}, {"path": "overlay"}, {"path": "plugin", "type": "Plugin", "plugin": "tell"}],
    });
    fleet.deploy_with("app", "east", "infra", "app", stated).await?;
    fleet
        .until_applied("app", &repository.branch("main").context("a commit")?)
        .await?;
    let there: Api<ConfigMap> = Api::namespaced(plane.client().await?, &fleet.namespace("app"));
    let all_say = async |host: &str| {
        let there = &there;
        for name in ["of-template", "of-chart", "east-of-overlay", "of-plugin"] {
            wait_for(&format!("{name} to say {host}"), farwater_e2e::PATIENCE, || async {
                let data = there.get_opt(name).await?.and_then(|map| map.data);
                Ok((json!(data) == json!({"host": host})).then_some(()))
            })
            .await?;
        }
        Ok::<_, anyhow::Error>(())
    };
    all_say("one.example.com").await?;
    let own: Api<Secret> = Api::namespaced(plane.client().await?, &fleet.namespace("app"));
    let made = own.get("made").await?.data.unwrap_or_default();
    ensure!(made.get("password").is_some_and(|value| value.0 == PASSWORD.as_bytes()));

    // Without a commit: the same files are rendered again.
    maps.patch(
        "hosts",
        &PatchParams::default(),
        &Patch::Merge(hosts("two.example.com")),
    )
    .await?;
    all_say("two.example.com").await?;
    fleet.until_condition("app", "Ready", "True", "").await?;

    // The same output on a user's machine, except for hidden values.
    let options = ["--renderer", &renderer, "--plugins", plugins, "-o", "json"];
    let ran = fleet.cli().expect(0, &[&["render", "app"][..], &options].concat())?;
    let list: Value = serde_json::from_str(&ran.stdout)?;
    let items = list["items"].as_array().context("a list")?;
    let told = items
        .iter()
        .filter(|item| item["data"]["host"] == "two.example.com")
        .count();
    let password = |items: &[Value]| {
        items
            .iter()
            .find(|item| item["kind"] == "Secret")
            .cloned()
            .unwrap_or_default()
    };
    ensure!(
        told == 4 && password(items)["stringData"]["password"] == "(secret)",
        "{list:#}"
    );
    ensure!(ran.stderr.contains("configuration.password"), "{}", ran.stderr);
    let given = place.path().join("given.yaml");
    fs::write(&given, "configuration: {password: of-mine}\n")?;
    let given = given.to_str().context("a path")?;
    let ran = fleet
        .cli()
        .expect(0, &[&["render", "app", "--parameters", given][..], &options].concat())?;
    let list: Value = serde_json::from_str(&ran.stdout)?;
    let items = list["items"].as_array().context("a list")?;
    ensure!(password(items)["stringData"]["password"] == "of-mine", "{list:#}");

    // Their rendered output is on no disk.
    let found = files_with(&fleet.state_dir("east"), &[PASSWORD, "two.example.com"])?;
    ensure!(found.is_empty(), "in the clear: {found:?}");
    let kept = fs::read_dir(fleet.state_dir("east").join("rendered"))?.count();
    ensure!(kept == 0, "{kept} renders are kept, and they are compressed");
    Ok(())
}
