//! `cargo xtask deny`: checks the dependency tree on machines without cargo-deny. `deny.toml` is generated from the
//! same rules. Only cargo-deny reads the database of security advisories, if it is installed.

mod licence;
mod rooms;

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    process::{ExitCode, Stdio},
};

use anyhow::{Result, bail};

use crate::repository;

/// Check the dependency tree: banned crates, licences, and crates that the agent and the pure crates must not link
#[derive(clap::Args)]
pub struct Arguments {}

pub fn run(_: &Arguments) -> Result<ExitCode> {
    check()?;
    println!("the dependency tree follows all rules");
    Ok(ExitCode::SUCCESS)
}

/// A crate that must not be in the dependency tree, not even indirectly.
struct Ban {
    name: &'static str,
    /// Ban only versions below this `major.minor`. None: all versions.
    below: Option<(u64, u64)>,
    why: &'static str,
}

const BANS: &[Ban] = &[
    Ban {
        name: "openssl-sys",
        below: None,
        why: "one TLS stack: rustls with aws-lc-rs",
    },
    Ban {
        name: "native-tls",
        below: None,
        why: "one TLS stack: rustls with aws-lc-rs",
    },
    Ban {
        name: "ring",
        below: None,
        why: "one source of cryptography: aws-lc-rs",
    },
    Ban {
        name: "git2",
        below: None,
        why: "Git is read with gix and fetched with the git program",
    },
    Ban {
        name: "libgit2-sys",
        below: None,
        why: "Git is read with gix and fetched with the git program",
    },
    Ban {
        name: "serde_yaml",
        below: None,
        why: "unmaintained; YAML is read with serde-saphyr",
    },
    Ban {
        name: "tokio-tar",
        below: None,
        why: "unmaintained, with an open advisory",
    },
    Ban {
        name: "async-std",
        below: None,
        why: "one runtime: tokio",
    },
    Ban {
        name: "reqwest",
        below: Some((0, 13)),
        why: "older ones bring a second TLS stack",
    },
];

/// `axum/ws` pins another version of tungstenite than kube.
const BANNED_FEATURES: &[(&str, &str)] = &[("axum", "ws")];

const LICENCES: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "MIT-0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Advisories that don't affect our use of the crate, with the reason.
const IGNORED_ADVISORIES: &[(&str, &str)] = &[(
    "RUSTSEC-2023-0071",
    "rsa only checks signatures and rewrites numbers of keys; private keys are used by aws-lc-rs",
)];

/// Crates with file-level copyleft, allowed because we don't change them.
const LICENCE_EXCEPTIONS: &[(&str, &str)] = &[("uluru", "MPL-2.0")];

type Boundary = (&'static str, &'static [&'static str], &'static str);

/// A package of ours, the crates that it must not link, and why. `NAME` also stands for all crates `NAME-…`.
const BOUNDARIES: &[Boundary] = &[
    (
        "farwater-agent",
        &[
            "sqlx",
            "libsqlite3-sys",
            "gix",
            "axum",
            "kube-client",
            "serde-saphyr",
            "regex",
            "flate2",
            "tar",
            "farwater-store",
            "farwater-sources",
            "farwater-hub",
        ],
        "it runs in every cluster and must stay small",
    ),
    (
        "farwater-api",
        &["tokio", "hyper", "rustls", "sqlx"],
        "contracts have no sockets, files, clocks or runtime",
    ),
    (
        "farwater-fleet",
        &["tokio", "hyper", "rustls", "sqlx"],
        "decisions have no sockets, files, clocks or runtime",
    ),
    (
        "farwater-bundle",
        &["tokio", "hyper", "rustls", "sqlx"],
        "archives have no sockets, clocks or runtime",
    ),
    (
        "farwater-fieldmanager",
        &["tokio", "hyper", "rustls", "sqlx", "farwater-api", "farwater-store"],
        "field ownership needs no sockets, files, clocks or runtime, and no kinds of Farwater",
    ),
    (
        "farwater-cli",
        &["farwater-testkit"],
        "the testkit is for development only",
    ),
    (
        "xtask",
        &[
            "farwater-agent",
            "farwater-e2e",
            "farwater-fleet",
            "farwater-fleetsim",
            "farwater-hub",
            "farwater-render",
            "farwater-store",
            "sqlx",
        ],
        "xtask is built before everything else; put code that needs this into lab",
    ),
];

/// A crate in the tree, from `cargo tree`. `cargo metadata` would also list crates of disabled features.
struct Package {
    name: String,
    version: String,
    licence: String,
    features: Vec<String>,
    ours: bool,
}

/// All crates that `arguments` select, for all platforms.
fn tree(arguments: &[&str]) -> Result<Vec<Package>> {
    let fixed = [
        "tree",
        "--locked",
        "--target",
        "all",
        "--prefix",
        "none",
        "--format",
        "{p}\t{l}\t{f}",
    ];
    let output = repository::cargo_output(&[&fixed, arguments].concat())?;
    let lines: BTreeSet<_> = output.lines().map(|line| line.trim_end_matches(" (*)")).collect();
    lines
        .into_iter()
        .filter(|line| !line.is_empty())
        .map(read_package)
        .collect()
}

fn read_package(line: &str) -> Result<Package> {
    let mut columns = line.split('\t');
    let mut column = || columns.next().unwrap_or_default();
    let (package, licence, features) = (column(), column(), column());
    let mut words = package.split(' ');
    let (Some(name), Some(version)) = (words.next(), words.next().and_then(|word| word.strip_prefix('v'))) else {
        bail!("cargo tree printed a line that is not a package: {line:?}")
    };
    Ok(Package {
        name: name.to_owned(),
        version: version.to_owned(),
        licence: licence.to_owned(),
        features: features.split(',').map(str::to_owned).collect(),
        ours: package.contains("(/"),
    })
}

/// Fails with all violations at once.
pub fn check() -> Result<()> {
    let all = tree(&["--workspace", "--edges", "normal,build,dev"])?;
    let mut violations = Vec::new();
    check_bans(&all, &mut violations);
    check_licences(&all, &mut violations);
    for boundary in BOUNDARIES {
        let linked = tree(&["--package", boundary.0, "--edges", "normal"])?;
        check_boundary(boundary, &linked, &mut violations);
    }
    violations.dedup();
    violations.extend(rooms::check()?);
    if violations.is_empty() {
        return check_advisories();
    }
    bail!(
        "the dependency tree breaks rules of xtask/src/deny.rs:\n  {}",
        violations.join("\n  ")
    )
}

fn check_advisories() -> Result<()> {
    let asked = repository::cargo()?
        .args(["deny", "--version"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    if !asked.is_ok_and(|status| status.success()) {
        println!("advisories not checked: cargo-deny is not installed");
        return Ok(());
    }
    let status = repository::cargo()?.args(["deny", "check", "advisories"]).status()?;
    if status.success() {
        Ok(())
    } else {
        bail!("cargo deny check advisories: {status}")
    }
}

fn check_bans(packages: &[Package], violations: &mut Vec<String>) {
    for package in packages {
        let banned = BANS.iter().find(|ban| ban.name == package.name);
        if let Some(ban) = banned.filter(|ban| ban.below.is_none_or(|limit| first_two(&package.version) < limit)) {
            violations.push(format!("{} {} is banned: {}", package.name, package.version, ban.why));
        }
        for (name, feature) in BANNED_FEATURES {
            if package.name == *name && package.features.iter().any(|on| on == feature) {
                violations.push(format!("the feature {name}/{feature} is banned"));
            }
        }
    }
}

fn first_two(version: &str) -> (u64, u64) {
    let mut numbers = version.split('.').map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

fn check_licences(packages: &[Package], violations: &mut Vec<String>) {
    for Package {
        name, version, licence, ..
    } in packages.iter().filter(|package| !package.ours)
    {
        let allowed = |one: &str| LICENCES.contains(&one) || LICENCE_EXCEPTIONS.contains(&(name.as_str(), one));
        match licence::is_satisfied(licence, &allowed) {
            Ok(true) => {}
            Ok(false) => violations.push(format!("{name} {version} is under {licence}, which is not allowed")),
            Err(error) => violations.push(format!("licence of {name} {version}: {error}")),
        }
    }
}

fn check_boundary(boundary: &Boundary, linked: &[Package], violations: &mut Vec<String>) {
    let (package, forbidden, why) = boundary;
    let is_forbidden = |name: &str| {
        forbidden
            .iter()
            .any(|f| name == *f || name.starts_with(&format!("{f}-")))
    };
    for found in linked.iter().filter(|found| is_forbidden(&found.name)) {
        violations.push(format!("{package} links {}: {why}", found.name));
    }
}

/// The same rules as a configuration of cargo-deny.
pub fn cargo_deny_configuration() -> String {
    let mut text =
        "# Made by cargo xtask codegen from xtask/src/deny.rs; don't edit.\n\n[graph]\nall-features = false\n\n\
                    [advisories]\nyanked = \"deny\"\nignore = [\n"
            .to_owned();
    for (id, why) in IGNORED_ADVISORIES {
        let _ = writeln!(text, "    {{ id = \"{id}\", reason = \"{why}\" }},");
    }
    text.push_str("]\n\n[licenses]\nallow = [\n");
    let plain = |licence: &&&str| !licence.contains(" WITH ");
    for licence in LICENCES
        .iter()
        .filter(plain)
        .copied()
        .chain(["Apache-2.0 WITH LLVM-exception"])
    {
        let _ = writeln!(text, "    \"{licence}\",");
    }
    text.push_str("]\nexceptions = [\n");
    for (name, licence) in LICENCE_EXCEPTIONS {
        let _ = writeln!(text, "    {{ crate = \"{name}\", allow = [\"{licence}\"] }},");
    }
    text.push_str("]\n\n[bans]\nmultiple-versions = \"allow\"\nwildcards = \"allow\"\ndeny = [\n");
    for ban in BANS {
        let version = ban
            .below
            .map(|(major, minor)| format!("@<{major}.{minor}"))
            .unwrap_or_default();
        let _ = writeln!(
            text,
            "    {{ crate = \"{}{version}\", reason = \"{}\" }},",
            ban.name, ban.why
        );
    }
    text.push_str("]\n");
    for (name, feature) in BANNED_FEATURES {
        let _ = write!(
            text,
            "\n[[bans.features]]\ncrate = \"{name}\"\ndeny = [\"{feature}\"]\n"
        );
    }
    text.push_str("\n[sources]\nunknown-registry = \"deny\"\nunknown-git = \"deny\"\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn violations(line: &str) -> Vec<String> {
        let package = read_package(line).unwrap();
        let mut violations = Vec::new();
        check_bans(std::slice::from_ref(&package), &mut violations);
        check_licences(std::slice::from_ref(&package), &mut violations);
        check_boundary(&BOUNDARIES[0], &[package], &mut violations);
        violations
    }

    #[test]
    fn a_crate_that_breaks_a_rule_is_named_with_the_reason() {
        assert_eq!(violations("serde v1.0.0\tMIT OR Apache-2.0\tstd"), [""; 0]);
        assert_eq!(
            violations("ring v0.17.0\tISC\t"),
            ["ring 0.17.0 is banned: one source of cryptography: aws-lc-rs"]
        );
        assert_eq!(violations("reqwest v0.13.1\tMIT\t"), [""; 0]);
        assert_eq!(violations("reqwest v0.12.9\tMIT\t").len(), 1);
        assert_eq!(
            violations("copyleft v1.0.0\tGPL-3.0\t"),
            ["copyleft 1.0.0 is under GPL-3.0, which is not allowed"]
        );
        assert!(violations("nothing v1.0.0\t\t")[0].starts_with("licence of nothing"));
    }

    #[test]
    fn a_boundary_holds_for_a_crate_and_its_family() {
        assert_eq!(violations("gix-pack v0.60.0\tMIT\t").len(), 1);
        assert_eq!(violations("axum v0.8.0\tMIT\ttokio,ws").len(), 2);
    }
}
