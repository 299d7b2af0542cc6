//! Who may do what: roles, bindings, reviews, impersonation.

use crate::support::Served;

use super::court::*;

fn as_user(method: &'static str, path: &str, user: &str) -> Step {
    Step::new(method, path).header("impersonate-user", user)
}

const REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";

#[tokio::test(flavor = "multi_thread")]
async fn what_is_allowed_and_how_it_is_refused_is_as_in_kubernetes() {
    let served = Served::start().await;
    let mut court = Court::sit(&served).await;
    let bob = "bob-NS";
    for (path, body) in [
        (
            "RBAC/roles",
            r#"{"metadata":{"name":"maps"},"rules":[{"apiGroups":[""],"resources":["configmaps"],"resourceNames":["one"],"verbs":["get","patch"]},{"apiGroups":[""],"resources":["configmaps"],"verbs":["create","list"]},{"apiGroups":["rbac.authorization.k8s.io"],"resources":["roles","rolebindings"],"verbs":["create","update","patch","get"]}]}"#,
        ),
        (
            "RBAC/rolebindings",
            r#"{"metadata":{"name":"bob"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"maps"},"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"bob-NS"}]}"#,
        ),
        (
            "RBAC/rolebindings",
            r#"{"metadata":{"name":"lost"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"none"},"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"lost-NS"}]}"#,
        ),
        ("CORE/configmaps", r#"{"metadata":{"name":"one"}}"#),
    ] {
        court.same("POST", path, JSON, body, Equal::All).await;
    }
    for path in [
        "CORE/configmaps/one",
        "CORE/configmaps/two",
        "CORE/configmaps?limit=0&labelSelector=a=b",
        "CORE/configmaps?fieldSelector=metadata.name=one&watch=1&timeoutSeconds=1",
        "/api/v1/configmaps",
        "CORE/secrets/x",
        "CORE/serviceaccounts/default/token",
        "OWN/servicedeployments",
        "/apis/farwater.dev/v1alpha1/clustergrants",
        "/apis/none.example.com/v1/namespaces/NS/things",
    ] {
        court.judge(as_user("GET", path, bob).accept(JSON)).await;
    }
    // A binding whose role is missing says so.
    court
        .judge(as_user("GET", "CORE/configmaps", "lost-NS").accept(JSON))
        .await;
    court.sentence();
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_grants_what_they_do_not_hold() {
    let served = Served::start().await;
    let mut court = Court::sit(&served).await;
    let rule = |verbs: &str, resources: &str| {
        format!(r#"{{"apiGroups":["rbac.authorization.k8s.io"],"resources":[{resources}],"verbs":[{verbs}]}}"#)
    };
    let writer = rule(r#""create","update","patch","get""#, r#""roles","rolebindings""#);
    let maps = r#"{"apiGroups":[""],"resources":["configmaps"],"verbs":["get"]}"#;
    let escalating = rule(r#""escalate""#, r#""roles""#);
    let binding = rule(r#""bind""#, r#""roles""#);
    for (name, rules) in [
        ("writer", format!("{writer},{maps}")),
        ("escalator", format!("{writer},{escalating}")),
        ("binder", format!("{writer},{binding}")),
        (
            "strong",
            r#"{"apiGroups":[""],"resources":["secrets"],"verbs":["get"]}"#.to_owned(),
        ),
    ] {
        let role = format!(r#"{{"metadata":{{"name":"{name}"}},"rules":[{rules}]}}"#);
        court.same("POST", "RBAC/roles", JSON, &role, Equal::All).await;
        let bound = format!(
            r#"{{"metadata":{{"name":"{name}"}},"roleRef":{{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"{name}"}},"subjects":[{{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"{name}-NS"}}]}}"#
        );
        court.same("POST", "RBAC/rolebindings", JSON, &bound, Equal::All).await;
    }
    let role = |name: &str, rules: &str| format!(r#"{{"metadata":{{"name":"{name}"}},"rules":[{rules}]}}"#);
    let bind = |name: &str, role: &str| {
        format!(
            r#"{{"metadata":{{"name":"{name}"}},"roleRef":{{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"{role}"}},"subjects":[{{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"eve"}}]}}"#
        )
    };
    let secrets = r#"{"apiGroups":[""],"resources":["secrets","pods"],"verbs":["get","list"]}"#;
    for user in ["writer", "escalator", "binder"] {
        let who = format!("{user}-NS");
        for (path, body) in [
            ("RBAC/roles", role(&format!("{user}-maps"), maps)),
            ("RBAC/roles", role(&format!("{user}-secrets"), secrets)),
            ("RBAC/rolebindings", bind(&format!("{user}-strong"), "strong")),
            ("RBAC/rolebindings", bind(&format!("{user}-weak"), "writer")),
            ("RBAC/rolebindings", bind(&format!("{user}-none"), "none-such")),
        ] {
            court
                .judge(as_user("POST", path, &who).send(JSON, &body).accept(JSON))
                .await;
        }
        let more = format!(r#"{{"rules":[{maps},{secrets}]}}"#);
        court
            .judge(
                as_user("PATCH", &format!("RBAC/roles/{user}-maps"), &who)
                    .send(MERGE, &more)
                    .accept(JSON)
                    .equal(Equal::ButText),
            )
            .await;
        // Labels are no rights.
        let labels = r#"{"metadata":{"labels":{"a":"b"}}}"#;
        court
            .judge(
                as_user("PATCH", "RBAC/roles/strong", &who)
                    .send(MERGE, labels)
                    .accept(JSON),
            )
            .await;
    }
    court.sentence();
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn impersonation_and_reviews_answer_as_kubernetes_does() {
    let served = Served::start().await;
    let mut court = Court::sit(&served).await;
    let who = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let review = |verb: &str, resource: &str, name: &str| {
        format!(
            r#"{{"spec":{{"resourceAttributes":{{"namespace":"NS","verb":"{verb}","resource":"{resource}","name":"{name}"}}}}}}"#
        )
    };
    let as_account = "system:serviceaccount:NS:ci";
    for headers in [
        vec![("impersonate-user", "bob")],
        vec![
            ("impersonate-user", "bob"),
            ("impersonate-group", "dev"),
            ("impersonate-group", "ops"),
        ],
        vec![
            ("impersonate-user", "bob"),
            ("impersonate-uid", "7"),
            ("impersonate-extra-scopes", "a"),
        ],
        vec![("impersonate-user", "bob"), ("impersonate-extra-example.com%2fx", "a")],
        vec![("impersonate-user", as_account)],
        vec![("impersonate-user", as_account), ("impersonate-group", "x")],
        vec![("impersonate-user", "bob"), ("impersonate-group", "system:masters")],
        vec![
            ("impersonate-user", "bob"),
            ("impersonate-group", "system:unauthenticated"),
        ],
        vec![("impersonate-user", "system:anonymous")],
        vec![("impersonate-group", "dev")],
        vec![("impersonate-uid", "7")],
        vec![("impersonate-extra-scopes", "a")],
    ] {
        let step = |path: &str, body: &str, equal| {
            headers
                .iter()
                .fold(Step::new("POST", path), |step, (name, value)| step.header(name, value))
                .send(JSON, body)
                .accept(JSON)
                .equal(equal)
        };
        let equal = if headers[0].0 == "impersonate-user" {
            Equal::All
        } else {
            Equal::ButText
        };
        court.judge(step(who, "{}", equal)).await;
        court
            .judge(step(REVIEWS, &review("get", "configmaps", "x"), equal))
            .await;
        court
            .judge(step(
                "CORE/configmaps?dryRun=All",
                r#"{"metadata":{"name":"x"}}"#,
                equal,
            ))
            .await;
    }
    // Bob may act as one account, and as nobody else. Kubernetes names another verb first when it refuses.
    for (path, body) in [
        (
            "RBAC/roles",
            r#"{"metadata":{"name":"as-ci"},"rules":[{"apiGroups":[""],"resources":["serviceaccounts"],"resourceNames":["ci"],"verbs":["impersonate"]}]}"#,
        ),
        (
            "RBAC/rolebindings",
            r#"{"metadata":{"name":"as-ci"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"as-ci"},"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"ServiceAccount","name":"bob","namespace":"NS"}]}"#,
        ),
        ("CORE/serviceaccounts", r#"{"metadata":{"name":"bob"}}"#),
    ] {
        court.same("POST", path, JSON, body, Equal::All).await;
    }
    court.take_token("BOB", "CORE/serviceaccounts/bob/token").await;
    for (wanted, equal) in [
        (as_account, Equal::All),
        ("system:serviceaccount:NS:other", Equal::Reason),
        ("system:serviceaccount:other:ci", Equal::Reason),
        ("bob", Equal::Reason),
    ] {
        let step = as_user("POST", who, wanted)
            .header("authorization", "Bearer $BOB")
            .send(JSON, "{}");
        court.judge(step.clone().accept(JSON).equal(equal)).await;
        court
            .judge(
                step.header("impersonate-group", "dev")
                    .accept(JSON)
                    .equal(Equal::Reason),
            )
            .await;
    }
    for (path, verb) in [("/apis/x", "get"), ("/metrics", "get"), ("/api", "post")] {
        let body = format!(r#"{{"spec":{{"nonResourceAttributes":{{"path":"{path}","verb":"{verb}"}}}}}}"#);
        court
            .judge(as_user("POST", REVIEWS, "bob").send(JSON, &body).accept(JSON))
            .await;
    }
    court.sentence();
    served.stop().await;
}
