//! What a commit leads to, what a tenant may do, and what people say of prunes.

use std::collections::BTreeSet;

use farwater_api::{ADMIN_NAMESPACE, APPROVE_PRUNE, Digest, FREEZE_PRUNES, RETRY_HOOK, UNDO, deletion::undo_request};
use farwater_testkit::{
    git::{GitServer, Repository},
    lfs::pointer,
};
use serde_json::{Value, json};

use super::{CONTENT, SAME_SIZE, Subject, check};
use crate::{
    agent::Agent,
    bases::ask_base,
    shop::{start, wait_files},
};

const TEAM: &str = "team-a";
/// More than its pointer.
const LARGE: &[u8] = &[b'x'; 20_000];

struct World {
    subject: Subject,
    server: GitServer,
    infra: Repository,
    base: Repository,
    module: Repository,
}

impl AsRef<Subject> for World {
    fn as_ref(&self) -> &Subject {
        &self.subject
    }
}

fn grant(namespace: &str, account: &str) -> Value {
    json!({"spec": {
        "clusterSelector": {"matchLabels": {"env": "test"}}, "namespaces": [namespace], "verbs": ["deploy"],
        "serviceAccountName": account,
    }})
}

impl World {
    /// A tenant's folder of a repository.
    async fn new() -> Self {
        let server = GitServer::start().await.unwrap();
        let create = |name: &str| server.create(name).unwrap();
        let (infra, base, module, other) = (create("infra"), create("base"), create("module"), create("other"));
        infra
            .commit("main", &[("app/a.yaml", "kind: A"), ("copy/a.yaml", "kind: A")])
            .unwrap();
        other
            .commit("main", &[("copy/a.yaml", "kind: A"), ("README", "x")])
            .unwrap();
        base.commit(
            "main",
            &[("deploy/kustomization.yaml", "resources: []\n"), ("README", "x")],
        )
        .unwrap();
        module.commit("main", &[("m.yaml", "kind: M")]).unwrap();
        let rig = start().await;
        rig.create("Namespace", "", ADMIN_NAMESPACE, json!({})).await;
        rig.create("ClusterGrant", "", TEAM, grant(TEAM, "deployer")).await;
        for name in ["infra", "other"] {
            rig.repository(TEAM, name, &server.url(name)).await;
        }
        let uid = rig.service(TEAM, "web", "east", "app").await;
        let agent = Agent::join(&rig, "east").await;
        wait_files(&rig, &agent, &uid, |_| true).await;
        let sources = &[("GitRepository", "infra"), ("GitRepository", "other")];
        let subject = Subject {
            rig,
            agent,
            namespace: TEAM,
            uid,
            sources,
            changed: Default::default(),
        };
        Self {
            subject,
            server,
            infra,
            base,
            module,
        }
    }

    fn change(&self, branch: &str, path: &str, content: &str) {
        self.infra.change(branch, &[(path, Some(content))]).unwrap();
    }

    /// The folder's file, and the submodule's last commit beside it, on top of what is there.
    fn commit_module(&self) {
        let (infra, module) = (&self.infra, self.module.branch("main").unwrap());
        let blob = |text: &str| infra.write_object("blob", text.as_bytes()).unwrap();
        let (file, listed) = (
            blob("kind: A"),
            blob("[submodule \"m\"]\n\tpath = app/m\n\turl = ../module.git\n"),
        );
        let app = infra
            .write_tree(&[("100644", b"a.yaml", &file), ("160000", b"m", &module)])
            .unwrap();
        let copy = infra.write_tree(&[("100644", b"a.yaml", &file)]).unwrap();
        let root = [
            ("100644", &b".gitmodules"[..], &*listed),
            ("40000", b"app", &app),
            ("40000", b"copy", &copy),
        ];
        let root = infra.write_tree(&root).unwrap();
        let parent = infra.branch("main").unwrap();
        let commit = infra
            .git(&["commit-tree", "-p", &parent, "-m", "module", &root], b"")
            .unwrap();
        infra.set_ref("refs/heads/main", &commit).unwrap();
    }

    async fn source(&self, field: &str, value: Value) {
        self.subject
            .rig
            .edit("GitRepository", TEAM, "infra", |object| {
                object["spec"][field] = value.clone()
            })
            .await;
    }

    fn remote(&self) -> String {
        format!("{}//deploy?ref=main", self.server.url("base"))
    }

    /// Has the base's repository asked, and waits until it was.
    async fn ask_base(&self) {
        let asked = self.server.counts().ls_refs;
        ask_base(&self.subject.rig, TEAM, &self.remote());
        let is_asked = async || self.server.counts().ls_refs > asked;
        self.subject
            .rig
            .wait_until("the base's repository was asked", is_asked)
            .await;
    }

    async fn freeze(&self, why: Option<&str>) {
        let edit = |namespace: &mut Value| match why {
            Some(why) => namespace["metadata"]["annotations"][FREEZE_PRUNES] = why.into(),
            None => drop(
                namespace["metadata"]["annotations"]
                    .as_object_mut()
                    .unwrap()
                    .remove(FREEZE_PRUNES),
            ),
        };
        self.subject.rig.edit("Namespace", "", ADMIN_NAMESPACE, edit).await;
    }
}

/// The inputs that have changed.
pub async fn of_commits() -> BTreeSet<String> {
    let world = World::new().await;
    of_sources(&world).await;
    of_people(&world).await;
    let on = &world;
    // Another place, and then another history that has the same there.
    check(
        on,
        "the folder",
        Some(&["bundle", "bundleBytes", "path", "turn"]),
        async |w| {
            w.subject.edit(|s| s["spec"]["path"] = "copy".into()).await;
        },
    )
    .await;
    check(
        on,
        "another repository with the same files",
        Some(&["origin", "turn"]),
        async |w| {
            w.subject
                .edit(|s| s["spec"]["sourceRef"]["name"] = "other".into())
                .await;
        },
    )
    .await;
    world.subject.changed()
}

/// Which commit is meant, and what is fetched with it.
async fn of_sources(on: &World) {
    on.infra
        .set_ref("refs/heads/next", &on.infra.branch("main").unwrap())
        .unwrap();
    on.change("next", "app/a.yaml", "kind: B");
    check(on, "another branch", SAME_SIZE, async |w| {
        w.source("ref", json!({"branch": "next"})).await
    })
    .await;
    check(on, "a tag of the same commit", None, async |w| {
        w.infra
            .set_ref("refs/tags/v1", &w.infra.branch("next").unwrap())
            .unwrap();
        w.source("ref", json!({"tag": "v1"})).await;
    })
    .await;
    check(on, "a commit that the tag is not at", None, async |w| {
        w.change("next", "app/a.yaml", "kind: C")
    })
    .await;
    check(on, "the first branch again", SAME_SIZE, async |w| {
        w.source("ref", json!({"branch": "main"})).await
    })
    .await;

    check(on, "submodules of a commit that has none", None, async |w| {
        w.source("recurseSubmodules", true.into()).await;
    })
    .await;
    check(on, "a submodule", CONTENT, async |w| w.commit_module()).await;
    check(on, "a submodule's commit that nobody names", None, async |w| {
        w.module
            .change("main", &[("m.yaml", Some("kind: N"))])
            .map(drop)
            .unwrap();
    })
    .await;
    check(on, "another commit of the submodule", SAME_SIZE, async |w| {
        w.commit_module()
    })
    .await;

    check(on, "large files of a commit that has none", None, async |w| {
        w.source("lfs", true.into()).await
    })
    .await;
    check(on, "a large file", CONTENT, async |w| {
        let large = w.server.lfs(|lfs| lfs.put(LARGE));
        w.change("main", "app/large", &large);
    })
    .await;
    check(on, "large files left as pointers", CONTENT, async |w| {
        w.source("lfs", false.into()).await
    })
    .await;
    check(on, "another pointer", SAME_SIZE, async |w| {
        w.change("main", "app/large", &pointer(&LARGE[1..]))
    })
    .await;

    check(on, "a remote base", CONTENT, async |w| {
        w.change(
            "main",
            "app/kustomization.yaml",
            &format!("resources: ['{}']\n", w.remote()),
        );
    })
    .await;
    check(on, "another file of the base's repository", None, async |w| {
        w.base.change("main", &[("README", Some("y"))]).unwrap();
        w.ask_base().await;
    })
    .await;
    check(on, "a file of the base", SAME_SIZE, async |w| {
        w.base
            .change(
                "main",
                &[("deploy/kustomization.yaml", Some("resources: []\n# changed\n"))],
            )
            .unwrap();
        w.ask_base().await;
    })
    .await;
}

/// What a service is to be beside its files, and who may do what.
async fn of_people(on: &World) {
    check(on, "a test", Some(&["tests", "turn"]), async |w| {
        w.subject
            .edit(|s| s["spec"]["tests"] = json!([{"name": "smoke", "image": "smoke:1"}]))
            .await;
    })
    .await;
    check(
        on,
        "a rule of health of its own",
        Some(&["health", "turn"]),
        async |w| {
            w.subject
                .edit(|s| s["spec"]["health"] = json!([{"kind": "Boat", "current": "true"}]))
                .await;
        },
    )
    .await;
    check(on, "a rule of health for all", None, async |w| {
        let rule = json!({"spec": {"kind": "Boat", "current": "true"}});
        drop(w.subject.rig.create("HealthRule", "", "boats", rule).await);
    })
    .await;
    check(on, "what the grant allows", Some(&["ceiling"]), async |w| {
        w.subject
            .rig
            .edit("ClusterGrant", "", TEAM, |g| {
                g["spec"]["deniedKinds"] = json!(["Role.rbac.authorization.k8s.io"])
            })
            .await;
    })
    .await;
    check(on, "as whom it acts", Some(&["ceiling"]), async |w| {
        w.subject
            .rig
            .edit("ClusterGrant", "", TEAM, |g| {
                g["spec"]["serviceAccountName"] = "other".into()
            })
            .await;
    })
    .await;
    check(on, "another's grant", None, async |w| {
        drop(
            w.subject
                .rig
                .create("ClusterGrant", "", "team-b", grant("team-b", "deployer"))
                .await,
        );
    })
    .await;
    check(
        on,
        "how often the cluster asks, and a label that nobody selects by",
        None,
        async |w| {
            w.subject
                .rig
                .edit("Cluster", ADMIN_NAMESPACE, "east", |cluster| {
                    cluster["spec"]["pollInterval"] = "45s".into();
                    cluster["metadata"]["labels"]["a"] = "b".into();
                })
                .await;
        },
    )
    .await;
    check(on, "an approval", Some(&["approvedPrune"]), async |w| {
        let plan = Digest::of("plan").to_string();
        w.subject
            .edit(|s| s["metadata"]["annotations"][APPROVE_PRUNE] = plan.clone().into())
            .await;
    })
    .await;
    check(
        on,
        "a wish to have back what a deletion took",
        Some(&["undo"]),
        async |w| {
            let request = undo_request(&Digest::of("plan"), "1");
            w.subject
                .edit(|s| s["metadata"]["annotations"][UNDO] = request.clone().into())
                .await;
        },
    )
    .await;
    check(on, "a hook that is to run again", Some(&["retryHook"]), async |w| {
        let run = Digest::of("run").to_string();
        w.subject
            .edit(|s| s["metadata"]["annotations"][RETRY_HOOK] = run.clone().into())
            .await;
    })
    .await;
    let held: Option<&[&str]> = Some(&["approvedPrune", "holdPrune", "prune"]);
    check(on, "no deletion anywhere", held, async |w| {
        w.freeze(Some("somebody has to look")).await
    })
    .await;
    check(on, "deletions again", held, async |w| w.freeze(None).await).await;
}
