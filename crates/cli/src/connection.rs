//! Finds the hub, and sends requests to it.

use std::{
    env,
    ffi::OsString,
    path::{Path, PathBuf},
    time::Duration,
};

use farwater_fleet::words::verb;
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

/// Longest wait for an answer, except a watch's. The hub has the same limit for a request.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Objects per page of a list, as in kubectl.
pub const PAGE: u32 = 500;

/// How to find the hub; taken by every command that asks it.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Connection")]
pub struct ConnectArgs {
    /// Kubeconfig of the hub, for example admin.kubeconfig [default: FARWATER_KUBECONFIG, then the file of `login`; as
    /// a kubectl plugin: as kubectl].
    #[arg(long, global = true, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig to use.
    #[arg(long, global = true, value_name = "NAME")]
    pub context: Option<String>,
}

/// Path of the user's own kubeconfig for hubs: `$XDG_CONFIG_HOME/farwater/config`.
pub fn own_config() -> Option<PathBuf> {
    let base = variable("XDG_CONFIG_HOME").or_else(|| variable("HOME").map(|home| home.join(".config")))?;
    Some(base.join("farwater").join("config"))
}

fn variable(name: &str) -> Option<PathBuf> {
    env::var_os(name)
        .filter(|value: &OsString| !value.is_empty())
        .map(PathBuf::from)
}

/// A connection to a hub.
#[derive(Clone)]
pub struct Session {
    pub client: Client,
    pub program: Program,
    /// The context's namespace.
    pub namespace: String,
    pub server: String,
    /// The flags with which kubectl reaches the same hub.
    kubectl_flags: String,
}

impl Session {
    pub async fn open(args: &ConnectArgs, program: Program) -> Result<Self> {
        let (kubeconfig, kubectl_flags) = load(args, program)?;
        let options = KubeConfigOptions {
            context: args.context.clone(),
            ..KubeConfigOptions::default()
        };
        let namespace_is_named = named_namespace(&kubeconfig, args.context.as_deref());
        let config = Config::from_custom_kubeconfig(kubeconfig, &options)
            .await
            .map_err(|error| {
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
        Ok(Self {
            client,
            program,
            namespace,
            server,
            kubectl_flags: String::new(),
        })
    }

    pub fn failure(&self, attempt: &str, error: &kube::Error) -> Failure {
        Failure::request(attempt, &self.server, error)
    }

    /// A `kubectl` command as the user has to type it to reach this hub.
    pub fn kubectl(&self, arguments: &str) -> String {
        format!("kubectl{} {arguments}", self.kubectl_flags)
    }

    /// Sends one request and returns its answer, which must be JSON.
    pub async fn ask(
        &self,
        attempt: &str,
        method: Method,
        path: &str,
        accept: &str,
        body: Option<&Value>,
    ) -> Result<Value> {
        let kind = if method == Method::PATCH {
            "application/merge-patch+json"
        } else {
            "application/json"
        };
        let is_read = method == Method::GET;
        let body = body.map(Value::to_string).unwrap_or_default().into_bytes();
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("Accept", accept)
            .header("Content-Type", kind)
            .body(body)
            .map_err(|error| Failure::usage(format!("can't {attempt}")).evidence(error.to_string()))?;
        let answer = self.answer(attempt, self.client.request(request)).await?;
        answer.map_err(|error| {
            let failure = self.failure(attempt, &error);
            match &error {
                // Nothing would be changed, so the parameters of the request are at fault: a selector, for example.
                kube::Error::Api(status) if is_read && status.code == 400 => Failure {
                    code: exit::USAGE,
                    ..failure
                },
                _ => failure,
            }
        })
    }

    pub async fn read(&self, attempt: &str, path: &str) -> Result<Value> {
        self.ask(attempt, Method::GET, path, "application/json", None).await
    }

    /// Reads a typed object. If it is missing, the failure suggests a similar name.
    pub async fn get<K>(&self, namespace: &str, name: &str) -> Result<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
    {
        let api: Api<K> = Api::namespaced(self.client.clone(), namespace);
        let attempt = format!("read {} {namespace}/{name}", K::kind(&()));
        match self.bounded(&attempt, api.get(name)).await {
            Err(failure) if failure.is_missing() => {
                let known = self.list::<K>(Some(namespace)).await.unwrap_or_default();
                let known: Vec<&str> = known
                    .iter()
                    .filter_map(|object| object.meta().name.as_deref())
                    .collect();
                Err(missing(&K::kind(&()), &K::plural(&()), namespace, name, &known))
            }
            other => other,
        }
    }

    /// Lists all objects of a kind page by page. `namespace`: None lists all namespaces.
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
        self.select_in(api, ListParams::default()).await
    }

    /// Every object of a kind that the selectors match, page by page.
    pub async fn select_in<K>(&self, api: &Api<K>, selectors: ListParams) -> Result<Vec<K>>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
    {
        let attempt = format!("list {}", K::plural(&()));
        let mut parameters = selectors.limit(PAGE);
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
        let answer = self.answer(attempt, request).await?;
        answer.map_err(|error| self.failure(attempt, &error))
    }

    /// The answer of the hub, which may be an error. Fails if there is none in time.
    async fn answer<T>(
        &self,
        attempt: &str,
        request: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<Result<T, kube::Error>> {
        tokio::time::timeout(ANSWER_TIMEOUT, request).await.map_err(|_| {
            let told = format!("can't {attempt}: no answer from {}", self.server);
            Failure::new(exit::UNREACHABLE, told).evidence(format!("waited {} s", ANSWER_TIMEOUT.as_secs()))
        })
    }
}

/// The failure for a missing object, with the most similar name that exists.
pub fn missing(kind: &str, plural: &str, namespace: &str, name: &str, known: &[&str]) -> Failure {
    let place = if namespace.is_empty() {
        String::new()
    } else {
        format!(" in namespace {namespace}")
    };
    let failure = Failure::new(exit::MISSING, format!("there is no {kind} {name:?}{place}"));
    let scope = if namespace.is_empty() {
        String::new()
    } else {
        format!(" -n {namespace}")
    };
    let failure = match suggest(name, known.iter().copied()) {
        Some(near) => failure.evidence(format!("did you mean {near:?}?")),
        None if known.is_empty() => failure.evidence(format!("there are no {plural}{place}")),
        None => {
            let exist = verb(&known.len(), "other exists", "others exist");
            failure.evidence(format!("{} {exist}{place}", known.len()))
        }
    };
    failure.next(format!("{{program}} get {plural}{scope}"))
}

fn load(args: &ConnectArgs, program: Program) -> Result<(Kubeconfig, String)> {
    let context = args
        .context
        .as_deref()
        .map_or(String::new(), |name| format!(" --context {name}"));
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
        .is_some_and(|context| {
            context
                .namespace
                .as_deref()
                .is_some_and(|namespace| !namespace.is_empty())
        })
}
