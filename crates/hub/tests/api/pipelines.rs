//! Pipelines as people write them with kubectl, and who may approve.

use crate::support::Served;

const PIPELINE: &str = "
apiVersion: farwater.dev/v1alpha1
kind: Pipeline
metadata: {name: web, namespace: team-a}
spec:
  stages:
  - {name: staging, sourceRef: {name: infra}, sets: [web-staging]}
  - {name: production, sourceRef: {name: infra-production}, sets: [web-production], gates: [{type: Approval, quorum: 2}]}
";

const PIPELINER: &str = "
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: pipeliner, namespace: team-a}
rules: [{apiGroups: [farwater.dev], resources: [pipelines], verbs: [create]}]
";

#[tokio::test(flavor = "multi_thread")]
async fn a_pipeline_that_makes_no_sense_is_refused_and_approving_is_a_right_of_its_own() {
    let served = Served::start().await;
    let kubectl = served.newest();
    kubectl.run(&["create", "namespace", "team-a"]).await;
    for (role, user) in [("admin", "owner"), ("edit", "tenant"), ("view", "guest")] {
        let (role, user) = (format!("--clusterrole={role}"), format!("--user={user}"));
        kubectl
            .run(&["create", "rolebinding", &user[7..], "-n", "team-a", &role, &user])
            .await;
    }
    let refused = async |from: &str, to: &str, expected: &str| {
        let error = kubectl.refuse(&["apply", "-f", "-"], &PIPELINE.replace(from, to)).await;
        assert!(error.contains(expected), "{error}");
    };
    refused(
        "type: Approval",
        "type: Vote",
        "spec.stages[1].gates[0].type: Unsupported value: \"Vote\"",
    )
    .await;
    refused(
        "quorum: 2",
        "majority: 2",
        "unknown field \"spec.stages[1].gates[0].majority\"",
    )
    .await;
    refused(
        "type: Approval, quorum: 2",
        "type: Soak",
        "spec.stages[1].gates[0].duration: Invalid value: say for how long",
    )
    .await;
    refused(
        "type: Approval, quorum: 2",
        "type: Metric, address: 'https://prometheus', query: up, condition: 'self.value = 1'",
        "spec.stages[1].gates[0].condition: Invalid value: line 1, column 12: ",
    )
    .await;
    refused(
        "infra-production",
        "infra",
        "spec.stages[1].sourceRef: Invalid value: another stage uses it",
    )
    .await;
    // What is pushed goes by a Secret: who states it must be allowed to read it.
    let pull = PIPELINE.replace(
        "gates: [{type: Approval, quorum: 2}]",
        "pullRequest: {sourceRef: {name: env}, url: 'https://h/env.git', secretRef: {name: pusher}, path: a.yaml, field: a.b}",
    );
    let outside = kubectl
        .refuse(&["create", "-f", "-"], &pull.replace("a.yaml", "../a.yaml"))
        .await;
    let told = "spec.stages[1].pullRequest.path: Invalid value: say it from the root of the repository";
    assert!(outside.contains(told), "{outside}");
    kubectl.feed(&["create", "-f", "-"], PIPELINER).await;
    kubectl
        .run(&[
            "create",
            "rolebinding",
            "eve",
            "-n",
            "team-a",
            "--role=pipeliner",
            "--user=eve",
        ])
        .await;
    let told = kubectl.refuse(&["create", "--as=eve", "-f", "-"], &pull).await;
    assert!(told.contains("it names Secret pusher, which eve may not get"), "{told}");
    let refused = kubectl.refuse(&["create", "--as=tenant", "-f", "-"], PIPELINE).await;
    assert!(refused.contains("(Forbidden)"), "{refused}");
    kubectl.feed(&["create", "--as=owner", "-f", "-"], PIPELINE).await;
    let stalled = [
        "wait",
        "--for=condition=Stalled",
        "pipeline/web",
        "-n",
        "team-a",
        "--timeout=30s",
    ];
    kubectl.run(&stalled).await;
    let shown = kubectl.run(&["get", "fwpl", "-n", "team-a", "--as=guest"]).await;
    assert!(
        shown.contains("stage staging: GitRepository infra does not exist"),
        "{shown}"
    );

    let path = "/apis/farwater.dev/v1alpha1/namespaces/team-a/pipelines/web/approve";
    let word = |stage: &str| {
        let digest = farwater_api::Digest::of("x");
        format!(
            r#"{{"kind": "PromotionApproval", "apiVersion": "farwater.dev/v1alpha1", "spec": {{"stage": "{stage}", "digest": "{digest}"}}}}"#
        )
    };
    let say = async |user: &str, word: &str| kubectl.refuse(&["create", user, "--raw", path, "-f", "-"], word).await;
    let error = say("--as=guest", &word("production")).await;
    assert!(
        error.contains("cannot create resource \"pipelines/approve\""),
        "{error}"
    );
    let error = say("--as=tenant", &word("production")).await;
    assert!(
        error.contains("nothing waits to be approved for stage production"),
        "{error}"
    );
    let error = say("--as=tenant", &word("test")).await;
    assert!(
        error.contains("there is no stage \"test\"; there are staging, production"),
        "{error}"
    );
    let error = say("--as=tenant", &word("staging")).await;
    assert!(
        error.contains("stage staging has no gate that asks for approval"),
        "{error}"
    );
    served.stop().await;
}
