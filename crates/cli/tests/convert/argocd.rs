//! Applications, ApplicationSets and AppProjects as services, sets and grants.

use farwater_api::convert::{Terms, argocd};
use serde_json::{Value, json};

use crate::support::{Outcome, cluster, documents, terms};

fn convert(text: &str) -> Outcome {
    convert_with(text, &terms())
}

fn convert_with(text: &str, terms: &Terms) -> Outcome {
    Outcome {
        results: argocd::convert_all(&documents(text), terms),
    }
}

const AUTOMATED: &str = "  syncPolicy: {automated: {prune: true, selfHeal: true}}\n";
const DESTINATION: &str = "  destination: {server: 'https://kubernetes.default.svc', namespace: web}\n";

/// An Application `web` of the project `shop` with these fields.
fn application(fields: &str) -> String {
    format!(
        "apiVersion: argoproj.io/v1alpha1\nkind: Application\nmetadata: {{name: web, namespace: argocd}}\nspec:\n  project: shop\n{fields}\n"
    )
}

/// Such an Application that is synced automatically, to the cluster that Argo CD runs in.
fn synced(source: &str) -> String {
    application(&format!("{DESTINATION}{AUTOMATED}{source}"))
}

fn git(more: &str) -> String {
    format!(
        "  source: {{repoURL: 'https://git.example.com/acme/infra.git', targetRevision: main, path: apps/web{more}}}\n"
    )
}

#[test]
fn an_application_becomes_a_service_and_its_source() {
    let outcome = convert(&synced(&git("")));
    assert_eq!(outcome.losses(), <[&str; 0]>::default());
    assert_eq!(
        outcome.objects(),
        [
            json!({
                "apiVersion": "farwater.dev/v1alpha1", "kind": "GitRepository",
                "metadata": {"name": "acme-infra-main", "namespace": "shop"},
                "spec": {"url": "https://git.example.com/acme/infra.git", "ref": {"branch": "main"}},
            }),
            json!({
                "apiVersion": "farwater.dev/v1alpha1", "kind": "ServiceDeployment",
                "metadata": {"name": "web", "namespace": "shop"},
                "spec": {
                    "clusterRef": {"name": "east"}, "targetNamespace": "web", "path": "apps/web", "prune": true,
                    "sourceRef": {"kind": "GitRepository", "name": "acme-infra-main"},
                },
            }),
        ]
    );
    outcome.assert_told("spec.source.directory.recurse: if the folder holds plain manifests");
    outcome.assert_told("spec.source.targetRevision: main is taken for a branch");
}

#[test]
fn what_argo_cd_does_not_do_by_itself_is_not_done_here() {
    // Without automatic sync nothing is deployed. Without prune and self-heal nothing is deleted or put back.
    let spec = convert(&application(&format!("{DESTINATION}{}", git("")))).spec("ServiceDeployment");
    assert_eq!(
        (&spec["suspend"], &spec["prune"], &spec["apply"]),
        (&json!(true), &json!(false), &json!({"drift": "Report"}))
    );
    let off = "  syncPolicy: {automated: {enabled: false, prune: true}}\n";
    assert_eq!(
        convert(&application(&format!("{DESTINATION}{off}{}", git("")))).spec("ServiceDeployment")["suspend"],
        true
    );
    let bare = "  syncPolicy: {automated: {}}\n";
    let spec = convert(&application(&format!("{DESTINATION}{bare}{}", git("")))).spec("ServiceDeployment");
    assert_eq!(
        (&spec["suspend"], &spec["prune"], &spec["apply"]),
        (&Value::Null, &json!(false), &json!({"drift": "Report"}))
    );
}

#[test]
fn options_of_a_sync_are_ours_or_told() {
    let with = |options: &str| {
        let policy =
            format!("  syncPolicy: {{automated: {{prune: true, selfHeal: true}}, syncOptions: [{options}]}}\n");
        convert(&application(&format!("{DESTINATION}{policy}{}", git(""))))
    };
    let outcome = with("CreateNamespace=true, ServerSideApply=true, PruneLast=true, ApplyOutOfSyncOnly=true");
    assert!(
        !outcome.results[0]
            .as_ref()
            .unwrap()
            .notes
            .iter()
            .any(|note| note.contains("syncOptions")),
        "{outcome:?}"
    );
    assert_eq!(with("Prune=confirm").spec("ServiceDeployment")["prune"], false);
    assert_eq!(
        with("Force=true").spec("ServiceDeployment")["apply"]["immutable"],
        "Recreate"
    );
    assert!(with("Replace=true").losses()[0].contains("Replace=true"));
    with("Sometimes=true").assert_told("spec.syncPolicy.syncOptions: Sometimes=true has no counterpart");
    let policy = "  syncPolicy: {automated: {}, managedNamespaceMetadata: {labels: {a: b}}}\n";
    let outcome = convert(&application(&format!("{DESTINATION}{policy}{}", git(""))));
    assert!(
        outcome.losses()[0].starts_with("spec.syncPolicy.managedNamespaceMetadata"),
        "{outcome:?}"
    );
}

#[test]
fn destinations_are_clusters_of_the_hub_and_no_other() {
    let to = |destination: &str| {
        application(&format!(
            "  destination: {{{destination}, namespace: web}}\n{AUTOMATED}{}",
            git("")
        ))
    };
    let by =
        |input: &str, terms: &Terms| convert_with(input, terms).spec("ServiceDeployment")["clusterRef"]["name"].clone();
    assert_eq!(by(&to("name: west"), &terms()), "west");
    assert_eq!(by(&to("name: in-cluster"), &terms()), "east");
    let west = "server: 'https://10.0.0.1:6443'";
    assert!(
        convert(&to(west))
            .refusal()
            .contains("--destination https://10.0.0.1:6443=CLUSTER")
    );
    let known = Terms {
        clusters: [("https://10.0.0.1:6443".to_owned(), cluster("north"))].into(),
        ..terms()
    };
    assert_eq!(by(&to(west), &known), "north");
    // The name is taken from the cluster's own Secret.
    let secret = "apiVersion: v1\nkind: Secret\nmetadata: {name: c, namespace: argocd, labels: {argocd.argoproj.io/secret-type: \
                  cluster}}\ndata: {name: d2VzdA==, server: aHR0cHM6Ly8xMC4wLjAuMTo2NDQz}\n---\n";
    assert_eq!(by(&(secret.to_owned() + &to(west)), &terms()), "west");
    let nowhere = Terms { place: None, ..terms() };
    assert!(
        convert_with(&to("name: in-cluster"), &nowhere)
            .refusal()
            .contains("name it with --cluster")
    );
    assert!(
        convert(&to("name: gke_x_y"))
            .refusal()
            .contains("--destination gke_x_y=CLUSTER")
    );
}

#[test]
fn a_revision_is_a_branch_a_tag_a_commit_or_a_range() {
    let with = |revision: &str, terms: &Terms| {
        let source = git("").replace("targetRevision: main", &format!("targetRevision: '{revision}'"));
        convert_with(&synced(&source), terms)
    };
    for (revision, reference) in [
        ("release/1", json!({"branch": "release/1"})),
        ("v1.2.3", json!({"tag": "v1.2.3"})),
        ("1.*", json!({"semver": "1.*"})),
        ("refs/pull/1/head", json!({"name": "refs/pull/1/head"})),
        (
            "0123456789012345678901234567890123456789",
            json!({"commit": "0123456789012345678901234567890123456789"}),
        ),
        ("HEAD", Value::Null),
    ] {
        assert_eq!(
            with(revision, &terms()).spec("GitRepository")["ref"],
            reference,
            "{revision}"
        );
    }
    assert!(with("0123456", &terms()).refusal().contains("all of its 40 digits"));
}

#[test]
fn a_chart_takes_values_in_argo_cds_order() {
    let source = "  source:\n    repoURL: https://charts.example.com\n    chart: web\n    targetRevision: 1.4.2\n    helm:\n      \
                  releaseName: shop\n      skipCrds: true\n      values: |\n        a: {b: 1, c: 2}\n      parameters:\n      - {name: a.b, value: \
                  '3'}\n      - {name: debug, value: 'true', forceString: true}\n      valueFiles: [values-prod.yaml]\n";
    let outcome = convert(&synced(source));
    assert_eq!(outcome.losses(), <[&str; 0]>::default());
    let spec = outcome.spec("ServiceDeployment");
    assert_eq!(spec["chart"], json!({"name": "web", "version": "1.4.2"}));
    assert_eq!(
        spec["renderers"],
        json!([{"type": "Helm", "helm": {
            "releaseName": "shop", "skipCrds": true, "valuesFiles": ["values-prod.yaml"],
            "values": {"a": {"b": 3, "c": 2}, "debug": "true"},
        }}])
    );
    assert_eq!(
        outcome.spec("HelmRepository"),
        json!({"url": "https://charts.example.com"})
    );
    let registry = source.replace("https://charts.example.com", "ghcr.io/acme/charts");
    assert_eq!(
        convert(&synced(&registry)).spec("HelmRepository"),
        json!({"url": "oci://ghcr.io/acme/charts"})
    );
    for (field, loss) in [
        (
            "fileParameters: [{name: a, path: b}]",
            "spec.source.helm.fileParameters",
        ),
        (
            "parameters: [{name: 'a[0]', value: x}]",
            "spec.source.helm.parameters[0]",
        ),
        (
            "parameters: [{name: a, value: $ARGOCD_APP_NAME}]",
            "spec.source.helm.parameters[0]",
        ),
        ("kubeVersion: 1.30.0", "spec.source.helm.kubeVersion"),
    ] {
        let outcome = convert(&synced(&git(&format!(", helm: {{{field}}}"))));
        assert!(outcome.losses()[0].starts_with(loss), "{field}: {outcome:?}");
    }
}

#[test]
fn values_of_another_repository_lie_beside_the_chart() {
    let sources = "  sources:\n  - {repoURL: 'https://charts.example.com', chart: web, targetRevision: 1.x, helm: {valueFiles: \
                   [$values/envs/prod/web.yaml, values.yaml]}}\n  - {repoURL: 'https://git.example.com/acme/infra', targetRevision: main, ref: \
                   values}\n";
    let outcome = convert(&synced(sources));
    let spec = outcome.spec("ServiceDeployment");
    let source = json!({"kind": "GitRepository", "name": "acme-infra-main"});
    assert_eq!(
        spec["sources"],
        json!([{"sourceRef": source, "path": "envs/prod", "mountPath": "farwater-values-1"}])
    );
    assert_eq!(
        spec["renderers"][0]["helm"]["valuesFiles"],
        json!(["/farwater-values-1/web.yaml", "values.yaml"])
    );
    assert_eq!(outcome.objects().len(), 3);
    // A values file of the chart's own repository, outside the chart's folder.
    let spec = convert(&synced(&git(", helm: {valueFiles: [../../envs/prod.yaml]}"))).spec("ServiceDeployment");
    assert_eq!(
        spec["renderers"][0]["helm"]["valuesFiles"],
        json!(["/farwater-values-1/prod.yaml"])
    );
    assert_eq!(spec["sources"][0]["path"], "envs");
}

#[test]
fn several_sources_are_rendered_beside_each_other() {
    let sources = "  sources:\n  - {repoURL: 'https://git.example.com/acme/infra', targetRevision: main, path: apps/web}\n  - {repoURL: \
                   'https://charts.example.com', chart: redis, targetRevision: 18.1.0}\n";
    let spec = convert(&synced(sources)).spec("ServiceDeployment");
    assert_eq!(spec["path"], "apps/web");
    let chart = json!({"kind": "HelmRepository", "name": "charts-example-com"});
    let mounted = json!([{"sourceRef": chart, "chart": {"name": "redis", "version": "18.1.0"}, "mountPath": "apps/web/farwater-source-2"}]);
    assert_eq!(spec["sources"], mounted);
    let second = json!({"path": "farwater-source-2", "type": "Helm", "helm": {"releaseName": "web"}});
    assert_eq!(spec["renderers"], json!([{}, second]));
    let only_named =
        "  sources: [{repoURL: 'https://git.example.com/acme/infra', targetRevision: main, ref: values}]\n";
    assert!(
        convert(&synced(only_named))
            .refusal()
            .contains("none of them has a path or a chart")
    );
}

#[test]
fn options_of_kustomize_and_folders_are_ours_or_told() {
    let kustomize = ", kustomize: {namePrefix: prod-, images: ['nginx:1.27'], replicas: [{name: web, count: 3}], patches: [{patch: '[{op: \
                     remove, path: /x}]', target: {kind: Service}}]}";
    let spec = convert(&synced(&git(kustomize))).spec("ServiceDeployment");
    let options = json!({"namePrefix": "prod-", "images": [{"name": "nginx", "newTag": "1.27"}]});
    assert_eq!(spec["renderers"], json!([{"type": "Kustomize", "kustomize": options}]));
    assert_eq!(spec["patches"][1]["target"]["name"], "prod-web");
    for (more, loss) in [
        (
            ", kustomize: {commonLabels: {a: b}}",
            "spec.source.kustomize.commonLabels",
        ),
        (
            ", kustomize: {commonAnnotations: {a: b}}",
            "spec.source.kustomize.commonAnnotations",
        ),
        (
            ", directory: {recurse: true, include: 'team*.yaml'}",
            "spec.source.directory.include",
        ),
        (", directory: {exclude: '[ab].yaml'}", "spec.source.directory.exclude"),
        (
            ", directory: {jsonnet: {tlas: [{name: a, value: b}]}}",
            "spec.source.directory.jsonnet",
        ),
    ] {
        let outcome = convert(&synced(&git(more)));
        assert!(
            outcome.losses().iter().any(|said| said.starts_with(loss)),
            "{more}: {outcome:?}"
        );
    }
    let raw = convert(&synced(&git(", directory: {recurse: true}"))).spec("ServiceDeployment");
    assert_eq!(raw["renderers"], json!([{"type": "Raw"}]));
    let chosen = ", directory: {include: '{*.yaml,config/*}', exclude: 'values{,-dev}.yaml'}";
    let raw = convert(&synced(&git(chosen))).spec("ServiceDeployment");
    let options =
        json!({"recurse": false, "include": ["*.yaml", "/config/*"], "exclude": ["/values.yaml", "/values-dev.yaml"]});
    assert_eq!(raw["renderers"], json!([{"type": "Raw", "raw": options}]));
    assert!(
        convert(&synced(&git(", plugin: {name: x}")))
            .refusal()
            .starts_with("spec.source.plugin")
    );
}

#[test]
fn fields_that_can_not_be_ignored_are_not_put_back() {
    let with = |rules: &str, options: &str| {
        let policy = format!("  syncPolicy: {{automated: {{selfHeal: true}}, syncOptions: [{options}]}}\n");
        convert(&application(&format!(
            "{DESTINATION}{policy}  ignoreDifferences: [{rules}]\n{}",
            git("")
        )))
    };
    let rule =
        "{group: apps, kind: Deployment, jsonPointers: [/spec/replicas], jqPathExpressions: [.metadata.annotations]}";
    let spec = with(rule, "").spec("ServiceDeployment");
    let pointers = json!(["/spec/replicas", "/metadata/annotations"]);
    assert_eq!(
        spec["apply"],
        json!({"ignoreDifferences": [{"group": "apps", "kind": "Deployment", "jsonPointers": pointers}]})
    );
    let lists =
        "{group: '*', kind: MutatingWebhookConfiguration, jqPathExpressions: ['.webhooks[]?.clientConfig.caBundle']}";
    let outcome = with(lists, "");
    assert_eq!(outcome.spec("ServiceDeployment")["apply"], json!({"drift": "Report"}));
    outcome.assert_told("drift is reported, and not corrected");
    let respected = with(lists, "RespectIgnoreDifferences=true");
    assert!(
        respected.losses()[0].contains("newer versions would set them"),
        "{respected:?}"
    );
    let managers = with(
        "{group: '*', kind: '*', managedFieldsManagers: [hpa]}",
        "RespectIgnoreDifferences=true",
    );
    assert_eq!(
        managers.spec("ServiceDeployment")["apply"]["ignoreDifferences"][0]["group"],
        "*"
    );
}

#[test]
fn what_nobody_knows_is_a_loss_and_credentials_are_pointed_at() {
    assert!(convert(&synced(&format!("{}  somethingNew: 1\n", git("")))).losses()[0].starts_with("spec.somethingNew"));
    let secret = "apiVersion: v1\nkind: Secret\nmetadata: {name: infra, namespace: argocd, labels: {argocd.argoproj.io/secret-type: \
                  repository}}\nstringData: {url: 'https://git.example.com/acme/infra', password: x}\n---\n";
    let outcome = convert(&(secret.to_owned() + &synced(&git(""))));
    outcome.assert_told("Argo CD has its credentials in Secret infra");
    assert!(outcome.results[0].as_ref().unwrap_err().is_left_alone());
    assert!(!format!("{outcome:?}").contains("password"));
}

/// An ApplicationSet with these generators.
fn set(generators: &str, name: &str, destination: &str, path: &str) -> String {
    format!(
        "apiVersion: argoproj.io/v1alpha1\nkind: ApplicationSet\nmetadata: {{name: guestbook, namespace: argocd}}\nspec:\n  generators: \
         [{generators}]\n  template:\n    metadata: {{name: '{name}'}}\n    spec:\n      project: shop\n      destination: {{{destination}, \
         namespace: web}}\n      source: {{repoURL: 'https://git.example.com/acme/infra', targetRevision: main, path: '{path}'}}\n      \
         syncPolicy: {{automated: {{}}}}\n"
    )
}

#[test]
fn a_list_becomes_a_service_for_each_of_its_elements() {
    let list = "{list: {elements: [{cluster: east, env: prod}, {cluster: west, env: dev}]}}";
    let outcome = convert(&set(
        list,
        "{{cluster}}-guestbook",
        "name: '{{cluster}}'",
        "apps/{{env}}",
    ));
    let made: Vec<Value> = outcome
        .objects()
        .iter()
        .filter(|object| object["kind"] == "ServiceDeployment")
        .map(|object| {
            json!([
                object["metadata"]["name"],
                object["spec"]["clusterRef"]["name"],
                object["spec"]["path"]
            ])
        })
        .collect();
    assert_eq!(
        made,
        [
            json!(["east-guestbook", "east", "apps/prod"]),
            json!(["west-guestbook", "west", "apps/dev"])
        ]
    );
}

#[test]
fn clusters_by_label_become_a_set() {
    let clusters = "{clusters: {selector: {matchLabels: {env: prod, argocd.argoproj.io/secret-type: cluster}}, values: {tier: web}}}";
    let outcome = convert(&set(
        clusters,
        "{{name}}-guestbook",
        "server: '{{server}}'",
        "apps/{{values.tier}}",
    ));
    assert_eq!(outcome.losses(), <[&str; 0]>::default());
    let set_spec = outcome.spec("ServiceSet");
    assert_eq!(set_spec["clusterSelector"], json!({"matchLabels": {"env": "prod"}}));
    assert_eq!(set_spec["template"]["spec"]["path"], "apps/web");
    outcome.assert_told("labels are those of Clusters of the hub");
    // A path that differs by cluster can't be expressed.
    let outcome = convert(&set(
        clusters,
        "{{name}}-guestbook",
        "server: '{{server}}'",
        "apps/{{name}}",
    ));
    assert!(
        outcome
            .refusal()
            .starts_with("spec.template.spec.source.path: {{name}} differs by cluster"),
        "{outcome:?}"
    );
    let elsewhere = convert(&set(clusters, "{{name}}-guestbook", "name: in-cluster", "apps"));
    assert!(elsewhere.refusal().contains("are not where the Applications go"));
    // All clusters of Argo CD are not the same as all clusters of the hub.
    let all = convert(&set("{clusters: {}}", "{{name}}", "server: '{{server}}'", "apps"));
    assert!(
        all.losses()[0].contains("it is every cluster that Argo CD knows"),
        "{all:?}"
    );
}

#[test]
fn a_matrix_of_a_list_and_clusters_becomes_a_set_for_each_element() {
    let matrix = "{matrix: {generators: [{list: {elements: [{app: a}, {app: b}]}}, {clusters: {selector: {matchLabels: {env: prod}}}}]}}";
    let outcome = convert(&set(matrix, "{{name}}-{{app}}", "server: '{{server}}'", "apps/{{app}}"));
    let names: Vec<Value> = outcome
        .objects()
        .iter()
        .filter(|object| object["kind"] == "ServiceSet")
        .map(|object| object["metadata"]["name"].clone())
        .collect();
    assert_eq!(names, ["a", "b"]);
}

#[test]
fn what_a_repository_says_is_not_known_and_its_applications_go_over() {
    let generated = set(
        "{git: {repoURL: 'https://x', directories: [{path: 'apps/*'}]}}",
        "{{path.basename}}",
        "name: east",
        "{{path}}",
    );
    let owner = "metadata: {name: web, namespace: argocd, ownerReferences: [{kind: ApplicationSet, name: guestbook, apiVersion: x, uid: y}]}";
    let made = synced(&git("")).replace("metadata: {name: web, namespace: argocd}", owner);
    let outcome = convert(&format!("{generated}---\n{made}"));
    assert!(
        outcome.results[0]
            .as_ref()
            .unwrap_err()
            .to_string()
            .contains("give the Applications themselves"),
        "{outcome:?}"
    );
    assert!(outcome.results[1].is_ok(), "{outcome:?}");
    // A converted set covers the Applications that it generated.
    let list = set(
        "{list: {elements: [{cluster: east}]}}",
        "web",
        "name: '{{cluster}}'",
        "apps/web",
    );
    let outcome = convert(&format!("{list}---\n{made}"));
    assert!(
        outcome.results[0].is_ok() && outcome.results[1].as_ref().unwrap_err().is_left_alone(),
        "{outcome:?}"
    );
}

/// An AppProject with these fields.
fn project(fields: &str) -> String {
    format!(
        "apiVersion: argoproj.io/v1alpha1\nkind: AppProject\nmetadata: {{name: shop, namespace: argocd}}\nspec:\n{fields}\n"
    )
}

#[test]
fn destinations_of_a_project_become_grants() {
    let fields = "  sourceRepos: ['https://git.example.com/acme/infra.git', 'https://git.example.com/shop/*']\n  destinations:\n  - {name: east, \
                  namespace: 'shop-*'}\n  - {name: east, namespace: web}\n  - {name: west, namespace: '*'}\n  clusterResourceWhitelist: [{group: \
                  '*', kind: '*'}]\n  namespaceResourceBlacklist: [{group: '', kind: ResourceQuota}]\n";
    let outcome = convert(&project(fields));
    assert_eq!(outcome.losses(), <[&str; 0]>::default());
    let grant = |name: &str, cluster: &str, targets: Option<Value>| {
        let mut spec = json!({
            "namespaces": ["shop"], "verbs": ["deploy"], "serviceAccountName": "farwater",
            "allowedSources": ["https://git.example.com/acme/infra", "https://git.example.com/shop/"],
            "deniedKinds": ["ResourceQuota"], "clusterSelector": {"matchLabels": {"cluster": cluster}},
        });
        if let Some(targets) = targets {
            spec["targetNamespaces"] = targets;
        }
        json!({"apiVersion": "farwater.dev/v1alpha1", "kind": "ClusterGrant", "metadata": {"name": name}, "spec": spec})
    };
    assert_eq!(
        outcome.objects(),
        [
            grant("shop-east", "east", Some(json!(["shop-*", "web"]))),
            grant("shop-west", "west", None)
        ]
    );
    outcome.assert_told("kubectl label clusters.farwater.dev/east");
}

#[test]
fn a_grant_allows_no_kind_that_its_project_denies() {
    let spec = |kinds: &str| {
        let fields = format!("  sourceRepos: ['*']\n  destinations: [{{server: '*', namespace: '*'}}]\n{kinds}");
        convert(&project(&fields)).spec("ClusterGrant")
    };
    // Kinds without a namespace are denied unless they are named.
    let denied = spec("  clusterResourceWhitelist: [{group: '', kind: Namespace}]\n")["deniedKinds"].to_string();
    assert!(
        denied.contains("ClusterRole.rbac.authorization.k8s.io") && !denied.contains("\"Namespace\""),
        "{denied}"
    );
    assert!(spec("")["deniedKinds"].to_string().contains("\"Namespace\""));
    let listed = spec("  namespaceResourceWhitelist: [{group: apps, kind: Deployment}, {group: '', kind: Service}]\n");
    assert_eq!(listed["allowedKinds"], json!(["Deployment.apps", "Service."]));
    assert_eq!(
        spec("  clusterResourceWhitelist: [{group: '*', kind: '*'}]\n")["clusterSelector"],
        json!({})
    );
}

#[test]
fn what_a_grant_can_not_say_makes_none() {
    let base = "  sourceRepos: ['*']\n  destinations: [{server: '*', namespace: '*'}]\n";
    for (fields, why) in [
        (base.replace("['*']", "['*', '!https://x']"), "all but"),
        (
            base.replace("['*']", "['https://*.example.com/a']"),
            "beginnings of them",
        ),
        (base.replace("['*']", "[]"), "allows no repository"),
        (base.replace("namespace: '*'", "namespace: '!kube-system'"), "all but"),
        (base.replace("namespace: '*'", "namespace: '*-dev'"), "their beginnings"),
        (base.replace("[{server: '*', namespace: '*'}]", "[]"), "it names none"),
        (
            format!("{base}  namespaceResourceBlacklist: [{{group: apps, kind: '*'}}]\n"),
            "without wildcards",
        ),
    ] {
        let refusal = convert(&project(&fields)).refusal();
        assert!(refusal.contains(why), "{fields}: {refusal}");
    }
    assert!(
        convert(&project(&format!("{base}  syncWindows: [{{kind: deny}}]\n"))).losses()[0]
            .starts_with("spec.syncWindows")
    );
}
