//! Charts on a real API server: what they learn about the cluster, and what happens to their objects.

use crate::support::{
    Service, api, config_map, config_maps,
    custom::{create, define},
    gone,
    ground::Ground,
    object, outcome,
    pods::{end_job, job, jobs},
    report, states, value,
    world::world,
};
use farwater_api::{
    hooks::{HookPhase, HookState},
    objects::{Outcome, ServiceReport, SyncState},
    protocol::ServiceAccount,
};
use kube::{Client, api::DeleteParams};
use serde_json::{Value, json};

const CHART: (&str, &str) = ("Chart.yaml", "apiVersion: v2\nname: shop\nversion: 1.0.0\n");

/// A ConfigMap whose value is this template.
fn template(name: &str, text: &str) -> String {
    format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\ndata:\n  value: {{{{ {text} | quote }}}}\n")
}

fn with(service: &Service, helm: Value) -> Service {
    let mut service = service.clone();
    service.deployment.renderers = serde_json::from_value(json!([{"helm": helm}])).unwrap();
    service
}

async fn secret(client: &Client, namespace: &str) {
    let secret = json!({"metadata": {"name": "kept"}, "stringData": {"password": "old"}});
    create(client, "", "v1", "Secret", namespace, secret).await;
}

async fn namespace(client: &Client, name: &str) {
    create(client, "", "v1", "Namespace", "", json!({"metadata": {"name": name}})).await;
}

fn definition(group: &str, field: &str) -> String {
    format!(
        "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {{name: baskets.{group}}}\n\
         spec:\n  group: {group}\n  scope: Namespaced\n  names: {{kind: Basket, plural: baskets, singular: basket}}\n  \
         versions:\n  - name: v1\n    served: true\n    storage: true\n    schema:\n      openAPIV3Schema: {{type: object, \
         properties: {{spec: {{type: object, properties: {{{field}: {{type: string}}}}}}}}}}\n"
    )
}

#[tokio::test]
async fn a_chart_sees_the_cluster_and_whether_it_is_upgraded() {
    let world = world().await;
    let place = world.hub.place("shop");
    let client = world.client().await;
    let occasion = template("occasion", "ternary \"upgrade\" \"install\" .Release.IsUpgrade");
    let version = template("version", ".Capabilities.KubeVersion.Version");
    let asked = "list \"apps/v1\" \"apps/v1/Deployment\" \"v1/Pod\" \"apps/v1beta1\" \"none.example.com/v1\"";
    let has = format!("{{{{ range {asked} }}}}{{{{ $.Capabilities.APIVersions.Has . }}}} {{{{ end }}}}");
    let apis = config_map("apis", &has);
    let size = template("size", ".Values.size");
    let files = [
        CHART,
        ("values.yaml", "size: small\n"),
        ("templates/occasion.yaml", &occasion),
        ("templates/version.yaml", &version),
        ("templates/apis.yaml", &apis),
        ("templates/size.yaml", &size),
    ];
    let service = world.applied("shop", &files).await;
    let maps = config_maps(&client, &place);
    let server = client.apiserver_version().await.unwrap().git_version;
    value(&maps, "version", server.split('+').next().unwrap()).await;
    value(&maps, "apis", "true true true false false ").await;
    value(&maps, "occasion", "install").await;
    value(&maps, "size", "small").await;

    // A version keeps its values, whichever agent process repairs it.
    world.restart_agent();
    maps.delete("occasion", &DeleteParams::default()).await.unwrap();
    value(&maps, "occasion", "install").await;

    let entry = world
        .hub
        .set(with(&service, json!({"values": {"size": "large"}})).entry());
    outcome(&world.hub, &entry, Outcome::Applied).await;
    value(&maps, "occasion", "upgrade").await;
    value(&maps, "size", "large").await;
}

#[tokio::test]
async fn a_charts_definitions_come_first_and_are_upgraded_with_it() {
    let world = world().await;
    let place = world.hub.place("baskets");
    let client = world.client().await;
    let group = world.hub.group("shop");
    let basket = format!("apiVersion: {group}/v1\nkind: Basket\nmetadata: {{name: b}}\nspec: {{colour: red}}\n");
    let old = definition(&group, "colour");
    let service = world
        .applied(
            "baskets",
            &[CHART, ("crds/basket.yaml", &old), ("templates/b.yaml", &basket)],
        )
        .await;
    let baskets = api(&client, &group, "v1", "Basket", &place);
    assert_eq!(baskets.get("b").await.unwrap().data["spec"]["colour"], "red");

    let (new, basket) = (definition(&group, "size"), basket.replace("colour: red", "size: large"));
    let next = service.with(
        &world.hub,
        &[CHART, ("crds/basket.yaml", &new), ("templates/b.yaml", &basket)],
    );
    let entry = world.hub.set(next.entry());
    outcome(&world.hub, &entry, Outcome::Applied).await;
    assert_eq!(baskets.get("b").await.unwrap().data["spec"]["size"], "large");
}

#[tokio::test]
async fn a_chart_that_can_not_be_rendered_deletes_nothing_and_the_next_one_does() {
    let world = world().await;
    let place = world.hub.place("broken");
    let client = world.client().await;
    let (a, b) = (config_map("a", "1"), config_map("b", "1"));
    let service = world
        .applied("broken", &[CHART, ("templates/a.yaml", &a), ("templates/b.yaml", &b)])
        .await;
    let next = service.with(
        &world.hub,
        &[
            CHART,
            ("templates/a.yaml", &a),
            ("templates/c.yaml", "{{ fail \"not today\" }}"),
        ],
    );
    let entry = world.hub.set(next.entry());
    let failed = outcome(&world.hub, &entry, Outcome::Failed).await;
    assert!(failed.message.contains("not today"), "{}", failed.message);
    let maps = config_maps(&client, &place);
    assert!(maps.get_opt("b").await.unwrap().is_some());
    let entry = world
        .hub
        .set(service.with(&world.hub, &[CHART, ("templates/a.yaml", &a)]).entry());
    outcome(&world.hub, &entry, Outcome::Applied).await;
    gone(&maps, "b").await;
}

#[tokio::test]
async fn a_charts_own_hooks_and_tests_run_around_its_objects() {
    let world = world().await;
    let place = world.hub.place("hooked");
    let client = world.client().await;
    let before = "helm.sh/hook: 'pre-install,pre-upgrade', helm.sh/hook-weight: '-5'";
    let migrate = job("{{ .Release.Name }}-migrate", before, "{{ .Values.size }}");
    let check = job("{{ .Release.Name }}-check", "helm.sh/hook: test", "all");
    let size = template("size", ".Values.size");
    let files = [
        CHART,
        ("values.yaml", "size: small\n"),
        ("templates/migrate.yaml", migrate.as_str()),
        ("templates/size.yaml", &size),
        ("templates/tests/check.yaml", &check),
    ];
    let service = Service::new(&world.hub, "hooked", &files);
    let (jobs, maps) = (jobs(&client, &place), config_maps(&client, &place));
    let states = |report: &ServiceReport| -> Vec<(HookPhase, HookState)> {
        report.hooks.iter().map(|hook| (hook.phase, hook.state)).collect()
    };
    // First an install, then an upgrade.
    for wanted in ["small", "large"] {
        let entry = world
            .hub
            .set(with(&service, json!({"values": {"size": wanted}})).entry());
        let running = (HookPhase::PreSync, HookState::Running);
        report(&world.hub, &entry, |report| states(report).contains(&running)).await;
        let arguments =
            jobs.get("hooked-migrate").await.unwrap().data["spec"]["template"]["spec"]["containers"][0]["args"].clone();
        assert_eq!(arguments, json!([wanted]));
        let found = maps
            .get_opt("size")
            .await
            .unwrap()
            .map(|map| map.data["data"]["value"].clone());
        assert_ne!(found, Some(json!(wanted)), "it waits for the hook");
        end_job(&client, &place, "hooked-migrate", 0).await;
        let running = (HookPhase::Test, HookState::Running);
        let tested = report(&world.hub, &entry, |report| states(report).contains(&running)).await;
        assert_eq!(tested.outcome, Outcome::Applying);
        value(&maps, "size", wanted).await;
        end_job(&client, &place, "hooked-check", 0).await;
        let applied = outcome(&world.hub, &entry, Outcome::Applied).await;
        assert!(
            states(&applied).iter().all(|(_, state)| *state == HookState::Succeeded),
            "{applied:#?}"
        );
        assert_eq!(applied.hooks.len(), 2, "{applied:#?}");
    }
}

#[tokio::test]
async fn lookup_reads_the_cluster_as_the_services_account_and_only_where_that_is_allowed() {
    let world = world().await;
    let place = world.hub.place("looking");
    let client = world.client().await;
    namespace(&client, &place).await;
    secret(&client, &place).await;
    let text = format!("dig \"data\" \"password\" \"none\" (lookup \"v1\" \"Secret\" \"{place}\" \"kept\")");
    let found = template("found", &text);
    let service = world.applied("looking", &[CHART, ("templates/a.yaml", &found)]).await;
    let maps = config_maps(&client, &place);
    value(&maps, "found", "none").await;
    let allowed = with(&service, json!({"lookup": true}));
    let entry = world.hub.set(allowed.entry());
    outcome(&world.hub, &entry, Outcome::Applied).await;
    value(&maps, "found", "b2xk").await;

    let mut narrow = allowed;
    narrow.deployment.ceiling.service_account = ServiceAccount {
        namespace: place,
        name: "nobody".into(),
    };
    let entry = world.hub.set(narrow.entry());
    let failed = outcome(&world.hub, &entry, Outcome::Failed).await;
    assert!(
        failed.message.contains("lookup of v1 Secret") && failed.message.contains("nobody"),
        "{}",
        failed.message
    );
}

#[tokio::test]
async fn a_plugin_makes_objects_and_one_that_nobody_has_configured_deletes_none() {
    let world = world().await;
    let place = world.hub.place("plugged");
    let client = world.client().await;
    let files = [("greeting.txt", config_map("greeting", "hello WORLD"))];
    let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (*path, text.as_str())).collect();
    let mut service = Service::new(&world.hub, "plugged", &files);
    let plugin = |name: &str| serde_json::from_value(json!([{"type": "Plugin", "plugin": name}])).unwrap();
    service.deployment.renderers = plugin("greet");
    let entry = world.hub.set(service.entry());
    outcome(&world.hub, &entry, Outcome::Applied).await;
    let maps = config_maps(&client, &place);
    value(&maps, "greeting", "hello cluster").await;
    service.deployment.renderers = plugin("other");
    let entry = world.hub.set(service.entry());
    let failed = outcome(&world.hub, &entry, Outcome::Failed).await;
    assert!(
        failed
            .message
            .contains("the agent knows no plugin \"other\", but greet"),
        "{}",
        failed.message
    );
    value(&maps, "greeting", "hello cluster").await;
}

#[tokio::test]
async fn patches_and_overlays_are_applied_and_a_change_of_a_patch_alone_too() {
    let world = world().await;
    let place = world.hub.place("patched");
    let client = world.client().await;
    let map = config_map("m", "1");
    let files = [
        ("overlay/kustomization.yaml", "resources: [m.yaml]\nnamePrefix: k-\n"),
        ("overlay/m.yaml", map.as_str()),
    ];
    let mut service = Service::new(&world.hub, "patched", &files);
    service.deployment.renderers = serde_json::from_value(json!([{"path": "overlay"}])).unwrap();
    let maps = config_maps(&client, &place);
    for wanted in ["one", "two"] {
        let patch = format!("- {{op: replace, path: /data/value, value: {wanted}}}");
        service.deployment.patches =
            serde_json::from_value(json!([{"target": {"kind": "ConfigMap"}, "patch": patch}])).unwrap();
        let entry = world.hub.set(service.entry());
        let applied = outcome(&world.hub, &entry, Outcome::Applied).await;
        assert_eq!(states(&applied, SyncState::Synced), ["k-m"]);
        assert_eq!(object(&applied, "ConfigMap", "k-m").object.namespace, place);
        value(&maps, "k-m", wanted).await;
    }
}

/// As in grafana and in bitnami's redis and postgresql: if the password changes in place, the clients lose the
/// database.
#[tokio::test]
async fn what_a_chart_makes_up_stays_for_a_version_whatever_is_lost() {
    let mut ground = Ground::new().await;
    let place = ground.hub.place("madeup");
    let password = template("db", "randAlphaNum 20");
    let files = [
        CHART,
        ("templates/db.yaml", password.as_str()),
        ("templates/a.yaml", &config_map("a", "1")),
    ];
    let service = Service::new(&ground.hub, "madeup", &files);
    ground.applied(&service).await;
    let client = ground.plane.client().await.unwrap();
    let maps = config_maps(&client, &place);
    let made = async || {
        maps.get("db").await.unwrap().data["data"]["value"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let first = made().await;
    // The agent's state folder is lost, the cluster has other kinds than before, and an object needs a repair.
    ground.kill();
    std::fs::remove_dir_all(ground.state_dir()).unwrap();
    define(&client, &ground.hub.group("madeup"), "Boat").await;
    maps.delete("a", &DeleteParams::default()).await.unwrap();
    ground.start(false);
    value(&maps, "a", "1").await;
    assert_eq!(made().await, first);
    // Another version generates another password.
    let next = [
        CHART,
        ("templates/db.yaml", password.as_str()),
        ("templates/a.yaml", &config_map("a", "2")),
    ];
    ground.applied(&service.with(&ground.hub, &next)).await;
    assert_ne!(made().await, first);
    let entry = ground
        .hub
        .set(service.removal(farwater_api::service_deployment::DeletionPolicy::Delete, None));
    outcome(&ground.hub, &entry, Outcome::Removed).await;
    let secrets = api(&client, "", "v1", "Secret", "farwater-system");
    let kept = secrets
        .list(&Default::default())
        .await
        .unwrap()
        .items
        .into_iter()
        .filter_map(|secret| secret.metadata.name);
    assert!(!kept.into_iter().any(|name| name.starts_with("farwater-rendered-")));
}
