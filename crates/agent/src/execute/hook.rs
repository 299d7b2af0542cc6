//! Hooks: how their objects are created, observed and ended, and the output of their containers.

use farwater_api::{
    Digest,
    hooks::{HOOK_RUN, MAX_LOG_BYTES},
    objects::ObjectRef,
};
use farwater_fleet::{
    health::rules::Rules,
    hooks::{ResolvedHook, Run},
    junit,
    ownership::proven_owner,
    plan::GroupVersionKind,
};
use serde_json::Value;

use super::{Deleted, Executor, send::from_bytes};
use crate::{
    children::explain,
    kinds::Served,
    kubernetes::{ApiError, ApplyMode, Resource, escape, to_bytes},
    live::live_object,
};

/// Lines of a log that are read: a JUnit file of the largest size, and the lines after it.
const LOG_LINES: usize = 20_000;
/// Label that the Job controller puts on its pods.
const JOB_UID: &str = "batch.kubernetes.io/controller-uid";

const TIME_TO_LIVE: &str = "ttlSecondsAfterFinished";

fn is_job(object: &ObjectRef) -> bool {
    (object.group.as_str(), object.kind.as_str()) == ("batch", "Job")
}

/// See [`Run::ttl`].
pub fn time_to_live(hook: &ResolvedHook) -> Option<u32> {
    let manifest: Value = serde_json::from_str(&hook.body).ok().filter(|_| is_job(&hook.object))?;
    manifest["spec"][TIME_TO_LIVE]
        .as_u64()
        .and_then(|seconds| u32::try_from(seconds).ok())
}

/// The state of a hook's name before its object is created.
#[derive(Debug)]
pub enum Way {
    Clear,
    /// This very run was begun before.
    Begun(Value),
    /// The object with its name is being deleted.
    Leaving,
}

#[derive(Debug, thiserror::Error)]
pub enum HookError {
    #[error("its kind is not served")]
    NotServed,
    #[error("an object of its name exists, and was not made by this service")]
    Foreign,
    #[error(transparent)]
    Api(#[from] ApiError),
}

impl HookError {
    /// Whether a retry may succeed later.
    pub fn is_passing(&self) -> bool {
        matches!(self, Self::Api(error) if error.is_passing())
    }
}

/// The output of a hook's container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Output {
    pub exit_code: Option<i32>,
    pub log: Option<String>,
    pub junit: Option<String>,
    /// Why a part of it is missing. Empty: nothing is.
    pub note: String,
    /// The missing part may be readable later.
    pub may_come: bool,
}

impl Output {
    fn without(what: &str, error: &ApiError) -> Self {
        Self {
            note: format!("{what} can't be read: {error}"),
            may_come: error.is_passing(),
            ..Self::default()
        }
    }
}

impl Executor<'_> {
    /// Deletes the object of an earlier run.
    pub async fn clear_way(&self, hook: &ResolvedHook, id: &Digest) -> Result<Way, HookError> {
        let path = self.hook_resource(&hook.object).await?.path_of(&hook.object);
        let found = match self.kubernetes.get(Some(self.account), &path, false).await {
            Err(error) if error.is_not_found() => return Ok(Way::Clear),
            other => other?,
        };
        let live = live_object(&found);
        let owner = live.owner.as_deref().and_then(|owner| proven_owner(owner, &hook.key()));
        if owner != Some(self.service) {
            return Err(HookError::Foreign);
        }
        if live.deleting {
            return Ok(Way::Leaving);
        }
        if found["metadata"]["annotations"][HOOK_RUN] == id.to_string() {
            return Ok(Way::Begun(found));
        }
        match self.delete_object(&hook.object, &live.uid, |_| None).await? {
            Deleted::Gone => Ok(Way::Clear),
            _ => Ok(Way::Leaving),
        }
    }

    /// Creates the object of a run, and returns it.
    pub async fn make_hook(&self, hook: &ResolvedHook, id: &Digest) -> Result<Value, HookError> {
        let path = self.hook_resource(&hook.object).await?.path_of(&hook.object);
        let mut manifest = from_bytes(hook.body.as_bytes())?;
        manifest["metadata"]["annotations"][HOOK_RUN] = id.to_string().into();
        // The agent deletes it once its end was observed: see `Run::ttl`.
        if let Some(Value::Object(spec)) = manifest.get_mut("spec").filter(|_| is_job(&hook.object)) {
            spec.remove(TIME_TO_LIVE);
        }
        let body = to_bytes(&manifest)?;
        let mode = ApplyMode {
            force: false,
            dry_run: false,
        };
        Ok(self
            .persist(|| self.kubernetes.apply(Some(self.account), &path, body.clone(), mode))
            .await?)
    }

    /// The object of a run. None: it is gone, or another object has its name.
    pub async fn read_hook(&self, run: &Run) -> Result<Option<Value>, HookError> {
        let path = self.hook_resource(&run.object).await?.path_of(&run.object);
        match self.kubernetes.get(Some(self.account), &path, false).await {
            Err(error) if error.is_not_found() => Ok(None),
            Ok(object) => Ok(Some(object).filter(|object| object["metadata"]["uid"] == run.uid.as_str())),
            Err(error) => Err(error.into()),
        }
    }

    /// Deletes the object of a run with everything that it runs. It may take a while until it is gone.
    pub async fn end_hook(&self, object: &ObjectRef, uid: &str) -> Result<(), ApiError> {
        self.delete_object(object, uid, |_| None).await.map(drop)
    }

    async fn hook_resource(&self, object: &ObjectRef) -> Result<Resource, HookError> {
        match self
            .kinds
            .find(self.kubernetes, &GroupVersionKind::from(object))
            .await?
        {
            Served::As(resource) => Ok(resource),
            Served::No => Err(HookError::NotServed),
        }
    }

    /// The cause of a failed hook among the objects that it owns, e.g. a pod that can't pull its image. Empty: none is
    /// found.
    pub async fn find_cause(&self, rules: &Rules, run: &Run) -> String {
        let Ok(resource) = self.hook_resource(&run.object).await else {
            return String::new();
        };
        let path = resource.path_of(&run.object);
        match explain(self.kubernetes, self.account, rules, &path).await {
            Ok(looked) => looked.text,
            Err(error) => {
                tracing::debug!(hook = %run.object, %error, "can't read the objects that a hook owns");
                String::new()
            }
        }
    }

    /// The output of a Job's last pod, or of a Pod. `hook` is the object; other kinds have none.
    pub async fn read_output(&self, hook: &Value) -> Output {
        let pod = match hook["kind"].as_str() {
            Some("Pod") => Ok(Some(hook.clone())),
            Some("Job") => self.last_pod(hook).await,
            _ => return Output::default(),
        };
        match pod {
            Ok(Some(pod)) => self.read_pod(&pod).await,
            Ok(None) => Output {
                note: "its pods are gone".to_owned(),
                ..Output::default()
            },
            Err(error) => Output::without("its pods", &error),
        }
    }

    async fn last_pod(&self, job: &Value) -> Result<Option<Value>, ApiError> {
        let metadata = &job["metadata"];
        let namespace = metadata["namespace"].as_str().unwrap_or_default();
        let selector = format!("{JOB_UID}={}", metadata["uid"].as_str().unwrap_or_default());
        let mut last: Option<(String, Value)> = None;
        let collection = format!("/api/v1/namespaces/{}/pods", escape(namespace));
        self.kubernetes
            .list(Some(self.account), &collection, &selector, false, |pod| {
                let created = pod["metadata"]["creationTimestamp"]
                    .as_str()
                    .unwrap_or_default()
                    .to_owned();
                if last.as_ref().is_none_or(|(latest, _)| *latest <= created) {
                    last = Some((created, pod));
                }
            })
            .await?;
        Ok(last.map(|(_, pod)| pod))
    }

    async fn read_pod(&self, pod: &Value) -> Output {
        let Some((container, exit_code)) = telling_container(pod) else {
            return Output::default();
        };
        let metadata = &pod["metadata"];
        let text = |field: &str| escape(metadata[field].as_str().unwrap_or_default());
        let path = format!(
            "/api/v1/namespaces/{}/pods/{}/log?container={}&tailLines={LOG_LINES}",
            text("namespace"),
            text("name"),
            escape(&container)
        );
        let mut log = junit::Log::default();
        let read = self
            .kubernetes
            .read_log(Some(self.account), &path, |part| log.push(part))
            .await;
        if let Err(error) = read {
            return Output {
                exit_code,
                ..Output::without("its log", &error)
            };
        }
        let mut output = Output {
            exit_code,
            ..Output::default()
        };
        if log.too_large {
            output.note = "its JUnit file is too large".to_owned();
        }
        let (tail, junit) = log.finish();
        debug_assert!(tail.len() <= MAX_LOG_BYTES);
        output.log = Some(tail).filter(|tail| !tail.is_empty());
        output.junit = junit;
        output
    }
}

/// The container to read: the first that failed, otherwise the first; and its exit code.
fn telling_container(pod: &Value) -> Option<(String, Option<i32>)> {
    let statuses = ["initContainerStatuses", "containerStatuses"];
    let statuses = statuses
        .iter()
        .flat_map(|field| pod["status"][*field].as_array().into_iter().flatten());
    let ends = statuses.filter_map(|status| {
        let code = status["state"]["terminated"]["exitCode"].as_i64()?;
        Some((status["name"].as_str()?.to_owned(), i32::try_from(code).ok()?))
    });
    let ends: Vec<(String, i32)> = ends.collect();
    let first = pod["spec"]["containers"][0]["name"].as_str()?;
    let failed = ends.iter().find(|(_, code)| *code != 0);
    let found = failed.or_else(|| ends.iter().find(|(name, _)| name == first));
    Some(found.map_or_else(|| (first.to_owned(), None), |(name, code)| (name.clone(), Some(*code))))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_container_that_failed_is_asked() {
        let check = |status: Value, expected: (&str, Option<i32>)| {
            let pod = json!({"spec": {"containers": [{"name": "main"}, {"name": "proxy"}]}, "status": status});
            let (name, code) = telling_container(&pod).unwrap();
            assert_eq!((name.as_str(), code), expected, "{pod}");
        };
        let ended = |name: &str, code: i32| json!({"name": name, "state": {"terminated": {"exitCode": code}}});
        check(json!({}), ("main", None));
        check(
            json!({"containerStatuses": [ended("proxy", 0), ended("main", 0)]}),
            ("main", Some(0)),
        );
        check(
            json!({"containerStatuses": [ended("main", 0), ended("proxy", 2)]}),
            ("proxy", Some(2)),
        );
        check(
            json!({"initContainerStatuses": [ended("fetch", 1)]}),
            ("fetch", Some(1)),
        );
        assert_eq!(telling_container(&json!({})), None);
    }
}
