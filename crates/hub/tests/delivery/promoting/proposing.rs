//! What is promoted by an edit in Git: the hub pushes it to a branch, and people merge.

use base64::{Engine as _, engine::general_purpose::STANDARD};

use super::*;

const BRANCH: &str = "farwater/promote/web/production";

fn manifest(commit: &str) -> String {
    format!("# who runs this\nkind: GitRepository\nspec:\n  ref: {{commit: {commit}}} # promoted\n")
}

impl World {
    /// Production follows a commit that is stated in another repository, and the pipeline edits it there.
    async fn propose(&self) -> Repository {
        let first = self.git.branch("main").unwrap();
        let env = self._server.create("env").unwrap();
        env.git(&["config", "http.receivepack", "true"], b"").unwrap();
        env.commit(
            "main",
            &[("repos/prod.yaml", manifest(&first).as_str()), ("README", "x")],
        )
        .unwrap();
        let url = self._server.url("env");
        self.rig.repository(ADMIN_NAMESPACE, "env", &url).await;
        let login = json!({"username": STANDARD.encode("bot"), "password": STANDARD.encode("hunter2")});
        self.rig
            .create("Secret", ADMIN_NAMESPACE, "pusher", json!({"data": login}))
            .await;
        self.follow(&first).await;
        let pull = json!({
            "sourceRef": {"name": "env"}, "url": url, "secretRef": {"name": "pusher"},
            "path": "repos/prod.yaml", "field": "spec.ref.commit",
        });
        self.rig
            .edit("Pipeline", ADMIN_NAMESPACE, PIPELINE, |pipeline| {
                pipeline["spec"]["stages"][1]["pullRequest"] = pull.clone();
            })
            .await;
        env
    }

    /// What is merged is applied, by whoever applies it.
    async fn follow(&self, commit: &str) {
        let edit = |source: &mut Value| source["spec"]["ref"] = json!({"commit": commit});
        self.rig
            .edit("GitRepository", ADMIN_NAMESPACE, "infra-prod", edit)
            .await;
    }

    /// What is shown may be what would have been deployed before the last edit.
    async fn promote(&mut self, commit: &str) {
        let begun = Instant::now();
        loop {
            let waiting = self.until_waiting_for(commit).await;
            match self.say("ada", &[], &digest(&waiting)).await {
                Ok(_) => return,
                Err(refused) => assert!(begun.elapsed() < PATIENCE, "{refused}"),
            }
        }
    }

    async fn until_proposed(&mut self, commit: &str) -> String {
        let revision = format!("sha1:{commit}");
        let is_it = |_: &Self, pipeline: &Value| {
            let pull = &pipeline["status"]["stages"][1]["pullRequest"];
            pull["revision"] == revision.as_str() && pull["commit"].is_string() && pull["problem"].is_null()
        };
        let pipeline = self.until("it is pushed", is_it).await;
        pipeline["status"]["stages"][1]["pullRequest"]["commit"]
            .as_str()
            .unwrap()
            .to_owned()
    }
}

fn file(env: &Repository, at: &str) -> String {
    env.git(&["show", &format!("{at}:repos/prod.yaml")], b"").unwrap() + "\n"
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_promoted_is_pushed_once_and_gets_there_when_people_have_merged_it() {
    let mut world = World::start(json!([{"type": "Approval"}]), "Halt").await;
    let first = world.git.branch("main").unwrap();
    let env = world.propose().await;
    // It is there already, and nothing is pushed.
    world.promote(&first).await;
    world
        .until("production has it", |world, _| {
            PRODUCTION.iter().all(|name| world.bundle(name).is_some())
        })
        .await;
    let bundle = world.bundle(STAGING).unwrap();
    world.until_in_production(bundle).await;
    assert_eq!(env.branch(BRANCH), None);

    let second = world.commit("second").await;
    world.promote(&second).await;
    let pushed = world.until_proposed(&second).await;
    let waits = world
        .until("it waits", |_, pipeline| {
            condition(pipeline, "Ready") == "True/Proposed"
        })
        .await;
    assert!(
        message(&waits, "Ready").starts_with(&format!("branch {BRANCH} of ")),
        "{waits:#}"
    );
    assert_eq!(env.branch(BRANCH).as_deref(), Some(pushed.as_str()));
    assert_eq!(
        (file(&env, "main"), file(&env, BRANCH)),
        (manifest(&first), manifest(&second))
    );
    let mut world = world.restart().await;
    world.go_on().await;
    assert_eq!(
        env.branch(BRANCH).as_deref(),
        Some(pushed.as_str()),
        "it is pushed once"
    );
    assert_eq!(world.of_production(), [bundle]);
    let login = format!("Basic {}", STANDARD.encode("bot:hunter2"));
    assert!(world._server.authorizations().contains(&login));

    // People merge it.
    env.set_ref("refs/heads/main", &pushed).unwrap();
    world.rig.ask(ADMIN_NAMESPACE, "env").await;
    let is_merged = |_: &World, pipeline: &Value| pipeline["status"]["stages"][1]["pullRequest"].is_null();
    world.until("it is known", is_merged).await;
    world.follow(&second).await;
    let after = world.bundle(STAGING).unwrap();
    world.until_in_production(after).await;

    // Somebody works on the branch: that is told and stays, until they take it away.
    let theirs = env.change(BRANCH, &[("README", Some("theirs"))]).unwrap();
    let third = world.commit("third").await;
    world.promote(&third).await;
    let told = world
        .until("it is told", |_, pipeline| {
            condition(pipeline, "Stalled") == "True/PushFailed"
        })
        .await;
    assert!(
        message(&told, "Ready").contains("which the hub has not put there, and stays as it is"),
        "{told:#}"
    );
    assert_eq!(env.branch(BRANCH).as_deref(), Some(theirs.as_str()));
    env.delete_branch(BRANCH).unwrap();
    let name = Name::new(ADMIN_NAMESPACE, PIPELINE);
    world.rig.replica.memory.pipelines.proposals.add(name);
    let pushed = world.until_proposed(&third).await;
    assert_eq!(env.branch(BRANCH).as_deref(), Some(pushed.as_str()));
    assert_eq!(file(&env, BRANCH), manifest(&third));
    assert_eq!(world.of_production(), [bundle, after]);
    let events = world.rig.events().await;
    assert_eq!(
        events.iter().filter(|event| event["reason"] == "Proposed").count(),
        2,
        "{events:#?}"
    );
}
