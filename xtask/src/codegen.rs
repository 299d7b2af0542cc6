//! `cargo xtask codegen`: files that are made from the code and checked in, so that reviews see them change.

mod reference;

use std::{fs, path::PathBuf, process::ExitCode};

use anyhow::{Context as _, Result, bail};

use crate::{deny, repository};

/// Write the generated files: resource definitions and JSON schemas under deploy, the reference under docs, deny.toml
#[derive(clap::Args)]
pub struct Arguments {
    /// Write nothing; fail if a file is not what would be written
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

/// Fails with the names of the files that differ from what the code says now.
pub fn check() -> Result<()> {
    let stale = stale()?;
    if stale.is_empty() {
        return Ok(());
    }
    let names: Vec<_> = stale.iter().map(|file| file.path.display().to_string()).collect();
    bail!("generated files are out of date: {}; run: cargo xtask codegen", names.join(", "))
}

struct Generated {
    /// Relative to the repository.
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
        files.push(Generated { path: PathBuf::from(folder).join(page.name), content: page.text });
    }
    files.push(Generated { path: "deny.toml".into(), content: deny::cargo_deny_configuration() });
    Ok(files)
}

/// One file per kind, as a management cluster would install it.
fn resource_definitions() -> Result<Vec<Generated>> {
    let definitions = farwater_api::custom_resource_definitions().into_iter().map(|definition| {
        let name = definition.spec.names.plural.clone();
        let yaml = serde_saphyr::to_string(&definition).with_context(|| format!("write the definition of {name}"))?;
        let content = format!("# Made by cargo xtask codegen from crates/api; don't edit.\n{yaml}");
        Ok(Generated { path: format!("deploy/crds/{name}.yaml").into(), content })
    });
    definitions.collect()
}
