//! NotificationProviders and NotificationRules as tenants write them with kubectl.

use crate::support::Served;

const PROVIDER: &str = r#"
apiVersion: farwater.dev/v1alpha1
kind: NotificationProvider
metadata: {name: hook, namespace: team-a}
spec:
  type: generic
  address: https://hooks.example.com/deploys
  secretRef: {name: hook}
---
apiVersion: farwater.dev/v1alpha1
kind: NotificationRule
metadata: {name: rollouts, namespace: team-a}
spec:
  providerRef: {name: hook}
  eventSources: [{kind: ServiceSet, name: "*"}]
"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_says_who_is_told_what_and_kubectl_shows_it() {
    let served = Served::start().await;
    let kubectl = served.newest();
    kubectl.run(&["create", "namespace", "team-a"]).await;
    kubectl
        .run(&[
            "create",
            "rolebinding",
            "tenant",
            "-n",
            "team-a",
            "--clusterrole=edit",
            "--user=tenant",
        ])
        .await;
    kubectl
        .run(&[
            "create",
            "rolebinding",
            "guest",
            "-n",
            "team-a",
            "--clusterrole=view",
            "--user=guest",
        ])
        .await;
    let secret = "--from-literal=token=0123456789abcdef0123456789abcdef";
    kubectl
        .run(&[
            "create",
            "secret",
            "generic",
            "hook",
            "-n",
            "team-a",
            "--as=tenant",
            secret,
        ])
        .await;
    let refused = kubectl.refuse(&["create", "--as=guest", "-f", "-"], PROVIDER).await;
    assert!(
        refused.contains("cannot create resource \"notificationproviders\""),
        "{refused}"
    );
    kubectl.feed(&["create", "--as=tenant", "-f", "-"], PROVIDER).await;
    for name in ["notificationprovider/hook", "notificationrule/rollouts"] {
        kubectl
            .run(&["wait", "--for=condition=Ready", "-n", "team-a", name, "--timeout=30s"])
            .await;
    }
    let shown = kubectl
        .run(&[
            "get",
            "notificationproviders,notificationrules",
            "-n",
            "team-a",
            "--as=guest",
        ])
        .await;
    assert!(
        shown.contains("pending notifications are sent") && shown.contains("notifies NotificationProvider hook"),
        "{shown}"
    );
    kubectl
        .run(&["delete", "notificationprovider", "hook", "-n", "team-a", "--as=tenant"])
        .await;
    let gone = [
        "wait",
        "--for=jsonpath={.status.conditions[0].reason}=ProviderNotFound",
        "-n",
        "team-a",
        "--timeout=30s",
    ];
    kubectl.run(&[&gone[..], &["notificationrule/rollouts"]].concat()).await;
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nothing_could_be_sent_by_is_refused_with_its_field_and_no_secret() {
    let served = Served::start().await;
    let kubectl = served.newest();
    kubectl.run(&["create", "namespace", "team-a"]).await;
    let check = async |from: &str, to: &str, expected: &str| {
        let error = kubectl.refuse(&["apply", "-f", "-"], &PROVIDER.replace(from, to)).await;
        assert!(error.contains(expected) && !error.contains("hunter2"), "{error}");
    };
    check(
        "type: generic",
        "type: pager",
        "spec.type: Unsupported value: \"pager\"",
    )
    .await;
    check(
        "https://hooks.example.com/deploys",
        "https://a:hunter2@hooks.example.com",
        "spec.address: Invalid value",
    )
    .await;
    check(
        "https://hooks.example.com/deploys",
        "ftp://hooks.example.com",
        "spec.address: Invalid value",
    )
    .await;
    check("  secretRef: {name: hook}\n", "", "spec.secretRef: Invalid value").await;
    check(
        "kind: ServiceSet, name",
        "kind: Cluster, name",
        "spec.eventSources[0].kind",
    )
    .await;
    check("  providerRef: {name: hook}\n", "", "spec.providerRef: Required value").await;
    served.stop().await;
}
