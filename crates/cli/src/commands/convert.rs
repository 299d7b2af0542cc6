//! `farwater convert flux`: Flux's sources as ours. No hub is asked.

use std::{
    io::Read as _,
    path::{Path, PathBuf},
};

use farwater_api::convert::flux::{self, NotConverted};
use farwater_bundle::yaml::{self, Budget};
use serde_json::Value;

use crate::{
    exit,
    failure::{Failure, Result},
    format,
    terminal::{print, say},
    text,
};

/// A file of objects; the largest hold some thousands.
const MAX_FILE: u64 = 64 << 20;

#[derive(Debug, clap::Args)]
pub struct ConvertArgs {
    #[command(subcommand)]
    from: From,
}

#[derive(Debug, clap::Subcommand)]
enum From {
    /// Prints Flux's GitRepositories, HelmRepositories and OCIRepositories as ours; what has no counterpart is said on standard error. One
    /// that would lead to something else without it is not converted.
    Flux {
        /// Converts these too.
        #[arg(long)]
        allow_losses: bool,
        /// Files of YAML; `-` is standard input.
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
}

pub fn run(args: &ConvertArgs) -> Result<u8> {
    let From::Flux { files, allow_losses } = &args.from;
    let (mut converted, mut is_whole) = (Vec::new(), true);
    for file in files {
        let shown = file.display().to_string();
        let text = read_file(file)?;
        let documents = yaml::parse(&text, &Budget { nodes: 5_000_000, bytes: 64 << 20, ..Budget::default() })
            .map_err(|error| unusable(&format!("{shown}:{}", error.line)).evidence(error.to_string()))?;
        for document in documents {
            let line = document.line;
            let object = document
                .into_json()
                .map_err(|error| unusable(&format!("{shown}:{line}")).evidence(error.to_string()))?;
            for object in items(object) {
                is_whole &= convert(&object, &format!("{shown}:{line}"), *allow_losses, &mut converted);
            }
        }
    }
    if !converted.is_empty() {
        print(&format::yaml_documents(&converted)?)?;
    }
    Ok(if is_whole { exit::YES } else { exit::NO })
}

fn unusable(place: &str) -> Failure {
    Failure::usage(format!("{place} can't be read"))
}

/// What a file has, or standard input, where it is called `-`.
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

/// `kubectl get -o yaml` prints lists.
fn items(mut object: Value) -> Vec<Value> {
    let is_list = object["kind"].as_str().is_some_and(|kind| kind.ends_with("List"));
    match object["items"].take() {
        Value::Array(items) if is_list => items,
        _ if object.is_null() => Vec::new(),
        _ => vec![object],
    }
}

/// Whether all of it went over that has to.
fn convert(object: &Value, place: &str, allow_losses: bool, converted: &mut Vec<Value>) -> bool {
    let kind = object["kind"].as_str().unwrap_or("object");
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let about = |told: &str| say(&text::plain(&format!("{place}: {kind} {name}: {told}")));
    match flux::convert(object) {
        Ok(one) => {
            let problems = farwater_hub::apiserver::problems(&one.object);
            one.notes.iter().chain(&one.losses).for_each(|note| about(note));
            for problem in &problems {
                about(&format!("not converted: the hub would refuse {problem}"));
            }
            if !one.losses.is_empty() && !allow_losses {
                about("not converted: it would be something else; --allow-losses converts it all the same");
            }
            let goes_over = problems.is_empty() && (one.losses.is_empty() || allow_losses);
            converted.extend(goes_over.then_some(one.object));
            goes_over
        }
        // Files hold other things too.
        Err(NotConverted::NotFlux) => {
            about("left alone, it is none of Flux's sources");
            true
        }
        Err(why) => {
            about(&format!("not converted: {why}"));
            false
        }
    }
}
