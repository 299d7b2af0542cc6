//! A tenant reaches only what its grant names, with the account that its grant names.

use anyhow::{Context as _, Result, ensure};
use farwater_api::{ADMIN_NAMESPACE, Cluster, ClusterGrant, GitRepository, ServiceDeployment};
use farwater_e2e::{
    Fleet, condition, config_map,
    page::{Page, Shell},
};
use farwater_testkit::shared;
use k8s_openapi::api::{
    core::v1::{ConfigMap, Namespace, ServiceAccount},
    rbac::v1::{ClusterRoleBinding, RoleBinding},
};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

const TENANT: &str = "team-a";

async fn namespace(client: &Client, name: &str) -> Result<()> {
    let metadata = ObjectMeta {
        name: Some(name.to_owned()),
        ..ObjectMeta::default()
    };
    let namespace = Namespace {
        metadata,
        ..Namespace::default()
    };
    Api::<Namespace>::all(client.clone())
        .create(&PostParams::default(), &namespace)
        .await?;
    Ok(())
}

/// An account with the rights of `edit` in its own namespace.
async fn editor(client: &Client, space: &str, name: &str) -> Result<()> {
    namespace(client, space).await?;
    let account: ServiceAccount = serde_json::from_value(json!({"metadata": {"name": name}}))?;
    Api::namespaced(client.clone(), space)
        .create(&PostParams::default(), &account)
        .await?;
    let binding: RoleBinding = serde_json::from_value(json!({
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": space}],
    }))?;
    Api::namespaced(client.clone(), space)
        .create(&PostParams::default(), &binding)
        .await?;
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
    repository.commit(
        "main",
        &[
            ("app/a.yaml", &good),
            ("app/b.yaml", &binding),
            ("app/c.yaml", &elsewhere),
        ],
    )?;
    let sources: Api<GitRepository> = Api::namespaced(fleet.client.clone(), TENANT);
    let spec = serde_json::from_value(json!({"url": fleet.git.url("theirs")}))?;
    sources
        .create(&PostParams::default(), &GitRepository::new("theirs", spec))
        .await?;

    // Without a grant nothing is placed, and the error names the missing grant.
    let services: Api<ServiceDeployment> = Api::namespaced(fleet.client.clone(), TENANT);
    let refused = services.create(&PostParams::default(), &service(&own)?).await;
    let text = refused
        .err()
        .context("a service without a grant was taken")?
        .to_string();
    ensure!(text.contains("grant") || text.contains("Grant"), "{text}");

    let grants: Api<ClusterGrant> = Api::all(fleet.client.clone());
    let grant = serde_json::from_value(json!({
        "clusterSelector": {}, "namespaces": [TENANT], "verbs": ["deploy"], "serviceAccountName": "deployer",
    }))?;
    grants
        .create(&PostParams::default(), &ClusterGrant::new("team-a", grant))
        .await?;
    services.create(&PostParams::default(), &service(&own)?).await?;

    // Its own ConfigMap is applied. The API server refuses the others to the account, and the status names it.
    let maps: Api<ConfigMap> = Api::namespaced(cluster.clone(), &own);
    fleet
        .until("the tenant's ConfigMap", || async { Ok(maps.get_opt("good").await?) })
        .await?;
    let ill = fleet
        .until("two refusals in the status", || async {
            let status = services.get("app").await?.status.unwrap_or_default();
            Ok((status.unhealthy.len() == 2).then_some(status))
        })
        .await?;
    ensure!(condition(&ill.conditions, "Ready") == Some("False"));
    ensure!(
        ill.unhealthy
            .iter()
            .all(|u| u.message.to_lowercase().contains("forbidden")),
        "{:?}",
        ill.unhealthy
    );
    let bindings: Api<ClusterRoleBinding> = Api::all(cluster.clone());
    ensure!(
        bindings.get_opt(&fleet.unique).await?.is_none(),
        "a tenant gave itself the cluster"
    );
    let theirs: Api<ConfigMap> = Api::namespaced(cluster.clone(), &foreign);
    ensure!(
        theirs.get_opt("elsewhere").await?.is_none(),
        "a tenant wrote into another's namespace"
    );

    // Without the grant the service is held: running objects stay, and new ones wait.
    grants.delete("team-a", &DeleteParams::default()).await?;
    fleet
        .until("the service to be held", || async {
            let status = services.get("app").await?.status.unwrap_or_default();
            Ok(status
                .conditions
                .iter()
                .any(|c| c.message.to_lowercase().contains("grant"))
                .then_some(()))
        })
        .await?;
    repository.change("main", &[("app/a.yaml", None)])?;
    fleet
        .stays("the ConfigMap exists", &format!("{TENANT}/app"), || async {
            Ok(maps.get_opt("good").await?.is_some())
        })
        .await
}

/// A person with a folder of their own.
fn person(fleet: &Fleet, name: &str) -> Result<(std::path::PathBuf, Shell)> {
    let dir = fleet.hub.dir().with_file_name(name);
    std::fs::create_dir(&dir)?;
    std::fs::copy(fleet.hub.dir().join("keys/ca.crt"), dir.join("ca.crt"))?;
    let shell = Shell::new(&dir)?;
    Ok((dir, shell))
}

/// The commands of docs/tenants.md, from a namespace of the hub to a team that rolls back and is removed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_team_deploys_as_the_page_says() -> Result<()> {
    let plane = shared(1).await?;
    let mut fleet = Fleet::start().await?;
    fleet.join("east", plane).await?;
    let label = Patch::Merge(json!({"metadata": {"labels": {"env": "production"}}}));
    fleet
        .api::<Cluster>()
        .patch("east", &PatchParams::default(), &label)
        .await?;
    let repository = fleet.git.create("web")?;
    repository.commit("main", &[("app/greeting.yaml", &config_map("greeting", "one"))])?;
    let url = fleet.git.url("web");
    let sources = url
        .strip_suffix("web.git")
        .context("the repository's address ends with its name")?;
    let target = format!("team-a-{}", fleet.unique);

    let mut page = Page::read("tenants.md")?;
    page.replace("https://git.example.com/team-a/", sources)?;
    page.replace("https://hub.example.com:8443", &fleet.hub.url())?;
    page.replace("team-a-web", &target)?;
    page.replace("--context east", "--context admin")?;
    let (_, yaml) = page.text.split_once("```yaml\n").context("the page has no YAML")?;
    let hub_objects = yaml
        .split("```")
        .next()
        .unwrap_or_default()
        .replace("https://git.example.com/team-a/", sources);

    let (desk, administrator) = person(&fleet, "administrator")?;
    let administrator = administrator.with_kubeconfig(plane.kubeconfig().to_owned());
    std::fs::write(desk.join("team-a.yaml"), hub_objects)?;
    std::fs::write(desk.join("token"), fleet.hub.token()?)?;
    administrator.run(&format!(
        "farwater login {} --ca ca.crt --token-file token",
        fleet.hub.url()
    ))?;
    administrator.run(&page.next("kubectl --kubeconfig ~/.config/farwater/config apply -f team-a.yaml")?)?;
    let printed = administrator.run(&page.next("farwater tenant prepare team-a")?)?;
    ensure!(printed.stdout.matches("\nkind: ").count() == 3, "{}", printed.stdout);
    ensure!(
        printed.stderr.contains("must exist in farwater-admin/east"),
        "{}",
        printed.stderr
    );
    let prepare = page.next("farwater tenant prepare team-a")?;
    let dry = administrator.run(&format!("{prepare} --dry-run"))?.stdout;
    let prepared = administrator.run(&prepare)?.stdout;
    ensure!(
        prepared.matches("made ").count() == 3 && dry == prepared.replace("made ", "would make "),
        "{dry}{prepared}"
    );
    let again = administrator.run(&prepare)?.stdout;
    ensure!(again == prepared.replace("made ", "unchanged: "), "{again}");
    // An account that others made stays as it is.
    let accounts: Api<ServiceAccount> = Api::namespaced(plane.client().await?, &target);
    let account = accounts
        .list(&ListParams::default().labels("app.kubernetes.io/part-of=farwater"))
        .await?
        .items;
    let account = account
        .into_iter()
        .find_map(|one| one.metadata.name)
        .context("the account was made")?;
    let set_part = async |part: &str| {
        let labels = json!({"metadata": {"labels": {"app.kubernetes.io/part-of": part}}});
        accounts
            .patch(&account, &PatchParams::default(), &Patch::Merge(labels))
            .await
    };
    set_part("other").await?;
    let kept = administrator.run(&prepare)?.stdout;
    let told = format!("kept ServiceAccount {target}/{account}, which exists and is not of Farwater\n");
    ensure!(kept.contains(&told), "{kept}");
    set_part("farwater").await?;
    administrator.run(&page.next("kubectl --kubeconfig ~/.config/farwater/config create token deployer")?)?;

    let (folder, team) = person(&fleet, "team")?;
    std::fs::copy(desk.join("team-a.token"), folder.join("team-a.token"))?;
    team.run(&page.next("farwater login ")?)?;
    let clusters = team.run(&page.next("farwater get clusters")?)?;
    ensure!(
        clusters
            .stdout
            .lines()
            .any(|line| line.starts_with("east   farwater-admin   True")),
        "{}",
        clusters.stdout
    );
    ensure!(
        clusters.stderr.contains("ClusterGrants let namespace team-a deploy to"),
        "{}",
        clusters.stderr
    );
    let east = &serde_json::from_str::<Value>(&team.run("farwater get clusters -o json")?.stdout)?["items"][0];
    ensure!(
        east["kind"] == "GrantedCluster" && east["status"]["lastHeardTime"].is_string(),
        "{east}"
    );
    let told = team
        .run("farwater why cluster/east && farwater wait cluster/east")?
        .stdout;
    ensure!(
        told.starts_with("ok: the cluster east is ready\n") && told.ends_with("cluster/east ready\n"),
        "{told}"
    );
    let deploy = page.next("farwater deploy ")?;
    let refused = deploy.replace(&format!("--namespace {target}"), "--namespace elsewhere");
    let refused = team.run(&format!("! {refused} 2>&1"))?.stdout;
    ensure!(
        refused.contains("does not allow target namespace elsewhere; it allows team-a-*"),
        "{refused}"
    );
    let deployed = team.run(&deploy)?.stdout;
    ensure!(deployed.ends_with("\nteam-a/web healthy\n"), "{deployed}");
    let objects = team.run(&page.next("farwater objects web")?)?.stdout;
    ensure!(objects.contains("greeting") && objects.contains("Healthy"), "{objects}");
    let why = team.run(&page.next("farwater why web")?)?.stdout;
    ensure!(why.starts_with("ok: web is healthy at main@sha1:"), "{why}");

    let maps: Api<ConfigMap> = Api::namespaced(plane.client().await?, &target);
    let has_value = async |value: &'static str| {
        let map = maps.get("greeting").await?;
        anyhow::Ok((map.data.unwrap_or_default().get("value").map(String::as_str) == Some(value)).then_some(()))
    };
    repository.commit("main", &[("app/greeting.yaml", &config_map("greeting", "two"))])?;
    team.run(&page.next("farwater wait web --fetch")?)?;
    fleet.until("what was pushed", || has_value("two")).await?;
    let history = team.run(&page.next("farwater history web")?)?.stdout;
    ensure!(history.lines().count() == 3, "{history}");
    team.run(&page.next("farwater rollback web --reason")?)?;
    fleet.until("the version before", || has_value("one")).await?;
    team.run(&page.next("farwater rollback web --clear")?)?;
    fleet.until("what was pushed again", || has_value("two")).await?;

    administrator.run(&page.next("farwater delete team-a/web --yes --wait")?)?;
    has_value("two")
        .await?
        .context("a service that is deleted leaves its objects")?;
    administrator.run(&page.next("farwater tenant prepare team-a")?)?;
    administrator.run(&page.next("kubectl --kubeconfig ~/.config/farwater/config delete")?)?;
    ensure!(page.lines.is_empty(), "not run: {:?}", page.lines);
    Ok(())
}
