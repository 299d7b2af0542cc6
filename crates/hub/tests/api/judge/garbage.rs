//! Owner references, and what becomes of dependents when an owner goes: by our collector, and by the real one.

use serde_json::json;

use crate::support::Served;

use super::court::*;

const MAPS: &str = "CORE/configmaps";

/// A ConfigMap owned by others: `(name, uid, blocks)`.
fn map(name: &str, owners: &[(&str, &str, bool)]) -> String {
    let owners: Vec<String> = owners
        .iter()
        .map(|(name, uid, blocks)| {
            format!(
                r#"{{"apiVersion":"v1","kind":"ConfigMap","name":"{name}","uid":"{uid}","blockOwnerDeletion":{blocks}}}"#
            )
        })
        .collect();
    format!(
        r#"{{"metadata":{{"name":"{name}","labels":{{"of":"test"}},"ownerReferences":[{}]}}}}"#,
        owners.join(",")
    )
}

fn held(object: &str, finalizer: &str) -> String {
    object.replacen("\"labels\"", &format!("\"finalizers\":[\"{finalizer}\"],\"labels\""), 1)
}

fn one(name: &str) -> Step {
    Step::get(&format!("{MAPS}/{name}")).accept(JSON)
}

fn policy(name: &str) -> String {
    format!(r#"{{"propagationPolicy":"{name}"}}"#)
}

impl Court {
    async fn make(&mut self, object: &str) {
        self.same("POST", MAPS, JSON, object, Equal::All).await;
    }

    /// Makes an owner, whose uid is `$NAME` from then on.
    async fn make_owner(&mut self, name: &str, owners: &[(&str, &str, bool)]) {
        self.make(&map(name, owners)).await;
        self.remember(name, &format!("{MAPS}/{name}"), "/metadata/uid").await;
    }

    async fn delete(&mut self, name: &str, options: &str) {
        self.same("DELETE", &format!("{MAPS}/{name}"), JSON, options, Equal::All)
            .await;
    }

    async fn gone(&mut self, name: &str) {
        self.wait_until(one(name), |answer| answer.code == 404).await;
    }

    async fn marked(&mut self, name: &str) {
        self.wait_until(one(name), |answer| {
            answer.value["metadata"]["deletionTimestamp"].is_string()
        })
        .await;
        self.judge(one(name)).await;
    }

    async fn free(&mut self, name: &str) {
        let patch = r#"{"metadata":{"finalizers":null}}"#;
        self.same("PATCH", &format!("{MAPS}/{name}"), MERGE, patch, Equal::All)
            .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn owner_references_are_checked_as_kubernetes_checks_them() {
    let served = Served::start().await;
    let mut court = Court::sit(&served).await;
    let reference = r#"{"apiVersion":"v1","kind":"ConfigMap","name":"o","uid":"u","controller":true}"#;
    for references in [
        String::from(r#"{"uid":"1"}"#),
        String::from(r#"{"apiVersion":"a/b/c","kind":"K","name":"n","uid":"1"}"#),
        String::from(r#"{"apiVersion":"apps/","kind":"K","name":"n","uid":"1"}"#),
        String::from(r#"{"apiVersion":"v1","kind":"Event","name":"n","uid":"1"}"#),
        String::from(r#"{"apiVersion":"v1","kind":"ConfigMap","name":"","uid":""}"#),
        format!(
            "{reference},{}",
            reference.replace("\"o\"", "\"p\"").replace("\"u\"", "\"v\"")
        ),
        format!(
            "{reference},{}",
            reference.replace("\"o\"", "\"p\"").replace(",\"controller\":true", "")
        ),
        format!("{reference},{reference}"),
        String::from(r#"{"apiVersion":"v1","kind":"ConfigMap","name":"n","uid":"1","foo":1}"#),
        String::from(r#"{"apiVersion":"v1","kind":5,"name":"n","uid":"1"}"#),
    ] {
        let object = map("a", &[]).replace("[]", &format!("[{references}]"));
        let equal = if references.contains("\"kind\":5") {
            Equal::ButText
        } else {
            Equal::All
        };
        court
            .same("POST", &format!("{MAPS}?dryRun=All"), JSON, &object, equal)
            .await;
        let grant = GRANT.replace("\"labels\"", &format!("\"ownerReferences\":[{references}],\"labels\""));
        court
            .same("POST", &format!("{GRANTS}?dryRun=All"), JSON, &grant, equal)
            .await;
    }
    court.make_owner("o", &[]).await;
    let twice = r#"{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"o","uid":"$o"},{"apiVersion":"v1","kind":"ConfigMap","name":"o","uid":"$o"}]}}"#;
    court.make(&map("d", &[])).await;
    court
        .same("PATCH", "CORE/configmaps/d", MERGE, twice, Equal::ButText)
        .await;
    court
        .same(
            "PUT",
            "CORE/configmaps/d",
            JSON,
            &twice.replace("\"owner", "\"name\":\"d\",\"owner"),
            Equal::All,
        )
        .await;
    court.sentence();
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn delete_options_are_read_as_kubernetes_reads_them() {
    let served = Served::start().await;
    let mut court = Court::sit(&served).await;
    court.make(&held(&map("a", &[]), "example.com/x")).await;
    for options in [
        r#"{"propagationPolicy":"Foo"}"#,
        r#"{"propagationPolicy":""}"#,
        r#"{"propagationPolicy":"Orphan","orphanDependents":true}"#,
        r#"{"propagationPolicy":"Foo","orphanDependents":false,"dryRun":["x"]}"#,
        r#"{"gracePeriodSeconds":-5,"dryRun":["All"]}"#,
        r#"{"dryRun":["All"],"propagationPolicy":"Foreground"}"#,
        r#"{"dryRun":["All"],"orphanDependents":false}"#,
        r#"{"dryRun":["All"],"orphanDependents":true}"#,
        r#"{"dryRun":["All"],"foo":true}"#,
        r#"{"kind":"DeleteOptions","apiVersion":"v1","dryRun":["All"]}"#,
        r#"{"preconditions":{"uid":"x"}}"#,
        r#"{"preconditions":{"resourceVersion":"1","uid":"$UID"}}"#,
    ] {
        let equal = if options.contains("preconditions") {
            Equal::ButText
        } else {
            Equal::All
        };
        court.remember("UID", "CORE/configmaps/a", "/metadata/uid").await;
        court.same("DELETE", "CORE/configmaps/a", JSON, options, equal).await;
        court
            .same("DELETE", "CORE/configmaps?labelSelector=of=test", JSON, options, equal)
            .await;
    }
    for options in [
        r#"{"propagationPolicy":5}"#,
        "[]",
        "{",
        r#"{"kind":"ConfigMap","apiVersion":"v1"}"#,
    ] {
        court
            .same("DELETE", "CORE/configmaps/a", JSON, options, Equal::Reason)
            .await;
    }
    for query in [
        "propagationPolicy=Foo",
        "propagationPolicy=Orphan&dryRun=All",
        "orphanDependents=true&dryRun=All",
    ] {
        court
            .same("DELETE", &format!("CORE/configmaps/a?{query}"), JSON, "", Equal::All)
            .await;
    }
    // Each request may change its mind as long as the object waits. Both collectors take their finalizer off when they are done, each
    // in its time.
    for options in [
        policy("Foreground"),
        policy("Orphan"),
        String::new(),
        r#"{"orphanDependents":false}"#.to_owned(),
        policy("Foreground"),
        policy("Background"),
    ] {
        court.delete("a", &options).await;
        let waits = |answer: &Answer| answer.value["metadata"]["finalizers"] == json!(["example.com/x"]);
        court
            .wait_until(Step::get("CORE/configmaps/a").accept(JSON), waits)
            .await;
    }
    court.free("a").await;
    court.gone("a").await;
    let account = r#"{"metadata":{"name":"a"}}"#;
    court
        .same("POST", "CORE/serviceaccounts", JSON, account, Equal::All)
        .await;
    court
        .same("DELETE", "CORE/serviceaccounts/a", JSON, "", Equal::All)
        .await;
    let event = r#"{"metadata":{"name":"a"},"involvedObject":{"namespace":"NS"}}"#;
    court.same("POST", "CORE/events", JSON, event, Equal::All).await;
    court
        .same("DELETE", "CORE/events/a", JSON, &policy("Foreground"), Equal::All)
        .await;
    court.sentence();
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dependents_go_after_their_owner_in_the_background() {
    let served = Served::start().await;
    let mut court = Court::sit(&served).await;
    court.make_owner("o", &[]).await;
    court.make_owner("other", &[]).await;
    court.make_owner("d", &[("o", "$o", true)]).await;
    court.make(&map("deep", &[("d", "$d", false)])).await;
    court
        .make(&map("shared", &[("o", "$o", true), ("other", "$other", false)]))
        .await;
    let secret = map("s", &[("o", "$o", false)]);
    court.same("POST", "CORE/secrets", JSON, &secret, Equal::All).await;
    court
        .same("POST", "CORE/serviceaccounts", JSON, &secret, Equal::All)
        .await;
    court.same("POST", "RBAC/roles", JSON, &secret, Equal::All).await;
    court.delete("o", &policy("Background")).await;
    for path in [
        "CORE/secrets/s",
        "CORE/serviceaccounts/s",
        "RBAC/roles/s",
        "CORE/configmaps/deep",
    ] {
        court
            .wait_until(Step::get(path).accept(JSON), |answer| answer.code == 404)
            .await;
    }
    court.gone("d").await;
    let released = |answer: &Answer| {
        answer.value["metadata"]["ownerReferences"]
            .as_array()
            .is_some_and(|o| o.len() == 1)
    };
    court.wait_until(one("shared"), released).await;
    court.judge(one("shared")).await;
    court.sentence();
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_waits_for_the_dependents_that_block_it() {
    let served = Served::start().await;
    let mut court = Court::sit(&served).await;
    court.make_owner("o", &[]).await;
    court.make_owner("middle", &[("o", "$o", true)]).await;
    court
        .make(&held(&map("leaf", &[("middle", "$middle", true)]), "example.com/x"))
        .await;
    court
        .make(&held(&map("loose", &[("o", "$o", false)]), "example.com/x"))
        .await;
    court.delete("o", &policy("Foreground")).await;
    for name in ["loose", "middle", "leaf", "o"] {
        court.marked(name).await;
    }
    // What is made while its owner goes, goes too; the real collector takes its time.
    court.make(&map("late", &[("o", "$o", true)])).await;
    court.judge(one("o")).await;
    court.free("leaf").await;
    for name in ["leaf", "middle", "late", "o"] {
        court.gone(name).await;
    }
    court.judge(one("loose")).await;

    // One that no longer blocks lets its owner go.
    court.make_owner("p", &[]).await;
    court
        .make(&held(&map("q", &[("p", "$p", true)]), "example.com/x"))
        .await;
    court.delete("p", &policy("Foreground")).await;
    court.marked("q").await;
    let unblocked =
        map("q", &[("p", "$p", false)]).replace("\"labels\"", "\"finalizers\":[\"example.com/x\"],\"labels\"");
    court
        .same("PATCH", "CORE/configmaps/q", MERGE, &unblocked, Equal::All)
        .await;
    court.gone("p").await;
    court.sentence();
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn orphans_stay_without_their_reference() {
    let served = Served::start().await;
    let mut court = Court::sit(&served).await;
    for (owner, options) in [
        ("o", policy("Orphan")),
        ("p", r#"{"orphanDependents":true}"#.to_owned()),
    ] {
        let dependent = format!("{owner}d");
        court.make_owner(owner, &[]).await;
        court
            .make(&map(&dependent, &[(owner, &format!("${owner}"), true)]))
            .await;
        court.delete(owner, &options).await;
        court.gone(owner).await;
        court.judge(one(&dependent)).await;
    }
    // The finalizer alone says the same.
    court.make(&held(&map("f", &[]), "orphan")).await;
    court.remember("f", "CORE/configmaps/f", "/metadata/uid").await;
    court.make(&map("fd", &[("f", "$f", true)])).await;
    court.delete("f", "").await;
    court.gone("f").await;
    court.judge(one("fd")).await;
    court.sentence();
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_names_an_owner_that_does_not_exist_is_collected() {
    let served = Served::start().await;
    let mut court = Court::sit(&served).await;
    court.make_owner("o", &[]).await;
    court.make(&map("absent", &[("none", "none-such", false)])).await;
    court.make(&map("mistaken", &[("o", "another-uid", false)])).await;
    court
        .make(&map("half", &[("o", "$o", false), ("none", "none-such", true)]))
        .await;
    let unknown = map("unknown", &[("o", "no-kind", false)]).replace("\"kind\":\"ConfigMap\"", "\"kind\":\"NoSuch\"");
    court.make(&unknown).await;
    court
        .same(
            "POST",
            "/api/v1/namespaces",
            JSON,
            r#"{"metadata":{"name":"NS-2"}}"#,
            Equal::All,
        )
        .await;
    court
        .same(
            "POST",
            "/api/v1/namespaces/NS-2/configmaps",
            JSON,
            &map("abroad", &[("o", "$o", false)]),
            Equal::All,
        )
        .await;
    let abroad = Step::get("/api/v1/namespaces/NS-2/configmaps/abroad").accept(JSON);
    court.wait_until(abroad, |answer| answer.code == 404).await;
    for name in ["absent", "mistaken"] {
        court.gone(name).await;
    }
    let released = |answer: &Answer| {
        answer.value["metadata"]["ownerReferences"]
            .as_array()
            .is_some_and(|o| o.len() == 1)
    };
    court.wait_until(one("half"), released).await;
    for name in ["half", "unknown", "o"] {
        court.judge(one(name)).await;
    }
    court.sentence();
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_of_no_namespace_keeps_an_owner_in_one_and_is_reported() {
    let served = Served::start().await;
    let mut court = Court::sit(&served).await;
    court.make_owner("o", &[]).await;
    let role = map("NS-a", &[("o", "$o", false)]);
    court
        .same(
            "POST",
            "/apis/rbac.authorization.k8s.io/v1/clusterroles",
            JSON,
            &role,
            Equal::All,
        )
        .await;
    court.call_it(
        "EVENTS",
        "/api/v1/namespaces/default/events",
        "/api/v1/namespaces/farwater-admin/events",
    );
    let events = Step::get("EVENTS?fieldSelector=involvedObject.name=NS-a").accept(JSON);
    court
        .wait_until(events.clone(), |answer| {
            answer.value["items"].as_array().is_some_and(|list| !list.is_empty())
        })
        .await;
    let seen = |answer: Answer| {
        let event = &answer.value["items"][0];
        let fields = [
            "reason",
            "message",
            "type",
            "count",
            "source",
            "reportingComponent",
            "involvedObject",
        ];
        let mut seen: Vec<_> = fields.iter().map(|field| event[*field].clone()).collect();
        // Uids, which are each server's own.
        let text = seen[1].as_str().unwrap();
        seen[1] = text
            .replace(text.rsplit_once("uid: ").unwrap().1.split(']').next().unwrap(), "*")
            .into();
        seen[6]["uid"] = "*".into();
        seen
    };
    assert_eq!(seen(court.ours.ask(&events).await), seen(court.real.ask(&events).await));
    court.delete("o", "").await;
    court.gone("o").await;
    court
        .judge(Step::get("/apis/rbac.authorization.k8s.io/v1/clusterroles/NS-a").accept(JSON))
        .await;
    court
        .same(
            "DELETE",
            "/apis/rbac.authorization.k8s.io/v1/clusterroles/NS-a",
            JSON,
            "",
            Equal::All,
        )
        .await;
    court.sentence();
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn owners_of_each_other_wait_for_nobody() {
    let served = Served::start().await;
    let mut court = Court::sit(&served).await;
    court.make_owner("a", &[]).await;
    court.make_owner("b", &[("a", "$a", true)]).await;
    let back = r#"{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"b","uid":"$b","blockOwnerDeletion":true}]}}"#;
    court.same("PATCH", "CORE/configmaps/a", MERGE, back, Equal::All).await;
    court.delete("a", &policy("Foreground")).await;
    for name in ["a", "b"] {
        court.gone(name).await;
    }
    court.sentence();
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn collections_are_deleted_with_their_policy() {
    let served = Served::start().await;
    let mut court = Court::sit(&served).await;
    let selected = "CORE/configmaps?labelSelector=of=owners";
    for options in [policy("Background"), policy("Orphan"), policy("Foreground")] {
        for owner in ["o", "p"] {
            court.make(&map(owner, &[]).replace("\"test\"", "\"owners\"")).await;
            court.remember(owner, &format!("{MAPS}/{owner}"), "/metadata/uid").await;
        }
        court.make(&map("d", &[("o", "$o", true)])).await;
        court.make(&map("e", &[("p", "$p", true)])).await;
        let other = r#"{"preconditions":{"uid":"none-such"}}"#;
        court.same("DELETE", selected, JSON, other, Equal::Reason).await;
        court
            .same("DELETE", &format!("{selected}&dryRun=All"), JSON, "", Equal::All)
            .await;
        court.same("DELETE", selected, JSON, &options, Equal::All).await;
        for owner in ["o", "p"] {
            court.gone(owner).await;
        }
        for dependent in ["d", "e"] {
            if options.contains("Orphan") {
                court.judge(one(dependent)).await;
                court.delete(dependent, "").await;
            }
            court.gone(dependent).await;
        }
    }
    court.sentence();
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn our_kinds_own_and_are_owned() {
    let served = Served::start().await;
    let mut court = Court::sit(&served).await;
    court.same("POST", GRANTS, JSON, GRANT, Equal::All).await;
    court
        .remember("GRANT", &format!("{GRANTS}/NS-a"), "/metadata/uid")
        .await;
    let owned = |object: &str| {
        object.replace(
            "\"labels\"",
            r#""ownerReferences":[{"apiVersion":"farwater.dev/v1alpha1","kind":"ClusterGrant","name":"NS-a","uid":"$GRANT","blockOwnerDeletion":true}],"labels""#,
        )
    };
    let child = owned(&GRANT.replace("NS-a", "NS-b"));
    court.same("POST", GRANTS, JSON, &child, Equal::All).await;
    court
        .make(&owned(&map("a", &[]).replace(",\"ownerReferences\":[]", "")))
        .await;
    court
        .same(
            "DELETE",
            &format!("{GRANTS}/NS-a"),
            JSON,
            &policy("Foreground"),
            Equal::All,
        )
        .await;
    for path in [format!("{GRANTS}/NS-a"), format!("{GRANTS}/NS-b"), format!("{MAPS}/a")] {
        court
            .wait_until(Step::get(&path).accept(JSON), |answer| answer.code == 404)
            .await;
    }
    court.sentence();
    served.stop().await;
}
