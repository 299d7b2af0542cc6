//! The rows of one service, which are read together.

use std::collections::BTreeSet;

use farwater_store::{
    Connection,
    delivery::{
        Assignment, HeldService, ParameterRow, Report, Resolved, ServiceOrigin, ServiceRows, SetMember,
        distrust_sources, load_assignment, load_held, load_parameters, load_report, load_service_origin,
        load_service_rows, rollout_of_service, save_assignment, save_held, save_member, save_parameters, save_report,
        save_rollout, save_service_origin, save_set_pin, trust_service_origin,
    },
};

use crate::setup::Place;

on_both_engines!(
    the_rows_of_a_service_are_those_of_its_tables,
    what_is_noted_of_a_service_after_a_restore_trusts_nothing,
);

async fn one_by_one(tables: &mut Connection, uid: &str) -> ServiceRows {
    ServiceRows {
        assignment: load_assignment(tables, uid).await.unwrap(),
        held: load_held(tables, uid).await.unwrap(),
        member: rollout_of_service(tables, uid).await.unwrap(),
        origin: load_service_origin(tables, uid).await.unwrap(),
        parameters: load_parameters(tables, uid).await.unwrap(),
        report: load_report(tables, uid).await.unwrap(),
    }
}

async fn the_rows_of_a_service_are_those_of_its_tables(place: Place) {
    let store = place.open().await;
    for uid in ["a", "b"] {
        let uid = uid.to_owned();
        // The first service's rows don't appear for the second. Each step adds rows of this service.
        for step in 0..=7 {
            let mut tables = store.tables().await.unwrap();
            let rows = load_service_rows(&mut tables, &uid).await.unwrap();
            assert_eq!(rows, one_by_one(&mut tables, &uid).await, "{uid} {step}");
            let ServiceRows {
                assignment,
                held,
                member,
                origin,
                parameters,
                report,
            } = &rows;
            let is_there = [
                assignment.is_some(),
                held.is_some(),
                member.is_some(),
                member.as_ref().is_some_and(|member| member.set_pin == 4),
                origin.is_some(),
                parameters.is_some(),
                report.is_some(),
            ];
            assert_eq!(is_there.iter().filter(|there| **there).count(), step, "{uid} {step}");
            assert_eq!(
                load_service_rows(&mut tables, "c").await.unwrap(),
                ServiceRows::default()
            );
            let uid = uid.clone();
            let saved = store.transact(move |tx| Box::pin(async move { save(tx, uid, step).await }));
            saved.await.unwrap();
        }
    }
}

async fn what_is_noted_of_a_service_after_a_restore_trusts_nothing(place: Place) {
    let store = place.open().await;
    let known = |origin: &str, unasked| {
        Some(ServiceOrigin {
            service_uid: "a".to_owned(),
            origin: origin.to_owned(),
            unasked,
        })
    };
    store
        .transact(|tx| Box::pin(async move { save(tx, "a".to_owned(), 0).await }))
        .await
        .unwrap();
    store
        .transact(|tx| Box::pin(async move { save_service_origin(tx, "a", "1").await }))
        .await
        .unwrap();
    assert_eq!(
        load_service_origin(&mut store.tables().await.unwrap(), "a")
            .await
            .unwrap(),
        known("1", false)
    );
    store
        .transact(|tx| Box::pin(async move { distrust_sources(tx, None).await }))
        .await
        .unwrap();
    store
        .transact(|tx| Box::pin(async move { save_service_origin(tx, "a", "2").await }))
        .await
        .unwrap();
    assert_eq!(
        load_service_origin(&mut store.tables().await.unwrap(), "a")
            .await
            .unwrap(),
        known("2", true)
    );
    store
        .transact(|tx| Box::pin(async move { trust_service_origin(tx, "a").await }))
        .await
        .unwrap();
    assert_eq!(
        load_service_origin(&mut store.tables().await.unwrap(), "a")
            .await
            .unwrap(),
        known("2", false)
    );
}

async fn save(tx: &mut farwater_store::Tx, uid: String, step: usize) -> Result<(), farwater_store::StoreError> {
    let service_uid = uid.clone();
    match step {
        0 => {
            let row = Assignment {
                service_uid,
                namespace: "ns".to_owned(),
                name: format!("name-{uid}"),
                cluster_uid: "cluster".to_owned(),
                source_uid: "source".to_owned(),
                generation: 3,
                stamp: "3 false ".to_owned(),
                candidate: None,
                assigned: Some("{}".to_owned()),
                why: "{}".to_owned(),
            };
            save_assignment(tx, &row).await
        }
        1 => {
            let change_window = "ns/window".to_owned();
            save_held(
                tx,
                &HeldService {
                    service_uid,
                    spec: "{}".to_owned(),
                    change_window,
                    until: 7,
                },
            )
            .await
        }
        2 => {
            let row = SetMember {
                set_uid: format!("set-{uid}"),
                cluster_uid: "cluster".to_owned(),
                service_uid,
                service_name: format!("name-{uid}"),
                ready: 1,
                ..SetMember::default()
            };
            save_member(tx, &row).await
        }
        3 => {
            save_rollout(tx, &format!("set-{uid}"), "{}").await?;
            save_set_pin(tx, &format!("set-{uid}"), 4).await
        }
        4 => save_service_origin(tx, &service_uid, "{}").await,
        5 => {
            let row = ParameterRow {
                service_uid,
                mac: "mac".to_owned(),
                turn: 2,
                ..ParameterRow::default()
            };
            save_parameters(
                tx,
                &[Resolved {
                    row,
                    keys: BTreeSet::new(),
                }],
            )
            .await
        }
        6 => {
            let cluster_uid = "cluster".to_owned();
            save_report(
                tx,
                &Report {
                    service_uid,
                    cluster_uid,
                    received: 9,
                    body: vec![0, 255],
                },
            )
            .await
        }
        _ => Ok(()),
    }
}
