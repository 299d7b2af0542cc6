//! The configuration file: options by their names, as YAML.

use std::path::Path;

use clap::{Args as _, FromArgMatches as _};
use serde_json::Value;

use crate::config::{ConfigError, HubArgs};

/// Maximum bytes of a configuration file.
pub(super) const MAX_FILE_BYTES: u64 = 1 << 20;

pub(super) fn read_file(path: &Path) -> Result<String, ConfigError> {
    let read = |source| ConfigError::Read {
        path: path.to_owned(),
        source,
    };
    let size = std::fs::metadata(path).map_err(read)?.len();
    if size > MAX_FILE_BYTES {
        return Err(ConfigError::TooLong { path: path.to_owned() });
    }
    std::fs::read_to_string(path).map_err(read)
}

/// The file's options, parsed by the flags' own parsers, so that names and meanings are the same.
pub(super) fn parse_file(path: &Path, text: &str) -> Result<HubArgs, ConfigError> {
    let parse = |message: String| ConfigError::Parse {
        path: path.to_owned(),
        message,
    };
    let value: Value = if text.trim().is_empty() {
        Value::Null
    } else {
        serde_saphyr::from_str(text).map_err(|error| parse(error.to_string()))?
    };

    let entries = match value {
        Value::Null => return Ok(HubArgs::default()),
        Value::Object(entries) => entries,
        _ => return Err(parse("expected a mapping of options to values".to_owned())),
    };

    let command = HubArgs::augment_args(clap::Command::new("hub").no_binary_name(true).disable_help_flag(true))
        // The environment was read with the flags; here it would set an option that the file names.
        .mut_args(|arg| arg.env(None::<&str>));
    let valid: Vec<String> = command
        .get_arguments()
        .filter_map(|arg| arg.get_long())
        .filter(|name| *name != "config")
        .map(str::to_owned)
        .collect();

    let mut flags = Vec::new();
    for (name, value) in entries {
        if !valid.contains(&name) {
            return Err(ConfigError::Unknown {
                path: path.to_owned(),
                name,
                valid: valid.join(", "),
            });
        }
        for value in scalars(value).ok_or_else(|| ConfigError::Value {
            path: path.to_owned(),
            message: format!("option {name}: expected a scalar or a list of scalars"),
        })? {
            flags.push(format!("--{name}={value}"));
        }
    }

    let refused = |error: clap::Error| ConfigError::Value {
        path: path.to_owned(),
        message: first_line(&error),
    };
    let matches = command.try_get_matches_from(flags).map_err(refused)?;
    HubArgs::from_arg_matches(&matches).map_err(refused)
}

pub(super) fn scalars(value: Value) -> Option<Vec<String>> {
    match value {
        Value::Array(items) => items.into_iter().map(scalar).collect(),
        value => Some(vec![scalar(value)?]),
    }
}

pub(super) fn scalar(value: Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(value) => Some(value.to_string()),
        _ => None,
    }
}

/// Clap's message without label, usage and colours.
pub(super) fn first_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let lines: Vec<&str> = text.lines().take_while(|line| !line.starts_with("For more")).collect();
    lines
        .join(" ")
        .trim_start_matches("error: ")
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
}
