//! Sealed kinds: the file has no plain text, and a sealed value can't be opened at another place.

use farwater_store::{Key, Kind, LabelRequirement, ListQuery, OpenError, OpenOptions, Selector, Store, StoreError};
use serde_json::{Value, json};

use crate::setup::{Place, assert_same_as_json, create, delete, next, put, replace};

on_both_engines!(
    a_secret_is_plain_nowhere_in_the_database,
    an_equal_secret_is_not_written,
    another_seal_key_is_refused_at_the_start,
    a_sealed_row_opens_only_in_its_own_place,
    a_kind_that_becomes_sealed_is_sealed_by_its_next_write,
);

const CANARY: &str = "canary-3f9a1c";

fn secret_key(name: &str) -> Key {
    Key {
        kind: Kind::new("secrets", ""),
        namespace: "default".to_owned(),
        name: name.to_owned(),
    }
}

/// A Secret as `kubectl apply` sends it, with the data also in an annotation.
fn secret(name: &str, text: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
        "metadata": {
            "name": name, "namespace": "default", "uid": format!("uid-{name}"),
            "labels": {"tier": text},
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": format!("{{\"stringData\":\"{text}\"}}")},
        },
        "data": {"password": text},
        "status": {"note": text},
    })
}

async fn a_secret_is_plain_nowhere_in_the_database(place: Place) {
    let store = place.open().await;
    let first = store
        .write(create(&secret_key("a"), secret("a", CANARY)))
        .await
        .unwrap();
    let second = format!("{CANARY}-2");
    let updated = store.write(replace(&first, secret("a", &second))).await.unwrap();
    store
        .write(create(&secret_key("gone"), secret("gone", CANARY)))
        .await
        .unwrap();
    let gone = store.get(&secret_key("gone")).await.unwrap().unwrap();
    store.write(delete(&gone)).await.unwrap();
    put(&store, "plain", json!({"text": "visible-text"})).await.unwrap();

    assert!(
        !place.parts_with("visible-text").await.is_empty(),
        "the search finds what is plain"
    );
    assert_eq!(place.parts_with(CANARY).await, Vec::<String>::new());
    assert_eq!(updated.object["data"]["password"], second);
    store.close().await;
    assert_eq!(place.parts_with(CANARY).await, Vec::<String>::new());

    let store = place.open().await;
    assert_eq!(
        store.get(&secret_key("a")).await.unwrap().unwrap().object,
        updated.object
    );
    let mut watch = store.watch(Some(Kind::new("secrets", "")), 0).unwrap();
    assert_eq!(next(&mut watch).await.object["data"]["password"], CANARY);
    assert_eq!(next(&mut watch).await.old_labels["tier"], CANARY);
    let labels = Selector(vec![LabelRequirement::In("tier".to_owned(), vec![second])]);
    let query = ListQuery {
        labels,
        ..ListQuery::all(Kind::new("secrets", ""))
    };
    let page = store.list(&query).await.unwrap();
    assert_eq!(page.items.len(), 1, "selectors read sealed labels");
    assert_same_as_json(&store, &query).await;
}

async fn an_equal_secret_is_not_written(place: Place) {
    let store = place.open().await;
    let first = store
        .write(create(&secret_key("a"), secret("a", CANARY)))
        .await
        .unwrap();
    assert_eq!(
        store.write(replace(&first, secret("a", CANARY))).await.unwrap().version,
        first.version
    );
}

async fn another_seal_key_is_refused_at_the_start(place: Place) {
    place.open().await.close().await;
    let other = Store::open(OpenOptions::new(place.location(), [8; 32])).await;
    assert!(matches!(other, Err(OpenError::WrongKey { location }) if location == place.location()));
    assert!(Store::open(place.options()).await.is_ok());
}

async fn a_sealed_row_opens_only_in_its_own_place(place: Place) {
    let store = place.open().await;
    store.write(create(&secret_key("a"), secret("a", "one"))).await.unwrap();
    store.write(create(&secret_key("b"), secret("b", "two"))).await.unwrap();
    store
        .transact(|tx| {
            Box::pin(async move {
                let swap = "UPDATE resources SET body = (SELECT body FROM resources WHERE name = 'a') WHERE name = 'b'";
                sqlx::query(swap).execute(&mut **tx).await?;
                Ok(())
            })
        })
        .await
        .unwrap();
    assert!(matches!(store.get(&secret_key("b")).await, Err(StoreError::Row { .. })));
    assert_eq!(
        store.get(&secret_key("a")).await.unwrap().unwrap().object["data"]["password"],
        "one"
    );
}

async fn a_kind_that_becomes_sealed_is_sealed_by_its_next_write(place: Place) {
    let mut options = place.options();
    options.sealed_kinds = vec![];
    let store = Store::open(options).await.unwrap();
    let first = store
        .write(create(&secret_key("a"), secret("a", CANARY)))
        .await
        .unwrap();
    store.close().await;
    let store = place.open().await;
    assert_eq!(store.get(&secret_key("a")).await.unwrap().unwrap().object, first.object);
    let again = store.write(replace(&first, secret("a", CANARY))).await.unwrap();
    assert_eq!(again.version, 2);
    let sealed: i16 = sqlx::query_scalar("SELECT sealed FROM resources")
        .fetch_one(&mut *store.tables().await.unwrap())
        .await
        .unwrap();
    assert_eq!(sealed, 1);
}
