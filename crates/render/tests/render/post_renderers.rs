//! The result equals that of `helm template --post-renderer` with kustomize.

use std::{fs, os::unix::fs::PermissionsExt as _, process::Command};

use serde_json::{Value, json};

use super::support::{
    Bench, Files, Job, TOOLS, assert_same, charts::everything, errors, files, objects, values, write_folder,
};

fn web() -> Files {
    let mut all: Files = everything()
        .into_iter()
        .map(|(path, content)| (format!("web/{path}"), content))
        .collect();
    // Kustomize refuses duplicate objects, and the definitions of a chart that is used twice are not post-rendered
    // anyway.
    all.remove("web/charts/sub/crds/sub.yaml");
    all
}

/// Helm 4 starts post-renderers as plugins.
fn helm_with(kustomization: &str, all: &Files) -> Vec<Value> {
    let place = tempfile::tempdir().unwrap();
    write_folder(place.path(), all);
    let plugin = place.path().join("plugins/kustomize");
    let work = place.path().join("work");
    write_folder(&work, &files([("kustomization.yaml", kustomization)]));
    let script = format!(
        "#!/bin/sh\ncat > {0}/helm-output.yaml\nexec {1} build {0}\n",
        work.display(),
        TOOLS.kustomize().display()
    );
    let description = "apiVersion: v1\ntype: postrenderer/v1\nname: kustomize\nversion: 1.0.0\nruntime: subprocess\nruntimeConfig:\n  platformCommand:\n  - command: ${HELM_PLUGIN_DIR}/run.sh\n";
    write_folder(
        &plugin,
        &files([("plugin.yaml", description), ("run.sh", script.as_str())]),
    );
    fs::set_permissions(plugin.join("run.sh"), fs::Permissions::from_mode(0o755)).unwrap();
    let ran = Command::new(TOOLS.helm())
        .args([
            "template",
            "rel",
            "./web",
            "--include-crds",
            "--post-renderer",
            "kustomize",
        ])
        .current_dir(place.path())
        .env_clear()
        .env("HOME", place.path())
        .env("PATH", "/usr/bin:/bin")
        .env("HELM_PLUGINS", place.path().join("plugins"))
        .output()
        .unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    objects(&ran.stdout)
}

#[tokio::test]
async fn patches_and_images_are_those_of_a_kustomization_behind_helm() {
    let bench = Bench::new();
    let kustomize = json!({
        "patches": [
            {"target": {"kind": "Deployment"}, "patch": "- {op: add, path: /spec/paused, value: true}"},
            {"target": {"kind": "Job", "name": "migrate"}, "patch": "kind: Job\nmetadata: {name: x, labels: {patched: hook}}\n"},
            {"patch": "apiVersion: v1\nkind: Service\nmetadata: {name: z}\n$patch: delete\n"},
        ],
        "images": [{"name": "nginx", "newName": "mirror/nginx", "newTag": "9"}],
    });
    let mut kustomization = kustomize.clone();
    kustomization["resources"] = json!(["helm-output.yaml"]);
    let job = Job::new(web())
        .at("web")
        .renderers(json!([{"helm": {"postRenderers": [{"kustomize": kustomize}]}}]));
    assert_same(
        &values(bench.render(&job).await),
        &helm_with(&kustomization.to_string(), &web()),
        "post-renderer",
    );
}

#[tokio::test]
async fn a_folder_with_a_kustomization_is_a_post_renderer() {
    let bench = Bench::new();
    let kustomization = "resources: [helm-output.yaml]\nnamePrefix: pre-\nlabels: [{pairs: {from: kustomize}}]\nconfigMapGenerator: [{name: added, literals: [a=b]}]\n";
    let mut all = web();
    all.insert(
        "overlay/kustomization.yaml".to_owned(),
        kustomization.as_bytes().to_vec(),
    );
    let job = Job::new(all)
        .at("web")
        .renderers(json!([{"helm": {"postRenderers": [{"kustomize": {"path": "../overlay"}}]}}]));
    assert_same(
        &values(bench.render(&job).await),
        &helm_with(kustomization, &web()),
        "folder",
    );
}

/// helm#32203, zarf#4977: Helm itself fails with this input.
#[tokio::test]
async fn anchors_of_a_list_are_resolved_before_its_elements_are_taken_apart() {
    let bench = Bench::new();
    let list = "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: &shared {x: y}}\n\
                - {apiVersion: v1, kind: ConfigMap, metadata: {name: b}, data: *shared}\n";
    let chart = files([
        ("a/Chart.yaml", "apiVersion: v2\nname: a\nversion: 1.0.0\n"),
        ("a/templates/list.yaml", list),
    ]);
    let kustomize =
        json!({"patches": [{"target": {"kind": "ConfigMap"}, "patch": "- {op: add, path: /data/z, value: w}"}]});
    let job = Job::new(chart)
        .at("a")
        .renderers(json!([{"helm": {"postRenderers": [{"kustomize": kustomize}]}}]));
    let data: Vec<Value> = values(bench.render(&job).await)
        .into_iter()
        .map(|object| object["data"].clone())
        .collect();
    assert_eq!(data, [json!({"x": "y", "z": "w"}), json!({"x": "y", "z": "w"})]);
}

#[tokio::test]
async fn a_post_renderer_that_fails_is_named() {
    let bench = Bench::new();
    let patch = json!([{"patch": "apiVersion: v1\nkind: Service\nmetadata: {name: nobody}\n"}]);
    let renderers = json!([{"helm": {"postRenderers": [{"kustomize": {"images": [{"name": "a"}]}}, {"kustomize": {"patches": patch}}]}}]);
    let said = errors(&bench.render(&Job::new(web()).at("web").renderers(renderers)).await);
    assert!(said.contains("post-renderer 2") && said.contains("nobody"), "{said}");
}
