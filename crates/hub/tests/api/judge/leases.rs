//! Leases: what controllers elect their leader by.

use k8s_pb::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};

use crate::support::Served;

use super::court::*;

#[tokio::test(flavor = "multi_thread")]
async fn leases_are_written_as_leader_election_writes_them() {
    let served = Served::start().await;
    let mut court = Court::sit(&served).await;
    let lease = r#"{"metadata":{"name":"a","labels":{"of":"test"}},"spec":{"holderIdentity":"x","leaseDurationSeconds":15,"acquireTime":"2026-01-01T00:00:00.000000Z","renewTime":"2026-01-01T02:00:00.123456+02:00","leaseTransitions":0}}"#;
    court.same("POST", "LEASES", JSON, lease, Equal::All).await;
    court.same("POST", "LEASES", JSON, lease, Equal::All).await;
    for spec in [
        r#"{}"#,
        r#"{"leaseDurationSeconds":0,"leaseTransitions":-1}"#,
        r#"{"holderIdentity":"","strategy":"OldestEmulationVersion","preferredHolder":"y"}"#,
        r#"{"strategy":"Foo","preferredHolder":"y"}"#,
        r#"{"preferredHolder":"y","foo":1}"#,
        r#"{"renewTime":null}"#,
    ] {
        let object = format!(r#"{{"metadata":{{"name":"g"}},"spec":{spec}}}"#);
        let step = Step::new("POST", "LEASES?dryRun=All").send(JSON, &object).accept(JSON);
        court.judge(step).await;
    }
    for time in [
        "2026-01-01T00:00:00Z",
        "2026-01-01T00:00:00.1234567Z",
        "now",
        "2026-01-01",
    ] {
        let object = format!(r#"{{"metadata":{{"name":"t"}},"spec":{{"renewTime":"{time}"}}}}"#);
        court
            .same("POST", "LEASES?dryRun=All", JSON, &object, Equal::ButText)
            .await;
    }
    court
        .same(
            "POST",
            "LEASES?dryRun=All",
            JSON,
            r#"{"metadata":{"name":"t"}}"#,
            Equal::All,
        )
        .await;

    // Updates name the version that they replace; one that is lost is told.
    court.same("PUT", "LEASES/a", JSON, lease, Equal::Reason).await;
    court.remember("VERSION", "LEASES/a", "/metadata/resourceVersion").await;
    let renewed = lease
        .replace("\"labels\"", "\"resourceVersion\":\"$VERSION\",\"labels\"")
        .replace("00.123456+02", "10.123456+02");
    court.same("PUT", "LEASES/a", JSON, &renewed, Equal::All).await;
    court
        .same("PUT", "LEASES/a", JSON, &renewed.replace("10.1", "20.1"), Equal::All)
        .await;
    court
        .same(
            "PATCH",
            "LEASES/a",
            MERGE,
            r#"{"spec":{"holderIdentity":"","leaseTransitions":1}}"#,
            Equal::All,
        )
        .await;
    court
        .same(
            "PATCH",
            "LEASES/a",
            STRATEGIC,
            r#"{"spec":{"holderIdentity":"z"}}"#,
            Equal::All,
        )
        .await;
    court
        .same(
            "PATCH",
            "LEASES/a",
            MERGE,
            r#"{"spec":{"leaseDurationSeconds":-1}}"#,
            Equal::All,
        )
        .await;
    for accept in [JSON, TABLE, PARTIAL_LIST] {
        court.same_read("LEASES?labelSelector=of=test", accept).await;
    }
    court.same_read("LEASES?fieldSelector=metadata.name=a", JSON).await;
    court
        .same_read("LEASES?fieldSelector=spec.holderIdentity=z", JSON)
        .await;
    court
        .same_read("LEASES?watch=1&timeoutSeconds=1&labelSelector=of=test", JSON)
        .await;
    court.same("DELETE", "LEASES/a", JSON, "", Equal::All).await;
    court.sentence();
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn typed_clients_send_leases_as_protobuf() {
    let served = Served::start().await;
    let mut court = Court::sit(&served).await;
    let time = |nanos| {
        Some(MicroTime {
            seconds: Some(1_767_225_600),
            nanos: Some(nanos),
        })
    };
    let lease = Lease {
        metadata: Some(ObjectMeta {
            name: Some("a".into()),
            namespace: Some(court.namespace()),
            ..ObjectMeta::default()
        }),
        spec: Some(LeaseSpec {
            holder_identity: Some("x".into()),
            lease_duration_seconds: Some(15),
            acquire_time: time(0),
            renew_time: time(123_456_000),
            lease_transitions: Some(0),
            ..LeaseSpec::default()
        }),
    };
    let step = Step::new("POST", "LEASES")
        .accept(JSON)
        .send_protobuf("coordination.k8s.io/v1", "Lease", &lease);
    court.judge(step).await;
    court.same_read("LEASES/a", JSON).await;
    court.sentence();
    served.stop().await;
}

/// PUT makes what doesn't exist, of some kinds.
#[tokio::test(flavor = "multi_thread")]
async fn an_update_makes_what_kubernetes_makes() {
    let served = Served::start().await;
    let mut court = Court::sit(&served).await;
    for (path, extra) in [
        ("LEASES/p", r#","spec":{}"#),
        ("CORE/configmaps/p", ""),
        ("CORE/secrets/p", ""),
        ("CORE/serviceaccounts/p", ""),
        ("CORE/events/p", r#","involvedObject":{"namespace":"NS"}"#),
        ("RBAC/roles/p", r#","rules":[]"#),
        (
            "RBAC/rolebindings/p",
            r#","roleRef":{"kind":"Role","name":"r","apiGroup":"rbac.authorization.k8s.io"}"#,
        ),
        (
            "OWN/gitrepositories/p",
            r#","apiVersion":"farwater.dev/v1alpha1","kind":"GitRepository","spec":{"url":"https://x/y"}"#,
        ),
    ] {
        let object = |metadata: &str| format!(r#"{{"metadata":{{{metadata}}}{extra}}}"#);
        court
            .same(
                "PUT",
                &format!("{path}?dryRun=All"),
                JSON,
                &object(r#""name":"p""#),
                Equal::All,
            )
            .await;
        court
            .same("PUT", path, JSON, &object(r#""name":"q""#), Equal::All)
            .await;
        court.same("PUT", path, JSON, &object(""), Equal::ButText).await;
        let versioned = object(r#""name":"p","resourceVersion":"1","labels":{"a":"b"}"#);
        court.same("PUT", path, JSON, &versioned, Equal::Reason).await;
        court
            .same(
                "PUT",
                &path.replace("/p", "/other"),
                JSON,
                &versioned.replace("\"p\"", "\"other\""),
                Equal::All,
            )
            .await;
        court
            .same("PUT", path, JSON, &object(r#""name":"p","uid":"x""#), Equal::Reason)
            .await;
    }
    court.sentence();
    served.stop().await;
}
