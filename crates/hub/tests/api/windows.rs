//! ChangeWindows as people write them, with kubectl.

use crate::support::Served;

const GROUND: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: team-a}
---
apiVersion: farwater.dev/v1alpha1
kind: ServiceDeployment
metadata: {name: web, namespace: farwater-admin}
spec: {clusterRef: {name: east}, targetNamespace: web, sourceRef: {name: infra}}
---
apiVersion: farwater.dev/v1alpha1
kind: ServiceSet
metadata: {name: webs, namespace: farwater-admin}
spec:
  clusterSelector: {matchLabels: {env: prod}}
  template:
    spec: {targetNamespace: web, sourceRef: {name: infra}, path: web}
";

fn window(namespace: &str, name: &str, spec: &str) -> String {
    format!(
        "apiVersion: farwater.dev/v1alpha1\nkind: ChangeWindow\nmetadata: {{name: {name}, namespace: {namespace}}}\nspec: {spec}\n"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_window_that_makes_no_sense_is_refused_with_its_fields() {
    let served = Served::start().await;
    let kubectl = served.newest();
    kubectl.feed(&["create", "-f", "-"], GROUND).await;
    let refused = async |namespace: &str, spec: &str, expected: &str| {
        let error = kubectl
            .refuse(&["apply", "-f", "-"], &window(namespace, "nights", spec))
            .await;
        assert!(error.contains(expected), "{error}");
    };
    let admin = "farwater-admin";
    refused(
        admin,
        "{}",
        "spec.reason: Required value: a window that denies changes needs a reason: people with pending changes read it",
    )
    .await;
    refused(
        admin,
        "{type: Sometimes}",
        "spec.type: Unsupported value: \"Sometimes\"",
    )
    .await;
    refused(
        admin,
        "{type: Allow, schedule: '0 22 * *', duration: 8h}",
        "spec.schedule: Invalid value: \"0 22 * *\": ",
    )
    .await;
    refused(
        admin,
        "{type: Allow, schedule: '0 22 * * *'}",
        "spec.duration: Required value: a schedule says when it begins",
    )
    .await;
    let zone = "{type: Allow, schedule: '0 22 * * *', duration: 8h, timeZone: Europe/Bonn}";
    refused(admin, zone, "spec.timeZone: Invalid value: \"Europe/Bonn\": ").await;
    refused(
        admin,
        "{reason: x, end: tomorrow}",
        "spec.end: Invalid value: \"tomorrow\": ",
    )
    .await;
    let elsewhere = "spec.namespaces: Invalid value: [\"team-b\"]: it concerns this namespace alone";
    refused("team-a", "{reason: x, namespaces: [team-b]}", elsewhere).await;

    let nights = window(
        admin,
        "nights",
        "{type: Allow, schedule: '0 22 * * 1-5', duration: 8h, timeZone: Europe/Berlin}",
    );
    assert_eq!(
        kubectl.feed(&["apply", "-f", "-"], &nights).await,
        "changewindow.farwater.dev/nights created\n"
    );
    kubectl
        .feed(&["apply", "-f", "-"], &window(admin, "holidays", "{reason: holidays}"))
        .await;
    kubectl
        .run(&[
            "wait",
            "--for=condition=Ready",
            "changewindows",
            "--all",
            "-n",
            admin,
            "--timeout=30s",
        ])
        .await;
    let shown = kubectl.run(&["get", "fwcw", "-n", admin]).await;
    let lines: Vec<Vec<&str>> = shown.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0][..3], ["NAME", "TYPE", "IN"], "{shown}");
    assert_eq!(
        (lines[1][..3].to_vec(), lines[2][..2].to_vec()),
        (vec!["holidays", "Deny", "true"], vec!["nights", "Allow"])
    );
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_word_against_windows_has_a_reason_and_is_signed_by_the_hub() {
    let served = Served::start().await;
    let kubectl = served.newest();
    kubectl.feed(&["create", "-f", "-"], GROUND).await;
    let admin = "farwater-admin";
    for object in ["servicedeployment/web", "serviceset/webs"] {
        let annotate = |value: &'static str| ["annotate", "--overwrite", object, "-n", admin, value];
        let refused = kubectl.refuse(&annotate("farwater.dev/override-freeze= "), "").await;
        assert!(
            refused.contains("metadata.annotations[farwater.dev/override-freeze]: Required value: the reason"),
            "{refused}"
        );
        kubectl.run(&annotate("farwater.dev/override-freeze=a hole")).await;
        let read = [
            "get",
            object,
            "-n",
            admin,
            "-o",
            "jsonpath={.status.overriddenBy} {.status.overriddenAt}",
        ];
        let said = kubectl.run(&read).await;
        let (by, at) = said.split_once(' ').unwrap();
        assert!(!by.is_empty() && at.starts_with("20"), "{said}");
        kubectl.run(&annotate("farwater.dev/override-freeze-")).await;
        assert_eq!(kubectl.run(&read).await, " ");
    }
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tenants_freeze_their_own_namespace_and_no_other() {
    let served = Served::start().await;
    let kubectl = served.newest();
    kubectl.feed(&["create", "-f", "-"], GROUND).await;
    kubectl
        .run(&[
            "create",
            "rolebinding",
            "tenant",
            "-n",
            "team-a",
            "--clusterrole=admin",
            "--user=tenant",
        ])
        .await;
    let own = window("team-a", "moving", "{reason: we move}");
    kubectl.feed(&["create", "--as=tenant", "-f", "-"], &own).await;
    let fleet = window("farwater-admin", "moving", "{reason: we move}");
    let refused = kubectl.refuse(&["create", "--as=tenant", "-f", "-"], &fleet).await;
    assert!(refused.contains("(Forbidden)"), "{refused}");
    served.stop().await;
}
