//! What changes a service's digest, and what doesn't: each input in turn, and everything beside them.

mod commits;
mod fields;
mod promoted;

use std::{
    collections::BTreeSet,
    sync::{Mutex, PoisonError},
};

use farwater_api::{ADMIN_NAMESPACE, Digest, digest_report::DigestReport};
use farwater_hub::services::digest_report;
use farwater_testkit::{
    Registry,
    git::{GitServer, Repository as Git},
    registry::SignIn,
};
use serde_json::{Value, json};

use crate::{
    agent::Agent,
    delivering::applied,
    rig::{Rig, condition, message},
    shop::{Repository, ask_in, helm_repository, oci_repository, service, start, wait_files, wait_service},
};

/// A service `web` whose digest is looked at.
struct Subject {
    rig: Rig,
    agent: Agent,
    namespace: &'static str,
    uid: String,
    /// Those that are asked after each step.
    sources: &'static [(&'static str, &'static str)],
    /// Inputs that a step has changed.
    changed: Mutex<BTreeSet<String>>,
}

impl Subject {
    async fn settle(&self) {
        for (kind, name) in self.sources {
            ask_in(&self.rig, kind, self.namespace, name).await;
        }
        self.rig.wait_idle().await;
        self.agent.wait_polled(&self.rig).await;
    }

    async fn digest(&self) -> Digest {
        let state = self.agent.desired(&self.rig).await;
        state
            .entries
            .iter()
            .find(|entry| entry.service.uid == self.uid)
            .unwrap()
            .digest()
    }

    async fn report(&self) -> DigestReport {
        let key = crate::rig::key("ServiceDeployment", self.namespace, "web");
        let resource = self.rig.store.get(&key).await.unwrap().unwrap();
        digest_report::load(&self.rig.replica, &resource)
            .await
            .unwrap()
            .unwrap()
    }

    async fn edit(&self, edit: impl Fn(&mut Value)) {
        self.rig.edit("ServiceDeployment", self.namespace, "web", edit).await;
    }

    fn changed(self) -> BTreeSet<String> {
        self.changed.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

struct World {
    subject: Subject,
    charts: Repository,
    registry: Registry,
    _server: GitServer,
    values: Git,
}

impl World {
    /// A chart of a Helm repository with values of a Git repository and patches of a registry, and a dependency of its own.
    async fn new() -> Self {
        let charts = Repository::start(&[("redis", "7.0.0")]).await;
        let registry = Registry::start(SignIn::Nobody).await.unwrap();
        registry
            .push_files("apps", "stable", &[("patches/a.yaml", "1"), ("other/b.yaml", "1")])
            .await
            .unwrap();
        let server = GitServer::start().await.unwrap();
        let values = server.create("values.git").unwrap();
        values
            .commit(
                "main",
                &[("prod/values.yaml", "a: 1\n"), ("test/values.yaml", "a: 1\n")],
            )
            .unwrap();
        let dependency = format!(
            "dependencies:\n- {{name: redis, version: ^7, repository: '{}'}}\n",
            charts.origin.url()
        );
        let web = |version: &str| {
            let yaml = format!("apiVersion: v2\nname: web\nversion: {version}\n{dependency}");
            pack(
                charts.path(),
                &format!("web-{version}.tgz"),
                &[("web/Chart.yaml", &yaml), ("web/values.yaml", "x: y\n")],
            );
        };
        // Without what it depends on, as nobody should publish one and some do.
        web("1.0.0");
        web("2.0.0");
        charts.helm.index(charts.path(), None).unwrap();

        let rig = start().await;
        helm_repository(&rig, "charts", &charts.origin.url()).await;
        oci_repository(&rig, "apps", &registry.url("apps")).await;
        rig.edit("OCIRepository", ADMIN_NAMESPACE, "apps", |s| {
            s["spec"]["ref"] = json!({"tag": "stable"})
        })
        .await;
        rig.repository(ADMIN_NAMESPACE, "values", &server.url("values.git"))
            .await;
        rig.create("Secret", ADMIN_NAMESPACE, "password", json!({"data": {"p": "eA=="}}))
            .await;
        let context = json!({"spec": {"configuration": {"a": 1, "b": 1}}});
        rig.create("ServiceContext", ADMIN_NAMESPACE, "shared", context).await;
        let spec = json!({
            "sourceRef": {"kind": "HelmRepository", "name": "charts"},
            "chart": {"name": "web", "version": "~1"},
            "sources": [
                {"sourceRef": {"name": "values"}, "path": "prod", "mountPath": "values"},
                {"sourceRef": {"kind": "OCIRepository", "name": "apps"}, "path": "patches", "mountPath": "more/patches"},
            ],
            "secrets": [{"name": "password"}],
        });
        let uid = service(&rig, "web", spec).await;
        let agent = Agent::join(&rig, "east").await;
        let (_, files) = wait_files(&rig, &agent, &uid, |_| true).await;
        let paths: Vec<_> = files.keys().map(String::as_str).collect();
        let expected = [
            "Chart.yaml",
            "charts/redis-7.0.0/Chart.yaml",
            "charts/redis-7.0.0/templates/map.yaml",
            "charts/redis-7.0.0/values.yaml",
            "more/patches/a.yaml",
            "values.yaml",
            "values/values.yaml",
        ];
        assert_eq!(paths, expected);
        let sources: &[_] = &[
            ("HelmRepository", "charts"),
            ("OCIRepository", "apps"),
            ("GitRepository", "values"),
        ];
        let changed = Mutex::default();
        let subject = Subject {
            rig,
            agent,
            namespace: ADMIN_NAMESPACE,
            uid,
            sources,
            changed,
        };
        Self {
            subject,
            charts,
            registry,
            _server: server,
            values,
        }
    }
}

impl AsRef<Subject> for World {
    fn as_ref(&self) -> &Subject {
        &self.subject
    }
}

/// A chart's archive with exactly these files.
pub fn pack(folder: &std::path::Path, name: &str, files: &[(&str, &str)]) {
    use farwater_testkit::registry::{gzip, tar};
    std::fs::write(folder.join(name), gzip(&tar(files).unwrap()).unwrap()).unwrap();
}

/// Whether a step changes the digest of the service's entry, told with what changed it.
async fn check<W: AsRef<Subject>>(world: &W, what: &str, changes: Option<&[&str]>, step: impl AsyncFnOnce(&W)) {
    let subject = world.as_ref();
    subject.settle().await;
    let told = async || subject.report().await.entry == subject.digest().await;
    subject
        .rig
        .wait_until(&format!("what is told is what is delivered: {what}"), told)
        .await;
    let (before, report) = (subject.digest().await, subject.report().await);
    step(world).await;
    subject.settle().await;
    if changes.is_some() {
        let news = |entry: &farwater_api::protocol::Entry| applied(entry).is_some() && entry.digest() != before;
        subject.agent.wait_entry(&subject.rig, &subject.uid, news).await;
    }
    let (after, now) = (subject.digest().await, subject.report().await);
    assert_eq!(before != after, changes.is_some(), "{what}: {report:#?} {now:#?}");
    let names = |report: &DigestReport| {
        report
            .inputs
            .iter()
            .map(|input| input.name.clone())
            .collect::<BTreeSet<_>>()
    };
    let of = |report: &DigestReport, name: &str| {
        report
            .inputs
            .iter()
            .find(|input| input.name == name)
            .map(|input| input.digest)
    };
    let all: BTreeSet<_> = names(&report).union(&names(&now)).cloned().collect();
    let differing: Vec<_> = all
        .iter()
        .map(String::as_str)
        .filter(|name| of(&report, name) != of(&now, name))
        .collect();
    assert_eq!(differing, changes.unwrap_or_default(), "{what}");
    assert_eq!(
        now.content_id != report.content_id,
        differing.contains(&"bundle"),
        "{what}"
    );
    let mut changed = subject.changed.lock().unwrap();
    changed.extend(differing.into_iter().map(str::to_owned));
}

const CONTENT: Option<&[&str]> = Some(&["bundle", "bundleBytes", "turn"]);
/// The same number of bytes.
const SAME_SIZE: Option<&[&str]> = Some(&["bundle", "turn"]);

#[tokio::test(flavor = "multi_thread")]
async fn each_input_changes_the_digest_and_nothing_else_does() {
    let (charts, commits, promotions) = tokio::join!(of_charts(), commits::of_commits(), promoted::of_promotions());
    let changed: BTreeSet<String> = [charts, commits, promotions].into_iter().flatten().collect();
    let missing: Vec<_> = fields::of_deployments()
        .iter()
        .filter(|name| !changed.contains(**name))
        .collect();
    assert!(missing.is_empty(), "what changes {missing:?} is in no row");
}

/// The inputs that have changed.
async fn of_charts() -> BTreeSet<String> {
    let world = World::new().await;
    let on = &world;
    // Content, wherever it comes from.
    check(on, "values of the other repository", SAME_SIZE, async |w| {
        w.values
            .change("main", &[("prod/values.yaml", Some("a: 2\n"))])
            .map(drop)
            .unwrap();
    })
    .await;
    check(on, "the artifact", SAME_SIZE, async |w| {
        drop(
            w.registry
                .push_files("apps", "stable", &[("patches/a.yaml", "2"), ("other/b.yaml", "1")])
                .await
                .unwrap(),
        );
    })
    .await;
    check(on, "a dependency of the chart", SAME_SIZE, async |w| {
        w.charts.add(&[("redis", "7.1.0")])
    })
    .await;
    check(on, "a newer chart in the range", SAME_SIZE, async |w| {
        let dependency = format!(
            "dependencies:\n- {{name: redis, version: ^7, repository: '{}'}}\n",
            w.charts.origin.url()
        );
        let yaml = format!("apiVersion: v2\nname: web\nversion: 1.0.1\n{dependency}");
        pack(
            w.charts.path(),
            "web-1.0.1.tgz",
            &[("web/Chart.yaml", &yaml), ("web/values.yaml", "x: y\n")],
        );
        w.charts.helm.index(w.charts.path(), None).unwrap();
    })
    .await;
    check(on, "the chart's range", SAME_SIZE, async |w| {
        w.subject.edit(|s| s["spec"]["chart"]["version"] = "^2".into()).await
    })
    .await;
    check(on, "a folder of another source", Some(&["bundle", "turn"]), async |w| {
        w.subject
            .edit(|s| s["spec"]["sources"][0]["path"] = "test".into())
            .await;
    })
    .await;
    check(on, "where a source lies", SAME_SIZE, async |w| {
        w.subject
            .edit(|s| s["spec"]["sources"][0]["mountPath"] = "valuez".into())
            .await;
    })
    .await;
    check(on, "one source less", CONTENT, async |w| {
        w.subject
            .edit(|s| drop(s["spec"]["sources"].as_array_mut().unwrap().pop()))
            .await;
    })
    .await;
    // What else decides what an agent does.
    check(on, "a Secret's value", Some(&["secrets"]), async |w| {
        w.subject
            .rig
            .edit("Secret", ADMIN_NAMESPACE, "password", |s| {
                s["data"]["p"] = "eQ==".into()
            })
            .await;
    })
    .await;
    check(
        on,
        "the target namespace",
        Some(&["targetNamespace", "turn"]),
        async |w| {
            w.subject
                .edit(|s| s["spec"]["targetNamespace"] = "elsewhere".into())
                .await;
        },
    )
    .await;
    check(on, "prune", Some(&["prune", "turn"]), async |w| {
        w.subject.edit(|s| s["spec"]["prune"] = false.into()).await
    })
    .await;
    check(
        on,
        "how it is applied",
        Some(&["needsAgent", "options", "turn", "type"]),
        async |w| {
            w.subject
                .edit(|s| s["spec"]["apply"] = json!({"drift": "Report"}))
                .await;
        },
    )
    .await;
    check(
        on,
        "a renderer's values",
        Some(&["renderers", "turn", "type"]),
        async |w| {
            w.subject
                .edit(|s| s["spec"]["renderers"] = json!([{"helm": {"values": {"a": 1}}}]))
                .await;
        },
    )
    .await;
    check(on, "a patch", Some(&["patches", "turn"]), async |w| {
        w.subject
            .edit(|s| s["spec"]["patches"] = json!([{"patch": "{kind: ConfigMap, metadata: {name: a}}"}]))
            .await;
    })
    .await;
    check(
        on,
        "the first parameters",
        Some(&["parameters", "turn", "type"]),
        async |w| {
            w.subject
                .edit(|s| s["spec"]["parameters"] = json!([{"from": {"context": "shared"}, "keys": ["a"]}]))
                .await;
        },
    )
    .await;
    check(
        on,
        "a value of the service's own",
        Some(&["parameters", "turn"]),
        async |w| {
            w.subject
                .edit(|s| s["spec"]["configuration"] = json!({"host": "web.example.com"}))
                .await;
        },
    )
    .await;
    check(
        on,
        "a key of a context that the service is handed",
        Some(&["parameters", "turn"]),
        async |w| {
            w.subject
                .rig
                .edit("ServiceContext", ADMIN_NAMESPACE, "shared", |s| {
                    s["spec"]["configuration"]["a"] = 2.into()
                })
                .await;
        },
    )
    .await;

    // And nothing of this does.
    check(on, "a file beside the folder", None, async |w| {
        w.values.change("main", &[("README", Some("x"))]).map(drop).unwrap();
    })
    .await;
    check(
        on,
        "another file of the artifact, and its tag's new digest",
        None,
        async |w| {
            drop(
                w.registry
                    .push_files("apps", "stable", &[("patches/a.yaml", "2"), ("other/b.yaml", "9")])
                    .await
                    .unwrap(),
            );
        },
    )
    .await;
    check(on, "other charts, and versions out of the range", None, async |w| {
        w.charts.add(&[("nats", "1.0.0"), ("redis", "8.0.0")]);
    })
    .await;
    check(on, "how often sources are asked", None, async |w| {
        for (kind, name) in [
            ("HelmRepository", "charts"),
            ("OCIRepository", "apps"),
            ("GitRepository", "values"),
        ] {
            w.subject
                .rig
                .edit(kind, ADMIN_NAMESPACE, name, |s| s["spec"]["interval"] = "2h".into())
                .await;
        }
    })
    .await;
    check(on, "labels and annotations of the service", None, async |w| {
        w.subject.edit(|s| s["metadata"]["labels"] = json!({"a": "b"})).await;
        w.subject.edit(|s| s["metadata"]["annotations"]["a"] = "b".into()).await;
    })
    .await;
    check(on, "another key of the context", None, async |w| {
        w.subject
            .rig
            .edit("ServiceContext", ADMIN_NAMESPACE, "shared", |s| {
                s["spec"]["configuration"]["b"] = 2.into()
            })
            .await;
    })
    .await;
    check(on, "another service, Secret and source", None, async |w| {
        w.subject.rig.create("Secret", ADMIN_NAMESPACE, "unrelated", json!({"data": {"p": "eA=="}})).await;
        helm_repository(&w.subject.rig, "unrelated", &w.charts.origin.url()).await;
        let spec = json!({"sourceRef": {"kind": "HelmRepository", "name": "unrelated"}, "chart": {"name": "redis", "version": "*"}});
        service(&w.subject.rig, "unrelated", spec).await;
    })
    .await;
    check(on, "a file with the same content, written again", None, async |w| {
        w.values
            .change("main", &[("test/values.yaml", None)])
            .map(drop)
            .unwrap();
        w.values
            .change("main", &[("test/values.yaml", Some("a: 1\n"))])
            .map(drop)
            .unwrap();
    })
    .await;
    let report = on.subject.report().await;
    let sources: Vec<_> = report
        .sources
        .iter()
        .map(|source| (source.source.as_str(), source.dependency))
        .collect();
    let expected = [
        ("HelmRepository charts, chart web", false),
        ("GitRepository values", false),
        ("HelmRepository charts, chart redis", true),
    ];
    assert_eq!(sources, expected);
    world.subject.changed()
}

#[tokio::test(flavor = "multi_thread")]
async fn sources_that_get_in_each_others_way_are_refused() {
    let server = GitServer::start().await.unwrap();
    let git = server.create("infra.git").unwrap();
    git.commit(
        "main",
        &[("apps/web/a.yaml", "a"), ("apps/file", "b"), ("values/v.yaml", "c")],
    )
    .unwrap();
    let rig = start().await;
    rig.repository(ADMIN_NAMESPACE, "infra", &server.url("infra.git")).await;
    for (n, (path, mount, expected)) in [
        ("values", "apps/web", "apps/web is there already, from another source"),
        ("values", "apps/web/a.yaml", "apps/web/a.yaml is there already"),
        ("values", "apps/file/x", "apps/file is no folder"),
        ("nothing", "more", "nothing: the source has no such folder"),
        ("../x", "more", "spec.sources[0].path"),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("web-{n}");
        let sources = json!([{"sourceRef": {"name": "infra"}, "path": path, "mountPath": mount}]);
        service(
            &rig,
            &name,
            json!({"sourceRef": {"name": "infra"}, "path": "apps/web", "sources": sources}),
        )
        .await;
        let told = wait_service(&rig, &name, |s| condition(s, "Stalled") == "True/BundleFailed").await;
        assert!(
            message(&told, "Ready").contains(expected),
            "{expected}: {}",
            message(&told, "Ready")
        );
    }
}

/// A kustomization may name what is mounted beside it.
#[tokio::test(flavor = "multi_thread")]
async fn a_mounted_source_is_part_of_what_a_folder_leads_to() {
    let server = GitServer::start().await.unwrap();
    let (base, overlay) = (
        server.create("base.git").unwrap(),
        server.create("overlay.git").unwrap(),
    );
    base.commit(
        "main",
        &[
            ("web/kustomization.yaml", "resources: [map.yaml]\n"),
            ("web/map.yaml", "kind: ConfigMap\n"),
            ("db/x.yaml", "x"),
        ],
    )
    .unwrap();
    overlay
        .commit(
            "main",
            &[
                ("east/kustomization.yaml", "resources: [../mounted/base]\n"),
                ("west/x.yaml", "x"),
            ],
        )
        .unwrap();
    let rig = start().await;
    rig.repository(ADMIN_NAMESPACE, "base", &server.url("base.git")).await;
    rig.repository(ADMIN_NAMESPACE, "overlay", &server.url("overlay.git"))
        .await;
    let sources = json!([{"sourceRef": {"name": "base"}, "path": "web", "mountPath": "mounted/base"}]);
    let uid = service(
        &rig,
        "web",
        json!({"sourceRef": {"name": "overlay"}, "path": "east", "sources": sources}),
    )
    .await;
    let agent = Agent::join(&rig, "east").await;
    let (first, files) = wait_files(&rig, &agent, &uid, |_| true).await;
    let paths: Vec<_> = files.keys().map(String::as_str).collect();
    assert_eq!(
        paths,
        [
            "east/kustomization.yaml",
            "mounted/base/kustomization.yaml",
            "mounted/base/map.yaml"
        ]
    );
    base.change("main", &[("web/map.yaml", Some("kind: Secret\n"))])
        .unwrap();
    rig.ask(ADMIN_NAMESPACE, "base").await;
    let (_, files) = wait_files(&rig, &agent, &uid, |entry| entry.digest() != first.digest()).await;
    assert_eq!(files["mounted/base/map.yaml"], "kind: Secret\n");
}
