//! Server-side apply by real clients: kubectl in both versions, and kube-rs.

use farwater_api::{ClusterGrant, ClusterGrantSpec, GrantVerb};
use farwater_testkit::kube::client;
use kube::api::{Api, Patch, PatchParams};
use serde_json::{Value, json};

use crate::support::{Kubectl, Served};

const GRANT: &str = "
apiVersion: farwater.dev/v1alpha1
kind: ClusterGrant
metadata: {name: NAME}
spec: {clusterSelector: {}, namespaces: [default], verbs: [deploy], serviceAccountName: one}
";

fn grant_of(kubectl: &Kubectl<'_>) -> (String, String) {
    let name = format!("of-{}", kubectl.version.replace('.', "-"));
    let manifest = GRANT.replace("NAME", &name);
    (name, manifest)
}

/// The managers of a grant: name, operation.
async fn managers(kubectl: &Kubectl<'_>, name: &str) -> Vec<(String, String)> {
    let path = "jsonpath={range .metadata.managedFields[*]}{.manager} {.operation}{\"\\n\"}{end}";
    let text = kubectl
        .run(&["get", "clustergrant", name, "-o", path, "--show-managed-fields"])
        .await;
    text.lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(a, b)| (a.to_owned(), b.to_owned()))
        .collect()
}

fn manager(name: &str, operation: &str) -> (String, String) {
    (name.to_owned(), operation.to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_applies_compares_and_takes_over_on_the_server() {
    let served = Served::start().await;
    for kubectl in served.kubectls() {
        let (name, grant) = grant_of(&kubectl);
        let name = name.as_str();
        let object = format!("clustergrant.farwater.dev/{name}");
        let server_side = ["apply", "--server-side", "-f", "-"];
        let compare = ["diff", "--server-side", "-f", "-"];
        let diff = kubectl.output(&compare, &grant, &[]).await;
        assert_eq!(diff.status.code(), Some(1), "{}", String::from_utf8_lossy(&diff.stderr));
        assert_eq!(
            kubectl.feed(&server_side, &grant).await,
            format!("{object} serverside-applied\n")
        );
        assert_eq!(managers(&kubectl, name).await, [manager("kubectl", "Apply")]);
        assert_eq!(kubectl.output(&compare, &grant, &[]).await.status.code(), Some(0));
        let changed = grant.replace("one", "two");
        let diff = kubectl.output(&compare, &changed, &[]).await;
        assert!(String::from_utf8_lossy(&diff.stdout).contains("+  serviceAccountName: two"));

        let version = [
            "get",
            "clustergrant",
            name,
            "-o",
            "jsonpath={.metadata.resourceVersion}",
        ];
        let before = kubectl.run(&version).await;
        kubectl.feed(&server_side, &grant).await;
        assert_eq!(kubectl.run(&version).await, before);

        let patch = r#"{"spec":{"serviceAccountName":"three"}}"#;
        kubectl
            .run(&[
                "patch",
                "clustergrant",
                name,
                "--type=merge",
                "-p",
                patch,
                "--field-manager=someone",
            ])
            .await;
        let refused = kubectl.refuse(&server_side, &changed).await;
        assert!(
            refused.contains("conflict with \"someone\" using farwater.dev/v1alpha1"),
            "{refused}"
        );
        assert!(refused.contains(".spec.serviceAccountName"), "{refused}");
        kubectl
            .feed(&["apply", "--server-side", "--force-conflicts", "-f", "-"], &changed)
            .await;
        assert_eq!(managers(&kubectl, name).await, [manager("kubectl", "Apply")]);

        let yaml = kubectl.run(&["get", "clustergrant", name, "-o", "yaml"]).await;
        assert!(!yaml.contains("managedFields"), "{yaml}");
        let explained = kubectl.run(&["explain", "clustergrant.metadata.managedFields"]).await;
        assert!(explained.contains("fieldsV1"), "{explained}");
        kubectl.run(&["delete", "clustergrant", name]).await;
    }
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_turns_from_its_own_apply_to_the_servers() {
    let served = Served::start().await;
    for kubectl in served.kubectls() {
        let (name, grant) = grant_of(&kubectl);
        let name = name.as_str();
        kubectl
            .feed(&["apply", "-f", "-"], &grant.replace("NAME}", "NAME, labels: {a: b}}"))
            .await;
        kubectl
            .feed(
                &["apply", "-f", "-"],
                &grant.replace("verbs:", "allowedKinds: [Secret], verbs:"),
            )
            .await;
        assert_eq!(
            managers(&kubectl, name).await,
            [manager("kubectl-client-side-apply", "Update")]
        );
        // What is no longer in the manifest goes, as if the server had applied it from the first.
        kubectl
            .feed(&["apply", "--server-side", "-f", "-"], &grant.replace("one", "two"))
            .await;
        let spec = kubectl
            .run(&["get", "clustergrant", name, "-o", "jsonpath={.spec}"])
            .await;
        let spec: Value = serde_json::from_str(&spec).unwrap();
        assert_eq!(
            (&spec["serviceAccountName"], spec.get("allowedKinds")),
            (&json!("two"), None),
            "{spec}"
        );
        let left = managers(&kubectl, name).await;
        assert!(left.contains(&manager("kubectl", "Apply")), "{left:?}");
        assert!(
            !left.contains(&manager("kubectl-client-side-apply", "Update")),
            "{left:?}"
        );
        kubectl.run(&["delete", "clustergrant", name]).await;
    }
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kube_rs_applies() {
    let served = Served::start().await;
    let client = client(&served.running.admin_kubeconfig, None).await.unwrap();
    let grants: Api<ClusterGrant> = Api::all(client);
    let spec = |account: &str| ClusterGrantSpec {
        namespaces: vec!["default".to_owned()],
        verbs: vec![GrantVerb::Deploy],
        service_account_name: account.to_owned(),
        ..ClusterGrantSpec::default()
    };
    let grant = |account: &str| ClusterGrant::new("rs", spec(account));
    let apply = async |manager: &str, force: bool, account: &str| {
        let params = PatchParams {
            force,
            ..PatchParams::apply(manager)
        };
        grants.patch("rs", &params, &Patch::Apply(&grant(account))).await
    };
    let made = apply("one", false, "a").await.unwrap();
    let again = apply("one", false, "a").await.unwrap();
    assert_eq!(made.metadata.resource_version, again.metadata.resource_version);
    match apply("two", false, "b").await {
        Err(kube::Error::Api(status)) => {
            let expected = "Apply failed with 1 conflict: conflict with \"one\": .spec.serviceAccountName";
            assert_eq!((status.code, status.message.as_str()), (409, expected));
        }
        other => panic!("{other:?}"),
    }
    let taken = apply("two", true, "b").await.unwrap();
    assert_eq!(taken.spec.service_account_name, "b");
    let managers: Vec<_> = taken
        .metadata
        .managed_fields
        .unwrap()
        .into_iter()
        .filter_map(|e| e.manager)
        .collect();
    assert_eq!(managers, ["one", "two"]);
    served.stop().await;
}
