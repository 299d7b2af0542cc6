//! `farwater install`: puts the hub into a cluster, waits until it is ready, and signs in there.

use std::time::Duration;

use farwater_manifests::{Database, Exposure, Hub, Tls, names::hub as names};

use crate::{
    commands::login,
    connection::ConnectArgs,
    exit,
    failure::Result,
    format,
    installed_hub::{self, FORWARDED, InstalledHub},
    target::Target,
    terminal::{print, say},
    text,
};

/// `--context` and `--kubeconfig` name the cluster, as for kubectl.
#[derive(Debug, clap::Args)]
pub struct InstallArgs {
    /// Address of the hub for agents and people, https://HOST[:PORT] [default: its Service's name, only for this
    /// cluster].
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// Type of its Service.
    #[arg(long, value_enum, default_value_t)]
    service_type: ServiceType,
    /// Secret in the namespace farwater-hub with the `url` and `password` of a PostgreSQL database [default: SQLite on
    /// the volume].
    #[arg(long, value_name = "SECRET")]
    database_secret: Option<String>,
    /// TLS Secret in the namespace farwater-hub for the host of --url, as cert-manager writes it [default: the hub's
    /// own authority].
    #[arg(long, value_name = "SECRET", requires = "url")]
    tls_secret: Option<String>,
    /// Size of the volume with keys, mirrors and the SQLite file.
    #[arg(long, value_name = "SIZE", default_value = "10Gi")]
    storage: String,
    /// Storage class of the volume [default: the cluster's].
    #[arg(long, value_name = "NAME")]
    storage_class: Option<String>,
    /// The hub's image.
    #[arg(long, value_name = "IMAGE", default_value = concat!("localhost/farwater/hub:", env!("CARGO_PKG_VERSION")))]
    image: String,
    /// Print the objects, for Git, and change nothing.
    #[arg(long)]
    print: bool,
    /// Time limit for the hub to be ready, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    timeout: u64,
}

#[derive(Clone, Copy, Debug, Default, clap::ValueEnum)]
#[value(rename_all = "PascalCase")]
enum ServiceType {
    #[default]
    #[value(name = "ClusterIP")]
    ClusterIp,
    NodePort,
    LoadBalancer,
}

pub async fn run(args: InstallArgs, connect: &ConnectArgs) -> Result<u8> {
    args.url.as_deref().map(login::parse_url).transpose()?;
    let hub = Hub {
        image: args.image.clone(),
        url: args.url.clone(),
        exposure: match args.service_type {
            ServiceType::ClusterIp => Exposure::ClusterIp,
            ServiceType::NodePort => Exposure::NodePort,
            ServiceType::LoadBalancer => Exposure::LoadBalancer,
        },
        database: args
            .database_secret
            .clone()
            .map_or(Database::Sqlite, |secret| Database::Postgres { secret }),
        tls: args.tls_secret.clone().map_or(Tls::Own, |name| Tls::Secret { name }),
        storage: args.storage.clone(),
        storage_class: args.storage_class.clone(),
    };
    let objects = hub.objects();
    if args.print {
        print(&format::yaml_documents(&objects)?)?;
        return Ok(exit::YES);
    }

    let target = Target::open(connect.kubeconfig.as_deref(), connect.context.as_deref()).await?;
    say(&format!("installing the hub into {}", text::plain(&target.context)));
    let installed = InstalledHub {
        target: &target,
        namespace: names::NAMESPACE,
    };
    target.prepare(&objects, &installed.rights_to_enter()).await?;
    target.apply(&objects).await?;
    installed.wait_until_ready(Duration::from_secs(args.timeout)).await?;

    let way_in = installed.read_way_in().await?;
    let server = args.url.as_deref().unwrap_or(FORWARDED);
    let place = login::remember(&target.context, server, &way_in)?;
    say(&format!(
        "the hub is ready; you are signed in as its administrator ({})",
        place.display()
    ));
    if args.url.is_some() {
        installed_hub::wait_until_heard(server).await;
    } else {
        say(&format!(
            "it has no address outside of the cluster; reach it by\n  kubectl --context {} -n {} port-forward service/{} 8443:{}",
            text::plain(&target.context),
            names::NAMESPACE,
            names::NAME,
            names::SERVICE_PORT
        ));
    }
    print(&format!("{server}\n"))?;
    Ok(exit::YES)
}
