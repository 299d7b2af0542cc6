//! Closures in the combiner's transaction, the change hook, meta, tokens.

use std::sync::Arc;

use farwater_store::{
    ApiToken, BoundObject, ChangeHook, Connection, StoreError, WriteError, Written,
    delivery::{
        Assignment, Revision, SourceOrigin, Taken, load_served, save_assignment, save_revision, save_source_origin,
        services_gone,
    },
};
use futures::future::BoxFuture;
use serde_json::json;

use crate::setup::{Place, create, key, object, put};

on_both_engines!(
    a_closure_is_committed_as_a_whole,
    a_closure_that_gives_up_leaves_nothing,
    a_failing_closure_does_not_touch_its_neighbours,
    the_hook_marks_in_the_same_transaction,
    what_a_source_serves_is_read_with_its_own_repository,
    the_first_value_of_a_fact_stays,
    tokens_are_found_until_they_expire_or_their_object_goes,
    a_row_whose_resource_is_no_more_is_found,
);

async fn a_closure_is_committed_as_a_whole(place: Place) {
    let store = place.open().await;
    let version = store
        .transact(|tx| {
            Box::pin(async move {
                tx.put_meta("a", "1").await?;
                let written = tx.write(create(&key("a"), object(&key("a"), json!({})))).await?;
                assert!(tx.get(&key("a")).await?.is_some(), "a transaction sees its own writes");
                Ok(written.version)
            })
        })
        .await
        .unwrap();
    assert_eq!((version, store.position()), (1, 1));
    assert_eq!(store.meta("a").await.unwrap().as_deref(), Some("1"));
}

/// After a source has changed to another repository, no reader sees the old repository with the revision of the new
/// one. Objects would be deleted without a question otherwise.
async fn what_a_source_serves_is_read_with_its_own_repository(place: Place) {
    const TIMES: usize = 200;
    let store = place.open().await;
    let reader = async {
        let mut seen = 0;
        while seen < TIMES {
            let (origin, revision) = load_served(&mut store.tables().await.unwrap(), "s").await.unwrap();
            assert_eq!(
                origin.as_ref().map(|o| &o.commit_id),
                revision.as_ref().map(|r| &r.commit)
            );
            seen = origin.map_or(0, |origin| origin.root.parse().unwrap());
        }
    };
    let writer = async {
        for n in 1..=TIMES {
            let (source_uid, commit) = ("s".to_owned(), format!("c{n}"));
            let reference = "main".to_owned();
            let revision = Revision {
                source_uid: source_uid.clone(),
                reference,
                commit: commit.clone(),
                fetched: 0,
                taken: Taken::default(),
            };
            let origin = SourceOrigin {
                source_uid,
                root: n.to_string(),
                commit_id: commit,
                unasked: false,
            };
            let both = store.transact(move |tx| {
                Box::pin(async move {
                    save_source_origin(tx, &origin).await?;
                    save_revision(tx, &revision).await
                })
            });
            both.await.unwrap();
        }
    };
    tokio::join!(reader, writer);
}

async fn a_closure_that_gives_up_leaves_nothing(place: Place) {
    let store = place.open().await;
    put(&store, "taken", json!({})).await.unwrap();
    let mut watch = store.watch(None, 1).unwrap();
    let refused: Result<(), _> = store
        .transact(|tx| {
            Box::pin(async move {
                tx.put_meta("a", "1").await?;
                tx.write(create(&key("a"), object(&key("a"), json!({})))).await?;
                tx.write(create(&key("taken"), object(&key("taken"), json!({}))))
                    .await?;
                Ok(())
            })
        })
        .await;
    assert!(matches!(refused, Err(StoreError::Refused(reason)) if matches!(*reason, WriteError::Exists)));
    let aborted: Result<(), _> = store
        .transact(|tx| {
            Box::pin(async move {
                tx.put_meta("a", "1").await?;
                Err(StoreError::abort("no more wanted"))
            })
        })
        .await;
    assert!(matches!(aborted, Err(StoreError::Aborted(_))));
    let sql: Result<(), _> = store
        .transact(|tx| {
            Box::pin(async move {
                tx.put_meta("a", "1").await?;
                sqlx::query("INSERT INTO nowhere VALUES (1)").execute(&mut **tx).await?;
                Ok(())
            })
        })
        .await;
    assert!(matches!(sql, Err(StoreError::Database { location, .. }) if location == place.location()));
    // A closure that swallows an SQL error is still rolled back as a whole.
    let swallowed: Result<(), _> = store
        .transact(|tx| {
            Box::pin(async move {
                tx.put_meta("b", "1").await?;
                let _ = sqlx::query("INSERT INTO nowhere VALUES (1)").execute(&mut **tx).await;
                Ok(())
            })
        })
        .await;
    assert_eq!(swallowed.is_ok(), store.meta("b").await.unwrap().is_some());
    assert_eq!(store.meta("a").await.unwrap(), None);
    assert!(store.get(&key("a")).await.unwrap().is_none());
    let written = put(&store, "b", json!({})).await.unwrap();
    assert_eq!(written.version, 2, "numbers that were rolled back are taken again");
    assert_eq!(crate::setup::next(&mut watch).await.version, 2);
}

async fn a_failing_closure_does_not_touch_its_neighbours(place: Place) {
    let store = place.open().await;
    let writes = futures::future::join_all((0..50).map(|n| {
        let store = store.clone();
        async move {
            let name = format!("n{n}");
            if n % 5 == 0 {
                let failed: Result<(), _> = store
                    .transact(move |tx| {
                        Box::pin(async move {
                            tx.write(create(&key(&name), object(&key(&name), json!({})))).await?;
                            Err(StoreError::abort("as planned"))
                        })
                    })
                    .await;
                assert!(failed.is_err());
                None
            } else {
                Some(put(&store, &name, json!({})).await.unwrap().version)
            }
        }
    }))
    .await;
    let mut versions: Vec<u64> = writes.into_iter().flatten().collect();
    versions.sort_unstable();
    assert_eq!(versions, (1..=40).collect::<Vec<_>>());
}

struct Marks;

impl ChangeHook for Marks {
    fn mark_changes<'a>(
        &'a self,
        connection: &'a mut Connection,
        changes: &'a [Written],
    ) -> BoxFuture<'a, Result<(), sqlx::Error>> {
        Box::pin(async move {
            for change in changes {
                let mark = sqlx::query("INSERT INTO meta (name, value) VALUES ($1, $2)");
                let name = format!("mark-{}", change.key.name);
                mark.bind(name)
                    .bind(change.version.to_string())
                    .execute(&mut *connection)
                    .await?;
            }
            Ok(())
        })
    }
}

async fn the_hook_marks_in_the_same_transaction(place: Place) {
    let mut options = place.options();
    options.on_change = Some(Arc::new(Marks));
    let store = farwater_store::Store::open(options).await.unwrap();
    put(&store, "a", json!({})).await.unwrap();
    assert_eq!(store.meta("mark-a").await.unwrap().as_deref(), Some("1"));
    // The mark exists already, so the hook fails, and with it the write.
    let failed = put(&store, "a", json!({"x": "1"})).await;
    assert!(matches!(failed, Err(WriteError::Store(StoreError::Database { .. }))));
    assert_eq!(store.get(&key("a")).await.unwrap().unwrap().version, 1);
    assert_eq!(put(&store, "b", json!({})).await.unwrap().version, 2);
}

async fn the_first_value_of_a_fact_stays(place: Place) {
    let store = place.open().await;
    assert_eq!(store.init_meta("installation", "one").await.unwrap(), "one");
    assert_eq!(store.init_meta("installation", "two").await.unwrap(), "one");
    store.put_meta("installation", "three").await.unwrap();
    assert_eq!(store.meta("installation").await.unwrap().as_deref(), Some("three"));
}

async fn tokens_are_found_until_they_expire_or_their_object_goes(place: Place) {
    let store = place.open().await;
    let token = |hash: u8, expires| ApiToken {
        hash: [hash; 32],
        user: "system:serviceaccount:team-a:ci".to_owned(),
        uid: "u1".to_owned(),
        groups: vec!["system:serviceaccounts".to_owned()],
        bound: Some(BoundObject {
            kind: "ServiceAccount".to_owned(),
            namespace: "team-a".to_owned(),
            name: "ci".to_owned(),
            uid: format!("sa{hash}"),
        }),
        created: 100,
        expires,
    };
    for token in [token(1, Some(200)), token(2, None), token(3, Some(400))] {
        store.insert_token(token).await.unwrap();
    }
    assert_eq!(
        store.find_token(&[1; 32], 199).await.unwrap(),
        Some(token(1, Some(200)))
    );
    assert_eq!(store.find_token(&[1; 32], 200).await.unwrap(), None);
    assert_eq!(store.find_token(&[9; 32], 0).await.unwrap(), None);
    assert_eq!(store.expire_tokens(300).await.unwrap(), 1);
    assert_eq!(store.find_token(&[1; 32], 0).await.unwrap(), None);
    let ended = store
        .transact(|tx| Box::pin(async move { tx.delete_bound_tokens("sa2").await }))
        .await
        .unwrap();
    assert_eq!(ended, 1);
    assert_eq!(store.find_token(&[2; 32], 0).await.unwrap(), None);
    assert!(store.delete_token(&[3; 32]).await.unwrap());
    assert!(!store.delete_token(&[3; 32]).await.unwrap());
}

async fn a_row_whose_resource_is_no_more_is_found(place: Place) {
    let store = place.open().await;
    let (here, gone) = (put(&store, "here", json!({})).await.unwrap().key, key("gone"));
    for key in [here.clone(), gone.clone()] {
        let row = Assignment {
            service_uid: format!("uid-{}", key.name),
            namespace: key.namespace,
            name: key.name,
            cluster_uid: String::new(),
            source_uid: String::new(),
            generation: 1,
            stamp: String::new(),
            candidate: None,
            assigned: None,
            why: "{}".to_owned(),
        };
        store
            .transact(move |tx| Box::pin(async move { save_assignment(tx, &row).await }))
            .await
            .unwrap();
    }
    let found = services_gone(&mut store.tables().await.unwrap(), &here.kind)
        .await
        .unwrap();
    assert_eq!(found, [(gone.namespace, gone.name)]);
}
