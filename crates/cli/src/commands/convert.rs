//! `farwater convert`: converts objects of Flux and Argo CD to ours. Needs no hub.

use std::{
    collections::{BTreeMap, HashSet},
    io::Read as _,
    path::{Path, PathBuf},
};

use farwater_api::{
    ADMIN_NAMESPACE,
    convert::{Converted, NotConverted, Place, Terms, argocd, flux},
    service_deployment::ClusterReference,
};
use farwater_bundle::yaml::{self, Budget};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde_json::Value;

use crate::{
    exit,
    failure::{Failure, Result},
    format,
    scope::{is_label, is_name, parse_label},
    terminal::{print, say},
    text,
};

/// Most bytes of a file; the largest contain some thousands of objects.
const MAX_FILE: u64 = 64 << 20;
/// Limit for parsing: enough for a cluster with tens of thousands of objects.
const BUDGET: Budget = Budget {
    nodes: 5_000_000,
    bytes: 64 << 20,
    depth: 100,
};

#[derive(Debug, clap::Args)]
pub struct ConvertArgs {
    #[command(subcommand)]
    from: From,
}

#[derive(Debug, clap::Subcommand)]
enum From {
    /// Converts Flux's sources, Kustomizations and HelmReleases. Names each field without a counterpart on standard
    /// error, and leaves out objects that would mean something else without it.
    Flux(FluxArgs),
    /// Converts Argo CD's Applications, ApplicationSets and AppProjects. Names each field without a counterpart on
    /// standard error, and leaves out objects that would mean something else without it.
    Argocd(ArgocdArgs),
}

#[derive(Debug, clap::Args)]
struct FluxArgs {
    /// The cluster of the hub that Flux runs in: NAME or NAMESPACE/NAME.
    #[arg(long, value_name = "NAME", value_parser = parse_cluster)]
    cluster: Option<ClusterReference>,
    /// Labels of the clusters that run the same objects, for example `env=prod,region=eu`. Makes ServiceSets.
    #[arg(long, value_name = "LABELS", value_parser = parse_label, value_delimiter = ',', conflicts_with = "cluster")]
    cluster_selector: Vec<(String, String)>,
    /// The cluster behind a kubeconfig Secret of Flux; repeatable.
    #[arg(long, value_name = "SECRET=CLUSTER", value_parser = parse_named_cluster)]
    remote: Vec<(String, ClusterReference)>,
    #[command(flatten)]
    common: CommonArgs,
}

#[derive(Debug, clap::Args)]
struct ArgocdArgs {
    /// The cluster of the hub that Argo CD runs in: NAME or NAMESPACE/NAME.
    #[arg(long, value_name = "NAME", value_parser = parse_cluster)]
    cluster: Option<ClusterReference>,
    /// The cluster of a destination, by Argo CD's name or address; repeatable [default: the cluster of the same name].
    #[arg(long, value_name = "DESTINATION=CLUSTER", value_parser = parse_named_cluster)]
    destination: Vec<(String, ClusterReference)>,
    /// The service account in the clusters for ClusterGrants: NAME in the target namespace, or NAMESPACE/NAME.
    #[arg(long, value_name = "ACCOUNT", default_value = "farwater")]
    service_account: String,
    #[command(flatten)]
    common: CommonArgs,
}

#[derive(Debug, clap::Args)]
struct CommonArgs {
    /// Namespace of the hub for all results [default: the object's own; for Argo CD its project].
    #[arg(short, long, value_name = "NS", value_parser = parse_namespace)]
    namespace: Option<String>,
    /// Suffix for the name of each service, for example `-east`.
    #[arg(long, value_name = "TEXT", default_value = "", allow_hyphen_values = true)]
    name_suffix: String,
    /// Also converts objects that lose fields with a meaning.
    #[arg(long)]
    allow_losses: bool,
    /// Files of YAML; `-` is standard input.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
}

/// An object of the input, with its position.
struct Found {
    place: String,
    object: Value,
}

pub fn run(args: &ConvertArgs) -> Result<u8> {
    let (common, terms, convert) = match &args.from {
        From::Flux(args) => (&args.common, args.terms(), flux::convert_all as Converter),
        From::Argocd(args) => (&args.common, args.terms(), argocd::convert_all as Converter),
    };
    let (places, objects): (Vec<String>, Vec<Value>) = common
        .read()?
        .into_iter()
        .map(|found| (found.place, found.object))
        .unzip();
    let mut output = Output {
        allow_losses: common.allow_losses,
        is_whole: true,
        seen: 0,
        objects: Vec::new(),
        known: HashSet::new(),
    };
    for ((place, object), result) in places.iter().zip(&objects).zip(convert(&objects, &terms)) {
        output.take(place, object, result);
    }
    output.finish()
}

type Converter = fn(&[Value], &Terms) -> Vec<std::result::Result<Converted, NotConverted>>;

impl FluxArgs {
    fn terms(&self) -> Terms {
        let labels = &self.cluster_selector;
        let selector = || LabelSelector {
            match_labels: Some(labels.iter().cloned().collect()),
            ..LabelSelector::default()
        };
        let place = match &self.cluster {
            Some(cluster) => Some(Place::Cluster(cluster.clone())),
            None => (!labels.is_empty()).then(|| Place::Clusters(selector())),
        };
        Terms {
            place,
            clusters: self.remote.iter().cloned().collect(),
            ..self.common.terms()
        }
    }
}

impl ArgocdArgs {
    fn terms(&self) -> Terms {
        Terms {
            place: self.cluster.clone().map(Place::Cluster),
            clusters: self.destination.iter().cloned().collect(),
            service_account: self.service_account.clone(),
            ..self.common.terms()
        }
    }
}

impl CommonArgs {
    fn terms(&self) -> Terms {
        Terms {
            place: None,
            clusters: BTreeMap::new(),
            namespace: self.namespace.clone(),
            name_suffix: self.name_suffix.clone(),
            service_account: String::new(),
            allow_losses: self.allow_losses,
            yaml: read_yaml,
        }
    }

    fn read(&self) -> Result<Vec<Found>> {
        let mut all = Vec::new();
        for file in &self.files {
            let shown = file.display().to_string();
            let text = read_file(file)?;
            let documents = yaml::parse(&text, &BUDGET)
                .map_err(|error| unusable(&format!("{shown}:{}", error.line)).evidence(error.to_string()))?;
            for document in documents {
                let place = format!("{shown}:{}", document.line);
                let object = document
                    .into_json()
                    .map_err(|error| unusable(&place).evidence(error.to_string()))?;
                all.extend(items(object).into_iter().map(|object| Found {
                    place: place.clone(),
                    object,
                }));
            }
        }
        Ok(all)
    }
}

/// Parses a text in an object that is YAML itself.
fn read_yaml(text: &str) -> std::result::Result<Value, String> {
    let mut documents = yaml::parse(text, &Budget::default()).map_err(|error| error.to_string())?;
    match documents.len() {
        0 => Ok(Value::Null),
        1 => documents.remove(0).into_json().map_err(|error| error.to_string()),
        _ => Err("it has several documents".to_owned()),
    }
}

fn parse_cluster(text: &str) -> std::result::Result<ClusterReference, String> {
    let (namespace, name) = match text.split_once('/') {
        Some((namespace, name)) => (Some(namespace), name),
        None => (None, text),
    };
    if !is_name(name) || namespace.is_some_and(|namespace| !is_label(namespace)) {
        return Err(format!("{text:?} is not NAME or NAMESPACE/NAME of a cluster"));
    }
    Ok(ClusterReference {
        name: name.to_owned(),
        namespace: namespace.map(str::to_owned),
    })
}

fn parse_namespace(text: &str) -> std::result::Result<String, String> {
    is_label(text)
        .then(|| text.to_owned())
        .ok_or_else(|| format!("{text:?} is no name of a namespace"))
}

/// Splits at the last `=`, because addresses may contain others.
fn parse_named_cluster(text: &str) -> std::result::Result<(String, ClusterReference), String> {
    let (name, cluster) = text
        .rsplit_once('=')
        .ok_or_else(|| format!("{text:?} is not NAME=CLUSTER"))?;
    Ok((name.to_owned(), parse_cluster(cluster)?))
}

/// The output of the command.
struct Output {
    allow_losses: bool,
    /// Whether everything that must be converted was converted.
    is_whole: bool,
    /// Number of objects of the other program.
    seen: usize,
    objects: Vec<Value>,
    /// The same objects as JSON, to find duplicates.
    known: HashSet<String>,
}

impl Output {
    fn take(&mut self, place: &str, object: &Value, result: std::result::Result<Converted, NotConverted>) {
        let kind = object["kind"].as_str().unwrap_or("object");
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let about = |told: &str| say(&text::plain(&format!("{place}: {kind} {name}: {told}")));
        self.seen += usize::from(!matches!(&result, Err(why) if why.is_left_alone()));
        let converted = match result {
            Ok(converted) => converted,
            // Files contain other objects too.
            Err(why) if why.is_left_alone() => return about(&format!("left alone, {why}")),
            Err(why) => {
                self.is_whole = false;
                return about(&format!("not converted: {why}"));
            }
        };

        converted
            .notes
            .iter()
            .chain(&converted.losses)
            .for_each(|note| about(note));
        let problems: Vec<String> = converted
            .objects
            .iter()
            .flat_map(farwater_hub::apiserver::problems)
            .collect();
        for problem in &problems {
            about(&format!("not converted: the hub would refuse {problem}"));
        }

        let loses = !converted.losses.is_empty() && !self.allow_losses;
        if loses {
            about("not converted: it would be something else; --allow-losses converts it all the same");
        }
        if loses || !problems.is_empty() {
            self.is_whole = false;
            return;
        }

        // Several objects may need the same one.
        for one in converted.objects {
            if self.known.insert(one.to_string()) {
                self.objects.push(one);
            }
        }
    }

    fn finish(self) -> Result<u8> {
        for namespace in self.without_grant() {
            say(&text::plain(&format!(
                "namespace {namespace} of the hub has to be there, and needs a ClusterGrant for its services' clusters"
            )));
        }
        if !self.objects.is_empty() {
            print(&format::yaml_documents(&self.objects)?)?;
        }
        if self.seen == 0 {
            say("nothing was converted: no object of that program is among them");
        }
        Ok(if self.is_whole && self.seen > 0 {
            exit::YES
        } else {
            exit::NO
        })
    }

    /// Namespaces with services for which the output contains no grant.
    fn without_grant(&self) -> Vec<&str> {
        let is_granted = |namespace: &str| {
            self.objects.iter().any(|object| {
                let namespaces = object["spec"]["namespaces"].as_array();
                object["kind"] == "ClusterGrant"
                    && namespaces.is_some_and(|all| all.iter().any(|one| *one == namespace))
            })
        };
        let is_service = |object: &&Value| object["kind"] == "ServiceDeployment" || object["kind"] == "ServiceSet";
        let mut namespaces: Vec<&str> = self
            .objects
            .iter()
            .filter(is_service)
            .filter_map(|object| object["metadata"]["namespace"].as_str())
            // Services in this namespace need no ClusterGrant.
            .filter(|namespace| *namespace != ADMIN_NAMESPACE && !is_granted(namespace))
            .collect();
        namespaces.sort_unstable();
        namespaces.dedup();
        namespaces
    }
}

fn unusable(place: &str) -> Failure {
    Failure::usage(format!("{place} can't be read"))
}

/// The content of a file, or of standard input for `-`.
pub fn read_file(file: &Path) -> Result<String> {
    let mut text = String::new();
    let read = match file.as_os_str() == "-" {
        true => std::io::stdin().lock().take(MAX_FILE + 1).read_to_string(&mut text),
        false => std::fs::File::open(file).and_then(|file| file.take(MAX_FILE + 1).read_to_string(&mut text)),
    };
    let unusable = |why: String| unusable(&file.display().to_string()).evidence(why);
    match read {
        Ok(bytes) if bytes as u64 > MAX_FILE => Err(unusable(format!("it has over {MAX_FILE} bytes"))),
        Ok(_) => Ok(text),
        Err(error) => Err(unusable(error.to_string())),
    }
}

/// The items of a list, because `kubectl get -o yaml` prints lists.
fn items(mut object: Value) -> Vec<Value> {
    let is_list = object["kind"].as_str().is_some_and(|kind| kind.ends_with("List"));
    match object["items"].take() {
        Value::Array(items) if is_list => items,
        _ if object.is_null() => Vec::new(),
        _ => vec![object],
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        convert: ConvertArgs,
    }

    #[test]
    fn a_conversion_of_nothing_is_a_no() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("theirs.yaml");
        for text in ["", "{apiVersion: v1, kind: Secret, metadata: {name: mine}}"] {
            fs::write(&file, text).unwrap();
            for program in ["flux", "argocd"] {
                let line = Line::try_parse_from(["convert", program, file.to_str().unwrap()]).unwrap();
                assert_eq!(run(&line.convert).unwrap(), exit::NO, "{program}: {text}");
            }
        }
    }
}
