//! The inputs of a plan: the objects of the source, the live objects, and everything else that decides. The same for
//! carrying a plan out and for showing it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use farwater_api::{
    ADMIN_NAMESPACE,
    protocol::{Deployment, ServiceAccount, ServiceIdentity},
};
use farwater_fleet::{
    hooks::{Occasion, Record, version_of},
    origin::Origin,
    plan::{
        Again, Cooling, GroupVersionKind, Inventory, Live, ObjectKey, Plan, PlanInput, Render, RenderedObject,
        Resolved, Terms, plan, resolve,
    },
    test_jobs::render_tests,
    transfer::{Transfers, may_transfer},
};
use tokio::time::Instant;

use super::{ServiceTask, Superseded};
use crate::{
    Agent,
    bundles::Shelf,
    execute::Executor,
    handed::Handed,
    hub::chain,
    kubernetes::{ApiError, escape},
    lookup::{Lookup, Query},
    render::{ClusterAsker, kept::key_of},
    sealed::Access,
    sops::Opened,
    tombstones::Tombstones,
};

/// Why an attempt could not begin, as a text for the report.
pub(crate) struct Stopped(pub(crate) String);

/// The basis of one service.
#[derive(Clone, Copy)]
pub(crate) struct Basis<'a> {
    pub agent: &'a Agent,
    pub service: &'a ServiceIdentity,
}

/// The known state of the cluster, and of earlier attempts.
#[derive(Clone, Copy)]
pub(crate) struct Known<'a> {
    pub inventory: &'a Inventory,
    pub live: &'a BTreeMap<ObjectKey, Live>,
    pub cooling: &'a Cooling,
}

/// The state before a deployment.
#[derive(Clone, Copy)]
pub(crate) struct Before<'a> {
    /// The deployment that the service was last asked to keep applied.
    pub deployment: Option<&'a Deployment>,
    pub inventory: &'a Inventory,
    /// The hooks that have run.
    pub hooks: Option<&'a Record>,
}

/// The remembered form of a deployment, without requests that end with their attempt.
pub(super) fn remembered(deployment: &Deployment) -> Deployment {
    Deployment {
        approved_prune: None,
        undo: None,
        retry_hook: None,
        ..deployment.clone()
    }
}

/// Returns begun deletions to the guards if `deployment` is not the one that began them, i.e. not `last`. Returns
/// whether there were any.
pub(crate) fn spare_begun(inventory: &mut Inventory, last: Option<&Deployment>, deployment: &Deployment) -> bool {
    last != Some(&remembered(deployment)) && inventory.spare_doomed()
}

/// The state that only a service's own task knows, as between two attempts.
#[derive(Debug, Default)]
pub struct Snapshot {
    pub inventory: Inventory,
    /// The deployment that the service was last asked to keep applied.
    pub deployment: Option<Deployment>,
    pub cooling: Cooling,
    /// The hooks that have run.
    pub hooks: Option<Record>,
}

impl Snapshot {
    pub fn before(&self) -> Before<'_> {
        Before {
            deployment: self.deployment.as_ref(),
            inventory: &self.inventory,
            hooks: self.hooks.as_ref(),
        }
    }
}

impl ServiceTask {
    pub(super) fn before(&self) -> Before<'_> {
        let stored = &self.stored;
        Before {
            deployment: stored.deployment.as_ref(),
            inventory: &stored.inventory,
            hooks: stored.hooks.as_ref(),
        }
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        Snapshot {
            inventory: self.stored.inventory.clone(),
            deployment: self.stored.deployment.clone(),
            cooling: self.fights.cooling(Instant::now()),
            hooks: self.stored.hooks.clone(),
        }
    }
}

impl<'a> Basis<'a> {
    pub fn tombstones(&self) -> Tombstones<'a> {
        let Self { agent, service } = *self;
        let installation = agent.identity().installation.clone();
        Tombstones {
            kubernetes: &agent.kubernetes,
            kinds: &agent.kinds,
            listed: &agent.listed_tombstones,
            installation,
            service,
        }
    }
}

impl Basis<'_> {
    /// The source's objects as sent, and the errors of what can't be read.
    pub async fn read_source(
        &self,
        deployment: &Deployment,
        before: Before<'_>,
        shelf: Shelf,
    ) -> Result<(Resolved, Vec<String>), Stopped> {
        let agent = self.agent;
        let identity = agent.identity();
        let caller = agent.caller(&identity);
        let access = Access {
            shelf,
            hub: &agent.hub,
            caller: &caller,
            kubernetes: &agent.kubernetes,
            last: before.deployment,
        };

        let opened = self.open_bundle(deployment, access).await?;
        let (handed, reads_cluster) = self.open_values(deployment, &opened, access).await?;
        let occasion = occasion_of(deployment, before);
        let (mut render, mut again) = self.render(deployment, (&opened, &handed), occasion, shelf).await?;
        let veil = handed.veil.clone();
        let sees_occasion = !crate::render::is_always_the_same(&opened.archive, deployment);
        drop((opened, handed));

        let beside = self.render_beside(deployment, access).await?;
        if let Some(again) = &mut again {
            again.objects.extend(beside.iter().cloned());
        }
        render.objects.extend(beside);
        let errors = render.errors.clone();

        let mut resolved = self.resolve(deployment, render, again).await?;
        (resolved.veil, resolved.reads_cluster, resolved.sees_occasion) = (veil, reads_cluster, sees_occasion);
        Ok((resolved, errors))
    }

    /// The bundle, with its encrypted files decrypted.
    async fn open_bundle(&self, deployment: &Deployment, access: Access<'_>) -> Result<Opened, Stopped> {
        let Access { shelf, hub, caller, .. } = access;
        let bundles = &self.agent.bundles;
        let archive = bundles.open(deployment, shelf, hub, caller, access.kubernetes).await;
        let archive = archive.map_err(|e| Stopped(chain(&e)))?;
        crate::sops::open(archive, caller.identity).map_err(|e| Stopped(chain(&e)))
    }

    /// The values for the templates, and whether some of them come from the cluster's Secrets.
    async fn open_values(
        &self,
        deployment: &Deployment,
        opened: &Opened,
        access: Access<'_>,
    ) -> Result<(Handed, bool), Stopped> {
        let sealed = &self.agent.sealed;
        let parameters = sealed.open_parameters(&self.service.uid, deployment, access).await;
        let mut parameters = parameters.map_err(|e| Stopped(chain(&e)))?;
        let reads_cluster = parameters
            .as_ref()
            .is_some_and(|parameters| !parameters.from_cluster.is_empty());
        if let Some(parameters) = &mut parameters {
            let filled = crate::cluster_secrets::fill(access.kubernetes, deployment, parameters).await;
            filled.map_err(|e| Stopped(chain(&e)))?;
        }

        let stated = (deployment.target_namespace.as_str(), &deployment.configuration);
        let mut handed = Handed::of(parameters, self.service, stated, &access.caller.identity.cluster);
        handed.veil.join(&opened.veil);
        Ok((handed, reads_cluster))
    }

    /// The render of the bundle, or the kept one of an earlier attempt. For a preview also a second render, which shows
    /// which values a chart generates, so that the plan can name them.
    async fn render(
        &self,
        deployment: &Deployment,
        (opened, handed): (&Opened, &Handed),
        occasion: Occasion,
        shelf: Shelf,
    ) -> Result<(Render, Option<Render>), Stopped> {
        let Agent {
            kubernetes,
            kinds,
            renderers,
            kept_renders,
            ..
        } = self.agent;
        let uid = &self.service.uid;
        let explain = |error: ApiError| Stopped(format!("keep the generated values of its charts: {}", chain(&error)));
        let key = key_of(&opened.archive, deployment, handed.values());
        if let Some(key) = key
            && let Some(mut kept) = kept_renders.find(kubernetes, uid, key).await.map_err(explain)?
        {
            opened.check(&mut kept);
            return Ok((kept, None));
        }

        let account = &deployment.ceiling.service_account;
        let cluster = ClusterAsker {
            kubernetes,
            kinds,
            account,
        };
        let of = (self.service.name.as_str(), occasion);
        let run = |uncached| renderers.render((opened, uncached), handed, deployment, of, &cluster);
        let mut render = run(false).await;
        opened.check(&mut render);

        match (key, shelf) {
            (Some(_), Shelf::Passing) if render.errors.is_empty() => {
                let again = run(true).await;
                Ok((render, Some(again).filter(|again| again.errors.is_empty())))
            }
            (Some(key), Shelf::Kept) => {
                // The next attempt would generate other values.
                if let Some(error) = render.errors.first() {
                    return Err(Stopped(error.clone()));
                }
                let keeping = kept_renders.keep(kubernetes, uid, key, &render);
                keeping.await.map_err(explain)?;
                Ok((render, None))
            }
            _ => Ok((render, None)),
        }
    }

    /// The objects that come from the service's entry and not from its bundle: tests and Secrets.
    async fn render_beside(&self, deployment: &Deployment, access: Access<'_>) -> Result<Vec<RenderedObject>, Stopped> {
        let mut beside = render_tests(&self.service.name, &deployment.tests);
        let secrets = self.agent.sealed.open(&self.service.uid, deployment, access).await;
        let secrets = secrets.map_err(|e| Stopped(chain(&e)))?;
        beside.extend(crate::sealed::render(secrets, &deployment.target_namespace));
        Ok(beside)
    }

    /// Resolves a render and its repetition, after learning the scopes of the kinds in it.
    async fn resolve(
        &self,
        deployment: &Deployment,
        render: Render,
        again: Option<Render>,
    ) -> Result<Resolved, Stopped> {
        let Agent { kinds, kubernetes, .. } = self.agent;
        let wanted: BTreeSet<GroupVersionKind> = crate::render::kinds(&render);
        kinds
            .learn(kubernetes, wanted.iter().cloned())
            .await
            .map_err(|e| Stopped(format!("learn which kinds the cluster serves: {e}")))?;
        let scopes = kinds.scopes(wanted);

        let terms = Terms {
            target_namespace: &deployment.target_namespace,
            ceiling: &deployment.ceiling,
            options: &deployment.options,
        };
        let mut resolved = resolve(render, &self.service.uid, terms, &scopes);
        resolved.again = again.map(|again| Again::of(resolve(again, &self.service.uid, terms, &scopes)));
        Ok(resolved)
    }

    /// Looks up the objects that no watch keeps up to date.
    pub async fn look_up(
        &self,
        account: &ServiceAccount,
        inventory: &Inventory,
        resolved: &Resolved,
        live: &mut BTreeMap<ObjectKey, Live>,
    ) {
        let agent = self.agent;
        let entries = &inventory.entries;
        // Absent and forbidden objects are looked up again, because no watch reports when that changes.
        live.retain(|key, live| {
            matches!(live, Live::Present(_))
                && entries.get(key).is_some_and(|entry| {
                    let resource = agent.kinds.get(&GroupVersionKind::from(&entry.object));
                    resource.is_some_and(|r| agent.watches.covers(account, &r, key.namespace()))
                })
        });
        let mut queries = Vec::new();
        for object in &resolved.objects {
            let key = object.key();
            let served = agent.kinds.get(&GroupVersionKind::from(&object.object)).is_some();
            if served && !live.contains_key(&key) {
                let labelled = entries.get(&key).is_some_and(|e| e.uid.is_some());
                queries.push(Query {
                    key,
                    version: object.object.version.clone(),
                    labelled,
                });
            }
        }
        let asked: BTreeSet<ObjectKey> = queries.iter().map(|q| q.key.clone()).collect();
        queries.extend(of_inventory(inventory).filter(|q| !live.contains_key(&q.key) && !asked.contains(&q.key)));
        let mut found = self.lookup(account).run(queries).await;
        self.explain_refusals(account, &resolved.target_namespace, &mut found)
            .await;
        live.extend(found);
    }

    /// Names a missing account in refusals. The API server refuses an account that does not exist in the same words as
    /// one without rights.
    async fn explain_refusals(&self, account: &ServiceAccount, target: &str, found: &mut BTreeMap<ObjectKey, Live>) {
        let is_refused = |live: &&mut Live| matches!(live, Live::Forbidden(message) if is_of_authorizer(message));
        if !found.values_mut().any(|live| is_refused(&live)) {
            return;
        }
        let ServiceAccount { namespace, name } = account;
        let path = format!(
            "/api/v1/namespaces/{}/serviceaccounts/{}",
            escape(namespace),
            escape(name)
        );
        // An older installation lacks this right; then the API server's message stays.
        let answer = self.agent.kubernetes.get(None, &path, true).await;
        if !answer.is_err_and(|error| error.is_not_found()) {
            return;
        }
        let (cluster, remedy) = (&self.agent.identity().cluster.name, self.preparation(target));
        let message =
            format!("ServiceAccount {namespace}/{name} does not exist in cluster {cluster}; {remedy} makes it");
        for live in found.values_mut().filter(is_refused) {
            *live = Live::Forbidden(message.clone());
        }
    }

    /// Looks up everything that was applied.
    pub async fn look_up_all(&self, account: &ServiceAccount, inventory: &Inventory) -> BTreeMap<ObjectKey, Live> {
        self.lookup(account).run(of_inventory(inventory).collect()).await
    }

    pub fn lookup<'a>(&'a self, account: &'a ServiceAccount) -> Lookup<'a> {
        Lookup {
            kubernetes: &self.agent.kubernetes,
            kinds: &self.agent.kinds,
            account,
            service_uid: &self.service.uid,
        }
    }

    /// An executor that acts as this account, and judges by the built-in health rules.
    pub fn executor<'a>(&'a self, account: &'a ServiceAccount, superseded: Superseded) -> Executor<'a> {
        let (kubernetes, kinds, tombstones) = (&self.agent.kubernetes, &self.agent.kinds, self.tombstones());
        let service = &self.service.uid;
        let leaving = &self.agent.leaving;
        Executor {
            kubernetes,
            kinds,
            account,
            service,
            tombstones,
            rules: Arc::default(),
            leaving,
            superseded,
        }
    }

    /// How other services are related to this one's objects, as they last reported.
    pub fn transfers(&self) -> Transfers {
        let name = self.name();
        let claims = self.agent.claims_on(&self.service.uid);
        let claimed = claims
            .into_iter()
            .filter(|(_, contender)| may_transfer(&name, contender))
            .collect();
        let others = self.agent.leaving.others(&self.service.uid);
        Transfers {
            offered: self.agent.leaving.offered_to(&name),
            claimed,
            others,
        }
    }

    pub fn name(&self) -> String {
        format!("{}/{}", self.service.namespace, self.service.name)
    }

    pub async fn make_plan(&self, deployment: &Deployment, resolved: &Resolved, known: Known<'_>) -> Plan {
        let services = self.agent.service_names();
        let target_namespace_exists = self.target_namespace_exists(deployment, known).await;
        let (origin, transfers) = (origin(deployment), self.transfers());
        plan(&PlanInput {
            service_uid: &self.service.uid,
            prune: deployment.prune,
            approved_prune: deployment.approved_prune,
            resolved,
            inventory: known.inventory,
            live: known.live,
            services: &services,
            cooling: known.cooling,
            target_namespace_exists,
            hold_prune: deployment.hold_prune.as_deref(),
            origin: Some(&origin),
            transfers: &transfers,
        })
    }

    /// The administrator's command that makes account and namespace for services of this tenant.
    pub(super) fn preparation(&self, target: &str) -> String {
        match self.service.namespace.as_str() {
            ADMIN_NAMESPACE => {
                format!(
                    "`farwater cluster join {} --context CONTEXT`",
                    self.agent.identity().cluster.name
                )
            }
            tenant => {
                format!("`farwater tenant prepare {tenant} --target-namespace {target} --apply --context CONTEXT`")
            }
        }
    }

    /// Asked as the agent itself: a tenant's account need not be allowed to read namespaces, and all that it learns is
    /// that its own target exists. Only where something may have to be created in it.
    async fn target_namespace_exists(&self, deployment: &Deployment, known: Known<'_>) -> Option<bool> {
        let lacks_something = known
            .live
            .iter()
            .any(|(key, live)| key.namespace() == deployment.target_namespace && !matches!(live, Live::Present(_)));
        let lacks_something = lacks_something || known.inventory.entries.is_empty();
        if !lacks_something {
            return None;
        }
        let path = format!("/api/v1/namespaces/{}", escape(&deployment.target_namespace));
        match self.agent.kubernetes.get(None, &path, true).await {
            Ok(_) => Some(true),
            Err(e) if e.is_not_found() => Some(false),
            Err(_) => None,
        }
    }
}

/// Not one of the agent's own limits.
fn is_of_authorizer(message: &str) -> bool {
    message.contains("is forbidden: User ")
}

fn of_inventory(inventory: &Inventory) -> impl Iterator<Item = Query> {
    inventory.entries.iter().map(|(key, entry)| Query {
        key: key.clone(),
        version: entry.object.version.clone(),
        labelled: entry.uid.is_some(),
    })
}

/// Whether a version is the first one of its service, for its hooks.
fn occasion_of(deployment: &Deployment, before: Before<'_>) -> Occasion {
    Record::next(
        before.hooks.cloned(),
        version_of(deployment),
        before.inventory.baseline > 0,
    )
    .occasion
}

/// The origin of a deployment's objects.
pub(super) fn origin(deployment: &Deployment) -> Origin {
    Origin {
        root: deployment.origin.clone(),
        path: deployment.path.clone(),
    }
}
