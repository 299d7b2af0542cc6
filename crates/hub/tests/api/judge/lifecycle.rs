//! What happens to an object of each kind from its name to its end: generated names, preconditions, what never changes, dry runs,
//! unknown fields, and namespaces that end.

use serde_json::Value;

use crate::support::Served;

use super::{court::*, verdict::normalized};

/// A kind that both servers leave alone: its list, what an object is besides its metadata, and a change to it.
struct Kind {
    list: &'static str,
    rest: &'static str,
    change: &'static str,
    builtin: bool,
}

const fn built_in(list: &'static str, rest: &'static str, change: &'static str) -> Kind {
    Kind {
        list,
        rest,
        change,
        builtin: true,
    }
}

const KINDS: [Kind; 10] = [
    built_in("CORE/configmaps", r#""data":{"a":"1"}"#, r#""data":{"a":"2"}"#),
    built_in("CORE/secrets", r#""data":{"a":"eA=="}"#, r#""data":{"a":"eQ=="}"#),
    built_in(
        "CORE/serviceaccounts",
        r#""automountServiceAccountToken":true"#,
        r#""automountServiceAccountToken":false"#,
    ),
    built_in(
        "CORE/events",
        r#""involvedObject":{"namespace":"NS"},"reason":"a""#,
        r#""reason":"b""#,
    ),
    built_in(
        "LEASES",
        r#""spec":{"holderIdentity":"a"}"#,
        r#""spec":{"holderIdentity":"b"}"#,
    ),
    built_in(
        "RBAC/roles",
        r#""rules":[{"verbs":["get"],"apiGroups":[""],"resources":["a"]}]"#,
        r#""rules":[{"verbs":["get"],"apiGroups":[""],"resources":["b"]}]"#,
    ),
    built_in(
        "RBAC/rolebindings",
        r#""roleRef":{"kind":"Role","name":"r","apiGroup":"rbac.authorization.k8s.io"}"#,
        r#""subjects":[{"kind":"User","name":"u","apiGroup":"rbac.authorization.k8s.io"}]"#,
    ),
    built_in(
        "/apis/rbac.authorization.k8s.io/v1/clusterroles",
        r#""rules":[{"verbs":["get"],"apiGroups":[""],"resources":["a"]}]"#,
        r#""rules":[{"verbs":["get"],"apiGroups":[""],"resources":["b"]}]"#,
    ),
    built_in(
        "/api/v1/namespaces",
        r#""spec":{}"#,
        r#""spec":{"finalizers":["example.com/x"]}"#,
    ),
    Kind {
        list: GRANTS,
        rest: r#""apiVersion":"farwater.dev/v1alpha1","kind":"ClusterGrant","spec":{"clusterSelector":{},"namespaces":["NS"],"verbs":["deploy"],"serviceAccountName":"a"}"#,
        change: r#""spec":{"serviceAccountName":"b"}"#,
        builtin: false,
    },
];

impl Kind {
    fn object(&self, metadata: &str) -> String {
        format!("{{\"metadata\":{{{metadata}}},{}}}", self.rest)
    }

    fn one(&self) -> String {
        format!("{}/NS-a", self.list)
    }

    fn patches(&self) -> &'static [&'static str] {
        if self.builtin { &[MERGE, STRATEGIC] } else { &[MERGE] }
    }
}

impl Court {
    async fn make_one(&mut self, kind: &Kind) {
        let object = kind.object(r#""name":"NS-a","labels":{"of":"NS"}"#);
        self.same("POST", kind.list, JSON, &object, Equal::All).await;
    }

    async fn unchanged(&mut self, kind: &Kind) {
        self.same_read(&kind.one(), JSON).await;
    }
}

/// Names that are made up differ; everything else is the same.
#[tokio::test(flavor = "multi_thread")]
async fn names_are_generated() {
    let served = Served::start().await;
    let mut court = Court::sit(&served).await;
    let long = "a".repeat(70);
    for kind in &KINDS {
        for (prefix, expected) in [
            ("g-", 7),
            ("g.", 7),
            ("G_", 7),
            ("a".repeat(58).as_str(), 63),
            (&long, 63),
            ("-", 6),
        ] {
            // A namespace is labelled with its name, which we look at as soon as it is made up.
            if prefix == "-" && kind.list.ends_with("namespaces") {
                continue;
            }
            let object = kind.object(&format!(r#""generateName":"{prefix}""#));
            let step = Step::new("POST", &format!("{}?dryRun=All", kind.list))
                .send(JSON, &object)
                .accept(JSON);
            let mut seen = Vec::new();
            for side in [&court.real, &court.ours] {
                let answer = side.ask(&step).await;
                let name = answer
                    .value
                    .pointer("/metadata/name")
                    .or(answer.value.pointer("/details/name"));
                let name = name.and_then(Value::as_str).unwrap_or_default().to_owned();
                assert_eq!(name.len(), expected, "{} {prefix}: {}", kind.list, answer.value);
                let text = answer.value.to_string().replace(&name, "GENERATED");
                let mut value = normalized(serde_json::from_str(&text).unwrap());
                // Causes are compared; the message lists them in any order.
                value.as_object_mut().unwrap().remove("message");
                seen.push((answer.code, value));
            }
            assert_eq!(seen[1], seen[0], "{} {prefix}", kind.list);
        }
        let both = kind.object(r#""name":"NS-b","generateName":"g-""#);
        court
            .same("POST", &format!("{}?dryRun=All", kind.list), JSON, &both, Equal::All)
            .await;
        court
            .same(
                "POST",
                &format!("{}?dryRun=All", kind.list),
                JSON,
                &kind.object(""),
                Equal::All,
            )
            .await;
    }
    court.sentence();
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_name_what_they_expect() {
    let served = Served::start().await;
    let mut court = Court::sit(&served).await;
    for kind in &KINDS {
        court.make_one(kind).await;
        let one = kind.one();
        court.remember("UID", &one, "/metadata/uid").await;
        for (metadata, equal) in [
            (r#""resourceVersion":"1""#, Equal::All),
            (r#""uid":"x""#, Equal::Reason),
            (r#""uid":"$UID""#, Equal::All),
        ] {
            let metadata = format!(r#""name":"NS-a","labels":{{"of":"NS"}},{metadata}"#);
            court.same("PUT", &one, JSON, &kind.object(&metadata), equal).await;
            for patch in kind.patches() {
                let body = format!(r#"{{"metadata":{{{metadata}}}}}"#);
                court.same("PATCH", &one, patch, &body, equal).await;
            }
        }
        court.remember("VERSION", &one, "/metadata/resourceVersion").await;
        for preconditions in [
            r#"{"uid":"x"}"#,
            r#"{"uid":"$UID","resourceVersion":"1"}"#,
            r#"{"uid":"$UID","resourceVersion":"$VERSION"}"#,
            r#"{}"#,
        ] {
            let options = format!(r#"{{"dryRun":["All"],"preconditions":{preconditions}}}"#);
            let equal = if preconditions.contains("\"1\"") || preconditions.contains("\"x\"") {
                Equal::ButText
            } else {
                Equal::All
            };
            court.same("DELETE", &one, JSON, &options, equal).await;
        }
    }
    court.sentence();
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn some_fields_never_change() {
    let served = Served::start().await;
    let mut court = Court::sit(&served).await;
    for kind in &KINDS {
        court.make_one(kind).await;
        for metadata in [
            r#""name":"other""#,
            r#""namespace":"other""#,
            r#""creationTimestamp":"2020-01-01T00:00:00Z""#,
            r#""creationTimestamp":null"#,
            r#""deletionTimestamp":"2020-01-01T00:00:00Z""#,
            r#""deletionGracePeriodSeconds":5"#,
            r#""generateName":"g-""#,
            r#""generation":7"#,
            r#""selfLink":"/x""#,
            r#""uid":null"#,
            r#""resourceVersion":null"#,
            r#""labels":null"#,
            r#""annotations":{"a":"b"}"#,
        ] {
            let body = format!(r#"{{"metadata":{{{metadata}}}}}"#);
            for patch in kind.patches() {
                court
                    .same("PATCH", &format!("{}?dryRun=All", kind.one()), patch, &body, Equal::All)
                    .await;
            }
        }
    }
    for (path, body) in [
        ("CORE/secrets/NS-a", r#"{"type":"other"}"#),
        ("RBAC/rolebindings/NS-a", r#"{"roleRef":{"name":"other"}}"#),
        ("CORE/secrets/NS-a", r#"{"immutable":true}"#),
        ("CORE/secrets/NS-a", r#"{"data":{"b":"eA=="}}"#),
        ("CORE/secrets/NS-a", r#"{"immutable":null}"#),
        ("CORE/secrets/NS-a", r#"{"metadata":{"labels":{"x":"y"}}}"#),
        ("CORE/configmaps/NS-a", r#"{"immutable":true}"#),
        (
            "CORE/configmaps/NS-a",
            r#"{"data":{"b":"x"},"binaryData":{"c":"eA=="}}"#,
        ),
        ("CORE/configmaps/NS-a", r#"{"immutable":false}"#),
    ] {
        let equal = if body.contains("roleRef") {
            Equal::ButText
        } else {
            Equal::All
        };
        court.same("PATCH", path, MERGE, body, equal).await;
    }
    court.sentence();
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dry_runs_answer_and_leave_nothing() {
    let served = Served::start().await;
    let mut court = Court::sit(&served).await;
    for kind in &KINDS {
        let (one, dry) = (kind.one(), "dryRun=All");
        let object = kind.object(r#""name":"NS-a","labels":{"of":"NS"}"#);
        court
            .same("POST", &format!("{}?{dry}", kind.list), JSON, &object, Equal::All)
            .await;
        court.unchanged(kind).await;
        court.make_one(kind).await;
        court
            .same("POST", &format!("{}?{dry}", kind.list), JSON, &object, Equal::All)
            .await;
        court
            .same(
                "PUT",
                &format!("{one}?{dry}"),
                JSON,
                &object.replace("\"of\"", "\"to\""),
                Equal::Reason,
            )
            .await;
        for patch in kind.patches() {
            court
                .same(
                    "PATCH",
                    &format!("{one}?{dry}"),
                    patch,
                    &format!("{{{}}}", kind.change),
                    Equal::All,
                )
                .await;
        }
        court
            .same("PATCH", &format!("{one}?dryRun=Some"), MERGE, "{}", Equal::All)
            .await;
        court
            .same(
                "PATCH",
                &format!("{one}?dryRun="),
                MERGE,
                r#"{"metadata":{"labels":{"kept":"x"}}}"#,
                Equal::All,
            )
            .await;
        court
            .same("PATCH", &format!("{one}?{dry}&{dry}"), MERGE, "{}", Equal::All)
            .await;
        court
            .same("DELETE", &format!("{one}?{dry}"), JSON, "", Equal::All)
            .await;
        court
            .same(
                "DELETE",
                &one,
                JSON,
                r#"{"dryRun":["All"],"propagationPolicy":"Foreground"}"#,
                Equal::All,
            )
            .await;
        if !kind.list.ends_with("namespaces") {
            court
                .same(
                    "DELETE",
                    &format!("{}?{dry}&labelSelector=of=NS", kind.list),
                    JSON,
                    "",
                    Equal::All,
                )
                .await;
        }
        court.unchanged(kind).await;
    }
    court.sentence();
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_and_duplicate_fields_are_told_as_asked() {
    let served = Served::start().await;
    let mut court = Court::sit(&served).await;
    for kind in &KINDS {
        court.make_one(kind).await;
        let one = kind.one();
        for validation in ["", "Ignore", "Warn", "Strict", "Other"] {
            let query = format!("dryRun=All&fieldValidation={validation}");
            let wrong = kind
                .object(r#""name":"NS-b","labels":{"a":"b","a":"c"},"zz":1"#)
                .replacen('{', r#"{"bogus":{"x":1},"#, 1);
            // Go tells what is wrong in one order or the other.
            let equal = if validation == "Strict" {
                Equal::ButText
            } else {
                Equal::All
            };
            court
                .same("POST", &format!("{}?{query}", kind.list), JSON, &wrong, equal)
                .await;
            let put = wrong.replace("NS-b", "NS-a");
            court
                .same(
                    "PUT",
                    &format!("{one}?{query}"),
                    JSON,
                    &put,
                    if kind.builtin { equal } else { Equal::Reason },
                )
                .await;
            let body = r#"{"bogus":1,"metadata":{"zz":1,"labels":{"a":"b","a":"c"}}}"#;
            for patch in kind.patches() {
                // It repeats the whole object, or the patch as Go prints a map.
                let equal = if validation == "Strict" {
                    Equal::Reason
                } else {
                    Equal::All
                };
                court.same("PATCH", &format!("{one}?{query}"), patch, body, equal).await;
                // What is taken away may be unknown.
                let nulls = r#"{"bogus":null,"metadata":{"zz":null,"labels":{"none":null}}}"#;
                court
                    .same("PATCH", &format!("{one}?{query}"), patch, nulls, Equal::All)
                    .await;
            }
            let operations = r#"[{"op":"add","path":"/bogus","value":1}]"#;
            let equal = if validation == "Strict" {
                Equal::Reason
            } else {
                Equal::All
            };
            court
                .same("PATCH", &format!("{one}?{query}"), JSON_PATCH, operations, equal)
                .await;
        }
    }
    court.sentence();
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_that_ends_says_what_it_waits_for() {
    let served = Served::start().await;
    let mut court = Court::sit(&served).await;
    let held = |finalizers: &str| format!(r#"{{"metadata":{{"name":"a","finalizers":[{finalizers}]}}}}"#);
    court
        .same(
            "POST",
            "CORE/configmaps",
            JSON,
            &held(r#""example.com/x","example.com/y""#),
            Equal::All,
        )
        .await;
    court
        .same("POST", "LEASES", JSON, &held(r#""example.com/x""#), Equal::All)
        .await;
    court
        .same(
            "POST",
            "CORE/secrets",
            JSON,
            r#"{"metadata":{"name":"free"}}"#,
            Equal::All,
        )
        .await;
    let own = r#"{"metadata":{"finalizers":["example.com/own"]}}"#;
    court.same("PATCH", "CORE", MERGE, own, Equal::All).await;
    court.same("DELETE", "CORE", JSON, "", Equal::All).await;
    court
        .same(
            "DELETE",
            "CORE",
            JSON,
            r#"{"propagationPolicy":"Foreground"}"#,
            Equal::Reason,
        )
        .await;
    let waits = |answer: &Answer| {
        let told = |text: &str| answer.value["status"]["conditions"].to_string().contains(text);
        told("example.com/x in 2 resource instances") && told("configmaps. has 1 resource")
    };
    court.wait_until(Step::get("CORE").accept(JSON), waits).await;
    court.judge(Step::get("CORE").accept(JSON)).await;
    for kind in KINDS.iter().filter(|kind| !kind.list.starts_with('/')) {
        court
            .same("POST", kind.list, JSON, &kind.object(r#""name":"late""#), Equal::All)
            .await;
        court
            .same(
                "POST",
                &format!("{}?dryRun=All", kind.list),
                JSON,
                &kind.object(r#""name":"late""#),
                Equal::All,
            )
            .await;
    }
    court
        .same(
            "PATCH",
            "CORE/configmaps/a",
            MERGE,
            r#"{"data":{"still":"written"}}"#,
            Equal::All,
        )
        .await;
    court
        .same(
            "PUT",
            "CORE/finalize",
            JSON,
            r#"{"metadata":{"name":"other"},"spec":{}}"#,
            Equal::All,
        )
        .await;
    court
        .same(
            "PUT",
            "CORE/finalize",
            JSON,
            r#"{"metadata":{"name":"NS"},"spec":{"finalizers":["not valid"]}}"#,
            Equal::All,
        )
        .await;
    court.same("PATCH", "CORE/finalize", MERGE, "{}", Equal::Reason).await;
    for path in ["CORE/configmaps/a", "LEASES/a"] {
        court
            .same("PATCH", path, MERGE, r#"{"metadata":{"finalizers":null}}"#, Equal::All)
            .await;
        court.wait_until(Step::get(path), |answer| answer.code == 404).await;
    }
    let freed = |answer: &Answer| {
        answer.value["spec"]
            .get("finalizers")
            .is_none_or(|list| list == &serde_json::json!([]))
    };
    court.wait_until(Step::get("CORE"), freed).await;
    court.judge(Step::get("CORE").accept(JSON)).await;
    court
        .same(
            "PATCH",
            "CORE",
            MERGE,
            r#"{"metadata":{"finalizers":null}}"#,
            Equal::Reason,
        )
        .await;
    court.wait_until(Step::get("CORE"), |answer| answer.code == 404).await;
    court.sentence();
    served.stop().await;
}

/// What keeps a namespace that is not deleted can be changed by `finalize` alone.
#[tokio::test(flavor = "multi_thread")]
async fn finalize_writes_the_finalizers_of_a_namespace() {
    let served = Served::start().await;
    let mut court = Court::sit(&served).await;
    for finalizers in [r#""kubernetes","example.com/x""#, r#""example.com/x""#, r#""bare""#, ""] {
        let body =
            format!(r#"{{"metadata":{{"name":"NS","labels":{{"a":"b"}}}},"spec":{{"finalizers":[{finalizers}]}}}}"#);
        court.same("PUT", "CORE/finalize", JSON, &body, Equal::All).await;
        court
            .same("PUT", "CORE/finalize?dryRun=All", JSON, &body, Equal::All)
            .await;
        court.same_read("CORE", JSON).await;
    }
    court
        .same(
            "PUT",
            "CORE",
            JSON,
            r#"{"metadata":{"name":"NS"},"spec":{"finalizers":["example.com/y"]}}"#,
            Equal::All,
        )
        .await;
    court
        .same(
            "PUT",
            "CORE/status",
            JSON,
            r#"{"metadata":{"name":"NS"},"status":{"phase":"Terminating"}}"#,
            Equal::All,
        )
        .await;
    court
        .same(
            "PATCH",
            "CORE/status",
            MERGE,
            r#"{"status":{"phase":"Active"}}"#,
            Equal::All,
        )
        .await;
    court.same("GET", "CORE/status", JSON, "", Equal::All).await;
    court.sentence();
    served.stop().await;
}
