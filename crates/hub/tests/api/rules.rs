//! HealthRules as administrators and tenants write them, with kubectl.

use farwater_api::ADMIN_NAMESPACE;

use crate::support::Served;

const GRANT: &str = "
apiVersion: farwater.dev/v1alpha1
kind: ClusterGrant
metadata: {name: team-a}
spec: {clusterSelector: {}, namespaces: [team-a], verbs: [deploy], serviceAccountName: deployer}
";

const RULE: &str = r#"
apiVersion: farwater.dev/v1alpha1
kind: HealthRule
metadata: {name: boats}
spec:
  group: example.com
  kind: Boat
  current: "CURRENT"
"#;

const SERVICE: &str = r#"
apiVersion: farwater.dev/v1alpha1
kind: ServiceDeployment
metadata: {name: web, namespace: NS}
spec:
  clusterRef: {name: east}
  targetNamespace: web
  sourceRef: {name: infra}
  health:
  - {kind: Pod, current: "true"}
  - {group: example.com, kind: Boat, failed: "FAILED", current: "true"}
"#;

fn rule(current: &str) -> String {
    RULE.replace("CURRENT", current)
}

fn service(namespace: &str, failed: &str) -> String {
    SERVICE.replace("NS", namespace).replace("FAILED", failed)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expression_that_can_not_be_read_is_refused_with_its_place_and_what_there_is() {
    let served = Served::start().await;
    let kubectl = served.newest();
    let refused = async |manifest: String, expected: &str| {
        let error = kubectl.refuse(&["apply", "-f", "-"], &manifest).await;
        assert!(error.contains(expected), "{error}");
    };
    let place =
        "spec.current: Invalid value: \"self.status.phase = 'Afloat'\": line 1, column 19: mismatched input '='";
    refused(rule("self.status.phase = 'Afloat'"), place).await;
    refused(
        rule("status.phase == 'Afloat'"),
        "knows no \"status\": the object is \"self\"",
    )
    .await;
    let function = "knows no function \"matches\" of 1 arguments; there are has, all, exists";
    refused(rule("self.status.phase.matches('A.*')"), function).await;
    refused(rule(""), "spec.current in body should be at least 1 chars long").await;
    refused(
        service(ADMIN_NAMESPACE, "self.status."),
        "spec.health[1].failed: Invalid value: \"self.status.\": line 1, column 13: ",
    )
    .await;

    let made = kubectl
        .feed(&["apply", "-f", "-"], &rule("self.status.phase == 'Afloat'"))
        .await;
    assert_eq!(made, "healthrule.farwater.dev/boats created\n");
    kubectl
        .run(&["wait", "--for=condition=Ready", "healthrule/boats", "--timeout=30s"])
        .await;
    let shown = kubectl.run(&["get", "healthrules"]).await;
    assert!(
        shown.starts_with("NAME") && shown.contains("agents judge by it"),
        "{shown}"
    );
    assert_eq!(
        kubectl
            .run(&["get", "healthrule", "boats", "-o", "jsonpath={.metadata.generation}"])
            .await,
        "1"
    );
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tenants_write_rules_for_their_services_and_none_for_the_fleet() {
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
            "--clusterrole=admin",
            "--user=tenant",
        ])
        .await;
    kubectl.feed(&["create", "-f", "-"], GRANT).await;
    let refused = kubectl
        .refuse(&["create", "--as=tenant", "-f", "-"], &rule("true"))
        .await;
    assert!(
        refused.contains("(Forbidden)") && refused.contains("cannot create resource \"healthrules\""),
        "{refused}"
    );
    let made = kubectl
        .feed(
            &["create", "--as=tenant", "-f", "-"],
            &service("team-a", "self.status.phase == 'Sunk'"),
        )
        .await;
    assert_eq!(made, "servicedeployment.farwater.dev/web created\n");

    kubectl.feed(&["create", "-f", "-"], &rule("true")).await;
    let patch = r#"{"spec":{"current":"false"}}"#;
    let refused = kubectl
        .refuse(
            &[
                "patch",
                "--as=tenant",
                "healthrule",
                "boats",
                "--type=merge",
                "-p",
                patch,
            ],
            "",
        )
        .await;
    assert!(refused.contains("(Forbidden)"), "{refused}");
    let refused = kubectl
        .refuse(&["delete", "--as=tenant", "healthrule", "boats"], "")
        .await;
    assert!(refused.contains("(Forbidden)"), "{refused}");
    assert_eq!(
        kubectl
            .run(&["get", "healthrule", "boats", "-o", "jsonpath={.spec.current}"])
            .await,
        "true"
    );
    served.stop().await;
}
