//! A real Vault server: both versions of key-value secrets, three ways to sign in, and an unavailable server.
#![allow(clippy::unwrap_used)]

use std::{
    collections::BTreeMap,
    fs,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use farwater_secrets::{Backends, Config, Keeper, Kept, Outlook, ReadError, Reference, Shelf, ShelfError, Values};
use farwater_testkit::{Plane, Vault, shared, wait_for};
use k8s_openapi::api::{authentication::v1::TokenRequest, core::v1::ServiceAccount, rbac::v1::ClusterRoleBinding};
use kube::{Api, api::PostParams};
use serde_json::{Value, json};

const CANARY: &str = "canary-7c40be";

struct Rig {
    vault: Vault,
    folder: tempfile::TempDir,
}

impl Rig {
    async fn new() -> Self {
        let vault = Vault::start().await.unwrap();
        vault
            .put("sys/mounts/kv", &json!({"type": "kv", "options": {"version": "2"}}))
            .await
            .unwrap();
        vault
            .put("sys/mounts/old", &json!({"type": "kv", "options": {"version": "1"}}))
            .await
            .unwrap();
        vault.put("kv/config", &json!({"max_versions": 5})).await.unwrap();
        let policy =
            "path \"kv/data/team-a/*\" { capabilities = [\"read\"] } path \"old/*\" { capabilities = [\"read\"] }";
        vault
            .put("sys/policies/acl/reader", &json!({"policy": policy}))
            .await
            .unwrap();
        Self {
            vault,
            folder: tempfile::tempdir().unwrap(),
        }
    }

    fn file(&self, name: &str, content: &str) -> String {
        let path = self.folder.path().join(name);
        fs::write(&path, content).unwrap();
        path.display().to_string()
    }

    fn config(&self, auth: Value) -> Config {
        let vault = json!({
            "address": self.vault.url(), "caFile": self.vault.ca_file(), "mounts": {"kv": 2, "old": 1}, "auth": auth,
        });
        let allow = json!([{"namespaces": ["team-a"], "paths": ["kv", "old"]}]);
        serde_json::from_value(
            json!({"refreshSeconds": 10, "backends": [{"name": "vault", "vault": vault, "allow": allow}]}),
        )
        .unwrap()
    }

    async fn token(&self, period: &str) -> String {
        let made = self
            .vault
            .put("auth/token/create", &json!({"policies": ["reader"], "period": period}))
            .await
            .unwrap();
        made["auth"]["client_token"].as_str().unwrap().to_owned()
    }

    async fn backends_by_token(&self) -> Backends {
        let file = self.file("token", &format!("{}\n", self.token("1h").await));
        Backends::new(&self.config(json!({"token": {"file": file}}))).unwrap()
    }
}

fn reference(path: &str) -> Reference {
    Reference {
        namespace: "team-a".into(),
        path: path.into(),
    }
}

fn texts(values: &Values) -> Vec<(&str, String)> {
    values
        .iter()
        .map(|(name, value)| (name.as_str(), String::from_utf8(value.expose().to_vec()).unwrap()))
        .collect()
}

#[track_caller]
fn check_error(error: ReadError, outlook: Outlook, expected: &str) {
    let text = format!("{error} {error:?}");
    assert!(text.contains(expected) && !text.contains(CANARY), "{text}");
    assert_eq!(error.is_passing(), outlook == Outlook::Passing, "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_of_both_versions_are_read_and_what_is_wrong_is_told() {
    let rig = Rig::new().await;
    let backends = rig.backends_by_token().await;
    let read = async |path: &str| backends.read("vault", &reference(path)).await;
    for (password, port) in [("first", 1), (CANARY, 5432)] {
        let data = json!({"data": {"password": password, "port": port, "more": {"a": [1]}}});
        rig.vault.put("kv/data/team-a/db", &data).await.unwrap();
    }
    rig.vault.put("old/db", &json!({"password": CANARY})).await.unwrap();
    let all = read("kv/team-a/db").await.unwrap();
    let expected = [
        ("more", "{\"a\":[1]}".to_owned()),
        ("password", CANARY.to_owned()),
        ("port", "5432".to_owned()),
    ];
    assert_eq!(texts(&all), expected);
    assert_eq!(texts(&read("old/db").await.unwrap()), [("password", CANARY.to_owned())]);

    let lasting = async |path: &str, text: &str| {
        check_error(read(path).await.unwrap_err(), Outlook::Lasting, text);
    };
    lasting("kv/team-a/absent", "Vault has nothing at kv/team-a/absent").await;
    lasting("kv/team-b/db", "Vault does not let the hub read kv/team-b/db").await;
    lasting("secret/x", "namespace team-a may not read secret/x").await;
    lasting("kv", "below no mount").await;
    rig.vault.delete("kv/data/team-a/db").await.unwrap();
    lasting("kv/team-a/db", "Vault has nothing").await;
    let large = json!({"data": {"a": "x".repeat(400 << 10)}});
    rig.vault.put("kv/data/team-a/large", &large).await.unwrap();
    lasting("kv/team-a/large", "bytes; the maximum is").await;

    rig.vault.put("sys/seal", &json!({})).await.unwrap();
    check_error(
        read("old/db").await.unwrap_err(),
        Outlook::Passing,
        "Vault is not ready (503",
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_hub_signs_in_by_app_role_and_again_when_its_token_ends() {
    let rig = Rig::new().await;
    rig.vault.put("old/db", &json!({"password": CANARY})).await.unwrap();
    rig.vault
        .put("sys/auth/approle", &json!({"type": "approle"}))
        .await
        .unwrap();
    rig.vault
        .put(
            "auth/approle/role/hub",
            &json!({"token_policies": ["reader"], "token_ttl": "1h"}),
        )
        .await
        .unwrap();
    let role = rig.vault.get("auth/approle/role/hub/role-id").await.unwrap();
    let secret = rig
        .vault
        .put("auth/approle/role/hub/secret-id", &json!({}))
        .await
        .unwrap();
    let secret = secret["data"]["secret_id"].as_str().unwrap().to_owned();
    let file = rig.file("secret-id", &secret);
    let auth = json!({"appRole": {"roleId": role["data"]["role_id"], "secretIdFile": file}});
    let backends = Backends::new(&rig.config(auth)).unwrap();
    let read = async || backends.read("vault", &reference("old/db")).await;
    for _ in 0..5 {
        assert_eq!(texts(&read().await.unwrap()), [("password", CANARY.to_owned())]);
    }
    let logins = || {
        rig.vault
            .requests()
            .iter()
            .filter(|path| *path == "auth/approle/login")
            .count()
    };
    assert_eq!(logins(), 1);
    // Vault revokes the token, and the hub signs in again.
    rig.vault
        .put("sys/leases/revoke-prefix/auth/approle", &json!({}))
        .await
        .unwrap();
    assert!(read().await.is_ok());
    assert_eq!(logins(), 2);
    // A replaced secret id is read from its file again.
    rig.vault
        .put("auth/approle/role/hub/secret-id/destroy", &json!({"secret_id": secret}))
        .await
        .unwrap();
    rig.vault
        .put("sys/leases/revoke-prefix/auth/approle", &json!({}))
        .await
        .unwrap();
    let error = read().await.unwrap_err();
    assert!(!error.to_string().contains(&secret));
    check_error(
        error,
        Outlook::Lasting,
        "Vault refuses the hub's sign-in at auth/approle",
    );
    let next = rig
        .vault
        .put("auth/approle/role/hub/secret-id", &json!({}))
        .await
        .unwrap();
    rig.file("secret-id", next["data"]["secret_id"].as_str().unwrap());
    assert!(read().await.is_ok());
}

/// A service account of a plane, with its token.
async fn account(plane: &Plane, namespace: &str, name: &str) -> String {
    let client = plane.client().await.unwrap();
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
    let account = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
    accounts.create(&PostParams::default(), &account).await.unwrap();
    let asked: TokenRequest = serde_json::from_value(json!({"spec": {"audiences": []}})).unwrap();
    accounts
        .create_token_request(name, &PostParams::default(), &asked)
        .await
        .unwrap()
        .status
        .unwrap()
        .token
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_hub_signs_in_by_its_service_account() {
    let (rig, plane) = (Rig::new().await, shared(1).await.unwrap());
    rig.vault.put("old/db", &json!({"password": CANARY})).await.unwrap();
    let namespace = plane.namespace("vault").await.unwrap();
    let (hub, reviewer) = (
        account(plane, &namespace, "hub").await,
        account(plane, &namespace, "reviewer").await,
    );
    let bindings: Api<ClusterRoleBinding> = Api::all(plane.client().await.unwrap());
    let binding = json!({
        "metadata": {"name": format!("{namespace}-reviewer")},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:auth-delegator"},
        "subjects": [{"kind": "ServiceAccount", "namespace": namespace, "name": "reviewer"}],
    });
    bindings
        .create(&PostParams::default(), &serde_json::from_value(binding).unwrap())
        .await
        .unwrap();
    let config: Value = serde_json::from_slice(&fs::read(plane.kubeconfig()).unwrap()).unwrap();
    let cluster = &config["clusters"][0]["cluster"];
    let ca = STANDARD
        .decode(cluster["certificate-authority-data"].as_str().unwrap())
        .unwrap();
    rig.vault
        .put("sys/auth/kubernetes", &json!({"type": "kubernetes"}))
        .await
        .unwrap();
    let host = json!({
        "kubernetes_host": cluster["server"], "kubernetes_ca_cert": String::from_utf8(ca).unwrap(),
        "token_reviewer_jwt": reviewer, "disable_iss_validation": true,
    });
    rig.vault.put("auth/kubernetes/config", &host).await.unwrap();
    let role = json!({
        "bound_service_account_names": ["hub"], "bound_service_account_namespaces": [namespace], "token_policies": ["reader"],
    });
    rig.vault.put("auth/kubernetes/role/farwater", &role).await.unwrap();
    let auth = |file: &str| json!({"kubernetes": {"role": "farwater", "tokenFile": file}});
    let backends = Backends::new(&rig.config(auth(&rig.file("hub-token", &hub)))).unwrap();
    let values = backends.read("vault", &reference("old/db")).await.unwrap();
    assert_eq!(texts(&values), [("password", CANARY.to_owned())]);
    // Vault refuses another account.
    let backends = Backends::new(&rig.config(auth(&rig.file("other-token", &reviewer)))).unwrap();
    let error = backends.read("vault", &reference("old/db")).await.unwrap_err();
    assert!(!error.to_string().contains(&reviewer));
    check_error(
        error,
        Outlook::Lasting,
        "Vault refuses the hub's sign-in at auth/kubernetes",
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_not_vouched_for_gets_no_token() {
    let rig = Rig::new().await;
    let token = rig.token("1h").await;
    let file = rig.file("token", &token);
    let other = farwater_testkit::authority::Authority::new("another").unwrap();
    let mut config = rig.config(json!({"token": {"file": file}}));
    config.backends[0].vault.as_mut().unwrap().ca_file = Some(rig.file("ca.crt", other.pem()).into());
    let before = rig.vault.requests().len();
    let error = Backends::new(&config)
        .unwrap()
        .read("vault", &reference("old/db"))
        .await
        .unwrap_err();
    check_error(error, Outlook::Passing, "Vault can't be reached");
    assert_eq!(rig.vault.requests().len(), before);
}

/// A shelf in memory. The test searches it for plain values.
#[derive(Clone, Default)]
struct Memory(Arc<Mutex<BTreeMap<String, Kept>>>);

#[async_trait]
impl Shelf for Memory {
    async fn load(&self, id: &str) -> Result<Option<Kept>, ShelfError> {
        Ok(self.0.lock().unwrap().get(id).cloned())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn vault_goes_away_with_its_values_in_use_and_comes_back_without_a_storm() {
    const COUNT: usize = 100;
    let mut rig = Rig::new().await;
    let write = async |rig: &Rig, value: &str| {
        for n in 0..COUNT {
            rig.vault
                .put(&format!("old/{n}"), &json!({"password": format!("{value}-{n}")}))
                .await
                .unwrap();
        }
    };
    write(&rig, CANARY).await;
    let shelf = Memory::default();
    let keeper = Arc::new(Keeper::new(
        rig.backends_by_token().await,
        Duration::from_secs(10),
        shelf.clone(),
    ));
    let runs = Arc::clone(&keeper);
    let task = tokio::spawn(async move { runs.run().await });
    let known = async |n: usize| keeper.get("vault", &reference(&format!("old/{n}"))).await.unwrap();
    for n in 0..COUNT {
        assert!(matches!(known(n).await.values, Err(ReadError::Unread(_))));
    }
    wait_for("all values to be read", Duration::from_secs(60), || async {
        let mut all = Vec::new();
        for n in 0..COUNT {
            let Ok(values) = known(n).await.values else {
                return Ok(None);
            };
            all.push(texts(&values)[0].1 == format!("{CANARY}-{n}"));
        }
        Ok(all.into_iter().all(|is_right| is_right).then_some(()))
    })
    .await
    .unwrap();
    for changed in keeper.take_changed() {
        shelf
            .0
            .lock()
            .unwrap()
            .extend(changed.kept.map(|kept| (changed.reference.id("vault"), kept)));
    }
    rig.vault.kill();
    wait_for("values to be told old", Duration::from_secs(60), || async {
        Ok(known(0).await.stale.is_some().then_some(()))
    })
    .await
    .unwrap();
    for n in 0..COUNT {
        let known = known(n).await;
        assert_eq!(texts(known.values.as_ref().unwrap())[0].1, format!("{CANARY}-{n}"));
        assert!(!format!("{known:?}").contains(CANARY));
    }
    assert!(keeper.conditions()[0].is_away);
    // A hub that starts while Vault is unavailable has the values too.
    let other = Keeper::new(
        rig.backends_by_token_of_before(),
        Duration::from_secs(10),
        shelf.clone(),
    );
    let there = other.get("vault", &reference("old/7")).await.unwrap().values.unwrap();
    assert_eq!(texts(&there)[0].1, format!("{CANARY}-7"));

    rig.vault.restart().await.unwrap();
    write(&rig, "second").await;
    let start = std::time::Instant::now();
    let before = rig.vault.requests().len();
    wait_for("all values to be new", Duration::from_secs(120), || async {
        for n in 0..COUNT {
            let known = known(n).await;
            let values = known.values?;
            if known.stale.is_some() || !texts(&values)[0].1.starts_with("second") {
                return Ok(None);
            }
        }
        Ok(Some(()))
    })
    .await
    .unwrap();
    let asked = rig.vault.requests().len() - before;
    let seconds = usize::try_from(start.elapsed().as_secs()).unwrap() + 1;
    assert!(asked <= 25 * seconds, "{asked} requests in {seconds} s");
    task.abort();
}

impl Rig {
    /// The configured backends, for a server that can't be reached.
    fn backends_by_token_of_before(&self) -> Backends {
        let file = self.folder.path().join("token");
        Backends::new(&self.config(json!({"token": {"file": file}}))).unwrap()
    }
}
