//! Parameters and ServiceContexts as tenants write and read them, with kubectl.

use crate::support::Served;

const GROUND: &str = "
apiVersion: farwater.dev/v1alpha1
kind: ClusterGrant
metadata: {name: team-a}
spec: {clusterSelector: {}, namespaces: [team-a], verbs: [deploy], serviceAccountName: deployer}
---
apiVersion: v1
kind: Secret
metadata: {name: database, namespace: team-a}
stringData: {password: hunter2, user: web}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: sizes, namespace: team-a}
data: {cpu: '1'}
---
apiVersion: farwater.dev/v1alpha1
kind: ServiceContext
metadata: {name: network, namespace: team-a}
spec:
  configuration: {domain: example.com, deep: {list: [1, {a: null}]}}
  secretRefs: [{name: database, keys: [user]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: writer, namespace: team-a}
rules:
- {apiGroups: [farwater.dev], resources: [servicedeployments, servicecontexts], verbs: [get, create, update, patch]}
- {apiGroups: [''], resources: [secrets], resourceNames: [own], verbs: [get]}
";

const SERVICE: &str = "
apiVersion: farwater.dev/v1alpha1
kind: ServiceDeployment
metadata: {name: NAME, namespace: team-a}
spec:
  clusterRef: {name: east}
  targetNamespace: web
  sourceRef: {name: infra}
  configuration: {host: web.example.com}
  parameters: PARAMETERS
";

fn service(name: &str, parameters: &str) -> String {
    SERVICE.replace("NAME", name).replace("PARAMETERS", parameters)
}

fn context(spec: &str) -> String {
    format!(
        "apiVersion: farwater.dev/v1alpha1\nkind: ServiceContext\nmetadata: {{name: c, namespace: team-a}}\nspec: {spec}\n"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn who_names_an_object_in_parameters_must_be_allowed_to_read_it() {
    let served = Served::start().await;
    let kubectl = served.newest();
    kubectl.run(&["create", "namespace", "team-a"]).await;
    kubectl.feed(&["create", "-f", "-"], GROUND).await;
    kubectl
        .run(&[
            "create",
            "rolebinding",
            "writer",
            "-n",
            "team-a",
            "--role=writer",
            "--user=writer",
        ])
        .await;
    let refused = async |manifest: &str, expected: &str| {
        let error = kubectl
            .refuse(&["apply", "--as=writer", "--server-side", "-f", "-"], manifest)
            .await;
        assert!(error.contains("(Forbidden)") && error.contains(expected), "{error}");
    };
    let secret = "it names Secret database, which writer may not get";
    refused(&service("web", "[{from: {secret: database}, keys: [user]}]"), secret).await;
    refused(&context("{secretRefs: [{name: database}]}"), secret).await;
    let map = "it names ConfigMap sizes, which writer may not get";
    refused(&service("web", "[{from: {configMap: sizes}}]"), map).await;

    // Who may read the context shares it.
    let apply = ["apply", "--as=writer", "--server-side", "-f", "-"];
    kubectl
        .feed(
            &apply,
            &service("web", "[{from: {context: network}}, {from: {secret: own}}]"),
        )
        .await;
    // What somebody else has named stays, and no key is added to it.
    kubectl
        .feed(
            &["apply", "--server-side", "--force-conflicts", "-f", "-"],
            &service("web", "[{from: {secret: database}, keys: [user]}]"),
        )
        .await;
    let merge = |parameters: &str| format!("{{\"spec\":{{\"suspend\":true,\"parameters\":{parameters}}}}}");
    let patch = async |parameters: &str, allowed: bool| {
        let merge = merge(parameters);
        let arguments = [
            "patch",
            "--as=writer",
            "-n",
            "team-a",
            "sd",
            "web",
            "--type=merge",
            "-p",
            &merge,
        ];
        match allowed {
            true => drop(kubectl.run(&arguments).await),
            false => {
                let error = kubectl.refuse(&arguments, "").await;
                assert!(error.contains(secret), "{error}");
            }
        }
    };
    patch(
        r#"[{"from":{"secret":"database"},"keys":["user"],"prefix":"db_"}]"#,
        true,
    )
    .await;
    patch(r#"[{"from":{"secret":"database"},"keys":["user","password"]}]"#, false).await;
    patch(r#"[{"from":{"secret":"database"}}]"#, false).await;
    let elsewhere = r#"{"spec":{"targetNamespace":"other"}}"#;
    let arguments = [
        "patch",
        "--as=writer",
        "-n",
        "team-a",
        "sd",
        "web",
        "--type=merge",
        "-p",
        elsewhere,
    ];
    let error = kubectl.refuse(&arguments, "").await;
    assert!(error.contains(secret), "{error}");
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn contexts_hold_any_values_and_what_makes_no_sense_is_refused_without_quoting_them() {
    let served = Served::start().await;
    for kubectl in served.kubectls() {
        let namespace = "team-a";
        kubectl
            .run(&["delete", "namespace", namespace, "--ignore-not-found", "--wait"])
            .await;
        kubectl.run(&["create", "namespace", namespace]).await;
        kubectl
            .run(&["delete", "clustergrant", "team-a", "--ignore-not-found"])
            .await;
        // As it is, kubectl 1.36 takes nulls away.
        kubectl.feed(&["apply", "--server-side", "-f", "-"], GROUND).await;
        let deep = [
            "get",
            "fwctx",
            "network",
            "-n",
            namespace,
            "-o",
            "jsonpath={.spec.configuration.deep}",
        ];
        assert_eq!(kubectl.run(&deep).await, r#"{"list":[1,{"a":null}]}"#);
        assert!(
            kubectl
                .run(&["explain", "servicecontext.spec"])
                .await
                .contains("secretRefs")
        );
        let shown = kubectl.run(&["get", "servicecontexts", "-n", namespace]).await;
        assert!(shown.starts_with("NAME") && !shown.contains("example.com"), "{shown}");
        for (manifest, expected) in [
            (
                context("{configuration: {a: hunter2}, secretRefs: [{name: database, keys: [a]}]}"),
                "spec.secretRefs[0]: Invalid value: a is stated twice, by spec.configuration and by spec.secretRefs[0]",
            ),
            (
                context(&format!("{{configuration: {{a: {}}}}}", "hunter2".repeat(20_000))),
                "spec.configuration: Invalid value: has 140008 bytes as JSON; at most 131072 are taken",
            ),
            (
                service("web", "[{from: {secret: database}, keys: [host]}]"),
                "spec.parameters[0]: Invalid value: host is stated twice, by spec.configuration and by spec.parameters[0]",
            ),
            (
                service("web", "[{from: {secret: database, context: network}}]"),
                "spec.parameters[0]: Invalid value: from names exactly one of context, configMap, secret, clusterSecret and cluster",
            ),
            (
                service("web", "[{from: {cluster: Nodes}}]"),
                "Unsupported value: \"Nodes\"",
            ),
        ] {
            let error = kubectl.refuse(&["apply", "--server-side", "-f", "-"], &manifest).await;
            assert!(error.contains(expected) && !error.contains("hunter2"), "{error}");
        }
        kubectl
            .feed(
                &["apply", "--server-side", "-f", "-"],
                &service("web", "[{from: {context: network}}]"),
            )
            .await;
    }
    served.stop().await;
}
