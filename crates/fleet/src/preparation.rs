//! The namespaces and accounts that a cluster needs before a tenant can deploy there.

use std::{
    collections::{BTreeMap, BTreeSet},
    slice,
};

use farwater_api::{ADMIN_SERVICE_ACCOUNT, AGENT_NAMESPACE, protocol::ServiceAccount};

use crate::placement::{self, Denied, NamedGrant, Request};

/// A tenant and a cluster.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// Namespace of the hub.
    pub tenant: &'a str,
    /// The cluster's name, for messages.
    pub cluster: &'a str,
    pub cluster_labels: &'a BTreeMap<String, String>,
}

/// The needs of one cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Preparation {
    /// Target namespaces, each with the accounts (namespace and name) that need rights in it.
    pub rights: BTreeMap<String, BTreeSet<(String, String)>>,
    /// Patterns of the grants, which name no single namespace. `*`: a grant allows any.
    pub patterns: BTreeSet<String>,
}

/// Returns the needs of a tenant in one cluster, for target namespaces that its grants name without a pattern and for
/// `further` ones.
///
/// # Errors
///
/// No grant selects the cluster, or none allows one of the further namespaces.
pub fn prepare(place: Place<'_>, further: &[String], grants: &[NamedGrant]) -> Result<Preparation, Denied> {
    let on_cluster = placement::grants_on(place.tenant, place.cluster_labels, grants);
    if on_cluster.is_empty() {
        return Err(Denied::NoGrant {
            namespace: place.tenant.to_owned(),
            cluster: place.cluster.to_owned(),
        });
    }
    let any = ["*".to_owned()];
    let mut preparation = Preparation::default();
    let mut targets: BTreeSet<&str> = further.iter().map(String::as_str).collect();
    for (_, grant) in on_cluster {
        for pattern in grant.target_namespaces.as_deref().unwrap_or(&any) {
            match pattern.ends_with('*') {
                true => drop(preparation.patterns.insert(pattern.clone())),
                false => drop(targets.insert(pattern)),
            }
        }
    }
    for target in targets {
        let accounts = accounts_for(place, target, grants)?;
        // `cluster join` creates the administrators' account with all rights.
        let accounts = accounts.into_iter().filter(|account| !is_administrator(account));
        let accounts = accounts.map(|account| (account.namespace, account.name)).collect();
        preparation.rights.insert(target.to_owned(), accounts);
    }
    Ok(preparation)
}

/// The accounts that services of a target namespace may use. The grant that applies depends on the sources of a service.
fn accounts_for(place: Place<'_>, target: &str, grants: &[NamedGrant]) -> Result<Vec<ServiceAccount>, Denied> {
    let request = Request {
        namespace: place.tenant,
        cluster: place.cluster,
        cluster_labels: place.cluster_labels,
        sources: &[],
        target_namespace: target,
    };
    let all = placement::check(request, grants)?;
    let each = grants
        .iter()
        .filter_map(|grant| placement::check(request, slice::from_ref(grant)).ok());
    Ok(std::iter::once(all)
        .chain(each)
        .map(|ceiling| ceiling.service_account)
        .collect())
}

fn is_administrator(account: &ServiceAccount) -> bool {
    account.namespace == AGENT_NAMESPACE && account.name == ADMIN_SERVICE_ACCOUNT
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRANTS: &str = r"
- name: web
  clusterSelector: {matchLabels: {env: prod}}
  namespaces: [team-a]
  verbs: [deploy]
  targetNamespaces: ['a-*', shared]
  serviceAccountName: farwater
- name: charts
  clusterSelector: {matchLabels: {env: prod}}
  namespaces: [team-a]
  verbs: [deploy]
  allowedSources: ['oci://charts.example.com']
  targetNamespaces: [shared]
  serviceAccountName: tenants/team-a
- name: lab
  clusterSelector: {matchLabels: {env: lab}}
  namespaces: [team-a]
  verbs: [deploy]
  serviceAccountName: farwater-system/farwater-administrator
";

    #[track_caller]
    fn check(env: &str, further: &[&str], expected: &str) {
        let rows: Vec<serde_json::Value> = serde_saphyr::from_str(GRANTS).unwrap();
        let named = |row: serde_json::Value| (row["name"].as_str().unwrap().to_owned(), row);
        let parse = |(name, row)| (name, serde_json::from_value(row).unwrap());
        let grants: Vec<NamedGrant> = rows.into_iter().map(named).map(parse).collect();
        let labels = BTreeMap::from([("env".to_owned(), env.to_owned())]);
        let further: Vec<String> = further.iter().map(ToString::to_string).collect();
        let place = Place {
            tenant: "team-a",
            cluster: "east",
            cluster_labels: &labels,
        };
        let answer = match prepare(place, &further, &grants) {
            Ok(Preparation { rights, patterns }) => {
                let right = |(target, accounts): (String, BTreeSet<(String, String)>)| {
                    let accounts = accounts.iter().map(|(namespace, name)| format!(" {namespace}/{name}"));
                    format!("{target}:{}; ", accounts.collect::<String>())
                };
                let patterns: Vec<String> = patterns.into_iter().collect();
                format!(
                    "{}open: {}",
                    rights.into_iter().map(right).collect::<String>(),
                    patterns.join(" ")
                )
            }
            Err(denied) => denied.to_string(),
        };
        assert_eq!(answer, expected);
    }

    #[test]
    fn each_target_namespace_has_the_accounts_of_all_grants_that_allow_it() {
        check("prod", &[], "shared: shared/farwater tenants/team-a; open: a-*");
        check(
            "prod",
            &["a-web"],
            "a-web: a-web/farwater; shared: shared/farwater tenants/team-a; open: a-*",
        );
    }

    #[test]
    fn the_administrators_account_is_made_by_the_join() {
        check("lab", &["web"], "web:; open: *");
    }

    #[test]
    fn what_no_grant_allows_is_refused_as_the_hub_would() {
        check(
            "test",
            &[],
            "no ClusterGrant lets namespace team-a deploy to cluster east",
        );
        check(
            "prod",
            &["b"],
            "ClusterGrant charts does not allow target namespace b; it allows shared",
        );
    }
}
