//! The cluster that the hub or the agent is installed in, found in the same way as by kubectl.

use std::{
    fmt,
    path::Path,
    slice,
    time::{Duration, Instant},
};

use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec};
use kube::{
    Api, Client, Config,
    api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
    core::{ApiResource, DynamicObject},
};
use serde_json::Value;

use crate::{
    exit,
    failure::{Failure, Result, suggest},
    text,
};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(500);
/// Field manager of the objects.
const MANAGER: &str = "farwater-cli";
const AT_ONCE: usize = 8;
const PART_OF: &str = "app.kubernetes.io/part-of";

/// Name of the context for the cluster of the pod that the command runs in.
const IN_CLUSTER: &str = "in-cluster";

/// Whether the object has Farwater's label.
pub fn is_ours(metadata: &ObjectMeta) -> bool {
    metadata
        .labels
        .as_ref()
        .is_some_and(|labels| labels.get(PART_OF).is_some_and(|part| part == "farwater"))
}

pub fn not_ours(object: &str) -> Failure {
    Failure::new(
        exit::CONFLICT,
        format!("{object} is there and not ours; nothing was changed"),
    )
    .evidence(format!("it lacks the label {PART_OF}=farwater"))
    .next("remove or rename it, or label it if it is")
}

pub struct Target {
    pub client: Client,
    /// The context's name.
    pub context: String,
    server: String,
}

impl Target {
    /// Opens the context of this name. None: the current one. [`IN_CLUSTER`] is the cluster of the pod that the program
    /// runs in, unless the kubeconfig has a context of that name.
    pub async fn open(kubeconfig: Option<&Path>, context: Option<&str>) -> Result<Self> {
        let read = match kubeconfig {
            Some(path) => Kubeconfig::read_from(path),
            None => Kubeconfig::read(),
        };
        let has_none = || {
            !read
                .as_ref()
                .is_ok_and(|file| file.contexts.iter().any(|one| one.name == IN_CLUSTER))
        };
        if context == Some(IN_CLUSTER) && has_none() {
            let config = Config::incluster().map_err(|error| {
                Failure::usage("this is no pod with a service account: --context in-cluster names its cluster")
                    .evidence(crate::failure::chain(&error))
            })?;
            return Self::of(IN_CLUSTER.to_owned(), config);
        }
        let kubeconfig = read.map_err(|error| {
            Failure::usage("no kubeconfig of the cluster can be read")
                .evidence(crate::failure::chain(&error))
                .next("name it by KUBECONFIG, as for kubectl")
        })?;

        let known: Vec<String> = kubeconfig.contexts.iter().map(|context| context.name.clone()).collect();
        let name = match context
            .map(str::to_owned)
            .or_else(|| kubeconfig.current_context.clone())
        {
            Some(name) if known.contains(&name) => name,
            Some(name) => return Err(no_context(&name, &known)),
            None => {
                return Err(Failure::usage("the kubeconfig has no current context").next("name one: --context NAME"));
            }
        };

        let options = KubeConfigOptions {
            context: Some(name.clone()),
            ..KubeConfigOptions::default()
        };
        let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
        Self::of(name.clone(), config.map_err(|error| unusable(&name, &error))?)
    }

    fn of(context: String, mut config: Config) -> Result<Self> {
        config.connect_timeout = Some(CONNECT_TIMEOUT);
        let server = config.cluster_url.to_string().trim_end_matches('/').to_owned();
        let client = Client::try_from(config).map_err(|error| unusable(&context, &error))?;
        Ok(Self {
            client,
            context,
            server,
        })
    }

    /// Checks before the first object is applied: the user must have all rights for the objects and the `further` ones,
    /// and no object may belong to another owner.
    pub async fn prepare(&self, objects: &[Value], further: &[Right]) -> Result<()> {
        let rights = of_objects(objects, &["get", "patch", "create"]).chain(further.iter().cloned());
        self.require(rights).await?;
        self.check_owners(objects).await
    }

    /// Applies all objects, in order.
    pub async fn apply(&self, objects: &[Value]) -> Result<()> {
        for object in objects {
            let place = Place::of(object);
            let parameters = PatchParams::apply(MANAGER).force();
            let patched = self
                .api(&place)
                .patch(&place.name, &parameters, &Patch::Apply(object))
                .await;
            patched.map_err(|error| self.failure(&format!("apply {place}"), &error))?;
        }
        Ok(())
    }

    /// Fails if the user may not create and change all objects. The caller checks who owns them.
    pub async fn require_writable(&self, objects: &[Value]) -> Result<()> {
        self.require(of_objects(objects, &["get", "patch", "create"])).await
    }

    /// Creates or changes one object, and returns the effect. `dry_run`: nothing is stored.
    pub async fn apply_one(&self, object: &Value, dry_run: bool) -> Result<Applied> {
        let place = Place::of(object);
        let Some(before) = self.find(object).await? else {
            // A server-side dry run would refuse an object whose namespace is created in the same run.
            if !dry_run {
                self.apply(slice::from_ref(object)).await?;
            }
            return Ok(Applied::Made);
        };
        let parameters = PatchParams {
            dry_run,
            ..PatchParams::apply(MANAGER).force()
        };
        let patched = self
            .api(&place)
            .patch(&place.name, &parameters, &Patch::Apply(object))
            .await;
        let after = patched.map_err(|error| self.failure(&format!("apply {place}"), &error))?;
        let content = |object: &DynamicObject| (object.metadata.labels.clone(), object.data.clone());
        Ok(if content(&before) == content(&after) {
            Applied::Unchanged
        } else {
            Applied::Changed
        })
    }

    /// Checks before the first object is deleted: the user must have the rights, and no object may belong to another
    /// owner.
    pub async fn prepare_delete(&self, objects: &[Value]) -> Result<()> {
        self.require(of_objects(objects, &["get", "delete"])).await?;
        self.check_owners(objects).await
    }

    /// Deletes the objects that exist, in reverse order, and returns their names.
    pub async fn delete(&self, objects: &[Value]) -> Result<Vec<String>> {
        let mut deleted = Vec::new();
        for object in objects.iter().rev() {
            let place = Place::of(object);
            match self.api(&place).delete(&place.name, &DeleteParams::background()).await {
                Ok(_) => deleted.push(place.to_string()),
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                Err(error) => return Err(self.failure(&format!("delete {place}"), &error)),
            }
        }
        Ok(deleted)
    }

    /// Waits until the deleted objects are gone. Returns the object that still exists after `longest`, with what it
    /// waits for.
    pub async fn wait_until_gone(&self, objects: &[Value], longest: Duration) -> Result<Option<String>> {
        let begun = Instant::now();
        for object in objects.iter().rev() {
            // An object without a deletion timestamp was created again meanwhile, and isn't waited for.
            while let Some(found) = self
                .find(object)
                .await?
                .filter(|found| found.metadata.deletion_timestamp.is_some())
            {
                if begun.elapsed() > longest {
                    return Ok(Some(format!("{}: {}", Place::of(object), what_remains(&found))));
                }
                tokio::time::sleep(PAUSE).await;
            }
        }
        Ok(None)
    }

    /// Reads one object. None: it doesn't exist.
    pub async fn find(&self, object: &Value) -> Result<Option<DynamicObject>> {
        let place = Place::of(object);
        let found = self.api(&place).get_opt(&place.name).await;
        found.map_err(|error| self.failure(&format!("read {place}"), &error))
    }

    fn api(&self, place: &Place) -> Api<DynamicObject> {
        match &place.namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &place.resource),
            None => Api::all_with(self.client.clone(), &place.resource),
        }
    }

    /// Fails with all missing rights at once. It runs before the first change, so that the work doesn't stop halfway.
    pub async fn require(&self, rights: impl IntoIterator<Item = Right>) -> Result<()> {
        let mut questions: Vec<Right> = Vec::new();
        for right in rights {
            if !questions.contains(&right) {
                questions.push(right);
            }
        }
        let answers = stream::iter(questions).map(async |right| {
            let allowed = self.may(&right).await?;
            Ok::<_, Failure>((!allowed).then(|| right.to_string()))
        });
        let missing: Vec<Option<String>> = answers.buffered(AT_ONCE).try_collect().await?;
        let missing: Vec<String> = missing.into_iter().flatten().collect();
        if missing.is_empty() {
            return Ok(());
        }
        Err(Failure::new(
            exit::DENIED,
            format!("rights are missing in {}; nothing was changed", self.context),
        )
        .evidence(format!("may not {}", missing.join("; "))))
    }

    async fn may(&self, right: &Right) -> Result<bool> {
        let (resource, subresource) = match right.resource.split_once('/') {
            Some((resource, subresource)) => (resource, Some(subresource.to_owned())),
            None => (&*right.resource, None),
        };
        let review = SelfSubjectAccessReview {
            spec: SelfSubjectAccessReviewSpec {
                resource_attributes: Some(ResourceAttributes {
                    group: Some(right.group.clone()),
                    resource: Some(resource.to_owned()),
                    subresource,
                    namespace: right.namespace.clone(),
                    verb: Some(right.verb.to_owned()),
                    ..ResourceAttributes::default()
                }),
                ..SelfSubjectAccessReviewSpec::default()
            },
            ..SelfSubjectAccessReview::default()
        };
        let api: Api<SelfSubjectAccessReview> = Api::all(self.client.clone());
        let answer = api.create(&PostParams::default(), &review).await;
        let answer = answer.map_err(|error| self.failure("ask what you may do", &error))?;
        Ok(answer.status.is_some_and(|status| status.allowed))
    }

    /// Fails if an object of the same name is not ours, so that it is left alone. Namespaces are exempt: an administrator
    /// may have created one for us.
    async fn check_owners(&self, objects: &[Value]) -> Result<()> {
        for object in objects.iter().filter(|object| object["kind"] != "Namespace") {
            let Some(found) = self.find(object).await? else {
                continue;
            };
            if !is_ours(&found.metadata) {
                return Err(not_ours(&Place::of(object).to_string()));
            }
        }
        Ok(())
    }

    pub fn failure(&self, attempt: &str, error: &kube::Error) -> Failure {
        let place = format!("{} ({})", self.context, self.server);
        match error {
            kube::Error::Api(status) if status.code == 401 => Failure::new(
                exit::DENIED,
                format!("can't {attempt}: {place} does not accept your credentials"),
            )
            .evidence(status.message.clone())
            .next(self.kubectl("auth whoami")),
            kube::Error::Api(status) if status.code == 403 => {
                Failure::new(exit::DENIED, format!("can't {attempt} in {place}"))
                    .evidence(status.message.clone())
                    .next("ask for the right, or use a context that has it")
            }
            kube::Error::Api(status) => Failure::new(exit::CONFLICT, format!("can't {attempt} in {place}"))
                .evidence(status.message.clone())
                .next(self.kubectl("get --raw /readyz?verbose")),
            other => Failure::new(exit::UNREACHABLE, format!("can't {attempt}: {place} can't be reached"))
                .evidence(crate::failure::chain(other))
                .next(self.kubectl("version")),
        }
    }

    /// A `kubectl` command for the user, for the same cluster.
    fn kubectl(&self, command: &str) -> String {
        format!("kubectl --context {} {command}", self.context)
    }
}

fn unusable(context: &str, error: &dyn std::error::Error) -> Failure {
    Failure::usage(format!("the context {context} can't be used"))
        .evidence(error.to_string())
        .next(format!(
            "see what it says: kubectl --context {context} config view --minify"
        ))
}

/// The reasons why a deletion is pending: messages of conditions, such as those of a namespace, else the finalizers.
fn what_remains(object: &DynamicObject) -> String {
    let conditions = object.data["status"]["conditions"].as_array().into_iter().flatten();
    let held = conditions.filter(|condition| condition["status"] == "True");
    let reasons: Vec<&str> = held.filter_map(|condition| condition["message"].as_str()).collect();
    match reasons.is_empty() {
        true => format!(
            "waits for {}",
            object.metadata.finalizers.clone().unwrap_or_default().join(", ")
        ),
        false => reasons.join("; "),
    }
}

fn no_context(name: &str, known: &[String]) -> Failure {
    let failure =
        Failure::usage(format!("there is no context {name:?} in the kubeconfig")).next("kubectl config get-contexts");
    match suggest(name, known.iter().map(String::as_str)) {
        Some(near) => failure.evidence(format!("did you mean {near:?}?")),
        None => failure.evidence(format!("it has {}", text::plain(&known.join(", ")))),
    }
}

/// The effect of an apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    Made,
    Changed,
    Unchanged,
}

/// The name of an object for people: `ServiceAccount team-a/farwater`.
pub fn describe(object: &Value) -> String {
    Place::of(object).to_string()
}

/// Where an object is, by its type and name.
struct Place {
    resource: ApiResource,
    namespace: Option<String>,
    name: String,
}

impl Place {
    fn of(object: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (api_version, kind) = (text(&object["apiVersion"]), text(&object["kind"]));
        let (group, version) = api_version.rsplit_once('/').unwrap_or(("", &api_version));
        let plural = match &*kind {
            "NetworkPolicy" => "networkpolicies".to_owned(),
            other => format!("{}s", other.to_lowercase()),
        };
        let resource = ApiResource {
            group: group.to_owned(),
            version: version.to_owned(),
            api_version: api_version.clone(),
            kind,
            plural,
        };
        let metadata = &object["metadata"];
        Self {
            resource,
            namespace: metadata["namespace"].as_str().map(str::to_owned),
            name: text(&metadata["name"]),
        }
    }
}

/// The right to use a verb on objects of a kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Right {
    verb: &'static str,
    group: String,
    /// In the plural, followed by `/SUBRESOURCE` for a subresource.
    resource: String,
    namespace: Option<String>,
}

impl Right {
    /// A right in one namespace.
    pub fn new(verb: &'static str, group: &str, resource: &str, namespace: &str) -> Self {
        Self {
            verb,
            group: group.to_owned(),
            resource: resource.to_owned(),
            namespace: Some(namespace.to_owned()),
        }
    }
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.resource)?;
        self.namespace
            .as_deref()
            .map_or(Ok(()), |namespace| write!(f, " in {namespace}"))
    }
}

fn of_objects(objects: &[Value], verbs: &'static [&'static str]) -> impl Iterator<Item = Right> {
    objects.iter().flat_map(move |object| {
        let Place {
            resource, namespace, ..
        } = Place::of(object);
        verbs.iter().map(move |verb| Right {
            verb,
            group: resource.group.clone(),
            resource: resource.plural.clone(),
            namespace: namespace.clone(),
        })
    })
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let namespace = self
            .namespace
            .as_deref()
            .map_or(String::new(), |namespace| format!("{namespace}/"));
        write!(f, "{} {namespace}{}", self.resource.kind, self.name)
    }
}
