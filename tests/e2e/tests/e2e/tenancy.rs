//! A tenant reaches only what its grant names, with the account that its grant names.

use anyhow::{Context as _, Result, ensure};
use farwater_api::{ADMIN_NAMESPACE, ClusterGrant, GitRepository, ServiceDeployment};
use farwater_e2e::{Fleet, condition, config_map};
use farwater_testkit::shared;
use k8s_openapi::api::{
    core::v1::{ConfigMap, Namespace, ServiceAccount},
    rbac::v1::{ClusterRoleBinding, RoleBinding},
};
use kube::{
    Api, Client,
    api::{DeleteParams, ObjectMeta, PostParams},
};
use serde_json::{Value, json};

const TENANT: &str = "team-a";

async fn namespace(client: &Client, name: &str) -> Result<()> {
    let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
    let namespace = Namespace { metadata, ..Namespace::default() };
    Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &namespace).await?;
    Ok(())
}

/// An account with the rights of `edit` in its own namespace.
async fn editor(client: &Client, space: &str, name: &str) -> Result<()> {
    namespace(client, space).await?;
    let account: ServiceAccount = serde_json::from_value(json!({"metadata": {"name": name}}))?;
    Api::namespaced(client.clone(), space).create(&PostParams::default(), &account).await?;
    let binding: RoleBinding = serde_json::from_value(json!({
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": space}],
    }))?;
    Api::namespaced(client.clone(), space).create(&PostParams::default(), &binding).await?;
    Ok(())
}

fn service(target: &str) -> Result<ServiceDeployment> {
    let spec: Value = json!({
        "clusterRef": {"name": "east", "namespace": ADMIN_NAMESPACE},
        "targetNamespace": target,
        "sourceRef": {"name": "theirs"},
        "path": "app",
    });
    Ok(ServiceDeployment::new("app", serde_json::from_value(spec)?))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_is_held_to_its_grant_and_to_its_account() -> Result<()> {
    let plane = shared(1).await?;
    let cluster = plane.client().await?;
    let mut fleet = Fleet::start().await?;
    fleet.join("east", plane).await?;
    let (own, foreign) = (fleet.namespace("own"), fleet.namespace("foreign"));
    editor(&cluster, &own, "deployer").await?;
    namespace(&cluster, &foreign).await?;
    namespace(&fleet.client, TENANT).await?;

    let binding = format!(
        "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\nmetadata: {{name: {}}}\n\
         roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}}\n\
         subjects: [{{kind: ServiceAccount, name: deployer, namespace: {own}}}]\n",
        fleet.unique
    );
    let elsewhere = config_map("elsewhere", "x").replace("{name:", &format!("{{namespace: {foreign}, name:"));
    let good = config_map("good", "one");
    let repository = fleet.git.create("theirs")?;
    repository.commit("main", &[("app/a.yaml", &good), ("app/b.yaml", &binding), ("app/c.yaml", &elsewhere)])?;
    let sources: Api<GitRepository> = Api::namespaced(fleet.client.clone(), TENANT);
    let spec = serde_json::from_value(json!({"url": fleet.git.url("theirs")}))?;
    sources.create(&PostParams::default(), &GitRepository::new("theirs", spec)).await?;

    // Without a grant nothing is placed, and the error names the missing grant.
    let services: Api<ServiceDeployment> = Api::namespaced(fleet.client.clone(), TENANT);
    let refused = services.create(&PostParams::default(), &service(&own)?).await;
    let text = refused.err().context("a service without a grant was taken")?.to_string();
    ensure!(text.contains("grant") || text.contains("Grant"), "{text}");

    let grants: Api<ClusterGrant> = Api::all(fleet.client.clone());
    let grant = serde_json::from_value(json!({
        "clusterSelector": {}, "namespaces": [TENANT], "verbs": ["deploy"], "serviceAccountName": "deployer",
    }))?;
    grants.create(&PostParams::default(), &ClusterGrant::new("team-a", grant)).await?;
    services.create(&PostParams::default(), &service(&own)?).await?;

    // Its own ConfigMap is applied. The API server refuses the others to the account, and the status names it.
    let maps: Api<ConfigMap> = Api::namespaced(cluster.clone(), &own);
    fleet.until("the tenant's ConfigMap", || async { Ok(maps.get_opt("good").await?) }).await?;
    let ill = fleet
        .until("two refusals in the status", || async {
            let status = services.get("app").await?.status.unwrap_or_default();
            Ok((status.unhealthy.len() == 2).then_some(status))
        })
        .await?;
    ensure!(condition(&ill.conditions, "Ready") == Some("False"));
    ensure!(ill.unhealthy.iter().all(|u| u.message.to_lowercase().contains("forbidden")), "{:?}", ill.unhealthy);
    let bindings: Api<ClusterRoleBinding> = Api::all(cluster.clone());
    ensure!(bindings.get_opt(&fleet.unique).await?.is_none(), "a tenant gave itself the cluster");
    let theirs: Api<ConfigMap> = Api::namespaced(cluster.clone(), &foreign);
    ensure!(theirs.get_opt("elsewhere").await?.is_none(), "a tenant wrote into another's namespace");

    // Without the grant the service is held: running objects stay, and new ones wait.
    grants.delete("team-a", &DeleteParams::default()).await?;
    fleet
        .until("the service to be held", || async {
            let status = services.get("app").await?.status.unwrap_or_default();
            Ok(status.conditions.iter().any(|c| c.message.to_lowercase().contains("grant")).then_some(()))
        })
        .await?;
    repository.change("main", &[("app/a.yaml", None)])?;
    fleet
        .stays("the ConfigMap exists", &format!("{TENANT}/app"), || async { Ok(maps.get_opt("good").await?.is_some()) })
        .await
}
