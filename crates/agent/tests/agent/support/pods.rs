//! Plays the scheduler and the kubelet. Pods end when a test says so, and the Job controller does the rest.

use farwater_testkit::{https::Https, wait_for};
use kube::{
    Api, Client,
    api::{DynamicObject, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::json;

use super::{PATIENCE, api};

pub fn jobs(client: &Client, namespace: &str) -> Api<DynamicObject> {
    api(client, "batch", "v1", "Job", namespace)
}

/// Ends the pod of a Job with this exit code.
pub async fn end_job(client: &Client, namespace: &str, job: &str, code: i32) {
    let pods = api(client, "", "v1", "Pod", namespace);
    let uid = uid_of(&jobs(client, namespace), job).await;
    let selector = ListParams::default().labels(&format!("batch.kubernetes.io/controller-uid={uid}"));
    let what = format!("a pod of {job}");
    let pod = wait_for(&what, PATIENCE, || async {
        Ok(pods.list(&selector).await?.items.into_iter().next())
    });
    let pod = pod.await.unwrap().metadata.name.unwrap();
    end_pod(client, namespace, &pod, code).await;
}

/// Ends a pod with this exit code.
pub async fn end_pod(client: &Client, namespace: &str, pod: &str, code: i32) {
    let pods = api(client, "", "v1", "Pod", namespace);
    let ended = json!({"exitCode": code, "startedAt": "2026-01-01T00:00:00Z", "finishedAt": "2026-01-01T00:00:01Z"});
    let container = json!({"name": "main", "image": "x", "imageID": "", "ready": false, "restartCount": 0, "state": {"terminated": ended}});
    let phase = if code == 0 { "Succeeded" } else { "Failed" };
    let status = json!({"status": {"phase": phase, "containerStatuses": [container]}});
    pods.patch_status(pod, &PatchParams::default(), &Patch::Merge(status))
        .await
        .unwrap();
}

/// A node whose kubelet returns this log for every container.
pub async fn node(client: &Client, name: &str, log: &'static str) -> Https {
    let kubelet = Https::start(move |_| log.into()).await.unwrap();
    let node = json!({"metadata": {"name": name}, "status": {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": kubelet.port()}}}});
    let nodes = api(client, "", "v1", "Node", "");
    nodes
        .create(&PostParams::default(), &serde_json::from_value(node).unwrap())
        .await
        .unwrap();
    kubelet
}

/// The uid of an object, once it exists.
pub async fn uid_of(api: &Api<DynamicObject>, name: &str) -> String {
    let what = format!("{name} to be there");
    let found = wait_for(&what, PATIENCE, || async { Ok(api.get_opt(name).await?) });
    found.await.unwrap().metadata.uid.unwrap()
}

/// The scheduler name of pods that must not run: no scheduler has it.
pub const NOBODY: &str = "nobody";

/// A Job that runs nowhere, with annotations as flow mappings without braces.
pub fn job(name: &str, annotations: &str, argument: &str) -> String {
    format!(
        "apiVersion: batch/v1
kind: Job
metadata: {{name: {name}, annotations: {{{annotations}}}}}
spec:
  backoffLimit: 0
  template:
    spec:
      schedulerName: {NOBODY}
      restartPolicy: Never
      terminationGracePeriodSeconds: 0
      containers: [{{name: main, image: x, args: ['{argument}']}}]
"
    )
}

/// A Pod on a node, with annotations as flow mappings without braces.
pub fn pod(name: &str, annotations: &str, node: &str) -> String {
    format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: {name}, annotations: {{{annotations}}}}}
spec:
  nodeName: {node}
  restartPolicy: Never
  terminationGracePeriodSeconds: 0
  containers: [{{name: main, image: x}}]
"
    )
}
