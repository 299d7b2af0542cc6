//! Which services a commit affects.

use farwater_store::{
    Store,
    delivery::{
        Assignment, Revision, ServicePath, Taken, assignments_of_cluster, delete_assignment, is_untouched,
        move_revision, paths_of_service, save_assignment, save_revision, save_service_paths,
        touched_assignments_of_cluster, withdraw_revision,
    },
};

use crate::setup::Place;

on_both_engines!(
    a_move_concerns_those_whose_paths_it_touches_and_who_is_made_of_everything,
    a_revision_without_a_known_difference_concerns_all,
);

const SOURCE: &str = "git";

fn revision(commit: &str) -> Revision {
    let taken = Taken::default();
    Revision {
        source_uid: SOURCE.to_owned(),
        reference: "main".to_owned(),
        commit: commit.to_owned(),
        fetched: 1,
        taken,
    }
}

async fn save(store: &Store, name: &str, paths: &[&str]) {
    let row = Assignment {
        service_uid: format!("uid-{name}"),
        namespace: "team-a".to_owned(),
        name: name.to_owned(),
        cluster_uid: "east".to_owned(),
        source_uid: SOURCE.to_owned(),
        generation: 1,
        stamp: String::new(),
        candidate: None,
        assigned: None,
        why: "{}".to_owned(),
    };
    let path = |path: &&str| ServicePath {
        source_uid: SOURCE.to_owned(),
        path: (*path).to_owned(),
    };
    let paths: Vec<_> = paths.iter().map(path).collect();
    let saved = store.transact(move |tx| {
        Box::pin(async move {
            save_assignment(tx, &row).await?;
            save_service_paths(tx, &row.service_uid, &paths).await
        })
    });
    saved.await.unwrap();
}

/// The services that a look at the cluster treats as affected.
async fn touched(store: &Store) -> Vec<String> {
    let (rows, touched) = touched_assignments_of_cluster(&mut store.tables().await.unwrap(), "east")
        .await
        .unwrap();
    assert_eq!(
        rows,
        assignments_of_cluster(&mut store.tables().await.unwrap(), "east")
            .await
            .unwrap()
    );
    rows.into_iter()
        .filter(|row| touched.contains(&row.service_uid))
        .map(|row| row.name)
        .collect()
}

async fn paths(store: &Store, name: &str) -> Vec<String> {
    let rows = paths_of_service(&mut store.tables().await.unwrap(), &format!("uid-{name}"))
        .await
        .unwrap();
    assert_eq!(
        is_untouched(&rows),
        !rows.is_empty() && rows.iter().all(|row| !row.path.is_empty())
    );
    rows.into_iter().map(|row| row.path).collect()
}

async fn move_to(store: &Store, commit: &str, changed: &[&str]) -> Vec<String> {
    let (row, changed) = (
        revision(commit),
        changed.iter().map(|path| (*path).to_owned()).collect::<Vec<_>>(),
    );
    let moved = store.transact(move |tx| Box::pin(async move { move_revision(tx, &row, &changed).await }));
    let mut names: Vec<String> = moved.await.unwrap().into_iter().map(|(_, name)| name).collect();
    names.sort();
    names
}

async fn a_move_concerns_those_whose_paths_it_touches_and_who_is_made_of_everything(place: Place) {
    let store = place.open().await;
    store
        .transact(|tx| Box::pin(async move { save_revision(tx, &revision("1")).await }))
        .await
        .unwrap();
    save(&store, "web", &["apps/web", "base/x.yaml"]).await;
    save(&store, "web-2", &["apps/web-2"]).await;
    save(&store, "shop", &["apps/web0", "apps/shop"]).await;
    save(&store, "anything", &[""]).await;
    let check = async |commit, changed: &[&str], concerned: &[&str]| {
        assert_eq!(move_to(&store, commit, changed).await, concerned, "{changed:?}");
        assert_eq!(touched(&store).await, concerned, "{changed:?}");
        for name in concerned {
            assert_eq!(paths(&store, name).await, [""], "{name}");
        }
        save(&store, "web", &["apps/web", "base/x.yaml"]).await;
        save(&store, "web-2", &["apps/web-2"]).await;
        save(&store, "shop", &["apps/web0", "apps/shop"]).await;
    };
    check("2", &["README"], &["anything"]).await;
    check("3", &["apps/web/deep/file"], &["anything", "web"]).await;
    check("4", &["apps/web-2/file", "other"], &["anything", "web-2"]).await;
    check("5", &["base"], &["anything", "web"]).await;
    check("6", &["base/x.yaml/now-a-folder", "base/y.yaml"], &["anything", "web"]).await;
    check("7", &["apps"], &["anything", "shop", "web", "web-2"]).await;
    check("8", &[], &["anything"]).await;
    // More paths than fit into one statement.
    let many: Vec<String> = (0..200)
        .map(|n| format!("many/{n}"))
        .chain(["apps/shop/map.yaml".to_owned()])
        .collect();
    check(
        "9",
        &many.iter().map(String::as_str).collect::<Vec<_>>(),
        &["anything", "shop"],
    )
    .await;
    assert_eq!(paths(&store, "web").await, ["apps/web", "base/x.yaml"]);

    store
        .transact(|tx| Box::pin(async move { delete_assignment(tx, "uid-web").await }))
        .await
        .unwrap();
    assert!(paths(&store, "web").await.is_empty());
    assert_eq!(move_to(&store, "10", &["apps/web/x"]).await, ["anything"]);
    store.close().await;
}

async fn a_revision_without_a_known_difference_concerns_all(place: Place) {
    let store = place.open().await;
    save(&store, "web", &["apps/web", "base"]).await;
    store
        .transact(|tx| Box::pin(async move { save_revision(tx, &revision("1")).await }))
        .await
        .unwrap();
    assert_eq!(paths(&store, "web").await, [""]);
    save(&store, "web", &["apps/web", "base"]).await;
    store
        .transact(|tx| Box::pin(async move { withdraw_revision(tx, SOURCE).await }))
        .await
        .unwrap();
    assert_eq!(paths(&store, "web").await, [""]);
    store.close().await;
}
