//! The order in which the objects of one bundle are sent, by the API server's audit log.

use crate::support::{FakeHub, Service, outcome, report};
use farwater_api::{objects::Outcome, service_deployment::DeletionPolicy};
use farwater_testkit::{Plane, PlaneOptions, kube::AUDITED};
use jiff::Timestamp;

/// The objects of the last stage come first.
const MANIFESTS: &str = "apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: order.example.com}
webhooks: []
---
apiVersion: order.example.com/v1
kind: Boat
metadata: {name: ark}
---
apiVersion: v1
kind: Service
metadata: {name: front}
spec: {selector: {app: web}, ports: [{port: 80}]}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: more}
spec: {maxReplicas: 2, scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}}
---
apiVersion: batch/v1
kind: CronJob
metadata: {name: nightly}
spec:
  schedule: 0 3 * * *
  jobTemplate: {spec: {template: {spec: {restartPolicy: Never, containers: [{name: web, image: web}]}}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template: {metadata: {labels: {app: web}}, spec: {containers: [{name: web, image: web}]}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: bound}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: reader}
subjects: [{kind: ServiceAccount, name: runner, namespace: ordered}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: reader}
rules: [{apiGroups: [''], resources: [configmaps], verbs: [get]}]
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: runner}
---
apiVersion: v1
kind: Secret
metadata: {name: password}
stringData: {value: x}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {value: x}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: boats.order.example.com}
spec:
  group: order.example.com
  scope: Namespaced
  names: {kind: Boat, plural: boats}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]
---
apiVersion: v1
kind: Namespace
metadata: {name: ordered}
";

/// Resources and names, stage by stage.
const STAGES: [&[(&str, &str)]; 6] = [
    &[("namespaces", "ordered")],
    &[("customresourcedefinitions", "boats.order.example.com")],
    &[
        ("configmaps", "settings"),
        ("secrets", "password"),
        ("serviceaccounts", "runner"),
        ("roles", "reader"),
        ("rolebindings", "bound"),
    ],
    &[("deployments", "web"), ("cronjobs", "nightly")],
    &[
        ("horizontalpodautoscalers", "more"),
        ("services", "front"),
        ("boats", "ark"),
    ],
    &[("validatingwebhookconfigurations", "order.example.com")],
];

/// The stages of the objects that were sent since then, in the order of the requests.
fn asked(plane: &Plane, since: Timestamp, verb: &str) -> Vec<usize> {
    let requests = plane.requests(since).unwrap();
    let requests = requests
        .iter()
        .filter(|request| request.verb == verb && request.object.subresource.is_empty());
    let stage = |resource: &str, name: &str| STAGES.iter().position(|stage| stage.contains(&(resource, name)));
    requests
        .filter_map(|request| stage(&request.object.resource, &request.object.name))
        .collect()
}

#[tokio::test]
async fn one_bundle_is_sent_in_the_order_of_its_stages_and_goes_in_reverse() {
    let plane = Plane::start_with(PlaneOptions::without_nodes().audited())
        .await
        .unwrap();
    let (hub, dir) = (FakeHub::start(), tempfile::tempdir().unwrap());
    let (state, log) = (dir.path().join("state"), dir.path().join("agent.log"));
    let _agent = crate::support::agent(&hub, &plane.kubeconfig_of(AUDITED).unwrap(), &state, &log, true);
    let mut service = Service::new(&hub, "ordered", &[("a.yaml", MANIFESTS)]);
    service.deployment.target_namespace = "ordered".to_owned();
    let begun = Timestamp::now();
    let entry = hub.set(service.entry());
    outcome(&hub, &entry, Outcome::Applied).await;
    let sent = asked(&plane, begun, "patch");
    assert!(sent.is_sorted(), "{sent:?}");
    // Each object was sent once, so none was tried before the objects that it needs existed.
    let counts: Vec<usize> = (0..STAGES.len())
        .map(|stage| sent.iter().filter(|one| **one == stage).count())
        .collect();
    assert_eq!(counts, STAGES.map(<[_]>::len));

    let entry = hub.set(service.removal(DeletionPolicy::Delete, None));
    let held = report(&hub, &entry, |report| report.held_prune.is_some())
        .await
        .held_prune
        .unwrap();
    let begun = Timestamp::now();
    let entry = hub.set(service.removal(DeletionPolicy::Delete, Some(held.digest)));
    outcome(&hub, &entry, Outcome::Removed).await;
    let mut deleted = asked(&plane, begun, "delete");
    assert!(deleted.is_sorted_by(|a, b| a >= b), "{deleted:?}");
    deleted.dedup();
    assert_eq!(deleted, [5, 4, 3, 2, 1, 0]);
}
