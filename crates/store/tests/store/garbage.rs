//! Owner references, and the marks that tell the garbage collector what to look at.

use farwater_store::{
    Change, Key, Kind, Resource, Store, Write,
    garbage::{Dependent, GarbageMark, clear_garbage, load_dependents, load_garbage},
};
use serde_json::{Value, json};

use crate::setup::{Place, create, delete, key, object, put, replace};

on_both_engines!(
    resources_without_owners_leave_no_trace,
    a_dependent_is_marked_whenever_its_owners_change,
    an_owner_that_goes_is_marked_and_one_that_waits_is_marked_again,
    marks_are_of_the_transaction_that_gives_the_reason,
    sealed_kinds_are_followed_and_ownerless_ones_are_not,
    dependents_come_in_pages,
);

fn owned(key: &Key, owners: Value) -> Value {
    let mut object = object(key, json!({}));
    object["metadata"]["ownerReferences"] = owners;
    object
}

async fn marks(store: &Store) -> Vec<GarbageMark> {
    load_garbage(&mut store.tables().await.unwrap(), "", 100).await.unwrap()
}

async fn marked(store: &Store) -> Vec<String> {
    marks(store).await.into_iter().map(|mark| mark.uid).collect()
}

async fn dependents(store: &Store, uid: &str) -> Vec<(String, bool)> {
    let found = load_dependents(&mut store.tables().await.unwrap(), uid, "", None, 100)
        .await
        .unwrap();
    found
        .into_iter()
        .map(|Dependent { key, blocks }| (key.name, blocks))
        .collect()
}

async fn clear_all(store: &Store) {
    for mark in marks(store).await {
        store
            .transact(move |tx| Box::pin(async move { clear_garbage(tx, &mark).await }))
            .await
            .unwrap();
    }
}

async fn make(store: &Store, name: &str, owners: Value) -> Resource {
    store
        .write(create(&key(name), owned(&key(name), owners)))
        .await
        .unwrap()
}

async fn resources_without_owners_leave_no_trace(place: Place) {
    let store = place.open().await;
    put(&store, "a", json!({})).await.unwrap();
    let changed = put(&store, "a", json!({"x": "1"})).await.unwrap();
    store.write(delete(&changed)).await.unwrap();
    assert_eq!(marks(&store).await, []);
}

async fn a_dependent_is_marked_whenever_its_owners_change(place: Place) {
    let store = place.open().await;
    let made = make(
        &store,
        "a",
        json!([{"uid": "o1", "blockOwnerDeletion": true}, {"uid": "o2"}]),
    )
    .await;
    assert_eq!(marked(&store).await, ["uid-a"]);
    assert_eq!(dependents(&store, "o1").await, [("a".to_owned(), true)]);
    assert_eq!(dependents(&store, "o2").await, [("a".to_owned(), false)]);
    clear_all(&store).await;

    // A change of the content alone sets no mark.
    let mut content = (*made.object).clone();
    content["data"] = json!({"x": "1"});
    let made = store.write(replace(&made, content)).await.unwrap();
    assert_eq!(marked(&store).await, [""; 0]);
    let made = store
        .write(replace(&made, owned(&key("a"), json!([{"uid": "o1"}, {"uid": "o3"}]))))
        .await
        .unwrap();
    assert_eq!(marked(&store).await, ["uid-a"]);
    assert_eq!(dependents(&store, "o1").await, [("a".to_owned(), false)]);
    assert_eq!(
        (dependents(&store, "o2").await, dependents(&store, "o3").await.len()),
        (vec![], 1)
    );
    store.write(replace(&made, object(&key("a"), json!({})))).await.unwrap();
    assert_eq!(
        (dependents(&store, "o1").await, dependents(&store, "o3").await),
        (vec![], vec![])
    );
}

async fn an_owner_that_goes_is_marked_and_one_that_waits_is_marked_again(place: Place) {
    let store = place.open().await;
    let owner = put(&store, "owner", json!({})).await.unwrap();
    let block = json!([{"uid": "uid-owner", "blockOwnerDeletion": true}]);
    let (a, b) = (make(&store, "a", block.clone()).await, make(&store, "b", block).await);
    clear_all(&store).await;

    let mut waiting = (*owner.object).clone();
    waiting["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    waiting["metadata"]["finalizers"] = json!(["foregroundDeletion"]);
    let owner = store.write(replace(&owner, waiting)).await.unwrap();
    let [mark] = &marks(&store).await[..] else {
        panic!("one mark")
    };
    assert_eq!((&mark.key, mark.marks), (&key("owner"), 1));
    store.write(delete(&a)).await.unwrap();
    // Clearing the first mark leaves a second one that came meanwhile.
    let old = mark.clone();
    store
        .transact(move |tx| Box::pin(async move { clear_garbage(tx, &old).await }))
        .await
        .unwrap();
    assert_eq!(marks(&store).await[0].marks, 2);
    clear_all(&store).await;

    store.write(delete(&owner)).await.unwrap();
    assert_eq!(marked(&store).await, ["uid-owner"]);
    clear_all(&store).await;
    store.write(delete(&b)).await.unwrap();
    assert_eq!(marked(&store).await, [""; 0], "nobody waits for it");
}

async fn marks_are_of_the_transaction_that_gives_the_reason(place: Place) {
    let store = place.open().await;
    let failed: Result<(), _> = store
        .transact(|tx| {
            Box::pin(async move {
                tx.write(create(&key("a"), owned(&key("a"), json!([{"uid": "o"}]))))
                    .await?;
                Err(farwater_store::StoreError::abort("no more wanted"))
            })
        })
        .await;
    assert!(failed.is_err());
    assert_eq!((marks(&store).await, dependents(&store, "o").await), (vec![], vec![]));
    make(&store, "a", json!([{"uid": "o"}])).await;
    store.close().await;
    let store = place.open().await;
    assert_eq!(
        (marked(&store).await, dependents(&store, "o").await.len()),
        (vec!["uid-a".to_owned()], 1)
    );
}

async fn sealed_kinds_are_followed_and_ownerless_ones_are_not(place: Place) {
    let store = place.open().await;
    for (plural, followed) in [("secrets", true), ("events", false)] {
        let key = Key {
            kind: Kind::new(plural, ""),
            ..key(plural)
        };
        let write = Write {
            key: key.clone(),
            change: Change::Create(owned(&key, json!([{"uid": plural}]))),
        };
        let made = store.write(write).await.unwrap();
        assert_eq!(
            dependents(&store, plural).await.len(),
            usize::from(followed),
            "{plural}"
        );
        let freed = store.write(replace(&made, object(&key, json!({})))).await.unwrap();
        assert_eq!(dependents(&store, plural).await, [], "{plural}");
        store.write(delete(&freed)).await.unwrap();
    }
}

async fn dependents_come_in_pages(place: Place) {
    let store = place.open().await;
    for n in 0..5 {
        make(&store, &format!("d{n}"), json!([{"uid": "o"}])).await;
    }
    let (mut after, mut names) = (None, Vec::new());
    loop {
        let page = load_dependents(&mut store.tables().await.unwrap(), "o", "", after.as_ref(), 2)
            .await
            .unwrap();
        let Some(last) = page.last() else { break };
        after = Some(last.key.clone());
        names.extend(page.into_iter().map(|dependent| dependent.key.name));
    }
    assert_eq!(names, ["d0", "d1", "d2", "d3", "d4"]);
}
