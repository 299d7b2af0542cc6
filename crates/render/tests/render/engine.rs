//! Behaviour of all renderers: several in one service, patches, the cache, the life of the child.

use std::{
    path::Path,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use farwater_render::{Asker, Cache, CacheLimits, Capabilities, Helper, Program, Question, Unanswered};
use farwater_testkit::wait_for;
use serde_json::{Value, json};

use super::support::{Bench, Files, Job, charts::small, errors, files, renderer, strict, values};

fn object(name: &str) -> String {
    format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\ndata: {{a: '1'}}\n")
}

fn names(values: &[Value]) -> Vec<&str> {
    values
        .iter()
        .map(|value| value["metadata"]["name"].as_str().unwrap())
        .collect()
}

fn several() -> Files {
    let mut all: Files = small("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: from-chart}\n")
        .into_iter()
        .map(|(path, content)| (format!("app/chart/{path}"), content))
        .collect();
    let (raw, based) = (object("raw"), object("based"));
    all.extend(files([
        ("app/raw.yaml", raw.as_str()),
        (
            "app/overlay/kustomization.yaml",
            "resources: [../../base]\nnamePrefix: k-\n",
        ),
        ("base/kustomization.yaml", "resources: [a.yaml]\n"),
        ("base/a.yaml", based.as_str()),
    ]));
    all
}

#[tokio::test]
async fn several_renderers_make_one_service_and_raw_manifests_leave_out_the_others_folders() {
    let bench = Bench::new();
    let renderers = json!([{}, {"path": "chart"}, {"path": "overlay"}]);
    let made = values(bench.render(&Job::new(several()).at("app").renderers(renderers)).await);
    assert_eq!(names(&made), ["raw", "from-chart", "k-based"]);
    let twice = json!([{"path": "chart"}, {"path": "chart", "helm": {"releaseName": "other", "values": {"x": 1}}}]);
    // Objects that are exactly equal are included once.
    assert_eq!(
        names(&values(
            bench.render(&Job::new(several()).at("app").renderers(twice)).await
        )),
        ["from-chart"]
    );
}

#[tokio::test]
async fn raw_manifests_are_what_the_options_and_sourceignore_leave() {
    let bench = Bench::new();
    let (a, b) = (object("a"), object("b"));
    let all = files([
        (".sourceignore", "*.values.yaml\n"),
        ("app/a.yaml", a.as_str()),
        ("app/x.values.yaml", "replicas: 1\n"),
        ("app/setup/b.yaml", b.as_str()),
    ]);
    let job = Job::new(all).at("app");
    let render = async |raw: Value| bench.render(&job.clone().renderers(json!([{"raw": raw}]))).await;
    assert_eq!(names(&values(bench.render(&job).await)), ["a", "b"]);
    assert_eq!(names(&values(render(json!({"recurse": false})).await)), ["a"]);
    assert_eq!(names(&values(render(json!({"include": ["setup/"]})).await)), ["b"]);
    let none = render(json!({"exclude": ["**"]})).await;
    let said = errors(&none);
    assert!(
        none.objects.is_empty() && said.contains("app: has no manifests but a.yaml, setup/b.yaml"),
        "{said}"
    );
    assert!(values(render(json!({"exclude": ["**"], "allowEmpty": true})).await).is_empty());

    let chart = Job::new(several()).at("app/chart").renderers(json!([{"raw": {}}]));
    let said = errors(&bench.render(&chart).await);
    assert!(
        said.contains("app/chart: the renderer has options for raw manifests"),
        "{said}"
    );
}

#[tokio::test]
async fn one_renderer_that_fails_leaves_the_others_objects_and_says_so() {
    let bench = Bench::new();
    let mut all = several();
    all.insert("app/chart/templates/b.yaml".to_owned(), b"{{ fail \"no\" }}".to_vec());
    let renderers = json!([{}, {"path": "chart"}, {"path": "missing"}, {"path": "overlay", "helm": {}}]);
    let output = bench.render(&Job::new(all).at("app").renderers(renderers)).await;
    let made: Vec<_> = output
        .objects
        .iter()
        .map(|object| object.object.name.as_str())
        .collect();
    assert_eq!(made, ["raw", "k-based"]);
    let said = errors(&output);
    assert!(
        said.contains("app/chart: ") && said.contains("app/missing: the bundle has no such folder"),
        "{said}"
    );
    assert!(
        said.contains("app/overlay: the renderer has options for Helm, and there is no Chart.yaml"),
        "{said}"
    );
}

#[tokio::test]
async fn patches_go_over_everything_and_are_kustomizes() {
    let bench = Bench::new();
    let renderers = json!([{}, {"path": "chart"}, {"path": "overlay"}]);
    let job = Job::new(several()).at("app").renderers(renderers);
    let patches = json!([
        {"target": {"kind": "ConfigMap", "name": "raw|from-.*"}, "patch": "- {op: add, path: /metadata/labels, value: {patched: 'yes'}}"},
        {"target": {"labelSelector": "patched=yes"}, "patch": "kind: ConfigMap\nmetadata: {name: any}\ndata: {b: '2', a: null}\n"},
        {"patch": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: k-based}\n$patch: delete\n"},
    ]);
    let output = bench.render(&job.clone().patches(patches)).await;
    assert_eq!(output.objects[0].origin.to_string(), "app/raw.yaml:1 (document 1)");
    let made = values(output);
    assert_eq!(names(&made), ["raw", "from-chart"]);
    for value in &made {
        assert_eq!(
            (&value["data"], &value["metadata"]["labels"]),
            (&json!({"b": "2"}), &json!({"patched": "yes"}))
        );
    }
    for patch in [
        json!([{"patch": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: nobody}\n"}]),
        json!([{"patch": "- {op: remove, path: /nothing}", "target": {"name": "raw"}}]),
        json!([{"patch": "- {op: remove, path: /data}"}]),
        json!([{"patch": "not: [a"}]),
    ] {
        let output = bench.render(&job.clone().patches(patch)).await;
        assert!(errors(&output).starts_with("patches: patch 1: "), "{}", errors(&output));
        assert!(output.objects.is_empty());
    }
}

/// `farwater convert` writes these two patches for what Flux and Argo CD do to all objects.
#[tokio::test]
async fn a_patch_of_everything_reaches_each_object_and_one_of_namespaces_no_object_without() {
    let bench = Bench::new();
    let text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n---\n\
                apiVersion: v1\nkind: ConfigMap\nmetadata: {name: b, namespace: elsewhere, labels: {x: z}}\n---\n\
                apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c, namespace: default}\n---\n\
                apiVersion: x.example.com/v1\nkind: Boat\nmetadata: {name: d, namespace: elsewhere}\n---\n\
                apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: e}\n---\n\
                apiVersion: v1\nkind: Namespace\nmetadata: {name: f}\n";
    let patches = json!([
        {"target": {"namespace": "[a-z0-9].*"}, "patch": "[{\"op\":\"add\",\"path\":\"/metadata/namespace\",\"value\":\"web\"}]"},
        {"target": {"kind": ".*"}, "patch": "{\"kind\":\"any\",\"metadata\":{\"labels\":{\"team\":\"a\"},\"name\":\"any\"}}"},
    ]);
    let made = values(bench.render(&Job::of([("all.yaml", text)]).patches(patches)).await);
    assert_eq!(names(&made), ["a", "b", "c", "d", "e", "f"]);
    let namespaces: Vec<Option<&str>> = made
        .iter()
        .map(|value| value["metadata"]["namespace"].as_str())
        .collect();
    assert_eq!(
        namespaces,
        [Some("web"), Some("web"), Some("web"), Some("web"), None, None]
    );
    assert!(
        made.iter().all(|value| value["metadata"]["labels"]["team"] == "a"),
        "{made:?}"
    );
    assert_eq!(made[1]["metadata"]["labels"], json!({"team": "a", "x": "z"}));
}

#[tokio::test]
async fn raw_manifests_need_no_child_and_patches_of_them_do() {
    let text = object("a");
    let job = Job::of([("a.yaml", text.as_str()), ("README.md", "")]);
    let mut bench = Bench::new();
    assert_eq!(names(&values(bench.render(&job).await)), ["a"]);
    assert!(bench.helper().idle().is_empty());
    bench.engine.helper = None;
    let said = errors(&bench.render(&job.clone().patches(json!([{"patch": "{}"}]))).await);
    assert_eq!(
        said,
        "a patch needs farwater-render, which is not installed beside this program"
    );
    bench.engine.helper = Some(Helper::new(Program::new(vec!["/nowhere/farwater-render".to_owned()])));
    let said = errors(&bench.render(&job.patches(json!([{"patch": "{}"}]))).await);
    assert!(said.contains("start farwater-render"), "{said}");
}

#[tokio::test]
async fn what_was_rendered_is_not_rendered_again_until_an_input_changes() {
    let mut bench = Bench::new();
    let folder = tempfile::tempdir().unwrap();
    bench.engine.cache = Cache::new(Some(folder.path().to_owned()), CacheLimits::default());
    let job = Job::new(several())
        .at("app")
        .renderers(json!([{}, {"path": "chart"}, {"path": "overlay"}]));
    let first = bench.render(&job).await;
    assert!(!first.cached);
    let again = bench.render(&job).await;
    assert!(again.cached);
    let shown = |output: &farwater_render::Output| format!("{:?}", output.objects);
    assert_eq!(shown(&first), shown(&again));
    // Another process finds it in the cache too.
    bench.engine.cache = Cache::new(Some(folder.path().to_owned()), CacheLimits::default());
    assert!(bench.render(&job).await.cached);
    let mut changed = job.clone();
    changed
        .files
        .insert("app/chart/values.yaml".to_owned(), b"a: 1\n".to_vec());
    let capabilities = Capabilities {
        kube_version: "v1.30.0".to_owned(),
        ..Capabilities::default()
    };
    let others = [
        changed,
        job.clone().patches(json!([{"target": {"name": "x"}, "patch": "[]"}])),
        job.clone()
            .renderers(json!([{}, {"path": "chart", "helm": {"values": {"a": 1}}}, {"path": "overlay"}])),
        Job {
            name: "other".to_owned(),
            ..job.clone()
        },
        Job {
            namespace: "other".to_owned(),
            ..job.clone()
        },
        Job {
            is_upgrade: true,
            ..job.clone()
        },
        Job {
            capabilities,
            ..job.clone()
        },
    ];
    for other in others {
        assert!(!bench.render(&other).await.cached, "{other:?}");
        assert!(bench.render(&other).await.cached, "{other:?}");
    }
    // No template sees these parameters, so they don't count.
    assert!(
        bench
            .render(&job.clone().parameters(json!({"configuration": {"a": 1}})))
            .await
            .cached
    );
    let copy = folder.path().join("farwater-render");
    std::fs::copy(renderer(), &copy).unwrap();
    bench.engine.helper = Some(Helper::new(Program::new(vec![copy.to_str().unwrap().to_owned()])));
    assert!(!bench.render(&job).await.cached);
}

#[tokio::test]
async fn what_failed_or_looked_at_the_cluster_is_rendered_again_and_secrets_stay_off_the_disk() {
    let mut bench = Bench::new();
    let folder = tempfile::tempdir().unwrap();
    bench.engine.cache = Cache::new(Some(folder.path().to_owned()), CacheLimits::default());
    let failing = Job::new(small("{{ fail \"no\" }}"));
    let looking = Job::new(small("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n"))
        .renderers(json!([{"helm": {"lookup": true}}]));
    for job in [failing, looking] {
        bench.render(&job).await;
        assert!(!bench.render(&job).await.cached);
    }
    let text = object("{{ configuration.secret }}");
    let job = Job::of([("a.yaml.liquid", text.as_str())]).parameters(json!({"configuration": {"secret": "c4n4ry"}}));
    let secret = Job {
        secret: true,
        ..job.clone()
    };
    values(bench.render(&secret).await);
    assert!(bench.render(&secret).await.cached);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    values(
        bench
            .render(&job.parameters(json!({"configuration": {"secret": "none"}})))
            .await,
    );
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

/// Answers lookups in the cluster, and records the questions.
#[derive(Default)]
struct Cluster {
    asked: Mutex<Vec<String>>,
    refuses: bool,
}

impl Asker for Cluster {
    fn look_up<'a>(
        &'a self,
        question: &'a Question,
    ) -> std::pin::Pin<Box<dyn Future<Output = Result<Option<Value>, Unanswered>> + Send + 'a>> {
        let Question {
            api_version,
            kind,
            namespace,
            name,
        } = question;
        self.asked
            .lock()
            .unwrap()
            .push(format!("{api_version} {kind} {namespace} {name}"));
        let answer = match (self.refuses, name.as_str()) {
            (true, _) => Err(Unanswered("account web may not read Secrets".to_owned())),
            (false, "there") => Ok(Some(
                json!({"metadata": {"name": "there"}, "spec": {"replicas": 1_000_000}, "data": {"p": "cw=="}}),
            )),
            (false, "") => Ok(Some(
                json!({"items": [{"metadata": {"name": "one"}}, {"metadata": {"name": "two"}}]}),
            )),
            (false, _) => Ok(None),
        };
        Box::pin(async move { answer })
    }
}

#[tokio::test]
async fn lookup_finds_nothing_unless_it_is_allowed_and_then_asks() {
    let template = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata:\n  one: {{ (lookup \"v1\" \"Secret\" \"ns\" \"there\") | toJson | quote }}\n  replicas: {{ ((lookup \"v1\" \"Secret\" \"ns\" \"there\").spec).replicas | default \"none\" | quote }}\n  absent: {{ empty (lookup \"v1\" \"Secret\" \"ns\" \"absent\") | quote }}\n  all: {{ range (lookup \"apps/v1\" \"Deployment\" \"\" \"\").items }}{{ .metadata.name }}{{ end }}\n";
    let bench = Bench::new();
    let job = Job::new(small(template));
    let cluster = Cluster::default();
    let made = values(bench.render_asking(&job, &cluster).await);
    assert_eq!(
        made[0]["data"],
        json!({"one": "{}", "replicas": "none", "absent": "true", "all": null})
    );
    assert!(cluster.asked.lock().unwrap().is_empty());

    let allowed = job.renderers(json!([{"helm": {"lookup": true}}]));
    let made = values(bench.render_asking(&allowed, &cluster).await);
    assert_eq!(
        (
            &made[0]["data"]["replicas"],
            &made[0]["data"]["absent"],
            &made[0]["data"]["all"]
        ),
        (&json!("1000000"), &json!("true"), &json!("onetwo"))
    );
    let asked = cluster.asked.lock().unwrap().clone();
    assert_eq!(
        asked,
        [
            "v1 Secret ns there",
            "v1 Secret ns there",
            "v1 Secret ns absent",
            "apps/v1 Deployment  "
        ]
    );

    let refusing = Cluster {
        refuses: true,
        ..Cluster::default()
    };
    let said = errors(&bench.render_asking(&allowed, &refusing).await);
    assert!(
        said.contains("lookup of v1 Secret: account web may not read Secrets"),
        "{said}"
    );
    assert!(errors(&bench.render(&allowed).await).contains("there is no cluster to ask here"));
}

fn is_running(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

#[tokio::test]
async fn the_child_is_kept_while_it_is_used_and_gone_when_it_is_not() {
    let bench = Bench::with(
        Program {
            idle: Duration::from_millis(700),
            ..strict()
        },
        "",
    );
    let job = |n: usize| Job::new(small(&object(&format!("n{n}"))));
    let mut children = Vec::new();
    for n in 0..4 {
        values(bench.render(&job(n)).await);
        children.push(bench.helper().idle());
    }
    assert!(
        children.iter().all(|idle| *idle == children[0] && idle.len() == 1),
        "{children:?}"
    );
    let child = children[0][0];
    wait_for("the child to be gone", Duration::from_secs(20), || async {
        Ok((!is_running(child)).then_some(()))
    })
    .await
    .unwrap();
    assert!(bench.helper().idle().is_empty());
    values(bench.render(&job(9)).await);
}

#[tokio::test]
async fn a_child_that_is_killed_is_replaced() {
    let bench = Bench::strict();
    values(bench.render(&Job::new(small(&object("a")))).await);
    let child = bench.helper().idle()[0];
    kill(child);
    values(bench.render(&Job::new(small(&object("b")))).await);
    assert_ne!(bench.helper().idle(), [child]);
}

fn kill(pid: u32) {
    let killed = std::process::Command::new("kill")
        .args(["-9", &pid.to_string()])
        .status()
        .unwrap();
    assert!(killed.success());
}

#[tokio::test]
async fn a_render_that_nobody_waits_for_any_more_ends_its_child() {
    let bench = Bench::strict();
    let endless = Job::new(small(
        "{{ range until 100000 }}{{ range until 100000 }}{{ end }}{{ end }}",
    ));
    let stopped = tokio::time::timeout(Duration::from_millis(1500), bench.render(&endless)).await;
    assert!(stopped.is_err() && bench.helper().idle().is_empty());
    // The next renders have room.
    for n in 0..3 {
        values(bench.render(&Job::new(small(&object(&format!("n{n}"))))).await);
    }
}

/// Reads the field as described in `proc_pid_stat(5)`.
fn niceness_of_children() -> Vec<i64> {
    let own = std::process::id().to_string();
    let stats = std::fs::read_dir("/proc").unwrap().flatten();
    let stats = stats.filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok());
    let of_child = |stat: String| {
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        (*fields.get(1)? == own).then(|| fields.get(16)?.parse().ok())?
    };
    stats.filter_map(of_child).collect()
}

#[tokio::test]
async fn one_that_hangs_does_not_hold_up_the_others() {
    let bench = Bench::strict();
    let hangs = Job::new(small(
        "{{ range until 100000 }}{{ range until 100000 }}{{ end }}{{ end }}",
    ));
    let begun = Instant::now();
    let done = AtomicUsize::new(0);
    let others = async {
        let mut longest = Duration::ZERO;
        // The first of these renders starts a second child.
        for n in 0..40 {
            let begun = Instant::now();
            values(bench.render(&Job::new(small(&object(&format!("n{n}"))))).await);
            done.fetch_add(1, Ordering::Relaxed);
            longest = longest.max(begun.elapsed());
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(niceness_of_children().contains(&10), "it does not give way");
        longest
    };
    let (output, longest) = tokio::join!(bench.render(&hangs), others);
    let said = errors(&output);
    assert!(said.contains("rendering took over 10 s"), "{said}");
    assert!(
        begun.elapsed() < Duration::from_secs(20) && longest < Duration::from_secs(5),
        "{longest:?}"
    );
}

#[tokio::test]
async fn the_kernel_keeps_children_from_files_sockets_and_programs() {
    let confinement = Bench::new().helper().confinement().await.unwrap();
    assert!(confinement.landlock >= 1 && confinement.seccomp, "{confinement:?}");
}
