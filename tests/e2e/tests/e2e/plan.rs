//! `farwater plan`: the agent later does exactly what the plan says, and planning changes nothing.

use std::{collections::BTreeMap, fs};

use anyhow::{Context as _, Result, ensure};
use farwater_e2e::{Fleet, cli::Ran, config_map, files_with};
use farwater_testkit::{Plane, shared};
use k8s_openapi::api::{
    apps::v1::Deployment,
    batch::v1::Job,
    core::v1::{ConfigMap, Secret},
};
use kube::{
    Api,
    api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

/// Objects in a namespace, with their versions.
async fn contents(plane: &Plane, namespace: &str) -> Result<BTreeMap<String, String>> {
    let client = plane.client().await?;
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let secrets: Api<Secret> = Api::namespaced(client, namespace);
    let mut found = BTreeMap::new();
    for map in maps.list(&ListParams::default()).await?.items {
        found.insert(
            map.metadata.name.unwrap_or_default(),
            map.metadata.resource_version.unwrap_or_default(),
        );
    }
    for secret in secrets.list(&ListParams::default()).await?.items {
        found.insert(
            secret.metadata.name.unwrap_or_default(),
            secret.metadata.resource_version.unwrap_or_default(),
        );
    }
    found.remove("kube-root-ca.crt");
    Ok(found)
}

/// The plan as data. `code`: exit code of the command.
fn plan(fleet: &Fleet, code: i32, arguments: &[&str]) -> Result<Value> {
    let arguments = [&["plan", "app", "-o", "json"], arguments].concat();
    let ran = fleet.cli().expect(code, &arguments)?;
    serde_json::from_str(&ran.stdout).with_context(|| ran.stdout.clone())
}

/// `effect name` of each change, and `- name` of each deletion.
fn outline(plan: &Value) -> Vec<String> {
    let list = |name: &str| plan["plan"][name].as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let changes = list("changes")
        .into_iter()
        .map(|one| format!("{} {}", text(&one["effect"]), text(&one["name"])));
    let deletes = list("deletes").into_iter().map(|one| {
        let held = if one["held"] == true { " held" } else { "" };
        format!("- {}{held}", text(&one["name"]))
    });
    changes.chain(deletes).collect()
}

fn fields(plan: &Value, name: &str) -> Vec<Value> {
    let changes = plan["plan"]["changes"].as_array().into_iter().flatten();
    let mut of = changes.filter(|change| change["name"] == name);
    of.next()
        .and_then(|change| change["fields"].as_array().cloned())
        .unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plan_is_what_the_agent_then_does_and_changes_nothing_itself() -> Result<()> {
    let plane = shared(1).await?;
    let mut fleet = Fleet::start().await?;
    fleet.join("east", plane).await?;
    let (a, b, d) = (config_map("a", "one"), config_map("b", "one"), config_map("d", "one"));
    let files = [("app/a.yaml", a.as_str()), ("app/b.yaml", &b), ("app/d.yaml", &d)];
    let repository = fleet.repository("infra", &files).await?;
    let first = repository.branch("main").context("a branch")?;
    fleet
        .deploy_with("app", "east", "infra", "app", json!({"apply": {"drift": "Report"}}))
        .await?;
    fleet.until_applied("app", &first).await?;
    let namespace = fleet.namespace("app");

    // The desired objects exist.
    let quiet = plan(&fleet, 0, &[])?;
    ensure!(
        outline(&quiet).is_empty() && quiet["plan"]["unchanged"] == 3,
        "{quiet:#}"
    );
    ensure!(
        quiet["cluster"] == "east" && quiet["revision"] == format!("main@sha1:{first}"),
        "{quiet:#}"
    );

    // The service is suspended, the source continues, and objects in the cluster are changed by hand.
    fleet.cli().expect(0, &["suspend", "app", "--reason", "a look"])?;
    fleet
        .until("the agent to be told of the suspension", || async {
            let ran = fleet.cli().run(&["plan", "app", "-o", "json"])?;
            let told: Value = serde_json::from_str(&ran.stdout).with_context(|| ran.stdout.clone())?;
            let is_held = told["plan"]["held"].is_string();
            ensure!(ran.code == i32::from(is_held), "{ran:?}");
            Ok(is_held.then_some(()))
        })
        .await?;
    let maps: Api<ConfigMap> = Api::namespaced(plane.client().await?, &namespace);
    let by_hand = |value: &str| Patch::Merge(json!({"data": {"value": value}}));
    maps.patch("a", &PatchParams::apply("hand"), &by_hand("hand")).await?;
    let commit = repository.change(
        "main",
        &[
            ("app/a.yaml", Some(&config_map("a", "two"))),
            ("app/b.yaml", None),
            ("app/c.yaml", Some(&config_map("c", "new"))),
        ],
    )?;
    let before = contents(plane, &namespace).await?;

    let told = plan(&fleet, 1, &["--ref", "main"])?;
    ensure!(told["revision"] == format!("main@sha1:{commit}"), "{told:#}");
    ensure!(outline(&told) == ["Change a", "Create c", "- b"], "{told:#}");
    let field = fields(&told, "a");
    let expected = json!([{"path": "data.value", "live": "\"hand\"", "planned": "\"two\"", "applied": "\"one\"", "origin": "Both"}]);
    ensure!(Value::from(field.clone()) == expected, "{field:#?}");
    let by_commit = plan(&fleet, 1, &["--ref", &commit])?;
    ensure!(by_commit["plan"] == told["plan"], "{by_commit:#}");
    // Applied objects stay, except for changes by hand, which also stay.
    let back = plan(&fleet, 0, &["--ref", &first])?;
    ensure!(outline(&back).is_empty(), "{back:#}");
    let drifted = back["plan"]["leftOut"][0].clone();
    ensure!(drifted["name"] == "a" && drifted["sync"] == "Drifted", "{back:#}");

    // The same as text for people.
    let text = fleet.cli().expect(1, &["plan", "app", "--ref", "main"])?.stdout;
    for part in [
        "~ ConfigMap",
        "data.value: \"hand\" → \"two\"  changed in the cluster too",
        "+ ConfigMap",
        "- ConfigMap",
    ] {
        ensure!(text.contains(part), "{part:?} is not in {text}");
    }
    ensure!(text.contains("1 to create, 1 to change, 1 to delete"), "{text}");

    // None of that changed anything, and no source was moved.
    ensure!(contents(plane, &namespace).await? == before);

    // Then it is applied.
    fleet.cli().expect(0, &["resume", "app"])?;
    fleet.reconcile("infra").await?;
    fleet.until_applied("app", &commit).await?;
    let after = contents(plane, &namespace).await?;
    ensure!(
        after.keys().map(String::as_str).collect::<Vec<_>>() == ["a", "c", "d"],
        "{after:?}"
    );
    ensure!(after["d"] == before["d"] && after["a"] != before["a"], "{after:?}");
    ensure!(maps.get("a").await?.data.unwrap_or_default()["value"] == "two");
    let quiet = plan(&fleet, 0, &[])?;
    ensure!(
        outline(&quiet).is_empty() && quiet["plan"]["unchanged"] == 3,
        "{quiet:#}"
    );
    Ok(())
}

fn secret(value: &str, note: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Secret\nmetadata: {{name: password, annotations: {{note: {note}}}}}\ntype: Opaque\nstringData: {{value: {value}}}\n"
    )
}

fn bundles(fleet: &Fleet) -> Result<usize> {
    Ok(fs::read_dir(fleet.state_dir("east").join("bundles"))?.count())
}

const BEFORE: &str = "canary-before-1c9e";
const LOCAL: &str = "canary-local-77ad";
/// Base64, as in a Secret's data.
const BEFORE_BASE64: &str = "Y2FuYXJ5LWJlZm9yZS0xYzll";
const LOCAL_BASE64: &str = "Y2FuYXJ5LWxvY2FsLTc3YWQ=";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn local_files_are_planned_and_a_secrets_values_are_nowhere() -> Result<()> {
    let plane = shared(2).await?;
    let mut fleet = Fleet::start().await?;
    fleet.join("east", plane).await?;
    let (a, before) = (config_map("a", "one"), secret(BEFORE, "old"));
    let repository = fleet
        .repository("infra", &[("app/a.yaml", &a), ("app/secret.yaml", &before)])
        .await?;
    fleet.deploy("app", "east", "infra", "app").await?;
    fleet
        .until_applied("app", &repository.branch("main").context("a branch")?)
        .await?;
    let namespace = fleet.namespace("app");
    let (there, kept) = (contents(plane, &namespace).await?, bundles(&fleet)?);

    let dir = tempfile::tempdir()?;
    fs::write(dir.path().join("a.yaml"), &a)?;
    fs::write(dir.path().join("secret.yaml"), secret(LOCAL, "new"))?;
    fs::write(dir.path().join("b.yaml"), config_map("b", "mine"))?;
    // A namespace that nothing makes, and one that the folder makes.
    let absent = format!("{}-absent", fleet.unique);
    let lost = config_map("lost", "x").replace("{name: lost}", &format!("{{name: lost, namespace: {absent}}}"));
    fs::write(dir.path().join("lost.yaml"), &lost)?;
    let folder = dir.path().to_str().context("a path")?;
    let told = plan(&fleet, 1, &["--local", folder])?;
    ensure!(outline(&told) == ["Create b", "Change password"], "{told:#}");
    let left = &told["plan"]["leftOut"][0];
    let reason = left["reason"].as_str().unwrap_or_default();
    ensure!(
        left["name"] == "lost"
            && left["sync"] == "Waiting"
            && reason.starts_with(&format!("waits for namespace {absent}: ")),
        "{told:#}"
    );
    let namespace_file = dir.path().join("namespace.yaml");
    let made = format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: {absent}}}\n");
    fs::write(&namespace_file, made)?;
    let states = outline(&plan(&fleet, 1, &["--local", folder])?);
    let expected = [
        format!("Create {absent}").as_str(),
        "Create b",
        "Untried lost",
        "Change password",
    ]
    .map(str::to_owned);
    ensure!(
        expected.iter().all(|one| states.contains(one)) && states.len() == 4,
        "{states:?}"
    );
    fs::remove_file(&namespace_file)?;
    fs::remove_file(dir.path().join("lost.yaml"))?;
    let field = fields(&told, "password");
    let paths: Vec<&str> = field.iter().filter_map(|field| field["path"].as_str()).collect();
    ensure!(paths == ["data.value", "metadata.annotations.note"], "{field:#?}");
    for field in &field {
        let (live, planned) = (
            field["live"].as_str().unwrap_or_default(),
            field["planned"].as_str().unwrap_or_default(),
        );
        ensure!(
            live.starts_with("hmac:") && planned.starts_with("hmac:") && live != planned,
            "{field}"
        );
        // Without changes by hand, the live object is the applied one.
        ensure!(field["applied"] == live && field["origin"] == "Source", "{field}");
    }

    // The same values are equal, wherever they come from.
    fs::write(dir.path().join("secret.yaml"), &before)?;
    fs::remove_file(dir.path().join("b.yaml"))?;
    let same = plan(&fleet, 0, &["--local", folder])?;
    ensure!(same["plan"]["unchanged"] == 2, "{same:#}");

    // Another folder than the service's own, in a checkout, is another place. Objects that it lacks wait.
    fs::create_dir_all(dir.path().join("checkout/.git"))?;
    fs::create_dir_all(dir.path().join("checkout/app2"))?;
    fs::write(dir.path().join("checkout/app2/a.yaml"), &a)?;
    let elsewhere = dir.path().join("checkout/app2");
    let moved = plan(&fleet, 1, &["--local", elsewhere.to_str().context("a path")?])?;
    ensure!(outline(&moved) == ["- password held"], "{moved:#}");

    let texts = [BEFORE, LOCAL, BEFORE_BASE64, LOCAL_BASE64];
    let shown = format!("{told}{same}{moved}");
    ensure!(texts.iter().all(|text| !shown.contains(text)), "{shown}");
    let found = files_with(fleet.hub.dir(), &texts)?;
    ensure!(found.is_empty(), "in the clear: {found:?}");
    let found = files_with(&fleet.state_dir("east"), &texts)?;
    ensure!(found.is_empty(), "in the clear: {found:?}");
    let log = fleet.agent("east")?.process().output();
    ensure!(texts.iter().all(|text| !log.contains(text)), "the agent's log");
    let log = fleet.hub.process().output();
    ensure!(texts.iter().all(|text| !log.contains(text)), "the hub's log");
    // A local folder leaves no traces, neither in the hub nor in the cluster.
    ensure!(bundles(&fleet)? == kept && contents(plane, &namespace).await? == there);
    Ok(())
}

/// A Deployment to which the API server adds many defaults.
fn workload(replicas: u8) -> String {
    format!(
        "apiVersion: apps/v1
kind: Deployment
metadata: {{name: web}}
spec:
  replicas: {replicas}
  selector: {{matchLabels: {{app: web}}}}
  template:
    metadata: {{labels: {{app: web}}}}
    spec: {{containers: [{{name: main, image: x, resources: {{requests: {{cpu: 1000m}}}}}}]}}
"
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_apply_would_leave_is_hidden_and_counted() -> Result<()> {
    let plane = shared(1).await?;
    let mut fleet = Fleet::start().await?;
    fleet.join("east", plane).await?;
    let two = workload(2);
    let repository = fleet.repository("infra", &[("app/web.yaml", &two)]).await?;
    fleet.deploy("app", "east", "infra", "app").await?;
    let workloads: Api<Deployment> = Api::namespaced(plane.client().await?, &fleet.namespace("app"));
    fleet
        .until("the workload to be made", || async {
            Ok(workloads.get_opt("web").await?)
        })
        .await?;
    let by_hand = Patch::Merge(json!({"metadata": {"annotations": {"team/note": "mine"}}, "spec": {"paused": true}}));
    workloads.patch("web", &PatchParams::apply("hand"), &by_hand).await?;

    repository.commit("next", &[("app/web.yaml", &workload(3))])?;
    let told = plan(&fleet, 1, &["--ref", "next"])?;
    let field = fields(&told, "web");
    let expected = json!([{"path": "spec.replicas", "live": "2", "planned": "3", "applied": "2", "origin": "Source"}]);
    ensure!(Value::from(field) == expected, "{told:#}");
    // Defaults of Deployment, pod and container, "1" instead of 1000m, and changes by hand.
    ensure!(told["plan"]["hidden"].as_u64() > Some(12), "{told:#}");
    let text = fleet.cli().expect(1, &["plan", "app", "--ref", "next"])?.stdout;
    ensure!(
        text.contains("differences hidden that stay") && !text.contains("team/note"),
        "{text}"
    );
    ensure!(!text.contains("cpu") && !text.contains("paused"), "{text}");
    Ok(())
}

const DEFINITION: &str = "apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: boats.GROUP}
spec:
  group: GROUP
  scope: Namespaced
  names: {kind: Boat, plural: boats}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {FIELDS}}}}}
";
const LENGTH: &str = "length: {type: integer}";
const PAINT: &str = "paint: {type: string, default: blue}";
const CREW: &str = "crew: {type: integer}";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upgraded_definition_is_planned_and_applied_with_its_objects() -> Result<()> {
    let plane = shared(2).await?;
    let mut fleet = Fleet::start().await?;
    fleet.join("east", plane).await?;
    let group = format!("{}.example.com", fleet.unique);
    let definition = |fields: &[&str]| {
        DEFINITION
            .replace("GROUP", &group)
            .replace("FIELDS", &fields.join(", "))
    };
    let boat = |spec: &str| format!("apiVersion: {group}/v1\nkind: Boat\nmetadata: {{name: ark}}\nspec: {{{spec}}}\n");
    let (plain, ark) = (definition(&[LENGTH]), boat("length: 300"));
    let repository = fleet
        .repository("infra", &[("app/a.yaml", &plain), ("app/b.yaml", &ark)])
        .await?;
    fleet.deploy("app", "east", "infra", "app").await?;
    fleet
        .until_applied("app", &repository.branch("main").context("a branch")?)
        .await?;
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk(&group, "v1", "Boat"));
    let boats: Api<DynamicObject> = Api::namespaced_with(plane.client().await?, &fleet.namespace("app"), &kind);
    let made = boats.get("ark").await?.metadata.resource_version;

    // A new default changes the definition, but no object.
    let painted = definition(&[LENGTH, PAINT]);
    repository.commit("next", &[("app/a.yaml", &painted), ("app/b.yaml", &ark)])?;
    let told = plan(&fleet, 1, &["--ref", "next"])?;
    ensure!(
        outline(&told) == [format!("Change boats.{group}")] && told["plan"]["unchanged"] == 1,
        "{told:#}"
    );
    let commit = repository.change("main", &[("app/a.yaml", Some(&painted))])?;
    fleet.reconcile("infra").await?;
    fleet.until_applied("app", &commit).await?;
    fleet
        .until("the default to be there", || async {
            Ok((boats.get("ark").await?.data["spec"] == json!({"length": 300, "paint": "blue"})).then_some(()))
        })
        .await?;
    let quiet = plan(&fleet, 0, &[])?;
    ensure!(
        outline(&quiet).is_empty() && quiet["plan"]["unchanged"] == 2,
        "{quiet:#}"
    );
    ensure!(
        boats.get("ark").await?.metadata.resource_version == made,
        "it was written again"
    );

    // A field that is as new as its definition can't be tried before the definition exists, so it is not refused.
    let crewed = definition(&[LENGTH, PAINT, CREW]);
    let ark = boat("length: 300, crew: 4");
    let raft: DynamicObject = serde_json::from_value(json!({
        "apiVersion": format!("{group}/v1"), "kind": "Boat", "metadata": {"name": "raft"}, "spec": {"length": 3},
    }))?;
    boats.create(&PostParams::default(), &raft).await?;
    let taken = boat("length: 3, crew: 1").replace(
        "{name: ark}",
        "{name: raft, annotations: {farwater.dev/adopt: IfNoDifference}}",
    );
    repository.commit(
        "next",
        &[("app/a.yaml", &crewed), ("app/b.yaml", &ark), ("app/c.yaml", &taken)],
    )?;
    let told = plan(&fleet, 1, &["--ref", "next"])?;
    let untried = ["Untried ark", "Untried raft"].map(str::to_owned);
    ensure!(
        outline(&told) == [&[format!("Change boats.{group}")], &untried[..]].concat(),
        "{told:#}"
    );
    let commit = repository.change("main", &[("app/a.yaml", Some(&crewed)), ("app/b.yaml", Some(&ark))])?;
    fleet.reconcile("infra").await?;
    fleet.until_applied("app", &commit).await?;
    let spec = boats.get("ark").await?.data["spec"].clone();
    ensure!(spec == json!({"length": 300, "paint": "blue", "crew": 4}), "{spec}");
    Ok(())
}

/// Suspended, so that it runs for ever.
const MIGRATION: &str = "apiVersion: batch/v1
kind: Job
metadata: {name: migrate, annotations: {farwater.dev/hook: PreSync}}
spec: {suspend: true, template: {spec: {restartPolicy: Never, containers: [{name: main, image: x}]}}}
";

/// `effect name` of each hook.
fn hooks(plan: &Value) -> Vec<String> {
    let told = plan["plan"]["hooks"].as_array().into_iter().flatten();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    told.map(|hook| format!("{} {}", text(&hook["effect"]), text(&hook["name"])))
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hooks_and_tests_are_named_and_never_begun_by_a_plan() -> Result<()> {
    let plane = shared(2).await?;
    let mut fleet = Fleet::start().await?;
    fleet.join("east", plane).await?;
    let a = config_map("a", "one");
    let repository = fleet.repository("infra", &[("app/a.yaml", &a)]).await?;
    fleet.deploy("app", "east", "infra", "app").await?;
    fleet
        .until_applied("app", &repository.branch("main").context("a branch")?)
        .await?;
    let jobs: Api<Job> = Api::namespaced(plane.client().await?, &fleet.namespace("app"));

    // Before they are in the source.
    let dir = tempfile::tempdir()?;
    fs::write(dir.path().join("a.yaml"), &a)?;
    fs::write(dir.path().join("migrate.yaml"), MIGRATION)?;
    let test = MIGRATION
        .replace("name: migrate", "name: smoke")
        .replace("PreSync", "Test");
    fs::write(dir.path().join("smoke.yaml"), test)?;
    let folder = dir.path().to_str().context("a path")?;
    let told = plan(&fleet, 1, &["--local", folder])?;
    ensure!(outline(&told).is_empty() && told["plan"]["unchanged"] == 1, "{told:#}");
    ensure!(hooks(&told) == ["Run migrate", "Run smoke"], "{told:#}");
    let text = fleet.cli().expect(1, &["plan", "app", "--local", folder])?.stdout;
    ensure!(
        text.contains("/migrate  PreSync hook runs") && text.contains("2 to run"),
        "{text}"
    );
    ensure!(
        jobs.list(&ListParams::default()).await?.items.is_empty(),
        "a plan has begun a hook"
    );

    // While it runs.
    repository.change(
        "main",
        &[
            ("app/migrate.yaml", Some(MIGRATION)),
            ("app/b.yaml", Some(&config_map("b", "new"))),
        ],
    )?;
    fleet.reconcile("infra").await?;
    let begun = fleet
        .until("the migration to be begun", || async {
            Ok(jobs.get_opt("migrate").await?)
        })
        .await?;
    let told = plan(&fleet, 1, &[])?;
    ensure!(
        hooks(&told) == ["Running migrate"] && outline(&told) == ["Create b"],
        "{told:#}"
    );
    let next = plan(&fleet, 1, &["--local", folder])?;
    ensure!(hooks(&next) == ["End migrate", "Run migrate", "Run smoke"], "{next:#}");
    ensure!(
        jobs.get("migrate").await?.metadata.uid == begun.metadata.uid,
        "a plan has touched a hook"
    );
    Ok(())
}

/// Runs a command that must fail with this code and these parts in its message.
fn refused(fleet: &Fleet, code: i32, arguments: &[&str], parts: &[&str]) -> Result<Ran> {
    let ran = fleet.cli().expect(code, &[&["plan"], arguments].concat())?;
    for part in parts {
        ensure!(ran.stderr.contains(part), "{part:?} is not in {}", ran.stderr);
    }
    Ok(ran)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_can_not_be_planned_says_why() -> Result<()> {
    let plane = shared(1).await?;
    let mut fleet = Fleet::start().await?;
    fleet.join("east", plane).await?;
    let a = config_map("a", "one");
    let repository = fleet.repository("infra", &[("app/a.yaml", &a)]).await?;
    repository.commit("other", &[("else/a.yaml", &a)])?;
    fleet.deploy("app", "east", "infra", "app").await?;
    fleet
        .until_applied("app", &repository.branch("main").context("a branch")?)
        .await?;

    refused(&fleet, 4, &["none"], &["there is no ServiceDeployment \"none\""])?;
    refused(
        &fleet,
        4,
        &["app", "--ref", "nosuch"],
        &["branch or tag nosuch does not exist", "main"],
    )?;
    refused(&fleet, 5, &["app", "--ref=-x"], &["is not a name that Git takes"])?;
    refused(&fleet, 5, &["app", "--ref", "other"], &["no such folder"])?;
    refused(
        &fleet,
        2,
        &["app", "--ref", "main", "--local", "."],
        &["cannot be used with"],
    )?;
    refused(&fleet, 2, &["app", "--local", "/nonexistent"], &["can't read"])?;
    let dir = tempfile::tempdir()?;
    let path = dir.path().to_str().context("a path")?;
    // Random, so that it can't be compressed and is too large for a request.
    let mut noise = vec![0; 3_000_000];
    rand::fill(&mut noise[..]);
    fs::write(dir.path().join("noise.bin"), noise)?;
    refused(&fleet, 2, &["app", "--local", path], &["too many for a plan"])?;
    fs::remove_file(dir.path().join("noise.bin"))?;
    fs::write(dir.path().join("a.yaml"), "a: [")?;
    let broken = fleet.cli().expect(1, &["plan", "app", "--local", path])?;
    ensure!(broken.stdout.contains("can't be read: "), "{}", broken.stdout);
    // The API server's refusal is shown before the commit.
    fs::write(
        dir.path().join("a.yaml"),
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {value: 1}\n",
    )?;
    let wrong = fleet.cli().expect(1, &["plan", "app", "--local", path])?;
    ensure!(
        wrong.stdout.contains("! ConfigMap") && wrong.stdout.contains("would be refused"),
        "{}",
        wrong.stdout
    );

    // Without its agent there is no plan, and the message names the missing agent.
    fleet.agent("east")?.kill9();
    let clusters = fleet.api::<farwater_api::Cluster>();
    fleet
        .until("the hub to notice that the agent is gone", || async {
            let connected = clusters.get("east").await?.status.and_then(|status| status.connected);
            Ok((connected != Some(true)).then_some(()))
        })
        .await?;
    let away = refused(
        &fleet,
        6,
        &["app", "--timeout", "4s"],
        &["after 4 s", "the agent of cluster east", "s ago"],
    )?;
    ensure!(away.stdout.is_empty(), "{away:?}");
    fleet.agent("east")?.restart()?;
    fleet.cli().expect(0, &["plan", "app"])?;
    Ok(())
}
