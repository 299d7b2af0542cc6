//! Finds what to render: a folder with its options, or a service of the hub.

use std::path::Path;

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use farwater_api::{
    Cluster, ServiceDeployment, ServiceDeploymentSpec,
    parameters::ParametersAnswer,
    renderer::{self, BundleAnswer},
    service_deployment::ClusterReference,
};
use farwater_bundle::{Archive, Limits, RelPath};
use kube::ResourceExt as _;
use serde_json::Value;

use super::{RenderArgs, read_yaml};
use crate::{
    commands::why::find_cluster,
    connection::{ConnectArgs, Session},
    exit,
    failure::{Failure, Result, chain},
    local::{self, Local},
    program::Program,
    scope::{is_label, is_name, service_name},
    service,
    terminal::say,
    text,
};

pub struct Stated {
    pub service: ServiceDeployment,
    /// Whether the service's spec was written by a person, in the hub or in a file. False: the command created it for a folder.
    pub is_stated: bool,
    pub files: Local,
    pub cluster: Option<Cluster>,
    /// The hub's answer about the service's parameters. None: a folder is rendered.
    pub answer: Option<ParametersAnswer>,
}

/// If the argument is a folder that exists, that is rendered. Otherwise it names a service.
pub async fn find(args: &RenderArgs, connect: &ConnectArgs, program: Program) -> Result<Stated> {
    if args.what.is_dir() {
        return of_folder(args, connect, program).await;
    }
    let named = args.what.to_str().map(|text| service_name(text, "default"));
    if args.service.is_some() || !matches!(named, Some(Ok(_))) {
        return Err(Failure::usage(format!("{} is no folder", args.what.display())));
    }
    let session = Session::open(connect, program).await.inspect_err(|_| {
        say(&format!(
            "there is no folder {}, so a service of the hub is meant",
            args.what.display()
        ));
    })?;
    of_service(args, &session).await
}

async fn of_folder(args: &RenderArgs, connect: &ConnectArgs, program: Program) -> Result<Stated> {
    let (name, spec) = args
        .service
        .as_deref()
        .map(read_service)
        .transpose()?
        .unwrap_or_default();
    let files = local::read(&args.what, &spec.path)?;
    let cluster = match &args.cluster {
        Some(cluster) => {
            let session = Session::open(connect, program).await?;
            let mut service = ServiceDeployment::new("", ServiceDeploymentSpec::default());
            service.metadata.namespace = Some(session.namespace.clone());
            name_cluster(&mut service, cluster)?;
            Some(find_cluster(&session, &service).await?)
        }
        None => None,
    };
    let own = args
        .what
        .canonicalize()
        .ok()
        .and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
    let name = name.or(own).unwrap_or_else(|| "release-name".to_owned());
    let service = ServiceDeployment::new(&name, spec);
    Ok(Stated {
        service,
        is_stated: args.service.is_some(),
        files,
        cluster,
        answer: None,
    })
}

async fn of_service(args: &RenderArgs, session: &Session) -> Result<Stated> {
    let what = args.what.to_string_lossy();
    let (namespace, name) = service_name(&what, &session.namespace)?;
    let mut stated: ServiceDeployment = session.get(namespace, name).await?;
    if let Some(cluster) = &args.cluster {
        name_cluster(&mut stated, cluster)?;
    }
    let cluster = find_cluster(session, &stated).await?;

    let answer = service::below(session, (namespace, name), "bundle", "").await;
    let mut answer = answer.map_err(|failure| match failure.is_missing() {
        // The service was read a moment ago, so it is the subresource that is missing.
        true => Failure::new(exit::UNREACHABLE, "can't render: the hub does not show files")
            .evidence("it is of an older version than this program")
            .next("{program} version"),
        false => failure,
    })?;
    let bundle: BundleAnswer = serde_json::from_value(answer["status"].take())
        .map_err(|error| session.failure("read the files", &kube::Error::SerdeError(error)))?;
    say(&format!(
        "{namespace}/{name} at {} for cluster {}",
        text::short_revision(&bundle.revision),
        cluster.name_any()
    ));

    let files = open(&bundle)?;
    let answer: ParametersAnswer = service::status(session, namespace, name, "parameters").await?;
    for problem in &answer.problems {
        say(&format!(
            "problem: {}; the cluster keeps the previous parameters",
            text::plain(problem)
        ));
    }
    Ok(Stated {
        service: stated,
        is_stated: true,
        files,
        cluster: Some(cluster),
        answer: Some(answer),
    })
}

fn open(bundle: &BundleAnswer) -> Result<Local> {
    let unusable = |problem: String| Failure::new(exit::INTERNAL, "the hub's files can't be used").evidence(problem);
    let compressed = BASE64
        .decode(&bundle.files.archive)
        .map_err(|error| unusable(error.to_string()))?;
    let archive = Archive::open(&compressed, &bundle.files.digest, &Limits::default());
    let archive = archive.map_err(|error| unusable(chain(&error)))?;
    let path = RelPath::parse_folder(&bundle.files.path).map_err(|error| unusable(error.to_string()))?;
    Ok(Local { archive, path })
}

/// Sets the service's cluster. `cluster`: NAME or NAMESPACE/NAME.
fn name_cluster(service: &mut ServiceDeployment, cluster: &str) -> Result<()> {
    let (namespace, name) = match cluster.split_once('/') {
        Some((namespace, name)) => (Some(namespace), name),
        None => (None, cluster),
    };
    if !is_name(name) || !namespace.is_none_or(is_label) {
        let failure = Failure::usage(format!("{cluster:?} names no cluster"));
        return Err(failure.evidence("expected NAME or NAMESPACE/NAME"));
    }
    service.spec.cluster_ref = ClusterReference {
        name: name.to_owned(),
        namespace: namespace.map(str::to_owned),
    };
    Ok(())
}

/// Reads the name and the spec of a ServiceDeployment from a file. The name is None if the file has none.
fn read_service(file: &Path) -> Result<(Option<String>, ServiceDeploymentSpec)> {
    let mut value: Value = read_yaml(file)?;
    if value["kind"] != "ServiceDeployment" {
        return Err(Failure::usage(format!("{} holds no ServiceDeployment", file.display())));
    }
    let name = value["metadata"]["name"].as_str().map(str::to_owned);
    let spec: ServiceDeploymentSpec = serde_json::from_value(value["spec"].take())
        .map_err(|error| Failure::usage(format!("can't read {}", file.display())).evidence(error.to_string()))?;
    if let Some(problem) = renderer::problems(&spec.renderers).first() {
        return Err(Failure::usage(format!("{} can't be used", file.display())).evidence(problem.to_string()));
    }
    Ok((name, spec))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clusters_are_named_with_or_without_their_namespace() {
        let mut service = ServiceDeployment::new("web", ServiceDeploymentSpec::default());
        for (text, namespace) in [("east", None), ("team-a/east", Some("team-a"))] {
            name_cluster(&mut service, text).unwrap();
            assert_eq!(
                (
                    service.spec.cluster_ref.name.as_str(),
                    service.spec.cluster_ref.namespace.as_deref()
                ),
                ("east", namespace)
            );
        }
        assert!(name_cluster(&mut service, "../x").is_err());
    }
}
