//! The user's own helm and kustomize, with the same messages.

use std::path::Path;

use farwater_render::Program;
use serde_json::json;
use tempfile::TempDir;

use super::support::{
    Bench, Files, Job, TOOLS, assert_same, charts::everything, errors, files, open_to_all, renderer, values,
};

/// Dropping the folders removes the programs.
fn own() -> (Bench, [TempDir; 3]) {
    let (helm, kustomize) = (open_to_all(&TOOLS.helm()), open_to_all(&TOOLS.kustomize()));
    let path = |path: &Path| path.to_str().unwrap().to_owned();
    let command = vec![
        renderer(),
        "--helm".to_owned(),
        path(&helm.1),
        "--kustomize".to_owned(),
        path(&kustomize.1),
    ];
    let work = tempfile::tempdir().unwrap();
    let program = Program {
        work: Some(work.path().to_owned()),
        ..Program::new(command)
    };
    (Bench::with(program, ""), [helm.0, kustomize.0, work])
}

#[tokio::test]
async fn programs_of_the_users_choice_render_the_same() {
    let ((own, _programs), libraries) = (own(), Bench::new());
    let mut all: Files = everything()
        .into_iter()
        .map(|(path, content)| (format!("web/{path}"), content))
        .collect();
    all.extend(files([
        ("overlay/kustomization.yaml", "resources: [a.yaml]\nnamePrefix: k-\n"),
        (
            "overlay/a.yaml",
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n",
        ),
    ]));
    let renderers = json!([
        {"path": "web", "helm": {"valuesFiles": ["values-prod.yaml"], "values": {"replicas": 6}, "skipTests": true}},
        {"path": "overlay", "kustomize": {"nameSuffix": "-s", "images": [{"name": "x", "newTag": "1"}]}},
    ]);
    let job = Job {
        is_upgrade: true,
        namespace: "prod".to_owned(),
        ..Job::new(all).renderers(renderers)
    };
    assert_same(
        &values(own.render(&job).await),
        &values(libraries.render(&job).await),
        "own programs",
    );
    assert_eq!(
        std::fs::read_dir(own.helper().program().work.as_ref().unwrap())
            .unwrap()
            .count(),
        0
    );
}

#[tokio::test]
async fn what_they_say_when_they_fail_is_told() {
    let (own, _programs) = own();
    let unknown = Job::of([
        ("kustomization.yaml", "resources: [a.yaml]\nsurprise: 1\n"),
        ("a.yaml", ""),
    ]);
    let said = errors(&own.render(&unknown).await);
    assert!(said.contains("surprise"), "{said}");
    let chart = Job::of([
        ("Chart.yaml", "apiVersion: v2\nname: c\nversion: 1.0.0\n"),
        ("templates/a.yaml", "{{ fail \"because\" }}"),
    ]);
    assert!(errors(&own.render(&chart).await).contains("because"));
    let encrypted = Job::of([
        ("Chart.yaml", "apiVersion: v2\nname: c\nversion: 1.0.0\n"),
        (
            "values.yaml",
            "a: 'ENC[AES256_GCM,data:Zm9v,iv:YQ==,tag:YQ==,type:str]'\n",
        ),
    ]);
    assert!(errors(&own.render(&encrypted).await).contains("values.yaml is still encrypted"));
    // The bases are where the hub puts them.
    let base = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n";
    let laid_in = Job::of([
        (
            "kustomization.yaml",
            "resources: ['https://github.com/org/repo//x?ref=v1']\n",
        ),
        (
            ".farwater-bases/github.com~org~repo@v1/x/kustomization.yaml",
            "resources: [a.yaml]\n",
        ),
        (".farwater-bases/github.com~org~repo@v1/x/a.yaml", base),
    ]);
    assert_eq!(values(own.render(&laid_in).await).len(), 1);
    // The programs have no network either.
    let remote = Job::of([("kustomization.yaml", "resources: ['https://127.0.0.1:1/x.yaml']\n")]);
    errors(&own.render(&remote).await);
}
