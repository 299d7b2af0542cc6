//! Every endpoint × every role, asked over HTTPS. The endpoints are what discovery and the routers name, so one that is added shows
//! up here, and in `docs/access.md`, before it can be merged.

use std::{collections::BTreeMap, fmt::Write as _, fs, path::Path};

use aws_lc_rs::{
    rand::SystemRandom,
    signature::{Ed25519KeyPair, KeyPair as _},
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use farwater_api::protocol::{Assertion, JoinAnswer, JoinRequest, ProtocolError, SignedAssertion, TokenAnswer};
use farwater_testkit::kube::client;
use http::{Request, StatusCode};
use http_body_util::BodyExt as _;
use kube::{Client, client::Body};
use serde_json::{Value, json};

use crate::support::Served;

/// Senders of requests. All but the first and the last are users of the API. Tenants' roles are bound in `team-a`, and
/// all requests are for it.
const ROLES: [&str; 9] = [
    "no token",
    "anyone",
    "view",
    "edit",
    "admin",
    "elsewhere",
    "monitoring",
    "root",
    "agent",
];
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/access.md");

/// A request that changes nothing, whoever sends it.
#[derive(Clone)]
struct Question {
    group: String,
    row: String,
    method: &'static str,
    path: String,
    body: Option<Value>,
}

struct World {
    served: Served,
    admin: Client,
    bare: Client,
    agent_token: String,
}

async fn send(client: &Client, request: Request<Body>) -> (StatusCode, Vec<u8>) {
    let response = client.send(request).await.unwrap();
    let code = response.status();
    // A watch that was let in would not end.
    (code, response.into_body().collect().await.unwrap().to_bytes().to_vec())
}

impl World {
    async fn start() -> Self {
        let served = Served::start().await;
        let kubeconfig = &served.running.admin_kubeconfig;
        let admin = client(kubeconfig, None).await.unwrap();
        let mut config = kube::Config::from_custom_kubeconfig(
            kube::config::Kubeconfig::read_from(kubeconfig).unwrap(),
            &kube::config::KubeConfigOptions::default(),
        )
        .await
        .unwrap();
        config.auth_info = kube::config::AuthInfo::default();
        let bare = Client::try_from(config).unwrap();
        let mut world = Self {
            served,
            admin,
            bare,
            agent_token: String::new(),
        };
        for namespace in ["team-a", "team-b"] {
            world
                .make("/api/v1/namespaces", json!({"metadata": {"name": namespace}}))
                .await;
        }
        for role in ["view", "edit", "admin"] {
            world.bind("/rolebindings", "team-a", role, role).await;
        }
        world.bind("/rolebindings", "team-b", "admin", "elsewhere").await;
        world
            .bind("/clusterrolebindings", "", "system:monitoring", "monitoring")
            .await;
        world.bind("/clusterrolebindings", "", "cluster-admin", "root").await;
        world.join().await;
        world
    }

    async fn make(&self, path: &str, body: Value) -> Value {
        let request = Request::post(path).header("content-type", "application/json");
        let (code, answer) = send(&self.admin, request.body(body.to_string().into_bytes().into()).unwrap()).await;
        assert!(code.is_success(), "{path}: {}", String::from_utf8_lossy(&answer));
        serde_json::from_slice(&answer).unwrap()
    }

    async fn bind(&self, kind: &str, namespace: &str, role: &str, user: &str) {
        let place = if namespace.is_empty() {
            String::new()
        } else {
            format!("/namespaces/{namespace}")
        };
        let group = "rbac.authorization.k8s.io";
        let binding = json!({
            "metadata": {"name": format!("{user}-matrix")},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": group, "kind": "User", "name": user}],
        });
        self.make(&format!("/apis/{group}/v1{place}{kind}"), binding).await;
    }

    /// An agent of a cluster of team-a, by the protocol that agents speak.
    async fn join(&mut self) {
        let clusters = "/apis/farwater.dev/v1alpha1/namespaces/team-a/clusters";
        let cluster =
            json!({"apiVersion": "farwater.dev/v1alpha1", "kind": "Cluster", "metadata": {"name": "c"}, "spec": {}});
        self.make(clusters, cluster).await;
        let invitation = json!({"apiVersion": "farwater.dev/v1alpha1", "kind": "ClusterJoin"});
        let invitation = self.make(&format!("{clusters}/c/join"), invitation).await;
        let token = invitation["token"]
            .as_str()
            .unwrap_or_else(|| panic!("{invitation}"))
            .to_owned();

        let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        let key = Ed25519KeyPair::from_pkcs8(document.as_ref()).unwrap();
        let sign = |message: &[u8]| STANDARD.encode(key.sign(message).as_ref());
        let sealing_key = STANDARD.encode([9; 32]);
        let join = JoinRequest {
            proof: sign(&JoinRequest::proof_message(&token, &sealing_key)),
            token,
            public_key: STANDARD.encode(key.public_key().as_ref()),
            sealing_key,
            agent_version: "0.1.0".to_owned(),
            kubernetes_version: "v1.36.3".to_owned(),
            cluster_id: "matrix".to_owned(),
        };
        let joined: JoinAnswer = self.post_agent("join", &join).await;
        let assertion = Assertion {
            installation: joined.installation,
            cluster_uid: joined.cluster.uid,
            time: joined.hub_time,
            system_time: None,
            nonce: "0123456789abcdef0123456789abcdef".to_owned(),
            agent_version: "0.1.0".to_owned(),
            kubernetes_version: "v1.36.3".to_owned(),
            instance: String::new(),
            host: String::new(),
            standby: false,
            position: Default::default(),
        };
        let assertion = STANDARD.encode(serde_json::to_vec(&assertion).unwrap());
        let signature = sign(&SignedAssertion::message(&assertion));
        let answer: TokenAnswer = self
            .post_agent("token", &SignedAssertion { assertion, signature })
            .await;
        self.agent_token = answer.token;
    }

    async fn post_agent<T: serde::de::DeserializeOwned>(&self, path: &str, body: &impl serde::Serialize) -> T {
        let request = Request::post(format!("/agent/v1/{path}")).header("content-type", "application/json");
        let request = request.body(serde_json::to_vec(body).unwrap().into()).unwrap();
        let (_, answer) = send(&self.bare, request).await;
        serde_json::from_slice(&answer).unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&answer)))
    }

    /// Everything that may be asked, by what the hub itself says that it serves.
    async fn questions(&self) -> Vec<Question> {
        let mut questions: Vec<Question> = farwater_hub::served_paths()
            .into_iter()
            .flat_map(|(method, path)| questions_of_path(method, path))
            .collect();
        let groups = self.read("/apis").await;
        let mut versions = vec!["/api/v1".to_owned()];
        for group in groups["groups"].as_array().unwrap() {
            let of_group = group["versions"].as_array().unwrap().iter();
            versions.extend(of_group.map(|version| format!("/apis/{}", version["groupVersion"].as_str().unwrap())));
        }
        for version in versions {
            for resource in self.read(&version).await["resources"].as_array().unwrap() {
                questions.extend(questions_of_resource(&version, resource));
            }
        }
        questions
    }

    async fn read(&self, path: &str) -> Value {
        let (_, body) = send(&self.admin, Request::get(path).body(Vec::new().into()).unwrap()).await;
        serde_json::from_slice(&body).unwrap()
    }

    /// `yes`, `401`, `no`, or when.
    async fn ask(&self, role: &str, question: &Question) -> &'static str {
        let mut request = Request::builder().method(question.method).uri(&question.path);
        let is_api = ["/api", "/openapi", "/metrics"]
            .iter()
            .any(|prefix| question.path.starts_with(prefix));
        let client = match role {
            "no token" => &self.bare,
            "agent" => {
                request = request.header("authorization", format!("Bearer {}", self.agent_token));
                &self.bare
            }
            _ if question.path == "/metrics" => return self.may_scrape(role).await,
            user if is_api => {
                request = request.header("impersonate-user", user);
                &self.admin
            }
            // What lies outside the API doesn't ask who a user is.
            _ => &self.admin,
        };
        let patch = question.method == "PATCH";
        let kind = if patch {
            "application/merge-patch+json"
        } else {
            "application/json"
        };
        let body = question
            .body
            .as_ref()
            .map(|body| body.to_string().into_bytes())
            .unwrap_or_default();
        let (code, body) = send(client, request.header("content-type", kind).body(body.into()).unwrap()).await;
        match code.as_u16() {
            401 => "401",
            403 if is_not_desired(&body) => "if desired",
            403 => "no",
            500.. => panic!(
                "{} {}: {code} {}",
                question.method,
                question.path,
                String::from_utf8_lossy(&body)
            ),
            _ => "yes",
        }
    }

    /// The metrics take no impersonation; what RBAC says of them is asked of the API.
    async fn may_scrape(&self, user: &str) -> &'static str {
        let review = json!({"spec": {"nonResourceAttributes": {"path": "/metrics", "verb": "get"}}});
        let request = Request::post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews")
            .header("content-type", "application/json")
            .header("impersonate-user", user);
        let (_, body) = send(
            &self.admin,
            request.body(review.to_string().into_bytes().into()).unwrap(),
        )
        .await;
        let review: Value = serde_json::from_slice(&body).unwrap();
        if review["status"]["allowed"] == true {
            "yes"
        } else {
            "no"
        }
    }
}

fn is_not_desired(body: &[u8]) -> bool {
    serde_json::from_slice::<ProtocolError>(body).is_ok_and(|error| error.reason == "NotDesired")
}

/// What a path is asked with. A path that isn't known here fails the test: say how it is asked.
fn questions_of_path(method: &str, path: &str) -> Vec<Question> {
    let digest = format!("sha256:{}", "0".repeat(64));
    let (method, asked, body) = match (method, path) {
        // Discovery lists what lies below.
        ("*", "/api/{*path}" | "/apis/{*path}" | "/api/" | "/apis/" | "/openapi") => return Vec::new(),
        ("*", "/openapi/{*path}") => ("GET", "/openapi/v3".to_owned(), None),
        ("*", "/api" | "/apis") => ("GET", path.to_owned(), None),
        ("GET", "/agent/v1/bundles/{digest}") => ("GET", path.replace("{digest}", &digest), None),
        ("GET", "/agent/v1/secrets/{service}/{mac}") => ("GET", format!("/agent/v1/secrets/none/{digest}"), None),
        ("GET", "/agent/v1/parameters/{service}/{mac}") => ("GET", format!("/agent/v1/parameters/none/{digest}"), None),
        ("GET", "/agent/v1/successions/{sequence}") => ("GET", "/agent/v1/successions/0".to_owned(), None),
        // They prove themselves by what is in the body: a one-time token, a signature.
        ("POST", "/agent/v1/join" | "/agent/v1/token" | "/agent/v1/keys") => ("POST", path.to_owned(), Some(json!({}))),
        ("POST", "/agent/v1/plans/{id}") => ("POST", "/agent/v1/plans/0".to_owned(), Some(json!({}))),
        ("POST", "/agent/v1/status") => ("POST", path.to_owned(), Some(json!({}))),
        // What an agent that is newer than the hub asks for: it learns that there is no such thing.
        ("*", "/agent/{*path}") => ("GET", "/agent/v0/none".to_owned(), None),
        // Known by the signature of what is delivered.
        ("POST", "/hook/{receiver}") => ("POST", format!("/hook/{}", "0".repeat(64)), Some(json!({}))),
        ("GET", "/ui/{*path}") => ("GET", "/ui/none".to_owned(), None),
        (
            "GET",
            "/healthz"
            | "/livez"
            | "/readyz"
            | "/version"
            | "/version/"
            | "/metrics"
            | "/"
            | "/ui"
            | "/ui/"
            | "/agent/v1/desired"
            | "/agent/v1/plans"
            | "/agent/v1/connection",
        ) => ("GET", path.to_owned(), None),
        _ => panic!("{method} {path} is served and not in the table of access"),
    };
    let path = path.replace("{*path}", "…");
    vec![Question {
        group: "paths".to_owned(),
        row: format!("{method} {path}"),
        method,
        path: asked,
        body,
    }]
}

fn questions_of_resource(version: &str, resource: &Value) -> Vec<Question> {
    let name = resource["name"].as_str().unwrap();
    let (plural, subresource) = name.split_once('/').unwrap_or((name, ""));
    let namespaced = resource["namespaced"] == true;
    let collection = if namespaced {
        format!("{version}/namespaces/team-a/{plural}")
    } else {
        format!("{version}/{plural}")
    };
    // Rights on a namespace come from bindings in it.
    let one = if plural == "namespaces" { "team-a" } else { "none" };
    let tail = if subresource.is_empty() {
        String::new()
    } else {
        format!("/{subresource}")
    };
    let object = format!("{collection}/{one}{tail}");
    let mut questions = Vec::new();
    let mut ask = |verb: &str, method: &'static str, path: String| {
        let body = matches!(method, "POST" | "PUT" | "PATCH").then(|| json!({}));
        let group = version.trim_start_matches("/apis/").trim_start_matches('/').to_owned();
        questions.push(Question {
            group,
            row: format!("{name} {verb}"),
            method,
            path,
            body,
        });
    };
    for verb in resource["verbs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|verb| verb.as_str().unwrap())
    {
        match verb {
            "get" => ask(verb, "GET", object.clone()),
            "list" => {
                ask(verb, "GET", collection.clone());
                if namespaced {
                    ask("list -A", "GET", format!("{version}/{plural}"));
                }
            }
            // Refused by its version, once it is allowed.
            "watch" => ask(verb, "GET", format!("{collection}?watch=1&resourceVersion=x")),
            "create" if subresource.is_empty() => ask(verb, "POST", format!("{collection}?dryRun=All")),
            "create" => ask(verb, "POST", format!("{object}?dryRun=All")),
            "update" => ask(verb, "PUT", format!("{object}?dryRun=All")),
            "patch" => ask(verb, "PATCH", format!("{object}?dryRun=All")),
            "delete" => ask(verb, "DELETE", format!("{object}?dryRun=All")),
            "deletecollection" => ask(verb, "DELETE", format!("{collection}?dryRun=All")),
            other => panic!("{name} has the verb {other}, and the table of access doesn't know how to ask for it"),
        }
    }
    questions
}

type Table = BTreeMap<String, Vec<(String, Vec<&'static str>)>>;

const INTRODUCTION: &str = "\
# Access by role

<!-- Generated by the test `every_endpoint_is_asked_by_every_role`; FARWATER_WRITE=1 writes this page again. -->

This page lists the endpoints of a hub, and the roles that may use each. The test that writes it sends one request per
role and endpoint. For example, the row `configmaps create` says that `edit` may create ConfigMaps and `view` may not.

Requests for namespaced kinds name the namespace `team-a`, except `list -A`. API requests that change something use
`dryRun`.

| column | the request's sender |
|---|---|
| `no token` | a client without a token |
| `anyone` | a user without a binding |
| `view`, `edit`, `admin` | users with a RoleBinding in `team-a` to the ClusterRole of this name |
| `elsewhere` | a user with a RoleBinding to `admin` in another namespace |
| `monitoring` | a user with a ClusterRoleBinding to `system:monitoring` |
| `root` | a user with a ClusterRoleBinding to `cluster-admin` |
| `agent` | the agent of a cluster in `team-a` |

| cell | meaning |
|---|---|
| `yes` | allowed |
| `no` | refused with 403 |
| `401` | refused: the hub doesn't accept the token, or there is none |
| `if desired` | allowed for data that the desired state of the agent's cluster names; refused with 403 for all other data |

The endpoints `join`, `token` and `keys` of agents need no token: a one-time token or a signature in the body proves the
agent's identity. No role allows `/hook/…`: the hub checks the signature of the Git host's request.

[A team that deploys](tenants.md) shows how to give a team its rights.
";

fn page(table: &Table) -> String {
    let mut text = INTRODUCTION.to_owned();
    for (group, rows) in table {
        let _ = write!(
            text,
            "\n## {group}\n\n| | {} |\n|---|{}\n",
            ROLES.join(" | "),
            "---|".repeat(ROLES.len())
        );
        for (row, cells) in rows {
            let _ = writeln!(text, "| {row} | {} |", cells.join(" | "));
        }
    }
    text
}

fn cell<'a>(cells: &[&'a str], role: &str) -> &'a str {
    cells[ROLES.iter().position(|known| *known == role).unwrap()]
}

/// What must hold whatever the page says.
fn check_rules(table: &Table) {
    for (group, rows) in table {
        for (row, cells) in rows {
            let is = |role: &str| cell(cells, role) == "yes";
            let changes = ["create", "update", "patch", "delete"]
                .iter()
                .any(|verb| row.contains(verb));
            let what = format!("{group}: {row}: {cells:?}");
            if group == "paths" {
                continue;
            }
            assert_eq!(
                (cell(cells, "no token"), cell(cells, "agent")),
                ("401", "401"),
                "{what}"
            );
            assert!(is("root"), "{what}");
            let about_oneself = row.starts_with("selfsubject");
            assert_eq!(
                is("anyone") || is("elsewhere") || is("monitoring"),
                about_oneself,
                "{what}"
            );
            if about_oneself {
                continue;
            }
            let holds_secrets = row.starts_with("secrets") || row.starts_with("servicecontexts");
            assert!(!(is("view") && (changes || holds_secrets)), "{what}");
            assert!(!(is("edit") && changes && group.starts_with("rbac")), "{what}");
            let wider = [is("view"), is("edit"), is("admin"), is("root")];
            assert!(wider.is_sorted(), "a wider role holds what a narrower one does: {what}");
            assert!(!(is("admin") && row.ends_with("list -A")), "{what}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_endpoint_is_asked_by_every_role() {
    let world = World::start().await;
    let mut table = Table::new();
    for question in world.questions().await {
        let mut cells = Vec::new();
        for role in ROLES {
            cells.push(world.ask(role, &question).await);
        }
        table.entry(question.group).or_default().push((question.row, cells));
    }
    check_rules(&table);
    let text = page(&table);
    if std::env::var_os("FARWATER_WRITE").is_some() {
        fs::write(PAGE, &text).unwrap();
    }
    let written = fs::read_to_string(Path::new(PAGE)).unwrap_or_default();
    assert_eq!(
        written, text,
        "docs/access.md is not what the hub answers; read the difference, then write it with FARWATER_WRITE=1"
    );
    world.served.stop().await;
}

/// What a user is answered, and its code.
async fn read_as(world: &World, user: &str, path: &str) -> (StatusCode, Value) {
    let request = Request::get(path)
        .header("impersonate-user", user)
        .body(Vec::new().into())
        .unwrap();
    let (code, body) = send(&world.admin, request).await;
    (code, serde_json::from_slice(&body).unwrap())
}

/// The names of the clusters that are granted to team-a, page by page.
async fn granted(world: &World, limit: usize) -> Vec<String> {
    let (mut names, mut next) = (Vec::new(), String::new());
    loop {
        let path = format!("{GRANTED}?limit={limit}&continue={next}");
        let (code, page) = read_as(world, "view", &path).await;
        assert_eq!(code, StatusCode::OK, "{page}");
        let items = page["items"].as_array().unwrap();
        assert!(items.len() <= limit, "{page}");
        names.extend(
            items
                .iter()
                .map(|item| item["metadata"]["name"].as_str().unwrap().to_owned()),
        );
        match page["metadata"]["continue"].as_str() {
            Some(token) => token.clone_into(&mut next),
            None => return names,
        }
    }
}

const GRANTED: &str = "/apis/farwater.dev/v1alpha1/namespaces/team-a/grantedclusters";

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_sees_the_clusters_that_are_granted_and_no_others() {
    let world = World::start().await;
    let ours = |kind: &str, metadata: Value, spec: Value| json!({"apiVersion": "farwater.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec});
    let clusters = "/apis/farwater.dev/v1alpha1/namespaces/farwater-admin/clusters";
    for (name, env) in [("east", "production"), ("west", "hidden-word"), ("north", "production")] {
        let labels = json!({"env": env, "owner": "hidden-word"});
        world
            .make(
                clusters,
                ours("Cluster", json!({"name": name, "labels": labels}), json!({})),
            )
            .await;
    }
    // A grant selects it too, but no short name of team-a means a cluster of another tenant.
    let foreign = json!({"name": "foreign", "labels": {"env": "production"}});
    world
        .make(
            &clusters.replace("farwater-admin", "team-b"),
            ours("Cluster", foreign, json!({})),
        )
        .await;
    assert!(granted(&world, 500).await.is_empty(), "without a grant there are none");
    let grants = "/apis/farwater.dev/v1alpha1/clustergrants";
    for (name, namespace, env) in [("a", "team-a", "production"), ("b", "team-b", "hidden-word")] {
        let spec = json!({
            "namespaces": [namespace], "clusterSelector": {"matchLabels": {"env": env}}, "verbs": ["deploy"],
            "serviceAccountName": "farwater",
        });
        world
            .make(grants, ours("ClusterGrant", json!({"name": name}), spec))
            .await;
    }

    assert_eq!(granted(&world, 500).await, ["east", "north"]);
    assert_eq!(granted(&world, 1).await, ["east", "north"]);
    let (_, list) = read_as(&world, "view", GRANTED).await;
    assert!(
        !list.to_string().contains("hidden-word"),
        "labels and other clusters stay hidden: {list}"
    );
    let east = &list["items"][0];
    assert_eq!(
        east["spec"]["clusterRef"],
        json!({"name": "east", "namespace": "farwater-admin"})
    );
    let ready = east["status"]["ready"].as_str().filter(|ready| *ready != "True");
    assert_eq!(
        east["status"],
        json!({"ready": ready, "connected": false}),
        "no agent has joined it"
    );
    for (name, expected) in [("east", 200), ("west", 404), ("foreign", 404), ("none", 404)] {
        let (code, one) = read_as(&world, "view", &format!("{GRANTED}/{name}")).await;
        assert_eq!(code, expected, "{name}: {one}");
        match expected {
            200 => assert_eq!(one, *east),
            // A cluster that is not granted can't be told from one that does not exist.
            _ => assert_eq!(
                one["message"],
                format!("grantedclusters.farwater.dev \"{name}\" not found")
            ),
        }
    }
    for selector in [
        "labelSelector=owner%3Dhidden-word",
        "fieldSelector=metadata.name%3Deast",
    ] {
        let (code, answer) = read_as(&world, "view", &format!("{GRANTED}?{selector}")).await;
        assert_eq!(code, StatusCode::BAD_REQUEST, "{answer}");
    }
    for (user, path) in [
        ("elsewhere", GRANTED),
        ("anyone", GRANTED),
        ("view", &GRANTED.replace("team-a", "team-b")),
    ] {
        for path in [path.to_owned(), format!("{path}/east")] {
            let (code, answer) = read_as(&world, user, &path).await;
            assert_eq!(code, StatusCode::FORBIDDEN, "{user} {path}: {answer}");
        }
    }

    // A cluster of its own comes first, and hides the administrators' one of that name.
    let own = json!({"name": "north", "labels": {"env": "production"}});
    let path = clusters.replace("farwater-admin", "team-a");
    world.make(&path, ours("Cluster", own, json!({}))).await;
    assert_eq!(granted(&world, 1).await, ["north", "east"]);
    let gone = Request::delete(format!("{path}/north"))
        .body(Vec::new().into())
        .unwrap();
    assert!(send(&world.admin, gone).await.0.is_success());

    let patch = json!({"metadata": {"labels": {"env": "hidden-word"}}})
        .to_string()
        .into_bytes();
    let moved = Request::patch(format!("{clusters}/north")).header("content-type", "application/merge-patch+json");
    assert!(
        send(&world.admin, moved.body(patch.into()).unwrap())
            .await
            .0
            .is_success()
    );
    assert_eq!(
        granted(&world, 500).await,
        ["east"],
        "a cluster that the grant does not select any more is gone at once"
    );
    let gone = Request::delete(format!("{grants}/a")).body(Vec::new().into()).unwrap();
    assert!(send(&world.admin, gone).await.0.is_success());
    assert!(
        granted(&world, 500).await.is_empty(),
        "a grant that is taken away shows nothing any more"
    );
    let (code, answer) = read_as(&world, "view", &format!("{GRANTED}/east")).await;
    assert_eq!(code, StatusCode::NOT_FOUND, "{answer}");
    world.served.stop().await;
}
