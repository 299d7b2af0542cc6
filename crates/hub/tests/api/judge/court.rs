//! Two servers side by side: the same request to both, and the answers compared.

use std::{cmp::Reverse, collections::BTreeMap, fmt, time::Duration};

use super::verdict::verdict;
use crate::support::Served;
use farwater_testkit::{
    kube::{client_that_asks_once, shared, unique_name},
    wait_for,
};
use futures::future::join_all;
use http::Request;
use http_body_util::BodyExt as _;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_pb::apimachinery::pkg::runtime::{TypeMeta, Unknown};
use kube::{
    Client,
    api::{Api, PostParams},
    client::Body,
};
use prost::Message;
use serde_json::Value;
use tokio::time::timeout;

pub const JSON: &str = "application/json";
pub const MERGE: &str = "application/merge-patch+json";
pub const STRATEGIC: &str = "application/strategic-merge-patch+json";
pub const JSON_PATCH: &str = "application/json-patch+json";
pub const APPLY: &str = "application/apply-patch+yaml";
pub const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
pub const PARTIAL: &str = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";
pub const PARTIAL_LIST: &str = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";

/// How much of two answers must be equal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Equal {
    All,
    /// All but `message` and the causes' messages: Go's own words of a parser, or a longer explanation of ours.
    ButText,
    /// Status code, reason and kind.
    Reason,
}

/// One request for both servers. In path, headers and body, `NS` is the namespace, `CORE`, `OWN`, `RBAC`, `LEASES` and `REPORTS`
/// (events.k8s.io) are paths in it, and `$NAME` is what [`Court::remember`] kept of each server's own answer.
#[derive(Clone)]
pub struct Step {
    method: &'static str,
    path: String,
    headers: Vec<(&'static str, String)>,
    body: String,
    /// Instead of a text, sent as it is.
    bytes: Option<Vec<u8>>,
    pub equal: Equal,
    /// Only what clients determine is compared: a hub's controllers write meanwhile.
    pub clients_part: bool,
}

impl Step {
    pub fn new(method: &'static str, path: &str) -> Self {
        Self {
            method,
            path: path.to_owned(),
            headers: Vec::new(),
            body: String::new(),
            bytes: None,
            equal: Equal::All,
            clients_part: false,
        }
        .header("user-agent", "judge/1")
    }

    pub fn get(path: &str) -> Self {
        Self::new("GET", path)
    }

    pub fn header(mut self, name: &'static str, value: &str) -> Self {
        self.headers
            .retain(|(known, _)| *known != name || name.starts_with("impersonate"));
        self.headers.push((name, value.to_owned()));
        self
    }

    pub fn accept(self, kinds: &str) -> Self {
        self.header("accept", kinds)
    }

    /// `SD{` begins a ServiceDeployment.
    pub fn send(mut self, kind: &str, body: &str) -> Self {
        self.body = body.replace(
            "SD{",
            r#"{"apiVersion":"farwater.dev/v1alpha1","kind":"ServiceDeployment","#,
        );
        self.header("content-type", kind)
    }

    /// A message in Kubernetes' envelope.
    pub fn send_protobuf(mut self, api_version: &str, kind: &str, message: &impl Message) -> Self {
        let unknown = Unknown {
            type_meta: Some(TypeMeta {
                api_version: Some(api_version.to_owned()),
                kind: Some(kind.to_owned()),
            }),
            raw: Some(message.encode_to_vec()),
            ..Unknown::default()
        };
        self.bytes = Some([b"k8s\0".to_vec(), unknown.encode_to_vec()].concat());
        self.header("content-type", "application/vnd.kubernetes.protobuf")
    }

    pub fn equal(mut self, equal: Equal) -> Self {
        self.equal = equal;
        self
    }

    /// See [`keep_clients_part`].
    pub fn clients_part(mut self, only: bool) -> Self {
        self.clients_part = only;
        self
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.method, self.path, self.body)
    }
}

pub struct Answer {
    pub code: u16,
    /// Of a stream, the list of its lines, or the only one.
    pub value: Value,
    pub warnings: Vec<String>,
    pub retry_after: Option<String>,
}

/// One of the servers.
pub struct Side {
    pub client: Client,
    names: BTreeMap<String, String>,
}

/// The servers side by side, in a namespace of one name on both.
pub struct Court {
    pub real: Side,
    pub ours: Side,
    differences: Vec<String>,
}

impl Side {
    /// One pass, so that nothing is taken for a name that stands in a value; the longest name counts.
    fn fill(&self, text: &str) -> String {
        let mut names: Vec<_> = self.names.iter().collect();
        names.sort_by_key(|(name, _)| Reverse(name.len()));
        let (mut filled, mut rest) = (String::with_capacity(text.len()), text);
        while let Some(next) = rest.chars().next() {
            match names.iter().find(|(name, _)| rest.starts_with(name.as_str())) {
                Some((name, value)) => {
                    filled.push_str(value);
                    rest = &rest[name.len()..];
                }
                None => {
                    filled.push(next);
                    rest = &rest[next.len_utf8()..];
                }
            }
        }
        filled
    }

    /// With names for what was remembered: it is each server's own.
    fn unfill(&self, text: &str) -> String {
        let remembered = self.names.iter().filter(|(name, _)| name.starts_with('$'));
        remembered.fold(text.to_owned(), |text, (name, value)| text.replace(value, name))
    }

    pub async fn ask(&self, step: &Step) -> Answer {
        let mut request = Request::builder().method(step.method).uri(self.fill(&step.path));
        for (name, value) in &step.headers {
            request = request.header(*name, self.fill(value));
        }
        let request = request
            .body(Body::from(
                step.bytes.clone().unwrap_or_else(|| self.fill(&step.body).into_bytes()),
            ))
            .unwrap();
        let response = timeout(Duration::from_secs(30), self.client.send(request)).await;
        let response = response
            .unwrap_or_else(|_| panic!("{} {} is not answered", step.method, step.path))
            .unwrap();
        let code = response.status().as_u16();
        let warnings = response.headers().get_all("warning").iter();
        let warnings = warnings.map(|warning| self.unfill(warning.to_str().unwrap())).collect();
        let retry_after = response
            .headers()
            .get("retry-after")
            .map(|seconds| seconds.to_str().unwrap().to_owned());
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        let value = serde_json::from_slice(&bytes).unwrap_or_else(|_| {
            let lines = bytes.split(|b| *b == b'\n').filter(|l| !l.is_empty());
            lines
                .map(|l| serde_json::from_slice(l).unwrap_or(Value::Null))
                .collect()
        });
        Answer {
            code,
            value,
            warnings,
            retry_after,
        }
    }

    async fn remember(&mut self, name: &str, path: &str, pointer: &str) {
        let answer = self.ask(&Step::get(path).accept(JSON)).await;
        let value = answer.value.pointer(pointer).and_then(Value::as_str);
        let value = value
            .unwrap_or_else(|| panic!("{path} has no {pointer}: {}", answer.value))
            .to_owned();
        self.names.insert(format!("${name}"), value);
    }
}

/// A write that somebody else's came before; the client reads again and repeats it.
fn is_overtaken(answer: &Answer) -> bool {
    let message = answer.value["message"].as_str().unwrap_or_default();
    answer.code == 409 && message.contains("the object has been modified")
}

impl Court {
    /// Both servers, with a namespace of one name that is made on each.
    pub async fn sit(served: &Served) -> Self {
        let real = client_that_asks_once(shared(1).await.unwrap().kubeconfig())
            .await
            .unwrap();
        install_kinds(&real).await;
        let ours = client_that_asks_once(&served.running.admin_kubeconfig).await.unwrap();
        let namespace = unique_name("judge");
        let places = [
            ("CORE", format!("/api/v1/namespaces/{namespace}")),
            ("OWN", format!("/apis/farwater.dev/v1alpha1/namespaces/{namespace}")),
            (
                "RBAC",
                format!("/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"),
            ),
            (
                "LEASES",
                format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"),
            ),
            (
                "REPORTS",
                format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events"),
            ),
            ("NS", namespace),
        ];
        let names: BTreeMap<_, _> = places
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect();
        let side = |client| Side {
            client,
            names: names.clone(),
        };
        let mut court = Self {
            real: side(real),
            ours: side(ours),
            differences: Vec::new(),
        };
        court
            .same(
                "POST",
                "/api/v1/namespaces",
                JSON,
                r#"{"metadata":{"name":"NS"}}"#,
                Equal::All,
            )
            .await;
        court
    }

    pub async fn judge(&mut self, step: Step) {
        let answers = tokio::join!(self.real.ask(&step), self.ours.ask(&step));
        self.compare(&step, answers);
    }

    /// Of an object that the hub's controllers write to: an update by version that they overtook is repeated with the
    /// present one, `$NAME`, as a client would.
    pub async fn judge_persistently(&mut self, step: Step, name: &str, path: &str) {
        const ATTEMPTS: usize = 20;
        let real = self.real.ask(&step).await;
        let mut ours = self.ours.ask(&step).await;
        for _ in 0..ATTEMPTS {
            if !is_overtaken(&ours) || is_overtaken(&real) {
                break;
            }
            self.ours.remember(name, path, "/metadata/resourceVersion").await;
            ours = self.ours.ask(&step).await;
        }
        self.compare(&step, (real, ours));
    }

    /// The steps all at once: those that a server lets wait.
    pub async fn judge_all(&mut self, steps: &[Step]) {
        let asked = steps
            .iter()
            .map(|step| async { tokio::join!(self.real.ask(step), self.ours.ask(step)) });
        for (step, answers) in steps.iter().zip(join_all(asked).await) {
            self.compare(step, answers);
        }
    }

    fn compare(&mut self, step: &Step, (real, ours): (Answer, Answer)) {
        let (real, ours) = (verdict(real, step), verdict(ours, step));
        if real != ours {
            self.differences.push(format!(
                "{step}\n  real: {} {} {:?} {:?}\n  ours: {} {} {:?} {:?}",
                real.0, real.1, real.2, real.3, ours.0, ours.1, ours.2, ours.3
            ));
        }
    }

    pub async fn same(&mut self, method: &'static str, path: &str, kind: &'static str, body: &str, equal: Equal) {
        self.judge(Step::new(method, path).send(kind, body).accept(JSON).equal(equal))
            .await;
    }

    pub async fn same_read(&mut self, path: &str, accept: &'static str) {
        self.judge(Step::get(path).accept(accept)).await;
    }

    /// Keeps what each server answers at `pointer` (RFC 6901) of the object at `path`, for later steps to name as `$NAME`.
    pub async fn remember(&mut self, name: &str, path: &str, pointer: &str) {
        for side in [&mut self.real, &mut self.ours] {
            side.remember(name, path, pointer).await;
        }
    }

    /// As [`Self::remember`], where there may be nothing; the servers must agree whether there is.
    pub async fn remember_if(&mut self, name: &str, path: &str, pointer: &str) -> bool {
        let step = Step::get(path).accept(JSON);
        let mut found = Vec::new();
        for side in [&mut self.real, &mut self.ours] {
            let answer = side.ask(&step).await;
            let value = answer
                .value
                .pointer(pointer)
                .and_then(Value::as_str)
                .filter(|text| !text.is_empty());
            found.extend(value.map(|value| side.names.insert(format!("${name}"), value.to_owned())));
        }
        if found.len() == 1 {
            self.differences.push(format!("{path}: only one of them has {pointer}"));
        }
        found.len() == 2
    }

    /// The namespace, of one name on both.
    pub fn namespace(&self) -> String {
        self.real.names["NS"].clone()
    }

    /// A name for what each server calls otherwise.
    pub fn call_it(&mut self, name: &str, real: &str, ours: &str) {
        self.real.names.insert(name.to_owned(), real.to_owned());
        self.ours.names.insert(name.to_owned(), ours.to_owned());
    }

    /// A service account's token of each server, to be named as `$NAME`.
    pub async fn take_token(&mut self, name: &str, path: &str) {
        let step = Step::new("POST", path).send(JSON, r#"{"spec":{}}"#).accept(JSON);
        for side in [&mut self.real, &mut self.ours] {
            let answer = side.ask(&step).await.value;
            let token = answer["status"]["token"]
                .as_str()
                .unwrap_or_else(|| panic!("{answer}"))
                .to_owned();
            side.names.insert(format!("${name}"), token);
        }
    }

    /// Waits until an answer of each server is what `settled` wants. The real garbage collector looks for new kinds every half
    /// minute.
    pub async fn wait_until(&self, step: Step, settled: impl Fn(&Answer) -> bool) {
        for side in [&self.real, &self.ours] {
            let what = format!("{} {}", step.method, side.fill(&step.path));
            wait_for(&what, Duration::from_secs(90), || async {
                Ok(settled(&side.ask(&step).await).then_some(()))
            })
            .await
            .unwrap();
        }
    }

    pub fn is_agreed(&self) -> bool {
        self.differences.is_empty()
    }

    pub fn differences(&self) -> String {
        self.differences.join("\n")
    }

    pub fn sentence(self) {
        assert!(
            self.differences.is_empty(),
            "{} answers differ:\n{}",
            self.differences.len(),
            self.differences.join("\n")
        );
    }
}

async fn install_kinds(real: &Client) {
    let crds: Api<CustomResourceDefinition> = Api::all(real.clone());
    for crd in farwater_api::custom_resource_definitions() {
        match crds.create(&PostParams::default(), &crd).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(error) => panic!("{error}"),
        }
    }
    // Each has a storage of its own, which takes its time.
    for crd in farwater_api::custom_resource_definitions() {
        let path = format!("/apis/farwater.dev/v1alpha1/{}", crd.spec.names.plural);
        wait_for("our kinds to be served", Duration::from_secs(30), || async {
            Ok(real
                .request_text(Request::get(&path).body(Vec::new())?)
                .await
                .ok()
                .map(drop))
        })
        .await
        .unwrap();
    }
}

/// A kind that no controller writes to, so that both servers have the same.
pub const GRANT: &str = r#"{"apiVersion":"farwater.dev/v1alpha1","kind":"ClusterGrant","metadata":{"name":"NS-a","labels":{"of":"NS"}},"spec":{"clusterSelector":{},"namespaces":["NS"],"verbs":["deploy"],"serviceAccountName":"a"}}"#;
pub const GRANTS: &str = "/apis/farwater.dev/v1alpha1/clustergrants";
