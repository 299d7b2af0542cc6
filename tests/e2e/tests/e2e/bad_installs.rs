//! Install, join, leave, backup and restore with wrong input. The messages are clear, nothing changes, and a second run
//! can fix everything. Clusters have no nodes unless a pod must run.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use anyhow::{Context as _, Result, ensure};
use farwater_api::{ADMIN_NAMESPACE, AGENT_NAMESPACE, Cluster, IDENTITY_SECRET};
use farwater_e2e::{
    PATIENCE,
    life::Forwarded,
    volume::{NodeVolume, Volume},
};
use farwater_manifests::{Exposure, Tls};
use farwater_testkit::{
    Agent, Hub, Plane, PlaneOptions, Site,
    farwater::program,
    images::{AGENT, HUB},
    ports,
    process::bare_command,
    site::{CLUSTER, CONTEXT},
    tools::repository_root,
    wait_for,
};
use k8s_openapi::api::{
    apps::v1::{Deployment, StatefulSet},
    core::v1::{ConfigMap, Namespace, Secret},
    rbac::v1::Role,
};
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use serde_json::{Value, json};

const HUB_NAMESPACE: &str = "farwater-hub";

/// A cluster without nodes, and a person with their own home.
struct Desk {
    plane: Plane,
    home: tempfile::TempDir,
}

impl Desk {
    async fn make() -> Result<Self> {
        Ok(Self {
            plane: Plane::start_with(PlaneOptions::without_nodes()).await?,
            home: tempfile::tempdir()?,
        })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    fn command(&self, arguments: &[&str]) -> Result<Command> {
        let mut command = bare_command(program("farwater")?);
        command
            .args(arguments)
            .env("HOME", self.home.path())
            .env("KUBECONFIG", self.plane.kubeconfig());
        Ok(command)
    }

    /// Runs the CLI signed in to a hub.
    fn at(&self, hub: &Hub, arguments: &[&str]) -> Result<Output> {
        Ok(self
            .command(arguments)?
            .env("FARWATER_KUBECONFIG", hub.kubeconfig())
            .output()?)
    }

    fn refused(&self, arguments: &[&str], code: i32, parts: &[&str]) -> Result<()> {
        check(arguments, self.command(arguments)?.output()?, code, parts)
    }

    async fn namespaces(&self) -> Result<Api<Namespace>> {
        Ok(Api::all(self.plane.client().await?))
    }

    async fn has_namespace(&self, name: &str) -> Result<bool> {
        Ok(self.namespaces().await?.get_opt(name).await?.is_some())
    }
}

fn check(arguments: &[&str], output: Output, code: i32, parts: &[&str]) -> Result<()> {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(
        output.status.code() == Some(code),
        "{arguments:?} ended with {}, not {code}: {said}",
        output.status
    );
    let missing: Vec<_> = parts.iter().filter(|part| !said.contains(**part)).collect();
    ensure!(missing.is_empty(), "{arguments:?} does not say {missing:?}: {said}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_context_or_address_is_told_before_anything_is_done() -> Result<()> {
    let desk = Desk::make().await?;
    for command in [
        &["install"][..],
        &["admin", "backup", "file"],
        &["admin", "restore", "--yes", "file"],
    ] {
        let given = [command, &["--context", "amdin"]].concat();
        desk.refused(&given, 2, &["there is no context \"amdin\"", "did you mean \"admin\""])?;
    }
    let two = [
        "admin",
        "backup",
        "--context",
        "admin",
        "--data-dir",
        "/nowhere",
        "file",
    ];
    desk.refused(&two, 2, &["name two hubs"])?;
    desk.refused(&["admin", "backup", "file"], 2, &["no hub is named", "--context CTX"])?;
    let hub = Hub::start(&desk.path("hub")).await?;
    for action in ["join", "leave"] {
        let clusters: Api<Cluster> = Api::namespaced(hub.client().await?, ADMIN_NAMESPACE);
        if action == "leave" {
            clusters
                .create(
                    &PostParams::default(),
                    &Cluster::new("east", serde_json::from_value(json!({}))?),
                )
                .await?;
        }
        let given = ["cluster", action, "east", "--context", "amdin"];
        check(
            &given,
            desk.at(&hub, &given)?,
            2,
            &["there is no context \"amdin\"", "did you mean \"admin\""],
        )?;
        ensure!(
            clusters.get_opt("east").await?.is_some() == (action == "leave"),
            "{action} changed the hub"
        );
    }
    desk.refused(
        &["install", "--context", "admin", "--url", "http://hub.example.com"],
        2,
        &["without TLS"],
    )?;
    desk.refused(
        &["install", "--context", "admin", "--url", "hub.example.com"],
        2,
        &["is no address of a hub"],
    )?;
    let away = edited(&desk, "away", |config| {
        config["clusters"][0]["cluster"]["server"] = json!("https://127.0.0.1:9");
    })?;
    desk.refused(
        &["install", "--context", "admin", "--kubeconfig", &away],
        7,
        &["https://127.0.0.1:9", "can't be reached"],
    )?;
    ensure!(!desk.has_namespace(HUB_NAMESPACE).await?);
    Ok(())
}

/// An edited kubeconfig of a cluster.
fn edited(desk: &Desk, name: &str, edit: impl FnOnce(&mut Value)) -> Result<String> {
    let mut config: Value = serde_json::from_str(&fs::read_to_string(desk.plane.kubeconfig())?)?;
    edit(&mut config);
    let path = desk.path(name);
    fs::write(&path, config.to_string())?;
    Ok(path.display().to_string())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doctor_has_a_remedy_for_a_cluster_that_it_cant_enter() -> Result<()> {
    let desk = Desk::make().await?;
    let hub = Hub::start(&desk.path("hub")).await?;
    let away = edited(&desk, "away", |config| {
        config["clusters"][0]["cluster"]["server"] = json!("https://127.0.0.1:9");
    })?;
    let stranger = edited(&desk, "stranger", |config| {
        for user in config["users"].as_array_mut().into_iter().flatten() {
            user["user"] = json!({"token": "of-nobody"});
        }
    })?;
    let own = desk.plane.kubeconfig().display().to_string();
    let cases = [
        ("admin", &away, "can't be reached"),
        ("admin", &stranger, "does not accept your credentials"),
        ("alice", &own, "can't"),
        ("amdin", &own, "there is no context"),
    ];
    for (context, kubeconfig, words) in cases {
        let given = [
            "doctor",
            "--context",
            context,
            "--cluster-kubeconfig",
            kubeconfig,
            "-o",
            "json",
        ];
        let output = desk.at(&hub, &given)?;
        ensure!(
            output.status.code() == Some(1),
            "{given:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        let answer: Value = serde_json::from_slice(&output.stdout)?;
        let checks = answer["checks"].as_array().context("there are no checks")?;
        let failed: Vec<_> = checks.iter().filter(|check| check["grade"] != "ok").collect();
        ensure!(
            failed.iter().any(|check| check["found"].to_string().contains(words)),
            "{context}: {answer:#}"
        );
        let unaided = failed
            .iter()
            .find(|check| check["remedy"].as_str().is_none_or(str::is_empty));
        ensure!(unaided.is_none(), "{context}: {unaided:?}");
    }
    Ok(())
}

/// A hub on this machine, and a backup of it with its keys.
async fn backup_of_a_hub(desk: &Desk, file: &Path) -> Result<Hub> {
    let hub = Hub::start(&desk.path("hub")).await?;
    let data = hub.dir().display().to_string();
    let file = file.display().to_string();
    let arguments = ["admin", "backup", "--data-dir", &data, "--with-keys", "--force", &file];
    check(
        &arguments,
        desk.command(&arguments)?.output()?,
        0,
        &["can impersonate the hub"],
    )?;
    Ok(hub)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_rights_are_all_named_before_anything_is_changed() -> Result<()> {
    let desk = Desk::make().await?;
    let file = desk.path("backup");
    let hub = backup_of_a_hub(&desk, &file).await?;
    let file = file.display().to_string();
    let enter = [
        "may not",
        "get statefulsets in farwater-hub",
        "create pods/exec in farwater-hub",
        "nothing was changed",
    ];
    let make = [
        "patch namespaces",
        "create statefulsets in farwater-hub",
        "patch networkpolicies in farwater-hub",
    ];
    desk.refused(&["install", "--context", "alice"], 3, &[&enter[..], &make[..]].concat())?;
    desk.refused(&["admin", "backup", "--context", "alice", "--force", &file], 3, &enter)?;
    let replace = [
        "patch statefulsets in farwater-hub",
        "create pods in farwater-hub",
        "get pods/attach in farwater-hub",
    ];
    let given = ["admin", "restore", "--context", "alice", "--yes", &file];
    desk.refused(&given, 3, &[&enter[..], &replace[..]].concat())?;

    let cluster = desk.plane.kubeconfig().display().to_string();
    let join = [
        "cluster",
        "join",
        "east",
        "--context",
        "alice",
        "--cluster-kubeconfig",
        &cluster,
    ];
    let named = [
        "may not",
        "create clusterroles",
        "patch deployments in farwater-system",
        "nothing was changed",
    ];
    check(&join, desk.at(&hub, &join)?, 3, &named)?;
    let clusters: Api<Cluster> = Api::namespaced(hub.client().await?, ADMIN_NAMESPACE);
    ensure!(
        clusters.get_opt("east").await?.is_none(),
        "join created a Cluster in the hub"
    );
    clusters
        .create(
            &PostParams::default(),
            &Cluster::new("east", serde_json::from_value(json!({}))?),
        )
        .await?;
    let leave = [
        "cluster",
        "leave",
        "east",
        "--context",
        "alice",
        "--cluster-kubeconfig",
        &cluster,
    ];
    check(
        &leave,
        desk.at(&hub, &leave)?,
        3,
        &["delete clusterrolebindings", "nothing was changed"],
    )?;
    clusters.get("east").await.context("its Cluster stays")?;
    ensure!(!desk.has_namespace(HUB_NAMESPACE).await? && !desk.has_namespace(AGENT_NAMESPACE).await?);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_of_others_are_left_alone() -> Result<()> {
    let desk = Desk::make().await?;
    let file = desk.path("backup");
    let hub = backup_of_a_hub(&desk, &file).await?;
    let client = desk.plane.client().await?;
    for name in [HUB_NAMESPACE, AGENT_NAMESPACE] {
        let namespace = serde_json::from_value(json!({"metadata": {"name": name}}))?;
        desk.namespaces()
            .await?
            .create(&PostParams::default(), &namespace)
            .await?;
    }
    let workload = |name: &str| {
        json!({"metadata": {"name": name}, "spec": {
            "serviceName": name, "selector": {"matchLabels": {"app": "other"}},
            "template": {"metadata": {"labels": {"app": "other"}}, "spec": {"containers": [{"name": "a", "image": "a"}]}},
        }})
    };
    let sets: Api<StatefulSet> = Api::namespaced(client.clone(), HUB_NAMESPACE);
    let set = sets
        .create(
            &PostParams::default(),
            &serde_json::from_value(workload("farwater-hub"))?,
        )
        .await?;
    let deployments: Api<Deployment> = Api::namespaced(client, AGENT_NAMESPACE);
    deployments
        .create(
            &PostParams::default(),
            &serde_json::from_value(workload("farwater-agent"))?,
        )
        .await?;

    let words = [
        "StatefulSet farwater-hub/farwater-hub is there and not ours",
        "nothing was changed",
    ];
    desk.refused(&["install", "--context", "admin"], 5, &words)?;
    let file = file.display().to_string();
    desk.refused(&["admin", "restore", "--context", "admin", "--yes", &file], 5, &words)?;
    desk.refused(&["admin", "backup", "--context", "admin", "--force", &file], 5, &words)?;
    let after = sets.get("farwater-hub").await?;
    ensure!(
        after.metadata.generation == set.metadata.generation,
        "it was changed: {after:?}"
    );

    let cluster = desk.plane.kubeconfig().display().to_string();
    let clusters: Api<Cluster> = Api::namespaced(hub.client().await?, ADMIN_NAMESPACE);
    let words = [
        "Deployment farwater-system/farwater-agent is there and not ours",
        "nothing was changed",
    ];
    for action in ["join", "leave"] {
        if action == "leave" {
            ensure!(clusters.get_opt("east").await?.is_none(), "join created a Cluster");
            clusters
                .create(
                    &PostParams::default(),
                    &Cluster::new("east", serde_json::from_value(json!({}))?),
                )
                .await?;
        }
        let given = [
            "cluster",
            action,
            "east",
            "--context",
            "admin",
            "--cluster-kubeconfig",
            &cluster,
        ];
        check(&given, desk.at(&hub, &given)?, 5, &words)?;
    }
    clusters.get("east").await.context("its Cluster is gone")?;
    deployments.get("farwater-agent").await.context("it was deleted")?;
    Ok(())
}

/// Pods never run here, so each run is ended by its timeout.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_run_that_was_cut_short_has_left_is_mended_by_the_next_and_taken_by_leave() -> Result<()> {
    let desk = Desk::make().await?;
    let client = desk.plane.client().await?;
    for _ in 0..2 {
        desk.refused(
            &["install", "--context", "admin", "--timeout", "1"],
            6,
            &["not ready after 1 s"],
        )?;
    }
    let sets: Api<StatefulSet> = Api::namespaced(client.clone(), HUB_NAMESPACE);
    sets.get("farwater-hub").await?;
    // The hub exists, but it has no pod to make a backup.
    let file = desk.path("backup").display().to_string();
    desk.refused(
        &["admin", "backup", "--context", "admin", &file],
        5,
        &["the hub's pod does not run"],
    )?;
    ensure!(
        !Path::new(&file).exists() && fs::read_dir(desk.home.path())?.count() == 0,
        "something is left"
    );

    let hub = Hub::start(&desk.path("hub")).await?;
    let cluster = desk.plane.kubeconfig().display().to_string();
    let join = [
        "cluster",
        "join",
        "east",
        "--context",
        "admin",
        "--timeout",
        "1",
        "--cluster-kubeconfig",
        &cluster,
    ];
    check(
        &join,
        desk.at(&hub, &join)?,
        6,
        &["the hub heard nothing from east's agent"],
    )?;
    let roles: Api<Role> = Api::namespaced(client.clone(), AGENT_NAMESPACE);
    roles.delete("farwater-agent", &DeleteParams::default()).await?;
    let secrets: Api<Secret> = Api::namespaced(client.clone(), AGENT_NAMESPACE);
    let first = secrets.get("farwater-agent-join").await?.data;
    check(
        &join,
        desk.at(&hub, &join)?,
        6,
        &["the hub heard nothing from east's agent"],
    )?;
    roles.get("farwater-agent").await?;
    ensure!(
        secrets.get("farwater-agent-join").await?.data != first,
        "each run has a token of its own"
    );

    // Half of the objects are already deleted.
    roles.delete("farwater-agent", &DeleteParams::default()).await?;
    let leave = [
        "cluster",
        "leave",
        "east",
        "--context",
        "admin",
        "--cluster-kubeconfig",
        &cluster,
    ];
    check(
        &leave,
        desk.at(&hub, &leave)?,
        0,
        &["deleted Cluster farwater-admin/east"],
    )?;
    let deployments: Api<Deployment> = Api::namespaced(client, AGENT_NAMESPACE);
    ensure!(deployments.get_opt("farwater-agent").await?.is_none());
    // A dead cluster: without its context, only the hub forgets it.
    check(&join, desk.at(&hub, &join)?, 6, &[])?;
    let leave = ["cluster", "leave", "east"];
    check(
        &leave,
        desk.at(&hub, &leave)?,
        0,
        &["deleted Cluster farwater-admin/east"],
    )
}

/// kubectl applies the same objects as the command itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_printed_for_git_is_what_would_be_applied_and_nothing_is_changed() -> Result<()> {
    let desk = Desk::make().await?;
    let hub = Hub::start(&desk.path("hub")).await?;
    let printed = |output: Output| -> Result<(String, Vec<Value>)> {
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout)?;
        let documents = serde_saphyr::from_multiple(&text)?;
        Ok((text, documents))
    };
    let url = "https://hub.example.com";
    let options = [
        "--url",
        url,
        "--service-type",
        "LoadBalancer",
        "--storage",
        "5Gi",
        "--tls-secret",
        "hub-tls",
    ];
    let (hub_text, objects) = printed(
        desk.command(&[&["install", "--print", "--image", "hub:1"], &options[..]].concat())?
            .output()?,
    )?;
    let wanted = farwater_manifests::Hub {
        image: "hub:1".to_owned(),
        url: Some(url.to_owned()),
        exposure: Exposure::LoadBalancer,
        storage: "5Gi".to_owned(),
        tls: Tls::Secret {
            name: "hub-tls".to_owned(),
        },
        ..farwater_manifests::Hub::default()
    };
    ensure!(objects == wanted.objects(), "{hub_text}");

    let authorities = desk.path("authorities.pem");
    fs::write(
        &authorities,
        "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n",
    )?;
    let (proxy, file) = ("http://proxy.example.com:3128", authorities.display().to_string());
    let example = repository_root()?.join("examples/jsonnet");
    let (plugins, mounts) = (example.join("plugins.yaml"), example.join("mounts.yaml"));
    let (stated, given) = (plugins.display().to_string(), mounts.display().to_string());
    let join = [
        "cluster",
        "join",
        "east",
        "--print",
        "--image",
        "agent:1",
        "--https-proxy",
        proxy,
        "--ca-file",
        &file,
    ];
    let join = [&join[..], &["--plugins", &stated, "--mounts", &given]].concat();
    let (agent_text, objects) = printed(desk.at(&hub, &join)?)?;
    let token = objects
        .iter()
        .find(|object| object["metadata"]["name"] == "farwater-agent-join");
    let token = token
        .and_then(|secret| secret["stringData"]["token"].as_str())
        .context("no token is printed")?;
    let wanted = farwater_manifests::Agent {
        image: "agent:1".to_owned(),
        hub: hub.url(),
        ca_pin: hub.join_token(ADMIN_NAMESPACE, "east").await?.ca_pin,
        join_token: Some(token.to_owned()),
        https_proxy: Some(proxy.to_owned()),
        authorities: Some(fs::read_to_string(&authorities)?),
        plugins: Some(fs::read_to_string(&plugins)?),
        mounts: serde_saphyr::from_str(&fs::read_to_string(&mounts)?)?,
        bind_administrator: true,
        ..farwater_manifests::Agent::default()
    };
    ensure!(objects == wanted.objects(), "{agent_text}");
    ensure!(!desk.has_namespace(HUB_NAMESPACE).await? && !desk.has_namespace(AGENT_NAMESPACE).await?);

    for text in [hub_text, agent_text] {
        let file = desk.path("printed.yaml");
        fs::write(&file, text)?;
        let output = desk
            .plane
            .kubectl()?
            .args(["apply", "--validate=strict", "-f"])
            .arg(&file)
            .output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let client = desk.plane.client().await?;
    Api::<StatefulSet>::namespaced(client.clone(), HUB_NAMESPACE)
        .get("farwater-hub")
        .await?;
    Api::<Deployment>::namespaced(client, AGENT_NAMESPACE)
        .get("farwater-agent")
        .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leave_takes_no_agent_of_another_hub_or_cluster_and_join_none_over() -> Result<()> {
    let desk = Desk::make().await?;
    let (keeper, other) = (
        Hub::start(&desk.path("keeper")).await?,
        Hub::start(&desk.path("other")).await?,
    );
    let kubeconfig = desk.plane.kubeconfig().display().to_string();
    let given = |action: &[&'static str]| -> Vec<String> {
        let target = ["--context", "admin", "--cluster-kubeconfig", &kubeconfig];
        ["cluster"]
            .iter()
            .chain(action)
            .chain(&target)
            .map(|&part| part.to_owned())
            .collect()
    };
    let run = |hub: &Hub, action: &[&'static str], code: i32, parts: &[&str]| -> Result<()> {
        let given = given(action);
        let given: Vec<&str> = given.iter().map(String::as_str).collect();
        check(&given, desk.at(hub, &given)?, code, parts)
    };
    let clusters_of =
        async |hub: &Hub| -> Result<Api<Cluster>> { Ok(Api::namespaced(hub.client().await?, ADMIN_NAMESPACE)) };
    let make = async |hub: &Hub, name: &str| -> Result<Cluster> {
        let cluster = Cluster::new(name, serde_json::from_value(json!({}))?);
        Ok(clusters_of(hub).await?.create(&PostParams::default(), &cluster).await?)
    };
    // The Deployment has no pod here. Its agent is a process.
    run(&keeper, &["join", "east", "--timeout", "1"], 6, &[])?;
    let token = keeper.join_token(ADMIN_NAMESPACE, "east").await?;
    let mut agent = Agent::start("east", &desk.path("agent"), desk.plane.kubeconfig(), token)?;
    let clusters = clusters_of(&keeper).await?;
    wait_for("east to be heard", PATIENCE, || async {
        Ok(clusters
            .get("east")
            .await?
            .status
            .and_then(|status| status.last_heard_time))
    })
    .await
    .with_context(|| agent.log_tail())?;

    run(
        &other,
        &["join", "west", "--timeout", "1"],
        5,
        &["belongs to another hub", &keeper.url()],
    )?;
    ensure!(
        clusters_of(&other).await?.get_opt("west").await?.is_none(),
        "a Cluster is left of a refused join"
    );
    make(&other, "west").await?;
    run(
        &other,
        &["join", "west", "--timeout", "1"],
        5,
        &["belongs to another hub"],
    )?;
    let kept = [
        &*format!("farwater-admin/east of {}", keeper.url()),
        "nothing was changed",
        "--force",
    ];
    run(&other, &["leave", "west"], 5, &kept)?;
    run(
        &keeper,
        &["leave", "eats"],
        4,
        &["there is no Cluster \"eats\"", "did you mean \"east\""],
    )?;
    make(&keeper, "north").await?;
    run(&keeper, &["leave", "north"], 5, &kept)?;
    for (hub, name) in [(&other, "west"), (&keeper, "north"), (&keeper, "east")] {
        clusters_of(hub)
            .await?
            .get(name)
            .await
            .with_context(|| format!("Cluster {name}"))?;
    }
    let client = desk.plane.client().await?;
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), AGENT_NAMESPACE);
    let secrets: Api<Secret> = Api::namespaced(client, AGENT_NAMESPACE);
    deployments
        .get("farwater-agent")
        .await
        .context("the agent was removed")?;
    secrets
        .get(IDENTITY_SECRET)
        .await
        .context("the agent's identity was removed")?;

    // The Cluster is deleted, so only the user's arguments say whose agent it was.
    agent.stop()?;
    clusters.delete("east", &DeleteParams::default()).await?;
    run(&keeper, &["leave", "east"], 4, &["there is no Cluster \"east\""])?;
    run(
        &keeper,
        &["leave", "east", "--force"],
        0,
        &["deleted Deployment farwater-system/farwater-agent"],
    )?;
    ensure!(deployments.get_opt("farwater-agent").await?.is_none());
    ensure!(secrets.get_opt(IDENTITY_SECRET).await?.is_none());
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_volume_stops_a_first_start_and_a_restore_and_loses_nothing() -> Result<()> {
    let home = tempfile::tempdir()?;
    let place = home.path().join("hub");
    let volume = Volume::mount(&place, "8m")?;
    let data = place.display().to_string();
    let run = |arguments: &[&str], code: i32, parts: &[&str]| -> Result<()> {
        let mut command = bare_command(program("farwater")?);
        check(
            arguments,
            command.args(arguments).env("HOME", home.path()).output()?,
            code,
            parts,
        )
    };
    let ballast = volume.fill();
    run(
        &["hub", "--data-dir", &data, "--listen", "127.0.0.1:0"],
        8,
        &["No space left on device", &data],
    )?;
    fs::remove_file(&ballast)?;

    let mut hub = Hub::start(&place).await?;
    let maps: Api<ConfigMap> = Api::namespaced(hub.client().await?, ADMIN_NAMESPACE);
    let file = home.path().join("backup").display().to_string();
    run(&["admin", "backup", "--data-dir", &data, "--with-keys", &file], 0, &[])?;
    let map = serde_json::from_value(json!({"metadata": {"name": "later"}}))?;
    maps.create(&PostParams::default(), &map).await?;
    hub.stop()?;
    volume.fill();
    let mut restore = bare_command(program("farwater")?);
    let refused = restore
        .args(["admin", "restore", "--data-dir", &data, "--force", &file])
        .output()?;
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    ensure!(
        !refused.status.success() && (said.contains("full") || said.contains("No space")),
        "{said}"
    );
    fs::remove_file(&ballast)?;
    hub.restart().await?;
    let maps: Api<ConfigMap> = Api::namespaced(hub.client().await?, ADMIN_NAMESPACE);
    maps.get("later").await.context("an earlier object is lost")?;
    Ok(())
}

/// On a real node: a command that times out, and its message.
fn waits_in_vain(site: &Site, arguments: &[&str], parts: &[&str]) -> Result<()> {
    let run = |longest: &str| -> Result<()> {
        let given = [arguments, &["--timeout", longest]].concat();
        let output = site.run(&given)?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        check(&given, output, 6, parts)?;
        ensure!(!said.contains("\"level\""), "a log is shown as it is: {said}");
        Ok(())
    };
    // On busy cores, the shorter timeouts may end before the pod is that far.
    run("10")
        .or_else(|_| run("20"))
        .or_else(|_| run("40"))
        .or_else(|_| run("80"))
}

/// `kubectl port-forward` gives the hub an address of this machine. For a pod, that address is the pod itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hub_that_pods_cant_reach_is_named_by_join_and_the_next_join_is_told_better() -> Result<()> {
    let site = Site::start().await?;
    let port = ports::free()?;
    let near = format!("https://127.0.0.1:{port}");
    site.farwater(&["install", "--context", CONTEXT, "--url", &near, "--image", HUB])?;
    let way = [
        "-n",
        HUB_NAMESPACE,
        "port-forward",
        "service/farwater-hub",
        &format!("{port}:443"),
    ];
    let forwarded = Forwarded::start(&site, &way).await?;
    let words = [
        &*format!("the hub heard nothing from {CLUSTER}'s agent"),
        &near,
        "pod farwater-agent-",
        "running, not yet ready; it says: can't join yet; trying again: reach the hub for join",
        "Connection refused",
        "logs deployment/farwater-agent",
    ];
    waits_in_vain(
        &site,
        &["cluster", "join", CLUSTER, "--context", CONTEXT, "--image", AGENT],
        &words,
    )?;
    drop(forwarded);

    site.install()?;
    site.join()?;
    site.until_cluster("Ready", Some("True")).await.map(drop)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_install_on_a_full_volume_says_so_and_the_next_finds_room() -> Result<()> {
    let site = Site::start().await?;
    let volume = NodeVolume::mount(&site.node, &site.volume("hub")?, "32m")?;
    volume.fill()?;
    let url = site.url();
    let install = [
        "install",
        "--context",
        CONTEXT,
        "--url",
        &url,
        "--service-type",
        "NodePort",
        "--image",
        HUB,
    ];
    let words = [
        "the hub was not ready",
        "pod farwater-hub-0: container hub",
        "it says: farwater: the hub ended: write /var/lib/farwater/",
        "No space left on device",
        "describe pod farwater-hub-0",
    ];
    waits_in_vain(&site, &install, &words)?;
    volume.empty()?;
    site.install().map(drop)
}
