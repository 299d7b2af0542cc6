//! The real kubectl, in the oldest and the newest version that are promised, against a served hub.

use crate::support::{Kubectl, Served};
use tokio::io::{AsyncBufReadExt as _, BufReader};

const SOURCE: &str = "
apiVersion: farwater.dev/v1alpha1
kind: GitRepository
metadata: {name: infra, namespace: NS}
spec: {url: https://git.example.com/infra.git}
";

const CLUSTER: &str = "
apiVersion: farwater.dev/v1alpha1
kind: Cluster
metadata: {name: east, namespace: NS, labels: {env: production}}
spec: {}
";

/// A kind whose objects only their users write.
const GRANT: &str = "
apiVersion: farwater.dev/v1alpha1
kind: ClusterGrant
metadata: {name: NS}
spec: {clusterSelector: {}, namespaces: [a], verbs: [deploy], serviceAccountName: one}
";

/// In a namespace that a kubectl of this version has for itself.
fn in_namespace(kubectl: &Kubectl<'_>, manifest: &str) -> (String, String) {
    let namespace = format!("team-{}", kubectl.version.replace('.', "-"));
    (namespace.clone(), manifest.replace("NS", &namespace))
}

async fn namespace(kubectl: &Kubectl<'_>, manifest: &str) -> (String, String) {
    let (namespace, manifest) = in_namespace(kubectl, manifest);
    kubectl.run(&["create", "namespace", &namespace]).await;
    (namespace, manifest)
}

#[tokio::test(flavor = "multi_thread")]
async fn resources_are_applied_compared_edited_and_deleted() {
    let served = Served::start().await;
    for kubectl in served.kubectls() {
        let (name, grant) = in_namespace(&kubectl, GRANT);
        let name = name.as_str();
        let object = format!("clustergrant.farwater.dev/{name}");
        let diff = kubectl.output(&["diff", "-f", "-"], &grant, &[]).await;
        assert_eq!(diff.status.code(), Some(1), "{}", String::from_utf8_lossy(&diff.stderr));
        assert_eq!(
            kubectl.feed(&["apply", "-f", "-"], &grant).await,
            format!("{object} created\n")
        );
        assert_eq!(
            kubectl.output(&["diff", "-f", "-"], &grant, &[]).await.status.code(),
            Some(0)
        );
        let changed = grant.replace("one", "two");
        let diff = kubectl.output(&["diff", "-f", "-"], &changed, &[]).await;
        assert!(String::from_utf8_lossy(&diff.stdout).contains("+  serviceAccountName: two"));
        assert_eq!(
            kubectl.feed(&["apply", "-f", "-"], &changed).await,
            format!("{object} configured\n")
        );
        assert_eq!(
            kubectl.feed(&["apply", "-f", "-"], &changed).await,
            format!("{object} unchanged\n")
        );
        let get = |path: &'static str| {
            let kubectl = &kubectl;
            async move { kubectl.run(&["get", "clustergrant", name, "-o", path]).await }
        };
        assert_eq!(
            get("jsonpath={.metadata.generation} {.spec.serviceAccountName}").await,
            "2 two"
        );

        kubectl.run(&["label", "clustergrant", name, "tier=one"]).await;
        kubectl.run(&["annotate", "clustergrant", name, "note=x"]).await;
        assert_eq!(
            get("jsonpath={.metadata.labels.tier} {.metadata.generation}").await,
            "one 2"
        );
        let patch = |kind: &'static str, patch: &'static str| {
            let kubectl = &kubectl;
            async move {
                kubectl
                    .run(&["patch", "clustergrant", name, "--type", kind, "-p", patch])
                    .await
            }
        };
        patch("merge", r#"{"spec":{"serviceAccountName":"three"}}"#).await;
        patch("json", r#"[{"op":"replace","path":"/spec/namespaces/0","value":"b"}]"#).await;
        assert_eq!(
            get("jsonpath={.spec.serviceAccountName} {.spec.namespaces[0]}").await,
            "three b"
        );
        let strategic = kubectl.refuse(&["patch", "clustergrant", name, "-p", "{}"], "").await;
        assert!(
            strategic.contains("is not supported by farwater.dev/v1alpha1"),
            "{strategic}"
        );

        let editor = served.script("editor.sh", "#!/bin/sh\nsed -i 's/Name: three/Name: four/' \"$1\"\n");
        let edit = kubectl
            .output(&["edit", "clustergrant", name], "", &[("KUBE_EDITOR", &editor)])
            .await;
        assert!(edit.status.success(), "{}", String::from_utf8_lossy(&edit.stderr));
        assert_eq!(get("jsonpath={.spec.serviceAccountName}").await, "four");

        let yaml = get("yaml").await;
        let replaced = kubectl
            .feed(&["replace", "-f", "-"], &yaml.replace("Name: four", "Name: five"))
            .await;
        assert_eq!(replaced, format!("{object} replaced\n"));
        let stale = kubectl
            .refuse(&["replace", "-f", "-"], &yaml.replace("Name: four", "Name: six"))
            .await;
        assert!(stale.contains("the object has been modified"), "{stale}");

        assert_eq!(get("name").await, format!("{object}\n"));
        let deleted = kubectl.run(&["delete", "clustergrant", name]).await;
        assert!(
            deleted.starts_with(&format!("clustergrant.farwater.dev \"{name}\" deleted")),
            "{deleted}"
        );
        let gone = kubectl.refuse(&["get", "clustergrant", name], "").await;
        assert_eq!(
            gone,
            format!("Error from server (NotFound): clustergrants.farwater.dev \"{name}\" not found\n")
        );
    }
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn built_in_kinds_travel_as_protobuf_and_take_strategic_patches() {
    let served = Served::start().await;
    for kubectl in served.kubectls() {
        let (ns, _) = namespace(&kubectl, "").await;
        let ns = ns.as_str();
        kubectl
            .run(&["create", "configmap", "c", "-n", ns, "--from-literal=a=1"])
            .await;
        kubectl
            .run(&[
                "create",
                "secret",
                "generic",
                "s",
                "-n",
                ns,
                "--from-literal=password=x",
            ])
            .await;
        kubectl.run(&["create", "serviceaccount", "sa", "-n", ns]).await;
        kubectl
            .run(&["create", "role", "r", "-n", ns, "--verb=get", "--resource=configmaps"])
            .await;
        kubectl
            .run(&[
                "create",
                "rolebinding",
                "b",
                "-n",
                ns,
                "--role=r",
                &format!("--serviceaccount={ns}:sa"),
            ])
            .await;
        kubectl
            .run(&[
                "create",
                "clusterrole",
                &format!("cr-{ns}"),
                "--verb=list",
                "--resource=secrets",
            ])
            .await;
        assert_eq!(
            kubectl
                .run(&[
                    "get",
                    "secret",
                    "s",
                    "-n",
                    ns,
                    "-o",
                    "jsonpath={.data.password} {.type}"
                ])
                .await,
            "eA== Opaque"
        );
        let manifest = format!(
            "apiVersion: v1\nkind: ServiceAccount\nmetadata: {{name: sa, namespace: {ns}, finalizers: [a.b/c]}}\nsecrets: [{{name: one}}, {{name: two}}]\n"
        );
        kubectl.feed(&["apply", "-f", "-"], &manifest).await;
        let manifest = manifest.replace("{name: one}, ", "").replace("[a.b/c]", "[a.b/d]");
        kubectl.feed(&["apply", "-f", "-"], &manifest).await;
        let path = "jsonpath={.secrets[*].name} {.metadata.finalizers[*]}";
        assert_eq!(
            kubectl.run(&["get", "sa", "sa", "-n", ns, "-o", path]).await,
            "two a.b/d"
        );
        kubectl
            .run(&[
                "patch",
                "configmap",
                "c",
                "-n",
                ns,
                "-p",
                r#"{"data":{"a":null,"b":"2"}}"#,
            ])
            .await;
        assert_eq!(
            kubectl
                .run(&["get", "cm", "c", "-n", ns, "-o", "jsonpath={.data}"])
                .await,
            r#"{"b":"2"}"#
        );
        let token = kubectl
            .run(&["create", "token", "sa", "-n", ns, "--duration", "20m"])
            .await;
        let token = token.trim();
        assert!(token.len() > 20, "{token}");
        let as_account = |verb: &'static str, what: &'static str| {
            let kubectl = &kubectl;
            async move {
                let output = kubectl
                    .output(&["auth", "can-i", verb, what, "-n", ns, "--token", token], "", &[])
                    .await;
                String::from_utf8_lossy(&output.stdout).trim().to_owned()
            }
        };
        // The administrator's kubeconfig holds a token too; a flag wins over it.
        assert_eq!(as_account("get", "configmaps").await, "yes");
        assert_eq!(as_account("get", "secrets").await, "no");
        let list = kubectl.run(&["auth", "can-i", "--list", "-n", ns]).await;
        assert!(list.contains("*.*") && list.contains("[*]"), "{list}");
        assert!(kubectl.run(&["auth", "whoami"]).await.contains("farwater-admin"));
        kubectl
            .run(&[
                "patch",
                "sa",
                "sa",
                "-n",
                ns,
                "--type=json",
                "-p",
                r#"[{"op":"remove","path":"/metadata/finalizers"}]"#,
            ])
            .await;
    }
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_lists_watches_and_waits_follow_a_resource() {
    let served = Served::start().await;
    for kubectl in served.kubectls() {
        let (ns, source) = namespace(&kubectl, SOURCE).await;
        let ns = ns.as_str();
        kubectl.feed(&["create", "-f", "-"], &source).await;
        let wide = kubectl.run(&["get", "fwgit", "-n", ns, "-o", "wide"]).await;
        let header: Vec<_> = wide.lines().next().unwrap().split_whitespace().collect();
        assert_eq!(header, ["NAME", "READY", "STATUS", "REVISION", "AGE", "URL"]);

        let (name, grant) = in_namespace(&kubectl, GRANT);
        let mut watcher = kubectl.spawn(&[
            "get",
            "clustergrants",
            "-w",
            "--field-selector",
            &format!("metadata.name={name}"),
        ]);
        let mut events = BufReader::new(watcher.stdout.take().unwrap()).lines();
        kubectl.feed(&["create", "-f", "-"], &grant).await;
        assert!(events.next_line().await.unwrap().unwrap().starts_with("NAME"));
        assert!(events.next_line().await.unwrap().unwrap().contains("one"));
        kubectl.run(&["label", "clustergrant", &name, "tier=one"]).await;
        assert!(events.next_line().await.unwrap().unwrap().starts_with(&name));
        kubectl.run(&["delete", "clustergrant", &name]).await;

        // Nobody joins, so no controller writes the status again.
        kubectl.feed(&["create", "-f", "-"], &CLUSTER.replace("NS", ns)).await;
        kubectl
            .run(&[
                "wait",
                "--for=condition=Reconciling",
                "fwc/east",
                "-n",
                ns,
                "--timeout=30s",
            ])
            .await;
        let until_ready = ["wait", "--for=condition=Ready", "fwc/east", "-n", ns, "--timeout=30s"];
        let wait = tokio::spawn({
            let mut child = kubectl.spawn(&until_ready);
            async move { child.wait().await.unwrap() }
        });
        let ready = r#"{"status":{"conditions":[{"type":"Ready","status":"True","reason":"R","message":"here","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}"#;
        kubectl
            .run(&[
                "patch",
                "fwc",
                "east",
                "-n",
                ns,
                "--subresource=status",
                "--type=merge",
                "-p",
                ready,
            ])
            .await;
        assert!(wait.await.unwrap().success());
        kubectl.run(&until_ready).await;
        let described = kubectl.run(&["describe", "fwc", "east", "-n", ns]).await;
        assert!(
            described.contains("here") && described.contains("Events:"),
            "{described}"
        );
        assert_eq!(
            kubectl
                .run(&["get", "fwgit", "-n", ns, "--chunk-size=1", "-o", "name"])
                .await
                .lines()
                .count(),
            1
        );
        assert!(
            kubectl
                .run(&["get", "all", "-n", ns])
                .await
                .contains("gitrepository.farwater.dev/infra")
        );
        assert!(kubectl.run(&["get", "farwater", "-A"]).await.contains("infra"));
        kubectl.run(&["delete", "fwgit", "--all", "-n", ns]).await;
        kubectl.run(&["delete", "namespace", ns]).await;
        watcher.kill().await.unwrap();
    }
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn discovery_and_explain_show_the_kinds() {
    let served = Served::start().await;
    for kubectl in served.kubectls() {
        let names = kubectl
            .run(&["api-resources", "--api-group=farwater.dev", "-o", "name"])
            .await;
        let expected = [
            "agentpolicies",
            "changewindows",
            "clustergrants",
            "clusters",
            "gitrepositories",
            "grantedclusters",
            "healthrules",
            "helmrepositories",
            "managednamespaces",
            "notificationproviders",
            "notificationrules",
            "ocirepositories",
            "pipelines",
            "receivers",
            "servicecontexts",
            "servicedeployments",
            "servicesets",
        ];
        assert_eq!(
            names.lines().collect::<Vec<_>>(),
            expected.map(|n| format!("{n}.farwater.dev"))
        );
        let explained = kubectl.run(&["explain", "servicedeployments.spec.sourceRef"]).await;
        // Older ones don't show what a field may be.
        let shows_values = explained.contains("GitRepository") || kubectl.version == "1.29";
        assert!(shows_values && explained.contains("-required-"), "{explained}");
        assert!(kubectl.run(&["explain", "secret"]).await.contains("stringData"));
        assert!(
            kubectl
                .run(&["version"])
                .await
                .contains("Server Version: v1.33.0+farwater.")
        );
        assert!(
            kubectl
                .run(&["get", "--raw", "/openapi/v2"])
                .await
                .starts_with("{\"definitions\"")
        );
    }
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_manifests_are_refused_with_their_fields() {
    let served = Served::start().await;
    for kubectl in served.kubectls() {
        let (ns, source) = namespace(&kubectl, SOURCE).await;
        let ns = ns.as_str();
        let check = |manifest: String, expected: &'static str| {
            let kubectl = &kubectl;
            async move {
                let error = kubectl.refuse(&["apply", "-f", "-"], &manifest).await;
                assert!(error.contains(expected), "{}: {error}", kubectl.version);
            }
        };
        check(source.replace("url:", "urll: x, url:"), "unknown field \"spec.urll\"").await;
        check(source.replace("https:", "file:"), "spec.url in body should match").await;
        let often = source.replace("spec: {", "spec: {interval: 1s, timeout: 5h, ");
        check(
            often.clone(),
            "spec.interval: Invalid value: \"1s\": must be between 10s and 24h",
        )
        .await;
        check(often, "spec.timeout: Invalid value: \"5h\": must be between 1s and 30m").await;
        let rare = CLUSTER.replace("NS", ns).replace("{}", "{pollInterval: 1h}");
        check(
            rare,
            "spec.pollInterval: Invalid value: \"1h\": must be between 1s and 10m",
        )
        .await;
        let powerless = GRANT.replace("[deploy]", "[deploy, proxy]");
        check(
            powerless,
            "spec.verbs[1]: Unsupported value: \"proxy\": supported values: \"deploy\"",
        )
        .await;
        check(source.replace("spec:", "spcc:"), "unknown field \"spcc\"").await;
        check(
            source.replace(&format!("namespace: {ns}"), "namespace: none"),
            "namespaces \"none\" not found",
        )
        .await;
        check(
            source.replace("name: infra", "name: In_fra"),
            "metadata.name: Invalid value",
        )
        .await;
        check(format!("{source}  {}", "x".repeat(4 << 20)), "").await;
        let too_much = format!(
            "{{\"apiVersion\":\"v1\",\"kind\":\"ConfigMap\",\"metadata\":{{\"name\":\"big\"}},\"data\":{{\"a\":\"{}\"}}}}",
            "x".repeat(4 << 20)
        );
        let error = kubectl.refuse(&["create", "-n", ns, "-f", "-"], &too_much).await;
        assert!(error.contains("limit is 3145728"), "{error}");
    }
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dependents_go_with_their_owner_or_stay_as_it_is_said() {
    let served = Served::start().await;
    for kubectl in served.kubectls() {
        let (ns, _) = namespace(&kubectl, "").await;
        let ns = ns.as_str();
        for (cascade, stays) in [("background", false), ("foreground", false), ("orphan", true)] {
            kubectl.run(&["create", "configmap", "owner", "-n", ns]).await;
            let uid = kubectl
                .run(&["get", "cm", "owner", "-n", ns, "-o", "jsonpath={.metadata.uid}"])
                .await;
            let owned = format!(
                "apiVersion: v1\nkind: Secret\nmetadata:\n  name: owned\n  namespace: {ns}\n  ownerReferences:\n  - {{apiVersion: v1, \
                 kind: ConfigMap, name: owner, uid: {uid}, blockOwnerDeletion: true, controller: true}}\n"
            );
            kubectl.feed(&["apply", "-f", "-"], &owned).await;
            kubectl
                .run(&["delete", "cm", "owner", "-n", ns, &format!("--cascade={cascade}")])
                .await;
            if stays {
                let owners = "jsonpath={.metadata.ownerReferences}";
                assert_eq!(
                    kubectl.run(&["get", "secret", "owned", "-n", ns, "-o", owners]).await,
                    ""
                );
            } else {
                kubectl
                    .run(&["wait", "--for=delete", "secret/owned", "-n", ns, "--timeout=30s"])
                    .await;
            }
        }
    }
    served.stop().await;
}

const LEASE: &str = "
apiVersion: coordination.k8s.io/v1
kind: Lease
metadata: {name: leader, namespace: NS}
spec: {holderIdentity: one, leaseDurationSeconds: 15, renewTime: '2026-01-01T00:00:00.000000Z'}
";

const EVENT: &str = "
apiVersion: events.k8s.io/v1
kind: Event
metadata: {name: told, namespace: NS}
eventTime: '2026-01-01T00:00:00.000000Z'
reportingController: example.com/controller
reportingInstance: one
action: Applying
reason: Applied
type: Normal
note: it is done
regarding: {apiVersion: v1, kind: ConfigMap, name: c, namespace: NS, uid: UID}
";

#[tokio::test(flavor = "multi_thread")]
async fn leases_and_events_of_both_versions_are_shown() {
    let served = Served::start().await;
    for kubectl in served.kubectls() {
        let (ns, lease) = namespace(&kubectl, LEASE).await;
        let ns = ns.as_str();
        kubectl.feed(&["apply", "-f", "-"], &lease).await;
        kubectl.feed(&["apply", "-f", "-"], &lease.replace("one", "two")).await;
        let shown = kubectl.run(&["get", "lease", "-n", ns]).await;
        let words: Vec<Vec<&str>> = shown.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(
            (&words[0][..], &words[1][..2]),
            (&["NAME", "HOLDER", "AGE"][..], &["leader", "two"][..])
        );

        kubectl.run(&["create", "configmap", "c", "-n", ns]).await;
        let uid = kubectl
            .run(&["get", "cm", "c", "-n", ns, "-o", "jsonpath={.metadata.uid}"])
            .await;
        kubectl
            .feed(&["create", "-f", "-"], &EVENT.replace("NS", ns).replace("UID", &uid))
            .await;
        for command in [
            &["get", "events"][..],
            &["get", "events.v1.events.k8s.io"],
            &["events"],
            &["describe", "cm", "c"],
        ] {
            let shown = kubectl.run(&[command, &["-n", ns]].concat()).await;
            assert!(
                shown.contains("Applied") && shown.contains("it is done"),
                "{command:?}: {shown}"
            );
        }
        let about = kubectl.run(&["events", "-n", ns, "--for", "configmap/c"]).await;
        assert!(about.contains("it is done"), "{about}");
        let path = "jsonpath={.note}{.message}{.apiVersion}";
        let get = |kind: &'static str| {
            let kubectl = &kubectl;
            async move { kubectl.run(&["get", kind, "told", "-n", ns, "-o", path]).await }
        };
        assert_eq!(get("events.v1.events.k8s.io").await, "it is doneevents.k8s.io/v1");
        assert_eq!(get("events.v1.").await, "it is donev1");
    }
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_that_reaches_nothing_is_written_with_a_warning() {
    let served = Served::start().await;
    let kubectl = served.newest();
    let (ns, grant) = namespace(&kubectl, GRANT).await;
    kubectl.feed(&["create", "-f", "-"], &CLUSTER.replace("NS", &ns)).await;
    let apply = |spec: (&'static str, String)| {
        let manifest = grant.replace("clusterSelector: {}", spec.0).replace("[a]", &spec.1);
        let kubectl = &kubectl;
        async move {
            let output = kubectl.output(&["apply", "-f", "-"], &manifest, &[]).await;
            assert!(output.status.success());
            String::from_utf8_lossy(&output.stderr).into_owned()
        }
    };
    let production = "clusterSelector: {matchLabels: {env: production}}";
    let told = apply((production, "[tema-a]".to_owned())).await;
    assert!(
        told.contains("namespace \"tema-a\" does not exist") && !told.contains("clusterSelector"),
        "{told}"
    );
    let told = apply(("clusterSelector: {matchLabels: {env: prod}}", format!("[{ns}]"))).await;
    assert!(
        told.contains("no cluster has these labels") && !told.contains("spec.namespaces"),
        "{told}"
    );
    assert_eq!(apply((production, format!("[{ns}]"))).await, "");
    let shown = kubectl.run(&["get", "grantedcluster", "east", "-n", &ns]).await;
    let lines: Vec<Vec<&str>> = shown.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["NAME", "OF", "READY", "CONNECTED", "HEARD"]);
    assert_eq!(lines[1][..2], ["east", &ns], "{shown}");
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_takes_its_contents_with_it_once_finalizers_allow() {
    let served = Served::start().await;
    let kubectl = served.newest();
    let (ns, source) = namespace(&kubectl, SOURCE).await;
    let ns = ns.as_str();
    let held = source.replace("name: infra,", "name: infra, finalizers: [example.com/hold],");
    kubectl.feed(&["apply", "-f", "-"], &held).await;
    kubectl.run(&["create", "configmap", "c", "-n", ns]).await;
    kubectl.run(&["delete", "namespace", ns, "--wait=false"]).await;
    let refused = kubectl.refuse(&["create", "configmap", "late", "-n", ns], "").await;
    assert!(refused.contains("because it is being terminated"), "{refused}");
    kubectl
        .run(&["wait", "--for=delete", "configmap/c", "-n", ns, "--timeout=30s"])
        .await;
    assert_eq!(
        kubectl.run(&["get", "ns", ns, "-o", "jsonpath={.status.phase}"]).await,
        "Terminating"
    );
    kubectl
        .run(&[
            "patch",
            "fwgit",
            "infra",
            "-n",
            ns,
            "--type=merge",
            "-p",
            r#"{"metadata":{"finalizers":null}}"#,
        ])
        .await;
    kubectl
        .run(&["wait", "--for=delete", &format!("namespace/{ns}"), "--timeout=30s"])
        .await;
    served.stop().await;
}
