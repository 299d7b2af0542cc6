use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    fs,
    sync::{Arc, Mutex},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use farwater_api::{
    SECRET_CONTENT,
    protocol::{ClusterIdentity, JoinAnswer, SealedSecrets, TokenAnswer},
    succession::Position,
};
use farwater_testkit::{authority::Authority, https};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use rustls::crypto::{
    aws_lc_rs::hpke::DH_KEM_X25519_HKDF_SHA256_AES_256,
    hpke::{Hpke as _, HpkePublicKey},
};
use serde_json::Value;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpListener,
};
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::{
    identity::{Keys, Presence},
    sync::lock,
    tls::Trust,
};

const SERVICE: &str = "uid-web";

/// The parts of a hub and an API server that serve sealed documents.
#[derive(Default)]
struct Servers {
    /// Documents that the hub gives out. It refuses others, as if no entry named them.
    given: BTreeSet<&'static str>,
    sealing_key: String,
    /// The agent's own Secrets, by name.
    secrets: BTreeMap<String, Value>,
    /// Methods that the API server fails.
    failing: Vec<Method>,
}

impl Servers {
    fn answer(&mut self, method: &Method, path: &str, body: &[u8]) -> (StatusCode, Value) {
        let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
        match parts[..] {
            ["agent", "v1", "token"] => {
                let answer = TokenAnswer {
                    token: "access".into(),
                    expires_in: 600,
                    hub_time: 0,
                };
                (StatusCode::OK, json!(answer))
            }
            ["agent", "v1", kind, SERVICE, mac] => match self.given.iter().find(|text| mac_of(text).to_string() == mac)
            {
                Some(text) => (StatusCode::OK, json!(self.seal(kind, text))),
                None => (StatusCode::FORBIDDEN, json!({"reason": "NotDesired", "message": ""})),
            },
            _ if self.failing.contains(method) => (StatusCode::INTERNAL_SERVER_ERROR, json!({})),
            ["api", "v1", "namespaces", "farwater-system", "secrets", ref name @ ..] => {
                self.answer_secret(method, name.first().copied(), body)
            }
            _ => panic!("{method} {path}"),
        }
    }

    fn seal(&self, kind: &str, text: &str) -> SealedSecrets {
        let mac = mac_of(text);
        let (info, plain) = match kind {
            "secrets" => {
                let value = json!({"type": "Opaque", "data": {"password": STANDARD.encode(text)}});
                (SealedSecrets::info("i", "c", SERVICE, &mac), json!({"database": value}))
            }
            "parameters" => (
                SealedSecrets::info_of_parameters("i", "c", SERVICE, &mac),
                json!({"values": {"said": text}}),
            ),
            _ => panic!("{kind}"),
        };
        let key = HpkePublicKey(STANDARD.decode(&self.sealing_key).unwrap());
        let sealed = DH_KEM_X25519_HKDF_SHA256_AES_256.seal(&info, &[], plain.to_string().as_bytes(), &key);
        let (encapsulated, ciphertext) = sealed.unwrap();
        SealedSecrets {
            encapsulated: STANDARD.encode(encapsulated.0),
            ciphertext: STANDARD.encode(ciphertext),
        }
    }

    fn answer_secret(&mut self, method: &Method, name: Option<&str>, body: &[u8]) -> (StatusCode, Value) {
        let sent: Value = serde_json::from_slice(body).unwrap_or_default();
        let name = name.or(sent["metadata"]["name"].as_str()).unwrap().to_owned();
        match (method, self.secrets.get(&name)) {
            (&Method::POST, Some(_)) => (StatusCode::CONFLICT, json!({})),
            (&Method::POST, None) | (&Method::PATCH, Some(_)) => {
                self.secrets.insert(name, sent.clone());
                (StatusCode::OK, sent)
            }
            (_, None) => (StatusCode::NOT_FOUND, json!({})),
            (&Method::DELETE, _) => (StatusCode::OK, self.secrets.remove(&name).unwrap()),
            (_, Some(secret)) => (StatusCode::OK, secret.clone()),
        }
    }
}

fn mac_of(text: &str) -> Digest {
    Digest::of(format!("mac of {text}"))
}

async fn serve(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, servers: Arc<Mutex<Servers>>) {
    let service = service_fn(move |request: Request<Incoming>| {
        let servers = Arc::clone(&servers);
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            let (status, answer) = lock(&servers).answer(&parts.method, parts.uri.path(), &body);
            let body = Full::new(Bytes::from(answer.to_string()));
            Ok::<_, Infallible>(Response::builder().status(status).body(body).unwrap())
        }
    });
    let _ = auto::Builder::new(TokioExecutor::new())
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

/// An agent's documents with the two servers.
struct Ground {
    servers: Arc<Mutex<Servers>>,
    hub: HubClient,
    kubernetes: Kubernetes,
    identity: Identity,
    presence: Presence,
    sealed: Sealed,
    folder: tempfile::TempDir,
}

impl Ground {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::new("authority of a test's hub").unwrap();
        let tls = TlsAcceptor::from(Arc::new(https::configuration(&authority).unwrap()));
        let (of_hub, of_cluster) = (listen().await, listen().await);
        let (hub, cluster) = (of_hub.local_addr().unwrap(), of_cluster.local_addr().unwrap());
        let keys = Keys::generate().unwrap();
        let sealing_key = keys.sealing_public_key().unwrap();
        let servers = Arc::new(Mutex::new(Servers {
            sealing_key,
            ..Servers::default()
        }));
        let (of_both, at_cluster) = (Arc::clone(&servers), Arc::clone(&servers));
        tokio::spawn(async move {
            while let Ok((stream, _)) = of_hub.accept().await {
                let (tls, servers) = (tls.clone(), Arc::clone(&of_both));
                tokio::spawn(async move { serve(tls.accept(stream).await.unwrap(), servers).await });
            }
        });
        tokio::spawn(async move {
            while let Ok((stream, _)) = of_cluster.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&at_cluster)));
            }
        });
        let path = folder.path().join("ca.crt");
        fs::write(&path, authority.pem()).unwrap();
        let hub = HubClient::new(
            &format!("https://{hub}"),
            Trust::named(Vec::new(), Some(&path)).unwrap(),
        )
        .unwrap();
        let path = folder.path().join("kubeconfig");
        let kubeconfig = json!({
            "current-context": "a",
            "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
            "clusters": [{"name": "a", "cluster": {"server": format!("http://{cluster}")}}],
            "users": [{"name": "a", "user": {}}],
        });
        fs::write(&path, kubeconfig.to_string()).unwrap();
        let answer = JoinAnswer {
            cluster: ClusterIdentity {
                uid: "c".into(),
                namespace: "n".into(),
                name: "c".into(),
            },
            installation: "i".into(),
            signing_keys: Vec::new(),
            authorities: Vec::new(),
            position: Position::default(),
            ca: String::new(),
            hub_time: 0,
        };
        let ground = Self {
            servers,
            hub,
            kubernetes: Kubernetes::connect(Some(&path)).unwrap(),
            identity: Identity::new("https://hub", None, "id", keys, answer),
            presence: Presence::default(),
            sealed: Sealed::new(folder.path().join("sealed")),
            folder,
        };
        ground.make_folder();
        ground
    }

    fn make_folder(&self) {
        fs::create_dir(self.folder.path().join("sealed")).unwrap();
    }

    fn lose_folder(&self) {
        fs::remove_dir_all(self.folder.path().join("sealed")).unwrap();
        self.make_folder();
    }

    /// Lets the hub give out these documents and no others.
    fn give(&self, texts: &[&'static str]) {
        lock(&self.servers).given = texts.iter().copied().collect();
    }

    fn fail(&self, methods: &[Method]) {
        lock(&self.servers).failing = methods.to_vec();
    }

    /// Opens the document of `text` as an attempt does while `last` is remembered.
    async fn try_open(&self, text: &str, last: &str, shelf: Shelf) -> Result<String, SealedError> {
        let caller = Caller {
            identity: &self.identity,
            kubernetes_version: "v1",
            presence: &self.presence,
        };
        let (deployment, last) = (deployment(text), deployment(last));
        let (hub, kubernetes, last) = (&self.hub, &self.kubernetes, Some(&last));
        let access = Access {
            shelf,
            hub,
            caller: &caller,
            kubernetes,
            last,
        };
        let parameters = self.sealed.open_parameters(SERVICE, &deployment, access).await?;
        let said = parameters
            .and_then(|read| Some(read.values["said"].as_str()?.to_owned()))
            .unwrap_or_default();
        let secrets = self.sealed.open(SERVICE, &deployment, access).await?;
        let password = secrets
            .0
            .get("database")
            .map(|secret| STANDARD.decode(&secret.data["password"]).unwrap());
        assert_eq!(password.unwrap_or_default(), said.as_bytes());
        Ok(said)
    }

    async fn open(&self, text: &str, last: &str) {
        let said = self.try_open(text, last, Shelf::Kept).await;
        assert_eq!(said.unwrap_or_else(|error| panic!("{text}: {}", chain(&error))), text);
    }

    async fn settle(&self, text: &str, last: &str) -> Result<(), SealedError> {
        let (deployment, last) = (deployment(text), deployment(last));
        self.sealed
            .settle(SERVICE, [Some(&last), Some(&deployment)], &self.kubernetes)
            .await
    }

    /// Checks that exactly these documents are kept on the disk and in the cluster.
    #[track_caller]
    fn check(&self, here: &[&str], there: &[&str]) {
        let macs = |texts: &[&str]| texts.iter().map(|text| mac_of(text)).collect::<Vec<_>>();
        let kept = |bytes: Option<Vec<u8>>| -> Vec<Digest> {
            bytes
                .iter()
                .flat_map(|bytes| decode(bytes))
                .map(|document| document.mac)
                .collect()
        };
        for part in Part::ALL {
            let file = fs::read(self.sealed.path(part, SERVICE)).ok();
            assert_eq!(file.is_some(), !here.is_empty(), "{part}");
            assert_eq!(kept(file), macs(here), "{part} here");
            let secret = lock(&self.servers).secrets.get(&part.secret_name(SERVICE)).cloned();
            assert_eq!(secret.is_some(), !there.is_empty(), "{part}");
            let content = secret.map(|secret| {
                STANDARD
                    .decode(secret["data"][SECRET_CONTENT].as_str().unwrap())
                    .unwrap()
            });
            assert_eq!(kept(content), macs(there), "{part} there");
        }
    }
}

async fn listen() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").await.unwrap()
}

/// A deployment that names the document of this text. Empty: it names neither Secrets nor parameters.
fn deployment(text: &str) -> Deployment {
    let mac = (!text.is_empty()).then(|| mac_of(text));
    let deployment = json!({
        "bundle": Digest::of("bundle"), "bundleBytes": 1, "path": "app", "targetNamespace": "web", "prune": true,
        "ceiling": {"serviceAccount": {"namespace": "n", "name": "a"}}, "secrets": mac, "parameters": mac,
    });
    serde_json::from_value(deployment).unwrap()
}

#[tokio::test]
async fn what_is_got_for_a_newer_entry_leaves_what_the_remembered_one_names() {
    let ground = Ground::new().await;
    ground.give(&["one", "two"]);
    ground.open("one", "").await;
    ground.check(&["one"], &["one"]);
    ground.open("two", "one").await;
    ground.check(&["one", "two"], &["one", "two"]);
    // The hub gives out nothing, as after a restart while it is away: both are opened from what was kept.
    ground.give(&[]);
    ground.open("one", "one").await;
    ground.open("two", "one").await;
    ground.check(&["one", "two"], &["one", "two"]);
    // A third document replaces the second.
    ground.give(&["three"]);
    ground.open("three", "one").await;
    ground.check(&["one", "three"], &["one", "three"]);
}

#[tokio::test]
async fn what_nobody_names_any_more_is_given_up_here_and_in_the_cluster() {
    let ground = Ground::new().await;
    ground.give(&["one", "two", "three"]);
    ground.open("one", "").await;
    ground.open("two", "one").await;
    // The older document is kept while the service has nothing newer applied.
    ground.settle("two", "one").await.unwrap();
    ground.check(&["one", "two"], &["one", "two"]);
    ground.settle("two", "two").await.unwrap();
    ground.check(&["two"], &["two"]);
    // A document of an entry that is no longer in effect is dropped, as when the service is held.
    ground.open("three", "two").await;
    ground.settle("two", "two").await.unwrap();
    ground.check(&["two"], &["two"]);
    // An entry without a document leaves the remembered one in place until it is applied itself.
    ground.open("", "two").await;
    ground.settle("", "two").await.unwrap();
    ground.check(&["two"], &["two"]);
    ground.settle("", "").await.unwrap();
    ground.check(&[], &[]);
}

#[tokio::test]
async fn a_lost_folder_loses_neither_document() {
    let ground = Ground::new().await;
    ground.give(&["one", "two"]);
    ground.open("one", "").await;
    ground.lose_folder();
    ground.open("two", "one").await;
    ground.check(&["one", "two"], &["one", "two"]);
    ground.give(&[]);
    ground.lose_folder();
    ground.open("one", "one").await;
    ground.lose_folder();
    ground.open("two", "one").await;
    ground.check(&["one", "two"], &["one", "two"]);
    // An entry without a document finds in the cluster which documents to drop.
    ground.settle("two", "two").await.unwrap();
    ground.lose_folder();
    ground.open("", "two").await;
    ground.settle("", "").await.unwrap();
    ground.check(&[], &[]);
}

#[tokio::test]
async fn a_cluster_that_can_not_be_read_is_not_one_that_keeps_nothing() {
    let ground = Ground::new().await;
    ground.give(&["one", "two"]);
    ground.open("one", "").await;
    ground.lose_folder();
    ground.fail(&[Method::GET]);
    let error = ground.try_open("two", "one", Shelf::Kept).await.unwrap_err();
    assert!(matches!(error, SealedError::Look(Part::Parameters, _)), "{error}");
    ground.check(&[], &["one"]);
    ground.fail(&[]);
    ground.open("two", "one").await;
    ground.check(&["one", "two"], &["one", "two"]);
}

#[tokio::test]
async fn what_can_not_be_given_up_in_the_cluster_is_tried_again() {
    let ground = Ground::new().await;
    ground.give(&["one", "two"]);
    ground.open("one", "").await;
    ground.open("two", "one").await;
    ground.fail(&[Method::PATCH, Method::DELETE]);
    assert!(matches!(ground.settle("two", "two").await, Err(SealedError::Copy(..))));
    ground.check(&["one", "two"], &["one", "two"]);
    assert!(matches!(ground.settle("", "").await, Err(SealedError::Remove(..))));
    ground.check(&["one", "two"], &["one", "two"]);
    ground.fail(&[]);
    ground.settle("two", "two").await.unwrap();
    ground.check(&["two"], &["two"]);
}

#[tokio::test]
async fn a_plan_gets_what_it_needs_and_changes_nothing_that_is_kept() {
    let ground = Ground::new().await;
    ground.give(&["one", "two", "three"]);
    ground.open("one", "").await;
    ground.open("two", "one").await;
    for (text, shelf) in [
        ("three", Shelf::Passing),
        ("two", Shelf::Passing),
        ("one", Shelf::Nothing),
    ] {
        assert_eq!(ground.try_open(text, "one", shelf).await.unwrap(), text);
    }
    let error = ground.try_open("three", "one", Shelf::Nothing).await.unwrap_err();
    assert!(matches!(error, SealedError::NotKept(Part::Parameters)), "{error}");
    ground.check(&["one", "two"], &["one", "two"]);
    ground.lose_folder();
    assert_eq!(ground.try_open("two", "one", Shelf::Passing).await.unwrap(), "two");
    ground.check(&[], &["one", "two"]);
}

#[tokio::test]
async fn agents_of_before_and_this_one_read_what_the_other_has_kept() {
    /// The format from when only one document was kept.
    #[derive(Serialize, Deserialize)]
    struct Former {
        mac: Digest,
        sealed: SealedSecrets,
    }
    let ground = Ground::new().await;
    ground.give(&["one", "two"]);
    ground.open("one", "").await;
    ground.open("two", "one").await;
    ground.give(&[]);
    for part in Part::ALL {
        let path = ground.sealed.path(part, SERVICE);
        let former: Former = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        assert_eq!(former.mac, mac_of("one"), "what runs needs it");
        fs::write(&path, serde_json::to_vec(&former).unwrap()).unwrap();
    }
    lock(&ground.servers).secrets.clear();
    ground.open("one", "one").await;
    ground.check(&["one"], &[]);
}

#[tokio::test]
async fn what_is_sealed_to_a_key_of_before_is_replaced_where_it_lies() {
    let mut ground = Ground::new().await;
    ground.give(&["one", "two"]);
    ground.open("one", "").await;
    ground.open("two", "one").await;
    let former = fs::read(ground.sealed.path(Part::Secrets, SERVICE)).unwrap();
    ground.identity = ground.identity.prepare_keys().unwrap().promote_keys().unwrap();
    lock(&ground.servers).sealing_key = ground.identity.keys.sealing_public_key().unwrap();
    ground.open("one", "one").await;
    ground.check(&["one"], &["one"]);
    let replaced = fs::read(ground.sealed.path(Part::Secrets, SERVICE)).unwrap();
    assert_ne!(decode(&replaced)[0].sealed, decode(&former)[0].sealed);
    // A damaged file is downloaded again.
    fs::write(ground.sealed.path(Part::Secrets, SERVICE), "{").unwrap();
    lock(&ground.servers).secrets.clear();
    ground.open("one", "one").await;
}
