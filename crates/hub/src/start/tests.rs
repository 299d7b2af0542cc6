//! The hub as clients see it: over TLS, with the authority of its kubeconfig.

mod slow_clients;
mod watches;

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use bytes::Bytes;
use farwater_testkit::postgres;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Empty, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::{CertificateDer, ServerName, pem::PemObject as _};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::{io::AsyncReadExt as _, net::TcpStream};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::*;
use crate::config::Patience;

/// For a hub that stops at once, even on a busy machine.
const STOP: Duration = Duration::from_secs(60);
/// Time for running requests at the stop: the test would notice a stop that waits this long.
const DRAIN: Duration = Duration::from_secs(600);

fn config(directory: &Path) -> Config {
    let args = HubArgs {
        data_dir: Some(directory.to_owned()),
        listen: Some("127.0.0.1:0".parse().unwrap()),
        metrics_listen: Some("127.0.0.1:0".parse().unwrap()),
        ..HubArgs::default()
    };
    args.resolve().unwrap()
}

fn on_postgres(directory: &Path, url: &str) -> Config {
    let mut config = config(directory);
    config.database = Some(farwater_store::PostgresUrl::parse(url).unwrap());
    config
}

/// The contents of a kubeconfig.
struct Client {
    address: SocketAddr,
    server: String,
    authority: CertificateDer<'static>,
    token: String,
}

struct Answer {
    code: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

impl Client {
    fn of(running: &Running) -> Self {
        let text = fs::read_to_string(&running.admin_kubeconfig).unwrap();
        let kubeconfig: Value = serde_saphyr::from_str(&text).unwrap();
        let cluster = &kubeconfig["clusters"][0]["cluster"];
        let authority = BASE64
            .decode(cluster["certificate-authority-data"].as_str().unwrap())
            .unwrap();
        assert_eq!(kubeconfig["current-context"], "farwater");
        assert_eq!(kubeconfig["contexts"][0]["context"]["namespace"], "farwater-admin");
        Self {
            address: running.address,
            server: cluster["server"].as_str().unwrap().to_owned(),
            authority: CertificateDer::from_pem_slice(&authority).unwrap(),
            token: kubeconfig["users"][0]["user"]["token"].as_str().unwrap().to_owned(),
        }
    }

    async fn connect(&self, name: &str, alpn: &[&str]) -> std::io::Result<TlsStream<TcpStream>> {
        let mut roots = RootCertStore::empty();
        roots.add(self.authority.clone()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        let stream = TcpStream::connect(self.address).await?;
        let name = ServerName::try_from(name.to_owned()).unwrap();
        TlsConnector::from(Arc::new(config)).connect(name, stream).await
    }

    async fn send(&self, request: Request<Full<Bytes>>) -> Answer {
        let stream = self.connect("127.0.0.1", &["http/1.1"]).await.unwrap();
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let (head, body) = sender.send_request(request).await.unwrap().into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Answer {
            code: head.status,
            headers: head.headers,
            body,
        }
    }

    fn request(&self, method: Method, path: &str) -> http::request::Builder {
        Request::builder().method(method).uri(path).header("host", "hub")
    }

    async fn anonymous(&self, method: Method, path: &str) -> Answer {
        self.send(self.request(method, path).body(Full::default()).unwrap())
            .await
    }

    async fn get(&self, path: &str) -> Answer {
        self.with_header(path, "accept", "application/json").await
    }

    async fn with_header(&self, path: &str, name: &str, value: &str) -> Answer {
        let builder = self
            .request(Method::GET, path)
            .header("authorization", format!("Bearer {}", self.token));
        self.send(builder.header(name, value).body(Full::default()).unwrap())
            .await
    }
}

#[tokio::test]
async fn first_start_makes_everything_and_a_restart_keeps_it() {
    let directory = tempfile::tempdir().unwrap();
    let running = start(config(directory.path())).await.unwrap();
    let first = Client::of(&running);
    assert_eq!(first.server, format!("https://{}", running.address));
    assert_eq!(
        fs::metadata(&running.admin_kubeconfig).unwrap().permissions().mode() & 0o777,
        0o600
    );
    assert_eq!(first.get("/readyz").await.body, "ok");
    let installation = running.hub.identity.installation().to_owned();
    let position = running.hub.store.position();
    running.stop().await;

    let running = start(config(directory.path())).await.unwrap();
    let second = Client::of(&running);
    assert_eq!(second.token, first.token);
    assert_eq!(second.authority, first.authority);
    assert_eq!(running.hub.identity.installation(), installation);
    assert_eq!(running.hub.store.position(), position);
    // The port has changed, and the kubeconfig has the new one.
    assert_eq!(second.server, format!("https://{}", running.address));
    assert_eq!(second.get("/metrics").await.code, 200);
    running.stop().await;
}

#[test]
fn a_listener_on_every_address_that_advertises_the_loopback_is_told_the_option() {
    let address: SocketAddr = "0.0.0.0:8443".parse().unwrap();
    let warning = unreachable_warning(address, &Advertise::of_listener(address));
    assert!(
        warning.contains("is https://127.0.0.1:8443, which only this machine reaches"),
        "{warning}"
    );
    assert!(
        warning.contains("give --advertise https://HOST:8443 (FARWATER_ADVERTISE)"),
        "{warning}"
    );
}

#[tokio::test]
async fn a_removed_kubeconfig_is_made_again_and_a_broken_one_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let running = start(config(directory.path())).await.unwrap();
    let path = running.admin_kubeconfig.clone();
    let first = Client::of(&running).token;
    running.stop().await;

    fs::remove_file(&path).unwrap();
    let running = start(config(directory.path())).await.unwrap();
    let mut client = Client::of(&running);
    assert_ne!(client.token, first);
    assert_eq!(client.get("/metrics").await.code, 200);
    // The old token may be in use in a copy of the file.
    client.token = first;
    assert_eq!(client.get("/metrics").await.code, 200);
    running.stop().await;

    fs::write(&path, "clusters: 5\n").unwrap();
    let error = start(config(directory.path())).await.err().unwrap();
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert!(
        source.contains("admin.kubeconfig") && source.contains("remove the file"),
        "{source}"
    );
}

#[tokio::test]
async fn a_second_hub_on_the_same_directory_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let running = start(config(directory.path())).await.unwrap();
    let error = start(config(directory.path())).await.err().unwrap().to_string();
    assert!(error.contains("another hub is running on it"), "{error}");
    assert_eq!(Client::of(&running).get("/readyz").await.code, 200);
    running.stop().await;
    start(config(directory.path())).await.unwrap().stop().await;
}

#[tokio::test]
async fn a_lost_key_stops_the_start() {
    let directory = tempfile::tempdir().unwrap();
    start(config(directory.path())).await.unwrap().stop().await;
    let key = directory.path().join("keys/seal.key");
    fs::remove_file(&key).unwrap();
    let error = start(config(directory.path())).await.err().unwrap().to_string();
    assert!(
        error.contains("seal.key is missing though the database exists"),
        "{error}"
    );
    assert!(!key.exists());
}

#[tokio::test]
async fn the_chain_ends_in_the_pinned_authority() {
    let directory = tempfile::tempdir().unwrap();
    let running = start(config(directory.path())).await.unwrap();
    let client = Client::of(&running);
    for name in ["127.0.0.1", "localhost", "::1"] {
        let stream = client.connect(name, &["h2", "http/1.1"]).await.unwrap();
        let (_, session) = stream.get_ref();
        assert_eq!(session.alpn_protocol(), Some(b"h2".as_slice()));
        let chain = session.peer_certificates().unwrap();
        assert_eq!(chain.len(), 2);
        let pin = format!("sha256:{}", hex::encode(Sha256::digest(&chain[1])));
        assert_eq!(pin, running.hub.identity.ca_pin());
    }
    assert!(client.connect("hub.example.com", &[]).await.is_err());
    let stranger = tempfile::tempdir().unwrap();
    let other = start(config(stranger.path())).await.unwrap();
    let wrong = Client {
        authority: Client::of(&other).authority,
        ..client
    };
    assert!(wrong.connect("127.0.0.1", &[]).await.is_err());
    other.stop().await;
    running.stop().await;
}

#[tokio::test]
async fn http2_is_served() {
    let directory = tempfile::tempdir().unwrap();
    let running = start(config(directory.path())).await.unwrap();
    let client = Client::of(&running);
    let stream = client.connect("127.0.0.1", &["h2"]).await.unwrap();
    let executor = hyper_util::rt::TokioExecutor::new();
    let (mut sender, connection) = hyper::client::conn::http2::handshake(executor, TokioIo::new(stream))
        .await
        .unwrap();
    tokio::spawn(connection);
    let request = Request::get("https://hub/version").body(Empty::<Bytes>::new()).unwrap();
    let answer = sender.send_request(request).await.unwrap();
    assert_eq!(answer.status(), 200);
    let version: Value = serde_json::from_slice(&answer.collect().await.unwrap().to_bytes()).unwrap();
    assert!(version["gitVersion"].as_str().unwrap().starts_with("v1.33.0+farwater."));
    running.stop().await;
}

#[tokio::test]
async fn only_health_version_and_the_page_are_anonymous() {
    let directory = tempfile::tempdir().unwrap();
    let running = start(config(directory.path())).await.unwrap();
    let client = Client::of(&running);
    let check = async |path: &str, code: u16| {
        let answer = client.anonymous(Method::GET, path).await;
        assert_eq!(answer.code, code, "{path}");
        if code != 401 {
            return;
        }
        let status = answer.json();
        assert_eq!(answer.headers["content-type"], "application/json");
        assert_eq!(answer.headers["www-authenticate"], "Bearer realm=\"farwater\"");
        assert_eq!(status["kind"], "Status");
        assert_eq!(status["apiVersion"], "v1");
        assert_eq!(status["status"], "Failure");
        assert_eq!(status["reason"], "Unauthorized");
        assert_eq!(status["code"], 401);
    };
    for path in ["/healthz", "/livez", "/readyz", "/version", "/ui/"] {
        check(path, 200).await;
    }
    check("/", 307).await;
    for path in [
        "/metrics",
        "/api",
        "/api/v1",
        "/api/v1/namespaces",
        "/apis",
        "/apis/farwater.dev/v1alpha1/clusters",
        "/openapi/v2",
        "/openapi/v3",
        "/no-such-path",
        "/healthz/../api",
        "/%61pi",
        "//api/v1/namespaces",
        "/version/x",
        "/debug/pprof",
    ] {
        check(path, 401).await;
    }
    for method in [Method::POST, Method::PUT, Method::DELETE, Method::PATCH] {
        assert_eq!(client.anonymous(method, "/api/v1/namespaces").await.code, 401);
    }
    let wrong = Client {
        token: format!("{}x", client.token),
        ..Client::of(&running)
    };
    assert_eq!(wrong.get("/metrics").await.code, 401);
    running.stop().await;
}

#[tokio::test]
async fn metrics_need_the_right_and_the_loopback_listener_needs_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let running = start(config(directory.path())).await.unwrap();
    let client = Client::of(&running);
    client.get("/version").await;
    let text = String::from_utf8(client.get("/metrics").await.body.to_vec()).unwrap();
    for name in [
        "farwater_build_info",
        "farwater_http_requests_total",
        "farwater_store_position",
        "farwater_watches",
        "farwater_reconciles_total{controller=\"assign_revisions\"} ",
        "farwater_reconcile_errors_total{controller=\"fetch_sources\"} ",
        "farwater_queue_depth{controller=\"track_clusters\"} ",
    ] {
        assert!(text.contains(name), "{name} is missing:\n{text}");
    }

    let stream = TcpStream::connect(running.metrics_address.unwrap()).await.unwrap();
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let request = Request::get("/metrics")
        .header("host", "hub")
        .body(Empty::<Bytes>::new())
        .unwrap();
    assert_eq!(sender.send_request(request).await.unwrap().status(), 200);

    let owner = crate::auth::TokenOwner {
        namespace: "a".into(),
        name: "b".into(),
        uid: "u".into(),
    };
    let account = serde_json::json!({
        "apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "b", "namespace": "a", "uid": "u"},
    });
    let key = farwater_store::Key {
        kind: farwater_store::Kind::new("serviceaccounts", ""),
        namespace: "a".into(),
        name: "b".into(),
    };
    let change = farwater_store::Change::Create(account);
    running
        .hub
        .store
        .write(farwater_store::Write { key, change })
        .await
        .unwrap();
    let issued = running
        .hub
        .access
        .issue_token(&owner, None, Timestamp::now())
        .await
        .unwrap();
    let powerless = Client {
        token: issued.token.to_string(),
        ..Client::of(&running)
    };
    let answer = powerless.get("/metrics").await;
    let status = answer.json();
    assert_eq!(
        (answer.code.as_u16(), status["reason"].as_str().unwrap()),
        (403, "Forbidden")
    );
    assert_eq!(
        status["message"],
        "forbidden: User \"system:serviceaccount:a:b\" cannot get path \"/metrics\""
    );
    assert_eq!(powerless.get("/no-such-path").await.code, 404);
    running.stop().await;
}

#[tokio::test]
async fn impersonation_is_for_the_api_and_refused_elsewhere() {
    let directory = tempfile::tempdir().unwrap();
    let running = start(config(directory.path())).await.unwrap();
    let client = Client::of(&running);
    for (name, value) in [
        ("Impersonate-User", "somebody"),
        ("Impersonate-Group", "system:masters"),
        ("impersonate-uid", "1"),
        ("Impersonate-Extra-Scopes", "view"),
    ] {
        let answer = client.with_header("/agent/v1/desired", name, value).await;
        assert_eq!(answer.code, 403, "{name}");
        assert!(
            answer.json()["message"]
                .as_str()
                .unwrap()
                .contains("impersonation is for the API alone")
        );
    }
    let answer = client
        .with_header("/api/v1/namespaces", "impersonate-user", "somebody")
        .await;
    assert_eq!(answer.code, 403);
    assert!(
        answer.json()["message"]
            .as_str()
            .unwrap()
            .contains("User \"somebody\" cannot list")
    );
    running.stop().await;
}

#[tokio::test]
async fn requests_carry_an_id() {
    let directory = tempfile::tempdir().unwrap();
    let running = start(config(directory.path())).await.unwrap();
    let client = Client::of(&running);
    let id = |answer: &Answer| answer.headers["x-request-id"].to_str().unwrap().to_owned();
    assert_eq!(
        id(&client.with_header("/version", "x-request-id", "build-7.a_b").await),
        "build-7.a_b"
    );
    let replaced = id(&client.with_header("/version", "x-request-id", "spaces and more").await);
    assert_eq!(replaced.len(), 32);
    assert_ne!(id(&client.get("/version").await), replaced);
    running.stop().await;
}

#[tokio::test]
async fn heads_over_the_limit_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let running = start(config(directory.path())).await.unwrap();
    let client = Client::of(&running);
    assert_eq!(
        client
            .with_header("/version", "x-filler", &"a".repeat(20 << 10))
            .await
            .code,
        200
    );
    assert_eq!(
        client
            .with_header("/version", "x-filler", &"a".repeat(40 << 10))
            .await
            .code,
        431
    );
    running.stop().await;
}

#[tokio::test]
async fn connections_beyond_the_limit_wait() {
    let directory = tempfile::tempdir().unwrap();
    let running = start(Config {
        max_connections: 2,
        ..config(directory.path())
    })
    .await
    .unwrap();
    let client = Client::of(&running);
    // Authenticated connections: others would be closed to make room.
    let known = async || {
        let stream = client.connect("127.0.0.1", &["http/1.1"]).await.unwrap();
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let request = client.request(Method::GET, "/api/v1/namespaces");
        let request = request.header("authorization", format!("Bearer {}", client.token));
        let answer = sender
            .send_request(request.body(Full::<Bytes>::default()).unwrap())
            .await
            .unwrap();
        assert_eq!(answer.status(), 200);
        answer.into_body().collect().await.unwrap();
        sender
    };
    let first = known().await;
    let second = known().await;
    let waits = tokio::time::timeout(Duration::from_millis(300), client.anonymous(Method::GET, "/livez")).await;
    assert!(waits.is_err());
    drop((first, second));
    assert_eq!(client.anonymous(Method::GET, "/livez").await.code, 200);
    running.stop().await;
}

#[tokio::test]
async fn clients_that_send_nothing_are_closed() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = config(directory.path());
    config.patience = Patience {
        handshake: Duration::from_millis(200),
        first_request: Duration::from_millis(200),
    };
    let running = start(config).await.unwrap();
    let client = Client::of(&running);
    let bound = Duration::from_secs(10);
    let mut buffer = Vec::new();
    let mut plain = TcpStream::connect(running.address).await.unwrap();
    let _ = tokio::time::timeout(bound, plain.read_to_end(&mut buffer))
        .await
        .unwrap();
    for protocol in ["http/1.1", "h2"] {
        let mut silent = client.connect("127.0.0.1", &[protocol]).await.unwrap();
        let _ = tokio::time::timeout(bound, silent.read_to_end(&mut buffer))
            .await
            .unwrap();
    }
    running.stop().await;
}

#[tokio::test]
async fn a_stop_closes_idle_connections_and_waits_for_none() {
    let directory = tempfile::tempdir().unwrap();
    let running = start(Config {
        drain: DRAIN,
        ..config(directory.path())
    })
    .await
    .unwrap();
    let client = Client::of(&running);
    let mut idle = client.connect("127.0.0.1", &["http/1.1"]).await.unwrap();
    let address = running.address;
    tokio::time::timeout(STOP, running.stop()).await.unwrap();
    let mut buffer = Vec::new();
    assert!(!matches!(idle.read_to_end(&mut buffer).await, Ok(read) if read > 0));
    assert!(TcpStream::connect(address).await.is_err());
}

impl Client {
    async fn call(&self, method: Method, path: &str, body: Value) -> Answer {
        let builder = self
            .request(method, path)
            .header("authorization", format!("Bearer {}", self.token));
        let body = Full::from(body.to_string());
        self.send(builder.header("content-type", "application/json").body(body).unwrap())
            .await
    }

    /// A client with the token of a new service account in a namespace.
    async fn account(&self, namespace: &str, name: &str) -> Self {
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts");
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}});
        assert_eq!(self.call(Method::POST, &path, account).await.code, 201);
        let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}});
        let answer = self.call(Method::POST, &format!("{path}/{name}/token"), request).await;
        assert_eq!(answer.code, 201, "{:?}", answer.body);
        let token = answer.json()["status"]["token"].as_str().unwrap().to_owned();
        Self {
            address: self.address,
            server: self.server.clone(),
            authority: self.authority.clone(),
            token,
        }
    }

    async fn make(&self, path: &str, object: Value, code: u16) -> Value {
        let answer = self.call(Method::POST, path, object).await;
        assert_eq!(answer.code, code, "{path}: {:?}", answer.body);
        answer.json()
    }
}

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

fn role(name: &str, resource: &str, verb: &str) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": name},
        "rules": [{"apiGroups": [""], "resources": [resource], "verbs": [verb]}],
    })
}

fn binding(name: &str, kind: &str, role: &str, account: &str) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role},
        "subjects": [{"kind": "ServiceAccount", "namespace": "team-a", "name": account}],
    })
}

#[tokio::test]
async fn tenants_do_what_their_roles_allow_and_grant_no_more() {
    let directory = tempfile::tempdir().unwrap();
    let running = start(config(directory.path())).await.unwrap();
    let admin = Client::of(&running);
    for namespace in ["team-a", "team-b"] {
        let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
        admin.make("/api/v1/namespaces", object, 201).await;
    }
    let tenant = admin.account("team-a", "tenant").await;
    let secrets = |namespace: &str| format!("/api/v1/namespaces/{namespace}/secrets");
    let roles = format!("{RBAC}/namespaces/team-a/roles");
    let bindings = format!("{RBAC}/namespaces/team-a/rolebindings");

    let refused = tenant.get(&secrets("team-a")).await;
    assert_eq!(refused.code, 403);
    let status = refused.json();
    assert_eq!(status["reason"], "Forbidden");
    assert_eq!(
        status["message"],
        "secrets is forbidden: User \"system:serviceaccount:team-a:tenant\" cannot list resource \"secrets\" in API group \
         \"\" in the namespace \"team-a\""
    );
    // Names and namespaces that don't exist get the same answer.
    assert_eq!(tenant.get(&format!("{}/none", secrets("team-a"))).await.code, 403);
    assert_eq!(tenant.get(&secrets("no-such")).await.code, 403);
    assert_eq!(tenant.get("/api").await.code, 200);

    // The very next request sees it.
    admin
        .make(&bindings, binding("tenant", "ClusterRole", "admin", "tenant"), 201)
        .await;
    assert_eq!(tenant.get(&secrets("team-a")).await.code, 200);
    assert_eq!(tenant.get(&secrets("team-b")).await.code, 403);
    assert_eq!(tenant.get("/api/v1/secrets").await.code, 403);

    tenant.make(&roles, role("reads", "configmaps", "get"), 201).await;
    let refused = tenant
        .make(&roles, role("mighty", "configmaps", "impersonate"), 403)
        .await;
    let message = refused["message"].as_str().unwrap();
    assert!(
        message.contains("attempting to grant RBAC permissions not currently held"),
        "{message}"
    );
    tenant
        .make(&bindings, binding("friend", "ClusterRole", "edit", "friend"), 201)
        .await;
    tenant
        .make(
            &bindings,
            binding("boss", "ClusterRole", "cluster-admin", "friend"),
            403,
        )
        .await;
    tenant
        .make(
            &format!("{RBAC}/namespaces/team-b/roles"),
            role("r", "configmaps", "get"),
            403,
        )
        .await;
    tenant
        .make(&format!("{RBAC}/clusterroles"), role("r", "configmaps", "get"), 403)
        .await;

    let review = json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {"verb": "get", "resource": "secrets", "namespace": "team-a"}},
    });
    let answer = tenant
        .make("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review, 201)
        .await;
    assert_eq!(answer["status"]["allowed"], true);
    assert_eq!(
        answer["status"]["reason"],
        "RBAC: allowed by RoleBinding \"tenant/team-a\" of ClusterRole \"admin\" to ServiceAccount \"tenant/team-a\""
    );

    assert_eq!(
        admin
            .call(Method::DELETE, &format!("{bindings}/tenant"), json!({}))
            .await
            .code,
        200
    );
    assert_eq!(tenant.get(&secrets("team-a")).await.code, 403);
    let account = "/api/v1/namespaces/team-a/serviceaccounts/tenant";
    assert_eq!(admin.call(Method::DELETE, account, json!({})).await.code, 200);
    assert_eq!(tenant.get(&secrets("team-a")).await.code, 401);
    running.stop().await;
}

#[tokio::test]
async fn a_stop_ends_watches_without_cutting_them() {
    let directory = tempfile::tempdir().unwrap();
    let running = start(Config {
        drain: DRAIN,
        ..config(directory.path())
    })
    .await
    .unwrap();
    let client = Client::of(&running);
    let stream = client.connect("127.0.0.1", &["http/1.1"]).await.unwrap();
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let request = client
        .request(Method::GET, "/api/v1/namespaces?watch=true")
        .header("authorization", format!("Bearer {}", client.token))
        .body(Full::<Bytes>::default())
        .unwrap();
    let answer = sender.send_request(request).await.unwrap();
    assert_eq!(answer.status(), 200);
    let mut body = answer.into_body();
    let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
    let text = String::from_utf8(client.get("/metrics").await.body.to_vec()).unwrap();
    assert!(text.contains("farwater_watches 1"), "{text}");

    let stopped = async { tokio::join!(body.collect(), running.stop()) };
    let (rest, ()) = tokio::time::timeout(STOP, stopped).await.unwrap();
    // Collected to its regular end: a connection that breaks is an error here.
    let all = [first, rest.unwrap().to_bytes()].concat();
    for line in String::from_utf8(all).unwrap().lines() {
        serde_json::from_str::<Value>(line).unwrap();
    }
}

#[tokio::test]
async fn a_cluster_is_invited_by_those_who_may() {
    let directory = tempfile::tempdir().unwrap();
    let running = start(config(directory.path())).await.unwrap();
    let admin = Client::of(&running);
    let clusters = "/apis/farwater.dev/v1alpha1/namespaces/farwater-admin/clusters";
    let cluster = json!({
        "apiVersion": "farwater.dev/v1alpha1", "kind": "Cluster", "metadata": {"name": "east"}, "spec": {},
    });
    admin.make(clusters, cluster, 201).await;
    let invitation = admin.make(&format!("{clusters}/east/join"), json!({}), 201).await;
    assert_eq!(invitation["caPin"], running.hub.identity.ca_pin());
    assert_eq!(invitation["hub"], admin.server);
    assert!(
        invitation["command"]
            .as_str()
            .unwrap()
            .starts_with("farwater-agent --hub https://127.0.0.1:")
    );
    admin.make(&format!("{clusters}/west/join"), json!({}), 404).await;
    let viewer = admin.account("farwater-admin", "viewer").await;
    viewer.make(&format!("{clusters}/east/join"), json!({}), 403).await;
    // The refusal of an agent without a token comes from the agents' endpoints, not from the API.
    let answer = viewer.anonymous(Method::GET, "/agent/v1/desired").await;
    assert_eq!(
        (answer.code.as_u16(), answer.json()["reason"].as_str().unwrap()),
        (401, "TokenUnknown")
    );
    running.stop().await;
}

async fn patch_as(client: &Client, path: &str, patch: Value) -> StatusCode {
    let builder = client.request(Method::PATCH, path);
    let builder = builder.header("authorization", format!("Bearer {}", client.token));
    let builder = builder.header("content-type", "application/merge-patch+json");
    client
        .send(builder.body(Full::from(patch.to_string())).unwrap())
        .await
        .code
}

/// A Git host sees the credentials that it is sent, and a cluster the Secrets that it gets.
#[tokio::test]
async fn who_has_a_secret_sent_somewhere_must_be_allowed_to_read_it() {
    let directory = tempfile::tempdir().unwrap();
    let running = start(config(directory.path())).await.unwrap();
    let admin = Client::of(&running);
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team-a"}});
    admin.make("/api/v1/namespaces", namespace, 201).await;
    let tenant = admin.account("team-a", "tenant").await;
    let (roles, bindings) = (
        format!("{RBAC}/namespaces/team-a/roles"),
        format!("{RBAC}/namespaces/team-a/rolebindings"),
    );
    let allowed = |name: &str, resource: &str| {
        let mut role = role(name, resource, "*");
        role["rules"][0]["apiGroups"] = json!(["farwater.dev"]);
        role
    };
    admin.make(&roles, allowed("sources", "gitrepositories"), 201).await;
    admin
        .make(&bindings, binding("sources", "Role", "sources", "tenant"), 201)
        .await;

    let path = "/apis/farwater.dev/v1alpha1/namespaces/team-a/gitrepositories";
    let source = |url: &str, secret: Option<&str>| {
        json!({
            "apiVersion": "farwater.dev/v1alpha1", "kind": "GitRepository", "metadata": {"name": "infra"},
            "spec": {"url": url, "secretRef": secret.map(|name| json!({"name": name}))},
        })
    };
    let refused = tenant
        .make(path, source("https://git.example.com/a", Some("git")), 403)
        .await;
    let message = refused["message"].as_str().unwrap();
    assert!(
        message.contains("it names Secret git, which system:serviceaccount:team-a:tenant may not get"),
        "{message}"
    );
    admin
        .make(path, source("https://git.example.com/a", Some("git")), 201)
        .await;

    // A tenant may edit the administrator's choice, but not send it to another host.
    let patched = async |patch: Value| patch_as(&tenant, &format!("{path}/infra"), patch).await;
    assert_eq!(patched(json!({"spec": {"interval": "5m"}})).await, 200);
    assert_eq!(
        patched(json!({"spec": {"url": "https://evil.example.com/a"}})).await,
        403
    );
    admin.make(&roles, role("reads", "secrets", "get"), 201).await;
    admin
        .make(&bindings, binding("reads", "Role", "reads", "tenant"), 201)
        .await;
    assert_eq!(
        patched(json!({"spec": {"url": "https://git.example.com/b"}})).await,
        200
    );

    // The same for Secrets that a service takes to its cluster, and for the namespace there.
    admin.make(&roles, allowed("services", "servicedeployments"), 201).await;
    admin
        .make(&bindings, binding("services", "Role", "services", "tenant"), 201)
        .await;
    assert_eq!(
        admin
            .call(Method::DELETE, &format!("{bindings}/reads"), json!({}))
            .await
            .code,
        200
    );
    let grant = json!({
        "apiVersion": "farwater.dev/v1alpha1", "kind": "ClusterGrant", "metadata": {"name": "team-a"},
        "spec": {"clusterSelector": {}, "namespaces": ["team-a"], "verbs": ["deploy"], "serviceAccountName": "team-a/deployer"},
    });
    admin
        .make("/apis/farwater.dev/v1alpha1/clustergrants", grant, 201)
        .await;
    let path = "/apis/farwater.dev/v1alpha1/namespaces/team-a/servicedeployments";
    let service = json!({
        "apiVersion": "farwater.dev/v1alpha1", "kind": "ServiceDeployment", "metadata": {"name": "web"},
        "spec": {
            "clusterRef": {"name": "east"}, "targetNamespace": "web", "sourceRef": {"name": "infra"},
            "secrets": [{"name": "database"}],
        },
    });
    tenant.make(path, service.clone(), 403).await;
    admin.make(path, service, 201).await;
    let patched = async |patch: Value| patch_as(&tenant, &format!("{path}/web"), patch).await;
    assert_eq!(patched(json!({"spec": {"suspend": true}})).await, 200);
    assert_eq!(patched(json!({"spec": {"targetNamespace": "mine"}})).await, 403);
    assert_eq!(patched(json!({"spec": {"secrets": [{"name": "other"}]}})).await, 403);
    assert_eq!(patched(json!({"spec": {"secrets": null}})).await, 200);

    // The same for the receiver of messages that carry a token.
    admin
        .make(&roles, allowed("providers", "notificationproviders"), 201)
        .await;
    admin
        .make(&bindings, binding("providers", "Role", "providers", "tenant"), 201)
        .await;
    let path = "/apis/farwater.dev/v1alpha1/namespaces/team-a/notificationproviders";
    let provider = json!({
        "apiVersion": "farwater.dev/v1alpha1", "kind": "NotificationProvider", "metadata": {"name": "code"},
        "spec": {"type": "gitea", "address": "https://git.example.com/a/b", "secretRef": {"name": "token"}},
    });
    tenant.make(path, provider.clone(), 403).await;
    admin.make(path, provider, 201).await;
    let patched = async |patch: Value| patch_as(&tenant, &format!("{path}/code"), patch).await;
    assert_eq!(patched(json!({"spec": {"suspend": true}})).await, 200);
    assert_eq!(
        patched(json!({"spec": {"address": "https://evil.example.com/a/b"}})).await,
        403
    );
    running.stop().await;
}

#[tokio::test]
async fn a_database_of_a_server_has_one_hub() {
    let url = postgres::shared().await.unwrap().create_database().await.unwrap();
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let first = start(on_postgres(one.path(), &url)).await.unwrap();
    let answer = Client::of(&first).get("/api/v1/namespaces/farwater-admin").await;
    assert_eq!(answer.code, StatusCode::OK);
    let Err(error) = start(on_postgres(two.path(), &url)).await else {
        panic!("it was started")
    };
    let HubError::Open(locked @ OpenError::Locked { .. }) = error else {
        panic!("{error:?}")
    };
    assert!(
        locked.to_string().ends_with("another hub is using the database"),
        "{locked}"
    );
    first.stop().await;
    // Its keys are different.
    let Err(error) = start(on_postgres(two.path(), &url)).await else {
        panic!("it was started")
    };
    assert!(matches!(error, HubError::Open(OpenError::WrongKey { .. })), "{error:?}");
    start(on_postgres(one.path(), &url)).await.unwrap().stop().await;
}

#[tokio::test]
async fn keys_are_never_made_anew_beside_a_database_of_a_server() {
    let url = postgres::shared().await.unwrap().create_database().await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    start(on_postgres(directory.path(), &url)).await.unwrap().stop().await;
    assert!(!directory.path().join("hub.db").exists());
    fs::remove_file(directory.path().join("keys/signing.key")).unwrap();
    let Err(error) = start(on_postgres(directory.path(), &url)).await else {
        panic!("it was started")
    };
    assert!(
        matches!(error, HubError::Identity(IdentityError::Missing { .. })),
        "{error:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hub_whose_database_is_gone_says_so_and_goes_on_once_it_is_back() {
    let mut server = postgres::Postgres::start_unsynced().await.unwrap();
    let url = server.create_database().await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let running = start(on_postgres(directory.path(), &url)).await.unwrap();
    let client = Client::of(&running);
    let maps = "/api/v1/namespaces/farwater-admin/configmaps";
    assert_eq!(client.get(maps).await.code, StatusCode::OK);
    server.kill9().await.unwrap();
    let answer = client.get(maps).await;
    assert_eq!(answer.code, StatusCode::SERVICE_UNAVAILABLE);
    // The sender is unknown, so the answer gives no details; the log says why.
    assert_eq!(answer.json()["message"], "the token could not be looked up");
    assert_eq!(client.get("/readyz").await.code, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(
        client.get("/livez").await.code,
        StatusCode::OK,
        "a restart of the hub would help nobody"
    );
    server.restart().await.unwrap();
    let started = Instant::now();
    while client.get("/readyz").await.code != StatusCode::OK {
        assert!(started.elapsed() < Duration::from_secs(60), "it did not come back");
    }
    assert_eq!(client.get(maps).await.code, StatusCode::OK);

    // While writes fail, existing objects are served.
    server
        .set_read_only(url.rsplit('/').next().unwrap(), true)
        .await
        .unwrap();
    let refused = client
        .call(Method::POST, maps, json!({"metadata": {"name": "a"}}))
        .await;
    assert_eq!(refused.code, StatusCode::SERVICE_UNAVAILABLE);
    let message = refused.json()["message"].as_str().unwrap().to_owned();
    assert!(
        message.contains("the database is read-only") && !message.contains(postgres::PASSWORD),
        "{message}"
    );
    assert_eq!(client.get(maps).await.code, StatusCode::OK);
    running.stop().await;
}
