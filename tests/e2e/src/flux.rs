//! Flux's kustomize-controller in a namespace of a plane. There is no source-controller: tests set the source's
//! archives.

use std::{
    io::{Read as _, Write as _},
    net::TcpListener,
    path::Path,
    process::Command,
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use farwater_testkit::{Process, Tools, process::bare_command, wait_for_all};
use kube::{
    Api, Client,
    api::{DynamicObject, Patch, PatchParams, PostParams},
    core::{ApiResource, GroupVersionKind},
};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// Name of the source, for `spec.sourceRef` of a Kustomization.
pub const SOURCE: &str = "fleet";

/// Serves the newest archive under its digest, in place of the source-controller.
#[derive(Clone, Default)]
struct Archives(Arc<Mutex<Vec<u8>>>);

impl Archives {
    /// Address of the server, which ends with this process.
    fn serve(&self) -> Result<String> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let url = format!("http://{}", listener.local_addr()?);
        let archive = Arc::clone(&self.0);
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                // The content of the short request doesn't matter, because there is only one file.
                let _ = stream.read(&mut [0; 4096]);
                let body = archive.lock().map(|body| body.clone()).unwrap_or_default();
                let head = format!(
                    "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                    body.len()
                );
                let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&body));
            }
        });
        Ok(url)
    }

    /// Packs files. Returns the digest of the archive.
    fn pack(&self, files: &[(&str, String)]) -> Result<(String, usize)> {
        let dir = tempfile::tempdir()?;
        for (name, content) in files {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap_or(Path::new("")))?;
            std::fs::write(path, content)?;
        }
        let output = Command::new("tar")
            .args(["czf", "-", "-C"])
            .arg(dir.path())
            .arg(".")
            .output()
            .context("run tar")?;
        ensure!(
            output.status.success(),
            "tar: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        let digest = format!("sha256:{}", hex::encode(Sha256::digest(&output.stdout)));
        let size = output.stdout.len();
        *self
            .0
            .lock()
            .map_err(|_| anyhow::anyhow!("the archive's lock is poisoned"))? = output.stdout;
        Ok((digest, size))
    }
}

fn resource(group: &str, kind: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk(group, "v1", kind))
}

/// The controller ends when this is dropped. Applied objects stay.
pub struct Flux {
    sources: Api<DynamicObject>,
    kustomizations: Api<DynamicObject>,
    archives: Archives,
    url: String,
    controller: Process,
    _dir: tempfile::TempDir,
}

impl Flux {
    /// Starts it in a new namespace, as the current user of `kubeconfig`, with further `arguments`.
    pub async fn start(plane: &Client, kubeconfig: &Path, namespace: &str, arguments: &[&str]) -> Result<Self> {
        for path in Tools::find_all()?.flux_crds() {
            let crd: Value = serde_saphyr::from_str(&std::fs::read_to_string(&path)?)?;
            let api: Api<DynamicObject> = Api::all_with(
                plane.clone(),
                &resource("apiextensions.k8s.io", "CustomResourceDefinition"),
            );
            let name = crd
                .pointer("/metadata/name")
                .and_then(Value::as_str)
                .context("a CRD without a name")?
                .to_owned();
            api.patch(&name, &PatchParams::apply("test").force(), &Patch::Apply(crd))
                .await?;
        }
        let namespaces: Api<DynamicObject> = Api::all_with(plane.clone(), &resource("", "Namespace"));
        let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
        namespaces
            .create(&PostParams::default(), &serde_json::from_value(body)?)
            .await?;

        let dir = tempfile::tempdir()?;
        let mut command = bare_command(Tools::find_all()?.kustomize_controller());
        command
            .env("RUNTIME_NAMESPACE", namespace)
            .env("KUBECONFIG", kubeconfig)
            .env("TMPDIR", dir.path())
            .args([
                "--metrics-addr=127.0.0.1:0",
                "--health-addr=127.0.0.1:0",
                "--events-addr=",
            ])
            .args([
                "--watch-all-namespaces=false",
                "--enable-leader-election=false",
                "--requeue-dependency=1s",
            ])
            .args(arguments);
        let controller = Process::spawn("the kustomize-controller", command, &dir.path().join("log"))?;
        let archives = Archives::default();
        let url = archives.serve()?;
        let api = |group: &str, kind: &str| Api::namespaced_with(plane.clone(), namespace, &resource(group, kind));
        Ok(Self {
            sources: api("source.toolkit.fluxcd.io", "GitRepository"),
            kustomizations: api("kustomize.toolkit.fluxcd.io", "Kustomization"),
            archives,
            url,
            controller,
            _dir: dir,
        })
    }

    pub fn process(&self) -> &Process {
        &self.controller
    }

    /// Points the source to these files, as after a commit.
    pub async fn publish(&self, commit: &str, files: &[(&str, String)]) -> Result<()> {
        let (digest, size) = self.archives.pack(files)?;
        let source = json!({
            "apiVersion": "source.toolkit.fluxcd.io/v1", "kind": "GitRepository", "metadata": {"name": SOURCE},
            "spec": {"url": "https://git.example.com/fleet.git", "interval": "1h"},
        });
        self.sources
            .patch(SOURCE, &PatchParams::apply("test").force(), &Patch::Apply(source))
            .await?;
        let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let status = json!({"status": {
            "observedGeneration": 1,
            "artifact": {
                "digest": digest, "size": size, "lastUpdateTime": now, "path": "fleet.tar.gz",
                "revision": format!("main@sha1:{commit}"), "url": format!("{}/{commit}.tar.gz", self.url),
            },
            "conditions": [{
                "type": "Ready", "status": "True", "reason": "Succeeded", "message": "stored",
                "lastTransitionTime": now, "observedGeneration": 1,
            }],
        }});
        self.sources
            .patch_status(SOURCE, &PatchParams::default(), &Patch::Merge(status))
            .await?;
        Ok(())
    }

    /// Creates a Kustomization of the source. `spec`: all other fields.
    pub async fn add(&self, name: &str, mut spec: Value) -> Result<()> {
        spec["sourceRef"] = json!({"kind": "GitRepository", "name": SOURCE});
        let kustomization = serde_json::from_value(json!({
            "apiVersion": "kustomize.toolkit.fluxcd.io/v1", "kind": "Kustomization",
            "metadata": {"name": name}, "spec": spec,
        }))?;
        let created = self.kustomizations.create(&PostParams::default(), &kustomization).await;
        created.with_context(|| format!("create the Kustomization {name}"))?;
        Ok(())
    }

    /// Waits until Flux reports that every Kustomization has applied the commit and is ready.
    pub async fn until_applied(&self, commit: &str, patience: Duration) -> Result<()> {
        let check = |kustomization: &DynamicObject| check_applied(kustomization, commit);
        let applied = wait_for_all("Flux to apply the commit", patience, &self.kustomizations, check).await;
        applied.with_context(|| self.controller.tail())
    }

    /// Requests a reconcile now.
    pub async fn reconcile(&self, name: &str) -> Result<()> {
        let now = jiff::Timestamp::now().to_string();
        let patch = json!({"metadata": {"annotations": {"reconcile.fluxcd.io/requestedAt": now}}});
        self.kustomizations
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await?;
        Ok(())
    }
}

fn check_applied(kustomization: &DynamicObject, commit: &str) -> Result<()> {
    let status = &kustomization.data["status"];
    let mut conditions = status["conditions"].as_array().into_iter().flatten();
    let ready = conditions.any(|c| c["type"] == "Ready" && c["status"] == "True");
    let revision = status["lastAppliedRevision"].as_str().unwrap_or_default();
    ensure!(ready && revision.ends_with(commit), "its status is {status:#}");
    Ok(())
}
