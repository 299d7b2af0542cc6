//! Flux's kustomize-controller applies a folder of our kinds to a hub, as `spec.kubeConfig` has it do for any cluster.

use std::{
    io::{Read as _, Write as _},
    net::TcpListener,
    path::Path,
    process::Command,
    sync::{Arc, Mutex},
};

use anyhow::{Context as _, Result, ensure};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use farwater_api::{ADMIN_NAMESPACE, ServiceDeployment};
use farwater_e2e::{Fleet, PATIENCE, config_map};
use farwater_testkit::{Process, Tools, process::bare_command, shared, wait_for};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client, ResourceExt as _,
    api::{DynamicObject, Patch, PatchParams, PostParams},
    core::{ApiResource, GroupVersionKind},
};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// What the source-controller would serve: the newest archive, under its digest.
#[derive(Clone, Default)]
struct Archives(Arc<Mutex<Vec<u8>>>);

impl Archives {
    /// Its address. It ends with the test.
    fn serve(&self) -> Result<String> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let url = format!("http://{}", listener.local_addr()?);
        let archive = Arc::clone(&self.0);
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                // One short request without a body: its content doesn't matter, there is one file.
                let _ = stream.read(&mut [0; 4096]);
                let body = archive.lock().map(|body| body.clone()).unwrap_or_default();
                let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
                let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&body));
            }
        });
        Ok(url)
    }

    /// Packs files; answers their digest.
    fn pack(&self, files: &[(&str, String)]) -> Result<(String, usize)> {
        let dir = tempfile::tempdir()?;
        for (name, content) in files {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap_or(Path::new("")))?;
            std::fs::write(path, content)?;
        }
        let output =
            Command::new("tar").args(["czf", "-", "-C"]).arg(dir.path()).arg(".").output().context("run tar")?;
        ensure!(output.status.success(), "tar: {}", String::from_utf8_lossy(&output.stderr));
        let digest = format!("sha256:{}", hex::encode(Sha256::digest(&output.stdout)));
        let size = output.stdout.len();
        *self.0.lock().map_err(|_| anyhow::anyhow!("the archive's lock is poisoned"))? = output.stdout;
        Ok((digest, size))
    }
}

fn resource(group: &str, kind: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk(group, "v1", kind))
}

/// Flux in a namespace of a plane, with a source whose archive the test gives.
struct Flux {
    sources: Api<DynamicObject>,
    kustomizations: Api<DynamicObject>,
    archives: Archives,
    url: String,
    _controller: Process,
    _dir: tempfile::TempDir,
}

impl Flux {
    async fn start(plane: &Client, kubeconfig: &Path, namespace: &str, hub_kubeconfig: &Path) -> Result<Self> {
        for path in Tools::find_all()?.flux_crds() {
            let crd: Value = serde_saphyr::from_str(&std::fs::read_to_string(&path)?)?;
            let api: Api<DynamicObject> =
                Api::all_with(plane.clone(), &resource("apiextensions.k8s.io", "CustomResourceDefinition"));
            let name =
                crd.pointer("/metadata/name").and_then(Value::as_str).context("a CRD without a name")?.to_owned();
            api.patch(&name, &PatchParams::apply("test").force(), &Patch::Apply(crd)).await?;
        }
        let namespaces: Api<DynamicObject> = Api::all_with(plane.clone(), &resource("", "Namespace"));
        let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
        namespaces.create(&PostParams::default(), &serde_json::from_value(body)?).await?;
        let secrets: Api<DynamicObject> = Api::namespaced_with(plane.clone(), namespace, &resource("", "Secret"));
        let value = STANDARD.encode(std::fs::read(hub_kubeconfig)?);
        let secret =
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hub"}, "data": {"value": value}});
        secrets.create(&PostParams::default(), &serde_json::from_value(secret)?).await?;

        let dir = tempfile::tempdir()?;
        let mut command = bare_command(Tools::find_all()?.kustomize_controller());
        command
            .env("RUNTIME_NAMESPACE", namespace)
            .env("KUBECONFIG", kubeconfig)
            .env("TMPDIR", dir.path())
            .args(["--metrics-addr=127.0.0.1:0", "--health-addr=127.0.0.1:0", "--events-addr="])
            .args(["--watch-all-namespaces=false", "--enable-leader-election=false", "--requeue-dependency=1s"]);
        let controller = Process::spawn("the kustomize-controller", command, &dir.path().join("log"))?;
        let archives = Archives::default();
        let url = archives.serve()?;
        let api = |group: &str, kind: &str| Api::namespaced_with(plane.clone(), namespace, &resource(group, kind));
        Ok(Self {
            sources: api("source.toolkit.fluxcd.io", "GitRepository"),
            kustomizations: api("kustomize.toolkit.fluxcd.io", "Kustomization"),
            archives,
            url,
            _controller: controller,
            _dir: dir,
        })
    }

    /// As if Git had moved: makes the source point to these files.
    async fn publish(&self, commit: &str, files: &[(&str, String)]) -> Result<()> {
        let (digest, size) = self.archives.pack(files)?;
        let source = json!({
            "apiVersion": "source.toolkit.fluxcd.io/v1", "kind": "GitRepository", "metadata": {"name": "fleet"},
            "spec": {"url": "https://git.example.com/fleet.git", "interval": "1h"},
        });
        self.sources.patch("fleet", &PatchParams::apply("test").force(), &Patch::Apply(source)).await?;
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
        self.sources.patch_status("fleet", &PatchParams::default(), &Patch::Merge(status)).await?;
        Ok(())
    }

    /// Waits until Flux says that it has applied the commit and that everything is ready.
    async fn until_applied(&self, commit: &str) -> Result<()> {
        let applied = wait_for("Flux to apply the commit", PATIENCE, || async {
            let kustomization = self.kustomizations.get("fleet").await?;
            let status = &kustomization.data["status"];
            let ready = status["conditions"]
                .as_array()
                .into_iter()
                .flatten()
                .any(|c| c["type"] == "Ready" && c["status"] == "True");
            let revision = status["lastAppliedRevision"].as_str().unwrap_or_default();
            Ok((ready && revision.ends_with(commit)).then_some(()))
        })
        .await;
        match applied {
            Ok(()) => Ok(()),
            Err(error) => {
                let kustomization = self.kustomizations.get("fleet").await?;
                Err(error.context(format!("{:#}", kustomization.data["status"])))
            }
        }
    }

    async fn reconcile(&self) -> Result<()> {
        let now = jiff::Timestamp::now().to_string();
        let patch = json!({"metadata": {"annotations": {"reconcile.fluxcd.io/requestedAt": now}}});
        self.kustomizations.patch("fleet", &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }
}

fn service(fleet: &Fleet, path: &str) -> String {
    let service = json!({
        "apiVersion": "farwater.dev/v1alpha1", "kind": "ServiceDeployment",
        "metadata": {"name": "web", "namespace": ADMIN_NAMESPACE},
        "spec": {
            "clusterRef": {"name": "east"}, "targetNamespace": fleet.namespace("web"),
            "sourceRef": {"name": "infra"}, "path": path,
        },
    });
    service.to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn flux_applies_a_folder_of_our_kinds_and_waits_for_the_cluster() -> Result<()> {
    let mut fleet = Fleet::start().await?;
    let plane = shared(1).await?;
    fleet.join("east", &plane).await?;
    let repository = fleet.git.create("infra")?;
    repository
        .commit("main", &[("one/map.yaml", &config_map("m", "one")), ("two/map.yaml", &config_map("m", "two"))])?;
    let source = json!({
        "apiVersion": "farwater.dev/v1alpha1", "kind": "GitRepository",
        "metadata": {"name": "infra", "namespace": ADMIN_NAMESPACE}, "spec": {"url": fleet.git.url("infra")},
    });
    let note = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "note", "namespace": ADMIN_NAMESPACE}, "data": {"a": "b"},
    });
    let namespace = fleet.namespace("flux");
    let flux = Flux::start(&plane.client().await?, plane.kubeconfig(), &namespace, &fleet.hub.kubeconfig()).await?;
    let files = [
        ("fleet/source.json", source.to_string()),
        ("fleet/service.json", service(&fleet, "one")),
        ("fleet/note.json", note.to_string()),
    ];
    let kustomization = json!({
        "apiVersion": "kustomize.toolkit.fluxcd.io/v1", "kind": "Kustomization", "metadata": {"name": "fleet"},
        "spec": {
            "interval": "1h", "retryInterval": "5s", "timeout": "60s", "prune": true, "wait": true, "path": "./fleet",
            "sourceRef": {"kind": "GitRepository", "name": "fleet"}, "kubeConfig": {"secretRef": {"name": "hub"}},
        },
    });
    let first = "1".repeat(40);
    flux.publish(
        &first,
        &[
            ("fleet/kustomization.yaml", resources(&["source", "service", "note"])),
            files[0].clone(),
            files[1].clone(),
            files[2].clone(),
        ],
    )
    .await?;
    flux.kustomizations.create(&PostParams::default(), &serde_json::from_value(kustomization)?).await?;
    flux.until_applied(&first).await?;
    // Flux waited for our Ready condition, so the cluster has it.
    let in_cluster: Api<ConfigMap> = Api::namespaced(plane.client().await?, &fleet.namespace("web"));
    ensure!(in_cluster.get("m").await?.data.is_some_and(|data| data["value"] == "one"));
    let web = fleet.service("web").await?;
    let applied = web
        .managed_fields()
        .iter()
        .any(|m| m.manager.as_deref() == Some("kustomize-controller") && m.operation.as_deref() == Some("Apply"));
    ensure!(applied, "{:?}", web.managed_fields());

    // Somebody's change of a field that Flux applied goes back; what Flux doesn't own stays.
    let drift = json!({"metadata": {"labels": {"mine": "yes"}}, "spec": {"path": "two"}});
    fleet.api::<ServiceDeployment>().patch("web", &PatchParams::default(), &Patch::Merge(drift)).await?;
    flux.reconcile().await?;
    fleet.until_service("web", "be as Flux has it", |web| web.spec.path == "one").await?;
    ensure!(fleet.service("web").await?.labels().get("mine").is_some_and(|mine| mine == "yes"));

    // The next commit changes one object and drops another.
    let second = "2".repeat(40);
    let changed = ("fleet/service.json", service(&fleet, "two"));
    flux.publish(
        &second,
        &[("fleet/kustomization.yaml", resources(&["source", "service"])), files[0].clone(), changed],
    )
    .await?;
    flux.until_applied(&second).await?;
    ensure!(in_cluster.get("m").await?.data.is_some_and(|data| data["value"] == "two"));
    let notes: Api<ConfigMap> = fleet.api();
    ensure!(notes.get_opt("note").await?.is_none(), "Flux did not prune what left the folder");
    Ok(())
}

fn resources(names: &[&str]) -> String {
    let files: Vec<String> = names.iter().map(|name| format!("{name}.json")).collect();
    json!({"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": files}).to_string()
}
