//! Receivers as tenants write them with kubectl, and deliveries as hosts send them: over TLS, and without a token of the hub.

use farwater_testkit::{
    deliveries::{Host, Push, Sender},
    dial::Dial,
};

use crate::support::Served;

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

const RECEIVER: &str = r#"
apiVersion: farwater.dev/v1alpha1
kind: Receiver
metadata: {name: host, namespace: team-a}
spec:
  type: TYPE
  resources: [{kind: GitRepository, name: infra}]
  secretRef: {name: webhook}
"#;

fn receiver(kind: &str) -> String {
    RECEIVER.replace("TYPE", kind)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_gives_a_host_the_address_that_kubectl_shows() {
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
    let secret = format!("--from-literal=token={TOKEN}");
    kubectl
        .run(&[
            "create",
            "secret",
            "generic",
            "webhook",
            "-n",
            "team-a",
            "--as=tenant",
            &secret,
        ])
        .await;
    let made = kubectl
        .feed(&["create", "--as=tenant", "-f", "-"], &receiver("github"))
        .await;
    assert_eq!(made, "receiver.farwater.dev/host created\n");
    kubectl
        .run(&[
            "wait",
            "--for=condition=Ready",
            "-n",
            "team-a",
            "receiver/host",
            "--timeout=30s",
        ])
        .await;
    let path = kubectl
        .run(&[
            "get",
            "receiver",
            "host",
            "-n",
            "team-a",
            "-o",
            "jsonpath={.status.webhookPath}",
        ])
        .await;
    let shown = kubectl.run(&["get", "receivers", "-n", "team-a"]).await;
    let address = format!("hosts deliver to https://{}{path}", served.running.address);
    assert!(shown.contains(&address), "{shown}\n{address}");

    let authority = std::fs::read_to_string(served.running.hub.config.data_dir.join("keys/ca.crt")).unwrap();
    let dial = Dial::new(&format!("https://{}", served.running.address), &authority).unwrap();
    let push = Push {
        url: "https://h/a.git",
        branch: "main",
        before: "0",
        after: "1",
        size: 100,
    };
    let send = async |token: &str, path: &str| {
        let mut request = Sender::new(Host::GitHub, token).push(path, push);
        request.headers_mut().insert("host", "hub".parse().unwrap());
        dial.connect()
            .await
            .unwrap()
            .send(request)
            .await
            .map(drop)
            .map_err(|error| error.to_string())
    };
    assert_eq!(send(TOKEN, &path).await, Ok(()));
    assert!(
        send("another token of some length", &path)
            .await
            .unwrap_err()
            .ends_with("403 Forbidden")
    );
    assert!(send(TOKEN, "/hook/0").await.unwrap_err().ends_with("403 Forbidden"));
    assert!(
        send(TOKEN, "/hook/0/1")
            .await
            .unwrap_err()
            .ends_with("401 Unauthorized"),
        "what is no path of ours"
    );
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_could_not_be_served_is_refused_with_its_field() {
    let served = Served::start().await;
    let kubectl = served.newest();
    kubectl.run(&["create", "namespace", "team-a"]).await;
    let check = async |manifest: String, expected: &str| {
        let error = kubectl.refuse(&["apply", "-f", "-"], &manifest).await;
        assert!(error.contains(expected), "{error}");
    };
    check(receiver("generic"), "spec.type: Unsupported value: \"generic\"").await;
    check(
        receiver("github").replace("{kind: GitRepository, name: infra}", ""),
        "spec.resources",
    )
    .await;
    check(
        receiver("github").replace("kind: GitRepository", "kind: Cluster"),
        "spec.resources[0].kind",
    )
    .await;
    check(
        receiver("github").replace("  secretRef: {name: webhook}\n", ""),
        "spec.secretRef: Required value",
    )
    .await;
    served.stop().await;
}
