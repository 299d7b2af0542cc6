//! Patches of each type, selectors, protobuf and applied configurations, generated and then damaged. The hub must
//! answer each request without an internal error, and keep running.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use farwater_testkit::{Hub, temporary_folder};
use futures::{StreamExt as _, stream};
use http::Request;
use http_body_util::BodyExt as _;
use kube::{Client, client::Body};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng, seq::IndexedRandom as _};
use serde_json::{Map, Value, json};

use super::Round;

/// Requests in one round. Each round starts its own hub.
const REQUESTS: u64 = 20_000;
const AT_ONCE: usize = 16;
/// Maximum time for a request on a busy machine.
const ANSWERED: Duration = Duration::from_secs(20);
const NAMESPACE: &str = "/api/v1/namespaces/fuzz";
/// Maximum depth of generated values. Parsers accept up to 127.
const DEPTH: usize = 140;
const NAMES: [&str; 12] = [
    "metadata",
    "labels",
    "annotations",
    "name",
    "namespace",
    "finalizers",
    "ownerReferences",
    "data",
    "spec",
    "status",
    "a",
    "$patch",
];
const TEXTS: [&str; 12] = [
    "",
    "a",
    "0",
    "true",
    "replace",
    "delete",
    "-1",
    "\u{0}",
    "é\u{202e}",
    "a/b~0~1",
    "9223372036854775808",
    "2026-01-01T00:00:00Z",
];

struct Asked {
    method: &'static str,
    path: String,
    kind: &'static str,
    accept: &'static str,
    body: Vec<u8>,
}

/// Counts requests.
pub async fn round(seed: u64) -> Result<Round> {
    let dir = temporary_folder("farwater-fuzz-")?;
    let mut hub = Hub::start(dir.path()).await?;
    let client = hub.client().await?;
    prepare(&client).await?;
    let mut random = StdRng::seed_from_u64(seed);
    let asked: Vec<Asked> = (0..REQUESTS).map(|_| generate(&mut random)).collect();
    let begun = Instant::now();
    let answers = stream::iter(asked.iter().enumerate()).map(|(number, asked)| {
        let client = &client;
        async move { (number, send(client, asked).await) }
    });
    let answers: Vec<_> = answers.buffer_unordered(AT_ONCE).collect().await;
    let mut codes = std::collections::BTreeMap::<u16, u64>::new();
    let mut failures = Vec::new();
    for (number, answer) in answers {
        let Asked {
            method,
            path,
            kind,
            body,
            ..
        } = &asked[number];
        let told = format!("seed {seed}, request {number}: {method} {path} {kind}");
        match answer {
            Ok((code, said)) => {
                *codes.entry(code).or_default() += 1;
                // Kubernetes answers the same to a manifest whose type differs from its schema.
                if code >= 500 && !said.contains("failed to create typed patch object") {
                    failures.push(format!("{told}: {code} {said} for {}", shown(body)));
                }
            }
            Err(error) => failures.push(format!("{told}: {error:#} for {}", shown(body))),
        }
    }
    let lives = client.request_text(Request::get("/healthz").body(Vec::new())?).await;
    if hub.process().exited().is_some() || lives.is_err() {
        failures.push(format!("seed {seed}: the hub has ended\n{}", hub.log_tail()));
    }
    failures.truncate(20);
    let figures = json!({"seed": seed, "seconds": begun.elapsed().as_secs_f64().round(), "codes": codes});
    Ok(Round {
        count: REQUESTS,
        failures,
        figures,
    })
}

fn shown(body: &[u8]) -> String {
    String::from_utf8_lossy(&body[..body.len().min(400)])
        .escape_debug()
        .to_string()
}

async fn prepare(client: &Client) -> Result<()> {
    for (path, body) in [
        ("/api/v1/namespaces".to_owned(), json!({"metadata": {"name": "fuzz"}})),
        (
            format!("{NAMESPACE}/configmaps"),
            json!({"metadata": {"name": "map", "labels": {"a": "b"}}, "data": {"a": "b"}}),
        ),
        (
            format!("{NAMESPACE}/serviceaccounts"),
            json!({"metadata": {"name": "map"}, "secrets": [{"name": "a"}]}),
        ),
    ] {
        let request = Request::post(path)
            .header("content-type", "application/json")
            .body(serde_json::to_vec(&body)?)?;
        client.request_text(request).await.context("prepare")?;
    }
    Ok(())
}

/// Status code of the answer, and its text for a server error.
async fn send(client: &Client, asked: &Asked) -> Result<(u16, String)> {
    let request = Request::builder().method(asked.method).uri(&asked.path);
    let request = request
        .header("content-type", asked.kind)
        .header("accept", asked.accept);
    // Skip a path that no client could send.
    let Ok(request) = request.body(Body::from(asked.body.clone())) else {
        return Ok((0, String::new()));
    };
    let answer = tokio::time::timeout(ANSWERED, async {
        let answer = client.send(request).await?;
        let code = answer.status().as_u16();
        let body = answer.into_body().collect().await?.to_bytes();
        let said = if code >= 500 { shown(&body) } else { String::new() };
        anyhow::Ok((code, said))
    });
    answer.await.context("the request was not answered")?
}

fn generate(random: &mut StdRng) -> Asked {
    let resource = *["configmaps", "serviceaccounts", "secrets"]
        .choose(random)
        .unwrap_or(&"configmaps");
    let own = "/apis/farwater.dev/v1alpha1/namespaces/fuzz/servicecontexts";
    let one = if random.random_bool(0.8) {
        format!("{NAMESPACE}/{resource}/map")
    } else {
        format!("{own}/map")
    };
    let collection = one.trim_end_matches("/map").to_owned();
    let json = |value: &Value| value.to_string().into_bytes();
    let manager = format!("fieldManager={}", encoded(&text(random)));
    let (method, path, kind, body) = match random.random_range(0..7) {
        0 => ("PATCH", one, "application/json-patch+json", json(&operations(random))),
        1 => (
            "PATCH",
            one,
            "application/merge-patch+json",
            json(&object(random, DEPTH)),
        ),
        2 => (
            "PATCH",
            one,
            "application/strategic-merge-patch+json",
            json(&strategic(random)),
        ),
        3 => (
            "PATCH",
            format!("{one}?{manager}&force=true"),
            "application/apply-patch+yaml",
            json(&manifest(random, resource)),
        ),
        4 => (
            "POST",
            collection,
            "application/json",
            json(&manifest(random, resource)),
        ),
        5 => (
            "POST",
            collection,
            "application/vnd.kubernetes.protobuf",
            protobuf(random),
        ),
        _ => {
            let selectors = format!(
                "labelSelector={}&fieldSelector={}",
                encoded(&selector(random)),
                encoded(&selector(random))
            );
            let limits = format!("limit={}&continue={}", encoded(&text(random)), encoded(&text(random)));
            (
                "GET",
                format!("{collection}?{selectors}&{limits}"),
                "application/json",
                Vec::new(),
            )
        }
    };
    let accept = *[
        "application/json",
        "application/json;as=Table;g=meta.k8s.io;v=v1",
        "application/yaml",
        "*/*",
        "x",
    ]
    .choose(random)
    .unwrap_or(&"*/*");
    let mut body = body;
    if random.random_bool(0.3) {
        damage(random, &mut body);
    }
    Asked {
        method,
        path,
        kind,
        accept,
        body,
    }
}

fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02x}")).collect()
}

fn text(random: &mut StdRng) -> String {
    let repeated = if random.random_bool(0.05) {
        random.random_range(1..5000)
    } else {
        1
    };
    TEXTS.choose(random).unwrap_or(&"a").repeat(repeated)
}

fn name(random: &mut StdRng) -> String {
    (*NAMES.choose(random).unwrap_or(&"a")).to_owned()
}

fn selector(random: &mut StdRng) -> String {
    const PARTS: [&str; 14] = [
        "a",
        "=",
        "==",
        "!=",
        "!",
        " in ",
        " notin ",
        "(",
        ")",
        ",",
        "metadata.name",
        "spec.x",
        "\u{0}",
        "é",
    ];
    let parts = random.random_range(0..30);
    (0..parts).map(|_| *PARTS.choose(random).unwrap_or(&"a")).collect()
}

/// A deep value with few branches, so that it stays small.
fn value(random: &mut StdRng, depth: usize) -> Value {
    match random.random_range(0..8) {
        _ if depth == 0 => Value::Null,
        0 | 1 => object(random, depth - 1),
        2 => Value::Array(
            (0..random.random_range(0..4))
                .map(|_| value(random, (depth - 1).min(3)))
                .collect(),
        ),
        3 => json!(random.random_range(i64::MIN..i64::MAX)),
        4 => json!(random.random_bool(0.5)),
        5 => Value::Null,
        6 => (0..random.random_range(0..depth)).fold(json!(1), |inner, _| json!({"a": inner})),
        _ => json!(text(random)),
    }
}

fn object(random: &mut StdRng, depth: usize) -> Value {
    let fields = random.random_range(0..4);
    let field = |random: &mut StdRng| {
        let deepest = if random.random_bool(0.1) { DEPTH } else { 4 };
        (name(random), value(random, depth.saturating_sub(1).min(deepest)))
    };
    Value::Object((0..fields).map(|_| field(random)).collect::<Map<_, _>>())
}

fn strategic(random: &mut StdRng) -> Value {
    let items = (0..random.random_range(0..6)).map(|_| {
        let mut item = object(random, 2);
        item["name"] = json!(text(random));
        if random.random_bool(0.3) {
            item["$patch"] = json!(text(random));
        }
        item
    });
    let items: Vec<Value> = items.collect();
    json!({"secrets": items, "$setElementOrder/secrets": [value(random, 2)], "$retainKeys": value(random, 2), "metadata": object(random, 4)})
}

fn manifest(random: &mut StdRng, resource: &str) -> Value {
    let kind = match resource {
        "configmaps" => "ConfigMap",
        "secrets" => "Secret",
        _ => "ServiceAccount",
    };
    let mut manifest = object(random, DEPTH);
    if random.random_bool(0.8) {
        manifest["apiVersion"] = json!("v1");
        manifest["kind"] = json!(kind);
    }
    if random.random_bool(0.8) {
        let mut metadata = object(random, 4);
        metadata["name"] = json!(if random.random_bool(0.5) {
            "map".to_owned()
        } else {
            text(random)
        });
        manifest["metadata"] = metadata;
    }
    manifest
}

fn operations(random: &mut StdRng) -> Value {
    let pointer = |random: &mut StdRng| {
        let parts = random.random_range(0..6);
        let deep = if random.random_bool(0.1) {
            "/a".repeat(random.random_range(1..300))
        } else {
            String::new()
        };
        (0..parts).map(|_| format!("/{}", name(random))).collect::<String>() + &deep
    };
    let operation = |random: &mut StdRng| {
        let op = *["add", "remove", "replace", "move", "copy", "test", "none"]
            .choose(random)
            .unwrap_or(&"add");
        json!({"op": op, "path": pointer(random), "from": pointer(random), "value": value(random, DEPTH)})
    };
    let count = if random.random_bool(0.02) {
        2000
    } else {
        random.random_range(0..12)
    };
    Value::Array((0..count).map(|_| operation(random)).collect())
}

/// A ConfigMap in Kubernetes' protobuf envelope. It is damaged more often than other bodies.
fn protobuf(random: &mut StdRng) -> Vec<u8> {
    let field = |number: u8, content: &[u8]| {
        let mut bytes = vec![number << 3 | 2];
        let mut length = content.len();
        while length >= 0x80 {
            bytes.push((length & 0x7f) as u8 | 0x80);
            length >>= 7;
        }
        bytes.push(length as u8);
        bytes.extend_from_slice(content);
        bytes
    };
    let kind = [field(1, b"v1"), field(2, b"ConfigMap")].concat();
    let metadata = field(1, &field(1, text(random).as_bytes()));
    let nested =
        (0..random.random_range(0..200)).fold(Vec::new(), |inner, _| field(random.random_range(1..16), &inner));
    let object = [
        metadata,
        field(2, &[field(1, b"a"), field(2, text(random).as_bytes())].concat()),
        nested,
    ]
    .concat();
    let mut body = [b"k8s\0".to_vec(), field(1, &kind), field(2, &object)].concat();
    if random.random_bool(0.5) {
        damage(random, &mut body);
    }
    body
}

fn damage(random: &mut StdRng, body: &mut Vec<u8>) {
    for _ in 0..random.random_range(1..8) {
        if body.is_empty() {
            return;
        }
        let at = random.random_range(0..body.len());
        match random.random_range(0..4) {
            0 => body[at] = random.random_range(0..=255),
            1 => drop(body.remove(at)),
            2 => body.insert(at, random.random_range(0..=255)),
            _ => body.truncate(at),
        }
    }
}
