//! Members of a set: the resting ones are counted, and a write to anything that a look reads wakes the member.

use farwater_api::parameters::ChangedKeys;
use farwater_store::{
    Store, StoreError, Tx,
    delivery::{
        Assignment, MemberRollout, ParameterKey, ParameterRow, Resolved, RestingMembers, SetMember, awake_members,
        brake_members, count_members, delete_parameters, hold_spec, mark_changed_keys, mark_parameters, note_ready,
        save_assignment, save_evidence, save_generation, save_look, save_member, save_parameters, save_published,
        save_rest, save_specs, save_track,
    },
};
use futures::future::BoxFuture;

use crate::setup::Place;

on_both_engines!(
    who_rests_is_counted_and_not_read,
    whoever_writes_what_a_look_reads_wakes_a_member,
    a_member_rests_only_as_it_was_read,
    members_are_counted_by_what_they_are,
);

const SET: &str = "set";
const DONE: i64 = 1;

async fn transact<F>(store: &Store, work: F)
where
    F: for<'a> FnOnce(&'a mut Tx) -> BoxFuture<'a, Result<(), StoreError>> + Send + 'static,
{
    store.transact(work).await.unwrap();
}

fn member(name: &str) -> SetMember {
    SetMember {
        set_uid: SET.to_owned(),
        cluster_uid: format!("cluster-{name}"),
        service_uid: format!("service-{name}"),
        service_name: format!("web-{name}"),
        ..SetMember::default()
    }
}

/// Opens a store with resting members in step 1.
async fn resting(place: &Place, names: &[&'static str]) -> Store {
    let store = Store::open(place.options()).await.unwrap();
    for &name in names {
        transact(&store, move |tx| {
            Box::pin(async move {
                let row = member(name);
                save_member(tx, &row).await?;
                save_track(tx, &row.service_uid, ("{}", 1)).await
            })
        })
        .await;
        rest(&store, name).await;
    }
    store
}

/// Sets a member to rest, at its current number of changes.
async fn rest(store: &Store, name: &str) {
    let cluster = member(name).cluster_uid;
    let (rows, _) = awake_members(&mut store.tables().await.unwrap(), SET, &[&cluster])
        .await
        .unwrap();
    let row = rows.into_iter().find(|row| row.row.cluster_uid == cluster).unwrap();
    transact(store, move |tx| {
        Box::pin(async move { save_rest(tx, &row.row.service_uid, (DONE, row.changes)).await })
    })
    .await;
}

/// The clusters of members that are read, and the number of the others, which rest.
async fn awake(store: &Store, clusters: &[&str]) -> (Vec<String>, i64) {
    let (rows, resting) = awake_members(&mut store.tables().await.unwrap(), SET, clusters)
        .await
        .unwrap();
    assert!(
        resting
            .iter()
            .all(|RestingMembers { rests, step, .. }| (*rests, *step) == (DONE, 1)),
        "{resting:?}"
    );
    let names = rows
        .into_iter()
        .map(|row| row.row.cluster_uid.trim_start_matches("cluster-").to_owned());
    (names.collect(), resting.iter().map(|some| some.number).sum())
}

async fn who_rests_is_counted_and_not_read(place: Place) {
    let store = resting(&place, &["a", "b", "c"]).await;
    assert_eq!(awake(&store, &[]).await, (vec![], 3));
    assert_eq!(
        awake(&store, &["cluster-c", "cluster-a", "cluster-of-nobody"]).await,
        (vec!["a".into(), "c".into()], 1)
    );
    transact(&store, |tx| Box::pin(save_evidence(tx, "service-b", "{}"))).await;
    assert_eq!(awake(&store, &["cluster-a"]).await, (vec!["a".into(), "b".into()], 1));
}

type Work = for<'a> fn(&'a mut Tx) -> BoxFuture<'a, Result<(), StoreError>>;

async fn whoever_writes_what_a_look_reads_wakes_a_member(place: Place) {
    let store = resting(&place, &["a", "b"]).await;
    transact(&store, |tx| {
        Box::pin(async move {
            let row = Assignment {
                service_uid: "service-a".to_owned(),
                namespace: "default".to_owned(),
                name: "web-a".to_owned(),
                cluster_uid: "cluster-a".to_owned(),
                source_uid: String::new(),
                generation: 1,
                stamp: String::new(),
                candidate: None,
                assigned: None,
                why: r#"{"type":"Current"}"#.to_owned(),
            };
            save_assignment(tx, &row).await?;
            // Parameters count only for a member that was looked at with them.
            let looked = MemberRollout {
                service_uid: "service-a".to_owned(),
                looked_mac: "sha256:1".to_owned(),
                ..MemberRollout::default()
            };
            save_look(tx, &looked).await
        })
    })
    .await;
    let wake: [(&str, Work); 11] = [
        ("look", |tx| {
            Box::pin(async move {
                let looked = MemberRollout {
                    service_uid: "service-a".to_owned(),
                    looked_mac: "sha256:2".to_owned(),
                    ..MemberRollout::default()
                };
                save_look(tx, &looked).await
            })
        }),
        ("generation", |tx| Box::pin(save_generation(tx, "service-a", 2))),
        ("entry", |tx| Box::pin(save_published(tx, "service-a", "{}", 1))),
        ("report", |tx| Box::pin(save_evidence(tx, "service-a", "{}"))),
        ("track", |tx| Box::pin(save_track(tx, "service-a", ("{}", 1)))),
        ("readiness", |tx| Box::pin(note_ready(tx, "service-a", true))),
        ("service", |tx| {
            Box::pin(async move {
                save_member(
                    tx,
                    &SetMember {
                        ready: 1,
                        ..member("a")
                    },
                )
                .await
            })
        }),
        ("parameters", |tx| {
            Box::pin(async move {
                let row = ParameterRow {
                    service_uid: "service-a".to_owned(),
                    ..ParameterRow::default()
                };
                let [kind, name, key] = ["secrets", "db", "password"].map(str::to_owned);
                let key = ParameterKey {
                    kind,
                    namespace: "default".to_owned(),
                    name,
                    key,
                };
                save_parameters(
                    tx,
                    &[Resolved {
                        row,
                        keys: [key].into(),
                    }],
                )
                .await
            })
        }),
        ("a mark", |tx| Box::pin(mark_parameters(tx, "service-a", "cluster-a"))),
        ("a changed key", |tx| {
            Box::pin(mark_changed_keys(tx, "secrets", "default", "db", &ChangedKeys::Any))
        }),
        ("no parameters any more", |tx| {
            Box::pin(delete_parameters(tx, "service-a"))
        }),
    ];
    for (what, work) in wake {
        rest(&store, "a").await;
        assert_eq!(awake(&store, &[]).await, (vec![], 2), "before {what}");
        transact(&store, work).await;
        assert_eq!(awake(&store, &[]).await, (vec!["a".to_owned()], 1), "{what}");
    }
    rest(&store, "a").await;
    let others: [(&str, Work); 3] = [
        ("a held spec", |tx| Box::pin(hold_spec(tx, "service-a", "{}"))),
        ("specs", |tx| Box::pin(save_specs(tx, "service-a", ("", "{}")))),
        ("the same readiness", |tx| Box::pin(note_ready(tx, "service-a", true))),
    ];
    for (what, work) in others {
        transact(&store, work).await;
        assert_eq!(awake(&store, &[]).await, (vec![], 2), "{what}");
    }
}

async fn a_member_rests_only_as_it_was_read(place: Place) {
    let store = resting(&place, &["a"]).await;
    let (rows, _) = awake_members(&mut store.tables().await.unwrap(), SET, &["cluster-a"])
        .await
        .unwrap();
    let read = rows[0].changes;
    transact(&store, |tx| Box::pin(save_evidence(tx, "service-a", "{}"))).await;
    transact(&store, move |tx| Box::pin(save_rest(tx, "service-a", (DONE, read)))).await;
    assert_eq!(awake(&store, &[]).await, (vec!["a".to_owned()], 0));
    transact(&store, move |tx| Box::pin(save_rest(tx, "service-a", (DONE, read + 1)))).await;
    assert_eq!(awake(&store, &[]).await, (vec![], 1));
    // A member that has left is not counted.
    let left = SetMember {
        left_at: 7,
        ..member("a")
    };
    transact(&store, move |tx| Box::pin(async move { save_member(tx, &left).await })).await;
    assert_eq!(awake(&store, &["cluster-a"]).await, (vec![], 0));
}

async fn members_are_counted_by_what_they_are(place: Place) {
    let store = Store::open(place.options()).await.unwrap();
    let problem = || "no value".to_owned();
    let rows = vec![
        SetMember {
            ready: 1,
            ..member("a")
        },
        SetMember {
            ready: 1,
            problem: problem(),
            ..member("b")
        },
        SetMember {
            problem: problem(),
            ..member("c")
        },
        member("d"),
        SetMember {
            ready: 1,
            left_at: 7,
            ..member("e")
        },
        SetMember {
            left_at: 7,
            ..member("f")
        },
        SetMember {
            left_at: 7,
            service_uid: String::new(),
            problem: problem(),
            ..member("g")
        },
    ];
    transact(&store, move |tx| {
        Box::pin(async move {
            for row in &rows {
                save_member(tx, row).await?;
            }
            brake_members(tx, SET).await
        })
    })
    .await;
    let counts = count_members(&mut store.tables().await.unwrap(), SET).await.unwrap();
    let counts = [
        counts.matched,
        counts.ready,
        counts.failed,
        counts.leaving,
        counts.braked,
    ];
    assert_eq!(counts, [4, 1, 2, 2, 2]);
    let none = count_members(&mut store.tables().await.unwrap(), "another")
        .await
        .unwrap();
    assert_eq!((none.matched, none.ready, none.braked), (0, 0, 0));
}
