//! A real OCI registry, Debian's docker-registry. Pushes to it like `flux push artifact` and `cosign sign --key`.

mod tokens;

use std::{fs, path::Path, time::Duration};

use anyhow::{Context as _, Result, ensure};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use rcgen::SigningKey as _;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use self::tokens::Tokens;
use crate::{
    Process,
    packages::{self, Package},
    ports,
    process::{bare_command, wait_ready},
    temporary_folder,
};

pub const REGISTRY: Package = Package {
    program: "docker-registry",
    debian: "docker-registry",
};
const READY: Duration = Duration::from_secs(30);
/// User of a registry with authentication. The hash is bcrypt of the password.
pub const LOGIN: (&str, &str) = ("robot", "hunter2");
const HTPASSWD: &str = "robot:$2b$04$5.AV.njMPiN6syezqwtbqeS86gBDkLw9TykEPiYG7eZJV3o53pIuG\n";

pub const FLUX_CONFIG: &str = "application/vnd.cncf.flux.config.v1+json";
pub const FLUX_LAYER: &str = "application/vnd.cncf.flux.content.v1.tar+gzip";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";

/// How users sign in to a registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignIn {
    Nobody,
    Password,
    /// With a token service.
    Token,
}

/// A running registry over plain HTTP. Ends when dropped.
pub struct Registry {
    port: u16,
    login: Option<(&'static str, &'static str)>,
    tokens: Option<Tokens>,
    process: Process,
    _folder: tempfile::TempDir,
}

/// A layer to push.
#[derive(Clone, Debug)]
pub struct Layer {
    pub media_type: String,
    pub content: Vec<u8>,
    pub annotations: Value,
}

impl Layer {
    pub fn new(media_type: &str, content: Vec<u8>) -> Self {
        Self {
            media_type: media_type.to_owned(),
            content,
            annotations: Value::Null,
        }
    }
}

impl Registry {
    pub async fn start(sign_in: SignIn) -> Result<Self> {
        packages::require(&[REGISTRY])?;
        let folder = temporary_folder("farwater-registry-")?;
        let port = ports::free()?;
        let tokens = match sign_in {
            SignIn::Token => Some(Tokens::start(LOGIN).await?),
            _ => None,
        };
        let auth = match sign_in {
            SignIn::Nobody => String::new(),
            SignIn::Password => {
                let file = folder.path().join("htpasswd");
                fs::write(&file, HTPASSWD)?;
                format!("auth: {{htpasswd: {{realm: test, path: {}}}}}\n", file.display())
            }
            SignIn::Token => {
                let tokens = tokens.as_ref().context("a token service runs")?;
                let file = folder.path().join("tokens.crt");
                fs::write(&file, tokens.certificate())?;
                let (realm, file) = (tokens.url(), file.display());
                format!("auth: {{token: {{realm: '{realm}', service: test, issuer: test, rootcertbundle: {file}}}}}\n")
            }
        };
        let config = folder.path().join("config.yml");
        let text = format!(
            "version: 0.1\nlog: {{level: warn, accesslog: {{disabled: true}}}}\n\
             storage: {{filesystem: {{rootdirectory: {}}}, delete: {{enabled: true}}}}\n\
             http: {{addr: '127.0.0.1:{port}'}}\n{auth}",
            folder.path().join("data").display()
        );
        fs::write(&config, text)?;
        let mut command = bare_command(REGISTRY.program);
        command.arg("serve").arg(&config);
        let mut process = Process::spawn("docker-registry", command, &folder.path().join("registry.log"))?;
        let probe = || async {
            tokio::net::TcpStream::connect(("127.0.0.1", port)).await?;
            Ok(())
        };
        wait_ready(&mut [&mut process], READY, probe)
            .await
            .context("start docker-registry")?;
        let login = (sign_in != SignIn::Nobody).then_some(LOGIN);
        Ok(Self {
            port,
            login,
            tokens,
            process,
            _folder: folder,
        })
    }

    /// `127.0.0.1:PORT`.
    pub fn host(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// `oci://127.0.0.1:PORT/NAME`.
    pub fn url(&self, name: &str) -> String {
        format!("oci://{}/{name}", self.host())
    }

    pub fn login(&self) -> Option<(&'static str, &'static str)> {
        self.login
    }

    /// A token of its token service, if it has one.
    pub fn token(&self, name: &str) -> Result<Option<String>> {
        self.tokens.as_ref().map(|tokens| tokens.of(name)).transpose()
    }

    pub fn log(&self) -> String {
        self.process.output()
    }

    async fn send(&self, method: Method, url: &str, kind: &str, body: Vec<u8>) -> Result<Response<Bytes>> {
        let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
        let mut request = Request::builder().method(method.clone()).uri(url);
        if !kind.is_empty() {
            request = request.header(header::CONTENT_TYPE, kind);
        }
        let authorization = match (&self.tokens, self.login) {
            (Some(tokens), _) => Some(format!("Bearer {}", tokens.of(name_in(url).unwrap_or_default())?)),
            (None, Some((name, password))) => Some(format!("Basic {}", STANDARD.encode(format!("{name}:{password}")))),
            (None, None) => None,
        };
        if let Some(authorization) = authorization {
            request = request.header(header::AUTHORIZATION, authorization);
        }
        let response = client.request(request.body(Full::new(body.into()))?).await?;
        let (parts, body) = response.into_parts();
        let bytes = body.collect().await?.to_bytes();
        ensure!(
            parts.status.is_success() || parts.status == StatusCode::NOT_FOUND,
            "{method} {url}: {} {}",
            parts.status,
            String::from_utf8_lossy(&bytes)
        );
        Ok(Response::from_parts(parts, bytes))
    }

    /// Pushes a blob. Returns its digest.
    pub async fn push_blob(&self, name: &str, content: &[u8]) -> Result<String> {
        let digest = digest(content);
        let start = format!("http://{}/v2/{name}/blobs/uploads/", self.host());
        let begun = self.send(Method::POST, &start, "", Vec::new()).await?;
        let place = begun
            .headers()
            .get(header::LOCATION)
            .context("an upload has a place")?
            .to_str()?
            .to_owned();
        let separator = if place.contains('?') { '&' } else { '?' };
        let done = format!("{place}{separator}digest={digest}");
        self.send(Method::PUT, &done, "application/octet-stream", content.to_vec())
            .await?;
        Ok(digest)
    }

    /// Pushes a manifest. Returns its digest.
    pub async fn push_manifest(&self, name: &str, reference: &str, kind: &str, manifest: &[u8]) -> Result<String> {
        let url = format!("http://{}/v2/{name}/manifests/{reference}", self.host());
        let answer = self.send(Method::PUT, &url, kind, manifest.to_vec()).await?;
        ensure!(
            answer.status() == StatusCode::CREATED,
            "push {reference}: {}",
            answer.status()
        );
        Ok(digest(manifest))
    }

    /// Pushes an artifact with these layers. Returns the digest of its manifest.
    pub async fn push(&self, name: &str, tag: &str, config: &str, layers: &[Layer]) -> Result<String> {
        let manifest = self.manifest(name, config, layers, None).await?;
        self.push_manifest(name, tag, MANIFEST, &manifest).await
    }

    async fn manifest(&self, name: &str, config: &str, layers: &[Layer], subject: Option<Value>) -> Result<Vec<u8>> {
        let empty = b"{}";
        let config = json!({"mediaType": config, "digest": self.push_blob(name, empty).await?, "size": empty.len()});
        let mut told = Vec::new();
        for layer in layers {
            let mut one = json!({
                "mediaType": layer.media_type,
                "digest": self.push_blob(name, &layer.content).await?,
                "size": layer.content.len(),
            });
            if !layer.annotations.is_null() {
                one["annotations"] = layer.annotations.clone();
            }
            told.push(one);
        }
        let mut manifest = json!({"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": told});
        if let Some(subject) = subject {
            manifest["subject"] = subject;
        }
        Ok(serde_json::to_vec(&manifest)?)
    }

    /// Pushes files like `flux push artifact`.
    pub async fn push_files(&self, name: &str, tag: &str, files: &[(&str, &str)]) -> Result<String> {
        self.push(name, tag, FLUX_CONFIG, &[Layer::new(FLUX_LAYER, gzip(&tar(files)?)?)])
            .await
    }

    /// Adds another tag to an existing manifest.
    pub async fn tag(&self, name: &str, digest: &str, tag: &str) -> Result<()> {
        let url = format!("http://{}/v2/{name}/manifests/{digest}", self.host());
        let manifest = self.send(Method::GET, &url, "", Vec::new()).await?.into_body();
        self.push_manifest(name, tag, MANIFEST, &manifest).await.map(drop)
    }

    /// Deletes a manifest, and with it all its tags.
    pub async fn delete(&self, name: &str, digest: &str) -> Result<()> {
        let url = format!("http://{}/v2/{name}/manifests/{digest}", self.host());
        self.send(Method::DELETE, &url, "", Vec::new()).await.map(drop)
    }

    /// Signs like `cosign sign --key` of cosign 2: with a manifest whose tag contains the digest of the signed one.
    pub async fn sign(&self, name: &str, digest: &str, key: &CosignKey) -> Result<()> {
        let payload = serde_json::to_vec(&json!({
            "critical": {
                "identity": {"docker-reference": format!("{}/{name}", self.host())},
                "image": {"docker-manifest-digest": digest},
                "type": "cosign container image signature",
            },
            "optional": null,
        }))?;
        self.sign_payload(name, digest, payload, key).await
    }

    /// Signs a payload with other content.
    pub async fn sign_payload(&self, name: &str, digest: &str, payload: Vec<u8>, key: &CosignKey) -> Result<()> {
        let signature = STANDARD.encode(key.0.sign(&payload)?);
        let mut layer = Layer::new("application/vnd.dev.cosign.simplesigning.v1+json", payload);
        layer.annotations = json!({"dev.cosignproject.cosign/signature": signature});
        let tag = format!("{}.sig", digest.replace(':', "-"));
        self.push(name, &tag, "application/vnd.oci.image.config.v1+json", &[layer])
            .await
            .map(drop)
    }

    /// Signs like cosign 3: with a bundle that refers to the signed manifest. Without the referrers API it is listed at
    /// a tag.
    pub async fn sign_with_bundle(&self, name: &str, digest: &str, key: &CosignKey) -> Result<()> {
        const BUNDLE: &str = "application/vnd.dev.sigstore.bundle.v0.3+json";
        const IN_TOTO: &str = "application/vnd.in-toto+json";
        let hex = digest.trim_start_matches("sha256:");
        let statement = serde_json::to_vec(&json!({
            "_type": "https://in-toto.io/Statement/v1",
            "subject": [{"digest": {"sha256": hex}}],
            "predicateType": "https://sigstore.dev/cosign/sign/v1",
            "predicate": {},
        }))?;
        let mut message = format!("DSSEv1 {} {IN_TOTO} {} ", IN_TOTO.len(), statement.len()).into_bytes();
        message.extend_from_slice(&statement);
        let bundle = serde_json::to_vec(&json!({
            "mediaType": BUNDLE,
            "verificationMaterial": {"publicKey": {"hint": "test"}},
            "dsseEnvelope": {
                "payload": STANDARD.encode(&statement),
                "payloadType": IN_TOTO,
                "signatures": [{"sig": STANDARD.encode(key.0.sign(&message)?), "keyid": ""}],
            },
        }))?;
        let subject = json!({"mediaType": MANIFEST, "digest": digest, "size": 1});
        let empty = "application/vnd.oci.empty.v1+json";
        let manifest = self
            .manifest(name, empty, &[Layer::new(BUNDLE, bundle)], Some(subject))
            .await?;
        let reference = self::digest(&manifest);
        self.push_manifest(name, &reference, MANIFEST, &manifest).await?;
        let listed = json!({
            "schemaVersion": 2, "mediaType": INDEX,
            "manifests": [{
                "mediaType": MANIFEST, "digest": reference, "size": manifest.len(), "artifactType": BUNDLE,
            }],
        });
        let tag = digest.replace(':', "-");
        self.push_manifest(name, &tag, INDEX, &serde_json::to_vec(&listed)?)
            .await
            .map(drop)
    }
}

/// The repository in an address of the registry.
fn name_in(url: &str) -> Option<&str> {
    let path = url.split_once("/v2/")?.1;
    path.split_once("/blobs/")
        .or_else(|| path.split_once("/manifests/"))
        .map(|(name, _)| name)
}

/// A key pair as cosign creates it.
pub struct CosignKey(rcgen::KeyPair);

impl CosignKey {
    pub fn generate() -> Result<Self> {
        Ok(Self(rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)?))
    }

    pub fn generate_ed25519() -> Result<Self> {
        Ok(Self(rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519)?))
    }

    /// PEM of the public key.
    pub fn public(&self) -> String {
        self.0.public_key_pem()
    }
}

pub fn digest(content: &[u8]) -> String {
    format!("sha256:{}", hex::encode(Sha256::digest(content)))
}

/// A tar of files, as common tools write it.
pub fn tar(files: &[(&str, &str)]) -> Result<Vec<u8>> {
    let mut builder = tar::Builder::new(Vec::new());
    for (path, content) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        header.set_mtime(1_700_000_000);
        builder.append_data(&mut header, Path::new(path), content.as_bytes())?;
    }
    Ok(builder.into_inner()?)
}

pub fn gzip(bytes: &[u8]) -> Result<Vec<u8>> {
    use std::io::Write as _;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(bytes)?;
    Ok(encoder.finish()?)
}
