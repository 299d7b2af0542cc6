use std::{sync::Arc, time::Duration};

use farwater_fleet::access::RBAC_GROUP;
use farwater_store::{Change, Key, Kind, OpenOptions, Resource, Write};
use http::{HeaderMap, HeaderValue, header::AUTHORIZATION};
use jiff::Timestamp;
use serde_json::json;

use super::*;

struct World {
    access: Access,
    store: Store,
    shutdown: CancellationToken,
    _directory: tempfile::TempDir,
}

async fn world() -> World {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(OpenOptions::new(directory.path().join("hub.db"), [7; 32]))
        .await
        .unwrap();
    let shutdown = CancellationToken::new();
    let access = Access::start(store.clone(), shutdown.clone()).await.unwrap();
    World {
        access,
        store,
        shutdown,
        _directory: directory,
    }
}

impl World {
    async fn create(&self, plural: &str, group: &str, namespace: &str, name: &str, mut object: Value) -> Resource {
        object["metadata"] = json!({"name": name, "uid": uuid::Uuid::new_v4().to_string()});
        if !namespace.is_empty() {
            object["metadata"]["namespace"] = json!(namespace);
        }
        let key = Key {
            kind: Kind::new(plural, group),
            namespace: namespace.into(),
            name: name.into(),
        };
        self.store
            .write(Write {
                key,
                change: Change::Create(object),
            })
            .await
            .unwrap()
    }

    async fn delete(&self, resource: Resource) {
        let change = Change::Delete {
            uid: resource.uid,
            version: resource.version,
        };
        self.store
            .write(Write {
                key: resource.key,
                change,
            })
            .await
            .unwrap();
    }

    async fn role(&self, name: &str) -> Resource {
        let rules = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]}]);
        let object = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "rules": rules});
        self.create("clusterroles", RBAC_GROUP, "", name, object).await
    }

    async fn bind(&self, role: &str, user: &str) -> Resource {
        let object = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "roleRef": {"apiGroup": RBAC_GROUP, "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": RBAC_GROUP, "kind": "User", "name": user}],
        });
        self.create("clusterrolebindings", RBAC_GROUP, "", &format!("{role}-{user}"), object)
            .await
    }

    async fn account(&self, name: &str) -> (Resource, TokenOwner) {
        let object = json!({"apiVersion": "v1", "kind": "ServiceAccount"});
        let account = self.create("serviceaccounts", "", "team-a", name, object).await;
        let owner = TokenOwner {
            namespace: "team-a".into(),
            name: name.into(),
            uid: account.uid.clone(),
        };
        (account, owner)
    }

    async fn may(&self, user: &str) -> bool {
        let user = User {
            name: user.to_owned(),
            ..User::default()
        };
        let request = Attributes {
            verb: "get".into(),
            resource: "configmaps".into(),
            namespace: "team-a".into(),
            ..Attributes::default()
        };
        self.access.authorize(&user, &request).await.unwrap().is_allowed()
    }

    async fn user_of(&self, token: &str) -> Result<User, Unauthenticated> {
        let mut headers = HeaderMap::new();
        headers.insert(
            AUTHORIZATION,
            HeaderValue::from_str(&format!("Bearer {token}")).unwrap(),
        );
        self.access.authenticate(&headers).await
    }
}

fn ago(minutes: i64) -> Timestamp {
    Timestamp::now() - jiff::SignedDuration::from_mins(minutes)
}

#[tokio::test]
async fn a_change_of_rights_is_seen_by_the_next_request() {
    let world = world().await;
    let role = world.role("reader").await;
    assert!(!world.may("rita").await);
    for _ in 0..50 {
        let binding = world.bind("reader", "rita").await;
        assert!(world.may("rita").await);
        world.delete(binding).await;
        assert!(!world.may("rita").await);
    }
    world.bind("reader", "rita").await;
    assert!(world.may("rita").await);
    world.delete(role).await;
    assert!(!world.may("rita").await);
}

#[tokio::test]
async fn rights_are_read_at_the_start() {
    let world = world().await;
    world.role("reader").await;
    world.bind("reader", "rita").await;
    let again = Access::start(world.store.clone(), CancellationToken::new())
        .await
        .unwrap();
    let world = World { access: again, ..world };
    assert!(world.may("rita").await);
}

#[tokio::test]
async fn an_index_that_no_longer_follows_denies() {
    let world = world().await;
    world.role("reader").await;
    world.bind("reader", "rita").await;
    assert!(world.may("rita").await && world.access.is_ready());
    world.shutdown.cancel();
    tokio::time::timeout(Duration::from_secs(5), async {
        while world.access.is_ready() {
            tokio::task::yield_now().await;
        }
    })
    .await
    .unwrap();
    world.role("another").await;
    let user = User {
        name: "rita".into(),
        ..User::default()
    };
    let answer = world
        .access
        .authorize(&user, &Attributes::non_resource("get", "/api"))
        .await;
    assert!(matches!(answer, Err(AccessError::Behind)));
}

#[tokio::test]
async fn escalation_is_checked_against_the_newest_rights() {
    let world = world().await;
    world.role("reader").await;
    let user = User {
        name: "rita".into(),
        ..User::default()
    };
    let object = json!({
        "kind": "Role",
        "metadata": {"name": "r", "namespace": "team-a"},
        "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]}],
    });
    let refused = world.access.check_escalation(&user, &object).await;
    assert!(matches!(
        refused,
        Err(EscalationError::Refused(Escalation::NotHeld { .. }))
    ));
    world.bind("reader", "rita").await;
    world.access.check_escalation(&user, &object).await.unwrap();
}

#[tokio::test]
async fn service_account_tokens_end_with_time_and_with_their_account() {
    let world = world().await;
    let (account, owner) = world.account("bot").await;
    let issue = async |ttl: u64, now: Timestamp| {
        world
            .access
            .issue_token(&owner, Some(Duration::from_secs(ttl)), now)
            .await
    };

    let issued = issue(600, ago(0)).await.unwrap();
    let user = world.user_of(&issued.token).await.unwrap();
    assert_eq!(user, User::service_account("team-a", "bot", &account.uid));
    assert_eq!(user.name, "system:serviceaccount:team-a:bot");

    let expired = issue(600, ago(11)).await.unwrap();
    assert!(matches!(
        world.user_of(&expired.token).await,
        Err(Unauthenticated::Unknown)
    ));
    assert_eq!(world.access.expire_tokens(Timestamp::now()).await.unwrap(), 1);

    assert!(matches!(issue(599, ago(0)).await, Err(TokenError::TooShort)));
    assert!(matches!(issue(366 * 86_400, ago(0)).await, Err(TokenError::TooLong)));
    let default = world.access.issue_token(&owner, None, ago(0)).await.unwrap();
    let left = default.expires.unwrap().as_second() - Timestamp::now().as_second();
    assert!((3590..=3600).contains(&left), "{left}");

    world.delete(account).await;
    assert!(matches!(
        world.user_of(&issued.token).await,
        Err(Unauthenticated::Unknown)
    ));
    // Another account with the same name.
    world.account("bot").await;
    assert!(matches!(
        world.user_of(&issued.token).await,
        Err(Unauthenticated::Unknown)
    ));
}

#[tokio::test]
async fn the_store_keeps_no_token() {
    let world = world().await;
    let issued = world.access.issue_administrator_token(Timestamp::now()).await.unwrap();
    let user = world.user_of(&issued.token).await.unwrap();
    assert!(user.is_master());
    let path = world.store.location().file().unwrap().to_owned();
    world.store.close().await;
    let file = std::fs::read(path).unwrap();
    let token = issued.token.as_bytes();
    assert!(!file.windows(token.len()).any(|window| window == token));
}

#[tokio::test]
async fn only_one_well_formed_bearer_token_is_taken() {
    let world = world().await;
    let issued = world.access.issue_administrator_token(Timestamp::now()).await.unwrap();
    let token = issued.token.as_str();
    let long = "x".repeat(600);
    let check = async |values: &[String], expected: &str| {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(AUTHORIZATION, HeaderValue::from_str(value).unwrap());
        }
        let found = match world.access.authenticate(&headers).await {
            Ok(user) => user.name,
            Err(error) => format!("{error:?}"),
        };
        assert_eq!(found, expected, "{values:?}");
    };
    check(&[format!("Bearer {token}")], "farwater-admin").await;
    check(&[format!("bearer  {token} ")], "farwater-admin").await;
    check(&[], "Absent").await;
    check(&["Bearer ".to_owned()], "Malformed").await;
    check(&[format!("Basic {token}")], "Malformed").await;
    check(&[token.to_owned()], "Malformed").await;
    check(&[format!("Bearer {token}"), format!("Bearer {token}")], "Malformed").await;
    check(&[format!("Bearer {long}")], "Malformed").await;
    check(&[format!("Bearer {token}x")], "Unknown").await;
    check(&[format!("Bearer {}", &token[..46])], "Unknown").await;
}

#[test]
fn shared_parts_can_cross_threads() {
    fn is_shared<T: Send + Sync + 'static>() {}
    is_shared::<Arc<crate::Hub>>();
}
