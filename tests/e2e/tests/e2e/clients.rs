//! Other projects' Kubernetes clients with the hub as API server: controllers with client-go and kube-rs.

use std::{
    collections::BTreeMap,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use farwater_api::ADMIN_NAMESPACE;
use farwater_e2e::PATIENCE;
use farwater_testkit::{Hub, informer, wait_for};
use futures::{StreamExt as _, TryStreamExt as _};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::{coordination::v1::Lease, core::v1::ConfigMap},
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use kube::{
    Api, Client, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
    runtime::{
        WatchStreamExt as _,
        controller::{Action, Controller},
        watcher,
    },
};
use serde_json::{Value, json};

fn map(name: &str, value: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name}, "data": {"value": value}})).unwrap_or_default()
}

fn maps(client: &Client) -> Api<ConfigMap> {
    Api::namespaced(client.clone(), ADMIN_NAMESPACE)
}

#[tokio::test(flavor = "multi_thread")]
async fn informers_of_client_go_stay_right_under_churn_and_a_kill() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let mut hub = Hub::start(dir.path()).await?;
    // One kill: another one would be too close to the end.
    let outcome = informer::run(&mut hub, Duration::from_secs(15), 1, Some(Duration::from_secs(6))).await?;
    println!("{outcome:?}");
    outcome.check()
}

/// Runs the informer while its objects are changed without its knowledge, as if a hub lost writes or showed old states.
/// It reports only the first fault of an object, so it runs again until it has met all of them.
#[tokio::test(flavor = "multi_thread")]
async fn the_informer_finds_what_is_lost_what_comes_back_and_what_is_another() -> Result<()> {
    const EXPECTED: [&str; 3] = ["but is lost", "it surely didn't exist, but", "but now has"];
    const MOST_RUNS: i64 = 4;
    let mut faults = Vec::new();
    for seed in 0..MOST_RUNS {
        faults.extend(run_and_meddle(seed).await?);
        if EXPECTED
            .iter()
            .all(|expected| faults.iter().any(|fault| fault.contains(expected)))
        {
            return Ok(());
        }
    }
    anyhow::bail!("not all of {EXPECTED:?} are in {faults:#?}")
}

/// The informer's findings on a new hub.
async fn run_and_meddle(seed: i64) -> Result<Vec<String>> {
    let dir = tempfile::tempdir()?;
    let mut hub = Hub::start(dir.path()).await?;
    let api = maps(&hub.client().await?);
    let meddle = async {
        let theirs = wait_for("objects of the informer", PATIENCE, || async {
            let list = api.list(&ListParams::default()).await?.items;
            let names: Vec<_> = list
                .iter()
                .map(|map| map.name_any())
                .filter(|name| name.starts_with('w'))
                .collect();
            Ok((names.len() >= 30).then_some(names))
        })
        .await?;
        let all = (0..4).flat_map(|writer| (0..40).map(move |number| format!("w{writer}-{number}")));
        let others: Vec<_> = all.filter(|name| !theirs.contains(name)).collect();
        // Several objects of each kind: the informer also changes and deletes them, and reports only the first fault.
        for name in &theirs[..4] {
            api.delete(name, &DeleteParams::default()).await.ok();
        }
        for name in &theirs[4..12] {
            api.delete(name, &DeleteParams::default()).await.ok();
            api.create(&PostParams::default(), &map(name, "ours")).await.ok();
        }
        for name in others.iter().take(4) {
            api.create(&PostParams::default(), &map(name, "ours")).await.ok();
        }
        anyhow::Ok(())
    };
    let (outcome, meddled) = tokio::join!(informer::run(&mut hub, Duration::from_secs(5), seed, None), meddle);
    meddled?;
    Ok(outcome?.faults)
}

/// A watcher's cache matches the existing objects, even after the hub was down.
#[tokio::test(flavor = "multi_thread")]
async fn a_watcher_of_kube_rs_goes_on_after_a_restart_of_the_hub() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let mut hub = Hub::start(dir.path()).await?;
    let client = hub.client().await?;
    let api = maps(&client);
    for number in 0..20 {
        api.create(&PostParams::default(), &map(&format!("m{number}"), "1"))
            .await?;
    }
    let (reader, writer) = kube::runtime::reflector::store();
    let config = watcher::Config::default().streaming_lists();
    let watch = watcher(maps(&client), config)
        .default_backoff()
        .reflect(writer)
        .applied_objects();
    let watching = tokio::spawn(async move { pin!(watch).for_each(|_| async {}).await });
    reader.wait_until_ready().await.context("the first list")?;
    ensure!(reader.len() == 20, "{} objects", reader.len());

    hub.restart().await?;
    let api = maps(&hub.client().await?);
    api.patch(
        "m0",
        &PatchParams::default(),
        &Patch::Merge(json!({"data": {"value": "2"}})),
    )
    .await?;
    api.delete("m1", &DeleteParams::default()).await?;
    api.create(&PostParams::default(), &map("m20", "1")).await?;
    let held = || {
        let value = |map: &ConfigMap| {
            map.data
                .as_ref()
                .and_then(|data| data.get("value"))
                .cloned()
                .unwrap_or_default()
        };
        reader
            .state()
            .iter()
            .map(|map| (map.name_any(), value(map)))
            .collect::<BTreeMap<_, _>>()
    };
    wait_for(
        "the watcher's cache to match the existing objects",
        PATIENCE,
        || async {
            let held = held();
            let right = held.len() == 20 && held.get("m0").is_some_and(|v| v == "2") && held.contains_key("m20");
            Ok((right && !held.contains_key("m1")).then_some(()))
        },
    )
    .await?;
    watching.abort();
    Ok(())
}

struct Mirror {
    client: Client,
    reconciled: AtomicU64,
}

#[derive(Debug, thiserror::Error)]
#[error("mirror a ConfigMap")]
struct MirrorError(#[from] kube::Error);

/// Keeps a copy that is owned by the original: server-side apply and owner references.
async fn mirror(original: Arc<ConfigMap>, context: Arc<Mirror>) -> Result<Action, MirrorError> {
    context.reconciled.fetch_add(1, Ordering::Relaxed);
    let owner = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "name": original.name_any(), "uid": original.uid(), "controller": true,
    });
    let copy = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": format!("copy-of-{}", original.name_any()), "ownerReferences": [owner]},
        "data": original.data,
    });
    let parameters = PatchParams::apply("mirror").force();
    maps(&context.client)
        .patch(
            &format!("copy-of-{}", original.name_any()),
            &parameters,
            &Patch::Apply(copy),
        )
        .await?;
    Ok(Action::await_change())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_controller_of_kube_rs_applies_owns_and_repairs() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let hub = Hub::start(dir.path()).await?;
    let client = hub.client().await?;
    let api = maps(&client);
    let context = Arc::new(Mirror {
        client: client.clone(),
        reconciled: AtomicU64::new(0),
    });
    let controller = Controller::new(maps(&client), watcher::Config::default().labels("mirrored=yes"))
        .owns(maps(&client), watcher::Config::default())
        .run(
            mirror,
            |_, _, _| Action::requeue(Duration::from_secs(1)),
            Arc::clone(&context),
        );
    let running = tokio::spawn(controller.for_each(|_| async {}));

    let mut original = map("a", "1");
    original.labels_mut().insert("mirrored".to_owned(), "yes".to_owned());
    api.create(&PostParams::default(), &original).await?;
    let copy_is = |value: &'static str| {
        let api = api.clone();
        wait_for("the copy", PATIENCE, move || {
            let api = api.clone();
            async move {
                let copy = api.get_opt("copy-of-a").await?;
                Ok(copy.filter(|copy| {
                    copy.data
                        .as_ref()
                        .is_some_and(|d| d.get("value").is_some_and(|v| v == value))
                }))
            }
        })
    };
    let copy = copy_is("1").await?;
    let managers: Vec<_> = copy
        .managed_fields()
        .iter()
        .map(|m| (m.manager.clone(), m.operation.clone()))
        .collect();
    ensure!(
        managers == [(Some("mirror".to_owned()), Some("Apply".to_owned()))],
        "{managers:?}"
    );
    api.patch(
        "a",
        &PatchParams::default(),
        &Patch::Merge(json!({"data": {"value": "2"}})),
    )
    .await?;
    copy_is("2").await?;
    // Another client's change is undone, and an apply without force gets an error that names the field's owner.
    api.patch(
        "copy-of-a",
        &PatchParams::default(),
        &Patch::Merge(json!({"data": {"value": "x"}})),
    )
    .await?;
    copy_is("2").await?;
    let theirs = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"value": "y"}});
    let refused = api
        .patch("copy-of-a", &PatchParams::apply("other"), &Patch::Apply(theirs))
        .await;
    let Err(kube::Error::Api(status)) = refused else {
        anyhow::bail!("not refused: {refused:?}")
    };
    ensure!(
        status.code == 409 && status.message.contains("conflict with \"mirror\": .data.value"),
        "{status:?}"
    );

    api.delete("a", &DeleteParams::default()).await?;
    wait_for("the copy to go with its owner", PATIENCE, || async {
        Ok(api.get_opt("copy-of-a").await?.is_none().then_some(()))
    })
    .await?;
    ensure!(context.reconciled.load(Ordering::Relaxed) >= 3);
    running.abort();
    Ok(())
}

/// Takes or renews the lease if it is free, our own or expired. The resource version decides between candidates.
async fn stand(leases: &Api<Lease>, name: &str, now: Timestamp) -> Result<bool> {
    let mut lease = match leases.get_opt("leader").await? {
        Some(lease) => lease,
        None => {
            let empty = json!({"metadata": {"name": "leader"}, "spec": {}});
            match leases
                .create(&PostParams::default(), &serde_json::from_value(empty)?)
                .await
            {
                Err(kube::Error::Api(status)) if status.code == 409 => return Ok(false),
                made => made?,
            }
        }
    };
    let spec = lease.spec.get_or_insert_default();
    let is_ours = spec.holder_identity.as_deref() == Some(name);
    let renewed = spec.renew_time.as_ref().map(|renewed| renewed.0);
    let is_over = renewed.is_none_or(|renewed| now.duration_since(renewed) > SignedDuration::from_secs(15));
    if !is_ours && !is_over {
        return Ok(false);
    }
    if !is_ours {
        spec.lease_transitions = Some(spec.lease_transitions.unwrap_or(0) + 1);
        spec.acquire_time = Some(MicroTime(now));
        spec.holder_identity = Some(name.to_owned());
    }
    spec.lease_duration_seconds = Some(15);
    spec.renew_time = Some(MicroTime(now));
    match leases.replace("leader", &PostParams::default(), &lease).await {
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
        replaced => replaced.map(|_| true).map_err(Into::into),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_many_candidates_holds_the_lease() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let hub = Hub::start(dir.path()).await?;
    let leases: Api<Lease> = Api::namespaced(hub.client().await?, ADMIN_NAMESPACE);
    let start = Timestamp::now();
    for round in 0..10 {
        // Each round starts after the previous holder's time.
        let now = start + SignedDuration::from_secs(20 * round);
        let names: Vec<String> = (0..8).map(|number| format!("candidate-{number}")).collect();
        let stands = names.iter().map(|name| stand(&leases, name, now));
        let won: Vec<bool> = futures::stream::iter(stands).buffered(8).try_collect().await?;
        ensure!(won.iter().filter(|won| **won).count() == 1, "round {round}: {won:?}");
        let holder: Value = serde_json::to_value(leases.get("leader").await?)?;
        let holder = holder.pointer("/spec/holderIdentity").cloned();
        ensure!(
            holder
                == names
                    .iter()
                    .zip(&won)
                    .find(|(_, won)| **won)
                    .map(|(name, _)| json!(name)),
            "{holder:?}"
        );
    }
    Ok(())
}
