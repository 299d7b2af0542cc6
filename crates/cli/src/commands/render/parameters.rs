//! The values that templates see. They come from the service and its cluster, from the hub's answer, and from the
//! command line, which overrides both.

use farwater_api::{
    Cluster, ServiceDeployment, ServiceDeploymentSpec,
    parameters::{ClusterPart, Parameter, ParameterSource, ParameterValue, ParametersAnswer},
};
use farwater_fleet::parameters::{ClusterInput, Inputs, Objects, resolve};
use kube::ResourceExt as _;
use serde_json::{Map, Value};

/// Stand-ins: for a secret value, and for a value that the caller may not read.
const SECRET: &str = "(secret)";
const UNREADABLE: &str = "(not yours to read)";

/// Known inputs of the rendered service.
pub struct Known<'a> {
    pub service: &'a ServiceDeployment,
    /// Whether the service is a stated one, so that its own parameters count. Otherwise it gets all parameters of a
    /// cluster.
    pub is_stated: bool,
    pub cluster: Option<&'a Cluster>,
    /// The hub's answer about the service's parameters. None: the hub wasn't asked.
    pub answer: Option<&'a ParametersAnswer>,
}

/// Returns the values, and the names of those that have a stand-in and were not given.
pub fn gather(given: Map<String, Value>, known: &Known<'_>) -> (Map<String, Value>, Vec<String>) {
    let mut values = own(known);
    let mut stand_ins = Vec::new();
    for value in known.answer.iter().flat_map(|answer| &answer.values) {
        let Some(path) = read_path(&value.name) else { continue };
        // The other values are those of this cluster and service, which `own` has already.
        let Some((first @ ("configuration" | "contexts"), within)) = borrow(&path) else {
            continue;
        };
        if known.value_of(value).is_none() && find(&given, first, &within).is_none() {
            stand_ins.push(value.name.clone());
        }
        put(
            values.entry(first).or_insert_with(|| Map::new().into()),
            &within,
            stand_in(value),
        );
    }
    merge(&mut values, given);
    (values, stand_ins)
}

impl Known<'_> {
    fn value_of<'v>(&self, value: &'v ParameterValue) -> Option<&'v Value> {
        value.value.as_ref().filter(|_| !value.secret)
    }
}

/// The values that are known without any object of the hub but the cluster.
fn own(known: &Known<'_>) -> Map<String, Value> {
    let Known {
        service,
        is_stated,
        cluster,
        ..
    } = known;
    let parameters = match is_stated {
        true => stated_parameters(&service.spec),
        false => all_parameters(),
    };
    let spec = ServiceDeploymentSpec {
        target_namespace: service.spec.target_namespace.clone(),
        configuration: service.spec.configuration.clone(),
        parameters,
        ..ServiceDeploymentSpec::default()
    };
    let unnamed = Cluster::new("", Default::default());
    let of = cluster.unwrap_or(&unnamed);
    let resolution = resolve(Inputs {
        uid: &service.uid().unwrap_or_default(),
        namespace: &service.namespace().unwrap_or_default(),
        name: &service.name_any(),
        spec: &spec,
        cluster: ClusterInput {
            uid: &of.uid().unwrap_or_default(),
            namespace: &of.namespace().unwrap_or_default(),
            name: &of.name_any(),
            labels: of.labels(),
            annotations: of.annotations(),
            metadata: &of.spec.metadata,
            version: of
                .status
                .as_ref()
                .and_then(|status| status.kubernetes_version.as_deref()),
        },
        objects: &Objects::default(),
    });

    let mut values = resolution.parameters.values;
    if cluster.is_none() {
        // Without a cluster, a template that uses it fails, instead of getting empty texts.
        values.remove("cluster");
    }
    values
}

/// The parameters that a spec takes from the cluster.
fn stated_parameters(spec: &ServiceDeploymentSpec) -> Vec<Parameter> {
    let of_cluster = spec
        .parameters
        .iter()
        .filter(|parameter| parameter.from.cluster.is_some());
    of_cluster.cloned().collect()
}

/// All parameters that a cluster has.
fn all_parameters() -> Vec<Parameter> {
    let all = [ClusterPart::Labels, ClusterPart::Metadata, ClusterPart::Version].map(|part| Parameter {
        from: ParameterSource {
            cluster: Some(part),
            ..ParameterSource::default()
        },
        ..Parameter::default()
    });
    all.to_vec()
}

fn stand_in(value: &ParameterValue) -> Value {
    match &value.value {
        _ if value.secret => SECRET.into(),
        Some(shown) => shown.clone(),
        None => UNREADABLE.into(),
    }
}

fn borrow(path: &[String]) -> Option<(&str, Vec<&str>)> {
    let (first, within) = path.split_first()?;
    Some((first, within.iter().map(String::as_str).collect()))
}

fn find<'a>(values: &'a Map<String, Value>, first: &str, within: &[&str]) -> Option<&'a Value> {
    within
        .iter()
        .try_fold(values.get(first)?, |value, name| value.get(name))
}

fn put(at: &mut Value, path: &[&str], value: Value) {
    let Some((name, within)) = path.split_first() else {
        *at = value;
        return;
    };
    if !at.is_object() {
        *at = Map::new().into();
    }
    if let Some(map) = at.as_object_mut() {
        put(map.entry(*name).or_insert(Value::Null), within, value);
    }
}

/// Merges `given` into `values`. Maps are merged by key; for anything else the given value wins.
fn merge(values: &mut Map<String, Value>, given: Map<String, Value>) {
    for (name, value) in given {
        match (values.get_mut(&name), value) {
            (Some(Value::Object(known)), Value::Object(given)) => merge(known, given),
            (_, value) => drop(values.insert(name, value)),
        }
    }
}

/// Splits a name as templates write it, such as `contexts.network["a.b"]`, into its keys. None: it can't be read.
fn read_path(name: &str) -> Option<Vec<String>> {
    let (mut path, mut rest) = (Vec::new(), name);
    while !rest.is_empty() {
        if let Some(quoted) = rest.strip_prefix('[') {
            let mut texts = serde_json::Deserializer::from_str(quoted).into_iter::<String>();
            path.push(texts.next()?.ok()?);
            rest = quoted[texts.byte_offset()..].strip_prefix(']')?;
        } else {
            let text = rest.strip_prefix('.').unwrap_or(rest);
            let end = text.find(['.', '[']).unwrap_or(text.len());
            path.push(text[..end].to_owned());
            rest = &text[end..];
        }
    }
    Some(path)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn service(spec: Value) -> ServiceDeployment {
        let mut stated =
            json!({"clusterRef": {"name": "east"}, "sourceRef": {"name": "infra"}, "targetNamespace": "space"});
        stated
            .as_object_mut()
            .unwrap()
            .extend(spec.as_object().unwrap().clone());
        let mut service = ServiceDeployment::new("web", serde_json::from_value(stated).unwrap());
        service.metadata.namespace = Some("team-a".to_owned());
        service
    }

    fn cluster() -> Cluster {
        let mut cluster = Cluster::new("east", serde_json::from_value(json!({"metadata": {"vpc": 1}})).unwrap());
        cluster.metadata.labels = Some(
            [
                ("region".to_owned(), "eu".to_owned()),
                ("tier".to_owned(), "gold".to_owned()),
            ]
            .into(),
        );
        cluster
    }

    fn map(value: Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    #[test]
    fn a_service_sees_what_it_states_of_its_cluster_and_a_folder_all_of_it() {
        let stated = service(json!({
            "configuration": {"host": "a"},
            "parameters": [{"from": {"cluster": "Labels"}, "keys": ["region"]}, {"from": {"context": "network"}}],
        }));
        let cluster = cluster();
        let known = Known {
            service: &stated,
            is_stated: true,
            cluster: Some(&cluster),
            answer: None,
        };
        let values = Value::from(gather(Map::new(), &known).0);
        assert_eq!(
            (&values["configuration"], &values["contexts"]),
            (&json!({"host": "a"}), &json!({}))
        );
        assert_eq!(
            (&values["cluster"]["handle"], &values["cluster"]["tags"]),
            (&json!("east"), &json!({"region": "eu"}))
        );
        assert_eq!(
            (&values["service"]["name"], &values["service"]["namespace"]),
            (&json!("web"), &json!("space"))
        );

        let values = Value::from(
            gather(
                Map::new(),
                &Known {
                    is_stated: false,
                    ..known
                },
            )
            .0,
        );
        assert_eq!(values["cluster"]["labels"], json!({"region": "eu", "tier": "gold"}));
        assert_eq!(values["cluster"]["metadata"], json!({"vpc": 1}));
        // Without a cluster, a template that uses it fails, instead of getting empty texts.
        let known = Known {
            service: &stated,
            is_stated: true,
            cluster: None,
            answer: None,
        };
        assert!(!gather(Map::new(), &known).0.contains_key("cluster"));
    }

    #[test]
    fn the_hub_tells_the_rest_and_what_is_given_stands_in_for_what_it_does_not_show() {
        let value = |name: &str, shown: Value, secret: bool| {
            let value = (!shown.is_null()).then_some(shown);
            ParameterValue {
                name: name.to_owned(),
                value,
                secret,
                ..ParameterValue::default()
            }
        };
        let answer = ParametersAnswer {
            values: vec![
                value("configuration.cpu", json!("1"), false),
                value("configuration.memory", Value::Null, false),
                value("configuration.password", Value::Null, true),
                value("configuration.token", Value::Null, true),
                value("contexts[\"net.work\"].zones", json!(["a", "b"]), false),
                value("cluster.labels.region", json!("of another cluster"), false),
            ],
            ..ParametersAnswer::default()
        };
        let (stated, cluster) = (service(json!({})), cluster());
        let known = Known {
            service: &stated,
            is_stated: true,
            cluster: Some(&cluster),
            answer: Some(&answer),
        };
        let given = map(json!({"configuration": {"token": "mine"}, "contexts": {"own": {"a": 1}}}));
        let (values, stand_ins) = gather(given, &known);
        let expected = json!({"cpu": "1", "memory": UNREADABLE, "password": SECRET, "token": "mine"});
        assert_eq!(values["configuration"], expected);
        assert_eq!(
            values["contexts"],
            json!({"net.work": {"zones": ["a", "b"]}, "own": {"a": 1}})
        );
        assert_eq!(values["cluster"]["labels"], json!({}));
        assert_eq!(stand_ins, ["configuration.memory", "configuration.password"]);
    }

    #[test]
    fn names_are_read_as_templates_write_them() {
        let check = |name: &str, expected: &[&str]| assert_eq!(read_path(name).unwrap(), expected, "{name}");
        check("configuration.host", &["configuration", "host"]);
        check("configuration[\"db.host\"]", &["configuration", "db.host"]);
        check("contexts[\"a.\\\"b\"].c[\"\"]", &["contexts", "a.\"b", "c", ""]);
        assert_eq!((read_path("a[b"), read_path("a[\"b\"")), (None, None));
    }
}
