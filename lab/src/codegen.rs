//! `cargo xtask codegen`: writes files that are generated from the code and checked in, so that reviews show their
//! changes.

mod page_types;
mod reference;

use std::{fs, path::PathBuf, process::ExitCode};

use anyhow::{Context as _, Result, bail};
use xtask::{deny, repository};

/// Write the generated files: CRDs and JSON schemas under deploy, the reference under docs, the page's types, deny.toml
#[derive(clap::Args)]
pub struct Arguments {
    /// Write nothing; fail if a file is out of date
    #[arg(long)]
    check: bool,
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    if arguments.check {
        check()?;
        return Ok(ExitCode::SUCCESS);
    }
    for file in stale()? {
        let path = repository::root()?.join(&file.path);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
        }
        fs::write(&path, file.content).with_context(|| format!("write {}", path.display()))?;
        println!("{}", file.path.display());
    }
    Ok(ExitCode::SUCCESS)
}

/// Fails with the names of outdated files.
fn check() -> Result<()> {
    let stale = stale()?;
    if stale.is_empty() {
        return Ok(());
    }
    let names: Vec<_> = stale.iter().map(|file| file.path.display().to_string()).collect();
    bail!(
        "generated files are out of date: {}; run: cargo xtask codegen",
        names.join(", ")
    )
}

struct Generated {
    /// Path relative to the repository.
    path: PathBuf,
    content: String,
}

fn stale() -> Result<Vec<Generated>> {
    let root = repository::root()?;
    let differs = |file: &Generated| fs::read_to_string(root.join(&file.path)).ok().as_ref() != Some(&file.content);
    Ok(all()?.into_iter().filter(differs).collect())
}

fn all() -> Result<Vec<Generated>> {
    let mut files = resource_definitions()?;
    let pages = reference::pages()?.into_iter().map(|page| ("docs/reference", page));
    let schemas = reference::schemas()?.into_iter().map(|page| ("deploy/schemas", page));
    for (folder, page) in pages.chain(schemas) {
        files.push(Generated {
            path: PathBuf::from(folder).join(page.name),
            content: page.text,
        });
    }
    files.push(Generated {
        path: "deny.toml".into(),
        content: deny::cargo_deny_configuration(),
    });
    files.push(Generated {
        path: "web/src/api/generated.ts".into(),
        content: page_types::module(),
    });
    files.push(prometheus_rule()?);
    Ok(files)
}

/// The alerts for the Prometheus operator: the same groups, under `spec`.
fn prometheus_rule() -> Result<Generated> {
    let path = repository::root()?.join("deploy/monitoring/alerts.yaml");
    let alerts = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    let (_, groups) = alerts
        .split_once("groups:")
        .context("alerts.yaml has no line `groups:`")?;
    let mut content =
        "# Made by cargo xtask codegen from alerts.yaml; don't edit.\napiVersion: monitoring.coreos.com/v1\n\
                       kind: PrometheusRule\nmetadata:\n  name: farwater\nspec:\n  groups:"
            .to_owned();
    for line in groups.trim_end().split('\n') {
        content.push_str(if line.is_empty() || content.ends_with("groups:") {
            ""
        } else {
            "  "
        });
        content.push_str(line);
        content.push('\n');
    }
    Ok(Generated {
        path: "deploy/monitoring/prometheus-rule.yaml".into(),
        content,
    })
}

/// One CustomResourceDefinition per kind, as a management cluster would install it.
fn resource_definitions() -> Result<Vec<Generated>> {
    let definitions = farwater_api::custom_resource_definitions()
        .into_iter()
        .map(|definition| {
            let name = definition.spec.names.plural.clone();
            let yaml =
                serde_saphyr::to_string(&definition).with_context(|| format!("write the definition of {name}"))?;
            let content = format!("# Made by cargo xtask codegen from crates/api; don't edit.\n{yaml}");
            Ok(Generated {
                path: format!("deploy/crds/{name}.yaml").into(),
                content,
            })
        });
    definitions.collect()
}
