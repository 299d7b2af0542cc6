//! Which services get which keys: what a change of an object marks, and what it leaves alone.

use std::{collections::BTreeSet, sync::Arc};

use farwater_api::parameters::ChangedKeys;
use farwater_store::{
    Key, Kind, Store,
    delivery::{
        Assignment, InputVersion, MarkClusters, ParameterKey, ParameterRow, Resolved, clear_mark, delete_assignment,
        load_dirty, load_document, load_parameters, mark_changed_keys, mark_parameters, parameters_of_cluster,
        retain_documents, save_assignment, save_document, save_parameters, versions_of,
    },
    fsck,
};
use serde_json::{Value, json};

use crate::setup::{Place, create, delete, key, object, put, replace};

on_both_engines!(
    a_changed_key_marks_exactly_those_who_are_handed_it,
    a_clusters_labels_mark_its_services_that_are_handed_them,
    a_mark_that_comes_while_they_are_resolved_stays,
    nothing_is_left_of_a_service_that_goes,
    many_services_are_written_together_and_none_that_is_gone,
    a_context_is_plain_nowhere_in_the_database,
    a_document_lies_sealed_as_long_as_it_is_named_and_goes_with_its_service,
);

async fn open(place: &Place) -> Store {
    let mut options = place.options();
    options.on_change = Some(Arc::new(MarkClusters));
    Store::open(options).await.unwrap()
}

fn handed(of: &Key, key: &str) -> ParameterKey {
    let Key { kind, namespace, name } = of;
    ParameterKey {
        kind: kind.to_string(),
        namespace: namespace.clone(),
        name: name.clone(),
        key: key.to_owned(),
    }
}

/// Saves a service that gets these keys, on a cluster of its own.
async fn service(store: &Store, name: &str, keys: Vec<ParameterKey>) {
    let row = Assignment {
        service_uid: format!("uid-of-{name}"),
        namespace: "default".to_owned(),
        name: name.to_owned(),
        cluster_uid: format!("cluster-of-{name}"),
        source_uid: String::new(),
        generation: 1,
        stamp: String::new(),
        candidate: None,
        assigned: None,
        why: r#"{"type":"Current"}"#.to_owned(),
    };
    let parameters = ParameterRow {
        service_uid: row.service_uid.clone(),
        stamp: "1".to_owned(),
        mac: "sha256:1".to_owned(),
        ..ParameterRow::default()
    };
    let resolved = [Resolved {
        row: parameters,
        keys: keys.into_iter().collect(),
    }];
    let saved = store.transact(move |tx| {
        Box::pin(async move {
            save_assignment(tx, &row).await?;
            save_parameters(tx, &resolved).await
        })
    });
    saved.await.unwrap();
}

/// The services that were marked since the last look. Their clusters must be marked too.
async fn marked(store: &Store, names: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    let mut clusters = BTreeSet::new();
    for name in names {
        let uid = format!("uid-of-{name}");
        let row = load_parameters(&mut store.tables().await.unwrap(), &uid)
            .await
            .unwrap()
            .unwrap();
        if row.marks > 0 {
            found.push((*name).to_owned());
            clusters.insert(format!("cluster-of-{name}"));
        }
        let row = ParameterRow {
            service_uid: uid,
            ..row
        };
        let settle = store.transact(move |tx| {
            Box::pin(async move {
                let known = sqlx::query_as::<_, (String, String, String, String)>(
                    "SELECT kind, namespace, name, key FROM parameter_keys WHERE service_uid = $1",
                );
                let known = known.bind(row.service_uid.clone()).fetch_all(&mut **tx).await?;
                let key = |(kind, namespace, name, key)| ParameterKey {
                    kind,
                    namespace,
                    name,
                    key,
                };
                save_parameters(
                    tx,
                    &[Resolved {
                        row,
                        keys: known.into_iter().map(key).collect(),
                    }],
                )
                .await
            })
        });
        settle.await.unwrap();
    }
    let dirty = load_dirty(&mut store.tables().await.unwrap(), 100).await.unwrap();
    let marked: BTreeSet<String> = dirty.iter().map(|mark| mark.cluster_uid.clone()).collect();
    assert_eq!(marked, clusters, "the clusters of those are marked and no others");
    let cleared = store.transact(move |tx| {
        Box::pin(async move {
            for mark in dirty {
                clear_mark(tx, &mark).await?;
            }
            Ok(())
        })
    });
    cleared.await.unwrap();
    found
}

async fn a_changed_key_marks_exactly_those_who_are_handed_it(place: Place) {
    let store = open(&place).await;
    let (shared, other) = (key("shared"), key("other"));
    service(&store, "a", vec![handed(&shared, "a")]).await;
    service(&store, "b", vec![handed(&other, "a"), handed(&shared, "b")]).await;
    service(&store, "whole", vec![handed(&shared, "")]).await;
    service(&store, "none", vec![]).await;
    let names = ["a", "b", "whole", "none"];
    let none: [&str; 0] = [];
    assert_eq!(marked(&store, &names).await, none);

    // A new object marks all services that name it, whatever its keys.
    put(&store, "shared", json!({"a": "1", "b": "1", "c": "1"}))
        .await
        .unwrap();
    assert_eq!(marked(&store, &names).await, ["a", "b", "whole"]);
    put(&store, "shared", json!({"a": "2", "b": "1", "c": "1"}))
        .await
        .unwrap();
    assert_eq!(marked(&store, &names).await, ["a", "whole"]);
    put(&store, "shared", json!({"a": "2", "b": "1", "c": "2"}))
        .await
        .unwrap();
    assert_eq!(marked(&store, &names).await, ["whole"]);
    put(&store, "shared", json!({"a": "2", "c": "2"})).await.unwrap();
    assert_eq!(marked(&store, &names).await, ["b", "whole"]);
    // Only the labels change, not the content.
    let current = store.get(&shared).await.unwrap().unwrap();
    let mut labelled = object(&shared, json!({"a": "2", "c": "2"}));
    labelled["metadata"]["labels"] = json!({"x": "y"});
    store.write(replace(&current, labelled)).await.unwrap();
    assert_eq!(marked(&store, &names).await, none);
    // A key with a character that PostgreSQL doesn't accept in text.
    put(&store, "shared", json!({"a": "2", "c": "2", "\u{0}": "1"}))
        .await
        .unwrap();
    assert_eq!(marked(&store, &names).await, ["a", "b", "whole"]);
    put(&store, "shared", json!({"a": "2", "c": "2"})).await.unwrap();
    assert_eq!(marked(&store, &names).await, ["a", "b", "whole"]);
    put(&store, "another", json!({"a": "1"})).await.unwrap();
    assert_eq!(marked(&store, &names).await, none);
    // More keys than fit into one statement.
    let many: serde_json::Map<String, Value> = (0..150).map(|n| (format!("k{n}"), json!("x"))).collect();
    put(&store, "shared", Value::Object(many)).await.unwrap();
    assert_eq!(marked(&store, &names).await, ["a", "whole"]);
    let current = store.get(&shared).await.unwrap().unwrap();
    store.write(delete(&current)).await.unwrap();
    assert_eq!(marked(&store, &names).await, ["a", "b", "whole"]);

    let of_backend = Key {
        kind: Kind::new("secretbackend:vault", ""),
        ..key("kv/app")
    };
    service(&store, "a", vec![handed(&of_backend, "password")]).await;
    let marks = |keys: ChangedKeys| {
        let mark = store.transact(move |tx| {
            let keys = keys.clone();
            Box::pin(async move { mark_changed_keys(tx, "secretbackend:vault", "default", "kv/app", &keys).await })
        });
        async { mark.await.unwrap() }
    };
    marks(ChangedKeys::Some(BTreeSet::from(["user".to_owned()]))).await;
    assert_eq!(marked(&store, &names).await, none);
    marks(ChangedKeys::Some(BTreeSet::from(["password".to_owned()]))).await;
    assert_eq!(marked(&store, &names).await, ["a"]);
}

async fn a_clusters_labels_mark_its_services_that_are_handed_them(place: Place) {
    let store = open(&place).await;
    let cluster = Key {
        kind: Kind::new("clusters", "farwater.dev"),
        ..key("east")
    };
    service(&store, "region", vec![handed(&cluster, "Labels/region")]).await;
    service(&store, "labels", vec![handed(&cluster, "Labels/*")]).await;
    service(&store, "vpc", vec![handed(&cluster, "Metadata/vpc")]).await;
    let names = ["region", "labels", "vpc"];
    let mut east = object(&cluster, json!(null));
    east["metadata"]["labels"] = json!({"region": "eu"});
    store.write(create(&cluster, east.clone())).await.unwrap();
    let clear = async |expected: &[&str]| {
        // Any write of the Cluster marks the Cluster itself.
        let own = sqlx::query("DELETE FROM dirty WHERE cluster_uid = 'uid-east'");
        let cleared = store.transact(move |tx| {
            Box::pin(async move {
                own.execute(&mut **tx).await?;
                Ok(())
            })
        });
        cleared.await.unwrap();
        assert_eq!(marked(&store, &names).await, expected);
    };
    clear(&names).await;
    for (path, value, expected) in [
        ("/metadata/labels", json!({"region": "us"}), &["region", "labels"][..]),
        ("/metadata/labels", json!({"region": "us", "env": "test"}), &["labels"]),
        ("/spec", json!({"metadata": {"vpc": "7"}}), &["vpc"]),
        ("/status", json!({"kubernetesVersion": "v1.36.3"}), &[]),
    ] {
        let current = store.get(&cluster).await.unwrap().unwrap();
        let (parent, field) = path.rsplit_once('/').unwrap();
        east.pointer_mut(parent).unwrap()[field] = value;
        store.write(replace(&current, east.clone())).await.unwrap();
        clear(expected).await;
    }
}

async fn a_mark_that_comes_while_they_are_resolved_stays(place: Place) {
    let store = open(&place).await;
    let shared = key("shared");
    service(&store, "a", vec![handed(&shared, "a")]).await;
    let load = async || {
        load_parameters(&mut store.tables().await.unwrap(), "uid-of-a")
            .await
            .unwrap()
            .unwrap()
    };
    put(&store, "shared", json!({"a": "1"})).await.unwrap();
    let read = load().await;
    put(&store, "shared", json!({"a": "2"})).await.unwrap();
    let save = async |row: ParameterRow| {
        let resolved = [Resolved {
            row,
            keys: BTreeSet::from([handed(&key("shared"), "a")]),
        }];
        let saved = store.transact(move |tx| Box::pin(async move { save_parameters(tx, &resolved).await }));
        saved.await.unwrap();
    };
    save(ParameterRow {
        mac: "sha256:2".to_owned(),
        turn: 1,
        ..read
    })
    .await;
    let now = load().await;
    assert_eq!((now.mac.as_str(), now.turn, now.marks), ("sha256:2", 1, 2));
    save(now).await;
    assert_eq!(load().await.marks, 0);
    let of_cluster = parameters_of_cluster(&mut store.tables().await.unwrap(), "cluster-of-a")
        .await
        .unwrap();
    assert_eq!(of_cluster.keys().collect::<Vec<_>>(), ["uid-of-a"]);

    let versions = versions_of(&mut store.tables().await.unwrap(), &[shared.clone(), key("none")])
        .await
        .unwrap();
    let current = store.get(&shared).await.unwrap().unwrap();
    assert_eq!(
        versions,
        [
            InputVersion {
                key: shared,
                version: Some(current.version)
            },
            InputVersion {
                key: key("none"),
                version: None
            }
        ]
    );
}

async fn nothing_is_left_of_a_service_that_goes(place: Place) {
    let store = open(&place).await;
    service(
        &store,
        "a",
        vec![handed(&key("shared"), "a"), handed(&key("shared"), "b")],
    )
    .await;
    let gone = store.transact(|tx| Box::pin(async move { delete_assignment(tx, "uid-of-a").await }));
    gone.await.unwrap();
    for table in ["service_parameters", "parameter_keys"] {
        let count = format!("SELECT count(*) FROM {table}");
        let count: i64 = sqlx::query_scalar(sqlx::AssertSqlSafe(count))
            .fetch_one(&mut *store.tables().await.unwrap())
            .await
            .unwrap();
        assert_eq!(count, 0, "{table}");
    }
}

async fn many_services_are_written_together_and_none_that_is_gone(place: Place) {
    let store = open(&place).await;
    let names: Vec<String> = (0..75).map(|n| format!("s{n}")).collect();
    for name in &names {
        service(&store, name, vec![handed(&key("shared"), "a")]).await;
    }
    put(&store, "shared", json!({"a": "1"})).await.unwrap();
    let mut rows = parameters_of_services(&store, &names).await;
    // While the services are resolved, one of them is marked again, and another one is deleted.
    let meanwhile = store.transact(|tx| {
        Box::pin(async move {
            mark_parameters(tx, "uid-of-s3", "east").await?;
            delete_assignment(tx, "uid-of-s70").await
        })
    });
    meanwhile.await.unwrap();
    let resolved: Vec<Resolved> = rows
        .drain(..)
        .enumerate()
        .map(|(n, row)| {
            let other = key(if n % 2 == 0 { "shared" } else { "other" });
            let keys = [handed(&other, "b"), handed(&other, "a")];
            Resolved {
                row: ParameterRow {
                    mac: format!("sha256:{n}"),
                    turn: 1,
                    ..row
                },
                keys: BTreeSet::from(keys),
            }
        })
        .collect();
    store
        .transact(move |tx| Box::pin(async move { save_parameters(tx, &resolved).await }))
        .await
        .unwrap();
    let rows = parameters_of_services(&store, &names).await;
    assert_eq!(rows.len(), 74);
    for row in rows {
        let n: usize = row.service_uid["uid-of-s".len()..].parse().unwrap();
        let marks = if n == 3 { 2 } else { 0 };
        assert_eq!(
            (row.mac, row.turn, row.marks),
            (format!("sha256:{n}"), 1, marks),
            "s{n}"
        );
    }
    put(&store, "other", json!({"b": "1"})).await.unwrap();
    let rows = parameters_of_services(&store, &names).await;
    let marked: Vec<&str> = rows
        .iter()
        .filter(|row| row.marks > 0)
        .map(|row| &*row.service_uid)
        .collect();
    assert_eq!(marked.len(), 37, "those of odd numbers: {marked:?}");
    let left: i64 = sqlx::query_scalar("SELECT count(*) FROM parameter_keys WHERE service_uid = 'uid-of-s70'")
        .fetch_one(&mut *store.tables().await.unwrap())
        .await
        .unwrap();
    assert_eq!(left, 0);
}

async fn parameters_of_services(store: &Store, names: &[String]) -> Vec<ParameterRow> {
    let mut rows = Vec::new();
    for name in names {
        let uid = format!("uid-of-{name}");
        rows.extend(load_parameters(&mut store.tables().await.unwrap(), &uid).await.unwrap());
    }
    rows
}

const CANARY: &str = "canary-8d2b7e";

async fn a_context_is_plain_nowhere_in_the_database(place: Place) {
    let store = open(&place).await;
    let context = Key {
        kind: Kind::new("servicecontexts", "farwater.dev"),
        ..key("network")
    };
    let with = |text: &str| {
        let mut object = object(&context, Value::Null);
        object["metadata"]["annotations"] = json!({"kubectl.kubernetes.io/last-applied-configuration": text});
        object["spec"] = json!({"configuration": {"token": text}});
        object
    };
    let first = store.write(create(&context, with(CANARY))).await.unwrap();
    let second = format!("{CANARY}-2");
    let updated = store.write(replace(&first, with(&second))).await.unwrap();
    assert_eq!(updated.object["spec"]["configuration"]["token"], second);
    assert_eq!(place.parts_with(CANARY).await, Vec::<String>::new());
    store.close().await;
    assert_eq!(place.parts_with(CANARY).await, Vec::<String>::new());
    let report = fsck::fsck(&place.location(), &[7; 32]).await.unwrap();
    assert!(!report.is_damaged, "{:?}", report.findings);
}

async fn a_document_lies_sealed_as_long_as_it_is_named_and_goes_with_its_service(place: Place) {
    const CANARY: &str = "value-that-nobody-finds";
    let store = open(&place).await;
    let macs = async |uid: &'static str| {
        let mut found = String::new();
        for mac in ["1", "2", "3"] {
            if let Some(document) = load_document(&store, uid, mac).await.unwrap() {
                assert_eq!(document.as_slice(), CANARY.as_bytes());
                found += mac;
            }
        }
        found
    };
    for name in ["a", "aa"] {
        service(&store, name, Vec::new()).await;
    }
    let saved = store.transact(|tx| {
        Box::pin(async move {
            tx.save_kept("c0ffee", 1, b"of a backend").await?;
            for uid in ["uid-of-a", "uid-of-aa"] {
                for mac in ["1", "2", "3"] {
                    save_document(tx, uid, mac, CANARY.as_bytes()).await?;
                }
            }
            Ok(())
        })
    });
    saved.await.unwrap();
    assert_eq!(place.parts_with(CANARY).await, Vec::<String>::new());
    assert_eq!(store.kept_ids().await.unwrap(), ["c0ffee"]);
    let named = BTreeSet::from(["1", "3", "9"].map(str::to_owned));
    store
        .transact(move |tx| Box::pin(async move { retain_documents(tx, "uid-of-a", &named).await }))
        .await
        .unwrap();
    assert_eq!(
        (macs("uid-of-a").await, macs("uid-of-aa").await),
        ("13".to_owned(), "123".to_owned())
    );
    store
        .transact(|tx| Box::pin(async move { delete_assignment(tx, "uid-of-a").await }))
        .await
        .unwrap();
    assert_eq!(
        (macs("uid-of-a").await, macs("uid-of-aa").await),
        (String::new(), "123".to_owned())
    );
    assert_eq!(store.kept_ids().await.unwrap(), ["c0ffee"]);
}
