//! A real registry with artifacts of Flux, Helm and cosign, and one that lies.

use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use farwater_api::{
    Digest,
    oci_repository::{LayerOperation, LayerSelector, OCIReference},
};
use farwater_sources::{
    Access, Artifacts, FetchError, FetchReason, FoundChart, SecretData, WantedChart,
    oci::{self, Follow, Known, Place, Pulled, Registry as Remote, Selection, cosign::Keys},
};
use farwater_testkit::{
    Helm, Origin, Registry, Tools,
    authority::Authority,
    git::Fault,
    helm::{borrowed, chart},
    registry::{CosignKey, FLUX_CONFIG, FLUX_LAYER, LOGIN, Layer, SignIn, gzip, tar},
};
use serde_json::{Value, json};

const TIMEOUT: Duration = Duration::from_secs(20);

struct Client {
    remote: Remote,
    artifacts: Artifacts,
    _folder: tempfile::TempDir,
}

fn connect(
    url: &str,
    secret: Option<&SecretData>,
    tls: Option<&SecretData>,
    insecure: bool,
) -> Result<Remote, FetchError> {
    let place = Place::parse(url).unwrap();
    let access = Access::read(&place.name(), secret, tls).unwrap();
    Ok(Remote::new(crate::near().site(&place.base(insecure), access)?, &place))
}

impl Client {
    fn new(url: &str) -> Self {
        Self::with(url, None)
    }

    fn with(url: &str, secret: Option<&SecretData>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let artifacts = Artifacts::at(&folder.path().join("uid"));
        Self {
            remote: connect(url, secret, None, true).unwrap(),
            artifacts,
            _folder: folder,
        }
    }

    async fn pull(&self, follow: Follow) -> Result<Pulled, FetchError> {
        self.pull_as(follow, Selection::default(), None, None).await
    }

    async fn pull_as(
        &self,
        follow: Follow,
        selection: Selection,
        keys: Option<&Keys>,
        known: Option<Known>,
    ) -> Result<Pulled, FetchError> {
        oci::sync(
            &self.remote,
            &self.artifacts,
            (&follow, &selection, keys),
            known,
            TIMEOUT,
        )
        .await
    }

    async fn chart(&self, name: &str, version: &str, known: Option<&FoundChart>) -> Result<FoundChart, FetchError> {
        let wanted = WantedChart {
            name: name.to_owned(),
            version: version.to_owned(),
        };
        oci::find_chart(&self.remote, &self.artifacts, &wanted, known, TIMEOUT).await
    }

    fn read(&self, digest: &Digest, path: &str) -> Option<String> {
        self.artifacts
            .open(digest)
            .unwrap()
            .file(path, 1 << 20)
            .map(|bytes| String::from_utf8(bytes).unwrap())
    }
}

fn tag(tag: &str) -> Follow {
    Follow::parse(Some(&OCIReference {
        tag: Some(tag.to_owned()),
        ..OCIReference::default()
    }))
    .unwrap()
}

fn range(range: &str) -> Follow {
    Follow::Semver(range.parse().unwrap())
}

fn secret(pairs: &[(&str, &str)]) -> SecretData {
    pairs
        .iter()
        .map(|(key, value)| ((*key).to_owned(), value.as_bytes().to_vec()))
        .collect()
}

fn keys(keys: &[&CosignKey]) -> Keys {
    let data = keys
        .iter()
        .enumerate()
        .map(|(n, key)| (format!("{n}.pub"), key.public().into_bytes()));
    Keys::read(&data.collect()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn artifacts_are_pulled_by_tag_range_and_digest() {
    let registry = Registry::start(SignIn::Nobody).await.unwrap();
    let mut digests = Vec::new();
    for version in ["1.0.0", "1.2.0", "2.0.0-rc.1", "latest"] {
        digests.push(
            registry
                .push_files("apps", version, &[("web.yaml", version), ("sub/a", "b")])
                .await
                .unwrap(),
        );
    }
    let client = Client::new(&registry.url("apps"));
    for (follow, reference, n) in [
        (Follow::parse(None).unwrap(), "latest", 3),
        (tag("1.0.0"), "1.0.0", 0),
        (range("1.x"), "1.2.0", 1),
        (range(">=2.0.0-0"), "2.0.0-rc.1", 2),
        (Follow::Digest(digests[0].parse().unwrap()), "", 0),
    ] {
        let pulled = client.pull(follow.clone()).await.unwrap();
        assert_eq!(
            (pulled.reference.as_str(), pulled.digest.to_string()),
            (reference, digests[n].clone()),
            "{follow:?}"
        );
        let version = ["1.0.0", "1.2.0", "2.0.0-rc.1", "latest"][n];
        assert_eq!(client.read(&pulled.digest, "web.yaml").as_deref(), Some(version));
    }
    for (follow, expected) in [
        (tag("nothing"), FetchReason::ReferenceMissing("tag nothing".to_owned())),
        (
            range("^9"),
            FetchReason::ReferenceMissing("a tag in the range ^9".to_owned()),
        ),
        (
            Follow::Digest(Digest::of("x")),
            FetchReason::ReferenceMissing(format!("manifest {}", Digest::of("x"))),
        ),
    ] {
        assert_eq!(client.pull(follow).await.unwrap_err().reason, expected);
    }
    let nowhere = Client::new(&registry.url("nowhere"))
        .pull(range("*"))
        .await
        .unwrap_err();
    assert_eq!(nowhere.reason, FetchReason::NotFound);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_known_costs_one_question_and_a_tag_that_moved_is_seen() {
    let registry = Registry::start(SignIn::Nobody).await.unwrap();
    registry.push_files("apps", "latest", &[("a.yaml", "1")]).await.unwrap();
    let origin = Origin::before(registry.port(), None).await.unwrap();
    let client = Client::new(&format!("oci://{}/apps", origin.host()));
    let first = client.pull(tag("latest")).await.unwrap();
    assert!(first.fetched);
    let known = Some(Known {
        digest: first.digest,
        same_terms: true,
    });
    origin.forget_seen();
    let again = client
        .pull_as(tag("latest"), Selection::default(), None, known)
        .await
        .unwrap();
    assert!(!again.fetched && again.digest == first.digest);
    let asked: Vec<_> = origin.seen().into_iter().map(|seen| (seen.method, seen.path)).collect();
    assert_eq!(asked, [("HEAD".to_owned(), "/v2/apps/manifests/latest".to_owned())]);
    let second = registry.push_files("apps", "latest", &[("a.yaml", "2")]).await.unwrap();
    let moved = client
        .pull_as(tag("latest"), Selection::default(), None, known)
        .await
        .unwrap();
    assert!(moved.fetched && moved.digest.to_string() == second);
    assert_eq!(
        client.read(&first.digest, "a.yaml").as_deref(),
        Some("1"),
        "what services still name stays"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn layers_are_chosen_and_read_in_each_of_their_forms() {
    let registry = Registry::start(SignIn::Nobody).await.unwrap();
    let plain = tar(&[("a.yaml", "plain")]).unwrap();
    let zstd = zstd::bulk::compress(&tar(&[("a.yaml", "zstd")]).unwrap(), 3).unwrap();
    let mut file = Layer::new("application/x-values", b"a: b".to_vec());
    file.annotations = json!({"org.opencontainers.image.title": "values.yaml"});
    let layers = [
        Layer::new("application/vnd.oci.image.layer.v1.tar", plain),
        Layer::new("application/vnd.oci.image.layer.v1.tar+zstd", zstd),
        Layer::new(FLUX_LAYER, gzip(&tar(&[("a.yaml", "gzip")]).unwrap()).unwrap()),
        file,
    ];
    registry
        .push("apps", "1", "application/vnd.oci.image.config.v1+json", &layers)
        .await
        .unwrap();
    let select = |kind: Option<&str>, operation| {
        Selection::from(Some(&LayerSelector {
            media_type: kind.map(str::to_owned),
            operation,
        }))
    };
    for (selection, path, expected) in [
        (Selection::default(), "a.yaml", "plain"),
        (
            select(
                Some("application/vnd.oci.image.layer.v1.tar+zstd"),
                LayerOperation::Extract,
            ),
            "a.yaml",
            "zstd",
        ),
        (select(Some(FLUX_LAYER), LayerOperation::Extract), "a.yaml", "gzip"),
        (
            select(Some("application/x-values"), LayerOperation::Copy),
            "values.yaml",
            "a: b",
        ),
    ] {
        let client = Client::new(&registry.url("apps"));
        let pulled = client.pull_as(tag("1"), selection.clone(), None, None).await.unwrap();
        assert_eq!(
            client.read(&selection.key(&pulled.digest), path).as_deref(),
            Some(expected)
        );
    }
    let client = Client::new(&registry.url("apps"));
    for (selection, reason, expected) in [
        (
            select(Some("x"), LayerOperation::Extract),
            FetchReason::Manifest,
            "it has no layer of x",
        ),
        (
            select(None, LayerOperation::Copy),
            FetchReason::Manifest,
            "no annotation",
        ),
        (
            select(Some("application/x-values"), LayerOperation::Extract),
            FetchReason::Archive,
            "archive",
        ),
    ] {
        let error = client.pull_as(tag("1"), selection, None, None).await.unwrap_err();
        assert!(error.reason == reason && error.evidence.contains(expected), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn charts_that_helm_has_pushed_are_found() {
    let registry = Registry::start(SignIn::Nobody).await.unwrap();
    let helm = Helm::new(&Tools::build_helm().unwrap()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    for version in ["1.0.0", "1.2.0+build.5", "2.0.0-rc.1"] {
        let archive = helm.package(&borrowed(&chart("web", version)), folder.path()).unwrap();
        helm.push(&archive, &format!("{}/charts", registry.host()), None)
            .unwrap();
    }
    let place = Place::of_chart(&registry.url("charts"), "web").unwrap();
    let client = Client::new(&place.to_string());
    for (wanted, version) in [
        ("*", "1.2.0+build.5"),
        ("1.0.0", "1.0.0"),
        ("1.2.0+build.5", "1.2.0+build.5"),
        // fleet#5410: it exists with build metadata only.
        ("1.2.0", "1.2.0+build.5"),
        (">=2.0.0-0", "2.0.0-rc.1"),
        ("~1.0", "1.0.0"),
    ] {
        let found = client.chart("web", wanted, None).await.unwrap();
        assert_eq!(found.version, version, "{wanted}");
        assert!(
            client
                .read(&found.digest, "Chart.yaml")
                .unwrap()
                .contains(&format!("version: {version}"))
        );
        assert_eq!(client.chart("web", wanted, Some(&found)).await.unwrap(), found);
    }
    assert!(matches!(
        client.chart("web", "^7", None).await.unwrap_err().reason,
        FetchReason::ReferenceMissing(_)
    ));
    assert!(matches!(
        client.chart("web", "3.0.0", None).await.unwrap_err().reason,
        FetchReason::ReferenceMissing(_)
    ));
    let wrong = client.chart("other", "1.0.0", None).await;
    assert!(wrong.is_ok(), "what was seen to be web 1.0.0 is not looked at again");
    // An OCIRepository can pull a chart too.
    let pulled = Client::new(&place.to_string());
    let digest = pulled.pull(tag("1.0.0")).await.unwrap().digest;
    assert!(pulled.read(&digest, "templates/map.yaml").is_some());
    let other = Client::new(&place.to_string());
    let error = other.chart("other", "1.0.0", None).await.unwrap_err();
    assert!(
        error.reason == FetchReason::Archive && error.evidence.contains("it is chart web, not other"),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn registries_are_signed_in_to_with_passwords_and_tokens() {
    let docker = |host: &str, password: &str| {
        let auth = json!({"auths": {host: {"username": LOGIN.0, "password": password}}}).to_string();
        secret(&[(".dockerconfigjson", &auth)])
    };
    for sign_in in [SignIn::Password, SignIn::Token] {
        let registry = Registry::start(sign_in).await.unwrap();
        registry
            .push_files("private/apps", "1.0.0", &[("a.yaml", "x")])
            .await
            .unwrap();
        let url = registry.url("private/apps");
        for good in [
            docker(&registry.host(), LOGIN.1),
            secret(&[("username", LOGIN.0), ("password", LOGIN.1)]),
        ] {
            let client = Client::with(&url, Some(&good));
            client.pull(tag("1.0.0")).await.unwrap();
            client.pull(range("*")).await.unwrap();
        }
        let wrong = docker(&registry.host(), "wrong");
        for (data, expected) in [
            (Some(&wrong), FetchReason::Unauthorized),
            (None, FetchReason::CredentialsMissing),
        ] {
            let error = Client::with(&url, data).pull(tag("1.0.0")).await.unwrap_err();
            assert_eq!(error.reason, expected, "{sign_in:?}: {error}");
            assert!(
                !error.to_string().contains(LOGIN.1) && !error.to_string().contains("wrong"),
                "{error}"
            );
        }
        let helm = Helm::new(&Tools::build_helm().unwrap()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let archive = helm.package(&borrowed(&chart("web", "1.0.0")), folder.path()).unwrap();
        helm.push(&archive, &format!("{}/charts", registry.host()), registry.login())
            .unwrap();
        let client = Client::with(&registry.url("charts/web"), Some(&docker(&registry.host(), LOGIN.1)));
        client.chart("web", "*", None).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn credentials_stay_with_the_registry_and_need_tls() {
    let registry = Registry::start(SignIn::Password).await.unwrap();
    registry.push_files("apps", "1.0.0", &[("a.yaml", "x")]).await.unwrap();
    let login = secret(&[("username", LOGIN.0), ("password", LOGIN.1)]);
    let error = connect("oci://registry.example.com/apps", Some(&login), None, true)
        .map(drop)
        .unwrap_err();
    assert_eq!(error.reason, FetchReason::ClearText);

    // The blobs are in a separate store, as with most registries.
    let store = Origin::before(registry.port(), None).await.unwrap();
    let front = Origin::before(registry.port(), None).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(
        folder.path().join("blob"),
        gzip(&tar(&[("a.yaml", "x")]).unwrap()).unwrap(),
    )
    .unwrap();
    let files = Origin::of_folder(folder.path(), None).await.unwrap();
    front.set_fault_at(
        "/blobs/",
        Fault::Redirect(format!("{}/blob?signature=secret", files.url())),
    );
    let client = Client::with(&format!("oci://{}/apps", front.host()), Some(&login));
    client.pull(tag("1.0.0")).await.unwrap();
    assert!(files.count("blob") == 1 && files.seen().iter().all(|seen| seen.authorization.is_none()));
    drop(store);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registry_of_a_private_authority_is_trusted_by_it() {
    let registry = Registry::start(SignIn::Nobody).await.unwrap();
    registry.push_files("apps", "latest", &[("a.yaml", "x")]).await.unwrap();
    let authority = Authority::new("a test's").unwrap();
    let tls = secret(&[("ca.crt", authority.pem())]);
    let expired = authority.issue(&["127.0.0.1"], 0).unwrap();
    for (pair, tls, expected) in [
        (authority.issue(&["127.0.0.1"], 24).unwrap(), Some(&tls), None),
        (
            authority.issue(&["127.0.0.1"], 24).unwrap(),
            None,
            Some(FetchReason::Untrusted),
        ),
        (expired, Some(&tls), Some(FetchReason::CertificateExpired)),
    ] {
        let origin = Origin::before(registry.port(), Some(&pair)).await.unwrap();
        let remote = connect(&format!("oci://{}/apps", origin.host()), None, tls, false).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let artifacts = Artifacts::at(folder.path());
        let pulled = oci::sync(
            &remote,
            &artifacts,
            (&tag("latest"), &Selection::default(), None),
            None,
            TIMEOUT,
        )
        .await;
        assert_eq!(pulled.err().map(|error| error.reason), expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_pulled_that_no_given_key_has_signed() {
    let registry = Registry::start(SignIn::Nobody).await.unwrap();
    let (ours, other, edwards) = (
        CosignKey::generate().unwrap(),
        CosignKey::generate().unwrap(),
        CosignKey::generate_ed25519().unwrap(),
    );
    let push = async |version: &str| {
        registry
            .push_files("apps", version, &[("a.yaml", version)])
            .await
            .unwrap()
    };
    let unsigned = push("unsigned").await;
    registry.sign("apps", &push("signed").await, &ours).await.unwrap();
    registry.sign("apps", &push("ed25519").await, &edwards).await.unwrap();
    registry.sign("apps", &push("foreign").await, &other).await.unwrap();
    registry
        .sign_with_bundle("apps", &push("bundle").await, &ours)
        .await
        .unwrap();
    registry
        .sign_with_bundle("apps", &push("foreign-bundle").await, &other)
        .await
        .unwrap();
    // The signature of another artifact, moved to this one's place.
    let moved = push("moved").await;
    let payload = json!({"critical": {"image": {"docker-manifest-digest": unsigned}, "type": "cosign container image signature", "identity": {}}});
    registry
        .sign_payload("apps", &moved, payload.to_string().into_bytes(), &ours)
        .await
        .unwrap();
    let odd = push("odd").await;
    let payload =
        json!({"critical": {"image": {"docker-manifest-digest": odd}, "type": "something else", "identity": {}}});
    registry
        .sign_payload("apps", &odd, payload.to_string().into_bytes(), &ours)
        .await
        .unwrap();

    let given = keys(&[&ours, &edwards]);
    for (version, is_signed) in [
        ("signed", true),
        ("ed25519", true),
        ("bundle", true),
        ("unsigned", false),
        ("foreign", false),
        ("foreign-bundle", false),
        ("moved", false),
        ("odd", false),
    ] {
        let client = Client::new(&registry.url("apps"));
        let pulled = client
            .pull_as(tag(version), Selection::default(), Some(&given), None)
            .await;
        let expected = (!is_signed).then_some(FetchReason::Unverified);
        assert_eq!(
            pulled.as_ref().err().map(|error| error.reason.clone()),
            expected,
            "{version}: {pulled:?}"
        );
        assert_eq!(
            client
                .artifacts
                .contains(&pulled.map_or(Digest::of(""), |pulled| pulled.digest)),
            is_signed,
            "{version}"
        );
    }
    assert_ne!(given.print(), keys(&[&ours]).print());
    // The same artifact is verified again with other keys.
    let client = Client::new(&registry.url("apps"));
    let digest = client
        .pull_as(tag("signed"), Selection::default(), Some(&given), None)
        .await
        .unwrap()
        .digest;
    let known = |same_terms| Some(Known { digest, same_terms });
    let others = keys(&[&other]);
    let again = client
        .pull_as(tag("signed"), Selection::default(), Some(&others), known(false))
        .await;
    assert_eq!(again.unwrap_err().reason, FetchReason::Unverified);
    assert!(
        client
            .pull_as(tag("signed"), Selection::default(), Some(&given), known(true))
            .await
            .is_ok()
    );
}

/// What the programs left in a registry. `recorded/cosign.json` has the blobs and manifests that `cosign sign --key
/// --tlog-upload=false` pushed with cosign 2.6.5 (for the tag `two`) and 3.1.3 (`three`).
#[tokio::test(flavor = "multi_thread")]
async fn what_cosign_has_signed_is_pulled_by_its_key_alone() {
    let recorded: Value = serde_json::from_str(include_str!("recorded/cosign.json")).unwrap();
    let registry = Registry::start(SignIn::Nobody).await.unwrap();
    for blob in recorded["blobs"].as_array().unwrap() {
        let bytes = STANDARD.decode(blob.as_str().unwrap()).unwrap();
        registry.push_blob("apps", &bytes).await.unwrap();
    }
    for manifest in recorded["manifests"].as_array().unwrap() {
        let text = |field: &str| manifest[field].as_str().unwrap();
        registry
            .push_manifest("apps", text("reference"), text("mediaType"), text("body").as_bytes())
            .await
            .unwrap();
    }
    let key = recorded["key"].as_str().unwrap().as_bytes().to_vec();
    let given = Keys::read(&[("cosign.pub".to_owned(), key)].into_iter().collect()).unwrap();
    let others = keys(&[&CosignKey::generate().unwrap()]);
    for version in ["two", "three"] {
        let client = Client::new(&registry.url("apps"));
        let refused = client
            .pull_as(tag(version), Selection::default(), Some(&others), None)
            .await;
        assert_eq!(refused.unwrap_err().reason, FetchReason::Unverified, "{version}");
        let pulled = client
            .pull_as(tag(version), Selection::default(), Some(&given), None)
            .await
            .unwrap();
        let file = client.read(&pulled.digest, "a.yaml").unwrap();
        assert!(file.contains(&format!("name: {version}")), "{file}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_are_typed_and_what_was_pulled_stays() {
    let registry = Registry::start(SignIn::Nobody).await.unwrap();
    let digest = registry.push_files("apps", "latest", &[("a.yaml", "1")]).await.unwrap();
    let mut origin = Origin::before(registry.port(), None).await.unwrap();
    let client = Client::new(&format!("oci://{}/apps", origin.host()));
    let pulled = client.pull(tag("latest")).await.unwrap();
    registry.push_files("apps", "latest", &[("a.yaml", "2")]).await.unwrap();
    let within = async |timeout: u64| {
        let what = (&tag("latest"), &Selection::default(), None);
        oci::sync(
            &client.remote,
            &client.artifacts,
            what,
            None,
            Duration::from_secs(timeout),
        )
        .await
    };
    for (at, fault, expected) in [
        ("", Fault::Status(403), FetchReason::Forbidden),
        ("", Fault::Status(401), FetchReason::CredentialsMissing),
        ("", Fault::Status(429), FetchReason::Throttled),
        ("", Fault::Status(500), FetchReason::ServerError),
        ("", Fault::Stall, FetchReason::Timeout(1)),
        ("/blobs/", Fault::Status(503), FetchReason::ServerError),
        ("/blobs/", Fault::Cut(10), FetchReason::BrokenOff),
        (
            "/blobs/",
            Fault::Slow {
                bytes: 1,
                pause: Duration::from_millis(200),
            },
            FetchReason::Timeout(1),
        ),
        (
            "/blobs/",
            Fault::Redirect("ftp://elsewhere/blob".to_owned()),
            FetchReason::Redirected,
        ),
    ] {
        origin.set_fault_at(at, fault.clone());
        let error = within(1).await.unwrap_err();
        assert_eq!(error.reason, expected, "{fault:?} at {at:?}: {error}");
        assert_eq!(client.read(&pulled.digest, "a.yaml").as_deref(), Some("1"));
        origin.set_fault_at(at, Fault::None);
    }
    origin.stop().await;
    assert_eq!(within(1).await.unwrap_err().reason, FetchReason::Unreachable);
    origin.resume().await.unwrap();
    within(20).await.unwrap();
    // A deleted tag is reported as missing.
    let second = client.pull(tag("latest")).await.unwrap();
    registry.delete("apps", &second.digest.to_string()).await.unwrap();
    assert_eq!(
        within(20).await.unwrap_err().reason,
        FetchReason::ReferenceMissing("tag latest".to_owned())
    );
    assert_eq!(client.read(&second.digest, "a.yaml").as_deref(), Some("2"));
    assert_eq!(digest, pulled.digest.to_string());
}

/// Answers that a lying registry may give: a folder with the answers as files.
#[tokio::test(flavor = "multi_thread")]
async fn a_registry_that_lies_is_found_out() {
    let folder = tempfile::tempdir().unwrap();
    let v2 = folder.path().join("v2/apps");
    for name in ["manifests", "blobs", "tags"] {
        std::fs::create_dir_all(v2.join(name)).unwrap();
    }
    let origin = Origin::of_folder(folder.path(), None).await.unwrap();
    origin.forget_validators();
    let put = |path: &str, content: &[u8]| std::fs::write(v2.join(path), content).unwrap();
    let digest = |content: &[u8]| Digest::of(content).to_string();
    let manifest = |layer: &str| {
        json!({"schemaVersion": 2, "config": {"mediaType": FLUX_CONFIG}, "layers": [{"mediaType": FLUX_LAYER, "digest": layer, "size": 1}]}).to_string()
    };
    let pull = async || {
        Client::new(&format!("oci://{}/apps", origin.host()))
            .pull(tag("latest"))
            .await
            .map_err(|error| (error.reason.clone(), error.to_string()))
    };
    let good = gzip(&tar(&[("a.yaml", "x")]).unwrap()).unwrap();
    let serve = |manifest: &str| {
        put("manifests/latest", manifest.as_bytes());
        put(
            &format!("manifests/{}", digest(manifest.as_bytes())),
            manifest.as_bytes(),
        );
    };

    put(&format!("blobs/{}", digest(&good)), &good);
    serve(&manifest(&digest(&good)));
    pull().await.unwrap();
    // A blob that doesn't match its digest.
    let other = Digest::of("other").to_string();
    put(&format!("blobs/{other}"), &good);
    serve(&manifest(&other));
    assert!(matches!(pull().await.unwrap_err().0, FetchReason::Digest { .. }));
    // A manifest that doesn't match its digest.
    let text = manifest(&digest(&good));
    put("manifests/latest", format!("{text} ").as_bytes());
    put(
        &format!("manifests/{}", digest(format!("{text} ").as_bytes())),
        text.as_bytes(),
    );
    assert!(matches!(pull().await.unwrap_err().0, FetchReason::Digest { .. }));
    // Hostile archives, all as tar+gzip.
    let mut hostile: Vec<Vec<u8>> = vec![
        Vec::new(),
        b"text".to_vec(),
        gzip(b"text").unwrap(),
        gzip(&vec![0; 100 << 20]).unwrap(),
        good[..good.len() / 2].to_vec(),
        gzip(&tar(&[]).unwrap()).unwrap(),
    ];
    for name in ["../a", "a/../../b", ".git/config", "a/./b"] {
        let mut header = ::tar::Header::new_gnu();
        header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
        header.set_size(0);
        header.set_cksum();
        hostile.push(gzip(&[header.as_bytes().as_slice(), &[0; 1024]].concat()).unwrap());
    }
    for archive in &hostile {
        put(&format!("blobs/{}", digest(archive)), archive);
        serve(&manifest(&digest(archive)));
        let (reason, told) = pull().await.unwrap_err();
        assert!(
            reason == FetchReason::Archive && !told.contains(char::is_control),
            "{told}"
        );
    }
    // Texts that are not manifests.
    let index = r#"{"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[]}"#;
    let deep = "[".repeat(100_000);
    let huge = format!("{{\"x\":\"{}\"}}", "x".repeat(5 << 20));
    for (text, expected) in [
        ("", FetchReason::Manifest),
        ("<html>", FetchReason::Manifest),
        (index, FetchReason::Manifest),
        (&deep, FetchReason::Manifest),
        ("{}", FetchReason::Manifest),
        (
            r#"{"layers":[{"mediaType":"x","digest":"sha256:../../../etc/passwd"}]}"#,
            FetchReason::Manifest,
        ),
        (&huge, FetchReason::TooLarge { limit: 4 << 20 }),
    ] {
        serve(text);
        let (reason, told) = pull().await.unwrap_err();
        assert!(
            reason == expected && told.len() < 1000 && !told.contains(char::is_control),
            "{told}"
        );
    }
    // Texts that are not lists of tags, or that have no usable tag.
    let tags = async |text: &str| {
        put("tags/list", text.as_bytes());
        Client::new(&format!("oci://{}/apps", origin.host()))
            .pull(range("*"))
            .await
            .unwrap_err()
            .reason
    };
    assert_eq!(tags("x").await, FetchReason::Unexpected);
    assert_eq!(tags(r#"{"tags":{}}"#).await, FetchReason::Unexpected);
    assert!(matches!(
        tags(r#"{"tags":null}"#).await,
        FetchReason::ReferenceMissing(_)
    ));
    assert!(matches!(
        tags(r#"{"tags":["../x","latest","1.0.0/../x"]}"#).await,
        FetchReason::ReferenceMissing(_)
    ));
    let many = format!("{{\"tags\":[{}]}}", vec!["\"1.0.0\""; 100_001].join(","));
    assert!(matches!(tags(&many).await, FetchReason::TooLarge { .. }));
    let outside: Vec<_> = std::fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(outside, ["v2"], "nothing was written elsewhere");
}
