//! ServiceSets as people write them, with kubectl.

use serde_json::Value;

use crate::support::Served;

const GROUND: &str = "
apiVersion: farwater.dev/v1alpha1
kind: Cluster
metadata: {name: east, namespace: farwater-admin, labels: {env: prod}}
spec: {}
---
apiVersion: v1
kind: Namespace
metadata: {name: team-a}
---
apiVersion: v1
kind: Secret
metadata: {name: database, namespace: team-a}
stringData: {password: hunter2}
---
apiVersion: farwater.dev/v1alpha1
kind: ClusterGrant
metadata: {name: team-a}
spec: {clusterSelector: {}, namespaces: [team-a], verbs: [deploy], serviceAccountName: deployer}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: writer, namespace: team-a}
rules:
- {apiGroups: [farwater.dev], resources: [servicesets], verbs: [get, create, update, patch]}
- {apiGroups: [''], resources: [secrets], resourceNames: [own], verbs: [get]}
";

const SET: &str = "
apiVersion: farwater.dev/v1alpha1
kind: ServiceSet
metadata: {name: web, namespace: farwater-admin}
spec:
  clusterSelector: {matchLabels: {env: prod}}
  template:
    spec: {targetNamespace: web, sourceRef: {name: infra}, path: web}
";

const NAMES: [&str; 6] = [
    "get",
    "sd",
    "-n",
    "farwater-admin",
    "-o",
    "jsonpath={.items[*].metadata.name}",
];

#[tokio::test(flavor = "multi_thread")]
async fn what_a_set_has_made_is_read_only_but_for_what_is_its_users() {
    let served = Served::start().await;
    let kubectl = served.newest();
    kubectl.feed(&["apply", "-f", "-"], GROUND).await;
    kubectl.feed(&["apply", "-f", "-"], SET).await;
    kubectl.wait(&NAMES, "web-east").await;
    let patch = |patch: &'static str| {
        [
            "patch",
            "sd",
            "web-east",
            "-n",
            "farwater-admin",
            "--type",
            "merge",
            "-p",
            patch,
        ]
    };
    let words = "ServiceSet web has made it: change that, or leave this cluster out of its selector; suspend, suspension, pin are free";
    for refused in [
        &patch(r#"{"spec": {"path": "mine"}}"#)[..],
        &patch(r#"{"metadata": {"ownerReferences": null}}"#),
        &["label", "sd", "web-east", "-n", "farwater-admin", "team=mine"],
        &["delete", "sd", "web-east", "-n", "farwater-admin"],
        &["delete", "sd", "--all", "-n", "farwater-admin"],
    ] {
        let told = kubectl.refuse(refused, "").await;
        assert!(
            told.contains(words) && told.contains("forbidden"),
            "{refused:?}: {told}"
        );
    }
    kubectl
        .run(&patch(
            r#"{"spec": {"suspend": true, "suspension": {"reason": "look at it"}}}"#,
        ))
        .await;
    // A pin is its users', too: what this one lacks is another matter.
    let pin = format!(
        r#"{{"spec": {{"pin": {{"bundle": "{}"}}}}}}"#,
        farwater_api::Digest::of("never")
    );
    let told = kubectl
        .refuse(
            &[
                "patch",
                "sd",
                "web-east",
                "-n",
                "farwater-admin",
                "--type",
                "merge",
                "-p",
                &pin,
            ],
            "",
        )
        .await;
    assert!(
        told.contains("is not in the history of this service") && !told.contains("forbidden"),
        "{told}"
    );
    kubectl
        .run(&[
            "annotate",
            "sd",
            "web-east",
            "-n",
            "farwater-admin",
            "farwater.dev/requestedAt=now",
        ])
        .await;
    // The set changes it, and leaves that.
    kubectl
        .feed(&["apply", "-f", "-"], &SET.replace("path: web", "path: other"))
        .await;
    let spec = [
        "get",
        "sd",
        "web-east",
        "-n",
        "farwater-admin",
        "-o",
        "jsonpath={.spec.path} {.spec.suspend}",
    ];
    kubectl.wait(&spec, "other true").await;
    let owner = "jsonpath={.metadata.ownerReferences[0].kind}/{.metadata.ownerReferences[0].name} {.status.changedBy}";
    let told = kubectl
        .run(&["get", "sd", "web-east", "-n", "farwater-admin", "-o", owner])
        .await;
    assert_eq!(told, "ServiceSet/web farwater-admin");

    let path = "/apis/farwater.dev/v1alpha1/namespaces/farwater-admin/servicesets/web";
    let members: Value =
        serde_json::from_str(&kubectl.run(&["get", "--raw", &format!("{path}/members")]).await).unwrap();
    assert_eq!(members["items"][0]["cluster"], "farwater-admin/east", "{members}");
    assert_eq!(members["items"][0]["service"], "web-east");
    for (service, count) in [("web-east", 1), ("web-west", 0)] {
        let path = format!("{path}/members?service={service}");
        let found: Value = serde_json::from_str(&kubectl.run(&["get", "--raw", &path]).await).unwrap();
        assert_eq!(found["items"].as_array().unwrap().len(), count, "{found}");
    }
    // Never heard, it is no canary.
    for (step, count) in [("rest", 1), ("canary", 0)] {
        let path = format!("{path}/members?step={step}");
        let found: Value = serde_json::from_str(&kubectl.run(&["get", "--raw", &path]).await).unwrap();
        assert_eq!(found["items"].as_array().unwrap().len(), count, "{found}");
    }
    for (query, words) in [
        ("step=eu", r#"there is no step "eu": the set has canary, rest"#),
        (
            "step=rest&continue=x",
            "the parameter continue is none that a list of this step has given",
        ),
        ("limit=many", "the parameter limit is no number"),
    ] {
        let told = kubectl
            .refuse(&["get", "--raw", &format!("{path}/members?{query}")], "")
            .await;
        assert!(told.contains(words), "{query}: {told}");
    }
    let survey: Value =
        serde_json::from_str(&kubectl.run(&["get", "--raw", &format!("{path}/rollout")]).await).unwrap();
    assert_eq!(
        (&survey["kind"], &survey["metadata"]["name"]),
        (&"ServiceSetRollout".into(), &"web".into())
    );
    assert_eq!(survey["status"]["stages"][0]["step"], "rest", "{survey}");
    assert_eq!(survey["status"]["stages"][0]["counts"]["waiting"], 1, "{survey}");
    assert_eq!(
        survey["status"]["open"][0]["cluster"], "farwater-admin/east",
        "{survey}"
    );
    let plan: Value = serde_json::from_str(&kubectl.run(&["get", "--raw", &format!("{path}/plan")]).await).unwrap();
    assert_eq!(plan["status"]["counts"]["unchanged"], 1, "{plan}");
    let proposed = served.file(
        "plan.json",
        &serde_json::to_string(&serde_json::json!({
            "apiVersion": "farwater.dev/v1alpha1", "kind": "ServiceSet", "metadata": {"name": "web"},
            "spec": {"template": {"spec": {"targetNamespace": "web", "sourceRef": {"name": "infra"}, "path": "third"}}},
        }))
        .unwrap(),
    );
    let plan: Value = serde_json::from_str(
        &kubectl
            .run(&["create", "--raw", &format!("{path}/plan"), "-f", &proposed])
            .await,
    )
    .unwrap();
    assert_eq!(
        plan["status"]["changed"][0],
        serde_json::json!({"cluster": "farwater-admin/east", "fields": ["path"]}),
        "{plan}"
    );

    // Left behind, it is anybody's.
    kubectl
        .run(&[
            "delete",
            "serviceset",
            "web",
            "-n",
            "farwater-admin",
            "--cascade=orphan",
        ])
        .await;
    kubectl
        .wait(&["get", "sds", "-n", "farwater-admin", "-o", "name"], "")
        .await;
    let owners = [
        "get",
        "sd",
        "web-east",
        "-n",
        "farwater-admin",
        "-o",
        "jsonpath={.metadata.ownerReferences}",
    ];
    kubectl.wait(&owners, "").await;
    kubectl.run(&patch(r#"{"spec": {"path": "mine"}}"#)).await;
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_set_that_makes_no_sense_is_refused_with_the_place_and_the_reason() {
    let served = Served::start().await;
    let kubectl = served.newest();
    for (change, expected) in [
        (
            ("path: web}", "path: web, clusterRef: {name: x}}"),
            "unknown field \"spec.template.spec.clusterRef\"",
        ),
        (
            ("targetNamespace: web", "targetNamespace: W"),
            "spec.template.spec.targetNamespace",
        ),
        (
            ("path: web}", "path: web, renderers: [{type: Raw, helm: {}}]}"),
            "spec.template.spec.renderers[0].helm",
        ),
        (
            ("path: web}", "path: web, chart: {name: x, version: '1'}}"),
            "spec.template.spec.chart",
        ),
        (
            ("path: web}", "path: web, dependsOn: [{name: db, clusters: All}]}"),
            "spec.template.spec.dependsOn[0].clusters: Forbidden: only a ServiceSet has clusters",
        ),
        (
            (
                "path: web}",
                "path: web, dependsOn: [{name: db, readyExpr: 'ready()'}]}",
            ),
            "spec.template.spec.dependsOn[0].readyExpr",
        ),
        (
            ("path: web}", "path: web, dependsOn: [{kind: ServiceSet, name: web}]}"),
            "it depends on itself: ServiceSet/web → ServiceSet/web",
        ),
        (
            ("  template:", "  pin: {version: 3}\n  template:"),
            "spec.pin.version: Invalid value: the set has no version 3",
        ),
        (
            ("  template:", "  parameters: [{name: a}]\n  template:"),
            "spec.parameters[0]: Invalid value: state one of value, fromLabel and expression",
        ),
        (
            (
                "  template:",
                "  parameters: [{name: a, expression: 'cluster.name'}]\n  template:",
            ),
            "spec.parameters[0].expression",
        ),
        (
            (
                "  template:",
                "  overrides: [{clusterSelector: {}, patch: {path: 1}}]\n  template:",
            ),
            "spec.overrides[0].patch.path in body must be of type string",
        ),
        (
            (
                "  template:",
                "  overrides: [{clusterSelector: {}, patch: {paht: x}}]\n  template:",
            ),
            "spec.overrides[0].patch.paht: Forbidden: there is no such field",
        ),
    ] {
        let manifest = SET.replace(change.0, change.1);
        assert_ne!(manifest, SET);
        let told = kubectl.refuse(&["apply", "-f", "-"], &manifest).await;
        assert!(told.contains(expected), "{change:?}: {told}");
    }
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_has_secrets_sent_to_many_clusters_must_be_allowed_to_read_them() {
    let served = Served::start().await;
    let kubectl = served.newest();
    kubectl.feed(&["apply", "-f", "-"], GROUND).await;
    kubectl
        .run(&[
            "create",
            "rolebinding",
            "eve",
            "-n",
            "team-a",
            "--role=writer",
            "--user=eve",
        ])
        .await;
    let set = SET
        .replace("farwater-admin", "team-a")
        .replace("path: web}", "path: web, secrets: [{name: database}]}");
    let overridden = SET.replace("farwater-admin", "team-a").replace(
        "  template:",
        "  overrides: [{clusterSelector: {}, patch: {secrets: [{name: database}]}}]\n  template:",
    );
    for manifest in [&set, &overridden] {
        let told = kubectl.refuse(&["create", "--as=eve", "-f", "-"], manifest).await;
        assert!(
            told.contains("it names Secret database, which eve may not get"),
            "{told}"
        );
    }
    // Made by who may, it is not sent elsewhere by who may not.
    kubectl.feed(&["create", "-f", "-"], &set).await;
    let select = r#"{"spec": {"clusterSelector": {"matchLabels": {"env": "eves"}}}}"#;
    let told = kubectl
        .refuse(
            &[
                "patch", "--as=eve", "sds", "web", "-n", "team-a", "--type", "merge", "-p", select,
            ],
            "",
        )
        .await;
    assert!(
        told.contains("it names Secret database, which eve may not get"),
        "{told}"
    );
    let note = r#"{"metadata": {"annotations": {"note": "x"}}}"#;
    kubectl
        .run(&[
            "patch", "--as=eve", "sds", "web", "-n", "team-a", "--type", "merge", "-p", note,
        ])
        .await;
    served.stop().await;
}
