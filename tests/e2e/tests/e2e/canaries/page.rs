//! The page in a real browser: everything that it draws and stores, and its console.

use std::{io::Write as _, process::Stdio};

use anyhow::{Context as _, Result, ensure};
use farwater_e2e::Fleet;
use farwater_testkit::{packages, process::bare_command, tools::repository_root};
use serde_json::{Value, json};

use super::canary::Marks;

const CHROMIUM: &str = "FARWATER_CHROMIUM";

/// Query of the page's address, and a text that is visible when everything is drawn.
pub type View<'a> = (String, &'a str);

/// Opens these views in a real browser, as the administrator.
pub fn check_page(fleet: &Fleet, marks: &Marks, views: &[View<'_>]) -> Result<()> {
    let views: Vec<Value> = views
        .iter()
        .map(|(address, shows)| json!({"address": address, "shows": shows}))
        .collect();
    let asked = json!({"url": fleet.hub.url(), "token": fleet.hub.token()?, "views": views});
    let shown = open(&asked)?;
    let shown = shown.as_array().context("a list")?;
    // One more for the page before signing in.
    ensure!(shown.len() == views.len() + 1, "{} views", shown.len());
    for view in shown {
        marks.check(&format!("the page at {}", view["address"]), &view.to_string())?;
    }
    Ok(())
}

fn open(asked: &Value) -> Result<Value> {
    let web = repository_root()?.join("web");
    for (made, by) in [
        ("node_modules/playwright-core", "npm ci"),
        ("dist/index.html", "npm run build"),
    ] {
        ensure!(
            web.join(made).exists(),
            "web/{made} is missing: run `{by}` in web, then build the hub again"
        );
    }
    let home = tempfile::tempdir()?;
    let mut command = bare_command("node");
    command.arg("e2e/show.mjs").current_dir(&web).env("HOME", home.path());
    match std::env::var_os(CHROMIUM) {
        Some(program) => drop(command.env(CHROMIUM, program)),
        None => packages::require(&[packages::CHROMIUM])?,
    }
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    child
        .stdin
        .take()
        .context("no pipe")?
        .write_all(asked.to_string().as_bytes())?;
    let output = child.wait_with_output()?;
    ensure!(
        output.status.success(),
        "node e2e/show.mjs: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).context("read what the page shows")
}
