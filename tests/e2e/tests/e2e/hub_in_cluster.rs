//! A hub in a pod on a real node: backed up and restored in place, lost with its volume and recovered, and deleted
//! while agents poll.

use std::{fs, process::Stdio, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use farwater_api::CONFIRM_RESTORED;
use farwater_testkit::{
    Postgres, Site,
    authority::Authority,
    hub_pod,
    images::{HUB, HUB_NEXT, Images},
    postgres,
    site::{CLUSTER, CONTEXT, HUB_NAMESPACE, HUB_POD, PATIENCE},
    tools::repository_root,
    wait_for,
};
use k8s_openapi::api::{
    apps::v1::StatefulSet,
    batch::v1::Job,
    core::v1::{ConfigMap, Namespace, PersistentVolumeClaim, Pod, Secret},
};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::json;

/// Poll interval of agents that count missed polls. The hub's pod is away for about half of it.
const INTERVAL: Duration = Duration::from_secs(10);
/// Maximum time without the hub. A pod that ignores SIGTERM is killed after half a minute. Others are back after some
/// five seconds.
const LONGEST_AWAY: Duration = Duration::from_secs(60);

async fn site() -> Result<Site> {
    let site = Site::start().await?;
    site.install()?;
    site.join()?;
    site.poll_every("1s").await?;
    site.deploy().await?;
    Ok(site)
}

/// A resource of the hub, to distinguish before and after.
async fn make_map(site: &Site, name: &str) -> Result<()> {
    let map: ConfigMap = serde_json::from_value(json!({"metadata": {"name": name}}))?;
    site.ours().await?.create(&PostParams::default(), &map).await?;
    Ok(())
}

async fn has_map(site: &Site, name: &str) -> Result<bool> {
    Ok(site.ours::<ConfigMap>().await?.get_opt(name).await?.is_some())
}

fn backup(site: &Site, file: &str) -> Result<()> {
    site.farwater(&["admin", "backup", "--context", CONTEXT, file])
        .map(drop)
}

/// Restores a backup. Returns the last output of the command.
fn restore(site: &Site, file: &str) -> Result<String> {
    let output = site.run(&["admin", "restore", "--context", CONTEXT, "--yes", file])?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "{}: {said}", output.status);
    Ok(said)
}

fn epoch(said: &str) -> Result<String> {
    let (_, rest) = said
        .split_once(&format!("{CONFIRM_RESTORED}="))
        .with_context(|| said.to_owned())?;
    Ok(rest.chars().take_while(char::is_ascii_digit).collect())
}

/// Confirms as the command says. Nothing is deleted before that.
async fn confirm(site: &Site, said: &str) -> Result<()> {
    let epoch = epoch(said)?;
    let restored = site.until_cluster("Restored", Some("True")).await?;
    ensure!(restored.contains(&format!("{CONFIRM_RESTORED}={epoch}")), "{restored}");
    let patch = Patch::Merge(json!({"metadata": {"annotations": {CONFIRM_RESTORED: epoch}}}));
    site.ours::<farwater_api::Cluster>()
        .await?
        .patch(CLUSTER, &PatchParams::default(), &patch)
        .await?;
    site.until_cluster("Restored", None).await?;
    site.until_cluster("Ready", Some("True")).await?;
    site.until_ready().await
}

async fn replicas(site: &Site) -> Result<Option<i32>> {
    let set: StatefulSet = site.theirs(HUB_NAMESPACE).await?.get("farwater-hub").await?;
    Ok(set.spec.and_then(|spec| spec.replicas))
}

/// The agent is the same process, so it did not join again.
async fn agent(site: &Site) -> Result<(Option<String>, i32)> {
    let pod = site.agent_pod().await?;
    let states = pod
        .status
        .iter()
        .flat_map(|status| &status.container_statuses)
        .flatten();
    let starts = states.map(|state| state.restart_count).sum();
    Ok((pod.metadata.uid, starts))
}

/// The objects of the documentation page with this test's image. A Job of the CronJob writes a backup to its volume.
async fn run_schedule(site: &Site) -> Result<()> {
    let page = fs::read_to_string(repository_root()?.join("docs/backup.md"))?;
    let (_, rest) = page.split_once("```yaml\n").context("the page has objects")?;
    let (objects, _) = rest.split_once("```").context("the objects end")?;
    let shipped = "image: localhost/farwater/hub:0.1.0";
    ensure!(objects.contains(shipped), "the page names another image");
    let file = site.path("schedule.yaml");
    fs::write(&file, objects.replace(shipped, &format!("image: {HUB}")))?;
    let folder = site.node.provide("backups").await?;
    let kubectl = |arguments: &[&str]| -> Result<()> {
        let output = site.node.plane().kubectl()?.args(arguments).output()?;
        ensure!(
            output.status.success(),
            "kubectl {arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(())
    };
    kubectl(&["apply", "-f", &file.display().to_string()])?;
    kubectl(&[
        "create",
        "job",
        "once",
        "--from=cronjob/farwater-backup",
        "-n",
        HUB_NAMESPACE,
    ])?;
    let jobs: Api<Job> = site.theirs(HUB_NAMESPACE).await?;
    wait_for("the scheduled backup to be made", PATIENCE, || async {
        let status = jobs.get("once").await?.status.unwrap_or_default();
        Ok((status.succeeded == Some(1)).then_some(()))
    })
    .await?;
    let names: Vec<String> = fs::read_dir(&folder)?
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<Result<_>>()?;
    let [name] = &names[..] else {
        bail!("one backup and nothing else: {names:?}")
    };
    ensure!(name.starts_with("farwater-hub-") && name.ends_with(".backup"), "{name}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hub_is_backed_up_and_restored_in_its_cluster_and_a_killed_restore_is_mended() -> Result<()> {
    let site = site().await?;
    let (uids, agent_was) = (site.uids().await?, agent(&site).await?);
    let file = site.path("backup").display().to_string();
    make_map(&site, "before").await?;
    run_schedule(&site).await?;
    backup(&site, &file)?;
    let said = site.refused(&["admin", "backup", "--context", CONTEXT, &file], 2)?;
    ensure!(
        said.contains("there is a file already") && said.contains("--force"),
        "{said}"
    );
    site.farwater(&["admin", "fsck", "--context", CONTEXT])?;
    let said = site.refused(&["admin", "backup", "--context", CONTEXT, "-n", "nowhere", "x"], 4)?;
    ensure!(said.contains("no hub in the namespace nowhere"), "{said}");

    make_map(&site, "after").await?;
    let said = site.refused(&["admin", "restore", "--context", CONTEXT, &file], 2)?;
    ensure!(said.contains("--yes") && replicas(&site).await? == Some(1), "{said}");
    let cut = site.path("cut");
    let whole = fs::read(&file)?;
    fs::write(&cut, &whole[..whole.len() / 2])?;
    let said = site.refused(
        &[
            "admin",
            "restore",
            "--context",
            CONTEXT,
            "--yes",
            &cut.display().to_string(),
        ],
        2,
    )?;
    ensure!(
        said.contains("is damaged") && replicas(&site).await? == Some(1),
        "{said}"
    );

    // Killed directly after it has stopped the hub. A second run completes the restore.
    let mut killed = site.command(&["admin", "restore", "--context", CONTEXT, "--yes", &file])?;
    let mut killed = killed.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    wait_for("the hub to be stopped", PATIENCE, || async {
        Ok((replicas(&site).await? == Some(0)).then_some(()))
    })
    .await?;
    killed.kill()?;
    killed.wait()?;
    let said = restore(&site, &file)?;
    ensure!(replicas(&site).await? == Some(1), "{said}");
    ensure!(
        has_map(&site, "before").await? && !has_map(&site, "after").await?,
        "{said}"
    );
    confirm(&site, &said).await?;
    assert_eq!((site.uids().await?, agent(&site).await?), (uids, agent_was));
    Ok(())
}

/// Stops the hub, destroys its database, and starts it. It fails again and again.
async fn damage(site: &Site) -> Result<()> {
    let (sets, pods): (Api<StatefulSet>, Api<Pod>) =
        (site.theirs(HUB_NAMESPACE).await?, site.theirs(HUB_NAMESPACE).await?);
    let scale = async |replicas: u32| {
        let patch = Patch::Merge(json!({"spec": {"replicas": replicas}}));
        sets.patch("farwater-hub", &PatchParams::default(), &patch).await
    };
    scale(0).await?;
    wait_for("the hub's pod to end", PATIENCE, || async {
        Ok(pods.get_opt(HUB_POD).await?.is_none().then_some(()))
    })
    .await?;
    let folder = site.volume("hub")?;
    fs::write(
        folder.join("hub.db"),
        b"this is no database, and long enough to be taken for a damaged one ".repeat(100),
    )?;
    for log in ["hub.db-wal", "hub.db-shm"] {
        let _ = fs::remove_file(folder.join(log));
    }
    scale(1).await?;
    wait_for("the hub's pod to fail", PATIENCE, || async {
        let Some(pod) = pods.get_opt(HUB_POD).await? else {
            return Ok(None);
        };
        let states = pod
            .status
            .iter()
            .flat_map(|status| &status.container_statuses)
            .flatten();
        Ok(states
            .map(|state| state.restart_count)
            .any(|count| count > 0)
            .then_some(()))
    })
    .await
}

/// The hub refuses the restore in its pod, and everything is as before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_of_another_hub_without_its_keys_changes_nothing_and_a_damaged_database_is_restored() -> Result<()> {
    let site = site().await?;
    let file = site.path("backup").display().to_string();
    backup(&site, &file)?;
    make_map(&site, "kept").await?;
    let strange = {
        let hub = farwater_testkit::Hub::start(&site.path("strange")).await?;
        let file = site.path("strange.backup").display().to_string();
        site.farwater(&["admin", "backup", "--data-dir", &hub.dir().display().to_string(), &file])?;
        file
    };
    let said = site.refused(&["admin", "restore", "--context", CONTEXT, "--yes", &strange], 1)?;
    ensure!(
        said.contains("another seal key") && said.contains("nothing of its data was changed"),
        "{said}"
    );
    ensure!(
        has_map(&site, "kept").await? && replicas(&site).await? == Some(1),
        "{said}"
    );

    // A database with which its pod does not start any more.
    damage(&site).await?;
    let said = restore(&site, &file)?;
    ensure!(!has_map(&site, "kept").await?, "{said}");
    confirm(&site, &said).await
}

/// The volume is lost with everything on it. A new hub has other keys, until the backup restores the old ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_hub_comes_back_into_a_new_installation_and_no_cluster_joins_anew() -> Result<()> {
    let site = site().await?;
    let (uids, agent_was) = (site.uids().await?, agent(&site).await?);
    let file = site.path("backup").display().to_string();
    backup(&site, &file)?;

    lose_the_hub(&site).await?;
    site.install()?;
    // The new hub does not know the clusters.
    ensure!(
        site.ours::<farwater_api::Cluster>()
            .await?
            .get_opt(CLUSTER)
            .await?
            .is_none()
    );

    let said = restore(&site, &file)?;
    confirm(&site, &said).await?;
    assert_eq!((site.uids().await?, agent(&site).await?), (uids, agent_was));
    let claims: Api<PersistentVolumeClaim> = site.theirs(HUB_NAMESPACE).await?;
    let volume = claims
        .get("data-farwater-hub-0")
        .await?
        .spec
        .and_then(|spec| spec.volume_name);
    assert_eq!(volume.as_deref(), Some("hub-2"));
    Ok(())
}

/// Deletes it with its namespace and volume. There is space for another one.
async fn lose_the_hub(site: &Site) -> Result<()> {
    let namespaces: Api<Namespace> = Api::all(site.node.client().await?);
    namespaces.delete(HUB_NAMESPACE, &DeleteParams::default()).await?;
    wait_for("the hub's namespace to be gone", 2 * PATIENCE, || async {
        Ok(namespaces.get_opt(HUB_NAMESPACE).await?.is_none().then_some(()))
    })
    .await?;
    site.node.provide("hub-2").await.map(drop)
}

/// The database is on a server, and the keys are on the volume.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hub_on_postgresql_is_restored_and_its_keys_alone_where_the_database_survived() -> Result<()> {
    let server = Postgres::start_with(&[("listen_addresses", "*"), ("fsync", "off")]).await?;
    let site = Site::start().await?;
    let url = server
        .create_database()
        .await?
        .replace("127.0.0.1", &site.node.machine().to_string());
    let url = url.replace(&format!(":{}", postgres::PASSWORD), "");
    let make_secret = async || -> Result<()> {
        let namespaces: Api<Namespace> = Api::all(site.node.client().await?);
        let namespace = serde_json::from_value(json!({"metadata": {"name": HUB_NAMESPACE}}))?;
        namespaces.create(&PostParams::default(), &namespace).await?;
        let secret: Secret = serde_json::from_value(json!({
            "metadata": {"name": "database"}, "stringData": {"url": url, "password": postgres::PASSWORD},
        }))?;
        site.theirs(HUB_NAMESPACE)
            .await?
            .create(&PostParams::default(), &secret)
            .await?;
        Ok(())
    };
    make_secret().await?;
    site.install_with(&["--database-secret", "database"])?;
    site.join()?;
    site.poll_every("1s").await?;
    site.deploy().await?;
    let agent_was = agent(&site).await?;
    let file = site.path("backup").display().to_string();
    backup(&site, &file)?;
    make_map(&site, "after").await?;
    let said = restore(&site, &file)?;
    ensure!(
        !said.contains(postgres::PASSWORD) && !has_map(&site, "after").await?,
        "{said}"
    );
    confirm(&site, &said).await?;

    // The hub's cluster is lost, but the database server is not: its rows are newer than the backup's.
    make_map(&site, "newest").await?;
    lose_the_hub(&site).await?;
    make_secret().await?;
    // The new hub's own keys can't decrypt the database. It says so and does not start.
    let install = ["--database-secret", "database", "--timeout", "20"];
    let failed = site
        .install_with(&install)
        .err()
        .context("a hub with other keys starts")?;
    ensure!(format!("{failed:#}").contains("another seal key"), "{failed:#}");
    let output = site.run(&["admin", "restore", "--context", CONTEXT, "--yes", "--keys-only", &file])?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    ensure!(has_map(&site, "newest").await?);
    wait_for("the cluster to be heard", 2 * PATIENCE, || async {
        let polled = site.cluster().await?.last_heard_time;
        Ok(polled
            .is_some_and(|heard| heard.0.as_second() > jiff::Timestamp::now().as_second() - 5)
            .then_some(()))
    })
    .await?;
    assert_eq!(agent(&site).await?, agent_was);
    Ok(())
}

const CERTIFICATE: &str = "hub-tls";

/// A TLS Secret as cert-manager creates and renews it.
async fn put_certificate(site: &Site, authority: &Authority) -> Result<()> {
    let pair = authority.issue(&[&site.node.address().to_string()], 24)?;
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": CERTIFICATE}, "type": "kubernetes.io/tls",
        "stringData": {"tls.crt": pair.certificate, "tls.key": pair.key, "ca.crt": authority.pem()},
    });
    let secrets: Api<Secret> = site.theirs(HUB_NAMESPACE).await?;
    secrets
        .patch(CERTIFICATE, &PatchParams::apply("cert-manager"), &Patch::Apply(secret))
        .await?;
    Ok(())
}

/// The hub's pod: its uid, its number of restarts, and its image.
async fn hub_pod(site: &Site) -> Result<(Option<String>, i32, Option<String>)> {
    let pod: Pod = site.theirs(HUB_NAMESPACE).await?.get(HUB_POD).await?;
    let states = pod
        .status
        .iter()
        .flat_map(|status| &status.container_statuses)
        .flatten();
    let starts = states.map(|state| state.restart_count).sum();
    let image = pod
        .spec
        .and_then(|spec| spec.containers.into_iter().next())
        .and_then(|container| container.image);
    Ok((pod.metadata.uid, starts, image))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hub_takes_a_renewed_certificate_and_another_version_and_nothing_else_changes() -> Result<()> {
    let site = Site::start().await?;
    let authority = Authority::new("a company")?;
    let namespaces: Api<Namespace> = Api::all(site.node.client().await?);
    let namespace = serde_json::from_value(json!({"metadata": {"name": HUB_NAMESPACE}}))?;
    namespaces.create(&PostParams::default(), &namespace).await?;
    put_certificate(&site, &authority).await?;
    let tls = ["--tls-secret", CERTIFICATE];
    site.install_with(&tls)?;
    site.join()?;
    site.poll_every("1s").await?;
    site.deploy().await?;
    let (agent_before, workload) = (agent(&site).await?, site.uids().await?);

    let before = hub_pod(&site).await?;
    put_certificate(&site, &authority).await?;
    wait_for("the hub to take the renewed certificate", PATIENCE, || async {
        let log = site.log_of(HUB_NAMESPACE, HUB_POD).await;
        Ok(log
            .contains("the server's certificate was renewed from its files")
            .then_some(()))
    })
    .await?;
    ensure!(
        hub_pod(&site).await? == before,
        "its pod is another, or was started again"
    );

    site.node.import(&Images::make_next_hub(&site.path(""))?)?;
    for image in [HUB_NEXT, HUB] {
        site.install_image(image, &tls)?;
        let (uid, _, runs) = hub_pod(&site).await?;
        ensure!(uid != before.0 && runs.as_deref() == Some(image), "{runs:?} runs");
        let name = image.rsplit(':').next().unwrap_or_default();
        make_map(&site, name).await?;
        site.until_cluster("Ready", Some("True")).await?;
        site.until_ready().await?;
    }
    ensure!(has_map(&site, "next").await?, "a write under the other version is lost");
    ensure!(agent(&site).await? == agent_before, "the agent was started again");
    ensure!(site.uids().await? == workload, "the workload changed");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_hubs_pod_is_deleted_and_no_agent_misses_more_than_one_poll_and_no_service_changes() -> Result<()> {
    let outcome = hub_pod::on_a_new_site(INTERVAL, 1, 1, |number, seconds| {
        eprintln!("deletion {number}: the hub was away for {seconds} s");
    })
    .await?;
    eprintln!("{}", serde_json::to_string(&outcome)?);
    ensure!(
        outcome.away.iter().all(|seconds| *seconds < LONGEST_AWAY.as_secs_f64()),
        "{:?}",
        outcome.away
    );
    outcome.check()
}
