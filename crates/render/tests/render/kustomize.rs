//! The result equals that of `kustomize build`.

use std::path::Path;

use farwater_bundle::Base;
use serde_json::json;

use super::support::{
    Bench, Files, Job, assert_same, charts::everything, errors, files, kustomize_build, objects, others, read_folder,
    values,
};

async fn check(bench: &Bench, job: &Job, arguments: &[&str]) {
    let what = format!("{} {arguments:?}", job.path);
    let ran = kustomize_build(&job.files, job.path.as_str(), arguments);
    assert!(ran.status.success(), "{what}: {}", String::from_utf8_lossy(&ran.stderr));
    assert_same(&values(bench.render(job).await), &objects(&ran.stdout), &what);
}

/// Bases, overlays, components, generators, transformers.
fn overlays() -> Files {
    files([
        (
            "base/kustomization.yaml",
            "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [deployment.yaml, service.yaml, more]\nconfigMapGenerator:\n- name: config\n  files: [app.properties, renamed=other.txt]\n  literals: [A=1, B=two words]\n- name: env\n  envs: [settings.env]\n  options: {disableNameSuffixHash: true, labels: {l: v}}\nsecretGenerator:\n- name: secret\n  literals: [password=hunter2]\n  type: Opaque\ngeneratorOptions: {annotations: {made: here}}\nlabels:\n- pairs: {app.kubernetes.io/part-of: shop}\n  includeSelectors: true\n",
        ),
        (
            "base/deployment.yaml",
            "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\nspec:\n  replicas: 1\n  selector: {matchLabels: {app: web}}\n  template:\n    metadata: {labels: {app: web}}\n    spec:\n      containers:\n      - name: web\n        image: nginx:1.0\n        envFrom: [{configMapRef: {name: config}}, {secretRef: {name: secret}}]\n        env: [{name: HOST, value: placeholder}, {name: KEEP, value: 'yes'}]\n      - {name: side, image: busybox}\n      volumes: [{name: c, configMap: {name: config}}]\n",
        ),
        (
            "base/service.yaml",
            "# comment\napiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}\n---\napiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n",
        ),
        ("base/app.properties", "color=red\nsize=0644\n"),
        ("base/other.txt", "multi\nline\n"),
        ("base/settings.env", "X=1\n# comment\nY=on\n"),
        ("base/more/Kustomization", "resources: [role.yml]\nnameSuffix: -more\n"),
        (
            "base/more/role.yml",
            "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: reader}\nrules: [{apiGroups: [''], resources: [pods], verbs: [get]}]\n---\napiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\nmetadata: {name: reader}\nroleRef: {kind: ClusterRole, name: reader, apiGroup: rbac.authorization.k8s.io}\nsubjects: [{kind: ServiceAccount, name: default, namespace: default}]\n",
        ),
        (
            "prod/kustomization.yaml",
            "resources: [../base, extra.yaml]\nnamespace: prod\nnamePrefix: p-\ncommonAnnotations: {team: a}\nimages:\n- {name: nginx, newName: registry.example.com/nginx, newTag: '2.0'}\n- {name: busybox, digest: sha256:aaaa}\nreplicas: [{name: web, count: 5}]\npatches:\n- path: patch.yaml\n- target: {kind: Deployment, name: w.*}\n  patch: |-\n    - {op: replace, path: /spec/template/spec/containers/0/env/0/value, value: prod.example.com}\n    - {op: add, path: /metadata/labels/extra, value: 'true'}\n- target: {labelSelector: app.kubernetes.io/part-of=shop, kind: Service}\n  patch: |-\n    kind: Service\n    metadata: {name: ignored}\n    spec: {type: LoadBalancer}\n- patch: |-\n    apiVersion: v1\n    kind: Namespace\n    metadata: {name: shop}\n    $patch: delete\nconfigMapGenerator:\n- {name: config, behavior: merge, literals: [B=three, C=4]}\ncomponents: [../component]\nreplacements:\n- source: {kind: Service, name: web, fieldPath: 'spec.ports.0.port'}\n  targets:\n  - select: {kind: Deployment, name: web}\n    fieldPaths: ['spec.template.spec.containers.[name=side].env.[name=PORT].value']\n    options: {create: true}\n",
        ),
        (
            "prod/patch.yaml",
            "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\nspec:\n  template:\n    spec:\n      containers:\n      - name: side\n        image: busybox\n        env: [{name: PORT, value: ''}]\n      - {name: web, resources: {limits: {memory: 64Mi}}}\n",
        ),
        (
            "prod/extra.yaml",
            "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {name: web}\nspec: {defaultBackend: {service: {name: web, port: {number: 80}}}}\n",
        ),
        (
            "component/kustomization.yaml",
            "apiVersion: kustomize.config.k8s.io/v1alpha1\nkind: Component\nresources: [pdb.yaml]\npatches:\n- target: {kind: Deployment}\n  patch: '- {op: add, path: /spec/revisionHistoryLimit, value: 3}'\n",
        ),
        (
            "component/pdb.yaml",
            "apiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata: {name: web}\nspec: {minAvailable: 1}\n",
        ),
        (
            "fifo/kustomization.yml",
            "resources: [../prod]\nsortOptions: {order: fifo}\nbuildMetadata: [managedByLabel]\n",
        ),
        (
            "plugins/kustomization.yaml",
            "resources: [../base]\ntransformers:\n- |-\n  apiVersion: builtin\n  kind: PrefixTransformer\n  metadata: {name: any}\n  prefix: t-\n  fieldSpecs: [{path: metadata/name}]\n- labels.yaml\ngenerators:\n- |-\n  apiVersion: builtin\n  kind: ConfigMapGenerator\n  metadata: {name: made}\n  literals: [a=b]\n",
        ),
        (
            "plugins/labels.yaml",
            "apiVersion: builtin\nkind: LabelTransformer\nmetadata: {name: l}\nlabels: {from: transformer}\nfieldSpecs: [{path: metadata/labels, create: true}]\n",
        ),
        (
            "crds/kustomization.yaml",
            "resources: [thing.yaml]\ncrds: [schema.json]\nconfigurations: [config.yaml]\nnamePrefix: x-\nconfigMapGenerator: [{name: data, literals: [a=1]}]\nvars:\n- {name: NAME, objref: {kind: ConfigMap, name: data, apiVersion: v1}}\n",
        ),
        (
            "crds/thing.yaml",
            "apiVersion: example.com/v1\nkind: Thing\nmetadata: {name: t}\nspec: {dataRef: {name: data}, image: nginx, text: $(NAME)}\n",
        ),
        (
            "crds/schema.json",
            "{\"example.com/v1.Thing\": {\"Schema\": {\"properties\": {\"spec\": {\"$ref\": \"example.com/v1.ThingSpec\"}}}}, \"example.com/v1.ThingSpec\": {\"Schema\": {\"properties\": {\"dataRef\": {\"x-kubernetes-object-ref-api-version\": \"v1\", \"x-kubernetes-object-ref-kind\": \"ConfigMap\", \"x-kubernetes-object-ref-name-key\": \"name\"}}}}}",
        ),
        (
            "crds/config.yaml",
            "varReference: [{path: spec/text, kind: Thing}]\nimages: [{path: spec/image, kind: Thing}]\n",
        ),
        ("local/kustomization.yaml", "resources: [a.yaml]\n"),
        (
            "local/a.yaml",
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: local, annotations: {config.kubernetes.io/local-config: 'true'}}\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: odd}\ndata:\n  a: \"yes\"\n  b: 'on'\n  c: \"0644\"\n  d: '1e3'\n  e: ''\n  f: |\n    text\n",
        ),
        (".hidden/kustomization.yaml", "resources: [a+b.yaml]\n"),
        (
            ".hidden/a+b.yaml",
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: hidden}\n",
        ),
        (
            "outside/sub/kustomization.yaml",
            "configMapGenerator: [{name: a, files: [../shared.txt]}]\n",
        ),
        ("outside/shared.txt", "shared\n"),
    ])
}

#[tokio::test]
async fn overlays_are_built_as_by_kustomize() {
    let bench = Bench::new();
    for folder in ["base", "prod", "fifo", "plugins", "crds", "local", ".hidden"] {
        check(&bench, &Job::new(overlays()).at(folder), &[]).await;
    }
}

#[tokio::test]
async fn files_outside_of_a_kustomizations_folder_are_read_where_that_is_asked_for() {
    let bench = Bench::new();
    let job = Job::new(overlays()).at("outside/sub");
    assert!(!kustomize_build(&job.files, "outside/sub", &[]).status.success());
    assert!(errors(&bench.render(&job).await).contains("outside"));
    let job = job.renderers(json!([{"kustomize": {"loadRestrictor": "LoadRestrictionsNone"}}]));
    check(&bench, &job, &["--load-restrictor", "LoadRestrictionsNone"]).await;
}

#[tokio::test]
async fn options_are_what_kustomize_edit_would_write() {
    let bench = Bench::new();
    let options = json!([{"type": "Kustomize", "kustomize": {
        "namePrefix": "q-", "nameSuffix": "-x", "components": ["../component"],
        "images": [{"name": "nginx", "newTag": "3.0"}, {"name": "busybox", "newName": "alpine"}],
    }}]);
    let mut stated = overlays();
    let text = String::from_utf8(stated["prod/kustomization.yaml"].clone()).unwrap();
    let edited = text
        .replace("namePrefix: p-", "namePrefix: q-\nnameSuffix: -x")
        .replace(
            "{name: nginx, newName: registry.example.com/nginx, newTag: '2.0'}",
            "{name: nginx, newTag: '3.0'}",
        )
        .replace(
            "{name: busybox, digest: sha256:aaaa}",
            "{name: busybox, newName: alpine}",
        );
    stated.insert(
        "prod/kustomization.yaml".to_owned(),
        text.replace("components: [../component]\n", "").into_bytes(),
    );
    let ours = values(
        bench
            .render(&Job::new(stated.clone()).at("prod").renderers(options))
            .await,
    );
    stated.insert("prod/kustomization.yaml".to_owned(), edited.into_bytes());
    let ran = kustomize_build(&stated, "prod", &[]);
    assert_same(&ours, &objects(&ran.stdout), &String::from_utf8_lossy(&ran.stderr));
}

/// Every folder of other people's files that has a kustomization.
fn kustomizations(files: &Files) -> Vec<String> {
    let names = ["kustomization.yaml", "kustomization.yml", "Kustomization"];
    let folder = |path: &String| {
        let path = Path::new(path);
        names
            .contains(&path.file_name()?.to_str()?)
            .then(|| path.parent().unwrap().to_str().unwrap().to_owned())
    };
    files.keys().filter_map(folder).collect()
}

#[tokio::test]
async fn overlays_that_others_wrote_are_built_as_by_kustomize() {
    let bench = Bench::new();
    let (mut same, mut refused) = (0, 0);
    for project in [
        "external-dns",
        "metrics-server",
        "kueue",
        "node-feature-discovery",
        "gateway-api",
    ] {
        let all = read_folder(&others(project));
        for folder in kustomizations(&all) {
            let job = Job::new(all.clone()).at(&folder);
            let ran = kustomize_build(&all, &folder, &[]);
            let output = bench.render(&job).await;
            if ran.status.success() {
                assert_same(&values(output), &objects(&ran.stdout), &format!("{project}/{folder}"));
                same += 1;
            } else {
                errors(&output);
                refused += 1;
            }
        }
    }
    // Components can't be built by themselves, and some kustomizations name files that were not copied.
    assert!(
        same >= 30 && refused <= 25,
        "{same} were the same, {refused} were refused by both"
    );
}

#[tokio::test]
async fn charts_are_inflated_as_by_kustomize() {
    let bench = Bench::new();
    let mut all: Files = everything()
        .into_iter()
        .map(|(path, content)| (format!("app/charts/web/{path}"), content))
        .collect();
    all.extend(files([
        (
            "app/kustomization.yaml",
            "namespace: apps\nnamePrefix: k-\nresources: [cm.yaml]\nhelmCharts:\n- name: web\n  releaseName: one\n  includeCRDs: true\n  valuesInline: {replicas: 4, list: [x], sub: {color: black}}\n- name: web\n  releaseName: two\n  namespace: elsewhere\n  valuesFile: values.yaml\n  additionalValuesFiles: [more.yaml]\n  skipTests: true\n  skipHooks: true\n  kubeVersion: v1.30.0\n  apiVersions: [monitoring.coreos.com/v1]\n  nameTemplate: ''\nconfigMapGenerator: [{name: made, literals: [a=b]}]\npatches:\n- target: {kind: Deployment}\n  patch: '- {op: add, path: /spec/paused, value: true}'\n",
        ),
        ("app/cm.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: plain}\n"),
        ("app/values.yaml", "replicas: 8\nimage: {tag: v8}\n"),
        ("app/more.yaml", "port: 9090\n"),
        ("overlay/kustomization.yaml", "resources: [../app]\nnameSuffix: -o\nsortOptions: {order: fifo}\n"),
        (
            "merge/kustomization.yaml",
            "helmGlobals: {chartHome: ../app/charts}\nhelmCharts:\n- {name: web, releaseName: m, valuesMerge: merge, valuesInline: {replicas: 9, extra: 1}}\n",
        ),
        (
            "replace/kustomization.yaml",
            "namespace: r\nhelmGlobals: {chartHome: ../app/charts}\nhelmCharts:\n- {name: web, releaseName: r, valuesMerge: replace, valuesInline: {replicas: 9}}\n",
        ),
    ]));
    // Kustomize refuses duplicate objects, and the sub-chart is used twice.
    all.remove("app/charts/web/charts/sub/crds/sub.yaml");
    // Both releases would make these objects under the same names.
    for shared in ["many", "capabilities", "crlf", "bom", "lib"] {
        let path = format!("app/charts/web/templates/{shared}.yaml");
        let text = String::from_utf8(all[&path].clone()).unwrap();
        // A byte order mark is valid only at the beginning.
        let text = text.trim_start_matches('\u{feff}');
        all.insert(
            path,
            format!("{{{{- if ne .Release.Name \"two\" }}}}\n{text}\n{{{{- end }}}}\n").into_bytes(),
        );
    }
    for folder in ["app", "overlay"] {
        check(&bench, &Job::new(all.clone()).at(folder), &[]).await;
    }
    for folder in ["merge", "replace"] {
        let job = Job::new(all.clone())
            .at(folder)
            .renderers(json!([{"kustomize": {"loadRestrictor": "LoadRestrictionsNone"}}]));
        check(&bench, &job, &["--load-restrictor", "LoadRestrictionsNone"]).await;
    }
}

#[tokio::test]
async fn what_is_not_in_the_repository_is_named_with_what_to_do() {
    let bench = Bench::new();
    let remote = [
        "https://github.com/org/repo//deploy?ref=v1.0.0",
        "github.com/org/repo/deploy?ref=main",
        "git@github.com:org/repo.git",
        "https://example.com/manifest.yaml",
        "ssh://git@example.com/repo",
        "git::https://example.com/repo.git",
    ];
    for address in remote {
        for field in ["resources", "components"] {
            let text = format!("{field}: ['{address}']\n");
            let said = errors(&bench.render(&Job::of([("kustomization.yaml", text.as_str())])).await);
            assert!(
                said.contains(address) && said.contains("kustomize localize"),
                "{field} {address}: {said}"
            );
        }
    }
    let nested = [
        ("kustomization.yaml", "resources: [base]\n"),
        (
            "base/kustomization.yaml",
            "patches: [{path: https://example.com/p.yaml}]\n",
        ),
    ];
    assert!(
        errors(&bench.render(&Job::of(nested)).await)
            .contains("base/kustomization.yaml names https://example.com/p.yaml")
    );
    let chart = "helmCharts: [{name: redis, releaseName: r, repo: https://charts.example.com, version: 1.0.0}]\n";
    let said = errors(&bench.render(&Job::of([("kustomization.yaml", chart)])).await);
    assert!(
        said.contains("there is no chart at charts/redis-1.0.0/redis") && said.contains("helm pull"),
        "{said}"
    );
    let unnamed = [
        ("kustomization.yaml", "helmCharts: [{name: c}]\n"),
        ("charts/c/Chart.yaml", "apiVersion: v2\nname: c\nversion: 1.0.0\n"),
    ];
    assert!(errors(&bench.render(&Job::of(unnamed)).await).contains("it has no releaseName"));
}

#[tokio::test]
async fn remote_bases_are_found_where_the_hub_lays_them() {
    let place = ".farwater-bases/github.com~org~repo@v1";
    let third = ".farwater-bases/ssh-git@h.example.com~org~third@HEAD";
    let app = "resources: ['https://github.com/org/repo//deploy?ref=v1', own.yaml]\ncomponents: ['github.com/org/repo/part?ref=v1']\nnamePrefix: p-\n";
    let local = "resources: [../../.farwater-bases/github.com~org~repo@v1/deploy, own.yaml]\ncomponents: [../../.farwater-bases/github.com~org~repo@v1/part]\nnamePrefix: p-\n";
    let object = |name: &str| format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\n");
    let with = |app: &str, deploy: &str| -> Files {
        let component = "apiVersion: kustomize.config.k8s.io/v1alpha1\nkind: Component\nnameSuffix: -part\n";
        let all = [
            ("apps/web/kustomization.yaml".to_owned(), app.to_owned()),
            ("apps/web/own.yaml".to_owned(), object("own")),
            (format!("{place}/deploy/kustomization.yaml"), deploy.to_owned()),
            (
                format!("{place}/common/kustomization.yaml"),
                "resources: [a.yaml]\nnameSuffix: -common\n".to_owned(),
            ),
            (format!("{place}/common/a.yaml"), object("a")),
            (format!("{place}/part/kustomization.yaml"), component.to_owned()),
            (
                format!("{third}/kustomization.yaml"),
                "resources: [b.yaml]\n".to_owned(),
            ),
            (format!("{third}/b.yaml"), object("b")),
        ];
        files(all.iter().map(|(path, text)| (path.as_str(), text.as_str())))
    };
    let remote = with(app, "resources: [../common, 'git@h.example.com:org/third']\n");
    let by_hand = with(
        local,
        "resources: [../common, '../../ssh-git@h.example.com~org~third@HEAD']\n",
    );
    let bench = Bench::new();
    let ran = kustomize_build(&by_hand, "apps/web", &[]);
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let expected = objects(&ran.stdout);
    assert_eq!(expected.len(), 3);
    assert_same(
        &values(bench.render(&Job::new(remote.clone()).at("apps/web")).await),
        &expected,
        "bases",
    );
    // A file of a web server works too, although it is outside the kustomization's folder.
    let address = "https://example.com/releases/install.yaml";
    let at = Base::parse(address).unwrap().place().unwrap();
    let with_file = Job::of([
        (
            "apps/web/kustomization.yaml",
            "resources: ['https://example.com/releases/install.yaml']\nnamePrefix: p-\n",
        ),
        (at.as_str(), object("installed").as_str()),
    ]);
    let made = values(bench.render(&with_file.at("apps/web")).await);
    assert_eq!((made.len(), &made[0]["metadata"]["name"]), (1, &json!("p-installed")));
    // Bases don't count as raw manifests, not even for a renderer of the whole source.
    let renderers = json!([{"path": ".", "type": "Raw"}, {"path": "apps/web"}]);
    assert_same(
        &values(bench.render(&Job::new(remote.clone()).renderers(renderers)).await),
        &expected,
        "beside raw manifests",
    );
    // A post-renderer may have bases too.
    let mut chart = remote;
    for (file, content) in everything() {
        chart.insert(format!("web/{file}"), content);
    }
    chart.insert(
        "post/kustomization.yaml".to_owned(),
        b"resources: [helm-output.yaml, 'https://github.com/org/repo//deploy?ref=v1']\n".to_vec(),
    );
    let post = json!([{"path": "web", "helm": {"postRenderers": [{"kustomize": {"path": "../post"}}]}}]);
    let names: Vec<String> = values(bench.render(&Job::new(chart).renderers(post)).await)
        .iter()
        .map(|object| object["metadata"]["name"].to_string())
        .collect();
    assert!(names.contains(&"\"a-common\"".to_owned()), "{names:?}");
    // The error names a base that was not fetched.
    let lost = Job::of([(
        "kustomization.yaml",
        "resources: ['https://github.com/org/other?ref=v1']\n",
    )]);
    let said = errors(&bench.render(&lost).await);
    assert!(
        said.contains("https://github.com/org/other?ref=v1") && said.contains("rendering has no network"),
        "{said}"
    );
}

#[tokio::test]
async fn where_kustomize_fails_so_do_we() {
    let bench = Bench::new();
    let cases: [&[(&str, &str)]; 8] = [
        &[("kustomization.yaml", "resources: [missing.yaml]\n")],
        &[
            ("kustomization.yaml", "resources: [a.yaml]\nunknown: 1\n"),
            ("a.yaml", ""),
        ],
        &[
            ("kustomization.yaml", "resources: [a]\n"),
            ("a/kustomization.yaml", "resources: [..]\n"),
        ],
        &[("kustomization.yaml", ""), ("kustomization.yml", "")],
        &[
            (
                "kustomization.yaml",
                "resources: [a.yaml]\npatches: [{patch: '{kind: A, apiVersion: v1, metadata: {name: b}}'}]\n",
            ),
            ("a.yaml", "apiVersion: v1\nkind: A\nmetadata: {name: a}\n"),
        ],
        &[
            ("kustomization.yaml", "resources: [a.yaml, b.yaml]\n"),
            ("a.yaml", "apiVersion: v1\nkind: A\nmetadata: {name: a}\n"),
            ("b.yaml", "apiVersion: v1\nkind: A\nmetadata: {name: a}\n"),
        ],
        &[
            ("kustomization.yaml", "transformers: [t.yaml]\n"),
            (
                "t.yaml",
                "apiVersion: example.com/v1\nkind: Program\nmetadata: {name: t, annotations: {config.kubernetes.io/function: 'exec: {path: /bin/sh}'}}\n",
            ),
        ],
        &[
            ("kustomization.yaml", "generators: [g.yaml]\n"),
            (
                "g.yaml",
                "apiVersion: builtin\nkind: HelmChartInflationGenerator\nmetadata: {name: g}\nname: c\n",
            ),
        ],
    ];
    for case in cases {
        let job = Job::of(case.iter().copied());
        let said = bench.refuse(&job).await;
        assert!(!said.contains("the renderer failed"), "{case:?}: {said}");
    }
}

#[tokio::test]
async fn of_a_key_that_is_given_twice_the_last_one_counts_and_a_warning_names_its_line() {
    let bench = Bench::new();
    let text = "configMapGenerator:\n- name: a\n  literals:\n  - x=1\n  literals:\n  - x=2\n";
    let job = Job::new(files([("app/kustomization.yaml", text)])).at("app");
    check(&bench, &job, &[]).await;
    let warnings = bench.render(&job).await.warnings;
    assert_eq!(
        warnings,
        ["app/kustomization.yaml:5: key \"literals\" is given twice, first on line 3; the last one counts"]
    );
}
