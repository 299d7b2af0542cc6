//! `farwater explain parameters`: each parameter of a service, and its origin.

use farwater_api::parameters::{CLUSTER_SECRET, ParameterValue, ParametersAnswer};
use serde_json::Value;

use crate::{
    connection::Session,
    exit,
    failure::Result,
    format::{self, Format},
    scope::{NamespaceArgs, service_name},
    service,
    table::{Column, Table},
    terminal::{Terminal, print, say},
};

#[derive(Debug, clap::Args)]
pub struct ParametersArgs {
    /// The service: NAME or NAMESPACE/NAME.
    service: String,
    #[command(flatten)]
    namespace: NamespaceArgs,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

/// Returns [`exit::NO`] if something is wrong with them.
pub async fn run(args: ParametersArgs, session: &Session) -> Result<u8> {
    let (namespace, name) = service_name(&args.service, args.namespace.or_default(session))?;
    let answer: ParametersAnswer = service::status(session, namespace, name, "parameters").await?;
    match args.output {
        Format::Json => print(&format::json(&answer)?)?,
        Format::Yaml => print(&format::yaml(&answer)?)?,
        Format::Name => print(
            &answer
                .values
                .iter()
                .map(|value| format!("{}\n", value.name))
                .collect::<String>(),
        )?,
        Format::Table | Format::Wide => {
            print(&{ table(&answer.values, args.output == Format::Wide) }.render(Terminal::detect()))?;
            for problem in &answer.problems {
                say(&format!("problem: {problem}"));
            }
            if !answer.problems.is_empty() {
                say(&format!("{name} is held with the parameters that it had before"));
            }
        }
    }
    Ok(if answer.problems.is_empty() {
        exit::YES
    } else {
        exit::NO
    })
}

fn table(values: &[ParameterValue], wide: bool) -> Table {
    let mut columns = vec![Column::fixed("Name"), Column::elastic("Value"), Column::fixed("Origin")];
    if wide {
        columns.push(Column::fixed("Instead of"));
    }
    let mut table = Table::new(columns);
    for value in values {
        let mut row = vec![value.name.clone(), shown(value), value.origin.to_string()];
        if wide {
            let others: Vec<String> = value.instead_of.iter().map(ToString::to_string).collect();
            row.push(others.join("; "));
        }
        table.push(row);
    }
    table
}

fn shown(value: &ParameterValue) -> String {
    match (&value.value, value.secret) {
        (_, true) if value.origin.kind == CLUSTER_SECRET => "(secret, of the cluster)".to_owned(),
        (_, true) => "(secret, set)".to_owned(),
        (None, false) => "(not yours to read)".to_owned(),
        (Some(Value::String(text)), false) => text.clone(),
        (Some(other), false) => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_value_has_its_origin_and_secrets_are_only_set() {
        let answer: ParametersAnswer = serde_json::from_value(json!({
            "bytes": 100,
            "values": [
                {"name": "configuration.host", "origin": {"kind": "ServiceDeployment", "name": "web", "key": "spec.configuration"},
                 "value": "web.example.com", "insteadOf": [{"kind": "ConfigMap", "name": "sizes", "key": "host"}]},
                {"name": "configuration.password", "origin": {"kind": "Secret", "name": "database", "key": "password"}, "secret": true},
                {"name": "contexts.network.zones", "origin": {"kind": "ServiceContext", "name": "network", "key": "zones"}, "value": ["a", "b"]},
                {"name": "contexts.network.token", "origin": {"kind": "Secret", "name": "kv/dns", "backend": "vault", "key": "token", "through": "network"},
                 "secret": true},
                {"name": "cluster.labels.region", "origin": {"kind": "Cluster", "name": "east", "key": "metadata.labels[region]"}},
            ],
        }))
        .unwrap();
        let expected = "\
NAME                     VALUE                 ORIGIN                                                             INSTEAD OF
configuration.host       web.example.com       ServiceDeployment web, spec.configuration                          ConfigMap sizes, host
configuration.password   (secret, set)         Secret database, password
contexts.network.zones   [\"a\",\"b\"]             ServiceContext network, zones
contexts.network.token   (secret, set)         Secret kv/dns of backend vault, token, by ServiceContext network
cluster.labels.region    (not yours to read)   Cluster east, metadata.labels[region]
";
        assert_eq!(table(&answer.values, true).render(Terminal::default()), expected);
    }
}
