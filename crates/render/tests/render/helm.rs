//! The result equals that of `helm template`.

use std::fs;

use farwater_render::Capabilities;
use serde_json::{Value, json};

use super::support::{
    Bench, Files, Job, TOOLS, assert_same,
    charts::{everything, small, sub},
    errors, helm_template, objects, others, path, read_folder, run, values, write_folder,
};

/// Moves the files into a folder.
fn below(folder: &str, files: &Files) -> Files {
    files
        .iter()
        .map(|(path, content)| (format!("{folder}/{path}"), content.clone()))
        .collect()
}

/// Compares our objects with Helm's, for the chart at `chart`.
async fn check(bench: &Bench, job: &Job, arguments: &[&str]) {
    let what = format!("{arguments:?}");
    let ran = helm_template(&job.files, job.path.as_str(), arguments);
    assert!(ran.status.success(), "{what}: {}", String::from_utf8_lossy(&ran.stderr));
    assert_same(&values(bench.render(job).await), &objects(&ran.stdout), &what);
}

fn web() -> Job {
    Job::new(below("web", &everything())).at("web")
}

fn with(mut job: Job, helm: Value) -> Job {
    job.renderers = serde_json::from_value(json!([{"helm": helm}])).unwrap();
    job
}

#[tokio::test]
async fn a_chart_with_everything_is_rendered_as_by_helm() {
    let bench = Bench::new();
    check(&bench, &web(), &[]).await;
    check(
        &bench,
        &with(web(), json!({"valuesFiles": ["values-prod.yaml"]})),
        &["-f", "web/values-prod.yaml"],
    )
    .await;
    let inline = json!({"replicas": 7, "sub": {"enabled": false}, "image": {"tag": "v3"}, "annotations": {"a/b": "c"}, "big": 12_345_678_901_u64, "removed": null});
    let arguments = ["-f", "web/values-prod.yaml", "-f", "inline.yaml"];
    let mut job = with(
        web(),
        json!({"valuesFiles": ["/web/values-prod.yaml"], "values": inline}),
    );
    job.files
        .insert("inline.yaml".to_owned(), inline.to_string().into_bytes());
    check(&bench, &job, &arguments).await;
    check(
        &bench,
        &with(web(), json!({"values": {"tags": {"extra": false}}})),
        &["--set", "tags.extra=false"],
    )
    .await;
    check(&bench, &with(web(), json!({"skipTests": true})), &["--skip-tests"]).await;
    let upgrade = Job {
        is_upgrade: true,
        namespace: "prod".to_owned(),
        ..web()
    };
    check(&bench, &upgrade, &["--is-upgrade", "-n", "prod"]).await;
    let capabilities = Capabilities {
        kube_version: "v1.29.4-gke.123".to_owned(),
        api_versions: vec![
            "monitoring.coreos.com/v1".to_owned(),
            "monitoring.coreos.com/v1/ServiceMonitor".to_owned(),
        ],
        complete: false,
    };
    let old = [
        "--kube-version",
        "v1.29.4-gke.123",
        "-a",
        "monitoring.coreos.com/v1,monitoring.coreos.com/v1/ServiceMonitor",
    ];
    check(&bench, &Job { capabilities, ..web() }, &old).await;
    let invalid = with(web(), json!({"values": {"replicas": 0}, "skipSchemaValidation": true}));
    check(&bench, &invalid, &["--set", "replicas=0", "--skip-schema-validation"]).await;
}

/// As in prometheus-adapter, loki-distributed and harbor.
#[tokio::test]
async fn the_last_newline_of_a_template_is_that_of_helm() {
    let bench = Bench::new();
    let map = |name: &str, text: &str| {
        format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\ndata:\n  a: {text}")
    };
    let trimmed = format!(
        "{{{{- if true }}}}\n{}{{{{- end -}}}}",
        map("trimmed", "|+\n    {{- \"x\\ny\" | nindent 4 }}\n")
    );
    let chart = super::support::files([
        ("Chart.yaml", "apiVersion: v2\nname: a\nversion: 1.0.0\n"),
        ("templates/trimmed.yaml", &trimmed),
        ("templates/kept.yaml", &map("kept", "|+\n    x\n")),
        (
            "templates/two.yaml",
            &format!("{}---\n{}", map("one", "|+\n    x\n\n"), map("two", "|\n    x")),
        ),
        ("templates/stripped.yaml", &map("stripped", "|-\n    x\n")),
    ]);
    check(&bench, &Job::new(below("a", &chart)).at("a"), &[]).await;
}

#[tokio::test]
async fn definitions_can_be_left_out() {
    let job = with(web(), json!({"skipCrds": true}));
    let kinds: Vec<Value> = values(Bench::new().render(&job).await)
        .iter()
        .map(|value| value["kind"].clone())
        .collect();
    assert!(
        !kinds.contains(&json!("CustomResourceDefinition")) && kinds.contains(&json!("Deployment")),
        "{kinds:?}"
    );
}

#[tokio::test]
async fn packed_and_local_dependencies_are_those_of_helm_dependency_build() {
    let bench = Bench::new();
    let parent = "apiVersion: v2\nname: parent\nversion: 1.0.0\ndependencies:\n- {name: sub, version: 1.2.3, repository: file://../libs/sub}\n";
    let mut job = Job::new(below("libs/sub", &sub())).at("app");
    job.files
        .insert("app/Chart.yaml".to_owned(), parent.as_bytes().to_vec());
    job.files
        .insert("app/values.yaml".to_owned(), b"sub: {color: green}\n".to_vec());
    // The chart as it is in the repository, without charts/.
    let ours = values(bench.render(&job).await);

    let folder = tempfile::tempdir().unwrap();
    write_folder(folder.path(), &job.files);
    let build = ["dependency", "build", "app", "--skip-refresh"].map(str::to_owned);
    let ran = run(&TOOLS.helm(), folder.path(), &build);
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let vendored = read_folder(folder.path());
    assert!(
        vendored.contains_key("app/charts/sub-1.2.3.tgz"),
        "{:?}",
        vendored.keys()
    );
    let ran = helm_template(&vendored, "app", &[]);
    assert_same(&ours, &objects(&ran.stdout), "file://");
    check(&bench, &Job { files: vendored, ..job }, &[]).await;
}

#[tokio::test]
async fn charts_that_others_wrote_are_rendered_as_by_helm() {
    let bench = Bench::new();
    for chart in [
        "external-dns/chart",
        "metrics-server/chart",
        "kueue/chart",
        "node-feature-discovery/deployment/helm/node-feature-discovery",
    ] {
        let job = Job::new(below("chart", &read_folder(&others(chart)))).at("chart");
        check(&bench, &job, &[]).await;
        let named = Job {
            namespace: "system".to_owned(),
            is_upgrade: true,
            ..job.clone()
        };
        check(&bench, &named, &["-n", "system", "--is-upgrade"]).await;
        let values = json!({"replicaCount": 3, "replicas": 3, "nameOverride": "other", "serviceMonitor": {"enabled": true}, "metrics": {"enabled": true}, "podDisruptionBudget": {"enabled": true, "minAvailable": 1}, "provider": {"name": "google"}, "enablePrometheus": true, "topologyUpdater": {"enable": true}, "prometheus": {"enable": true}});
        let mut changed = with(job.clone(), json!({"values": values}));
        changed
            .files
            .insert("inline.yaml".to_owned(), values.to_string().into_bytes());
        let ran = helm_template(&changed.files, "chart", &["-f", "inline.yaml"]);
        if ran.status.success() {
            assert_same(&values_of(&bench, &changed).await, &objects(&ran.stdout), chart);
        } else {
            errors(&bench.render(&changed).await);
        }
    }
}

async fn values_of(bench: &Bench, job: &Job) -> Vec<Value> {
    values(bench.render(job).await)
}

#[tokio::test]
async fn where_helm_fails_so_do_we_and_say_why() {
    let bench = Bench::new();
    let bad = |template: &str| Job::new(small(template));
    let cases: Vec<(Job, &str)> = vec![
        (bad("{{ .Values.a.b.c }}"), "nil pointer evaluating interface {}.b"),
        (bad("{{ fail \"not today\" }}"), "not today"),
        (bad("{{ required \"give a name\" .Values.name }}"), "give a name"),
        (bad("{{ include \"nothing\" . }}"), "nothing"),
        (bad("{{ if }}"), "missing value for if"),
        (bad("{{ nosuchfunction 1 }}"), "function \"nosuchfunction\" not defined"),
        (bad("a: [\n"), "small/templates/a.yaml"),
        (with(web(), json!({"values": {"replicas": "many"}})), "replicas"),
        (
            with(web(), json!({"valuesFiles": ["none.yaml"]})),
            "values file web/none.yaml is not among the service's files",
        ),
        (with(web(), json!({"releaseName": "rel", "values": {"sub": 5}})), "sub"),
        (
            Job {
                capabilities: Capabilities {
                    kube_version: "v1.19.0".to_owned(),
                    ..Capabilities::default()
                },
                ..web()
            },
            "chart web requires Kubernetes >=1.20.0-0",
        ),
        (
            Job {
                capabilities: Capabilities {
                    kube_version: "latest".to_owned(),
                    ..Capabilities::default()
                },
                ..web()
            },
            "Kubernetes version \"latest\"",
        ),
        (
            Job {
                name: "Not_A_Name".to_owned(),
                ..web()
            },
            "release name \"Not_A_Name\"",
        ),
    ];
    for (job, expected) in cases {
        let said = errors(&bench.render(&job).await);
        assert!(said.contains(expected), "{expected}: {said}");
    }
    let library = Job::of([("Chart.yaml", "apiVersion: v2\nname: l\nversion: 1.0.0\ntype: library\n")]);
    assert!(errors(&bench.render(&library).await).contains("is of type library"));
    let missing = Job::of([(
        "Chart.yaml",
        "apiVersion: v2\nname: c\nversion: 1.0.0\ndependencies: [{name: redis, version: 1.0.0, repository: 'https://charts.example.com'}]\n",
    )]);
    assert!(
        errors(&bench.render(&missing).await).contains("run helm dependency build and keep charts/ with the chart")
    );
}

/// The error names the value and what the schema requires, but not the value itself, which may be secret. Rendered, the
/// encrypted value would become 0, differ from what it is compared with, or be hashed: the objects would look right and
/// be wrong.
#[tokio::test]
async fn a_value_that_is_still_encrypted_is_an_error_wherever_it_comes_from() {
    const ENCRYPTED: &str = "ENC[AES256_GCM,data:Zm9v,iv:YQ==,tag:YQ==,type:str]";
    let bench = Bench::new();
    let template = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {n: '{{ .Values.replicas | int }}'}\n";
    let chart = [
        ("Chart.yaml", "apiVersion: v2\nname: web\nversion: 1.0.0\n"),
        ("templates/a.yaml", template),
    ];
    let file = format!("list: [{{replicas: '{ENCRYPTED}'}}]\n");
    let own = format!("replicas: '{ENCRYPTED}'\n");
    let overlay = "helmGlobals: {chartHome: charts}\n\
                   helmCharts: [{name: web, releaseName: web, additionalValuesFiles: [secret.yaml]}]\n";
    let inflated = |name: &str| format!("charts/web/{name}");
    let job = |more: &[(&str, &str)]| Job::of(chart.iter().chain(more).copied());
    let options = json!({"valuesFiles": ["secret.yaml"]});
    let overlaid = chart.map(|(name, text)| (inflated(name), text));
    let overlaid = overlaid.iter().map(|(name, text)| (name.as_str(), *text));
    for (job, place) in [
        (
            with(job(&[("secret.yaml", &file)]), options),
            "value list.0.replicas of chart web",
        ),
        (job(&[("values.yaml", &own)]), "value replicas of chart web"),
        (
            Job::of(overlaid.chain([("kustomization.yaml", overlay), ("secret.yaml", own.as_str())])),
            "value replicas of chart web",
        ),
    ] {
        let output = bench.render(&job).await;
        assert!(
            errors(&output).contains(&format!("{place} is still encrypted")),
            "{}",
            errors(&output)
        );
        assert!(output.objects.is_empty());
    }
}

#[tokio::test]
async fn what_a_schema_refuses_is_told_without_the_value() {
    const SECRET: &str = "hunter2-q7x4";
    let property = |schema: Value, value: Value| {
        let schema = json!({"type": "object", "properties": {"given": schema}});
        let mut job = Job::new(small("")).renderers(json!([{"helm": {"values": {"given": value}}}]));
        job.files
            .insert("values.schema.json".to_owned(), schema.to_string().into_bytes());
        job
    };
    let bench = Bench::new();
    for (schema, value, expected) in [
        (
            json!({"pattern": "^[a-c]+$"}),
            json!(SECRET),
            "at '/given': value does not match pattern '^[a-c]+$'",
        ),
        (
            json!({"minimum": 5_000_000}),
            json!(4_815_162),
            "at '/given': minimum: want 5e+06",
        ),
        (json!({"maxLength": 3}), json!(SECRET), "at '/given': maxLength: want 3"),
        (
            json!({"enum": ["a", "b"]}),
            json!(SECRET),
            "at '/given': value must be one of 'a', 'b'",
        ),
        (
            json!({"type": "integer"}),
            json!(SECRET),
            "at '/given': got string, want integer",
        ),
        (
            json!({"anyOf": [{"type": "integer"}, {"items": {"pattern": "x{3}"}}]}),
            json!([SECRET]),
            "at '/given/0': value does not match pattern 'x{3}'",
        ),
        (
            json!({"required": ["a"]}),
            json!({"b": SECRET}),
            "at '/given': missing property 'a'",
        ),
    ] {
        let job = property(schema, value);
        let said = errors(&bench.render(&job).await);
        assert!(said.contains(expected) && said.contains("small:"), "{said}");
        assert!(!said.contains(SECRET) && !said.contains("4.815162"), "{said}");
    }
    let mut job = with(web(), json!({"values": {"sub": {"color": SECRET}}}));
    let schema = json!({"properties": {"color": {"pattern": "^(green|blue)$"}}});
    job.files.insert(
        "web/charts/sub/values.schema.json".to_owned(),
        schema.to_string().into_bytes(),
    );
    let said = errors(&bench.render(&job).await);
    assert!(
        said.contains("sub:\n- at '/color': value does not match pattern") && !said.contains(SECRET),
        "{said}"
    );
}

#[tokio::test]
async fn helms_marks_stay_on_hooks_and_files_are_named_as_in_the_repository() {
    let output = Bench::new().render(&web()).await;
    let named = |name: &str| output.objects.iter().find(|object| object.object.name == name).unwrap();
    let hook = named("migrate");
    assert_eq!(
        hook.value["metadata"]["annotations"]["helm.sh/hook"],
        "pre-install,pre-upgrade"
    );
    assert_eq!(hook.origin.file, path("web/templates/hooks.yaml"));
    assert_eq!(named("rel-sub").origin.file, path("web/charts/sub/templates/cm.yaml"));
    assert_eq!(
        named("things.example.com").origin.to_string(),
        "web/crds/thing.yaml (document 1)"
    );
}

#[tokio::test]
async fn a_key_that_is_there_twice_is_told_and_the_last_one_counts_as_in_helm() {
    let template = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata:\n  x: one\n  x: two\n";
    let output = Bench::new().render(&Job::new(small(template))).await;
    assert!(
        output.warnings[0].contains("small/templates/a.yaml") && output.warnings[0].contains("\"x\""),
        "{:?}",
        output.warnings
    );
    assert_eq!(values(output)[0]["data"], json!({"x": "two"}));
}

#[tokio::test]
async fn a_cluster_has_the_versions_that_it_has() {
    let template = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata:\n  apps: {{ .Capabilities.APIVersions.Has \"apps/v1\" | quote }}\n  own: {{ .Capabilities.APIVersions.Has \"example.com/v1/Thing\" | quote }}\n";
    let capabilities = Capabilities {
        kube_version: "v1.33.4".to_owned(),
        api_versions: vec!["v1".to_owned(), "example.com/v1/Thing".to_owned()],
        complete: true,
    };
    let job = Job {
        capabilities,
        ..Job::new(small(template))
    };
    assert_eq!(
        values(Bench::new().render(&job).await)[0]["data"],
        json!({"apps": "false", "own": "true"})
    );
}

#[test]
fn the_programs_that_we_compare_with_are_the_pinned_ones() {
    let folder = tempfile::tempdir().unwrap();
    let said = |program, argument: &str| {
        String::from_utf8(run(program, folder.path(), &[argument.to_owned()]).stdout).unwrap()
    };
    assert!(said(&TOOLS.renderer(), "--version").contains("helm v4.3.1, kustomize api v0.21.2"));
    let go_mod =
        |name: &str| fs::read_to_string(farwater_testkit::tools::repository_root().unwrap().join(name)).unwrap();
    assert!(go_mod("tests/helm/go.mod").contains("helm.sh/helm/v4 v4.3.1"));
    assert!(go_mod("tests/kustomize/go.mod").contains("sigs.k8s.io/kustomize/kustomize/v5 v5.8.2"));
    assert!(go_mod("tests/kustomize/go.mod").contains("sigs.k8s.io/kustomize/api v0.21.2"));
}
