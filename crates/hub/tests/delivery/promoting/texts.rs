//! Texts that go with a commit.

use super::*;

impl World {
    /// What staging states.
    async fn state(&self, tag: &str) {
        let edited = |service: &mut Value| service["spec"]["configuration"] = json!({"imageTag": tag});
        self.rig
            .edit("ServiceDeployment", ADMIN_NAMESPACE, "web-staging", edited)
            .await;
    }

    async fn promote_texts(&self, names: &[&str]) {
        let edited = |pipeline: &mut Value| pipeline["spec"]["promotes"] = json!({"configuration": names});
        self.rig.edit("Pipeline", ADMIN_NAMESPACE, PIPELINE, edited).await;
    }

    fn has_tag(&self, name: &str, tag: &str) -> bool {
        self.texts
            .iter()
            .rfind(|(cluster, ..)| *cluster == name)
            .is_some_and(|last| last.2 == tag)
    }

    async fn until_production_has(&mut self, tag: &str) {
        let has = |world: &Self| PRODUCTION.iter().all(|name| world.has_tag(name, tag));
        self.until("production has it", |world, pipeline| {
            has(world) && condition(pipeline, "Ready") == "True/Settled"
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_and_its_texts_get_to_each_cluster_in_one_change() {
    let mut world = World::start(json!([]), "Halt").await;
    world
        .until("production has it", |world, _| {
            PRODUCTION.iter().all(|name| world.bundle(name).is_some())
        })
        .await;
    let first = world.bundle(STAGING).unwrap();
    world.until_in_production(first).await;

    // Nobody states it, or each cluster has another one: then nothing is promoted, and it says why.
    world.promote_texts(&["imageTag"]).await;
    let told = "stage staging: nothing of it states configuration.imageTag, which is to be promoted";
    world
        .until("it says so", |_, pipeline| message(pipeline, "Stalled") == told)
        .await;
    world.state("1").await;
    world.until_production_has("1").await;
    let stage = world.pipeline().await["status"]["stages"][1].clone();
    assert_eq!(stage["configuration"], json!({"imageTag": "1"}), "{stage:#}");

    // The text alone.
    world.state("2").await;
    world.until_production_has("2").await;

    // Both, on their way while the hub is killed.
    let staging = world.agents.remove(STAGING).unwrap();
    world.state("3").await;
    world.commit("three").await;
    world.agents.insert(STAGING, staging);
    world
        .until("the first has it", |world, _| {
            PRODUCTION.iter().any(|name| world.has_tag(name, "3"))
        })
        .await;
    let mut world = world.restart().await;
    world.until_production_has("3").await;
    let third = world.bundle(STAGING).unwrap();
    assert_ne!(third, first);
    for name in PRODUCTION {
        let of = world.texts.iter().filter(|(cluster, ..)| *cluster == name);
        let pairs: Vec<(Digest, &str)> = of.map(|(_, bundle, tag)| (*bundle, tag.as_str())).collect();
        assert_eq!(pairs, [(first, ""), (first, "1"), (first, "2"), (third, "3")], "{name}");
    }
}
