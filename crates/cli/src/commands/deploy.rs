//! `farwater deploy`: a folder of a Git repository, kept applied on a cluster.

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use farwater_api::{
    GitRepository, ServiceDeployment, SourceKind, service_deployment::ClusterReference,
    service_sources::SourceReference,
};
use farwater_fleet::{
    conditions::holding,
    deletion::holders,
    placement::cluster_candidates,
    takeover::{self, CLI_MANAGER, Present, Refusal},
    why::{Standing, explain_source},
};
use farwater_sources::{Address, Remote, RemoteError, SecretData};
use http::{Method, Uri};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::{
    commands::{
        impact,
        wait::{self, Goal, Wanted},
    },
    connection::{ConnectArgs, Session},
    exit,
    failure::{Failure, Result},
    format, kinds,
    program::Program,
    scope::{is_label, is_name},
    terminal::{print, say},
    text,
};

#[derive(Debug, clap::Args)]
pub struct DeployArgs {
    /// Address of the repository: http or https, without credentials.
    git_url: String,
    /// Folder of the repository that holds the manifests [default: its root].
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    path: String,
    /// The cluster, NAME or NAMESPACE/NAME of the hub.
    #[arg(long, value_name = "NAME")]
    cluster: String,
    /// Namespace of the cluster for objects without one; created if missing [default: the service's name].
    #[arg(long, value_name = "NS")]
    namespace: Option<String>,
    /// Namespace of the hub that owns the service [default: the context's].
    #[arg(long, value_name = "NS")]
    tenant: Option<String>,
    /// Name of the service [default: the folder's, then the repository's].
    #[arg(long)]
    name: Option<String>,
    #[command(flatten)]
    reference: ReferenceArgs,
    /// Secret in the service's namespace with the repository's `username` and `password`, or `bearerToken`.
    #[arg(long, value_name = "NAME")]
    secret: Option<String>,
    /// Interval between fetches, for example 30s or 5m [default: 2m].
    #[arg(long, value_name = "DURATION")]
    interval: Option<String>,
    /// Does not prune objects that leave the folder.
    #[arg(long)]
    no_prune: bool,
    /// Takes over a service of this name that deploys another repository or folder, or that another program made. The
    /// objects of the old folder are pruned as usual.
    #[arg(long)]
    replace: bool,
    /// Returns when every object is healthy, or 6 when the time is up. What this command made is deleted again if the repository refuses to be
    /// read, or has no such branch or folder.
    #[arg(long, conflicts_with = "export")]
    wait: bool,
    /// Checks with the hub without changing anything, and names what it can't check. Exits with 1 if the hub knows the
    /// repository and can't read it.
    #[arg(long, conflicts_with_all = ["export", "wait"])]
    dry_run: bool,
    /// Time limit of --wait.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = wait::parse_duration)]
    timeout: std::time::Duration,
    /// Prints the resources as YAML, without a hub.
    #[arg(long)]
    export: bool,
}

#[derive(Debug, Default, clap::Args)]
#[group(multiple = false)]
struct ReferenceArgs {
    /// The branch to follow [default: the repository's default branch].
    #[arg(long)]
    branch: Option<String>,
    /// The tag to follow.
    #[arg(long)]
    tag: Option<String>,
    /// The newest tag in a range, for example '>=1.2.0 <2.0.0'.
    #[arg(long, value_name = "RANGE")]
    semver: Option<String>,
    /// The commit to stay at.
    #[arg(long, value_name = "ID")]
    commit: Option<String>,
}

impl ReferenceArgs {
    fn to_spec(&self) -> Option<Value> {
        let fields = [
            ("branch", &self.branch),
            ("tag", &self.tag),
            ("semver", &self.semver),
            ("commit", &self.commit),
        ];
        fields
            .into_iter()
            .find_map(|(field, value)| value.as_ref().map(|value| json!({field: value})))
    }
}

/// The two resources that make a deployment.
struct Plan {
    tenant: String,
    service_name: String,
    source_name: String,
    source_spec: Value,
    service_spec: Value,
    /// A GitRepository of the same repository and Secret that is there already, whatever it follows.
    known_source: Option<String>,
}

pub async fn run(args: DeployArgs, connect: &ConnectArgs, program: Program) -> Result<u8> {
    if args.export {
        // Without a hub, the namespace is that of a new installation.
        let known = Session::open(connect, program)
            .await
            .ok()
            .map(|session| session.namespace);
        let tenant = args
            .tenant
            .clone()
            .or(known)
            .unwrap_or_else(|| farwater_api::ADMIN_NAMESPACE.to_owned());
        let plan = plan(&args, tenant)?;
        let (source, service) = plan.documents();
        print(&format!("{}---\n{}", format::yaml(&source)?, format::yaml(&service)?))?;
        return Ok(exit::YES);
    }
    let session = Session::open(connect, program).await?;
    let mut plan = plan(&args, args.tenant.clone().unwrap_or_else(|| session.namespace.clone()))?;
    plan.settle_source_name(&session).await?;
    plan.check(&session).await?;
    plan.check_present(&session, args.replace).await?;
    let (source, service) = plan.documents();
    // The hub checks grants and rules before anything is written.
    let documents = [("gitrepositories", &source), ("servicedeployments", &service)];
    for (plural, document) in documents {
        let (outcome, _) = apply(&session, plural, document, Mode::DryRun).await?;
        if args.dry_run {
            tell(plural, document, outcome, " (dry run)")?;
        }
    }
    if args.dry_run {
        return plan.check_source(&session).await;
    }
    let mut made = Vec::new();
    for (plural, document) in documents {
        let (outcome, object) = apply(&session, plural, document, Mode::Write).await?;
        tell(plural, document, outcome, "")?;
        made.extend((outcome == Outcome::Created).then_some((plural, object)));
    }
    let (tenant, name) = (&plan.tenant, &plan.service_name);
    if args.wait {
        let wanted = Wanted {
            namespace: tenant.clone(),
            names: vec![name.clone()],
            newest: true,
        };
        let code = wait::until_fetched(&session, &wanted, Goal::Healthy, args.timeout).await?;
        if code == exit::NO && !made.is_empty() && is_hopeless(&session, &plan).await? {
            for (plural, document) in made.iter().rev() {
                delete(&session, &plan, plural, document).await?;
            }
        }
        return Ok(code);
    }
    say(&format!(
        "next: {} wait {name} -n {tenant}, or {} tree {name} -n {tenant} -w",
        program.name(),
        program.name()
    ));
    Ok(exit::YES)
}

fn plan(args: &DeployArgs, tenant: String) -> Result<Plan> {
    let uri = check_url(&args.git_url)?;
    let path = check_path(&args.path)?;
    let repository = label(
        uri.path()
            .trim_end_matches('/')
            .trim_end_matches(".git")
            .rsplit('/')
            .next()
            .unwrap_or(""),
    );
    let folder = label(path.rsplit('/').next().unwrap_or(""));
    let service_name = match &args.name {
        Some(name) => name.clone(),
        None => folder.or(repository.clone()).ok_or_else(|| {
            Failure::usage("no name can be made from the folder or the address").next("give --name NAME")
        })?,
    };
    let (cluster_namespace, cluster) = match args.cluster.split_once('/') {
        Some((namespace, name)) => (Some(namespace), name),
        None => (None, args.cluster.as_str()),
    };
    let target = args.namespace.clone().unwrap_or_else(|| service_name.clone());
    for (what, name, valid) in [
        ("--name", service_name.as_str(), is_name(&service_name)),
        ("--tenant", &tenant, is_label(&tenant)),
        ("--namespace", &target, is_label(&target)),
        (
            "--cluster",
            &args.cluster,
            is_name(cluster) && cluster_namespace.is_none_or(is_label),
        ),
    ] {
        if !valid {
            return Err(Failure::usage(format!("{what} {name:?} can't be a name"))
                .evidence("names are lower-case letters, digits and '-'"));
        }
    }
    let source_name = repository.unwrap_or_else(|| service_name.clone());
    let mut source_spec = json!({"url": args.git_url});
    let stated = [
        ("ref", args.reference.to_spec()),
        ("secretRef", args.secret.as_ref().map(|name| json!({"name": name}))),
        ("interval", args.interval.clone().map(Value::from)),
    ];
    for (field, value) in stated {
        if let Some(value) = value {
            source_spec[field] = value;
        }
    }
    let mut cluster_ref = json!({"name": cluster});
    if let Some(namespace) = cluster_namespace {
        cluster_ref["namespace"] = namespace.into();
    }
    let service_spec = json!({
        "clusterRef": cluster_ref,
        "targetNamespace": target,
        "sourceRef": {"kind": "GitRepository", "name": source_name},
        "path": path,
        "prune": !args.no_prune,
    });
    Ok(Plan {
        tenant,
        service_name,
        source_name,
        source_spec,
        service_spec,
        known_source: None,
    })
}

fn check_url(url: &str) -> Result<Uri> {
    let uri: Uri = url.parse().map_err(|error: http::uri::InvalidUri| {
        Failure::usage(format!("{url:?} is no address")).evidence(error.to_string())
    })?;
    if !matches!(uri.scheme_str(), Some("http" | "https")) {
        return Err(Failure::usage("the repository's address must be http or https").evidence(format!("given: {url}")));
    }
    if uri
        .authority()
        .is_some_and(|authority| authority.as_str().contains('@'))
    {
        // The address is not repeated, because it contains a password.
        return Err(
            Failure::usage("credentials don't belong in the address: every reader of the resource sees them")
                .next("put them into a Secret of the tenant and give --secret NAME"),
        );
    }
    Ok(uri)
}

/// Normalizes a folder: `./apps/web/` and `apps/web` are the same. A path out of the repository is refused here, as by
/// the hub.
fn check_path(path: &str) -> Result<String> {
    if path.split('/').any(|part| part == "..") {
        return Err(Failure::usage(format!("--path {path:?} leaves the repository")));
    }
    Ok(takeover::plain_folder(path))
}

/// A DNS label from a file name. None: nothing is left.
fn label(text: &str) -> Option<String> {
    let mapped: String = text
        .to_lowercase()
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .take(50)
        .collect();
    let trimmed = mapped.trim_matches('-');
    (!trimmed.is_empty()).then(|| trimmed.to_owned())
}

impl Plan {
    fn documents(&self) -> (Value, Value) {
        let version = format!("{}/{}", farwater_api::GROUP, farwater_api::VERSION);
        let document = |kind: &str, name: &str, spec: &Value| json!({"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": self.tenant}, "spec": spec});
        (
            document("GitRepository", &self.source_name, &self.source_spec),
            document("ServiceDeployment", &self.service_name, &self.service_spec),
        )
    }

    /// Checks that the cluster and the namespace exist, before anything is written. The hub checks objects that the
    /// user may not read.
    async fn check(&self, session: &Session) -> Result<()> {
        let reference: ClusterReference = serde_json::from_value(self.service_spec["clusterRef"].clone())
            .map_err(|error| Failure::new(exit::INTERNAL, error.to_string()))?;
        let mut places = Vec::new();
        for (namespace, name) in cluster_candidates(&reference, &self.tenant) {
            if !is_missing(session, "clusters", namespace, name).await? {
                places.clear();
                break;
            }
            places.push(namespace);
        }
        if !places.is_empty() {
            let told = format!(
                "cluster {} does not exist in namespace {}",
                reference.name,
                places.join(" or ")
            );
            return Err(Failure::new(exit::MISSING, told)
                .next(format!("{{program}} get clusters -n {}", places[places.len() - 1])));
        }
        if let Some(secret) = self.source_spec["secretRef"]["name"].as_str() {
            let path = format!("/api/v1/namespaces/{}/secrets/{secret}", self.tenant);
            match session.read("read the Secret", &path).await {
                Err(failure) if failure.is_missing() => {
                    let told = format!("Secret {secret} does not exist in namespace {} of the hub", self.tenant);
                    let create = format!(
                        "create secret generic {secret} -n {} --from-literal=username=NAME --from-literal=password=PASSWORD",
                        self.tenant
                    );
                    return Err(Failure::new(exit::MISSING, told).next(session.kubectl(&create)));
                }
                Err(failure) if failure.is_denied() => {}
                other => check_credentials(self.source_spec["url"].as_str().unwrap_or_default(), secret, &other?)?,
            }
        }
        Ok(())
    }

    /// Refuses a service of this name that is another deployment, or that is being deleted.
    async fn check_present(&mut self, session: &Session, replace: bool) -> Result<()> {
        let (namespace, name) = (&self.tenant, &self.service_name);
        let found = match session.get::<ServiceDeployment>(namespace, name).await {
            Err(failure) if failure.is_missing() || failure.is_denied() => return Ok(()),
            found => found?,
        };
        let source = match session
            .get::<GitRepository>(namespace, &found.spec.source_ref.name)
            .await
        {
            Err(failure) if failure.is_missing() || failure.is_denied() => None,
            source => Some(source?),
        };
        let url = source.as_ref().map(|source| source.spec.url.as_str());
        let url = url.filter(|_| found.spec.source_ref.kind == SourceKind::GitRepository);
        let stated = self.source_spec["url"].as_str().unwrap_or_default();
        let spec = serde_json::to_value(&found.spec).unwrap_or_default();
        let wanted = self.service_spec.as_object().into_iter().flatten();
        let present = Present {
            service: &found,
            url,
            is_same_repository: url.is_some_and(|url| is_same_repository(url, stated)),
            path: self.service_spec["path"].as_str().unwrap_or_default(),
            changes: wanted.clone().any(|(field, value)| spec[field] != *value),
        };
        let Some(refusal) = takeover::judge(&present) else {
            return Ok(());
        };
        let refuse = |what: String| Failure::new(exit::CONFLICT, format!("service {namespace}/{name} {what}"));
        Err(match refusal {
            Refusal::Deleting { held_by } => {
                let held_by = if held_by.is_empty() {
                    "nothing holds it any more".to_owned()
                } else {
                    format!("held by {held_by}")
                };
                refuse("is being deleted".to_owned()).evidence(held_by).next(format!(
                    "deploy again once it is gone: {{program}} delete {name} -n {namespace} --yes --wait"
                ))
            }
            Refusal::Owned { by } => refuse(format!("is made by {by}"))
                .evidence("a change here would be changed back")
                .next(format!("change {by}, or give another name with --name NAME")),
            Refusal::Other(_) if replace => {
                // These fields belong to the old deployment.
                for field in ["chart", "sources", "renderers", "patches", "pin"] {
                    self.service_spec[field] = Value::Null;
                }
                return Ok(());
            }
            Refusal::Other(what) => refuse(format!("exists already: {what}"))
                .next("give another name with --name NAME, or --replace to take it over"),
        })
    }

    /// Checks for a dry run whether the repository can be read. The hub only asks a repository with a GitRepository, and
    /// the dry run creates none.
    async fn check_source(&self, session: &Session) -> Result<u8> {
        let url = self.source_spec["url"].as_str().unwrap_or_default();
        let path = self.service_spec["path"].as_str().unwrap_or_default();
        let wanted = describe_reference(&self.source_spec["ref"]);
        let Some(known) = &self.known_source else {
            let why = "the hub asks a repository once its GitRepository exists";
            say(&format!(
                "not checked: whether {url} can be read and has {wanted} and folder {path}; {why}"
            ));
            return Ok(exit::YES);
        };
        let reference = &self.source_spec["ref"];
        match ["branch", "tag", "commit"]
            .iter()
            .find_map(|field| reference[*field].as_str())
        {
            // The remote is asked now.
            Some(named) => match impact::measure(session, (&self.tenant, known), named).await {
                Ok(impact) => say(&format!(
                    "{url} can be read and has {wanted}: {}",
                    text::plain(&impact.revision)
                )),
                Err(failure) if failure.is_denied() => say(&format!("not checked: whether {url} has {wanted}")),
                Err(failure) => {
                    let told = failure.evidence.unwrap_or(failure.cause);
                    say(&format!("{url} can't be deployed from: {}", text::plain(&told)));
                    return Ok(exit::NO);
                }
            },
            None if *known == self.source_name => {
                let source: GitRepository = session.get(&self.tenant, known).await?;
                let reference = SourceReference {
                    kind: SourceKind::GitRepository,
                    name: known.clone(),
                };
                let finding = explain_source(&source.into(), &reference, &self.tenant, jiff::Timestamp::now());
                say(&text::plain(&finding.sentence));
                if finding.standing == Standing::Broken {
                    return Ok(exit::NO);
                }
            }
            None => say(&format!("not checked: whether {url} has {wanted}")),
        }
        say(&format!("not checked: whether it has folder {path}"));
        Ok(exit::YES)
    }

    /// Services of one repository share its source; the same name for another repository or branch gets a suffix, so
    /// that a second `deploy` never moves what the first one stated for others.
    async fn settle_source_name(&mut self, session: &Session) -> Result<()> {
        let stated = |spec: &Value| (spec["url"].clone(), spec["ref"].clone(), spec["secretRef"].clone());
        let wanted = stated(&self.source_spec);
        let hash = hex::encode(Sha256::digest(json!([wanted.0, wanted.1, wanted.2]).to_string()));
        let suffixed = format!("{}-{}", self.source_name, &hash[..8]);
        for name in [self.source_name.clone(), suffixed] {
            self.service_spec["sourceRef"]["name"] = name.clone().into();
            self.source_name.clone_from(&name);
            let path = format!("{}/{name}", collection("gitrepositories", &self.tenant));
            let existing = match session.read("read the source", &path).await {
                Err(failure) if failure.is_missing() => return Ok(()),
                other => other?,
            };
            let (url, reference, secret) = stated(&existing["spec"]);
            if (&url, &secret) == (&wanted.0, &wanted.2) {
                self.known_source = Some(name.clone());
            }
            if (url, reference, secret) == wanted {
                return refuse_deleted(&existing, &format!("GitRepository {}/{name}", self.tenant));
            }
        }
        Ok(())
    }
}

/// Refuses a deployment onto an object that is being deleted: the deletion would remove it too.
fn refuse_deleted(object: &Value, named: &str) -> Result<()> {
    if !object["metadata"]["deletionTimestamp"].is_string() {
        return Ok(());
    }
    let finalizers: Vec<String> = serde_json::from_value(object["metadata"]["finalizers"].clone()).unwrap_or_default();
    let failure =
        Failure::new(exit::CONFLICT, format!("{named} is being deleted")).next("deploy again once it is gone");
    Err(match holders(&finalizers) {
        holders if holders.is_empty() => failure,
        holders => failure.evidence(format!("held by {holders}")),
    })
}

/// Whether two addresses, in any spelling, name one repository.
fn is_same_repository(a: &str, b: &str) -> bool {
    match (Address::parse(a), Address::parse(b)) {
        (Ok(a), Ok(b)) => a.identity() == b.identity(),
        _ => a == b,
    }
}

/// `branch main`
fn describe_reference(stated: &Value) -> String {
    let stated = stated.as_object().and_then(|fields| fields.iter().next());
    stated.map_or_else(
        || "a default branch".to_owned(),
        |(field, value)| format!("{field} {}", value.as_str().unwrap_or_default()),
    )
}

/// Whether one of our resources is known to be missing.
async fn is_missing(session: &Session, plural: &str, namespace: &str, name: &str) -> Result<bool> {
    match session
        .read(
            &format!("read {namespace}/{name}"),
            &format!("{}/{name}", collection(plural, namespace)),
        )
        .await
    {
        Ok(found) => refuse_deleted(&found, &format!("{} {namespace}/{name}", named(&found).0)).map(|()| false),
        Err(failure) if failure.is_missing() => Ok(true),
        Err(failure) if failure.is_denied() => Ok(false),
        Err(failure) => Err(failure),
    }
}

/// Whether the hub could sign in with a Secret, judging by its keys.
fn check_credentials(url: &str, name: &str, secret: &Value) -> Result<()> {
    let decode = |(key, value): (&String, &Value)| Some((key.clone(), BASE64.decode(value.as_str()?).ok()?));
    let data: SecretData = secret["data"]
        .as_object()
        .into_iter()
        .flatten()
        .filter_map(decode)
        .collect();
    let unusable = |error: RemoteError| {
        Failure::new(
            exit::CONFLICT,
            format!("Secret {name} can't be used for {url}: {error}"),
        )
    };
    Remote::new(url, Some(&data)).map(drop).map_err(unusable)
}

fn collection(plural: &str, namespace: &str) -> String {
    format!(
        "/apis/{}/{}/namespaces/{namespace}/{plural}",
        farwater_api::GROUP,
        farwater_api::VERSION
    )
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    DryRun,
    Write,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Created,
    Configured,
    Unchanged,
}

fn named(document: &Value) -> (&str, &str, &str) {
    let text = |place: &str| document.pointer(place).and_then(Value::as_str).unwrap_or_default();
    (text("/kind"), text("/metadata/namespace"), text("/metadata/name"))
}

/// Creates the resource, or merges the spec into the existing one. Returns the outcome and the resource.
async fn apply(session: &Session, plural: &str, document: &Value, mode: Mode) -> Result<(Outcome, Value)> {
    let (kind, namespace, name) = named(document);
    let path = collection(plural, namespace);
    let dry_run = if mode == Mode::DryRun { "&dryRun=All" } else { "" };
    let flags = format!("fieldManager={CLI_MANAGER}&fieldValidation=Strict{dry_run}");
    let existing = session
        .read(&format!("read {kind} {namespace}/{name}"), &format!("{path}/{name}"))
        .await;
    match existing {
        Err(failure) if failure.is_missing() => {
            let attempt = format!("make {kind} {namespace}/{name}");
            let path = format!("{path}?{flags}");
            let made = session
                .ask(&attempt, Method::POST, &path, "application/json", Some(document))
                .await?;
            Ok((Outcome::Created, made))
        }
        existing => {
            let existing = existing?;
            let attempt = format!("change {kind} {namespace}/{name}");
            let patch = json!({"spec": document["spec"]});
            let path = format!("{path}/{name}?{flags}");
            let changed = session
                .ask(&attempt, Method::PATCH, &path, "application/json", Some(&patch))
                .await?;
            // Don't compare the resourceVersion: a controller may have written the status in between.
            let same = changed["metadata"]["generation"] == existing["metadata"]["generation"];
            Ok((if same { Outcome::Unchanged } else { Outcome::Configured }, changed))
        }
    }
}

fn tell(plural: &str, document: &Value, outcome: Outcome, suffix: &str) -> Result<()> {
    let outcome = match outcome {
        Outcome::Created => "created",
        Outcome::Configured => "configured",
        Outcome::Unchanged => "unchanged",
    };
    print(&format!("{} {outcome}{suffix}\n", qualified(plural, document)))
}

fn qualified(plural: &str, document: &Value) -> String {
    let (_, _, name) = named(document);
    let label = kinds::ours()
        .into_iter()
        .find(|known| known.plural == plural)
        .map(|known| known.qualified(name));
    label.unwrap_or_else(|| name.to_owned())
}

/// Whether nothing was ever assigned to the service because its source is unreadable or lacks the folder. A service
/// that waits for a window, an approval, a dependency or a silent server is not hopeless.
async fn is_hopeless(session: &Session, plan: &Plan) -> Result<bool> {
    let service: ServiceDeployment = session.get(&plan.tenant, &plan.service_name).await?;
    let status = service.status.unwrap_or_default();
    if status.assigned_revision.is_some() || status.held_revision.is_some() {
        return Ok(false);
    }
    let source: GitRepository = session.get(&plan.tenant, &plan.source_name).await?;
    let of_source = source.status.map(|status| status.conditions).unwrap_or_default();
    let stalled = holding(&status.conditions, "Stalled");
    Ok(holding(&of_source, "Stalled").is_some() || stalled.is_some_and(|stalled| stalled.reason == "BundleFailed"))
}

/// Deletes the objects that this command created, unless they were changed since or another service uses them.
async fn delete(session: &Session, plan: &Plan, plural: &str, made: &Value) -> Result<()> {
    let (kind, namespace, name) = named(made);
    if plural == "gitrepositories" {
        let source = SourceReference {
            kind: SourceKind::GitRepository,
            name: name.to_owned(),
        };
        let users = super::delete::users(session, namespace, &source).await?;
        if users.iter().any(|user| *user != plan.service_name) {
            return Ok(());
        }
    }
    let path = format!("{}/{name}", collection(plural, namespace));
    let attempt = format!("delete {kind} {namespace}/{name}");
    let current = session.read(&attempt, &path).await?;
    let same = |field: &str| current["metadata"][field] == made["metadata"][field];
    if !same("uid") || !same("generation") {
        return Ok(());
    }
    let version = &current["metadata"]["resourceVersion"];
    let preconditions = json!({"uid": current["metadata"]["uid"], "resourceVersion": version});
    let options = json!({"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": preconditions});
    match session
        .ask(&attempt, Method::DELETE, &path, "application/json", Some(&options))
        .await
    {
        Ok(_) => print(&format!(
            "{} deleted: nothing of it can be deployed\n",
            qualified(plural, made)
        )),
        Err(failure) if failure.is_missing() || failure.code == exit::CONFLICT => Ok(()),
        Err(failure) => Err(failure),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_made_of_folders_and_addresses() {
        assert_eq!(label("My_App.v2").as_deref(), Some("my-app-v2"));
        assert_eq!(label("..."), None);
        assert_eq!(check_path("./apps//web/").unwrap(), "apps/web");
        assert_eq!(check_path("").unwrap(), ".");
        assert!(check_path("apps/../../x").is_err());
    }

    #[test]
    fn a_password_in_the_address_is_refused_and_not_repeated() {
        let failure = check_url("https://ann:secret@git.example.com/x.git").unwrap_err();
        assert!(!failure.render("farwater").contains("secret@"), "{failure:?}");
        assert!(check_url("git@example.com:x.git").is_err());
        assert!(check_url("https://git.example.com/x.git").is_ok());
    }
}
