//! Events in both of their versions.

use k8s_pb::{
    api::{
        core::v1::{Event as OldEvent, EventSource, ObjectReference},
        events::v1::{Event, EventSeries},
    },
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, Time},
};
use serde_json::{Value, json};

use crate::support::Served;

use super::court::*;

const OLD: &str = r#"{"metadata":{"name":"old","labels":{"of":"test"}},"involvedObject":{"namespace":"NS","name":"x","kind":"ConfigMap","apiVersion":"v1","uid":"u"},"reason":"r","message":" m ","type":"Normal","count":3,"firstTimestamp":"2026-01-01T00:00:00Z","lastTimestamp":"2026-01-01T00:00:00Z","source":{"component":"c","host":"h"}}"#;
const NEW: &str = r#"{"metadata":{"name":"new","labels":{"of":"test"}},"eventTime":"2026-01-01T00:00:00.000000Z","reportingController":"a.b/c","reportingInstance":"i","action":"A","reason":"R","regarding":{"namespace":"NS","name":"x","kind":"ConfigMap"},"related":{"kind":"Secret","name":"s"},"note":"n","type":"Warning"}"#;

#[tokio::test(flavor = "multi_thread")]
async fn one_event_is_read_in_both_versions() {
    let served = Served::start().await;
    let mut court = Court::sit(&served).await;
    court.same("POST", "CORE/events", JSON, OLD, Equal::All).await;
    court.same("POST", "REPORTS", JSON, NEW, Equal::All).await;
    court.same("POST", "REPORTS", JSON, NEW, Equal::All).await;
    for list in ["CORE/events", "REPORTS"] {
        for name in ["old", "new", "none"] {
            for accept in [JSON, TABLE, PARTIAL] {
                court.same_read(&format!("{list}/{name}"), accept).await;
            }
        }
        for accept in [JSON, TABLE, PARTIAL_LIST] {
            court.same_read(&format!("{list}?labelSelector=of=test"), accept).await;
        }
        court
            .same_read(&format!("{list}?labelSelector=of=test&includeObject=Object"), TABLE)
            .await;
        court
            .same_read(&format!("{list}?watch=1&timeoutSeconds=1&labelSelector=of=test"), JSON)
            .await;
        for (field, value) in [
            ("involvedObject.name", "x"),
            ("regarding.name", "x"),
            ("regarding.kind", "Secret"),
            ("involvedObject.uid", "u"),
            ("regarding.uid", "u"),
            ("reportingComponent", "a.b/c"),
            ("reportingController", "a.b/c"),
            ("source", "c"),
            ("source", "a.b/c"),
            ("reason", "R"),
            ("type", "Warning"),
            ("metadata.name", "new"),
            ("note", "n"),
        ] {
            court
                .same_read(&format!("{list}?fieldSelector={field}={value}"), JSON)
                .await;
        }
    }
    court.sentence();
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_checked_by_the_version_that_writes_them() {
    let served = Served::start().await;
    let mut court = Court::sit(&served).await;
    for change in [
        ("\"eventTime\":\"2026-01-01T00:00:00.000000Z\",", ""),
        ("00.000000Z", "00Z"),
        ("\"reportingController\":\"a.b/c\"", "\"reportingController\":\"a b\""),
        ("\"reportingController\":\"a.b/c\",", ""),
        ("\"reportingInstance\":\"i\",", ""),
        ("\"action\":\"A\",", ""),
        ("\"reason\":\"R\",", ""),
        ("\"type\":\"Warning\"", "\"type\":\"Bad\""),
        ("\"type\":\"Warning\"", "\"type\":\"Warning\",\"series\":{\"count\":1}"),
        (
            "\"type\":\"Warning\"",
            "\"type\":\"Warning\",\"series\":{\"count\":2,\"lastObservedTime\":\"2026-01-01T00:00:00.000000Z\"}",
        ),
        (
            "\"type\":\"Warning\"",
            "\"type\":\"Warning\",\"deprecatedCount\":1,\"deprecatedSource\":{\"host\":\"h\"},\"deprecatedFirstTimestamp\":\"2026-01-01T00:00:00Z\"",
        ),
        ("\"namespace\":\"NS\"", "\"namespace\":\"other\""),
        ("\"namespace\":\"NS\",", ""),
        ("\"name\":\"new\"", "\"name\":\"N_W\""),
        ("\"note\":\"n\"", "\"note\":5"),
        ("\"note\":\"n\"", "\"message\":\"n\""),
    ] {
        let object = NEW.replace(change.0, change.1);
        let equal = if change.1.contains("\"note\":5") || change.1 == "00Z" {
            Equal::ButText
        } else {
            Equal::All
        };
        court.same("POST", "REPORTS?dryRun=All", JSON, &object, equal).await;
        let old = object
            .replace("reportingController", "reportingComponent")
            .replace("regarding", "involvedObject")
            .replace("\"note\"", "\"message\"");
        court.same("POST", "CORE/events?dryRun=All", JSON, &old, equal).await;
    }
    for (field, limit) in [
        ("note", 1024),
        ("action", 128),
        ("reason", 128),
        ("reportingInstance", 128),
    ] {
        let mut object: Value = serde_json::from_str(NEW).unwrap();
        object[field] = json!("x".repeat(limit + 1));
        court
            .same("POST", "REPORTS?dryRun=All", JSON, &object.to_string(), Equal::All)
            .await;
    }
    for change in [
        ("\"namespace\":\"NS\"", "\"namespace\":\"other\""),
        ("\"involvedObject\":{\"namespace\":\"NS\",", "\"involvedObject\":{"),
        ("\"involvedObject\":", "\"regarding\":"),
    ] {
        court
            .same(
                "POST",
                "CORE/events?dryRun=All",
                JSON,
                &OLD.replace(change.0, change.1),
                Equal::All,
            )
            .await;
    }

    court.same("POST", "CORE/events", JSON, OLD, Equal::All).await;
    court.same("POST", "REPORTS", JSON, NEW, Equal::All).await;
    let series = r#"{"series":{"count":5,"lastObservedTime":"2026-01-01T00:00:10.000000Z"}}"#;
    for (path, kind, patch) in [
        ("REPORTS/new", MERGE, series),
        ("REPORTS/new", STRATEGIC, series),
        (
            "REPORTS/new",
            JSON_PATCH,
            r#"[{"op":"replace","path":"/series/count","value":6}]"#,
        ),
        ("REPORTS/new", MERGE, r#"{"series":{"count":1}}"#),
        ("REPORTS/new", MERGE, r#"{"note":"other"}"#),
        (
            "REPORTS/new",
            MERGE,
            r#"{"regarding":{"name":"y"},"reportingController":"d.e/f"}"#,
        ),
        ("REPORTS/new", MERGE, r#"{"metadata":{"labels":{"more":"x"}}}"#),
        ("CORE/events/new", MERGE, r#"{"message":"other"}"#),
        (
            "CORE/events/old",
            STRATEGIC,
            r#"{"count":4,"lastTimestamp":"2026-01-01T00:00:20Z"}"#,
        ),
        ("REPORTS/old", MERGE, r#"{"deprecatedCount":5}"#),
        ("REPORTS/old", MERGE, r#"{"metadata":{"labels":{"more":"x"}}}"#),
    ] {
        let equal = if patch.contains("\"regarding\"") {
            Equal::Reason
        } else {
            Equal::All
        };
        court.same("PATCH", path, kind, patch, equal).await;
    }
    for accept in [JSON, TABLE] {
        court.same_read("REPORTS/new", accept).await;
        court.same_read("CORE/events/new", accept).await;
    }
    court.same("DELETE", "REPORTS/new", JSON, "", Equal::All).await;
    court
        .same("DELETE", "REPORTS?labelSelector=of=test", JSON, "", Equal::All)
        .await;
    court.sentence();
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn recorders_send_events_as_protobuf() {
    let served = Served::start().await;
    let mut court = Court::sit(&served).await;
    let metadata = |name: &str| {
        Some(ObjectMeta {
            name: Some(name.into()),
            namespace: Some(court.namespace()),
            ..ObjectMeta::default()
        })
    };
    let about = ObjectReference {
        kind: Some("ConfigMap".into()),
        namespace: Some(court.namespace()),
        name: Some("x".into()),
        uid: Some("u".into()),
        api_version: Some("v1".into()),
        resource_version: Some("5".into()),
        field_path: Some(String::new()),
    };
    let time = Some(Time {
        seconds: Some(1_767_225_600),
        nanos: Some(0),
    });
    let micro = |nanos| {
        Some(MicroTime {
            seconds: Some(1_767_225_600),
            nanos: Some(nanos),
        })
    };
    // As tools/record does, and as tools/events does.
    let old = OldEvent {
        metadata: metadata("old"),
        involved_object: Some(about.clone()),
        reason: Some("R".into()),
        message: Some("m".into()),
        source: Some(EventSource {
            component: Some("c".into()),
            host: Some(String::new()),
        }),
        first_timestamp: time,
        last_timestamp: time,
        count: Some(1),
        r#type: Some("Normal".into()),
        event_time: Some(MicroTime::default()),
        reporting_component: Some("c".into()),
        reporting_instance: Some(String::new()),
        ..OldEvent::default()
    };
    let new = Event {
        metadata: metadata("new"),
        event_time: micro(1_000),
        series: Some(EventSeries {
            count: Some(2),
            last_observed_time: micro(0),
        }),
        reporting_controller: Some("a.b/c".into()),
        reporting_instance: Some("i".into()),
        action: Some("A".into()),
        reason: Some("R".into()),
        regarding: Some(about),
        note: Some("n".into()),
        r#type: Some("Normal".into()),
        ..Event::default()
    };
    court
        .judge(
            Step::new("POST", "CORE/events")
                .accept(JSON)
                .send_protobuf("v1", "Event", &old),
        )
        .await;
    court
        .judge(
            Step::new("POST", "REPORTS")
                .accept(JSON)
                .send_protobuf("events.k8s.io/v1", "Event", &new),
        )
        .await;
    for name in ["old", "new"] {
        court.same_read(&format!("CORE/events/{name}"), JSON).await;
        court.same_read(&format!("REPORTS/{name}"), JSON).await;
    }
    court.sentence();
    served.stop().await;
}
