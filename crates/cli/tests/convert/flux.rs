//! Kustomizations and HelmReleases as services.

use std::fs;

use farwater_api::convert::{NotConverted, Place, Terms, flux};
use farwater_testkit::Tools;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde_json::{Value, json};

use crate::{
    sources::{cases, laid_over},
    support::{Outcome, cluster, documents, terms},
};

fn convert(text: &str, terms: &Terms) -> Outcome {
    Outcome {
        results: flux::convert_all(&documents(text), terms),
    }
}

/// A Kustomization `web` of `team-a` with these fields.
fn kustomization(fields: &str) -> String {
    format!(
        "apiVersion: kustomize.toolkit.fluxcd.io/v1\nkind: Kustomization\nmetadata: {{name: web, namespace: team-a}}\nspec:\n  interval: 10m\n  \
         prune: true\n  path: ./apps/web\n  sourceRef: {{kind: GitRepository, name: infra}}\n  targetNamespace: web\n{fields}\n"
    )
}

/// A HelmRelease `web` of `team-a` with these fields.
fn release(fields: &str) -> String {
    format!(
        "apiVersion: helm.toolkit.fluxcd.io/v2\nkind: HelmRelease\nmetadata: {{name: web, namespace: team-a}}\nspec:\n  interval: 10m\n{fields}\n"
    )
}

const CHART: &str = "  chart: {spec: {chart: web, version: ~1.4, sourceRef: {kind: HelmRepository, name: charts}}}\n";

#[test]
fn a_kustomization_becomes_a_service() {
    let outcome = convert(
        &kustomization(
            "  dependsOn: [{name: database}]\n  force: true\n  suspend: true\n  images: [{name: nginx, newTag: '1.27'}]\n  \
             patches: [{patch: '[{op: remove, path: /spec/replicas}]', target: {kind: Deployment}}]\n  \
             commonMetadata: {labels: {team: a}}\n  serviceAccountName: deployer\n  \
             driftIgnoreRules: [{paths: [/spec/replicas], target: {kind: Deployment, group: apps}}]",
        ),
        &terms(),
    );
    assert_eq!(outcome.losses(), <[&str; 0]>::default());
    assert_eq!(
        outcome.objects(),
        [json!({
            "apiVersion": "farwater.dev/v1alpha1", "kind": "ServiceDeployment",
            "metadata": {"name": "web", "namespace": "team-a"},
            "spec": {
                "clusterRef": {"name": "east"}, "targetNamespace": "web", "path": "apps/web", "prune": true,
                "sourceRef": {"kind": "GitRepository", "name": "infra"},
                "dependsOn": [{"kind": "ServiceDeployment", "name": "database"}],
                "renderers": [{"kustomize": {"images": [{"name": "nginx", "newTag": "1.27"}]}}],
                "patches": [
                    {"patch": "[{op: remove, path: /spec/replicas}]", "target": {"kind": "Deployment"}},
                    {"target": {"namespace": "[a-z0-9].*"},
                     "patch": "[{\"op\":\"add\",\"path\":\"/metadata/namespace\",\"value\":\"web\"}]"},
                    {"target": {"kind": ".*"}, "patch": "{\"kind\":\"any\",\"metadata\":{\"labels\":{\"team\":\"a\"},\"name\":\"any\"}}"},
                ],
                "apply": {"immutable": "Recreate",
                          "ignoreDifferences": [{"group": "apps", "kind": "Deployment", "jsonPointers": ["/spec/replicas"]}]},
                "suspend": true, "suspension": {"reason": "it was suspended in Flux"},
            },
        })]
    );
    for said in [
        "spec.serviceAccountName: the ClusterGrant of namespace team-a has to name team-a/deployer",
        "spec.targetNamespace: a patch puts objects",
        "spec.sourceRef: GitRepository team-a/infra of the cluster has to be in namespace team-a",
        "spec.deletionPolicy: deleting the service leaves its objects",
    ] {
        outcome.assert_told(said);
    }
}

#[test]
fn text_that_flux_would_replace_is_a_loss_and_its_values_go_over() {
    let input = kustomization(
        "  postBuild: {substitute: {domain: example.com}, substituteFrom: [{kind: ConfigMap, name: vars}, {kind: Secret, name: keys}]}",
    );
    let outcome = convert(&input, &terms());
    assert!(
        outcome.losses()[0].starts_with("spec.postBuild: ${...} in files"),
        "{outcome:?}"
    );
    let spec = outcome.spec("ServiceDeployment");
    assert_eq!(spec["configuration"], json!({"domain": "example.com"}));
    assert_eq!(
        spec["parameters"],
        json!([{"from": {"configMap": "vars"}}, {"from": {"secret": "keys"}}])
    );
}

#[test]
fn a_cluster_has_to_be_named_and_another_ones_objects_go_to_that() {
    let nowhere = Terms { place: None, ..terms() };
    assert!(
        convert(&kustomization(""), &nowhere)
            .refusal()
            .contains("name it with --cluster")
    );
    let remote = kustomization("  kubeConfig: {secretRef: {name: west-kubeconfig}}");
    assert!(
        convert(&remote, &terms())
            .refusal()
            .contains("--remote west-kubeconfig=CLUSTER")
    );
    let known = Terms {
        clusters: [("west-kubeconfig".to_owned(), cluster("west"))].into(),
        ..terms()
    };
    assert_eq!(
        convert(&remote, &known).spec("ServiceDeployment")["clusterRef"],
        json!({"name": "west"})
    );
}

#[test]
fn for_several_clusters_sets_are_made_that_wait_for_sets() {
    let selector = LabelSelector {
        match_labels: Some([("env".to_owned(), "prod".to_owned())].into()),
        ..LabelSelector::default()
    };
    let terms = Terms {
        place: Some(Place::Clusters(selector)),
        name_suffix: "-x".to_owned(),
        ..terms()
    };
    let outcome = convert(&kustomization("  dependsOn: [{name: database}]"), &terms);
    let set = outcome.spec("ServiceSet");
    assert_eq!(set["clusterSelector"], json!({"matchLabels": {"env": "prod"}}));
    assert_eq!(
        set["template"]["spec"]["dependsOn"],
        json!([{"kind": "ServiceSet", "name": "database-x"}])
    );
    assert_eq!(outcome.objects()[0]["metadata"]["name"], "web-x");
    assert!(
        convert(&kustomization("  suspend: true"), &terms)
            .refusal()
            .starts_with("spec.suspend: a ServiceSet can't")
    );
}

#[test]
fn a_source_of_another_namespace_is_written_beside_the_service() {
    let source = "apiVersion: source.toolkit.fluxcd.io/v1\nkind: GitRepository\nmetadata: {name: infra, namespace: flux-system}\nspec: {url: \
                  'https://git.example.com/a', interval: 1m, ref: {branch: main}, secretRef: {name: git}}\n---\n";
    let input = source.to_owned() + &kustomization("").replace("name: infra}", "name: infra, namespace: flux-system}");
    let outcome = convert(&input, &terms());
    let places: Vec<String> = outcome
        .objects()
        .iter()
        .map(|object| {
            format!(
                "{} {}",
                object["kind"].as_str().unwrap(),
                object["metadata"]["namespace"].as_str().unwrap()
            )
        })
        .collect();
    assert_eq!(
        places,
        [
            "GitRepository flux-system",
            "GitRepository team-a",
            "ServiceDeployment team-a"
        ]
    );
    outcome.assert_told("spec.secretRef: Secret git has to be in the same namespace");
    // With one namespace for all, one source is enough.
    let together = Terms {
        namespace: Some("apps".to_owned()),
        ..terms()
    };
    assert_eq!(convert(&input, &together).objects().len(), 2);
    // If a source is not converted, its services aren't either.
    let filtered = input.replace("ref: {branch: main}", "ref: {branch: main}, ignore: /docs");
    assert!(
        convert(&filtered, &terms())
            .refusal()
            .contains("GitRepository flux-system/infra is not converted: spec.ignore")
    );
}

#[test]
fn nothing_takes_the_name_of_another() {
    let other = kustomization("").replace("namespace: team-a", "namespace: team-b");
    let input = format!("{}---\n{other}", kustomization(""));
    let together = Terms {
        namespace: Some("apps".to_owned()),
        ..terms()
    };
    let outcome = convert(&input, &together);
    assert!(outcome.results[0].is_ok(), "{outcome:?}");
    assert!(
        outcome
            .refusal()
            .contains("ServiceDeployment apps/web is what Kustomization team-a/web becomes"),
        "{outcome:?}"
    );
    // Repositories with the same fields become one.
    let repository = |namespace: &str, url: &str| {
        format!(
            "apiVersion: source.toolkit.fluxcd.io/v1\nkind: HelmRepository\nmetadata: {{name: charts, namespace: {namespace}}}\nspec: {{url: \
             'https://{url}', interval: 1m}}\n"
        )
    };
    let same = repository("a", "charts.example.com") + "---\n" + &repository("b", "charts.example.com");
    assert_eq!(convert(&same, &together).objects().len(), 1);
    let differs = repository("a", "charts.example.com") + "---\n" + &repository("b", "other.example.com");
    assert!(
        convert(&differs, &together)
            .refusal()
            .contains("HelmRepository apps/charts is what HelmRepository a/charts becomes")
    );
}

#[test]
fn services_wait_only_for_those_of_their_namespace() {
    let input = kustomization("  dependsOn: [{name: database, namespace: data}, {name: x, readyExpr: 'dep.ready'}]");
    let outcome = convert(&input, &terms());
    assert_eq!(outcome.losses().len(), 2, "{outcome:?}");
    let together = Terms {
        namespace: Some("apps".to_owned()),
        ..terms()
    };
    let names = &convert(&input, &together).spec("ServiceDeployment")["dependsOn"];
    assert_eq!(
        *names,
        json!([{"kind": "ServiceDeployment", "name": "database"}, {"kind": "ServiceDeployment", "name": "x"}])
    );
}

#[test]
fn what_flux_is_installed_by_is_left_behind() {
    let input = kustomization("").replace(
        "name: web, namespace: team-a",
        "name: flux-system, namespace: flux-system",
    );
    assert!(convert(&input, &terms()).losses()[0].starts_with("spec.path: this is what Flux itself"));
}

#[test]
fn each_field_of_a_kustomization_is_kept_or_told() {
    let path = Tools::find_all()
        .unwrap()
        .flux_crds()
        .into_iter()
        .find(|path| path.ends_with("kustomizations.yaml"))
        .unwrap();
    let definition: Value = serde_saphyr::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let mut count = 0;
    for version in definition["spec"]["versions"].as_array().unwrap() {
        let name = version["name"].as_str().unwrap();
        let base = json!({"interval": "1m", "prune": false, "sourceRef": {"kind": "GitRepository", "name": "infra"}});
        let run = |spec: &Value| {
            let object = json!({
                "apiVersion": format!("kustomize.toolkit.fluxcd.io/{name}"), "kind": "Kustomization",
                "metadata": {"name": "web", "namespace": "team-a"}, "spec": spec,
            });
            flux::convert_all(&[object], &terms()).remove(0)
        };
        let plain = run(&base).unwrap();
        let mut found = Vec::new();
        cases(
            "",
            &version["schema"]["openAPIV3Schema"]["properties"]["spec"],
            &|object| laid_over(base.clone(), &object),
            &mut found,
        );
        for (path, spec) in found {
            count += 1;
            let outcome = match run(&spec) {
                Ok(outcome) => outcome,
                Err(NotConverted::Impossible { path: said, .. }) => {
                    assert!(
                        path.starts_with("kubeConfig") || path == "sourceRef.kind",
                        "{name} {path}: {said}"
                    );
                    continue;
                }
                Err(other) => panic!("{name} {path}: {other}"),
            };
            // A map with free keys is empty here and has no effect.
            if spec.pointer(&format!("/{}", path.replace('.', "/"))) == Some(&json!({})) {
                continue;
            }
            // A field of the base, or one whose value is our default.
            let is_known = [
                "interval",
                "prune",
                "deletionPolicy",
                "sourceRef.name",
                "sourceRef.kind",
                "sourceRef.apiVersion",
            ]
            .contains(&path.as_str());
            let top = path.split('.').next().unwrap();
            let is_told = outcome
                .notes
                .iter()
                .chain(&outcome.losses)
                .any(|note| note.contains(&format!("spec.{top}")));
            assert!(
                is_known || is_told || outcome.objects != plain.objects,
                "{name} {path} is dropped in silence: {outcome:?}"
            );
        }
    }
    assert!(count > 40, "{count}");
}

#[test]
fn a_release_becomes_a_service() {
    let fields = format!(
        "{CHART}  releaseName: shop\n  targetNamespace: shop\n  values: {{replicas: 3}}\n  dependsOn: [{{name: database}}]\n  install: {{crds: \
         CreateReplace, createNamespace: true, remediation: {{retries: 3}}}}\n  upgrade: {{crds: CreateReplace, force: true}}\n  test: {{enable: \
         true}}\n  driftDetection: {{mode: enabled, ignore: [{{paths: [/spec/replicas], target: {{kind: Deployment}}}}]}}\n  postRenderers: \
         [{{kustomize: {{patches: [{{patch: '[{{op: remove, path: /x}}]', target: {{kind: Service}}}}], images: [{{name: a, newTag: b}}]}}}}]"
    );
    let outcome = convert(&release(&fields), &terms());
    assert_eq!(outcome.losses(), <[&str; 0]>::default());
    assert_eq!(
        outcome.spec("ServiceDeployment"),
        json!({
            "clusterRef": {"name": "east"}, "targetNamespace": "shop", "prune": true,
            "sourceRef": {"kind": "HelmRepository", "name": "charts"}, "chart": {"name": "web", "version": "~1.4"},
            "dependsOn": [{"kind": "ServiceDeployment", "name": "database"}],
            "renderers": [{"type": "Helm", "helm": {
                "releaseName": "shop", "values": {"replicas": 3},
                "postRenderers": [{"kustomize": {
                    "patches": [{"patch": "[{op: remove, path: /x}]", "target": {"kind": "Service"}}],
                    "images": [{"name": "a", "newTag": "b"}],
                }}],
            }}],
            "apply": {"immutable": "Recreate", "ignoreDifferences": [{"kind": "Deployment", "jsonPointers": ["/spec/replicas"]}]},
        })
    );
    outcome.assert_told("spec.install.remediation: no counterpart");
}

#[test]
fn what_a_release_leaves_out_is_stated_as_flux_takes_it() {
    let outcome = convert(&release(CHART), &terms());
    let spec = outcome.spec("ServiceDeployment");
    assert_eq!(spec["targetNamespace"], "team-a");
    assert_eq!(spec["apply"], json!({"drift": "Ignore"}));
    assert_eq!(
        spec["renderers"][0]["helm"],
        json!({"releaseName": "web", "skipTests": true})
    );
    outcome.assert_told("spec.upgrade.crds: definitions of the chart's crds/ are upgraded");
    let elsewhere = convert(&release(&format!("{CHART}  targetNamespace: shop")), &terms());
    assert_eq!(
        elsewhere.spec("ServiceDeployment")["renderers"][0]["helm"]["releaseName"],
        "shop-web"
    );
    // If fields can't be ignored, drift is only reported, not put back.
    let part = "  driftDetection: {mode: enabled, ignore: [{paths: [/spec/containers/0/image]}]}";
    let outcome = convert(&release(&format!("{CHART}{part}")), &terms());
    assert_eq!(outcome.spec("ServiceDeployment")["apply"], json!({"drift": "Report"}));
    outcome.assert_told("spec.driftDetection.ignore: names fields that can't be ignored here");
}

#[test]
fn charts_come_from_repositories_of_git_and_registries_too() {
    let git = "  chart: {spec: {chart: ./charts/web, sourceRef: {kind: GitRepository, name: infra}, valuesFiles: [charts/web/values.yaml, \
               charts/web/prod.yaml, envs/prod.yaml]}}\n";
    let spec = convert(&release(git), &terms()).spec("ServiceDeployment");
    assert_eq!(spec["path"], "charts/web");
    assert_eq!(
        spec["renderers"][0]["helm"]["valuesFiles"],
        json!(["prod.yaml", "/farwater-values-1/prod.yaml"])
    );
    let source = json!({"kind": "GitRepository", "name": "infra"});
    assert_eq!(
        spec["sources"],
        json!([{"sourceRef": source, "path": "envs", "mountPath": "farwater-values-1"}])
    );

    let oci = convert(&release("  chartRef: {kind: OCIRepository, name: web}"), &terms());
    assert_eq!(
        oci.spec("ServiceDeployment")["sourceRef"],
        json!({"kind": "OCIRepository", "name": "web"})
    );

    let chart = "apiVersion: source.toolkit.fluxcd.io/v1\nkind: HelmChart\nmetadata: {name: web, namespace: team-a}\nspec: {chart: web, version: \
                 1.x, interval: 1m, sourceRef: {kind: HelmRepository, name: charts}}\n---\n";
    let by_chart = chart.to_owned() + &release("  chartRef: {kind: HelmChart, name: web}");
    assert_eq!(
        convert(&by_chart, &terms()).spec("ServiceDeployment")["chart"],
        json!({"name": "web", "version": "1.x"})
    );
    assert!(
        convert(&release("  chartRef: {kind: HelmChart, name: web}"), &terms())
            .refusal()
            .contains("is not in the input")
    );
}

#[test]
fn values_of_a_config_map_go_over_with_it_and_those_of_secrets_do_not() {
    let map = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: defaults, namespace: team-a}\ndata: {values.yaml: 'a: {b: 1, c: 2}'}\n---\n";
    let fields = format!("{CHART}  valuesFrom: [{{kind: ConfigMap, name: defaults}}]\n  values: {{a: {{b: 3}}}}");
    let outcome = convert(&(map.to_owned() + &release(&fields)), &terms());
    assert_eq!(
        outcome.spec("ServiceDeployment")["renderers"][0]["helm"]["values"],
        json!({"a": {"b": 3, "c": 2}})
    );
    assert_eq!(outcome.losses(), <[&str; 0]>::default());
    let secret = format!("{CHART}  valuesFrom: [{{kind: Secret, name: keys, targetPath: a.b}}]");
    assert!(convert(&release(&secret), &terms()).losses()[0].starts_with("spec.valuesFrom[0]: values of Secret keys"));
}

#[test]
fn what_would_be_another_release_is_a_loss() {
    for (fields, loss) in [
        ("  upgrade: {preserveValues: true}", "spec.upgrade.preserveValues"),
        ("  install: {disableHooks: true}", "spec.install.disableHooks"),
        ("  somethingNew: {a: 1}", "spec.somethingNew"),
        ("  install: {somethingNew: 1}", "spec.install.somethingNew"),
    ] {
        let outcome = convert(&release(&format!("{CHART}{fields}")), &terms());
        assert!(
            outcome.losses().iter().any(|said| said.starts_with(loss)),
            "{loss}: {outcome:?}"
        );
    }
    let signed = CHART.replace("version: ~1.4,", "version: ~1.4, verify: {provider: cosign},");
    assert!(
        convert(&release(&signed), &terms())
            .refusal()
            .contains("signatures of charts are not verified")
    );
}
