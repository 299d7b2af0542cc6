//! `farwater objects`: every object of a service, as the agent reported it.

use farwater_api::objects::{ObjectRef, ObjectReport};

use crate::{
    connection::Session,
    failure::Result,
    format::{self, Format},
    scope::{NamespaceArgs, service_name},
    table::{Column, Table},
    terminal::{Terminal, print, say},
};

#[derive(Debug, clap::Args)]
pub struct ObjectsArgs {
    /// The service: NAME or NAMESPACE/NAME.
    service: String,
    #[command(flatten)]
    namespace: NamespaceArgs,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

pub async fn run(args: ObjectsArgs, session: &Session) -> Result<u8> {
    let (namespace, name) = service_name(&args.service, args.namespace.or_default(session))?;
    let objects = match fetch(session, namespace, name).await {
        // The typed lookup suggests similar names.
        Err(failure) if failure.is_missing() => {
            session.get::<farwater_api::ServiceDeployment>(namespace, name).await?;
            return Err(failure);
        }
        other => other?,
    };
    match args.output {
        Format::Json => print(&format::json(&objects)?)?,
        Format::Yaml => print(&format::yaml(&objects)?)?,
        Format::Name => print(
            &objects
                .iter()
                .map(|o| format!("{}\n", qualified(&o.object)))
                .collect::<String>(),
        )?,
        Format::Table | Format::Wide if objects.is_empty() => say(&format!(
            "the agent has reported no object of {name} yet; next: {} why {name} -n {namespace}",
            session.program.name()
        )),
        Format::Table | Format::Wide => {
            let wide = args.output == Format::Wide;
            print(&table(&objects, wide).render(Terminal::detect()))?;
        }
    }
    Ok(crate::exit::YES)
}

/// The agent's last report of a service.
pub async fn fetch(session: &Session, namespace: &str, name: &str) -> Result<Vec<ObjectReport>> {
    let path = format!(
        "/apis/{}/{}/namespaces/{namespace}/servicedeployments/{name}/objects",
        farwater_api::GROUP,
        farwater_api::VERSION
    );
    let attempt = format!("read the objects of {namespace}/{name}");
    let mut answer = session.read(&attempt, &path).await?;
    // A bare list, or one in the form of Kubernetes' lists.
    let items = if answer.is_array() {
        answer
    } else {
        answer["items"].take()
    };
    serde_json::from_value(items).map_err(|error| session.failure(&attempt, &kube::Error::SerdeError(error)))
}

fn qualified(object: &ObjectRef) -> String {
    let group = if object.group.is_empty() {
        String::new()
    } else {
        format!(".{}", object.group)
    };
    format!("{}{group}/{}", object.kind.to_lowercase(), object.name)
}

fn table(objects: &[ObjectReport], wide: bool) -> Table {
    let mut columns = vec![
        Column::fixed("Kind"),
        Column::fixed("Namespace"),
        Column::fixed("Name"),
        Column::fixed("Sync"),
        Column::fixed("Health"),
        Column::elastic("Message"),
    ];
    if wide {
        columns.insert(1, Column::fixed("API version"));
    }

    let mut table = Table::new(columns);
    for report in objects {
        let object = &report.object;
        let mut row = vec![
            object.kind.clone(),
            object.namespace.clone(),
            object.name.clone(),
            format!("{:?}", report.sync),
            report.health.word().to_owned(),
            report.message.clone(),
        ];
        if wide {
            row.insert(1, object.api_version());
        }
        table.push(row);
    }
    table
}
