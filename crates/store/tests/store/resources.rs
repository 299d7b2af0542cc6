//! Writes, compare-and-swap, get, list.

use farwater_store::{
    LabelRequirement, ListQuery, OpenError, OpenOptions, Resource, Selector, Store, StoreError, WriteError,
};
use serde_json::json;

use crate::setup::{Place, all, assert_same_as_json, create, delete, key, labelled, object, put, replace};

on_both_engines!(
    what_was_written_is_read_with_its_version,
    those_of_many_keys_that_are_there_are_read_together,
    a_write_needs_the_uid_and_version_of_the_row,
    an_equal_object_is_not_written,
    an_object_must_fit_its_key,
    what_could_not_be_read_again_is_not_written,
    pages_follow_the_keys_and_miss_nothing,
    a_list_as_json_says_the_same,
    a_page_that_is_too_large_is_refused,
    selectors_read_labels_whatever_their_names,
    a_selector_pages_through_what_it_leaves_out,
    names_that_no_index_holds_are_refused_alone,
);

async fn what_was_written_is_read_with_its_version(place: Place) {
    let store = place.open().await;
    let mut object = object(&key("a"), json!({"x": "1"}));
    object["status"] = json!({"ready": true});
    object["metadata"]["resourceVersion"] = json!("99");
    let written = store.write(create(&key("a"), object.clone())).await.unwrap();
    assert_eq!(written.version, 1);
    object["metadata"]["resourceVersion"] = json!("1");
    assert_eq!(*written.object, object);
    let read = store.get(&key("a")).await.unwrap().unwrap();
    assert_eq!((read.uid.as_str(), read.version, &*read.object), ("uid-a", 1, &object));
    assert!(store.get(&key("b")).await.unwrap().is_none());
}

async fn those_of_many_keys_that_are_there_are_read_together(place: Place) {
    let store = place.open().await;
    let keys: Vec<_> = (0..75).map(|n| key(&format!("n{n}"))).collect();
    for key in keys.iter().step_by(2) {
        put(&store, &key.name, json!({"x": key.name})).await.unwrap();
    }
    let asked: Vec<_> = keys.iter().chain(&keys[..3]).cloned().collect();
    let found = store.get_all(&asked).await.unwrap();
    assert_eq!(found.len(), 38);
    for key in &keys {
        let alone = store.get(key).await.unwrap();
        assert_eq!(
            found.get(key).map(|one| &one.object),
            alone.as_ref().map(|one| &one.object),
            "{}",
            key.name
        );
    }
    assert!(store.get_all(&[]).await.unwrap().is_empty());
    store.close().await;

    // An object that is not in memory and is asked for twice is read once, and stays in memory.
    let store = place.open().await;
    assert_eq!(store.get_all(&asked).await.unwrap().len(), 38);
    for key in keys.iter().step_by(2) {
        assert!(store.get(key).await.unwrap().is_some(), "{}", key.name);
    }
}

async fn a_write_needs_the_uid_and_version_of_the_row(place: Place) {
    let store = place.open().await;
    let first = put(&store, "a", json!({"x": "1"})).await.unwrap();
    assert!(matches!(
        store.write(create(&key("a"), object(&key("a"), json!({})))).await,
        Err(WriteError::Exists)
    ));
    let second = put(&store, "a", json!({"x": "2"})).await.unwrap();
    let refused = store.write(replace(&first, object(&key("a"), json!({"x": "3"})))).await;
    assert!(matches!(refused, Err(WriteError::Conflict { current }) if current.version == second.version));
    let mut other = second.clone();
    other.uid = "another".to_owned();
    assert!(matches!(
        store.write(delete(&other)).await,
        Err(WriteError::Conflict { .. })
    ));
    assert!(matches!(
        store.write(delete(&first)).await,
        Err(WriteError::Conflict { .. })
    ));
    let gone = store.write(delete(&second)).await.unwrap();
    assert_eq!(gone.version, 3);
    assert_eq!(gone.object["metadata"]["resourceVersion"], "3");
    assert!(matches!(store.write(delete(&second)).await, Err(WriteError::Missing)));
    assert!(matches!(
        store.write(replace(&second, object(&key("a"), json!({})))).await,
        Err(WriteError::Missing)
    ));
    assert_eq!(store.position(), 3, "refused writes take no number");
}

async fn an_equal_object_is_not_written(place: Place) {
    let store = place.open().await;
    let mut with_status = object(&key("a"), json!({"x": "1"}));
    with_status["status"] = json!({"a": 1, "b": 2});
    let first = store.write(create(&key("a"), with_status.clone())).await.unwrap();
    let again = store.write(replace(&first, with_status.clone())).await.unwrap();
    assert_eq!((again.version, &again.object), (1, &first.object));
    assert_eq!(store.position(), 1);
    with_status["status"]["a"] = json!(3);
    assert_eq!(store.write(replace(&first, with_status)).await.unwrap().version, 2);
}

async fn an_object_must_fit_its_key(place: Place) {
    let store = place.open().await;
    for wrong in [
        json!([]),
        json!({}),
        object(&key("b"), json!({})),
        json!({"metadata": {"name": "a", "namespace": "default"}}),
        json!({"metadata": {"name": "a", "namespace": "other", "uid": "u"}}),
    ] {
        let refused = store.write(create(&key("a"), wrong.clone())).await;
        assert!(
            matches!(refused, Err(WriteError::Store(StoreError::Object { .. }))),
            "{wrong}"
        );
    }
    let first = put(&store, "a", json!({})).await.unwrap();
    let mut other = object(&key("a"), json!({}));
    other["metadata"]["uid"] = json!("another");
    assert!(matches!(
        store.write(replace(&first, other)).await,
        Err(WriteError::Store(StoreError::Object { .. }))
    ));
}

async fn what_could_not_be_read_again_is_not_written(place: Place) {
    let store = place.open().await;
    let nested = |levels| (0..levels).fold(json!(1), |inner, _| json!([inner]));
    // The object itself is one more level.
    let deepest = put(&store, "a", nested(119)).await.unwrap();
    assert_eq!(store.get(&key("a")).await.unwrap().unwrap().object, deepest.object);
    let refused = put(&store, "b", nested(120)).await;
    assert!(
        matches!(refused, Err(WriteError::Store(StoreError::Object { .. }))),
        "{refused:?}"
    );
}

async fn pages_follow_the_keys_and_miss_nothing(place: Place) {
    let store = place.open().await;
    for name in ["c", "a", "e", "b", "d"] {
        put(&store, name, json!({})).await.unwrap();
    }
    let mut query = ListQuery { limit: 2, ..all() };
    let mut names = Vec::new();
    loop {
        let page = store.list(&query).await.unwrap();
        assert_eq!(page.version, 5);
        names.extend(page.items.into_iter().map(|item| item.key.name));
        match page.next {
            Some(next) => query.after = Some(next),
            None => break,
        }
    }
    assert_eq!(names, ["a", "b", "c", "d", "e"]);
    let named = store
        .list(&ListQuery {
            name: Some("d".to_owned()),
            ..all()
        })
        .await
        .unwrap();
    assert_eq!(named.items.len(), 1);
    let elsewhere = store
        .list(&ListQuery {
            namespace: Some("other".to_owned()),
            ..all()
        })
        .await
        .unwrap();
    assert!(elsewhere.items.is_empty());
    let exact = store.list(&ListQuery { limit: 5, ..all() }).await.unwrap();
    assert_eq!(
        (exact.items.len(), exact.next),
        (5, None),
        "no page is announced that would be empty"
    );
}

async fn a_list_as_json_says_the_same(place: Place) {
    let store = place.open().await;
    // Texts that look like the searched ones, and fields before and after them.
    let odd = json!({"\"metadata\":{": "\"}{\\", "zz": [1.5, null, {"metadata": {"resourceVersion": "x"}}]});
    let mut with_status = object(&key("status"), odd.clone());
    with_status["status"] = json!({"phase": "done", "text": "}"});
    with_status["Aa"] = json!({"metadata": {}});
    store.write(create(&key("status"), with_status)).await.unwrap();
    put(&store, "plain", odd).await.unwrap();
    assert_same_as_json(&store, &all()).await;
    assert_same_as_json(&store, &ListQuery { limit: 1, ..all() }).await;
}

async fn a_page_that_is_too_large_is_refused(place: Place) {
    let store = place.open().await;
    for name in ["a", "b", "c"] {
        put(&store, name, json!({"text": "x".repeat(1_000)})).await.unwrap();
    }
    let query = |limit| ListQuery {
        limit,
        max_bytes: 2_500,
        ..all()
    };
    let refused = store.list(&query(0)).await;
    assert!(
        matches!(refused, Err(StoreError::TooLarge { max: 2_500, .. })),
        "{refused:?}"
    );
    assert_eq!(
        store.list(&query(2)).await.unwrap().items.len(),
        2,
        "what is behind the page doesn't count"
    );
}

async fn selectors_read_labels_whatever_their_names(place: Place) {
    use LabelRequirement::{Exists, In, NotExists, NotIn};
    let store = place.open().await;
    let labels = [
        (
            "a",
            json!({"app": "web", "app.kubernetes.io/name": "x", "123": "digits"}),
        ),
        ("b", json!({"app": "db", "empty": ""})),
        ("c", json!({})),
    ];
    for (name, labels) in labels {
        store
            .write(create(&key(name), labelled(&key(name), labels)))
            .await
            .unwrap();
    }
    let text = str::to_owned;
    for (requirements, expected) in [
        (vec![In(text("app"), vec![text("web"), text("other")])], "a"),
        (vec![NotIn(text("app"), vec![text("web")])], "bc"),
        (vec![Exists(text("app.kubernetes.io/name"))], "a"),
        (vec![In(text("123"), vec![text("digits")])], "a"),
        (vec![NotExists(text("app"))], "c"),
        (vec![In(text("empty"), vec![text("")])], "b"),
        (vec![Exists(text("app")), NotIn(text("app"), vec![text("db")])], "a"),
        (vec![In(text("app"), vec![])], ""),
        (vec![NotIn(text("app"), vec![])], "abc"),
        // Label names that would be JSON paths or SQL. No object has them.
        (vec![Exists(text("$.app"))], ""),
        (vec![Exists(text("app\" OR 1=1 --"))], ""),
        (vec![NotExists(text("$[0]"))], "abc"),
    ] {
        let selector = Selector(requirements);
        let page = store
            .list(&ListQuery {
                labels: selector.clone(),
                ..all()
            })
            .await
            .unwrap();
        let names: String = page.items.into_iter().map(|item| item.key.name).collect();
        assert_eq!(names, expected, "{selector:?}");
    }
}

async fn a_selector_pages_through_what_it_leaves_out(place: Place) {
    let store = place.open().await;
    // A key that is not a valid label name is not passed to SQL, so the store itself filters the rows.
    let odd = "odd key";
    for n in 0..20 {
        let labels = if n % 7 == 0 { json!({odd: "x"}) } else { json!({}) };
        store
            .write(create(
                &key(&format!("n{n:02}")),
                labelled(&key(&format!("n{n:02}")), labels),
            ))
            .await
            .unwrap();
    }
    let labels = Selector(vec![LabelRequirement::Exists(odd.to_owned())]);
    let mut query = ListQuery {
        limit: 2,
        labels,
        ..all()
    };
    let first = store.list(&query).await.unwrap();
    assert_eq!(names(&first.items), ["n00", "n07"]);
    query.after = first.next;
    let second = store.list(&query).await.unwrap();
    assert_eq!((names(&second.items), second.next), (vec!["n14".to_owned()], None));
}

fn names(items: &[Resource]) -> Vec<String> {
    items.iter().map(|item| item.key.name.clone()).collect()
}

async fn names_that_no_index_holds_are_refused_alone(place: Place) {
    let store = place.open().await;
    let (long, fits) = ("n".repeat(513), "n".repeat(500));
    let with_nul = labelled(&key("nul"), json!({"app": "a\0b"}));
    let (refused, written, nul) = futures::join!(
        put(&store, &long, json!({})),
        put(&store, &fits, json!({})),
        store.write(create(&key("nul"), with_nul)),
    );
    assert!(
        matches!(refused, Err(WriteError::Store(StoreError::Object { .. }))),
        "{refused:?}"
    );
    assert!(
        matches!(nul, Err(WriteError::Store(StoreError::Object { .. }))),
        "{nul:?}"
    );
    assert!(store.get(&written.unwrap().key).await.unwrap().is_some());
}

#[tokio::test]
async fn a_file_that_another_store_has_open_is_refused() {
    let place = Place::file();
    let store = place.open().await;
    assert!(matches!(
        Store::open(place.options()).await,
        Err(OpenError::Locked { .. })
    ));
    store.close().await;
    assert!(matches!(
        put(&store, "a", json!({})).await,
        Err(WriteError::Store(StoreError::Closed))
    ));
    assert!(Store::open(place.options()).await.is_ok());
}

#[tokio::test]
async fn a_file_that_is_no_database_is_named() {
    let place = Place::file();
    std::fs::write(place.path(), "hello ".repeat(1000)).unwrap();
    let Err(error) = Store::open(place.options()).await else {
        panic!("it was opened")
    };
    assert!(
        error
            .to_string()
            .contains("hub.db: the file is damaged or not a database"),
        "{error}"
    );
    let nowhere = place.path().with_file_name("none").join("hub.db");
    let Err(error) = Store::open(OpenOptions::new(nowhere, [0; 32])).await else {
        panic!("it was opened")
    };
    assert!(error.to_string().contains("none/hub.db"), "{error}");
}
