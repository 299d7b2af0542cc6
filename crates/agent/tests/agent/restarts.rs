//! What an agent does after it was killed, or lost its folder or its hub, and when something newer comes while it
//! applies.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::PermissionsExt as _,
    time::Duration,
};

use crate::support::{
    Service, api, config_map, config_maps, faulty, gone,
    ground::Ground,
    object, outcome,
    pods::{end_job, job, jobs, uid_of},
    value,
};
use farwater_api::{
    hooks::HookState,
    objects::{Outcome, ServiceReport},
    protocol::{Statement, tag},
};
use farwater_testkit::{
    api_faults::{ApiFaults, Asked, Faults},
    wait_for,
};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};

impl Ground {
    /// The resourceVersion of everything that an agent may write, without the objects of earlier tests that are still
    /// being deleted.
    async fn versions(&self) -> BTreeMap<String, String> {
        let client = self.plane.client().await.unwrap();
        let namespaces = api(&client, "", "v1", "Namespace", "")
            .list(&ListParams::default())
            .await
            .unwrap();
        // The hub's tests share the plane, and make namespaces with this prefix meanwhile.
        let is_judges = |name: &str| name.starts_with("judge-");
        let going = namespaces.into_iter().filter(|namespace| {
            namespace.metadata.deletion_timestamp.is_some() || namespace.metadata.name.as_deref().is_some_and(is_judges)
        });
        let going: BTreeSet<Option<String>> = going.map(|namespace| namespace.metadata.name).collect();
        let mut versions = BTreeMap::new();
        for (group, kind) in [
            ("", "ConfigMap"),
            ("", "Secret"),
            ("", "Namespace"),
            ("", "ServiceAccount"),
            ("rbac.authorization.k8s.io", "ClusterRoleBinding"),
        ] {
            for object in api(&client, group, "v1", kind, "")
                .list(&ListParams::default())
                .await
                .unwrap()
            {
                let metadata = object.metadata;
                let place = if kind == "Namespace" {
                    &metadata.name
                } else {
                    &metadata.namespace
                };
                if place.is_some() && going.contains(place) {
                    continue;
                }
                let name = format!(
                    "{kind} {}/{}",
                    metadata.namespace.unwrap_or_default(),
                    metadata.name.unwrap()
                );
                versions.insert(name, metadata.resource_version.unwrap());
            }
        }
        versions
    }
}

/// All requests of an agent to the API server, by verb and resource, except for its Lease, which it renews every 20 s.
fn asked(way: &ApiFaults) -> Asked {
    let mut asked = way.asked();
    asked.retain(|(_, resource), _| resource != "leases");
    asked
}

fn maps(names: impl Iterator<Item = usize>, value: &str) -> Vec<(String, String)> {
    names
        .map(|n| (format!("{n}.yaml"), config_map(&format!("map-{n}"), value)))
        .collect()
}

fn files(maps: &[(String, String)]) -> Vec<(&str, &str)> {
    maps.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect()
}

#[tokio::test]
async fn an_agent_that_is_in_sync_writes_nothing_when_restarted() {
    let mut ground = Ground::new().await;
    let place = ground.hub.place("quiet");
    let mut all = maps(0..30, "1");
    // The API server overrules this label. That is not reported again until the object is applied again.
    let label = "kubernetes.io/metadata.name";
    let space = format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: {place}, labels: {{{label}: other}}}}\n");
    all.push(("space.yaml".to_owned(), space));
    let service = Service::new(&ground.hub, "quiet", &files(&all));
    ground.applied(&service).await;
    // The plane's controllers write into a new namespace for a moment.
    let before = wait_for("the cluster to be at rest", Duration::from_secs(30), || async {
        let first = ground.versions().await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        Ok((ground.versions().await == first).then_some(first))
    })
    .await
    .unwrap();
    ground.kill();
    ground.hub.forget_reports();
    let downloads = ground.hub.downloads();
    let polls = ground.hub.polls();
    let way = ApiFaults::start(ground.plane, ground.dir.path(), 1).await.unwrap();
    ground.start_by(way.kubeconfig(), false);
    wait_for(
        "a report of the new agent and some polls",
        crate::support::PATIENCE,
        || async {
            let told = ground
                .hub
                .report(service.uid())
                .is_some_and(|r| r.outcome == Outcome::Applied);
            Ok((told && ground.hub.polls() > polls + 5 && ground.hub.unchanged() > 0).then_some(()))
        },
    )
    .await
    .unwrap();
    assert_eq!(ground.versions().await, before);
    assert_eq!(ground.hub.downloads(), downloads);
    let told = ground.hub.report(service.uid()).unwrap();
    let message = &object(&told, "Namespace", &place).message;
    assert!(
        message.contains(&format!("keeps another value of .metadata.labels.{label}")),
        "{message}"
    );

    // An agent with nothing to do sends no requests to the API server.
    let before = wait_for("the agent to be at rest", crate::support::PATIENCE, || async {
        let first = asked(&way);
        tokio::time::sleep(Duration::from_secs(1)).await;
        Ok((asked(&way) == first).then_some(first))
    })
    .await
    .unwrap();
    let polls = ground.hub.polls();
    wait_for("ten polls", crate::support::PATIENCE, || async {
        Ok((ground.hub.polls() >= polls + 10).then_some(()))
    })
    .await
    .unwrap();
    assert_eq!(asked(&way), before);
}

#[tokio::test]
async fn a_wrong_clock_is_corrected_and_a_used_token_refused() {
    let mut ground = Ground::new().await;
    let service = Service::new(&ground.hub, "clocked", &files(&maps(0..1, "1")));
    ground.applied(&service).await;
    ground.kill();
    ground.hub.set_clock(3600);
    ground.start(false);
    let entry = ground
        .hub
        .set(service.with(&ground.hub, &files(&maps(0..1, "2"))).entry());
    outcome(&ground.hub, &entry, Outcome::Applied).await;
    ground.kill();
    // Without any identity the agent has to join again, and its token is used up.
    fs::remove_dir_all(ground.state_dir()).unwrap();
    let secrets = api(
        &ground.plane.client().await.unwrap(),
        "",
        "v1",
        "Secret",
        "farwater-system",
    );
    secrets
        .delete("farwater-agent-identity", &DeleteParams::default())
        .await
        .unwrap();
    for (token, said) in [(true, "TokenUsed"), (false, "has not joined")] {
        ground.start(token);
        let agent = ground.agent.as_mut().unwrap();
        assert_eq!(agent.wait(crate::support::PATIENCE).expect("it ends").code(), Some(2));
        assert!(agent.output().contains(said), "{}", agent.tail());
    }
}

#[tokio::test]
async fn what_left_the_source_while_the_agent_was_down_is_pruned_without_its_folder() {
    let mut ground = Ground::new().await;
    let place = ground.hub.place("down");
    let before = maps(0..4, "1");
    let service = Service::new(&ground.hub, "down", &files(&before));
    ground.applied(&service).await;
    ground.kill();
    fs::remove_dir_all(ground.state_dir()).unwrap();
    let after = maps(0..3, "1");
    let entry = ground.hub.set(service.with(&ground.hub, &files(&after)).entry());
    let way = ApiFaults::start(ground.plane, ground.dir.path(), 1).await.unwrap();
    ground.start_by(way.kubeconfig(), false);
    let report = outcome(&ground.hub, &entry, Outcome::Applied).await;
    assert_eq!(report.objects.len(), 3);
    gone(&config_maps(&ground.plane.client().await.unwrap(), &place), "map-3").await;
    // It lists only the kinds that the service had: ConfigMaps, and the agent's own Secrets.
    let mut listed = way.asked();
    listed.retain(|(verb, _), _| verb == "LIST");
    let kinds: Vec<_> = listed.keys().map(|(_, resource)| resource.as_str()).collect();
    assert_eq!(kinds, ["configmaps", "secrets"]);
}

#[tokio::test]
async fn what_it_keeps_on_the_node_is_for_its_owner_only() {
    let mut ground = Ground::new().await;
    let service = Service::new(&ground.hub, "private", &files(&maps(0..1, "1")));
    ground.applied(&service).await;
    let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let folders = [ground.state_dir(), ground.state_dir().join("bundles")];
    let check = || {
        for folder in &folders {
            assert_eq!(mode(folder), 0o700, "{}", folder.display());
            let files = fs::read_dir(folder)
                .unwrap()
                .map(|entry| entry.unwrap().path())
                .filter(|path| path.is_file());
            let files: Vec<_> = files.collect();
            assert!(!files.is_empty(), "{}", folder.display());
            for file in files {
                assert_eq!(mode(&file), 0o600, "{}", file.display());
            }
        }
    };
    check();
    // Folders that were made by hand become private too.
    ground.kill();
    for folder in &folders {
        fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
    }
    ground.start(false);
    let entry = ground
        .hub
        .set(service.with(&ground.hub, &files(&maps(0..1, "2"))).entry());
    outcome(&ground.hub, &entry, Outcome::Applied).await;
    check();
}

#[tokio::test]
async fn a_full_disk_stops_nothing_and_old_states_stay_refused() {
    let mut ground = Ground::new().await;
    let place = ground.hub.place("full");
    let service = Service::new(&ground.hub, "full", &files(&maps(0..1, "1")));
    ground.applied(&service).await;
    let old = ground.hub.desired();
    let live = config_maps(&ground.plane.client().await.unwrap(), &place);

    // The state file can't be written, because a folder is in the place of its temporary file.
    let obstacle = ground.state_dir().join("state.tmp");
    fs::create_dir(&obstacle).unwrap();
    let entry = ground
        .hub
        .set(service.with(&ground.hub, &files(&maps(0..1, "2"))).entry());
    outcome(&ground.hub, &entry, Outcome::Applied).await;
    ground.kill();
    ground.hub.forge(Some(old));
    ground.start(false);
    polled_twice(&ground).await;
    value(&live, "map-0", "2").await;

    // The cluster's copy can't be written either. A state that can't be stored is not acted upon.
    ground.hub.forge(None);
    let secrets = api(
        &ground.plane.client().await.unwrap(),
        "",
        "v1",
        "Secret",
        "farwater-system",
    );
    let immutable = Patch::Merge(serde_json::json!({"immutable": true}));
    secrets
        .patch("farwater-agent-state", &PatchParams::default(), &immutable)
        .await
        .unwrap();
    let entry = ground
        .hub
        .set(service.with(&ground.hub, &files(&maps(0..1, "3"))).entry());
    polled_twice(&ground).await;
    assert_eq!(live.get("map-0").await.unwrap().data["data"]["value"], "2");
    fs::remove_dir(&obstacle).unwrap();
    outcome(&ground.hub, &entry, Outcome::Applied).await;
    value(&live, "map-0", "3").await;
}

async fn polled_twice(ground: &Ground) {
    let polls = ground.hub.polls();
    wait_for("two polls", crate::support::PATIENCE, || async {
        Ok((ground.hub.polls() >= polls + 2).then_some(()))
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn an_agent_that_is_killed_while_it_applies_converges() {
    let mut ground = Ground::new().await;
    let place = ground.hub.place("killed");
    let client = ground.plane.client().await.unwrap();
    let first = maps(0..40, "1");
    let mut service = Service::new(&ground.hub, "killed", &files(&first));
    ground.applied(&service).await;
    for round in 2..6 {
        // Some objects change, some are new, and one of the last round is removed.
        let next = maps((0..40).chain(round * 10 + 40..round * 10 + 45), &round.to_string());
        service = service.with(&ground.hub, &files(&next));
        let entry = ground.hub.set(service.entry());
        let all = config_maps(&client, &place);
        wait_for("the apply to have begun", Duration::from_secs(60), || async {
            let some = all.list(&ListParams::default()).await?;
            Ok(some
                .iter()
                .any(|m| m.data["data"]["value"].as_str() == Some(&round.to_string()))
                .then_some(()))
        })
        .await
        .unwrap();
        ground.kill();
        ground.start(false);
        let report = outcome(&ground.hub, &entry, Outcome::Applied).await;
        assert_eq!(report.objects.len(), 45, "{report:#?}");
        let live = all.list(&ListParams::default()).await.unwrap();
        let ours = live.iter().filter(|m| {
            m.metadata
                .labels
                .as_ref()
                .is_some_and(|l| l.contains_key("farwater.dev/service"))
        });
        assert_eq!(
            ours.filter(|m| m.data["data"]["value"].as_str() == Some(&round.to_string()))
                .count(),
            45
        );
    }
}

#[tokio::test]
async fn a_newer_version_ends_an_apply_that_is_under_way() {
    const ALL: usize = 2000;
    let ground = faulty::Ground::new(0.1).await;
    let hub = &ground.hub;
    let many: String = (0..ALL)
        .map(|n| format!("---\n{}", config_map(&format!("map-{n}"), "1")))
        .collect();
    let mut service = Service::new(hub, "overtaken", &[("a.yaml", &many)]);
    // The objects that the first version made are counted at the end.
    service.deployment.prune = false;
    let first = hub.set(service.entry());
    let live = config_maps(&ground.plane.client().await.unwrap(), &hub.place("overtaken"));
    wait_for("the apply to have begun", crate::support::PATIENCE, || async {
        let some = live.list(&ListParams::default().limit(2)).await?;
        Ok(some
            .iter()
            .any(|map| map.metadata.name.as_deref() != Some("kube-root-ca.crt"))
            .then_some(()))
    })
    .await
    .unwrap();
    // The newer version comes while most of the work is still to do.
    ground.server.set(Faults {
        latency: Duration::from_millis(500),
        ..Faults::default()
    });
    let second = hub.set(service.with(hub, &[("a.yaml", &config_map("map-0", "2"))]).entry());
    ground.superseded(&first).await;
    ground.server.set(Faults::default());
    outcome(hub, &second, Outcome::Applied).await;
    value(&live, "map-0", "2").await;
    ground.superseded(&first).await;
    let written = live.list(&ListParams::default()).await.unwrap();
    let written = written.iter().filter(|map| map.data["data"]["value"] == "1").count();
    assert!((1..ALL / 2).contains(&written), "{written} of {ALL} were written");
}

#[tokio::test]
async fn drift_is_repaired_after_a_restart_while_the_hub_is_away() {
    let mut ground = Ground::new().await;
    let place = ground.hub.place("alone");
    let service = Service::new(&ground.hub, "alone", &files(&maps(0..2, "1")));
    ground.applied(&service).await;
    ground.kill();
    fs::remove_dir_all(ground.state_dir()).unwrap();
    ground.hub.go_away(true);
    let live = config_maps(&ground.plane.client().await.unwrap(), &place);
    live.delete("map-0", &DeleteParams::default()).await.unwrap();
    ground.start(false);
    value(&live, "map-0", "1").await;
    live.delete("map-1", &DeleteParams::default()).await.unwrap();
    value(&live, "map-1", "1").await;
}

#[tokio::test]
async fn a_hub_that_was_away_for_long_is_found_again_within_a_poll() {
    let ground = Ground::new().await;
    // From then on the agent knows its poll interval.
    polled_twice(&ground).await;
    ground.hub.go_away(true);
    // With pauses that only double, the agent would wait for minutes by then.
    wait_for("many polls in vain", crate::support::PATIENCE, || async {
        Ok((ground.hub.turned_away() >= 10).then_some(()))
    })
    .await
    .unwrap();
    ground.hub.go_away(false);
    polled_twice(&ground).await;
}

#[tokio::test]
async fn statements_that_are_forged_old_or_for_others_are_refused() {
    let ground = Ground::new().await;
    let hub = &ground.hub;
    let place = hub.place("guarded");
    let service = Service::new(hub, "guarded", &files(&maps(0..2, "1")));
    ground.applied(&service).await;
    let live = config_maps(&ground.plane.client().await.unwrap(), &place);
    let good = hub.desired();
    let evil = vec![service.with(hub, &files(&maps(0..2, "evil"))).entry().into()];
    let signed = Statement::clone(&good.statement);
    let next = good.statement.generation + 1;
    let mut cases = Vec::new();
    // Entries that were not signed.
    cases.push(hub.sign(
        Statement {
            generation: next,
            ..signed.clone()
        },
        evil.clone(),
    ));
    // A changed statement with the old signature.
    let mut state = good.clone();
    state.entries.clone_from(&evil);
    state.statement = Statement {
        tag: tag(&evil),
        generation: next,
        ..signed.clone()
    }
    .into();
    cases.push(state);
    // A state for another cluster, of another installation, or an older one, with valid signatures.
    for change in 0..3 {
        let mut statement = Statement {
            tag: tag(&evil),
            generation: next,
            ..signed.clone()
        };
        match change {
            0 => statement.cluster_uid = "cluster-uid-2".into(),
            1 => statement.installation = "installation-2".into(),
            _ => statement.generation = good.statement.generation - 1,
        }
        cases.push(hub.sign(statement, evil.clone()));
    }
    for state in cases {
        hub.forge(Some(state));
        polled_twice(&ground).await;
        assert_eq!(live.get("map-0").await.unwrap().data["data"]["value"], "1");
    }
    hub.forge(None);
    let entry = hub.set(service.with(hub, &files(&maps(0..2, "2"))).entry());
    outcome(hub, &entry, Outcome::Applied).await;
    value(&live, "map-0", "2").await;
}

#[tokio::test]
async fn a_restart_runs_no_hook_again() {
    let mut ground = Ground::new().await;
    let place = ground.hub.place("hooked");
    let client = ground.plane.client().await.unwrap();
    let (pre, map) = (
        job("pre", "farwater.dev/hook: PreSync", "1"),
        config_map("settings", "1"),
    );
    let service = Service::new(&ground.hub, "hooked", &[("a.yaml", &pre), ("b.yaml", &map)]);
    let entry = ground.hub.set(service.entry());
    let (jobs, maps) = (jobs(&client, &place), config_maps(&client, &place));
    let uid = uid_of(&jobs, "pre").await;
    // Killed while the hook runs, so that no agent sees how it ends.
    ground.kill();
    ground.start(false);
    let is_running = |report: &ServiceReport| report.hooks.iter().any(|hook| hook.state == HookState::Running);
    crate::support::report(&ground.hub, &entry, is_running).await;
    assert_eq!(uid_of(&jobs, "pre").await, uid);
    ground.kill();
    end_job(&client, &place, "pre", 0).await;
    ground.start(false);
    let applied = outcome(&ground.hub, &entry, Outcome::Applied).await;
    assert_eq!(applied.hooks[0].state, HookState::Succeeded);
    assert_eq!(uid_of(&jobs, "pre").await, uid);
    // Killed when the hook's object is gone and another object needs a repair.
    ground.kill();
    jobs.delete("pre", &DeleteParams::background()).await.unwrap();
    gone(&jobs, "pre").await;
    maps.delete("settings", &DeleteParams::default()).await.unwrap();
    ground.start(false);
    value(&maps, "settings", "1").await;
    let applied = outcome(&ground.hub, &entry, Outcome::Applied).await;
    assert_eq!(applied.hooks[0].state, HookState::Succeeded);
    assert!(jobs.get_opt("pre").await.unwrap().is_none());
}
