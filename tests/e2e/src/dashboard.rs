//! Queries of a Grafana dashboard, and the labels that it shows of the answers.
//!
//! An unknown part is an error and is not skipped, because it might contain a query.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

const DASHBOARD: [&str; 10] = [
    "uid",
    "title",
    "description",
    "tags",
    "schemaVersion",
    "editable",
    "refresh",
    "time",
    "templating",
    "panels",
];
const SOURCE_VARIABLE: [&str; 4] = ["name", "label", "type", "query"];
const VARIABLE: [&str; 9] = [
    "name",
    "label",
    "type",
    "datasource",
    "query",
    "refresh",
    "includeAll",
    "multi",
    "allValue",
];
const PANEL: [&str; 8] = [
    "id",
    "type",
    "title",
    "description",
    "gridPos",
    "datasource",
    "fieldConfig",
    "targets",
];
const TARGET: [&str; 3] = ["refId", "expr", "legendFormat"];

/// Grafana uses at least four scrape intervals.
const RATE_INTERVAL: &str = "1m";

/// Values of the variables by name.
pub type Values = BTreeMap<String, String>;

#[derive(Clone, Debug)]
pub struct Dashboard {
    pub variables: Vec<Variable>,
    /// Queries of the panels.
    pub queries: Vec<Query>,
}

/// A variable with values from a Prometheus query.
#[derive(Clone, Debug)]
pub struct Variable {
    pub name: String,
    /// Label whose values it takes.
    pub label: String,
    pub query: Query,
    /// Regular expression for all of its values.
    pub all: String,
}

#[derive(Clone, Debug)]
pub struct Query {
    /// The dashboard and the panel or variable.
    pub place: String,
    /// PromQL, with Grafana's variables.
    pub expression: String,
    /// Labels that Grafana takes from the answer's series: those of a legend, or the one of a variable.
    pub labels: Vec<String>,
}

impl Dashboard {
    /// Reads Grafana's JSON.
    pub fn read(dashboard: &Value) -> Result<Self> {
        let title = text(&dashboard["title"]).context("read a dashboard's title")?;
        Self::parse(title, dashboard).with_context(|| format!("read the dashboard {title:?}"))
    }

    fn parse(title: &str, dashboard: &Value) -> Result<Self> {
        only(dashboard, &DASHBOARD)?;
        only(&dashboard["templating"], &["list"])?;
        let mut variables = Vec::new();
        let mut has_source = false;
        for variable in list(&dashboard["templating"]["list"])? {
            match text(&variable["type"])? {
                "datasource" => {
                    only(variable, &SOURCE_VARIABLE)?;
                    let is_ours = variable["name"] == "datasource" && variable["query"] == "prometheus";
                    ensure!(is_ours, "{variable} is not the variable datasource, of Prometheus");
                    has_source = true;
                }
                "query" => variables.push(Variable::parse(title, variable)?),
                other => bail!("variables of the type {other:?} are not known"),
            }
        }
        ensure!(has_source, "it has no variable datasource");
        let all: Values = variables
            .iter()
            .map(|one| (one.name.clone(), one.all.clone()))
            .collect();
        let mut queries = Vec::new();
        for panel in list(&dashboard["panels"])? {
            only(panel, &PANEL)?;
            asks_prometheus(panel)?;
            let place = format!("{title}: {}", text(&panel["title"])?);
            for target in list(&panel["targets"])? {
                only(target, &TARGET)?;
                let labels = labels_of(text(&target["legendFormat"])?)?;
                let query = Query {
                    place: place.clone(),
                    expression: text(&target["expr"])?.to_owned(),
                    labels,
                };
                query.fill(&all)?;
                queries.push(query);
            }
        }
        Ok(Self { variables, queries })
    }
}

impl Variable {
    fn parse(title: &str, variable: &Value) -> Result<Self> {
        only(variable, &VARIABLE)?;
        asks_prometheus(variable)?;
        let (name, all) = (
            text(&variable["name"])?.to_owned(),
            text(&variable["allValue"])?.to_owned(),
        );
        let asked = text(&variable["query"])?;
        let arguments = asked
            .strip_prefix("label_values(")
            .and_then(|rest| rest.strip_suffix(')'));
        let arguments = arguments.and_then(|arguments| arguments.rsplit_once(','));
        let known = arguments.map(|(series, label)| (series.trim(), label.trim()));
        let (series, label) = known
            .filter(|(series, label)| !series.is_empty() && !label.is_empty() && label.chars().all(is_of_a_name))
            .with_context(|| format!("{asked} is not known: it is not label_values(SERIES, LABEL)"))?;
        let query = Query {
            place: format!("{title}: the variable {name}"),
            expression: format!("group by ({label}) ({series})"),
            labels: vec![label.to_owned()],
        };
        query.fill(&Values::new())?;
        Ok(Self {
            name,
            label: label.to_owned(),
            query,
            all,
        })
    }
}

impl Query {
    /// The expression that Prometheus gets.
    ///
    /// # Errors
    ///
    /// A variable has no value here, or is not written as `$NAME`.
    pub fn fill(&self, values: &Values) -> Result<String> {
        let Self { place, expression, .. } = self;
        ensure!(
            !expression.contains("[["),
            "{place}: {expression} has a variable that is not written as $NAME"
        );
        let mut parts = expression.split('$');
        let mut filled = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let end = part
                .find(|character: char| !is_of_a_name(character))
                .unwrap_or(part.len());
            let (name, rest) = part.split_at(end);
            let value = match name {
                "__rate_interval" => Some(RATE_INTERVAL),
                name => values.get(name).map(String::as_str),
            };
            let value =
                value.with_context(|| format!("{place}: {expression} has a variable {name:?} without value"))?;
            filled.push_str(value);
            filled.push_str(rest);
        }
        Ok(filled)
    }
}

/// One value of a multi-value variable as Grafana writes it: a regular expression inside PromQL's quotes
/// (`prometheusSpecialRegexEscape` of its data source).
pub fn quote(value: &str) -> String {
    let mut quoted = String::new();
    for character in value.chars() {
        match character {
            '\\' => quoted.push_str(r"\\\"),
            special if "$^*{}[]'+?.()|".contains(special) => quoted.push_str(r"\\"),
            _ => {}
        }
        quoted.push(character);
    }
    quoted
}

fn is_of_a_name(character: char) -> bool {
    character.is_ascii_alphanumeric() || character == '_'
}

/// Names in a legend such as `{{state}}`.
fn labels_of(legend: &str) -> Result<Vec<String>> {
    ensure!(
        !legend.contains('$') && !legend.contains("[["),
        "the legend {legend:?} has a variable"
    );
    let labels = legend.split("{{").skip(1).map(|rest| {
        let (label, _) = rest
            .split_once("}}")
            .with_context(|| format!("the legend {legend:?} ends within a label"))?;
        Ok(label.trim().to_owned())
    });
    labels.collect()
}

fn asks_prometheus(part: &Value) -> Result<()> {
    let source = &part["datasource"];
    let ours = json!({"type": "prometheus", "uid": "${datasource}"});
    ensure!(
        *source == ours,
        "the data source {source} is not that of the variable datasource"
    );
    Ok(())
}

fn only(part: &Value, known: &[&str]) -> Result<()> {
    let fields = part.as_object().with_context(|| format!("{part} is no object"))?;
    let strange: Vec<&String> = fields.keys().filter(|field| !known.contains(&field.as_str())).collect();
    ensure!(strange.is_empty(), "{strange:?} may hold queries: not known in {part}");
    Ok(())
}

fn list(value: &Value) -> Result<&Vec<Value>> {
    value.as_array().with_context(|| format!("{value} is no list"))
}

fn text(value: &Value) -> Result<&str> {
    value.as_str().with_context(|| format!("{value} is no text"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dashboard() -> Value {
        let source = json!({"type": "prometheus", "uid": "${datasource}"});
        json!({
            "title": "Jobs",
            "templating": {"list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus"},
                {
                    "name": "pod", "type": "query", "datasource": source,
                    "query": "label_values(up{job=~\"a,b\"}, instance)", "allValue": ".*",
                },
            ]},
            "panels": [{"title": "Errors", "type": "timeseries", "datasource": source, "targets": [{
                "refId": "A",
                "expr": "sum by (code, route) (rate(errors_total{instance=~\"$pod\"}[$__rate_interval]))",
                "legendFormat": "{{code}} of {{ route }}",
            }]}],
        })
    }

    #[test]
    fn panels_and_variables_ask_with_values() {
        let read = Dashboard::read(&dashboard()).unwrap();
        let variable = &read.variables[0];
        assert_eq!(variable.query.expression, "group by (instance) (up{job=~\"a,b\"})");
        assert_eq!(
            (&*variable.name, &*variable.label, &*variable.all),
            ("pod", "instance", ".*")
        );
        let query = &read.queries[0];
        assert_eq!(
            (&*query.place, &query.labels[..]),
            ("Jobs: Errors", &["code".to_owned(), "route".to_owned()][..])
        );
        let one = Values::from([("pod".to_owned(), quote("10.0.0.1:80"))]);
        let asked = r#"sum by (code, route) (rate(errors_total{instance=~"10\\.0\\.0\\.1:80"}[1m]))"#;
        assert_eq!(query.fill(&one).unwrap(), asked);
    }

    #[test]
    fn what_may_be_a_query_and_is_not_known_is_refused() {
        let check = |place: &str, field: &str, value: Value, why: &str| {
            let mut changed = dashboard();
            changed.pointer_mut(place).unwrap()[field] = value;
            let said = format!("{:#}", Dashboard::read(&changed).unwrap_err());
            assert!(said.contains(why), "{place} {field}: {said}");
        };
        check("", "annotations", json!({"list": [{"expr": "up"}]}), "annotations");
        let variable = "/templating/list/1";
        check(
            "/templating/list/0",
            "query",
            json!("loki"),
            "not the variable datasource",
        );
        check(variable, "type", json!("custom"), "type \"custom\"");
        check(variable, "regex", json!("/a/"), "regex");
        check(
            variable,
            "query",
            json!("query_result(up)"),
            "query_result(up) is not known",
        );
        check(
            variable,
            "query",
            json!("label_values(instance)"),
            "label_values(instance) is not known",
        );
        check(
            variable,
            "query",
            json!({"query": "label_values(up, instance)"}),
            "is no text",
        );
        let panel = "/panels/0";
        check(panel, "panels", json!([]), "panels");
        check(
            panel,
            "datasource",
            json!({"type": "loki", "uid": "${datasource}"}),
            "loki",
        );
        check(panel, "targets", Value::Null, "is no list");
        let target = "/panels/0/targets/0";
        check(target, "datasource", json!({"type": "loki"}), "datasource");
        for (expression, variable) in [("a{b=\"$other\"}", "\"other\""), ("a{b=\"$pods\"}", "\"pods\"")] {
            check(target, "expr", json!(expression), variable);
        }
        for expression in ["a{b=\"${pod}\"}", "a{b=\"[[pod]]\"}"] {
            check(target, "expr", json!(expression), "has a variable");
        }
        check(target, "legendFormat", json!("{{code"), "ends within a label");
        check(target, "legendFormat", json!("$pod"), "has a variable");
    }
}
