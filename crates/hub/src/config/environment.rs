//! Environment variables that look like options and are not.
//!
//! They cause a warning and no error: other programs use the same prefix, and in a pod next to a Service called
//! `farwater` Kubernetes sets some itself.

use std::ffi::OsString;

use clap::Args as _;

use super::HubArgs;

const PREFIX: &str = "FARWATER_";

/// Variables of this repository's other programs, and of its tests, which start hubs. A trailing `_` marks a prefix.
const OTHERS: &[&str] = &[
    "FARWATER_BIN",
    "FARWATER_BIN_DIR",
    "FARWATER_CA_FILE",
    "FARWATER_CA_PIN",
    "FARWATER_CHROMIUM",
    "FARWATER_HEALTH_LISTEN",
    "FARWATER_HUB",
    "FARWATER_JOIN_TOKEN",
    "FARWATER_KUBECONFIG",
    "FARWATER_LOG",
    "FARWATER_ORDER_",
    "FARWATER_PLANE_",
    "FARWATER_POSTGRES",
    "FARWATER_SCREENSHOTS",
    "FARWATER_STATE_DIR",
    "FARWATER_STORE_KILL",
    "FARWATER_TEST_DATABASE",
    "FARWATER_TOOLS",
    "FARWATER_WEB_DIST",
    "FARWATER_WRITE",
];

/// A warning that names the variables that no program reads, and those that the hub reads.
pub fn check(names: impl IntoIterator<Item = OsString>) -> Option<String> {
    let command = HubArgs::augment_args(clap::Command::new("hub"));
    let valid: Vec<&str> = command
        .get_arguments()
        .filter_map(|arg| arg.get_env()?.to_str())
        .collect();
    let is_unknown = |name: &String| {
        let other = |other: &&str| *other == name || (other.ends_with('_') && name.starts_with(*other));
        name.starts_with(PREFIX) && !valid.contains(&&**name) && !OTHERS.iter().any(other) && !is_service_link(name)
    };
    let mut unknown: Vec<String> = names
        .into_iter()
        .map(|name| name.to_string_lossy().into_owned())
        .filter(is_unknown)
        .collect();
    unknown.sort();
    if unknown.is_empty() {
        return None;
    }
    Some(format!(
        "unknown environment variable {}; the hub's options are {}",
        unknown.join(", "),
        valid.join(", ")
    ))
}

/// Variables that the kubelet sets for Services of the pod's namespace: `NAME_SERVICE_HOST`,
/// `NAME_SERVICE_PORT[_PORTNAME]`, `NAME_PORT`, `NAME_PORT_N_TCP[_ADDR|_PORT|_PROTO]`
/// (k8s.io/kubernetes/pkg/kubelet/envvars).
fn is_service_link(name: &str) -> bool {
    name.ends_with("_SERVICE_HOST")
        || name.contains("_SERVICE_PORT")
        || name.split_once("_PORT").is_some_and(|(_, rest)| {
            rest.is_empty()
                || rest
                    .strip_prefix('_')
                    .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warning(names: &[&str]) -> Option<String> {
        check(names.iter().map(OsString::from))
    }

    #[test]
    fn a_misspelt_variable_is_named_with_the_valid_ones() {
        let told = warning(&["PATH", "FARWATER_LISTEN", "FARWATER_LISEN", "FARWATER_DATADIR"]).unwrap();
        let head =
            "unknown environment variable FARWATER_DATADIR, FARWATER_LISEN; the hub's options are FARWATER_DATA_DIR, ";
        assert!(
            told.starts_with(head) && told.contains("FARWATER_LISTEN, ") && told.contains("DRAIN_SECONDS"),
            "{told}"
        );
    }

    #[test]
    fn variables_of_others_are_passed_over() {
        for name in [
            "PATH",
            "FARWATER_KUBECONFIG",
            "FARWATER_PLANE_1",
            "FARWATER_CONFIG",
            "FARWATERX",
        ] {
            assert_eq!(warning(&[name]), None, "{name}");
        }
        for name in [
            "SERVICE_HOST",
            "SERVICE_PORT",
            "SERVICE_PORT_HTTPS",
            "PORT",
            "PORT_8443_TCP_ADDR",
            "HUB_PORT",
        ] {
            assert_eq!(warning(&[&format!("FARWATER_{name}")]), None, "{name}");
        }
    }
}
