//! What services need besides one source.

use farwater_store::{
    Store,
    delivery::{
        Assignment, ChartRow, Revision, ServiceSource, Taken, assignments_of_source, charts_of_source,
        delete_assignment, delete_revision, distrust_sources, is_source_used, linked_sources, load_chart,
        load_revision, load_source_origin, save_assignment, save_chart, save_revision, save_service_sources,
        services_of_chart, sources_of_service, wanted_charts,
    },
};

use crate::setup::Place;

on_both_engines!(
    services_are_found_by_each_of_their_sources_and_charts_by_who_wants_them,
    what_a_service_needs_comes_in_an_order_of_bytes,
    a_chart_stays_what_it_was_until_it_is_saved_anew_or_its_repository_goes,
    after_a_restore_every_source_of_a_service_is_to_be_asked,
    a_database_of_before_charts_goes_on_with_what_it_serves,
);

fn assignment(name: &str, source: &str) -> Assignment {
    Assignment {
        service_uid: format!("uid-{name}"),
        namespace: "team-a".to_owned(),
        name: name.to_owned(),
        cluster_uid: "east".to_owned(),
        source_uid: source.to_owned(),
        generation: 1,
        stamp: String::new(),
        candidate: None,
        assigned: None,
        why: "{}".to_owned(),
    }
}

fn chart(source: &str, chart: &str, wanted: &str, url: &str) -> ServiceSource {
    ServiceSource {
        source_uid: source.into(),
        chart: chart.into(),
        wanted: wanted.into(),
        url: url.into(),
    }
}

async fn save(store: &Store, row: Assignment, sources: Vec<ServiceSource>) {
    let saved = store.transact(move |tx| {
        Box::pin(async move {
            save_assignment(tx, &row).await?;
            save_service_sources(tx, &row, &sources).await
        })
    });
    saved.await.unwrap();
}

async fn services_are_found_by_each_of_their_sources_and_charts_by_who_wants_them(place: Place) {
    let store = place.open().await;
    let link = chart("link", "redis", "^7", "https://charts.example.com");
    save(&store, assignment("plain", "git"), vec![]).await;
    save(
        &store,
        assignment("web", "git"),
        vec![chart("helm", "web", "*", ""), link.clone()],
    )
    .await;
    save(
        &store,
        assignment("api", "helm"),
        vec![chart("helm", "web", "*", ""), chart("helm", "api", "~1", "")],
    )
    .await;
    let names = async |uid: &str| {
        let mut tables = store.tables().await.unwrap();
        let mut names: Vec<_> = assignments_of_source(&mut tables, uid)
            .await
            .unwrap()
            .into_iter()
            .map(|row| row.name)
            .collect();
        names.sort();
        names
    };
    assert_eq!(names("git").await, ["plain", "web"]);
    assert_eq!(names("helm").await, ["api", "web"]);
    assert_eq!(names("link").await, ["web"]);
    {
        let mut tables = store.tables().await.unwrap();
        let wanted = wanted_charts(&mut tables, "helm").await.unwrap();
        assert_eq!(
            wanted,
            [("api".to_owned(), "~1".to_owned()), ("web".to_owned(), "*".to_owned())]
        );
        let mut services = services_of_chart(&mut tables, "helm", ("web", "*")).await.unwrap();
        services.sort();
        assert_eq!(
            services,
            [
                ("team-a".to_owned(), "api".to_owned()),
                ("team-a".to_owned(), "web".to_owned())
            ]
        );
        let linked = linked_sources(&mut tables).await.unwrap();
        assert_eq!(
            (linked.len(), linked[0].url.as_str(), linked[0].namespace.as_str()),
            (1, link.url.as_str(), "team-a")
        );
        assert_eq!(sources_of_service(&mut tables, "uid-plain").await.unwrap(), []);
        assert!(is_source_used(&mut tables, "link").await.unwrap());
    }
    let gone = store.transact(|tx| Box::pin(async move { delete_assignment(tx, "uid-web").await }));
    gone.await.unwrap();
    assert_eq!(names("helm").await, ["api"]);
    assert!(
        !is_source_used(&mut store.tables().await.unwrap(), "link")
            .await
            .unwrap()
    );
}

async fn what_a_service_needs_comes_in_an_order_of_bytes(place: Place) {
    let store = place.open().await;
    let mut needed = ["b", "A", "a-b", "a_b", "B", "ab", "a"]
        .map(|name| chart("helm", name, "*", ""))
        .to_vec();
    save(&store, assignment("web", "helm"), needed.clone()).await;
    needed.sort();
    assert_eq!(
        sources_of_service(&mut store.tables().await.unwrap(), "uid-web")
            .await
            .unwrap(),
        needed
    );
}

async fn a_chart_stays_what_it_was_until_it_is_saved_anew_or_its_repository_goes(place: Place) {
    let store = place.open().await;
    let row = |version: &str, problem: &str| ChartRow {
        source_uid: "helm".into(),
        chart: "web".into(),
        wanted: "*".into(),
        version: version.into(),
        digest: "d".into(),
        entry: "e".into(),
        problem: problem.into(),
        fetched: 1,
    };
    for row in [row("1.0.0", ""), row("1.0.0", "gone")] {
        let saved = row.clone();
        store
            .transact(move |tx| Box::pin(async move { save_chart(tx, &saved).await }))
            .await
            .unwrap();
        let mut tables = store.tables().await.unwrap();
        assert_eq!(load_chart(&mut tables, "helm", ("web", "*")).await.unwrap(), Some(row));
        assert_eq!(load_chart(&mut tables, "helm", ("web", "^1")).await.unwrap(), None);
    }
    store
        .transact(|tx| Box::pin(async move { delete_revision(tx, "helm").await }))
        .await
        .unwrap();
    assert_eq!(
        charts_of_source(&mut store.tables().await.unwrap(), "helm")
            .await
            .unwrap(),
        []
    );
}

async fn after_a_restore_every_source_of_a_service_is_to_be_asked(place: Place) {
    let store = place.open().await;
    save(&store, assignment("web", "git"), vec![chart("helm", "web", "*", "")]).await;
    store
        .transact(|tx| Box::pin(async move { distrust_sources(tx, Some("east")).await }))
        .await
        .unwrap();
    for uid in ["git", "helm"] {
        let origin = load_source_origin(&mut store.tables().await.unwrap(), uid)
            .await
            .unwrap();
        assert!(origin.is_some_and(|origin| origin.unasked), "{uid}");
    }
}

/// Makes the database one of an older program, without migration 12 and those after it.
const BEFORE: &str = "DROP TABLE service_sources; DROP TABLE charts; DROP TABLE bundle_recipes; DROP TABLE revision_terms; \
                      DROP TABLE service_paths; DROP TABLE service_parameters; DROP TABLE parameter_keys; \
                      DROP TABLE data_keys; DROP TABLE kept_values; DROP TABLE set_members; DROP TABLE rollouts; \
                      DROP TABLE set_versions; DROP TABLE held_services; DROP TABLE threads; DROP TABLE pipelines; \
                      DELETE FROM _sqlx_migrations WHERE version >= 12;";

async fn a_database_of_before_charts_goes_on_with_what_it_serves(place: Place) {
    let store = place.open().await;
    let served = Revision {
        source_uid: "git".to_owned(),
        reference: "main".to_owned(),
        commit: "c0ffee".to_owned(),
        fetched: 7,
        taken: Taken::default(),
    };
    save(&store, assignment("web", "git"), vec![]).await;
    let row = served.clone();
    let old = store.transact(move |tx| {
        Box::pin(async move {
            save_revision(tx, &row).await?;
            sqlx::raw_sql(BEFORE).execute(&mut **tx).await?;
            Ok(())
        })
    });
    old.await.unwrap();
    store.close().await;

    let store = place.open().await;
    let mut tables = store.tables().await.unwrap();
    assert_eq!(load_revision(&mut tables, "git").await.unwrap(), Some(served.clone()));
    let services = assignments_of_source(&mut tables, "git").await.unwrap();
    assert_eq!(
        services.iter().map(|row| row.name.as_str()).collect::<Vec<_>>(),
        ["web"]
    );
    assert_eq!(sources_of_service(&mut tables, "uid-web").await.unwrap(), []);
    drop(tables);
    let taken = Taken {
        lfs: true,
        ..Taken::default()
    };
    let now = Revision { taken, ..served };
    let row = now.clone();
    store
        .transact(|tx| Box::pin(async move { save_revision(tx, &row).await }))
        .await
        .unwrap();
    save(&store, assignment("web", "git"), vec![chart("helm", "web", "*", "")]).await;
    let mut tables = store.tables().await.unwrap();
    assert_eq!(load_revision(&mut tables, "git").await.unwrap(), Some(now));
    assert_eq!(
        sources_of_service(&mut tables, "uid-web").await.unwrap(),
        [chart("helm", "web", "*", "")]
    );
}
