//! Changes that an apply can't merge, because fields that it would keep are invalid next to the new ones: keyed lists
//! and unions of built-in kinds, on the real API server. The agent writes such objects as a whole, with the fields of
//! others.

use farwater_api::{objects::Outcome, protocol::Entry};
use farwater_testkit::wait_for;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::support::{PATIENCE, Service, api, object, outcome, report, world::world};

/// Group, version and kind of an object.
type Kind = (&'static str, &'static str, &'static str);

struct Case {
    name: &'static str,
    kind: Kind,
    /// The manifest without apiVersion, kind and name, before and after the change.
    before: &'static str,
    after: &'static str,
    /// The expected values in the cluster, by JSON pointer. null: no value.
    expected: &'static [(&'static str, &'static str)],
}

const DEPLOYMENT: Kind = ("apps", "v1", "Deployment");
const SERVICE: Kind = ("", "v1", "Service");

/// `POD` stands for the template of a pod, and `CONTAINER` for fields of its container.
const CASES: &[Case] = &[
    Case {
        name: "strategy",
        kind: DEPLOYMENT,
        before: "spec: {WORKLOAD}",
        after: "spec: {strategy: {type: Recreate}, WORKLOAD}",
        expected: &[("/spec/strategy", r#"{"type": "Recreate"}"#)],
    },
    Case {
        name: "probe",
        kind: DEPLOYMENT,
        before: "spec: {WORKLOAD}|livenessProbe: {httpGet: {path: /, port: 80}}",
        after: "spec: {WORKLOAD}|livenessProbe: {exec: {command: ['true']}}",
        expected: &[("/spec/template/spec/containers/0/livenessProbe/httpGet", "null")],
    },
    Case {
        name: "hook",
        kind: DEPLOYMENT,
        before: "spec: {WORKLOAD}|lifecycle: {preStop: {httpGet: {path: /, port: 80}}}",
        after: "spec: {WORKLOAD}|lifecycle: {preStop: {exec: {command: ['true']}}}",
        expected: &[("/spec/template/spec/containers/0/lifecycle/preStop/httpGet", "null")],
    },
    Case {
        name: "variable",
        kind: DEPLOYMENT,
        before: "spec: {WORKLOAD}|env: [{name: A, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]",
        after: "spec: {WORKLOAD}|env: [{name: A, value: b}]",
        expected: &[(
            "/spec/template/spec/containers/0/env",
            r#"[{"name": "A", "value": "b"}]"#,
        )],
    },
    Case {
        name: "volume",
        kind: DEPLOYMENT,
        before: "spec: {WORKLOAD}|volumeMounts: [{name: v, mountPath: /v}]|volumes: [{name: v, configMap: {name: a, optional: true}}]",
        after: "spec: {WORKLOAD}|volumeMounts: [{name: v, mountPath: /v}]|volumes: [{name: v, emptyDir: {}}]",
        expected: &[("/spec/template/spec/volumes", r#"[{"name": "v", "emptyDir": {}}]"#)],
    },
    Case {
        name: "twice",
        kind: DEPLOYMENT,
        before: "spec: {WORKLOAD}|env: [{name: A, value: a}]",
        after: "spec: {WORKLOAD}|env: [{name: A, value: a}, {name: A, value: b}]",
        expected: &[(
            "/spec/template/spec/containers/0/env",
            r#"[{"name": "A", "value": "a"}, {"name": "A", "value": "b"}]"#,
        )],
    },
    Case {
        name: "daemons",
        kind: ("apps", "v1", "DaemonSet"),
        before: "spec: {WORKLOAD}",
        after: "spec: {updateStrategy: {type: OnDelete}, WORKLOAD}",
        expected: &[("/spec/updateStrategy/type", r#""OnDelete""#)],
    },
    Case {
        name: "states",
        kind: ("apps", "v1", "StatefulSet"),
        before: "spec: {serviceName: a, WORKLOAD}",
        after: "spec: {serviceName: a, updateStrategy: {type: OnDelete}, WORKLOAD}",
        expected: &[("/spec/updateStrategy/type", r#""OnDelete""#)],
    },
    Case {
        name: "affinity",
        kind: SERVICE,
        before: "spec: {sessionAffinity: ClientIP, selector: {a: b}, ports: [{port: 80}]}",
        after: "spec: {sessionAffinity: None, selector: {a: b}, ports: [{port: 80}]}",
        expected: &[("/spec/sessionAffinityConfig", "null")],
    },
    Case {
        name: "balanced",
        kind: SERVICE,
        before: "spec: {type: LoadBalancer, externalTrafficPolicy: Local, selector: {a: b}, ports: [{port: 80}]}",
        after: "spec: {type: ClusterIP, selector: {a: b}, ports: [{port: 80}]}",
        expected: &[("/spec/type", r#""ClusterIP""#), ("/spec/healthCheckNodePort", "null")],
    },
    Case {
        name: "alias",
        kind: SERVICE,
        before: "spec: {selector: {a: b}, ports: [{port: 80}]}",
        after: "spec: {type: ExternalName, externalName: db.example.com}",
        expected: &[("/spec/clusterIP", "null")],
    },
    Case {
        name: "renumbered",
        kind: SERVICE,
        before: "spec: {selector: {a: b}, ports: [{name: http, port: 80}]}",
        after: "spec: {selector: {a: b}, ports: [{name: http, port: 8080}]}",
        expected: &[("/spec/ports/0/port", "8080"), ("/spec/ports/1", "null")],
    },
    Case {
        name: "backend",
        kind: ("networking.k8s.io", "v1", "Ingress"),
        before: "spec: {defaultBackend: {service: {name: a, port: {number: 80}}}}",
        after: "spec: {defaultBackend: {resource: {kind: Bucket, name: a}}}",
        expected: &[
            ("/spec/defaultBackend/service", "null"),
            ("/spec/defaultBackend/resource/name", r#""a""#),
        ],
    },
    Case {
        name: "budget",
        kind: ("policy", "v1", "PodDisruptionBudget"),
        before: "spec: {minAvailable: 1, selector: {matchLabels: {a: b}}}",
        after: "spec: {maxUnavailable: 1, selector: {matchLabels: {a: b}}}",
        expected: &[("/spec/minAvailable", "null")],
    },
    Case {
        name: "queue",
        kind: ("flowcontrol.apiserver.k8s.io", "v1", "PriorityLevelConfiguration"),
        before: "spec: {type: Limited, limited: {nominalConcurrencyShares: 1, limitResponse: {type: Queue, queuing: {queues: 16}}}}",
        after: "spec: {type: Limited, limited: {nominalConcurrencyShares: 1, limitResponse: {type: Reject}}}",
        expected: &[("/spec/limited/limitResponse", r#"{"type": "Reject"}"#)],
    },
];

impl Case {
    /// Reads `SPEC|CONTAINER|POD`: the spec, and fields of the container and of the pod.
    fn manifest(&self, text: &str, prefix: &str) -> String {
        let mut parts = text.split('|');
        let spec = parts.next().unwrap();
        let [container, pod] =
            [parts.next(), parts.next()].map(|part| part.map_or(String::new(), |part| format!(", {part}")));
        let template = format!(
            "selector: {{matchLabels: {{app: NAME}}}}, template: {{metadata: {{labels: {{app: NAME}}}}, \
             spec: {{schedulerName: nobody, containers: [{{name: main, image: x{container}}}]{pod}}}}}"
        );
        let (group, version, kind) = self.kind;
        let api_version = if group.is_empty() {
            version.to_owned()
        } else {
            format!("{group}/{version}")
        };
        let text = format!("apiVersion: {api_version}\nkind: {kind}\nmetadata: {{name: NAME}}\n{spec}\n");
        text.replace("WORKLOAD", &template)
            .replace("NAME", &format!("{prefix}{}", self.name))
    }
}

async fn applied(hub: &crate::support::fake_hub::FakeHub, entry: &Entry) {
    let said = report(hub, entry, |report| {
        matches!(report.outcome, Outcome::Applied | Outcome::Failed)
    })
    .await;
    assert_eq!(said.outcome, Outcome::Applied, "{said:#?}");
}

#[tokio::test]
async fn unions_and_keyed_lists_of_built_in_kinds_are_changed_where_a_merge_is_not_valid() {
    let world = world().await;
    let place = world.hub.place("merging");
    let prefix = format!("{place}-");
    let files = |text: fn(&Case) -> &'static str| -> Vec<(String, String)> {
        CASES
            .iter()
            .map(|case| (format!("{}.yaml", case.name), case.manifest(text(case), &prefix)))
            .collect()
    };
    let (before, after) = (files(|case| case.before), files(|case| case.after));
    let texts = |files: &[(String, String)]| -> Vec<(&'static str, &'static str)> {
        files
            .iter()
            .map(|(name, text)| (&*name.clone().leak(), &*text.clone().leak()))
            .collect()
    };
    let service = world.applied("merging", &texts(&before)).await;
    let client = world.client().await;
    let with_other = PatchParams {
        field_manager: Some("somebody".into()),
        ..PatchParams::default()
    };
    let strategy = api(&client, "apps", "v1", "Deployment", &place);
    let theirs = json!({"spec": {"replicas": 3}, "metadata": {"annotations": {"theirs": "yes"}}});
    strategy
        .patch(&format!("{prefix}strategy"), &with_other, &Patch::Merge(theirs))
        .await
        .unwrap();
    let entry = world.hub.set(service.with(&world.hub, &texts(&after)).entry());
    applied(&world.hub, &entry).await;
    for Case {
        name,
        kind: (group, version, kind),
        expected,
        ..
    } in CASES
    {
        let namespace = if *kind == "PriorityLevelConfiguration" {
            ""
        } else {
            &place
        };
        let live = api(&client, group, version, kind, namespace)
            .get(&format!("{prefix}{name}"))
            .await
            .unwrap();
        let generation = live.metadata.generation;
        let live = serde_json::to_value(&live).unwrap();
        for (pointer, value) in *expected {
            let expected: Value = serde_json::from_str(value).unwrap();
            assert_eq!(
                live.pointer(pointer).cloned().unwrap_or_default(),
                expected,
                "{name}: {live:#}"
            );
        }
        assert!(
            generation.is_none_or(|generation| generation <= 3),
            "{name} was changed once: {live:#}"
        );
    }
    let live = strategy.get(&format!("{prefix}strategy")).await.unwrap();
    assert_eq!(
        (
            &live.data["spec"]["replicas"],
            &live.metadata.annotations.unwrap()["theirs"]
        ),
        (&json!(3), &"yes".to_owned())
    );
    let said = outcome(&world.hub, &entry, Outcome::Applied).await;
    let told = &object(&said, "Deployment", &format!("{prefix}strategy")).message;
    assert!(
        told.contains("written as a whole, because merged it would not be valid"),
        "{told}"
    );
}

/// argo-cd#4864, argo-cd#25474.
#[tokio::test]
async fn a_port_that_somebody_renumbers_is_put_back_alone() {
    let world = world().await;
    let place = world.hub.place("ports");
    let shop = "apiVersion: v1\nkind: Service\nmetadata: {name: shop}\nspec: {selector: {a: b}, ports: [{name: http, port: PORT}]}\n";
    let service = world.applied("ports", &[("a.yaml", &shop.replace("PORT", "80"))]).await;
    let services = api(&world.client().await, "", "v1", "Service", &place);
    let other = PatchParams {
        field_manager: Some("kubectl-patch".into()),
        ..PatchParams::default()
    };
    let ports = async || -> Vec<Value> {
        let live = services.get("shop").await.unwrap().data;
        live["spec"]["ports"]
            .as_array()
            .unwrap()
            .iter()
            .map(|port| port["port"].clone())
            .collect()
    };
    let renumber = async || {
        let patch = json!({"spec": {"ports": [{"name": "http", "port": 83, "targetPort": 80, "protocol": "TCP"}]}});
        services.patch("shop", &other, &Patch::Merge(patch)).await.unwrap();
    };
    renumber().await;
    wait_for("port 80 alone", PATIENCE, || async {
        Ok((ports().await == [80]).then_some(()))
    })
    .await
    .unwrap();
    // The port is renumbered in Git and in the cluster at the same time.
    renumber().await;
    let entry = world.hub.set(
        service
            .with(&world.hub, &[("a.yaml", &shop.replace("PORT", "8080"))])
            .entry(),
    );
    applied(&world.hub, &entry).await;
    assert_eq!(ports().await, [8080]);
}

/// helm#31529, helm-controller#1333.
#[tokio::test]
async fn a_variable_that_is_stated_twice_is_made_as_it_stands() {
    let world = world().await;
    let place = world.hub.place("doubled");
    let case = CASES.iter().find(|case| case.name == "twice").unwrap();
    let service = Service::new(&world.hub, "doubled", &[("a.yaml", &case.manifest(case.after, ""))]);
    applied(&world.hub, &world.hub.set(service.entry())).await;
    let deployments = api(&world.client().await, "apps", "v1", "Deployment", &place);
    let live = deployments.get("twice").await.unwrap();
    assert_eq!(
        live.data.pointer("/spec/template/spec/containers/0/env/1/value"),
        Some(&json!("b"))
    );
    // The object is not written again and again.
    let entry = world.hub.set(
        service
            .with(
                &world.hub,
                &[
                    ("a.yaml", &case.manifest(case.after, "")),
                    ("b.yaml", &crate::support::config_map("b", "1")),
                ],
            )
            .entry(),
    );
    applied(&world.hub, &entry).await;
    assert_eq!(
        deployments.get("twice").await.unwrap().metadata.generation,
        live.metadata.generation
    );
}
