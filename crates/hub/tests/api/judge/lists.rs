//! Lists: pages, versions, selectors.

use crate::support::Served;

use super::court::*;

const GRANT_PATH: &str = "/apis/farwater.dev/v1alpha1/clustergrants/NS-a";
const ALL: &str = "LEASES?labelSelector=of=test";

async fn make_leases(court: &mut Court, count: usize) {
    for n in 0..count {
        let object = format!(
            r#"{{"metadata":{{"name":"c{n}","labels":{{"of":"test","even":"{}"}}}}}}"#,
            n % 2 == 0
        );
        court.same("POST", "LEASES", JSON, &object, Equal::All).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_follow_each_other() {
    let served = Served::start().await;
    let mut court = Court::sit(&served).await;
    make_leases(&mut court, 5).await;
    for accept in [JSON, TABLE, PARTIAL_LIST] {
        for selector in [
            "labelSelector=of=test",
            "labelSelector=even=true",
            "fieldSelector=metadata.name!=c1",
            "labelSelector=of=none",
        ] {
            let list = format!("LEASES?{selector}");
            for limit in ["1", "2", "3", "5", "500", "0", "-1"] {
                let mut page = format!("{list}&limit={limit}");
                for _ in 0..6 {
                    court.same_read(&page, accept).await;
                    if !court.remember_if("NEXT", &page, "/metadata/continue").await {
                        break;
                    }
                    page = format!("{list}&limit={limit}&continue=$NEXT");
                }
            }
        }
    }
    // The rest, and with options that have no meaning together.
    let first = format!("{ALL}&limit=2");
    court.remember("NEXT", &first, "/metadata/continue").await;
    court.remember("VERSION", &first, "/metadata/resourceVersion").await;
    for query in [
        "continue=$NEXT",
        "continue=$NEXT&resourceVersion=0",
        "continue=$NEXT&resourceVersion=$VERSION",
        "continue=$NEXT&resourceVersion=$VERSION&resourceVersionMatch=Exact",
        "continue=$NEXT&resourceVersionMatch=NotOlderThan",
        "continue=",
        "limit=",
        "limit=1.5",
        "limit=99999999999999999999",
    ] {
        court.same_read(&format!("{ALL}&{query}"), JSON).await;
    }
    for token in [
        "abc",
        "!",
        "eyJ2IjoibWV0YS5rOHMuaW8vdjIiLCJydiI6MSwic3RhcnQiOiJhIn0",
        "e30",
    ] {
        court
            .judge(
                Step::get(&format!("{ALL}&limit=2&continue={token}"))
                    .accept(JSON)
                    .equal(Equal::Reason),
            )
            .await;
    }
    court.sentence();
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn versions_are_asked_for_as_kubernetes_reads_them() {
    let served = Served::start().await;
    let mut court = Court::sit(&served).await;
    make_leases(&mut court, 3).await;
    court.remember("VERSION", ALL, "/metadata/resourceVersion").await;
    for query in [
        "resourceVersion=",
        "resourceVersion=0",
        "resourceVersion=$VERSION",
        "resourceVersion=$VERSION&limit=1",
        "resourceVersion=1",
        "resourceVersion=x",
        "resourceVersion=-1",
        "resourceVersion=1.0",
        "resourceVersion=$VERSION&resourceVersionMatch=NotOlderThan",
        "resourceVersion=1&resourceVersionMatch=NotOlderThan",
        "resourceVersion=0&resourceVersionMatch=NotOlderThan",
        "resourceVersion=$VERSION&resourceVersionMatch=Exact",
        "resourceVersion=0&resourceVersionMatch=Exact",
        "resourceVersionMatch=Exact",
        "resourceVersionMatch=NotOlderThan",
        "resourceVersion=0&resourceVersionMatch=Foo",
        "resourceVersionMatch=Foo",
        "resourceVersion=0&resourceVersionMatch=",
        "sendInitialEvents=true",
        "sendInitialEvents=false&resourceVersionMatch=Foo",
        "allowWatchBookmarks=true",
        "timeoutSeconds=x",
        "timeoutSeconds=5",
        "watch=false",
        "pretty=true",
    ] {
        court.same_read(&format!("{ALL}&{query}"), JSON).await;
        court
            .same_read(&format!("{GRANTS}?labelSelector=of=NS&{query}"), JSON)
            .await;
    }
    for query in ["resourceVersion=0", "resourceVersion=$VERSION", "resourceVersion=1"] {
        court.same_read(&format!("LEASES/c0?{query}"), JSON).await;
    }
    court.sentence();
    served.stop().await;
}

/// A read waits for it a while; a watch begins there, unless it is to begin with the state of that version.
#[tokio::test(flavor = "multi_thread")]
async fn a_version_ahead_of_the_server_is_not_there_yet() {
    let served = Served::start().await;
    let mut court = Court::sit(&served).await;
    make_leases(&mut court, 2).await;
    court.same("POST", GRANTS, JSON, GRANT, Equal::All).await;
    let initial = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
    let mut steps = Vec::new();
    for (list, one) in [
        ("LEASES", "LEASES/c0"),
        ("CORE/secrets", "CORE/secrets/none"),
        (GRANTS, GRANT_PATH),
    ] {
        for (path, query) in [
            (one, String::new()),
            (list, String::new()),
            (list, "limit=1".into()),
            (list, "labelSelector=of=none".into()),
            (list, "resourceVersionMatch=NotOlderThan".into()),
            (list, "resourceVersionMatch=Exact".into()),
            (list, "resourceVersionMatch=Exact&limit=1".into()),
            (list, "watch=1&timeoutSeconds=1".into()),
            (list, "watch=1&timeoutSeconds=1&allowWatchBookmarks=true".into()),
            (list, format!("watch=1&timeoutSeconds=1&{initial}")),
            (
                list,
                format!("watch=1&timeoutSeconds=10&{initial}&allowWatchBookmarks=true"),
            ),
            (
                list,
                "watch=1&timeoutSeconds=1&sendInitialEvents=false&resourceVersionMatch=NotOlderThan".into(),
            ),
        ] {
            for accept in [JSON, TABLE] {
                steps.push(Step::get(&format!("{path}?{query}&resourceVersion=999999999999")).accept(accept));
            }
        }
    }
    // The largest there is, and one that is none.
    for path in [
        "LEASES?resourceVersion=18446744073709551615",
        "LEASES?watch=1&timeoutSeconds=1&resourceVersion=18446744073709551615",
        "LEASES?resourceVersion=18446744073709551616",
    ] {
        steps.push(Step::get(path).accept(JSON));
    }
    court.judge_all(&steps).await;
    court.sentence();
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn selectors_are_read_as_kubernetes_reads_them() {
    let served = Served::start().await;
    let mut court = Court::sit(&served).await;
    make_leases(&mut court, 3).await;
    for selector in [
        "even",
        "!even",
        "even=true",
        "even==true",
        "even!=true",
        "even%20in%20(true,x)",
        "even%20notin%20(true)",
        "even,of=test",
        "even=",
        "even%20in%20()",
        "even%3E1",
        "even%20gt%201",
        "a%20b",
        "=",
        "-a",
        "a=b%20c",
        "a,,b",
        "a%20in%20x",
        "even%20in%20(true",
        "a=b,",
        "/a",
        "a/b/c",
        "a%20exists",
        "even%20%3D%20true",
        "A_b.C/d=e",
        "even%20in%20(true,)",
        "a%3Ex",
    ] {
        court
            .judge(Step::get(&format!("LEASES?labelSelector={selector}")).accept(JSON))
            .await;
    }
    for selector in [
        "metadata.name=c1",
        "metadata.name==c1",
        "metadata.name!=c1",
        "metadata.namespace=NS",
        "metadata.namespace=x",
        "metadata.name=c1,metadata.namespace=NS",
        "data.a=b",
        "metadata.name",
        "=",
        "metadata.name=a=b",
        "metadata.name=",
        "metadata.name%20=%20c1",
        "metadata.name=c1,",
        "metadata.name%20in%20(c1)",
    ] {
        for list in ["LEASES", "CORE/secrets", "OWN/gitrepositories", "RBAC/roles", GRANTS] {
            court
                .judge(Step::get(&format!("{list}?fieldSelector={selector}&labelSelector=of=test")).accept(JSON))
                .await;
        }
    }
    court
        .same_read(
            "/apis/coordination.k8s.io/v1/leases?fieldSelector=metadata.namespace=NS,metadata.name=c1",
            JSON,
        )
        .await;
    court
        .same_read(
            "/api/v1/namespaces?fieldSelector=metadata.name=NS,status.phase=Active",
            JSON,
        )
        .await;
    court.same_read("/api/v1/namespaces?fieldSelector=name=NS", TABLE).await;
    court.sentence();
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_show_what_they_are_asked_for() {
    let served = Served::start().await;
    let mut court = Court::sit(&served).await;
    make_leases(&mut court, 2).await;
    court.same("POST", GRANTS, JSON, GRANT, Equal::All).await;
    for list in [
        ALL.to_owned(),
        "LEASES/c0?".to_owned(),
        format!("{GRANTS}?labelSelector=of=NS"),
        format!("{GRANTS}/NS-a?"),
    ] {
        for query in [
            "",
            "includeObject=None",
            "includeObject=Metadata",
            "includeObject=Object",
            "includeObject=Foo",
            "includeObject=",
        ] {
            court.same_read(&format!("{list}&{query}"), TABLE).await;
        }
        for accept in [
            "application/json;as=Table;g=meta.k8s.io;v=v1",
            "application/json;as=Table;g=meta.k8s.io;v=v2",
            "application/json;as=Foo;g=meta.k8s.io;v=v1,application/json",
            "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
            "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
            "text/html",
            "*/*",
            "",
        ] {
            // The real server has no words for a custom resource as a list of metadata.
            let nonsense = list.starts_with(&format!("{GRANTS}/")) && accept.contains("MetadataList");
            if !nonsense {
                court.judge(Step::get(&list).accept(accept).equal(Equal::Reason)).await;
            }
        }
    }
    court.sentence();
    served.stop().await;
}
