//! What a tenant needs in a cluster that it deploys to.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::objects::{RBAC, RBAC_GROUP};

/// One tenant in one cluster.
#[derive(Clone, Copy, Debug)]
pub struct Tenant<'a> {
    /// Namespace of the hub.
    pub name: &'a str,
    /// ClusterRole of the accounts in the target namespaces.
    pub cluster_role: &'a str,
    /// Target namespaces, each with the accounts (namespace and name) that services are applied as there.
    pub rights: &'a BTreeMap<String, BTreeSet<(String, String)>>,
}

impl Tenant<'_> {
    /// In the order of creation. The namespaces get no labels, because others may use them too.
    pub fn objects(&self) -> Vec<Value> {
        let accounts: BTreeSet<&(String, String)> = self.rights.values().flatten().collect();
        let of_accounts = accounts.iter().map(|(namespace, _)| namespace);
        let namespaces: BTreeSet<&String> = self.rights.keys().chain(of_accounts).collect();
        let mut objects: Vec<Value> = Vec::new();
        for name in namespaces {
            objects.push(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}));
        }
        for (namespace, name) in accounts {
            objects.push(json!({
                "apiVersion": "v1", "kind": "ServiceAccount",
                "metadata": {"name": name, "namespace": namespace, "labels": labels()},
                // The agent impersonates the account, so no pod needs its token.
                "automountServiceAccountToken": false,
            }));
        }
        for (target, accounts) in self.rights.iter().filter(|(_, accounts)| !accounts.is_empty()) {
            let subject = |(namespace, name): &(String, String)| json!({"kind": "ServiceAccount", "name": name, "namespace": namespace});
            objects.push(json!({
                "apiVersion": RBAC, "kind": "RoleBinding",
                "metadata": {"name": self.binding(), "namespace": target, "labels": labels()},
                "roleRef": {"apiGroup": RBAC_GROUP, "kind": "ClusterRole", "name": self.cluster_role},
                "subjects": accounts.iter().map(subject).collect::<Vec<_>>(),
            }));
        }
        objects
    }

    fn binding(&self) -> String {
        format!("farwater-tenant-{}", self.name)
    }
}

fn labels() -> Value {
    json!({
        "app.kubernetes.io/name": "farwater", "app.kubernetes.io/component": "tenant",
        "app.kubernetes.io/part-of": "farwater",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_come_before_accounts_and_accounts_before_their_rights() {
        let account = |namespace: &str, name: &str| (namespace.to_owned(), name.to_owned());
        let shared = BTreeSet::from([account("shared", "farwater"), account("tenants", "team-a")]);
        let rights = BTreeMap::from([("shared".to_owned(), shared), ("open".to_owned(), BTreeSet::new())]);
        let objects = Tenant {
            name: "team-a",
            cluster_role: "edit",
            rights: &rights,
        }
        .objects();
        let named = |object: &Value| {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let metadata = &object["metadata"];
            format!(
                "{} {}/{}",
                text(&object["kind"]),
                text(&metadata["namespace"]),
                text(&metadata["name"])
            )
        };
        assert_eq!(
            objects.iter().map(named).collect::<Vec<_>>(),
            [
                "Namespace /open",
                "Namespace /shared",
                "Namespace /tenants",
                "ServiceAccount shared/farwater",
                "ServiceAccount tenants/team-a",
                "RoleBinding shared/farwater-tenant-team-a",
            ]
        );
        assert_eq!(objects[5]["subjects"].as_array().unwrap().len(), 2);
        assert_eq!(objects[5]["roleRef"]["name"], "edit");
    }
}
