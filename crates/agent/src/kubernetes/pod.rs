//! The access of a pod: the API server's address in the environment, the service account's token and the server's
//! authority in files.

use std::{net::Ipv6Addr, path::Path};

use super::kubeconfig::{Access, Cluster, User};

const FOLDER: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const HOST: &str = "KUBERNETES_SERVICE_HOST";
const PORT: &str = "KUBERNETES_SERVICE_PORT";

#[derive(Debug, thiserror::Error)]
pub enum PodError {
    #[error("{0} is not set")]
    Missing(&'static str),
    #[error("{PORT} is no port: {0:?}")]
    Port(String),
}

pub fn access(variable: impl Fn(&str) -> Option<String>) -> Result<Access, PodError> {
    let host = variable(HOST)
        .filter(|host| !host.is_empty())
        .ok_or(PodError::Missing(HOST))?;
    let port = variable(PORT).ok_or(PodError::Missing(PORT))?;
    let port: u16 = port.parse().map_err(|_| PodError::Port(port))?;
    let host = if host.parse::<Ipv6Addr>().is_ok() {
        format!("[{host}]")
    } else {
        host
    };
    let server = if port == 443 {
        format!("https://{host}")
    } else {
        format!("https://{host}:{port}")
    };
    let file = |name| Some(Path::new(FOLDER).join(name));
    Ok(Access {
        cluster: Cluster {
            server,
            certificate_authority: file("ca.crt"),
            ..Cluster::default()
        },
        user: User {
            token_file: file("token"),
            ..User::default()
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(host: Option<&str>, port: Option<&str>) -> Result<String, String> {
        let variable = |name: &str| {
            let value = if name == HOST { host } else { port };
            value.map(str::to_owned)
        };
        access(variable)
            .map(|access| access.cluster.server)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn the_address_is_in_the_environment() {
        assert_eq!(server(Some("10.0.0.1"), Some("443")).unwrap(), "https://10.0.0.1");
        assert_eq!(server(Some("fd00::1"), Some("6443")).unwrap(), "https://[fd00::1]:6443");
        assert_eq!(
            server(Some("api.example"), Some("6443")).unwrap(),
            "https://api.example:6443"
        );
        assert_eq!(
            server(None, Some("443")).unwrap_err(),
            "KUBERNETES_SERVICE_HOST is not set"
        );
        assert_eq!(
            server(Some(""), Some("443")).unwrap_err(),
            "KUBERNETES_SERVICE_HOST is not set"
        );
        assert_eq!(
            server(Some("10.0.0.1"), Some("tcp")).unwrap_err(),
            "KUBERNETES_SERVICE_PORT is no port: \"tcp\""
        );
    }
}
