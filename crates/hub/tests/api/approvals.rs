//! Approvals that need two people, with kubectl.

use serde_json::json;

use crate::support::Served;

const GROUND: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: team-a}
---
apiVersion: farwater.dev/v1alpha1
kind: ClusterGrant
metadata: {name: everywhere}
spec:
  {clusterSelector: {matchLabels: {env: prod}}, namespaces: [team-a], verbs: [deploy], serviceAccountName: deployer, approvals: {prunes: 2}}
---
apiVersion: farwater.dev/v1alpha1
kind: Cluster
metadata: {name: east, namespace: farwater-admin, labels: {env: prod}}
spec: {}
---
apiVersion: farwater.dev/v1alpha1
kind: ServiceDeployment
metadata: {name: web, namespace: team-a}
spec: {clusterRef: {name: east}, targetNamespace: web, sourceRef: {name: infra}}
---
apiVersion: farwater.dev/v1alpha1
kind: ServiceSet
metadata: {name: webs, namespace: team-a}
spec:
  clusterSelector: {matchLabels: {env: prod}}
  template:
    spec: {targetNamespace: web, sourceRef: {name: infra}, path: web}
";

#[tokio::test(flavor = "multi_thread")]
async fn a_prune_and_an_override_need_another_person_where_a_grant_or_namespace_asks_for_it() {
    let served = Served::start().await;
    let kubectl = served.newest();
    kubectl.feed(&["create", "-f", "-"], GROUND).await;
    for person in ["ada", "bob"] {
        let user = format!("--user={person}");
        kubectl
            .run(&[
                "create",
                "rolebinding",
                person,
                "-n",
                "team-a",
                "--clusterrole=admin",
                &user,
            ])
            .await;
    }
    // A tenant's own cluster of the same name decides nothing.
    let own = "apiVersion: farwater.dev/v1alpha1\nkind: Cluster\nmetadata: {name: east, namespace: team-a, labels: {env: dev}}\nspec: {}\n";
    let plan = format!("sha256:{}", "1".repeat(64));
    let annotate = |person: &str, object: &'static str, stated: &str| {
        let person = format!("--as={person}");
        ["annotate", "--overwrite", object, "-n", "team-a"]
            .map(str::to_owned)
            .into_iter()
            .chain([person, stated.to_owned()])
    };
    let say = async |person: &str, object: &'static str, stated: &str| {
        let args: Vec<String> = annotate(person, object, stated).collect();
        kubectl.run(&args.iter().map(String::as_str).collect::<Vec<_>>()).await;
    };
    let refused = async |person: &str, object: &'static str, stated: &str, why: &str| {
        let args: Vec<String> = annotate(person, object, stated).collect();
        let error = kubectl
            .refuse(&args.iter().map(String::as_str).collect::<Vec<_>>(), "")
            .await;
        assert!(error.contains("(Forbidden)") && error.contains(why), "{error}");
    };
    let prune = (
        "approve-prune",
        "propose-prune",
        plan.as_str(),
        "{.status.pruneProposedBy} {.status.approvedBy}",
    );
    let freeze = (
        "override-freeze",
        "propose-override",
        "a hole",
        "{.status.overrideProposedBy} {.status.overriddenBy}",
    );
    let cases = [
        ("servicedeployment/web", prune, "ClusterGrant everywhere"),
        ("servicedeployment/web", freeze, "Namespace team-a"),
        ("serviceset/webs", freeze, "Namespace team-a"),
    ];
    for (object, (approve, propose, text, people), asker) in cases {
        let state = |annotation: &str, text: &str| format!("farwater.dev/{annotation}={text}");
        let (approval, proposal) = (state(approve, text), state(propose, text));
        if asker.starts_with("Namespace") {
            // One person is enough until the namespace asks for two, so there is nothing to propose.
            let args: Vec<String> = annotate("ada", object, &proposal).collect();
            let error = kubectl
                .refuse(&args.iter().map(String::as_str).collect::<Vec<_>>(), "")
                .await;
            let why = "requires two people for this: one person approves it with farwater.dev/override-freeze";
            assert!(error.contains("propose-override") && error.contains(why), "{error}");
            say("ada", object, &approval).await;
            say("ada", object, &format!("farwater.dev/{approve}-")).await;
            let asks = "farwater.dev/approvals=freezeOverrides=2";
            kubectl
                .run(&["annotate", "--overwrite", "namespace", "team-a", asks])
                .await;
        }
        let missing =
            format!("needs two people, by {asker}: nothing is proposed yet; propose it with `kubectl annotate");
        refused("ada", object, &approval, &missing).await;
        kubectl.feed(&["apply", "--as=ada", "-f", "-"], own).await;
        refused("ada", object, &approval, &missing).await;
        say("ada", object, &state(propose, "another")).await;
        refused("bob", object, &approval, "ada proposed another one: \"another\"").await;
        say("ada", object, &proposal).await;
        refused("ada", object, &approval, "ada proposed it, and another person approves").await;
        // A proposal is for the present spec.
        let spec = if object.starts_with("serviceset") {
            json!({"rollout": {"paused": true}})
        } else {
            json!({"path": "evil"})
        };
        let change =
            json!({"metadata": {"annotations": {format!("farwater.dev/{approve}"): text}}, "spec": spec}).to_string();
        let patch = [
            "patch",
            object,
            "-n",
            "team-a",
            "--as=bob",
            "--type=merge",
            "-p",
            &change,
        ];
        let both = kubectl.refuse(&patch, "").await;
        assert!(both.contains("the same write changes the spec"), "{both}");
        say("bob", object, &approval).await;
        say("bob", object, &format!("farwater.dev/{approve}-")).await;
        refused("bob", object, &approval, "nothing is proposed yet").await;
        say("ada", object, &proposal.replace(text, "another")).await;
        say("ada", object, &proposal).await;
        say("bob", object, &approval).await;
        let read = format!("jsonpath={people}");
        assert_eq!(
            kubectl.run(&["get", object, "-n", "team-a", "-o", &read]).await,
            "ada bob"
        );
        kubectl
            .run(&["annotate", "namespace", "team-a", "farwater.dev/approvals-"])
            .await;
    }
    let error = kubectl
        .refuse(&["annotate", "namespace", "team-a", "farwater.dev/approvals=two"], "")
        .await;
    assert!(
        error.contains("metadata.annotations[farwater.dev/approvals]: Invalid value: \"two\""),
        "{error}"
    );
    served.stop().await;
}
