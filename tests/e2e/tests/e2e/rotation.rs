//! New keys of the hub and of agents, with real programs that are away, killed and restored meanwhile.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use farwater_api::{Cluster, RENEW_KEYS};
use farwater_e2e::{Fleet, config_map};
use farwater_testkit::{
    Agent, Hub, Plane,
    authority::{Authority, Pair},
    git::Repository,
    kube::PlaneOptions,
    shared, wait_for,
};
use k8s_openapi::api::{
    authentication::v1::TokenRequest,
    core::v1::{ConfigMap, Secret, ServiceAccount},
    rbac::v1::ClusterRoleBinding,
};
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

/// Runs `farwater admin keys …` on the hub's data directory. Returns its standard error.
fn keys(fleet: &Fleet, code: i32, arguments: &[&str]) -> Result<String> {
    let data = fleet.hub.dir().display().to_string();
    let ran = fleet
        .cli()
        .expect(code, &[&["admin", "keys"], arguments, &["--data-dir", &data]].concat())?;
    Ok(ran.stderr)
}

fn list(fleet: &Fleet) -> Result<Value> {
    let data = fleet.hub.dir().display().to_string();
    let ran = fleet
        .cli()
        .expect(0, &["admin", "keys", "list", "-o", "json", "--data-dir", &data])?;
    Ok(serde_json::from_str(&ran.stdout)?)
}

fn cluster_row(fleet: &Fleet, cluster: &str) -> Result<Value> {
    let listed = list(fleet)?;
    let row = listed["clusters"]
        .as_array()
        .and_then(|rows| rows.iter().find(|row| row["name"] == cluster));
    row.cloned().with_context(|| format!("{cluster} is not in {listed:#}"))
}

async fn until_state(fleet: &Fleet, cluster: &str, state: &str) -> Result<()> {
    fleet
        .until(&format!("{cluster} to be {state:?}"), || async {
            Ok((cluster_row(fleet, cluster)?["state"] == state).then_some(()))
        })
        .await
}

/// Restarts the hub. Its kubeconfig contains its authority.
async fn restart(fleet: &mut Fleet) -> Result<()> {
    fleet.hub.restart().await?;
    fleet.client = fleet.hub.client().await?;
    Ok(())
}

/// Requests a new authority and a new signing key, and kills the hub during the change.
async fn rotate(fleet: &mut Fleet) -> Result<()> {
    keys(fleet, 0, &["rotate", "ca"])?;
    keys(fleet, 0, &["rotate", "signing-key"])?;
    keys(fleet, 0, &["rotate", "signing-key"])?;
    fleet.hub.stop()?;
    for millis in [2, 5, 10, 20, 40, 80, 160] {
        let _ = tokio::time::timeout(Duration::from_millis(millis), fleet.hub.restart()).await;
        fleet.hub.kill9();
    }
    restart(fleet).await
}

async fn commit(fleet: &Fleet, repository: &Repository, value: &str, services: &[&str]) -> Result<()> {
    let commit = repository.commit("main", &[("app/a.yaml", &config_map("a", value))])?;
    fleet.reconcile("infra").await?;
    for service in services {
        fleet.until_applied(service, &commit).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agents_follow_new_keys_of_the_hub_also_one_that_was_away_for_two_changes() -> Result<()> {
    let own = Plane::start_with(PlaneOptions::without_nodes()).await?;
    let mut fleet = Fleet::start().await?;
    let planes = [("east", shared(1).await?), ("west", shared(2).await?), ("south", &own)];
    let repository = fleet
        .repository("infra", &[("app/a.yaml", &config_map("a", "one"))])
        .await?;
    for (cluster, plane) in planes {
        fleet.join(cluster, plane).await?;
        fleet.deploy(&format!("web-{cluster}"), cluster, "infra", "app").await?;
    }
    commit(&fleet, &repository, "two", &["web-east", "web-west", "web-south"]).await?;
    // A state signed by an earlier test's hub may still be in the cluster.
    let mut begun = BTreeMap::new();
    for (cluster, _) in planes {
        begun.insert(cluster, fleet.agent(cluster)?.process().output().len());
    }
    // A user's current kubeconfig.
    let kubeconfig = fleet.hub.dir().with_file_name("old.kubeconfig");
    fs::copy(fleet.hub.kubeconfig(), &kubeconfig)?;

    fleet.agent("south")?.kill9();
    for round in 1..=2 {
        rotate(&mut fleet).await?;
        for cluster in ["east", "west"] {
            until_state(&fleet, cluster, "current").await?;
        }
        ensure!(
            list(&fleet)?["succession"] == round,
            "killed or not, it is one change: {:#}",
            list(&fleet)?
        );
        commit(
            &fleet,
            &repository,
            &format!("round-{round}"),
            &["web-east", "web-west"],
        )
        .await?;
        // A restart of the agent at any moment changes nothing.
        fleet.agent("east")?.kill9();
        fleet.agent("east")?.restart()?;
    }
    farwater_testkit::kube::client(&kubeconfig, None)
        .await?
        .request_text(http::Request::get("/readyz").body(Vec::new())?)
        .await
        .context("a kubeconfig with the first authority")?;

    ensure!(cluster_row(&fleet, "south")?["state"] == "behind");
    let refused = keys(&fleet, 5, &["revoke"])?;
    ensure!(
        refused.contains("farwater-admin/south") && !refused.contains("farwater-admin/east"),
        "{refused}"
    );
    fleet.agent("south")?.restart()?;
    until_state(&fleet, "south", "current").await?;
    commit(&fleet, &repository, "all", &["web-east", "web-west", "web-south"]).await?;

    // The old keys no longer lead to the new ones, and no program needs that.
    keys(&fleet, 0, &["revoke"])?;
    restart(&mut fleet).await?;
    for cluster in ["east", "west", "south"] {
        let agent = fleet.agent(cluster)?;
        agent.kill9();
        agent.restart()?;
    }
    commit(&fleet, &repository, "revoked", &["web-east", "web-west", "web-south"]).await?;
    for cluster in ["east", "west", "south"] {
        let log = fleet.agent(cluster)?.process().output();
        let log = &log[begun[cluster]..];
        ensure!(
            !log.contains("not trusted")
                && !log.contains("verify desired state")
                && !log.contains("verify what the hub says"),
            "{log}"
        );
    }
    let old = farwater_testkit::kube::client(&kubeconfig, None).await?;
    let refused = old.request_text(http::Request::get("/readyz").body(Vec::new())?).await;
    ensure!(refused.is_err(), "the first authority was taken out of use");
    Ok(())
}

async fn ask_for_keys(fleet: &Fleet, cluster: &str, value: &str) -> Result<()> {
    let patch = Patch::Merge(json!({"metadata": {"annotations": {RENEW_KEYS: value}}}));
    fleet
        .api::<Cluster>()
        .patch(cluster, &PatchParams::default(), &patch)
        .await?;
    Ok(())
}

/// The agent's own stored data.
fn identity(fleet: &Fleet, cluster: &str) -> Result<Value> {
    let path = fleet.state_dir(cluster).join("identity.json");
    Ok(serde_json::from_slice(&fs::read(path)?)?)
}

async fn secret_is(plane: &Plane, namespace: &str, value: &str) -> Result<Option<()>> {
    let api: Api<Secret> = Api::namespaced(plane.client().await?, namespace);
    let data = api
        .get_opt("database")
        .await?
        .and_then(|secret| secret.data)
        .unwrap_or_default();
    Ok(data
        .get("password")
        .is_some_and(|password| password.0 == value.as_bytes())
        .then_some(()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_goes_over_to_new_keys_of_its_own_wherever_it_is_killed() -> Result<()> {
    let plane = shared(1).await?;
    let mut fleet = Fleet::start().await?;
    fleet.join("east", plane).await?;
    let secret = json!({"metadata": {"name": "database"}, "stringData": {"password": "sealed"}});
    fleet
        .api::<Secret>()
        .create(&PostParams::default(), &serde_json::from_value(secret)?)
        .await?;
    let repository = fleet
        .repository("infra", &[("app/a.yaml", &config_map("a", "one"))])
        .await?;
    fleet
        .deploy_with(
            "web",
            "east",
            "infra",
            "app",
            json!({"secrets": [{"name": "database"}]}),
        )
        .await?;
    commit(&fleet, &repository, "two", &["web"]).await?;

    let mut known = identity(&fleet, "east")?;
    for (round, millis) in [0, 50, 150, 400, 900, 2000, 3100].into_iter().enumerate() {
        ask_for_keys(&fleet, "east", &format!("round {round}")).await?;
        tokio::time::sleep(Duration::from_millis(millis)).await;
        let agent = fleet.agent("east")?;
        agent.kill9();
        if round == 3 {
            fs::remove_dir_all(fleet.state_dir("east"))?;
        }
        fleet.agent("east")?.restart()?;
        fleet
            .until("the agent to go by new keys", || async {
                let Ok(now) = identity(&fleet, "east") else {
                    return Ok(None);
                };
                Ok((now["keys"]["signing"] != known["keys"]["signing"] && now["nextKeys"].is_null()).then_some(()))
            })
            .await
            .with_context(|| format!("killed after {millis} ms"))?;
        known = identity(&fleet, "east")?;
    }
    commit(&fleet, &repository, "three", &["web"]).await?;

    // Data that was sealed to the previous keys can be opened while the hub is away.
    let namespace = fleet.namespace("web");
    fleet.hub.kill9();
    let secrets: Api<Secret> = Api::namespaced(plane.client().await?, &namespace);
    secrets.delete("database", &DeleteParams::default()).await?;
    fleet
        .until("the Secret to be put back with the hub away", || {
            secret_is(plane, &namespace, "sealed")
        })
        .await?;
    restart(&mut fleet).await?;

    // The old identity is useless and harmless.
    let first = fleet.agent("east")?.process().output();
    ensure!(first.contains("the agent goes by new keys"), "{first}");
    commit(&fleet, &repository, "four", &["web"]).await
}

/// The current keys folder.
fn copy_keys(fleet: &Fleet) -> Result<Vec<(PathBuf, Vec<u8>)>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(fleet.hub.dir().join("keys"))? {
        let path = entry?.path();
        let content = fs::read(&path)?;
        files.push((path, content));
    }
    Ok(files)
}

fn put_back(files: &[(PathBuf, Vec<u8>)]) -> Result<()> {
    files
        .iter()
        .try_for_each(|(path, content)| Ok(fs::write(path, content)?))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hub_with_older_keys_is_told_and_takes_nothing_away() -> Result<()> {
    let plane = shared(1).await?;
    let mut fleet = Fleet::start().await?;
    fleet.join("east", plane).await?;
    let repository = fleet
        .repository("infra", &[("app/a.yaml", &config_map("a", "one"))])
        .await?;
    fleet.deploy("web", "east", "infra", "app").await?;
    commit(&fleet, &repository, "two", &["web"]).await?;
    let backup = fleet.hub.dir().with_extension("backup").display().to_string();
    let data = fleet.hub.dir().display().to_string();
    fleet
        .cli()
        .expect(0, &["admin", "backup", "--data-dir", &data, &backup])?;
    let old = copy_keys(&fleet)?;
    keys(&fleet, 0, &["rotate", "signing-key"])?;
    restart(&mut fleet).await?;
    until_state(&fleet, "east", "current").await?;
    let new = copy_keys(&fleet)?;

    // Older keys with the current database: the hub doesn't start.
    fleet.hub.stop()?;
    put_back(&old)?;
    fleet.hub.tolerate("");
    let refused = format!(
        "{:#}",
        fleet.hub.restart().await.err().context("an older copy of the keys")?
    );
    ensure!(refused.contains("Restore the newest copy"), "{refused}");

    // Both are older: the agent accepts nothing from it, and the Cluster reports that.
    fleet
        .cli()
        .expect(0, &["admin", "restore", "--data-dir", &data, "--force", &backup])?;
    restart(&mut fleet).await?;
    let clusters: Api<Cluster> = fleet.api();
    fleet
        .until("the Cluster to say that the keys are older", || async {
            let conditions = clusters.get("east").await?.status.unwrap_or_default().conditions;
            Ok(conditions
                .iter()
                .any(|c| c.type_ == "Ready" && c.reason == "HubKeysOlder")
                .then_some(()))
        })
        .await?;
    let api: Api<ConfigMap> = Api::namespaced(plane.client().await?, &fleet.namespace("web"));
    let in_place = || async { Ok(api.get("a").await?.data.is_some_and(|data| data["value"] == "two")) };
    fleet
        .always("what runs is as it was", Duration::from_secs(3), in_place)
        .await?;
    ensure!(cluster_row(&fleet, "east")?["state"] == "has newer keys than this hub");

    // The newest copy repairs it.
    fleet.hub.stop()?;
    put_back(&new)?;
    restart(&mut fleet).await?;
    commit(&fleet, &repository, "three", &["web"]).await
}

fn mount(dir: &Path, pair: &Pair, authority: &Authority) -> Result<()> {
    fs::write(dir.join("tls.crt"), &pair.certificate)?;
    fs::write(dir.join("tls.key"), &pair.key)?;
    Ok(fs::write(dir.join("ca.crt"), authority.pem())?)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_announced_authority_takes_over_without_a_new_join() -> Result<()> {
    let plane = shared(1).await?;
    let dir = tempfile::tempdir()?;
    let files = dir.path().join("tls");
    fs::create_dir(&files)?;
    let (first, second) = (Authority::new("first")?, Authority::new("second")?);
    mount(&files, &first.issue(&["127.0.0.1"], 24)?, &first)?;
    let path = |name: &str| files.join(name).display().to_string();
    let (certificate, key, announced) = (path("tls.crt"), path("tls.key"), path("second.pem"));
    fs::write(&announced, second.pem())?;
    let hub = Hub::start_with(
        &dir.path().join("hub"),
        &["--tls-cert", &certificate, "--tls-key", &key],
    )
    .await?;
    let mut fleet = Fleet::of(hub, dir).await?;
    fleet.join("east", plane).await?;
    let repository = fleet
        .repository("infra", &[("app/a.yaml", &config_map("a", "one"))])
        .await?;
    fleet.deploy("web", "east", "infra", "app").await?;
    ensure!(
        keys(&fleet, 5, &["rotate", "ca"])?.contains("announce"),
        "it is not the hub's to make"
    );

    keys(&fleet, 0, &["announce", &announced])?;
    restart(&mut fleet).await?;
    until_state(&fleet, "east", "current").await?;
    fleet.hub.stop()?;
    mount(&files, &second.issue(&["127.0.0.1"], 24)?, &second)?;
    restart(&mut fleet).await?;
    commit(&fleet, &repository, "two", &["web"]).await?;
    keys(&fleet, 0, &["revoke"])?;
    restart(&mut fleet).await?;
    until_state(&fleet, "east", "current").await?;
    fleet.agent("east")?.kill9();
    fleet.agent("east")?.restart()?;
    commit(&fleet, &repository, "three", &["web"]).await
}

/// An account with all rights, and its token.
async fn account(plane: &Plane, name: &str) -> Result<String> {
    let client = plane.client().await?;
    let accounts: Api<ServiceAccount> = Api::default_namespaced(client.clone());
    let account = serde_json::from_value(json!({"metadata": {"name": name}}))?;
    accounts.create(&PostParams::default(), &account).await?;
    let binding = serde_json::from_value(json!({
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": "default"}],
    }))?;
    Api::<ClusterRoleBinding>::all(client)
        .create(&PostParams::default(), &binding)
        .await?;
    let asked: TokenRequest = serde_json::from_value(json!({"spec": {"audiences": []}}))?;
    let made = accounts
        .create_token_request(name, &PostParams::default(), &asked)
        .await?;
    Ok(made.status.context("a token")?.token)
}

/// The same server with another user.
fn write_kubeconfig(plane: &Plane, user: &Value, path: &Path) -> Result<()> {
    let mut config: Value = serde_json::from_slice(&fs::read(plane.kubeconfig())?)?;
    for entry in config["users"].as_array_mut().context("users")? {
        entry["user"] = user.clone();
    }
    Ok(fs::write(path, config.to_string())?)
}

/// An API server accepts a token for ten seconds without checking whether its account still exists.
async fn until_refused(plane: &Plane, token: &str, kubeconfig: &Path) -> Result<()> {
    write_kubeconfig(plane, &json!({"token": token}), kubeconfig)?;
    let accounts: Api<ServiceAccount> =
        Api::default_namespaced(farwater_testkit::kube::client(kubeconfig, None).await?);
    wait_for("the token to be refused", Duration::from_secs(60), || async {
        match accounts.list(&ListParams::default()).await {
            Err(kube::Error::Api(status)) if status.code == 401 => Ok(Some(())),
            other => Ok(other.map(|_| None)?),
        }
    })
    .await
}

/// A kubelet does so in a pod's volume, long before the old token expires. Here the old one expires within the minute
/// after which the agent reads the file again. So the agent reads it because of the refusal. The minute has its own
/// tests.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_takes_the_new_token_of_its_service_account_from_its_file() -> Result<()> {
    let plane = Plane::start_with(PlaneOptions::without_nodes()).await?;
    let fleet = Fleet::start().await?;
    let (token, kubeconfig) = (fleet.state_dir("token"), fleet.state_dir("kubeconfig"));
    let first = account(&plane, "one").await?;
    fs::write(&token, &first)?;
    write_kubeconfig(&plane, &json!({"tokenFile": token}), &kubeconfig)?;
    let invitation = fleet.invite("east").await?;
    let mut agent = Agent::start("east", &fleet.state_dir("east"), &kubeconfig, invitation)?;
    let repository = fleet
        .repository("infra", &[("app/a.yaml", &config_map("a", "one"))])
        .await?;
    fleet.deploy("web", "east", "infra", "app").await?;
    fleet
        .until_applied("web", &repository.branch("main").context("a commit")?)
        .await?;

    fs::write(&token, account(&plane, "two").await?)?;
    let client = plane.client().await?;
    Api::<ServiceAccount>::default_namespaced(client.clone())
        .delete("one", &DeleteParams::default())
        .await?;
    until_refused(&plane, &first, &fleet.state_dir("first-kubeconfig")).await?;
    let maps: Api<ConfigMap> = Api::namespaced(client, &fleet.namespace("web"));
    let before = maps.get("a").await?.metadata.uid;
    maps.delete("a", &DeleteParams::default()).await?;
    wait_for("the object to be recreated", Duration::from_secs(60), || async {
        Ok(maps.get_opt("a").await?.filter(|map| map.metadata.uid != before))
    })
    .await
    .with_context(|| agent.log_tail())?;
    commit(&fleet, &repository, "two", &["web"]).await?;
    agent.stop()?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_seal_key_is_exchanged_under_a_running_hub_and_a_killed_one_goes_on() -> Result<()> {
    const COUNT: usize = 300;
    let mut fleet = Fleet::start().await?;
    let secrets: Api<Secret> = fleet.api();
    let secret =
        |n: usize, value: &str| json!({"metadata": {"name": format!("s{n}")}, "stringData": {"password": value}});
    for n in 0..COUNT {
        secrets
            .create(&PostParams::default(), &serde_json::from_value(secret(n, "first"))?)
            .await?;
    }
    let file = fleet.hub.dir().join("keys/seal.key");
    let first = fs::read_to_string(&file)?;
    let backup = fleet.hub.dir().with_file_name("before.backup");
    let data = fleet.hub.dir().display().to_string();
    fleet.cli().expect(
        0,
        &[
            "admin",
            "backup",
            "--data-dir",
            &data,
            backup.to_str().context("a path")?,
        ],
    )?;
    keys(&fleet, 0, &["rotate", "seal-key"])?;
    let asked = keys(&fleet, 0, &["rotate", "seal-key"])?;
    ensure!(asked.contains("within seconds"), "{asked}");
    // Writes continue.
    fleet
        .until("another seal key", || async {
            secrets
                .patch(
                    "s1",
                    &PatchParams::default(),
                    &Patch::Merge(json!({"stringData": {"password": "second"}})),
                )
                .await?;
            Ok((fs::read_to_string(&file)? != first).then_some(()))
        })
        .await?;
    for _ in 0..3 {
        fleet.hub.kill9();
        restart(&mut fleet).await?;
    }
    let newest = |listed: &Value| listed["dataKeys"].as_array().map_or(0, Vec::len);
    fleet
        .until("all to be sealed anew", || async {
            Ok((newest(&list(&fleet)?) == 1).then_some(()))
        })
        .await?;
    let listed = list(&fleet)?;
    let key = &listed["dataKeys"][0];
    ensure!(
        key["number"] == 2 && key["state"] == "in use" && key["rows"].as_u64() >= Some(COUNT as u64),
        "{listed:#}"
    );
    ensure!(!fleet.hub.dir().join("keys/seal.next.key").exists() && !fleet.hub.dir().join("keys/seal.wanted").exists());
    let secrets: Api<Secret> = fleet.api();
    for n in 0..COUNT {
        let found = secrets.get(&format!("s{n}")).await?.data.unwrap_or_default();
        let expected: &[u8] = if n == 1 { b"second" } else { b"first" };
        ensure!(found["password"].0 == expected, "s{n}");
    }
    fleet.cli().expect(0, &["admin", "fsck", "--data-dir", &data])?;

    // The earlier backup: refused without the earlier key.
    fleet.hub.stop()?;
    let backup = backup.to_str().context("a path")?;
    let refused = fleet
        .cli()
        .run(&["admin", "restore", "--force", "--data-dir", &data, backup])?;
    ensure!(
        refused.code != 0 && refused.stderr.contains("another seal key"),
        "{refused:?}"
    );
    let old = fleet.hub.dir().with_file_name("old-seal.key");
    fs::write(&old, &first)?;
    let old = old.to_str().context("a path")?;
    fleet.cli().expect(
        0,
        &[
            "admin",
            "restore",
            "--force",
            "--seal-key",
            old,
            "--data-dir",
            &data,
            backup,
        ],
    )?;
    restart(&mut fleet).await?;
    let secrets: Api<Secret> = fleet.api();
    ensure!(secrets.get("s1").await?.data.unwrap_or_default()["password"].0 == b"first");
    ensure!(fs::read_to_string(&file)? != first);
    Ok(())
}
