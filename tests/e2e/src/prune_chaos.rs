//! Random faults in all parts that lead to deletions: exactly the intended objects are deleted.
//!
//! There are several waves. In a wave each of some services gets its own fault, and all together may get one of the hub
//! or the API server. During the faults and after their repair, every object must be the same, by its uid. Then each
//! service loses one object on purpose. If so many prunes are held that the hub stops all deletions, a person resumes
//! them after the repair.

use std::{
    collections::{BTreeMap, BTreeSet},
    process::Command,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use farwater_api::{APPROVE_PRUNE, CONFIRM_RESTORED, Cluster, GitRepository, ServiceDeployment};
use farwater_testkit::{
    Agent, Hub, Launch, Plane,
    api_faults::{ApiFaults, Faults, Seen},
    farwater::program,
    git::Repository,
    kube::unique_name,
};
use k8s_openapi::{
    api::core::v1::ConfigMap, apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams},
    core::GroupVersionKind,
};
use rand::{
    RngExt as _, SeedableRng as _,
    rngs::StdRng,
    seq::{IndexedRandom as _, SliceRandom as _},
};
use serde::Serialize;
use serde_json::json;

use crate::{Fleet, condition, config_map};

/// Number of services. Each one gets one fault in a wave.
pub const SERVICES: usize = 6;
/// Agents poll every second, so a wrong step would happen within this time.
const WATCHED: Duration = Duration::from_millis(2500);
/// Pause between two checks of the person who resumes deletions.
const PAUSE: Duration = Duration::from_millis(500);
const CLUSTER: &str = "chaos";
/// Name of the single custom resource of a service beside its ConfigMaps.
const BOAT: &str = "Boat";

/// Faults of one service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Fault {
    EmptyFolder,
    FolderGone,
    /// A folder that does not exist.
    PathTypo,
    /// A folder with nearly the same content.
    OtherFolder,
    PartialRender,
    BranchDeleted,
    /// The address of another repository with nearly the same content.
    RepositorySwapped,
    /// A new history of the branch, with nearly the same content.
    OrphanHistory,
}

const FAULTS: [Fault; 8] = [
    Fault::EmptyFolder,
    Fault::FolderGone,
    Fault::PathTypo,
    Fault::OtherFolder,
    Fault::PartialRender,
    Fault::BranchDeleted,
    Fault::RepositorySwapped,
    Fault::OrphanHistory,
];

/// Faults of all services.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Global {
    ListForbidden,
    ListFails,
    DefinitionGone,
    HubRestored,
    TwoHubs,
    AgentRestarted,
}

const GLOBALS: [Global; 6] = [
    Global::ListForbidden,
    Global::ListFails,
    Global::DefinitionGone,
    Global::HubRestored,
    Global::TwoHubs,
    Global::AgentRestarted,
];

#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Outcome {
    pub faults: u64,
    pub kinds: BTreeMap<String, u64>,
    /// Intended deletions.
    pub intended: u64,
    /// How many of them were held prunes that were approved.
    pub approved: u64,
    /// Number of times that the hub stopped all deletions.
    pub frozen: u64,
    /// Unintended deletions.
    pub unintended: Vec<String>,
    pub seen: Seen,
}

impl Outcome {
    pub fn check(&self) -> Result<()> {
        ensure!(
            self.unintended.is_empty(),
            "{} objects went unasked: {:#?}",
            self.unintended.len(),
            self.unintended
        );
        Ok(())
    }

    fn count(&mut self, kind: &str) {
        self.faults += 1;
        *self.kinds.entry(kind.to_owned()).or_default() += 1;
    }
}

struct Service {
    name: String,
    repository: Repository,
    /// Names of its objects, in Git and in the cluster.
    files: BTreeSet<String>,
    next: usize,
}

impl Service {
    fn path(&self, file: &str) -> String {
        format!("app/{file}.yaml")
    }

    fn head(&self) -> String {
        self.repository.branch("main").unwrap_or_default()
    }

    /// All objects except one, as files of a folder.
    fn nearly(&self, folder: &str) -> Vec<(String, String)> {
        let kept = self.files.iter().skip(1);
        kept.map(|name| (format!("{folder}/{name}.yaml"), config_map(name, "one")))
            .collect()
    }
}

/// Fields are dropped in this order, so that the agent ends before its connection to the cluster.
pub struct Chaos {
    fleet: Fleet,
    proxy: ApiFaults,
    plane: kube::Client,
    place: std::path::PathBuf,
    services: Vec<Service>,
    /// Faults of the next waves.
    globals: Vec<Option<Global>>,
    random: StdRng,
    frozen: AtomicU64,
    outcome: Outcome,
}

fn borrowed(files: &[(String, String)]) -> Vec<(&str, &str)> {
    files
        .iter()
        .map(|(path, text)| (path.as_str(), text.as_str()))
        .collect()
}

/// Runs at least this many faults on a plane.
pub async fn run(plane: &Plane, seed: u64, faults: u64, mut told: impl FnMut(&Outcome)) -> Result<Outcome> {
    let mut chaos = Chaos::start(plane, seed).await?;
    while chaos.outcome.faults < faults && chaos.outcome.unintended.is_empty() {
        chaos.wave(plane).await?;
        told(&chaos.outcome);
    }
    chaos.outcome.seen = chaos.proxy.seen();
    chaos.outcome.frozen = chaos.frozen.load(Ordering::Relaxed);
    Ok(chaos.outcome)
}

impl Chaos {
    async fn start(plane: &Plane, seed: u64) -> Result<Self> {
        let mut fleet = Fleet::start().await?;
        fleet.hub.tolerate("restored from a backup");
        fleet.hub.tolerate("nothing is deleted in the fleet any more");
        let place = fleet.state_dir("chaos").with_extension("proxy");
        std::fs::create_dir_all(&place)?;
        let proxy = ApiFaults::start(plane, &place, seed).await?;
        fleet
            .join_in(CLUSTER, plane, proxy.kubeconfig(), Launch::default(), |_| ())
            .await?;
        let mut chaos = Self {
            fleet,
            proxy,
            plane: plane.client().await?,
            place,
            services: Vec::new(),
            globals: Vec::new(),
            random: StdRng::seed_from_u64(seed),
            frozen: AtomicU64::new(0),
            outcome: Outcome::default(),
        };
        chaos.define().await?;
        for n in 0..SERVICES {
            chaos.add_service(&format!("s{n}")).await?;
        }
        for service in &chaos.services {
            chaos.fleet.until_applied(&service.name, &service.head()).await?;
        }
        Ok(chaos)
    }

    /// Runs while a person resumes deletions that the hub has stopped.
    async fn looked_after<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        let look_after = async {
            loop {
                match self.fleet.release_prunes().await {
                    Ok(released) => self.frozen.fetch_add(u64::from(released), Ordering::Relaxed),
                    Err(error) => return error,
                };
                tokio::time::sleep(PAUSE).await;
            }
        };
        tokio::select! {
            done = work => done,
            error = look_after => Err(error),
        }
    }

    fn group(&self) -> String {
        format!("{}.example.com", self.fleet.unique)
    }

    async fn define(&self) -> Result<()> {
        let group = self.group();
        let definition = json!({
            "metadata": {"name": format!("boats.{group}")},
            "spec": {"group": group, "scope": "Namespaced", "names": {"kind": "Boat", "plural": "boats", "singular": "boat"},
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                    "type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]},
        });
        let api: Api<CustomResourceDefinition> = Api::all(self.plane.clone());
        api.create(&Default::default(), &serde_json::from_value(definition)?)
            .await?;
        Ok(())
    }

    async fn add_service(&mut self, name: &str) -> Result<()> {
        let files: BTreeSet<String> = (0..self.random.random_range(8..24))
            .map(|n| format!("m{n:03}"))
            .collect();
        let mut all: Vec<_> = files
            .iter()
            .map(|file| (format!("app/{file}.yaml"), config_map(file, "one")))
            .collect();
        let boat = format!(
            "apiVersion: {}/v1\nkind: Boat\nmetadata: {{name: boat}}\n",
            self.group()
        );
        all.push(("app/boat.yaml".to_owned(), boat));
        all.push(("README".to_owned(), name.to_owned()));
        let repository = self.fleet.repository(name, &borrowed(&all)).await?;
        self.fleet.deploy(name, CLUSTER, name, "app").await?;
        let next = files.len();
        self.services.push(Service {
            name: name.to_owned(),
            repository,
            files,
            next,
        });
        Ok(())
    }

    /// Uids of every ConfigMap and Boat of every service.
    async fn uids(&self) -> Result<BTreeMap<(String, String), String>> {
        let mut all = BTreeMap::new();
        for service in &self.services {
            let api: Api<ConfigMap> = Api::namespaced(self.plane.clone(), &self.fleet.namespace(&service.name));
            for map in api.list(&ListParams::default()).await?.items {
                let name = map.metadata.name.unwrap_or_default();
                if name != "kube-root-ca.crt" {
                    all.insert((service.name.clone(), name), map.metadata.uid.unwrap_or_default());
                }
            }
            for boat in self.boats(&service.name).await? {
                all.insert(
                    (service.name.clone(), BOAT.to_owned()),
                    boat.metadata.uid.unwrap_or_default(),
                );
            }
        }
        Ok(all)
    }

    /// No Boats while their definition is deleted.
    async fn boats(&self, service: &str) -> Result<Vec<DynamicObject>> {
        let kind = ApiResource::from_gvk(&GroupVersionKind::gvk(&self.group(), "v1", "Boat"));
        let api: Api<DynamicObject> = Api::namespaced_with(self.plane.clone(), &self.fleet.namespace(service), &kind);
        match api.list(&ListParams::default()).await {
            Ok(list) => Ok(list.items),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(Vec::new()),
            Err(error) => Err(error.into()),
        }
    }

    async fn note_losses(&mut self, before: &BTreeMap<(String, String), String>, when: &str) -> Result<()> {
        let now = self.uids().await?;
        for (key, uid) in before {
            if now.get(key) != Some(uid) {
                self.outcome.unintended.push(format!("{}/{}: {when}", key.0, key.1));
            }
        }
        Ok(())
    }

    async fn wave(&mut self, plane: &Plane) -> Result<()> {
        let before = self.uids().await?;
        let backup = self.place.join(unique_name("backup")).display().to_string();
        let global = self.next_global();
        if global == Some(Global::HubRestored) {
            admin(&[
                "backup",
                "--data-dir",
                &self.fleet.hub.dir().display().to_string(),
                &backup,
            ])?;
            // Created after the backup, so the restored hub does not know it.
            self.grow().await?;
        }
        let mut before = if global == Some(Global::HubRestored) {
            self.uids().await?
        } else {
            before
        };
        if let Some(global) = global {
            self.inflict_on_all(global, plane, &backup)
                .await
                .with_context(|| format!("{global:?}"))?;
            self.outcome.count(&format!("{global:?}"));
        }
        if global == Some(Global::DefinitionGone) {
            before.retain(|(_, name), _| name != BOAT);
        }
        let heads: Vec<String> = self.services.iter().map(Service::head).collect();
        let faults: Vec<Fault> = (0..SERVICES)
            .map(|_| *FAULTS.choose(&mut self.random).unwrap_or(&Fault::EmptyFolder))
            .collect();
        for (n, fault) in faults.iter().enumerate() {
            self.inflict(n, *fault).await.with_context(|| format!("{fault:?}"))?;
            self.outcome.count(&format!("{fault:?}"));
        }
        let said = format!("{faults:?} {global:?}");
        let reads_fail = matches!(global, Some(Global::ListForbidden | Global::ListFails));
        if !reads_fail {
            for (n, fault) in faults.iter().enumerate() {
                if self.until_noticed(n, *fault).await.with_context(|| said.clone())? {
                    let name = &self.services[n].name;
                    before.retain(|(service, _), _| service != name);
                }
            }
        }
        tokio::time::sleep(WATCHED).await;
        self.note_losses(&before, &format!("during {said}")).await?;
        self.mend_all(global).await?;
        for (n, fault) in faults.iter().enumerate() {
            self.mend(n, *fault, &heads[n])
                .await
                .with_context(|| format!("mend {fault:?}"))?;
        }
        for service in &self.services {
            self.looked_after(self.fleet.until_current(&service.name))
                .await
                .with_context(|| format!("after {said}"))?;
        }
        self.note_losses(&before, &format!("after {said}")).await?;
        self.lose_on_purpose(&before)
            .await
            .with_context(|| format!("after {said}"))
    }

    /// All faults in turn, in a random order each time. Some waves have none.
    fn next_global(&mut self) -> Option<Global> {
        if self.globals.is_empty() {
            self.globals = GLOBALS.into_iter().map(Some).chain([None]).collect();
            self.globals.shuffle(&mut self.random);
        }
        self.globals.pop().flatten()
    }

    /// Adds an object to each service.
    async fn grow(&mut self) -> Result<()> {
        for service in &mut self.services {
            let name = format!("m{:03}", service.next);
            service.next += 1;
            service
                .repository
                .change("main", &[(&service.path(&name), Some(&config_map(&name, "one")))])?;
            service.files.insert(name);
            self.fleet.reconcile(&service.name).await?;
        }
        for service in &self.services {
            self.fleet.until_applied(&service.name, &service.head()).await?;
        }
        Ok(())
    }

    async fn inflict(&mut self, n: usize, fault: Fault) -> Result<()> {
        let service = &self.services[n];
        let (name, repository) = (&service.name, &service.repository);
        let gone: Vec<String> = service.files.iter().map(|file| service.path(file)).collect();
        let first = gone.first().context("a service without objects")?;
        match fault {
            Fault::EmptyFolder => {
                let mut changes: Vec<_> = gone.iter().map(|path| (path.as_str(), None)).collect();
                changes.push(("app/boat.yaml", None));
                changes.push(("app/keep.yaml", Some("---\n")));
                repository.change("main", &changes)?;
            }
            Fault::FolderGone => {
                let mut changes: Vec<_> = gone.iter().map(|path| (path.as_str(), None)).collect();
                changes.push(("app/boat.yaml", None));
                repository.change("main", &changes)?;
            }
            Fault::PathTypo => return self.point(name, "ap").await,
            Fault::OtherFolder => {
                let files = service.nearly("lib");
                let files: Vec<_> = files
                    .iter()
                    .map(|(path, text)| (path.as_str(), Some(text.as_str())))
                    .collect();
                repository.change("main", &files)?;
                self.point(name, "lib").await?;
            }
            Fault::PartialRender => {
                let broken = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: [\n";
                repository.change("main", &[(first, None), ("app/boat.yaml", Some(broken))])?;
            }
            Fault::BranchDeleted => repository.delete_branch("main")?,
            Fault::RepositorySwapped => {
                let other = unique_name("swap");
                let files = service.nearly("app");
                self.fleet.git.create(&other)?.commit("main", &borrowed(&files))?;
                return self.address(name, &self.fleet.git.url(&other)).await;
            }
            Fault::OrphanHistory => {
                repository.rewrite("main", &borrowed(&service.nearly("app")))?;
            }
        }
        self.fleet.reconcile(name).await
    }

    async fn point(&self, service: &str, path: &str) -> Result<()> {
        let patch = Patch::Merge(json!({"spec": {"path": path}}));
        self.fleet
            .api::<ServiceDeployment>()
            .patch(service, &PatchParams::default(), &patch)
            .await?;
        Ok(())
    }

    async fn address(&self, source: &str, url: &str) -> Result<()> {
        let patch = Patch::Merge(json!({"spec": {"url": url}}));
        self.fleet
            .api::<GitRepository>()
            .patch(source, &PatchParams::default(), &patch)
            .await?;
        Ok(())
    }

    /// The visible effect of the fault. True if it led to a deletion that was approved and executed.
    async fn until_noticed(&mut self, n: usize, fault: Fault) -> Result<bool> {
        let name = self.services[n].name.clone();
        if fault == Fault::BranchDeleted {
            let sources: Api<GitRepository> = self.fleet.api();
            let stale = self.fleet.until("the source to be stale", || async {
                let conditions = sources.get(&name).await?.status.unwrap_or_default().conditions;
                Ok((condition(&conditions, "Ready") != Some("True")).then_some(false))
            });
            return stale.await;
        }
        let is_held = !matches!(fault, Fault::FolderGone | Fault::PathTypo | Fault::PartialRender);
        let noticed = self.fleet.until_service(&name, "notice its fault", |service| {
            let Some(status) = &service.status else { return false };
            let ready = condition(&status.conditions, "Ready") == Some("True");
            !ready && (!is_held || status.held_prune.is_some())
        });
        let service = noticed.await?;
        // Emptying a folder may be intended.
        let held = service.status.and_then(|status| status.held_prune);
        if let (Fault::EmptyFolder, Some(held)) = (fault, held)
            && self.random.random_bool(0.5)
            && usize::try_from(held.count).is_ok_and(|count| count > self.services[n].files.len())
        {
            self.approve(n, &held.digest.to_string()).await?;
            return Ok(true);
        }
        Ok(false)
    }

    /// All objects of the held plan are deleted. Then the service starts with new objects.
    async fn approve(&mut self, n: usize, digest: &str) -> Result<()> {
        let name = self.services[n].name.clone();
        self.fleet.annotate(&name, APPROVE_PRUNE, digest).await?;
        let maps: Api<ConfigMap> = Api::namespaced(self.plane.clone(), &self.fleet.namespace(&name));
        let made = self.fleet.until("an approved prune to be made", || async {
            let left = maps.list(&ListParams::default()).await?.items.len();
            Ok((left <= 1).then_some(()))
        });
        self.looked_after(made).await?;
        self.outcome.approved += 1;
        self.outcome.intended += self.services[n].files.len() as u64;
        Ok(())
    }

    async fn inflict_on_all(&mut self, global: Global, plane: &Plane, backup: &str) -> Result<()> {
        match global {
            Global::ListForbidden => self.refuse_reads(403),
            Global::ListFails => self.refuse_reads(500),
            Global::DefinitionGone => {
                let api: Api<CustomResourceDefinition> = Api::all(self.plane.clone());
                let name = format!("boats.{}", self.group());
                api.delete(&name, &DeleteParams::default()).await?;
                let gone = || async { Ok(api.get_opt(&name).await?.is_none().then_some(())) };
                self.fleet.until("the definition to be gone", gone).await
            }
            Global::HubRestored => self.restore_hub(backup).await,
            Global::TwoHubs => self.start_another_hub(plane).await,
            Global::AgentRestarted => self.fleet.agent(CLUSTER)?.restart(),
        }
    }

    /// From an agent that must look up everything again.
    fn refuse_reads(&mut self, status: u16) -> Result<()> {
        self.proxy.set(Faults {
            reads: Some(("/configmaps".to_owned(), status)),
            ..Faults::default()
        });
        self.fleet.agent(CLUSTER)?.restart()
    }

    /// Confirmed before the hub has fetched anything.
    async fn restore_hub(&mut self, backup: &str) -> Result<()> {
        self.fleet.hub.stop()?;
        let data = self.fleet.hub.dir().display().to_string();
        let said = admin(&["restore", "--data-dir", &data, "--force", backup])?;
        let (_, confirmation) = said
            .split_once(&format!("{CONFIRM_RESTORED}="))
            .with_context(|| said.clone())?;
        let epoch: String = confirmation.chars().take_while(char::is_ascii_digit).collect();
        self.fleet.hub.restart().await?;
        self.fleet.client = self.fleet.hub.client().await?;
        let patch = Patch::Merge(json!({"metadata": {"annotations": {CONFIRM_RESTORED: epoch}}}));
        self.fleet
            .api::<Cluster>()
            .patch(CLUSTER, &PatchParams::default(), &patch)
            .await?;
        Ok(())
    }

    /// The agent finds a cluster that still exists.
    async fn start_another_hub(&mut self, plane: &Plane) -> Result<()> {
        let folder = self.place.join(unique_name("hub"));
        let hub = Hub::start(&folder).await?;
        let token = hub.join_token(farwater_api::ADMIN_NAMESPACE, "theirs").await?;
        let mut agent = Agent::start("theirs", &folder.with_extension("agent"), plane.kubeconfig(), token)?;
        agent.tolerate("");
        let ended = agent
            .process()
            .wait(crate::PATIENCE)
            .with_context(|| agent.log_tail())?;
        ensure!(ended.code() == Some(2), "an agent of another hub ended with {ended}");
        Ok(())
    }

    async fn mend_all(&mut self, global: Option<Global>) -> Result<()> {
        match global {
            Some(Global::ListForbidden | Global::ListFails) => self.proxy.set(Faults::default()),
            Some(Global::DefinitionGone) => self.define().await?,
            _ => {}
        }
        Ok(())
    }

    async fn mend(&mut self, n: usize, fault: Fault, head: &str) -> Result<()> {
        let service = &self.services[n];
        let (name, repository) = (&service.name, &service.repository);
        match fault {
            Fault::EmptyFolder | Fault::FolderGone | Fault::OtherFolder | Fault::PartialRender => {
                let mut all: Vec<_> = service
                    .files
                    .iter()
                    .map(|file| (service.path(file), config_map(file, "one")))
                    .collect();
                let boat = format!(
                    "apiVersion: {}/v1\nkind: Boat\nmetadata: {{name: boat}}\n",
                    self.group()
                );
                all.push(("app/boat.yaml".to_owned(), boat));
                all.push(("README".to_owned(), name.clone()));
                repository.commit("main", &borrowed(&all))?;
                if fault == Fault::OtherFolder {
                    self.point(name, "app").await?;
                }
            }
            Fault::PathTypo => self.point(name, "app").await?,
            Fault::BranchDeleted | Fault::OrphanHistory => repository.set_ref("refs/heads/main", head)?,
            Fault::RepositorySwapped => self.address(name, &self.fleet.git.url(name)).await?,
        }
        self.fleet.reconcile(name).await
    }

    /// Removes one object of each service from Git, and adds another one.
    async fn lose_on_purpose(&mut self, before: &BTreeMap<(String, String), String>) -> Result<()> {
        let mut left = before.clone();
        for service in &mut self.services {
            let Some(gone) = service.files.pop_first() else {
                continue;
            };
            let new = format!("m{:03}", service.next);
            service.next += 1;
            let (old, path) = (service.path(&gone), service.path(&new));
            service
                .repository
                .change("main", &[(&old, None), (&path, Some(&config_map(&new, "one")))])?;
            service.files.insert(new);
            left.remove(&(service.name.clone(), gone));
            self.fleet.reconcile(&service.name).await?;
        }
        for service in &self.services {
            let head = service.head();
            self.looked_after(self.fleet.until_applied(&service.name, &head))
                .await?;
            let api: Api<ConfigMap> = Api::namespaced(self.plane.clone(), &self.fleet.namespace(&service.name));
            let gone = || async {
                let found = api.list(&ListParams::default()).await?.items.into_iter();
                let found = found
                    .filter_map(|map| map.metadata.name)
                    .filter(|name| name != "kube-root-ca.crt");
                Ok((found.collect::<BTreeSet<_>>() == service.files).then_some(()))
            };
            let what = format!("{} to hold what Git holds", service.name);
            self.looked_after(self.fleet.until(&what, gone)).await?;
            self.outcome.intended += 1;
        }
        self.note_losses(&left, "where another object was meant").await
    }
}

fn admin(arguments: &[&str]) -> Result<String> {
    let output = Command::new(program("farwater")?)
        .arg("admin")
        .args(arguments)
        .output()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "farwater admin {arguments:?}: {said}");
    Ok(said)
}
