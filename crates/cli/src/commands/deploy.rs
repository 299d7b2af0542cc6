//! `farwater deploy`: a folder of a Git repository, kept applied on a cluster.

mod check;
mod objects;
mod withdraw;

use std::time::Duration;

use farwater_api::{GitRepository, ServiceDeployment};
use farwater_fleet::{conditions::holding, takeover};
use farwater_sources::{Address, AddressError};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    commands::wait::{self, Goal, Wanted},
    connection::{ConnectArgs, Session},
    exit,
    failure::{Failure, Result},
    format,
    program::Program,
    scope::{is_label, is_name},
    terminal::{print, say},
    text,
};
use objects::{Made, Mode, Outcome, apply, print_outcome};
use withdraw::withdraw;

#[derive(Debug, clap::Args)]
pub struct DeployArgs {
    /// Address of the repository, without credentials: https://…, http://…, ssh://… or git@HOST:PATH.
    git_url: String,
    /// Folder of the repository that holds the manifests [default: its root].
    #[arg(long, value_name = "FOLDER", default_value = ".", hide_default_value = true)]
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
    /// Secret in the service's namespace with the repository's `username` and `password`, or `bearerToken`; for ssh with
    /// `identity` and `known_hosts`.
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
    /// Returns when every object is healthy, or 6 when the time is up. What this command created is deleted again if the
    /// repository can't be read, or has no such branch or folder.
    #[arg(long, conflicts_with = "export")]
    wait: bool,
    /// Checks with the hub without changing anything, and names what it can't check. Exits with 1 if the hub knows the
    /// repository and can't read it.
    #[arg(long, conflicts_with_all = ["export", "wait"])]
    dry_run: bool,
    /// Time limit of --wait.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = wait::parse_duration)]
    timeout: Duration,
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
        return export(&args, connect, program).await;
    }
    let session = Session::open(connect, program).await?;
    let mut plan = plan(&args, args.tenant.clone().unwrap_or_else(|| session.namespace.clone()))?;
    plan.settle_source_name(&session).await?;
    plan.check(&session).await?;
    plan.check_present(&session, args.replace).await?;

    let (source, service) = plan.documents();
    // The hub checks grants and rules before anything is written.
    let documents = [("gitrepositories", &source), ("servicedeployments", &service)];
    let mut outcomes = Vec::new();
    for (plural, document) in documents {
        outcomes.push(apply(&session, plural, document, Mode::DryRun).await?.0);
    }
    if args.dry_run {
        let code = plan.check_source(&session).await?;
        // A service that can't be deployed has no result.
        if code == exit::YES {
            for ((plural, document), outcome) in documents.into_iter().zip(outcomes) {
                print_outcome(plural, document, outcome, " (dry run)")?;
            }
        }
        return Ok(code);
    }

    let mut made = Vec::new();
    if let Err(failure) = write(&session, documents, &mut made).await {
        withdraw(&session, &made).await;
        return Err(failure);
    }
    if args.wait {
        return wait_or_withdraw(&session, &plan, &made, args.timeout).await;
    }
    let (tenant, name) = (&plan.tenant, &plan.service_name);
    say(&format!(
        "next: {} wait {name} -n {tenant}, or {} tree {name} -n {tenant} -w",
        program.name(),
        program.name()
    ));
    Ok(exit::YES)
}

async fn export(args: &DeployArgs, connect: &ConnectArgs, program: Program) -> Result<u8> {
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
    let (source, service) = plan(args, tenant)?.documents();
    print(&format!("{}---\n{}", format::yaml(&source)?, format::yaml(&service)?))?;
    Ok(exit::YES)
}

/// Writes the documents, and notes those that it creates. The hub may refuse the service although its dry run
/// succeeded: only now it knows the source, which the grant may not allow.
async fn write(session: &Session, documents: [(&'static str, &Value); 2], made: &mut Vec<Made>) -> Result<()> {
    for (plural, document) in documents {
        let (outcome, object) = apply(session, plural, document, Mode::Write).await?;
        if outcome == Outcome::Created {
            made.push(Made { plural, object });
        }
        print_outcome(plural, document, outcome, "")?;
    }
    Ok(())
}

async fn wait_or_withdraw(session: &Session, plan: &Plan, made: &[Made], timeout: Duration) -> Result<u8> {
    let wanted = Wanted {
        namespace: plan.tenant.clone(),
        names: vec![plan.service_name.clone()],
        newest: true,
    };
    let code = wait::until(session, &wanted, Goal::Healthy, timeout).await?;
    if code == exit::YES || made.is_empty() {
        return Ok(code);
    }
    // At the time limit, a failure may have begun just now; a moment later the source may answer.
    let lasts = if code == exit::TIMEOUT {
        wait::GRACE
    } else {
        Duration::ZERO
    };
    match is_hopeless(session, plan, lasts).await {
        Ok(false) => Ok(code),
        Ok(true) => {
            say("nothing of it can be deployed; what this command created is deleted:");
            withdraw(session, made).await;
            Ok(exit::NO)
        }
        Err(failure) => {
            say(&format!(
                "what this command created stays: {}",
                text::plain(&failure.cause)
            ));
            Ok(code)
        }
    }
}

fn plan(args: &DeployArgs, tenant: String) -> Result<Plan> {
    let address = check_url(&args.git_url)?;
    let path = check_path(&args.path)?;
    let repository = name_repository(&address);
    let service_name = match &args.name {
        Some(name) => name.clone(),
        None => name_service(&path, repository.as_deref())?,
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
        source_spec: source_spec(args),
        service_spec,
        known_source: None,
    })
}

/// The name of a service without --name: the folder's, or the repository's for its root.
fn name_service(path: &str, repository: Option<&str>) -> Result<String> {
    let folder = label(path.rsplit('/').next().unwrap_or(""));
    folder
        .or_else(|| repository.map(str::to_owned))
        .ok_or_else(|| Failure::usage("no name can be made from the folder or the address").next("give --name NAME"))
}

/// The spec of the GitRepository, with the fields that are stated, because the hub has the defaults.
fn source_spec(args: &DeployArgs) -> Value {
    let mut spec = json!({"url": args.git_url});
    let stated = [
        ("ref", args.reference.to_spec()),
        ("secretRef", args.secret.as_ref().map(|name| json!({"name": name}))),
        ("interval", args.interval.clone().map(Value::from)),
    ];
    for (field, value) in stated {
        if let Some(value) = value {
            spec[field] = value;
        }
    }
    spec
}

/// The addresses that a GitRepository takes. A failure doesn't repeat the address, which may contain a password.
fn check_url(url: &str) -> Result<Address> {
    Address::parse(url).map_err(|error| match error {
        AddressError::Userinfo => {
            Failure::usage("credentials don't belong in the address: every reader of the resource sees them")
                .next("put them into a Secret of the tenant and give --secret NAME")
        }
        error => Failure::usage("the repository's address can't be used").evidence(error.to_string()),
    })
}

/// The last part of the address, as a DNS label. None: nothing is left of it.
fn name_repository(address: &Address) -> Option<String> {
    let path = address.path().trim_end_matches('/').trim_end_matches(".git");
    label(path.rsplit('/').next().unwrap_or_default())
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
}

/// Reasons of `Stalled` that only another deployment can remove.
const REFUSALS: [&str; 2] = ["BundleFailed", "NotGranted"];

/// Whether nothing was ever assigned to the service because its source is unreadable, lacks the folder or is not granted.
/// A service that waits for a window, an approval, a dependency or a silent server is not hopeless. `lasts`: time for which
/// the failure must have lasted.
async fn is_hopeless(session: &Session, plan: &Plan, lasts: Duration) -> Result<bool> {
    let service: ServiceDeployment = session.get(&plan.tenant, &plan.service_name).await?;
    let status = service.status.unwrap_or_default();
    if status.assigned_revision.is_some() || status.held_revision.is_some() {
        return Ok(false);
    }
    let source: GitRepository = session.get(&plan.tenant, &plan.source_name).await?;
    let of_source = source.status.map(|status| status.conditions).unwrap_or_default();
    let stalled = holding(&status.conditions, "Stalled").filter(|one| REFUSALS.contains(&one.reason.as_str()));
    let since = holding(&of_source, "Stalled")
        .or(stalled)
        .map(|one| one.last_transition_time.0);
    let lasted = |since| Duration::try_from(Timestamp::now().duration_since(since)).is_ok_and(|lasted| lasted >= lasts);
    Ok(since.is_some_and(lasted))
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
        let failure = check_url("ssh://ann:secret@git.example.com/x.git").unwrap_err();
        assert!(!failure.render("farwater").contains("secret@"), "{failure:?}");
    }

    #[test]
    fn an_address_is_one_that_a_git_repository_takes() {
        let named = |url: &str| check_url(url).map(|address| name_repository(&address));
        for url in [
            "https://git.example.com/team/infra.git",
            "https://git.example.com:8443/infra/",
            "ssh://git@git.example.com/team/infra.git",
            "git@git.example.com:team/infra.git",
            "git@git.example.com:infra",
        ] {
            assert_eq!(named(url).unwrap().as_deref(), Some("infra"), "{url}");
        }
        assert_eq!(named("https://git.example.com").unwrap(), None);
        for url in ["git.example.com/infra", "oci://git.example.com/infra", "file:///infra"] {
            let failure = named(url).unwrap_err();
            assert_eq!(failure.code, exit::USAGE, "{url}");
            assert!(failure.evidence.unwrap().contains("https:// or ssh://"), "{url}");
        }
    }
}
