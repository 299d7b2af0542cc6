//! Gates: requests to external systems whether a commit may reach a stage. The same rules apply as for notifications:
//! private networks must be allowed, redirects are not followed, and errors contain no secrets.

use farwater_api::{
    git_repository::LocalReference,
    pipeline::{GateType, PromotionGate},
};
use farwater_fleet::promotion::{
    Gates,
    answers::{Heard, Question, Said, read_reply},
    metric::{Measuring, measure},
};
use farwater_sources::{Access, SecretData};
use farwater_store::StoreError;
use serde_json::json;
use zeroize::Zeroizing;

use crate::{
    notify::{Fault, Line, Trouble, load_data, open_signed, signing_token},
    replica::Replica,
    resources::Name,
    sources::git,
};

/// Keys of a Secret whose values are not shown in errors.
const SECRET_KEYS: [&str; 2] = ["bearerToken", "password"];

/// Credentials of a gate, from its Secrets as they are now.
struct Means {
    secret: Option<SecretData>,
    tls: Option<SecretData>,
}

impl Means {
    async fn load(
        replica: &Replica,
        namespace: &str,
        gate: &PromotionGate,
    ) -> Result<Result<Self, Trouble>, StoreError> {
        let secret = load_named(replica, namespace, gate.secret_ref.as_ref()).await?;
        let tls = load_named(replica, namespace, gate.cert_secret_ref.as_ref()).await?;
        Ok(secret.and_then(|secret| Ok(Self { secret, tls: tls? })))
    }
}

async fn load_named(
    replica: &Replica,
    namespace: &str,
    reference: Option<&LocalReference>,
) -> Result<Result<Option<SecretData>, Trouble>, StoreError> {
    let Some(reference) = reference else {
        return Ok(Ok(None));
    };
    Ok(load_data(replica, namespace, &reference.name).await?.map(Some))
}

/// Asks once. A failure is returned as an error answer.
pub async fn ask(
    replica: &Replica,
    (pipeline, stage): (&Name, &str),
    gates: &Gates,
    question: &Question,
) -> Result<Heard, StoreError> {
    let stated = match question.gate {
        GateType::Webhook => gates.webhook.as_ref().map(|asking| &asking.stated),
        GateType::Metric => gates.metric.as_ref().map(|measuring| &measuring.stated),
        GateType::Soak | GateType::Approval | GateType::Window | GateType::Test => None,
    };
    let Some(stated) = stated else {
        return Ok(Heard::error("there is no such gate any more"));
    };
    let means = match Means::load(replica, &pipeline.namespace, stated).await? {
        Ok(means) => means,
        Err((_, why)) => return Ok(Heard::error(why)),
    };
    let asked = match &gates.metric {
        Some(measuring) if question.gate == GateType::Metric => look(replica, measuring, &means).await,
        _ => call(replica, (pipeline, stage), stated, &means, question).await,
    };
    let (Ok(heard) | Err(heard)) = asked;
    Ok(heard)
}

fn untold(trouble: Trouble) -> Heard {
    Heard::error(trouble.1)
}

fn unheard(fault: Fault) -> Heard {
    Heard {
        said: Said::Error,
        message: fault.why,
        after: fault.after,
    }
}

async fn call(
    replica: &Replica,
    (pipeline, stage): (&Name, &str),
    stated: &PromotionGate,
    means: &Means,
    question: &Question,
) -> Result<Heard, Heard> {
    let secret = stated
        .secret_ref
        .as_ref()
        .map_or("", |reference| reference.name.as_str());
    let token = signing_token(means.secret.as_ref().unwrap_or(&SecretData::new()), secret).map_err(untold)?;
    let address = stated.address.as_deref().unwrap_or_default();
    let opened = open_signed(replica.access.mirrors.web(), address, &token, means.tls.as_ref());
    let (line, signer) = opened.map_err(untold)?;
    let id = question.id();
    let body = json!({
        "id": id,
        "type": "promotion",
        "namespace": pipeline.namespace,
        "pipeline": pipeline.name,
        "stage": stage,
        "revision": git::format_revision("", &question.commit),
        "digest": question.digest,
    });
    let body = body.to_string().into_bytes();
    let headers = signer.headers(&id, &body);
    let reply = line.post(line.url().clone(), &headers, body).await.map_err(unheard)?;
    Ok(read_reply(&reply.body))
}

async fn look(replica: &Replica, measuring: &Measuring, means: &Means) -> Result<Heard, Heard> {
    let body = query(replica, &measuring.stated, means).await?;
    // An expression over many series takes some tenths of a second.
    let condition = measuring.condition.clone();
    let measured = tokio::task::spawn_blocking(move || measure(&condition, &body)).await;
    measured.map_err(|error| Heard::error(error.to_string()))
}

/// Prometheus' answer.
async fn query(replica: &Replica, stated: &PromotionGate, means: &Means) -> Result<Vec<u8>, Heard> {
    let access = Access::read("", means.secret.as_ref(), means.tls.as_ref());
    let access = access.map_err(|error| Heard::error(error.to_string()))?;
    let values = SECRET_KEYS.iter().filter_map(|key| means.secret.as_ref()?.get(*key));
    let texts = values.filter_map(|value| std::str::from_utf8(value).ok());
    let secrets = texts
        .map(|text| Zeroizing::new(text.trim_end_matches(['\r', '\n']).to_owned()))
        .collect();
    let address = stated.address.as_deref().unwrap_or_default();
    let address = format!("{}/api/v1/query", address.trim_end_matches('/'));
    let line = Line::open_with(replica.access.mirrors.web(), &address, access, secrets).map_err(untold)?;
    let mut url = line.url().clone();
    url.query_pairs_mut()
        .append_pair("query", stated.query.as_deref().unwrap_or_default());
    Ok(line.get(url).await.map_err(unheard)?.body)
}
