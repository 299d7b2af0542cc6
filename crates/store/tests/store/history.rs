//! Versions of services, and dependencies between services.

use std::collections::HashSet;

use farwater_api::Digest;
use farwater_store::{
    Store,
    delivery::{
        Assignment, HookRow, VersionRow, delete_assignment, delete_hook, dependencies_of, dependents_of, load_history,
        load_history_bundles, load_hooks, load_hooks_of_version, load_newest_version, load_version, names_of_services,
        save_assignment, save_dependencies, save_hook, save_version, trim_history,
    },
};

use crate::setup::Place;

on_both_engines!(
    the_newest_versions_are_kept_and_the_newest_is_read_alone,
    bundles_of_histories_are_named_once,
    dependents_are_found_by_the_name_that_they_state,
    services_are_named_to_their_own_cluster_only,
    a_service_that_goes_takes_its_history_along,
    hooks_go_with_their_version,
);

fn version(service: &str, number: i64, bundle: &str) -> VersionRow {
    VersionRow {
        service_uid: service.to_owned(),
        number,
        bundle: Digest::of(bundle).to_string(),
        version: format!("{{\"number\":{number}}}"),
    }
}

async fn save(store: &Store, rows: Vec<VersionRow>) {
    let saved = store.transact(move |tx| {
        Box::pin(async move {
            for row in &rows {
                save_version(tx, row).await?;
                trim_history(tx, &row.service_uid, (row.number, 0), 3).await?;
            }
            Ok(())
        })
    });
    saved.await.unwrap();
}

async fn numbers(store: &Store, service: &str) -> Vec<i64> {
    let rows = load_history(&mut store.tables().await.unwrap(), service).await.unwrap();
    rows.into_iter().map(|row| row.number).collect()
}

async fn the_newest_versions_are_kept_and_the_newest_is_read_alone(place: Place) {
    let store = place.open().await;
    assert_eq!(
        load_newest_version(&mut store.tables().await.unwrap(), "web")
            .await
            .unwrap(),
        None
    );
    save(
        &store,
        (1..=12).map(|n| version("web", n, &format!("b{}", n % 2))).collect(),
    )
    .await;
    save(&store, vec![version("other", 1, "b1")]).await;
    assert_eq!(
        (numbers(&store, "web").await, numbers(&store, "other").await),
        (vec![12, 11, 10], vec![1])
    );
    // Trimming keeps a version that a rollback may need.
    save(&store, (1..=6).map(|n| version("kept", n, "b1")).collect()).await;
    let trimmed = store.transact(|tx| Box::pin(async move { trim_history(tx, "kept", (6, 4), 1).await }));
    trimmed.await.unwrap();
    assert_eq!(numbers(&store, "kept").await, [6, 4]);
    {
        let mut tables = store.tables().await.unwrap();
        assert_eq!(
            load_newest_version(&mut tables, "web").await.unwrap(),
            Some(version("web", 12, "b0"))
        );
        let found = load_version(&mut tables, "web", &Digest::of("b0")).await.unwrap();
        assert_eq!(found.map(|row| row.number), Some(12));
        assert_eq!(
            load_version(&mut tables, "web", &Digest::of("other")).await.unwrap(),
            None
        );
        assert_eq!(
            load_version(&mut tables, "none", &Digest::of("b0")).await.unwrap(),
            None
        );
    }
    // A later row of the same version replaces it.
    let told = VersionRow {
        version: "{\"result\":\"Healthy\"}".to_owned(),
        ..version("web", 12, "b0")
    };
    save(&store, vec![told.clone()]).await;
    assert_eq!(
        load_newest_version(&mut store.tables().await.unwrap(), "web")
            .await
            .unwrap(),
        Some(told)
    );
    assert_eq!(numbers(&store, "web").await, [12, 11, 10]);
}

async fn bundles_of_histories_are_named_once(place: Place) {
    let store = place.open().await;
    assert!(
        load_history_bundles(&mut store.tables().await.unwrap())
            .await
            .unwrap()
            .is_empty()
    );
    let rows = (0..40).flat_map(|n| (1..=3).map(move |v| version(&format!("s{n}"), v, &format!("b{}", v + n % 2))));
    save(&store, rows.collect()).await;
    let found = load_history_bundles(&mut store.tables().await.unwrap()).await.unwrap();
    assert_eq!(
        found,
        ["b1", "b2", "b3", "b4"]
            .map(Digest::of)
            .into_iter()
            .collect::<HashSet<_>>()
    );
}

fn assignment(namespace: &str, name: &str) -> Assignment {
    Assignment {
        service_uid: format!("{namespace}-{name}"),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        cluster_uid: String::new(),
        source_uid: String::new(),
        generation: 1,
        stamp: String::new(),
        candidate: None,
        assigned: None,
        why: "{}".to_owned(),
    }
}

async fn state(store: &Store, namespace: &str, name: &str, depends_on: &[&str]) {
    let row = assignment(namespace, name);
    let names: Vec<String> = depends_on.iter().map(|name| (*name).to_owned()).collect();
    let saved = store.transact(move |tx| {
        Box::pin(async move {
            save_assignment(tx, &row).await?;
            save_dependencies(tx, &row.service_uid, &row.namespace, &names).await
        })
    });
    saved.await.unwrap();
}

async fn services_are_named_to_their_own_cluster_only(place: Place) {
    let store = place.open().await;
    let save = store.transact(|tx| {
        Box::pin(async move {
            for n in 0..20 {
                let cluster_uid = if n < 10 { "east" } else { "west" }.to_owned();
                save_assignment(
                    tx,
                    &Assignment {
                        cluster_uid,
                        ..assignment("team", &format!("s{n}"))
                    },
                )
                .await?;
            }
            Ok(())
        })
    });
    save.await.unwrap();
    let uids: Vec<String> = (5..25).map(|n| format!("team-s{n}")).collect();
    let uids: Vec<&str> = uids.iter().map(String::as_str).collect();
    let mut found = names_of_services(&mut store.tables().await.unwrap(), "east", &uids)
        .await
        .unwrap();
    found.sort();
    let row = |n: usize| (format!("team-s{n}"), "team".to_owned(), format!("s{n}"));
    assert_eq!(found, (5..10).map(row).collect::<Vec<_>>());
}

async fn dependents(store: &Store, namespace: &str, name: &str) -> Vec<String> {
    dependents_of(&mut store.tables().await.unwrap(), namespace, name)
        .await
        .unwrap()
}

async fn dependents_are_found_by_the_name_that_they_state(place: Place) {
    let store = place.open().await;
    state(&store, "a", "web", &["database", "cache", "cache"]).await;
    state(&store, "a", "api", &["database"]).await;
    state(&store, "b", "web", &["database"]).await;
    assert_eq!(dependents(&store, "a", "database").await, ["api", "web"]);
    assert_eq!(dependents(&store, "b", "database").await, ["web"]);
    let found = dependencies_of(&mut store.tables().await.unwrap(), "a-web")
        .await
        .unwrap();
    assert_eq!(found, ["cache", "database"]);
    state(&store, "a", "web", &["cache"]).await;
    assert_eq!(dependents(&store, "a", "database").await, ["api"]);
}

async fn a_service_that_goes_takes_its_history_along(place: Place) {
    let store = place.open().await;
    state(&store, "a", "web", &["database"]).await;
    save(&store, vec![version("a-web", 1, "b1"), version("a-api", 1, "b2")]).await;
    store
        .transact(|tx| Box::pin(async move { delete_assignment(tx, "a-web").await }))
        .await
        .unwrap();
    assert_eq!(
        (numbers(&store, "a-web").await, numbers(&store, "a-api").await),
        (vec![], vec![1])
    );
    assert!(dependents(&store, "a", "database").await.is_empty());
}

async fn hooks_go_with_their_version(place: Place) {
    let store = place.open().await;
    let hook = |number: i64, name: &str, run: &str| HookRow {
        service_uid: "web".to_owned(),
        number,
        hook: name.to_owned(),
        run: run.to_owned(),
        body: run.as_bytes().to_vec(),
    };
    let save = async |rows: Vec<HookRow>| {
        let saved = store.transact(move |tx| {
            Box::pin(async move {
                for row in &rows {
                    save_hook(tx, row).await?;
                }
                Ok(())
            })
        });
        saved.await.unwrap();
    };
    save(vec![
        hook(1, "Test a", "1"),
        hook(2, "Test b", "2"),
        hook(2, "Test a", "3"),
    ])
    .await;
    // The last run of a hook replaces the earlier one.
    save(vec![hook(2, "Test a", "4")]).await;
    let load = async || load_hooks(&mut store.tables().await.unwrap(), "web").await.unwrap();
    assert_eq!(
        load().await,
        vec![hook(2, "Test a", "4"), hook(2, "Test b", "2"), hook(1, "Test a", "1")]
    );
    let of_one = load_hooks_of_version(&mut store.tables().await.unwrap(), "web", 1)
        .await
        .unwrap();
    assert_eq!(of_one, vec![hook(1, "Test a", "1")]);
    let trimmed = store.transact(|tx| {
        Box::pin(async move {
            delete_hook(tx, "web", 2, "Test b").await?;
            trim_history(tx, "web", (2, 0), 1).await
        })
    });
    trimmed.await.unwrap();
    assert_eq!(load().await, vec![hook(2, "Test a", "4")]);
    let deleted = store.transact(|tx| Box::pin(async move { delete_assignment(tx, "web").await }));
    deleted.await.unwrap();
    assert!(load().await.is_empty());
}
