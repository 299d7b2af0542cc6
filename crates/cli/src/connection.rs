//! Which hub is meant, and how it is asked.

use std::{
    env,
    ffi::OsString,
    path::{Path, PathBuf},
    time::Duration,
};

use http::{Method, Request};
use kube::{
    Api, Client, Config, Resource,
    api::ListParams,
    config::{KubeConfigOptions, Kubeconfig},
    core::NamespaceResourceScope,
};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{
    exit,
    failure::{Failure, Result, suggest},
    program::Program,
    terminal::say,
};

/// Longest wait for an answer that is not a watch: what the hub itself allows a request.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Objects per page of a list, as kubectl asks.
pub const PAGE: u32 = 500;

/// How to find the hub; taken by every command that asks it.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Connection")]
pub struct ConnectArgs {
    /// A kubeconfig that names the hub, for example the hub's admin.kubeconfig [default: FARWATER_KUBECONFIG, then
    /// what `login` wrote; as kubectl's plugin: as kubectl].
    #[arg(long, global = true, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig to use.
    #[arg(long, global = true, value_name = "NAME")]
    pub context: Option<String>,
}

/// The user's own configuration: `$XDG_CONFIG_HOME/farwater/config`, a kubeconfig.
pub fn own_config() -> Option<PathBuf> {
    let base = variable("XDG_CONFIG_HOME").or_else(|| variable("HOME").map(|home| home.join(".config")))?;
    Some(base.join("farwater").join("config"))
}

fn variable(name: &str) -> Option<PathBuf> {
    env::var_os(name).filter(|value: &OsString| !value.is_empty()).map(PathBuf::from)
}

/// A hub that can be asked.
#[derive(Clone)]
pub struct Session {
    pub client: Client,
    pub program: Program,
    /// The context's namespace.
    pub namespace: String,
    pub server: String,
    /// What kubectl needs to reach the same hub.
    kubectl_flags: String,
}

impl Session {
    pub async fn open(args: &ConnectArgs, program: Program) -> Result<Self> {
        let (kubeconfig, kubectl_flags) = load(args, program)?;
        let options = KubeConfigOptions { context: args.context.clone(), ..KubeConfigOptions::default() };
        let namespace_is_named = named_namespace(&kubeconfig, args.context.as_deref());
        let config = Config::from_custom_kubeconfig(kubeconfig, &options).await.map_err(|error| {
            Failure::usage("the kubeconfig can't be used")
                .evidence(error.to_string())
                .next("{program} login URL --token-file FILE")
        })?;
        let mut session = Self::with_config(config, program)?;
        if !namespace_is_named {
            session.namespace = farwater_api::ADMIN_NAMESPACE.to_owned();
        }
        session.kubectl_flags = kubectl_flags;
        Ok(session)
    }

    pub fn with_config(mut config: Config, program: Program) -> Result<Self> {
        config.connect_timeout = Some(CONNECT_TIMEOUT);
        if config.accept_invalid_certs {
            say("warning: the kubeconfig switches the check of the hub's certificate off");
        }
        let server = config.cluster_url.to_string().trim_end_matches('/').to_owned();
        let namespace = config.default_namespace.clone();
        let client = Client::try_from(config)
            .map_err(|error| Failure::usage("the kubeconfig can't be used").evidence(error.to_string()))?;
        Ok(Self { client, program, namespace, server, kubectl_flags: String::new() })
    }

    pub fn failure(&self, attempt: &str, error: &kube::Error) -> Failure {
        Failure::request(attempt, &self.server, error)
    }

    /// `kubectl …` as the user has to type it to reach this hub.
    pub fn kubectl(&self, arguments: &str) -> String {
        format!("kubectl{} {arguments}", self.kubectl_flags)
    }

    /// One request that is answered by JSON.
    pub async fn ask(
        &self,
        attempt: &str,
        method: Method,
        path: &str,
        accept: &str,
        body: Option<&Value>,
    ) -> Result<Value> {
        let kind = if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
        let body = body.map(Value::to_string).unwrap_or_default().into_bytes();
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("Accept", accept)
            .header("Content-Type", kind)
            .body(body)
            .map_err(|error| Failure::usage(format!("can't {attempt}")).evidence(error.to_string()))?;
        self.bounded(attempt, self.client.request(request)).await
    }

    pub async fn read(&self, attempt: &str, path: &str) -> Result<Value> {
        self.ask(attempt, Method::GET, path, "application/json", None).await
    }

    /// A typed object; if it is missing, the failure names one that was perhaps meant.
    pub async fn get<K>(&self, namespace: &str, name: &str) -> Result<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
    {
        let api: Api<K> = Api::namespaced(self.client.clone(), namespace);
        let attempt = format!("read {} {namespace}/{name}", K::kind(&()));
        match self.bounded(&attempt, api.get(name)).await {
            Err(failure) if failure.is_missing() => {
                let known = self.list::<K>(Some(namespace)).await.unwrap_or_default();
                let known: Vec<&str> = known.iter().filter_map(|object| object.meta().name.as_deref()).collect();
                Err(missing(&K::kind(&()), &K::plural(&()), namespace, name, &known))
            }
            other => other,
        }
    }

    /// Every object of a kind, page by page; of one namespace or of all.
    pub async fn list<K>(&self, namespace: Option<&str>) -> Result<Vec<K>>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
    {
        let api: Api<K> = match namespace {
            Some(namespace) => Api::namespaced(self.client.clone(), namespace),
            None => Api::all(self.client.clone()),
        };
        self.list_in(&api).await
    }

    /// Every object of a kind, page by page.
    pub async fn list_in<K>(&self, api: &Api<K>) -> Result<Vec<K>>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
    {
        let attempt = format!("list {}", K::plural(&()));
        let mut parameters = ListParams::default().limit(PAGE);
        let mut objects = Vec::new();
        loop {
            let page = self.bounded(&attempt, api.list(&parameters)).await?;
            objects.extend(page.items);
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => parameters.continue_token = Some(token),
                None => return Ok(objects),
            }
        }
    }

    pub async fn bounded<T>(&self, attempt: &str, request: impl Future<Output = Result<T, kube::Error>>) -> Result<T> {
        match tokio::time::timeout(ANSWER_TIMEOUT, request).await {
            Ok(answer) => answer.map_err(|error| self.failure(attempt, &error)),
            Err(_) => Err(Failure::new(exit::UNREACHABLE, format!("can't {attempt}: no answer from {}", self.server))
                .evidence(format!("waited {} s", ANSWER_TIMEOUT.as_secs()))),
        }
    }
}

/// A 404 with the nearest name that exists.
pub fn missing(kind: &str, plural: &str, namespace: &str, name: &str, known: &[&str]) -> Failure {
    let place = if namespace.is_empty() { String::new() } else { format!(" in namespace {namespace}") };
    let failure = Failure::new(exit::MISSING, format!("there is no {kind} {name:?}{place}"));
    let scope = if namespace.is_empty() { String::new() } else { format!(" -n {namespace}") };
    let failure = match suggest(name, known.iter().copied()) {
        Some(near) => failure.evidence(format!("did you mean {near:?}?")),
        None if known.is_empty() => failure.evidence(format!("there are no {plural}{place}")),
        None => failure.evidence(format!("{} others exist{place}", known.len())),
    };
    failure.next(format!("{{program}} get {plural}{scope}"))
}

fn load(args: &ConnectArgs, program: Program) -> Result<(Kubeconfig, String)> {
    let context = args.context.as_deref().map_or(String::new(), |name| format!(" --context {name}"));
    let named = match program {
        Program::Farwater => args.kubeconfig.clone().or_else(|| variable("FARWATER_KUBECONFIG")),
        Program::Plugin => args.kubeconfig.clone(),
    };
    if let Some(path) = &named {
        return Ok((read(path)?, format!(" --kubeconfig {}{context}", path.display())));
    }
    if program == Program::Plugin {
        let config = Kubeconfig::read()
            .map_err(|error| Failure::usage("kubectl's configuration can't be read").evidence(error.to_string()))?;
        return Ok((config, context));
    }
    match own_config().filter(|path| path.exists()) {
        Some(path) => Ok((read(&path)?, format!(" --kubeconfig {}{context}", path.display()))),
        None => Err(Failure::new(exit::DENIED, "no hub is known: you are not signed in")
            .evidence("neither --kubeconfig nor FARWATER_KUBECONFIG is given, and `login` has not run")
            .next("{program} login URL --token-file FILE, or --kubeconfig DATA-DIR/admin.kubeconfig")),
    }
}

fn read(path: &Path) -> Result<Kubeconfig> {
    Kubeconfig::read_from(path).map_err(|error| {
        let evidence = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
        Failure::usage(format!("can't read the kubeconfig {}", path.display())).evidence(evidence)
    })
}

fn named_namespace(kubeconfig: &Kubeconfig, context: Option<&str>) -> bool {
    let wanted = context.or(kubeconfig.current_context.as_deref());
    kubeconfig
        .contexts
        .iter()
        .find(|named| Some(named.name.as_str()) == wanted)
        .and_then(|named| named.context.as_ref())
        .is_some_and(|context| context.namespace.as_deref().is_some_and(|namespace| !namespace.is_empty()))
}
