//! `-o`: the format of the output.

use serde::Serialize;

use crate::{
    exit,
    failure::{Failure, Result},
    text,
};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// A table that fits the terminal.
    #[default]
    Table,
    /// The table with every column.
    Wide,
    Json,
    Yaml,
    /// One `kind.group/name` per line.
    Name,
}

/// For commands whose answer is no list of resources.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Answer {
    #[default]
    Text,
    Json,
    Yaml,
}

pub fn json(value: &impl Serialize) -> Result<String> {
    let json = serde_json::to_string_pretty(value).map_err(|error| internal(&error))?;
    Ok(text::escape_json(json) + "\n")
}

/// One line of JSON with a line break, for streams of documents.
pub fn json_line(value: &impl Serialize) -> Result<String> {
    let json = serde_json::to_string(value).map_err(|error| internal(&error))?;
    Ok(text::escape_json(json) + "\n")
}

pub fn yaml(value: &impl Serialize) -> Result<String> {
    let yaml = serde_saphyr::to_string(value).map_err(|error| internal(&error))?;
    // YAML's block scalars have no escapes, so control characters are left out.
    Ok(text::printable(&yaml).into_owned())
}

/// Several objects as one YAML stream.
pub fn yaml_documents(values: &[impl Serialize]) -> Result<String> {
    let documents = values.iter().map(yaml).collect::<Result<Vec<_>>>()?;
    Ok(documents.iter().map(|document| format!("---\n{document}")).collect())
}

fn internal(error: &dyn std::error::Error) -> Failure {
    Failure::new(exit::INTERNAL, "can't write the answer").evidence(error.to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    #[test]
    fn yaml_reads_back_as_what_was_written() {
        let value = json!({
            "strings": ["yes", "no", "on", "null", "~", "1e3", "0x1f", "0o7", "1_000", "12:30:00", "2026-01-01", "", " a",
                        "- a", "a: b", "#c", "*x", "&x", "!x", "%x", "@x", "`x", "{a", "[a", "a\nb", "a\n\n", "\"q\"", "'q'", "1.", ".5", "+1", "-", "---", "?", "=", "<<", "Infinity", ".inf", ".NaN"],
            "numbers": [1, -1, 1.5], "bool": true, "null": null, "empty": {}, "none": []
        });
        let text = super::yaml(&value).unwrap();
        assert_eq!(serde_saphyr::from_str::<Value>(&text).unwrap(), value, "{text}");
    }
}
