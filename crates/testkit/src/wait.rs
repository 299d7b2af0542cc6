//! Waits for conditions, with a limit. Tests never sleep for a fixed time.

use std::{
    collections::BTreeMap,
    fmt::Debug,
    future::Future,
    pin::pin,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Error, Result, anyhow, bail};
use futures::TryStreamExt as _;
use kube::{
    Api, Resource, ResourceExt as _,
    api::{ListParams, WatchEvent, WatchParams},
};
use serde::de::DeserializeOwned;

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// Retries `probe` until it returns `Some`. An error of the probe counts as "not yet", because servers that are
/// starting or being killed answer with errors. If the time runs out, it shows the last error.
pub async fn wait_for<T, F, P>(what: &str, bound: Duration, mut probe: F) -> Result<T>
where
    F: FnMut() -> P,
    P: Future<Output = Result<Option<T>>>,
{
    let start = Instant::now();
    let mut pause = FIRST_PAUSE;
    let mut last_error = None;
    loop {
        let left = bound.saturating_sub(start.elapsed());
        match tokio::time::timeout(left.max(FIRST_PAUSE), probe()).await {
            Ok(Ok(Some(value))) => return Ok(value),
            Ok(Ok(None)) => last_error = None,
            Ok(Err(error)) => last_error = Some(error),
            Err(_) => last_error = Some(last_error.unwrap_or_else(|| anyhow!("the last check itself did not return"))),
        }
        if start.elapsed() >= bound {
            return Err(match last_error {
                Some(error) => error.context(format!("waited {bound:?} for {what}")),
                None => anyhow!("waited {bound:?} for {what}"),
            });
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 3 / 2).min(LONGEST_PAUSE);
    }
}

/// Waits with a list and a watch until `check` succeeds for all objects of a kind. It does not poll thousands of
/// objects. If the time runs out, it shows one failing object.
pub async fn wait_for_all<K>(what: &str, bound: Duration, api: &Api<K>, check: impl Fn(&K) -> Result<()>) -> Result<()>
where
    K: Resource + Clone + Debug + DeserializeOwned,
{
    let mut lacking = BTreeMap::new();
    if let Ok(result) = tokio::time::timeout(bound, follow(api, &mut lacking, check)).await {
        return result.with_context(|| format!("wait for {what}"));
    }
    let count = lacking.len();
    match lacking.pop_first() {
        Some((name, error)) => Err(error.context(format!("waited {bound:?} for {what}; {count} are left, and {name}"))),
        None => bail!("waited {bound:?} for {what}: there was no answer"),
    }
}

/// Ends when no object fails. `lacking`: the reasons by name.
async fn follow<K>(api: &Api<K>, lacking: &mut BTreeMap<String, Error>, check: impl Fn(&K) -> Result<()>) -> Result<()>
where
    K: Resource + Clone + Debug + DeserializeOwned,
{
    loop {
        let list = api.list(&ListParams::default()).await?;
        *lacking = list
            .items
            .iter()
            .filter_map(|one| Some((one.name_any(), check(one).err()?)))
            .collect();
        if lacking.is_empty() {
            return Ok(());
        }
        let version = list.metadata.resource_version.unwrap_or_default();
        let mut events = pin!(api.watch(&WatchParams::default(), &version).await?);
        // If a watch ends or loses its version, list again.
        while let Ok(Some(event)) = events.try_next().await {
            match event {
                WatchEvent::Added(one) | WatchEvent::Modified(one) => match check(&one) {
                    Ok(()) => lacking.remove(&one.name_any()),
                    Err(error) => lacking.insert(one.name_any(), error),
                },
                WatchEvent::Deleted(one) => lacking.remove(&one.name_any()),
                WatchEvent::Bookmark(_) => None,
                WatchEvent::Error(_) => break,
            };
            if lacking.is_empty() {
                return Ok(());
            }
        }
        tokio::time::sleep(FIRST_PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::api::{Patch, PatchParams};
    use serde_json::json;

    use super::*;
    use crate::shared;

    #[tokio::test]
    async fn a_wait_that_runs_out_says_what_it_waited_for_and_the_last_error() {
        let error = wait_for("the moon", Duration::from_millis(60), || async {
            Err::<Option<()>, _>(anyhow!("clouds"))
        })
        .await
        .unwrap_err();
        let text = format!("{error:#}");
        assert!(text.contains("the moon") && text.contains("clouds"), "{text}");
    }

    #[tokio::test]
    async fn a_probe_that_hangs_does_not_outlive_the_bound() {
        let probe = || std::future::pending::<Result<Option<()>>>();
        let waited =
            tokio::time::timeout(Duration::from_secs(5), wait_for("it", Duration::from_millis(50), probe)).await;
        assert!(waited.unwrap().is_err());
    }

    #[tokio::test]
    async fn a_wait_for_all_sees_the_last_one_change_and_says_until_then_which_it_is() {
        let plane = shared(1).await.unwrap();
        let namespace = plane.namespace("wait").await.unwrap();
        let maps: Api<ConfigMap> = Api::namespaced(plane.client().await.unwrap(), &namespace);
        let write = async |value: &str| {
            let metadata = json!({"name": "last"});
            let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"a": value}});
            maps.patch("last", &PatchParams::apply("test"), &Patch::Apply(map))
                .await
                .unwrap();
        };
        write("old").await;
        let check = |map: &ConfigMap| match map.data.as_ref().and_then(|data| data.get("a")) {
            Some(value) if value == "old" => Err(anyhow!("it is {value}")),
            _ => Ok(()),
        };
        let error = wait_for_all("the new value", Duration::from_secs(1), &maps, check)
            .await
            .unwrap_err();
        let text = format!("{error:#}");
        assert!(
            text.contains("the new value; 1 are left, and last: it is old"),
            "{text}"
        );
        let (waited, ()) = tokio::join!(wait_for_all("it", Duration::from_secs(30), &maps, check), write("new"));
        waited.unwrap();
    }
}
