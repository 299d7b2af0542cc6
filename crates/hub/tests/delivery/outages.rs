//! Failures upstream, for every kind of source: the version that was fetched last stays in use and nothing else
//! changes, until it is well again.

use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use farwater_api::ADMIN_NAMESPACE;
use farwater_testkit::{
    Helm, Origin, Registry, Tools,
    authority::Authority,
    git::{Fault, GitServer, Repository},
    helm::{borrowed, chart},
    registry::SignIn,
};
use serde_json::{Value, json};

use crate::{
    agent::Agent,
    rig::{Rig, WEB, condition, message},
    shop::{ask, bundle, service, source, start, wait_files},
};

/// For what must work on a machine that is busy with other tests, and for what must not.
const PATIENT: &str = "10s";
const SHORT: &str = "1s";

/// What so short a time makes of it.
const FAULTS: [(Fault, &str); 7] = [
    (Fault::Stall, "Timeout"),
    (
        Fault::Slow {
            bytes: 1,
            pause: Duration::from_secs(1),
        },
        "Timeout",
    ),
    (Fault::Status(500), "ServerError"),
    (Fault::Status(429), "Throttled"),
    (Fault::Status(401), "AuthenticationFailed"),
    (Fault::Status(404), "RepositoryNotFound"),
    (Fault::Cut(10), "AnswerBrokenOff"),
];

/// A server of one kind of source, over TLS.
enum Upstream {
    Git(GitServer, Repository),
    Helm {
        helm: Helm,
        pages: tempfile::TempDir,
        origin: Origin,
        authority: Authority,
    },
    Oci {
        registry: Registry,
        origin: Origin,
        authority: Authority,
    },
}

impl Upstream {
    async fn git() -> Self {
        let server = GitServer::start_tls().await.unwrap();
        let repository = server.create("infra").unwrap();
        Self::Git(server, repository)
    }

    async fn helm() -> Self {
        let (pages, authority) = (tempfile::tempdir().unwrap(), Authority::new("a test's").unwrap());
        let pair = authority.issue(&["127.0.0.1"], 24).unwrap();
        let origin = Origin::of_folder(pages.path(), Some(&pair)).await.unwrap();
        Self::Helm {
            helm: Helm::new(&Tools::build_helm().unwrap()).unwrap(),
            pages,
            origin,
            authority,
        }
    }

    async fn oci() -> Self {
        let (registry, authority) = (
            Registry::start(SignIn::Nobody).await.unwrap(),
            Authority::new("a test's").unwrap(),
        );
        let pair = authority.issue(&["127.0.0.1"], 24).unwrap();
        let origin = Origin::before(registry.port(), Some(&pair)).await.unwrap();
        Self::Oci {
            registry,
            origin,
            authority,
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::Git(..) => "GitRepository",
            Self::Helm { .. } => "HelmRepository",
            Self::Oci { .. } => "OCIRepository",
        }
    }

    /// A source that trusts it, and a service of that.
    fn specs(&self) -> (Value, Value) {
        let (trust, url) = match self {
            Self::Git(server, _) => ("secretRef", server.url("infra")),
            Self::Helm { origin, .. } => ("certSecretRef", origin.url()),
            Self::Oci { origin, .. } => ("certSecretRef", format!("oci://{}/apps", origin.host())),
        };
        let mut spec = json!({"url": url, "interval": "1h", "timeout": PATIENT});
        spec[trust] = json!({"name": "trust"});
        let mut service = json!({"sourceRef": {"kind": self.kind(), "name": "source"}});
        if let Self::Helm { .. } = self {
            service["chart"] = json!({"name": "web", "version": "^1"});
        }
        (spec, service)
    }

    /// The reason that a source of this kind gives. A registry is asked for a tag, and only that is known to be missing.
    fn told(&self, reason: &'static str) -> &'static str {
        match (self, reason) {
            (Self::Oci { .. }, "RepositoryNotFound") => "ReferenceNotFound",
            _ => reason,
        }
    }

    fn authority(&self) -> &str {
        match self {
            Self::Git(server, _) => server.ca().unwrap(),
            Self::Helm { authority, .. } | Self::Oci { authority, .. } => authority.pem(),
        }
    }

    /// Something newer, by a number that only grows.
    async fn publish(&self, n: usize) {
        match self {
            Self::Git(_, repository) => {
                repository
                    .commit("main", &[("web.yaml", &format!("# {n}\n{WEB}"))])
                    .unwrap();
            }
            Self::Helm { helm, pages, .. } => {
                helm.package(&borrowed(&chart("web", &format!("1.{n}.0"))), pages.path())
                    .unwrap();
                helm.index(pages.path(), None).unwrap();
            }
            Self::Oci { registry, .. } => {
                registry
                    .push_files("apps", "latest", &[("web.yaml", &format!("# {n}\n{WEB}"))])
                    .await
                    .unwrap();
            }
        }
    }

    fn set_fault(&self, fault: Fault) {
        match self {
            Self::Git(server, _) => server.set_fault(fault),
            Self::Helm { origin, .. } | Self::Oci { origin, .. } => origin.set_fault(fault),
        }
    }

    async fn set_expired(&mut self, is_expired: bool) {
        match self {
            Self::Git(server, _) => server.set_expired(is_expired).await.unwrap(),
            Self::Helm { origin, authority, .. } | Self::Oci { origin, authority, .. } => {
                let hours = if is_expired { 0 } else { 24 };
                origin
                    .set_certificate(&authority.issue(&["127.0.0.1"], hours).unwrap())
                    .await
                    .unwrap();
            }
        }
    }

    async fn stop(&mut self) {
        match self {
            Self::Git(server, _) => server.stop().await,
            Self::Helm { origin, .. } | Self::Oci { origin, .. } => origin.stop().await,
        }
    }

    async fn resume(&mut self) {
        match self {
            Self::Git(server, _) => server.resume().await.unwrap(),
            Self::Helm { origin, .. } | Self::Oci { origin, .. } => origin.resume().await.unwrap(),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_git_server_that_fails_in_any_way_changes_nothing() {
    survive(Upstream::git().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repository_of_charts_that_fails_in_any_way_changes_nothing() {
    survive(Upstream::helm().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registry_that_fails_in_any_way_changes_nothing() {
    survive(Upstream::oci().await).await;
}

async fn survive(mut upstream: Upstream) {
    upstream.publish(0).await;
    let (mut rig, kind, (spec, of_service)) = (start().await, upstream.kind(), upstream.specs());
    let trust = json!({"data": {"ca.crt": STANDARD.encode(upstream.authority())}});
    rig.create("Secret", ADMIN_NAMESPACE, "trust", trust).await;
    source(&rig, kind, "source", spec).await;
    let uid = service(&rig, "web", of_service).await;
    let agent = Agent::join(&rig, "east").await;
    let (before, _) = wait_files(&rig, &agent, &uid, |_| true).await;
    rig.wait_for(kind, ADMIN_NAMESPACE, "source", |object| {
        condition(object, "Ready") == "True/Fetched"
    })
    .await;
    // Something newer that must not come through.
    upstream.set_fault(FAULTS[0].0.clone());
    upstream.publish(1).await;
    set_timeout(&rig, kind, SHORT).await;

    let mut since = None;
    for (fault, reason) in FAULTS {
        upstream.set_fault(fault);
        since = Some(fails(&rig, kind, upstream.told(reason), since).await);
        assert_eq!(
            agent.desired(&rig).await.entries[0].digest(),
            before.digest(),
            "{kind} {reason}"
        );
    }
    upstream.set_fault(Fault::None);
    upstream.set_expired(true).await;
    since = Some(fails(&rig, kind, "CertificateExpired", since).await);
    upstream.stop().await;
    fails(&rig, kind, "Unreachable", since).await;

    // Also for a hub that starts while it is away.
    rig = rig.restart().await;
    rig.wait_loaded().await;
    agent.wait_polled(&rig).await;
    assert_eq!(agent.desired(&rig).await.entries[0].digest(), before.digest(), "{kind}");
    wait_files(&rig, &agent, &uid, |entry| bundle(entry) == bundle(&before)).await;

    upstream.resume().await;
    upstream.set_expired(false).await;
    set_timeout(&rig, kind, PATIENT).await;
    wait_files(&rig, &agent, &uid, |entry| bundle(entry) != bundle(&before)).await;
    let told = rig
        .wait_for(kind, ADMIN_NAMESPACE, "source", |object| {
            condition(object, "Ready") == "True/Fetched"
        })
        .await;
    assert!(told["status"].get("staleSince").is_none(), "{told:#}");
}

/// It is asked at once, with that.
async fn set_timeout(rig: &Rig, kind: &str, timeout: &str) {
    rig.edit(kind, ADMIN_NAMESPACE, "source", |object| {
        object["spec"]["timeout"] = timeout.into()
    })
    .await;
}

/// Asks, and sees how the source says that: since when, which no further failure changes.
async fn fails(rig: &Rig, kind: &str, reason: &str, since: Option<String>) -> String {
    ask(rig, kind, "source").await;
    let expected = format!("False/{reason}");
    let told = rig
        .wait_for(kind, ADMIN_NAMESPACE, "source", |object| {
            condition(object, "Ready") == expected && object["status"]["staleSince"].is_string()
        })
        .await;
    assert!(
        message(&told, "Ready").contains("stays in use, unchecked since"),
        "{told:#}"
    );
    let now = told["status"]["staleSince"].as_str().unwrap().to_owned();
    assert!(since.is_none_or(|since| since == now), "{told:#}");
    now
}
