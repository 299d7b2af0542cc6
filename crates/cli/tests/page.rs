//! The page in a real browser, served by the real hub. Runs `web/e2e` from here, so that one command tests everything.

#![allow(clippy::unwrap_used)]

use std::{path::Path, process::Command};

use farwater_testkit::packages;

#[test]
fn the_page_works_in_a_real_browser() {
    let web = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../web");
    for (made, by) in [
        ("node_modules/playwright-core", "npm ci"),
        ("dist/index.html", "npm run build"),
    ] {
        assert!(
            web.join(made).exists(),
            "web/{made} is missing: run `{by}` in web, then build the hub again"
        );
    }
    if std::env::var_os("FARWATER_CHROMIUM").is_none() {
        packages::require(&[packages::CHROMIUM]).unwrap();
    }
    // Chromium drops downloads when the machine's network interfaces change, which other tests cause. So it gets a
    // network namespace with its own loopback.
    let alone = "ip link set lo up && exec \"$@\"";
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "--net", "/bin/sh", "-c", alone, "sh"])
        .args(["npm", "run", "--silent", "e2e"])
        .current_dir(&web)
        .env("FARWATER_BIN", env!("CARGO_BIN_EXE_farwater"))
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{}\n{}",
        text(&output.stdout),
        text(&output.stderr)
    );
}
