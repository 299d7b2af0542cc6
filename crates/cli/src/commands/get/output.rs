//! `-o` of `get`: tables, documents, names, or a template.

use farwater_api::json_path::Template;
use serde_json::{Value, json};

use crate::{failure::Result, format, text};

#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// A table that fits the terminal.
    Table,
    /// The table with every column.
    Wide,
    Json,
    Yaml,
    /// One `kind.group/name` per line.
    Name,
    JsonPath(Template),
}

/// `table`, `wide`, `json`, `yaml`, `name` or `jsonpath=TEMPLATE`.
pub fn parse(given: &str) -> Result<Output, String> {
    Ok(match given.split_once('=').unwrap_or((given, "")) {
        ("table", "") => Output::Table,
        ("wide", "") => Output::Wide,
        ("json", "") => Output::Json,
        ("yaml", "") => Output::Yaml,
        ("name", "") => Output::Name,
        ("jsonpath", "") => return Err("the template is missing: jsonpath='{.metadata.name}'".to_owned()),
        ("jsonpath", template) => Output::JsonPath(Template::parse(template).map_err(|error| error.to_string())?),
        _ => return Err("expected table, wide, json, yaml, name or jsonpath=TEMPLATE".to_owned()),
    })
}

impl Output {
    /// Documents of objects with their types. `single`: one object was requested, so there is no list.
    pub fn documents(&self, objects: Vec<Value>, single: bool) -> Result<String> {
        if *self == Self::Name {
            return Ok(objects.iter().map(name_line).collect());
        }
        let mut objects = objects;
        let whole = match single && objects.len() == 1 {
            true => objects.remove(0),
            false => json!({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": objects}),
        };
        match self {
            Self::Json => format::json(&whole),
            Self::Yaml => format::yaml(&whole),
            Self::JsonPath(template) => Ok(text::printable(&template.render(&whole)).into_owned()),
            Self::Table | Self::Wide | Self::Name => Ok(String::new()),
        }
    }

    /// One object of a stream.
    pub fn streamed(&self, object: &Value) -> Result<String> {
        match self {
            Self::Json => format::json_line(object),
            Self::Yaml => Ok(format!("---\n{}", format::yaml(object)?)),
            Self::JsonPath(template) => Ok(text::printable(&template.render(object)).into_owned()),
            Self::Table | Self::Wide | Self::Name => Ok(name_line(object)),
        }
    }
}

/// `servicedeployment.farwater.dev/web`, as kubectl prints names.
fn name_line(object: &Value) -> String {
    let part = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (kind, version) = (part(&object["kind"]).to_lowercase(), part(&object["apiVersion"]));
    let group = version
        .split_once('/')
        .map(|(group, _)| format!(".{group}"))
        .unwrap_or_default();
    format!(
        "{}\n",
        text::plain(&format!("{kind}{group}/{}", part(&object["metadata"]["name"])))
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn objects() -> Vec<Value> {
        ["a", "b"]
            .map(|name| json!({"apiVersion": "farwater.dev/v1alpha1", "kind": "Cluster", "metadata": {"name": name}}))
            .to_vec()
    }

    #[test]
    fn one_object_is_no_list_and_several_are_one() {
        let path = |template: &str| parse(&format!("jsonpath={template}")).unwrap();
        let one = objects().remove(0);
        assert_eq!(
            path("{.metadata.name}").documents(vec![one.clone()], true).unwrap(),
            "a"
        );
        assert_eq!(
            path("{.items[*].metadata.name}").documents(vec![one], false).unwrap(),
            "a"
        );
        assert_eq!(
            path("{.items[*].metadata.name}").documents(objects(), false).unwrap(),
            "a b"
        );
        assert_eq!(
            Output::Name.documents(objects(), false).unwrap(),
            "cluster.farwater.dev/a\ncluster.farwater.dev/b\n"
        );
        let json: Value = serde_json::from_str(&Output::Json.documents(objects(), false).unwrap()).unwrap();
        assert_eq!(
            (&json["kind"], json["items"].as_array().unwrap().len()),
            (&json!("List"), 2)
        );
    }

    #[test]
    fn a_template_that_is_not_understood_is_refused_before_anything_is_asked() {
        for (given, told) in [
            ("jsonpath={.a", "a brace is not closed"),
            ("jsonpath=", "the template is missing"),
            ("xml", "expected table, wide, json, yaml, name or jsonpath=TEMPLATE"),
            ("json=x", "expected table, wide, json, yaml, name or jsonpath=TEMPLATE"),
        ] {
            let refusal = parse(given).unwrap_err();
            assert!(refusal.contains(told), "{given}: {refusal}");
        }
    }
}
