//! A fake of the parts of Slack's API and Teams' workflows that take messages, as documented but stricter. It refuses
//! and records an unknown field, a wrong token, or an edit of a message that does not exist.

use anyhow::Result;
use serde_json::{Value, json};

use crate::fake::{Asked, Fake, Said, only};

pub const TOKEN: &str = "xoxb-4711-only-for-tests";
/// Name and id of the channel: messages are posted with the name and edited with the id.
pub const CHANNEL: &str = "#deploys";
pub const CHANNEL_ID: &str = "C024BE91L";
const HOOK: &str = "/services/T000/B000/s3cret-of-a-hook";
const FLOW: &str = "/workflows/abc/triggers/manual/paths/invoke";
const FLOW_QUERY: &str = "api-version=2016-06-01&sig=s3cret-of-a-flow";
/// Maximum number of characters in a section.
const MAX_TEXT: usize = 3000;

#[derive(Clone, Debug)]
pub struct Message {
    pub text: String,
    /// The whole text.
    pub body: Value,
    /// Number of edits.
    pub edits: usize,
}

#[derive(Default)]
struct State {
    posted: Vec<Message>,
    hooked: Vec<Message>,
    cards: Vec<Message>,
}

/// Ends when dropped.
pub struct ChatServer(Fake<State>);

impl ChatServer {
    pub async fn start() -> Result<Self> {
        Ok(Self(Fake::start(State::default(), answer).await?))
    }

    /// URL of the API.
    pub fn api(&self) -> String {
        format!("{}/api", self.0.url())
    }

    /// URL of a webhook for one channel. The URL itself grants access.
    pub fn hook(&self) -> String {
        format!("{}{HOOK}", self.0.url())
    }

    /// URL of a workflow of Teams.
    pub fn flow(&self) -> String {
        format!("{}{FLOW}?{FLOW_QUERY}", self.0.url())
    }

    /// Current messages in the channel.
    pub fn posted(&self) -> Vec<Message> {
        self.0.with(|state| state.posted.clone())
    }

    /// Messages that came through the webhook.
    pub fn hooked(&self) -> Vec<Message> {
        self.0.with(|state| state.hooked.clone())
    }

    /// Messages that came through the workflow.
    pub fn cards(&self) -> Vec<Message> {
        self.0.with(|state| state.cards.clone())
    }

    /// Deletes all messages, as a person could.
    pub fn clear(&self) {
        self.0
            .with(|state| state.posted.iter_mut().for_each(|message| message.text.clear()));
    }

    pub fn set_fault(&self, fault: Option<Said>) {
        self.0.set_fault(fault);
    }

    pub fn refused(&self) -> Vec<String> {
        self.0.refused()
    }

    pub fn asked(&self) -> usize {
        self.0.asked()
    }
}

type Answer = Result<Said, (Said, String)>;

fn answer(state: &mut State, asked: &Asked) -> Answer {
    if asked.method != http::Method::POST {
        return Err((Said::status(405), asked.method.to_string()));
    }
    match asked.uri.path() {
        "/api/chat.postMessage" => post(state, asked),
        "/api/chat.update" => update(state, asked),
        HOOK => {
            let message = message(asked, &["text", "blocks"]).map_err(|why| (said(400, "invalid_payload"), why))?;
            state.hooked.push(message);
            Ok(said(200, "ok"))
        }
        FLOW if asked.uri.query() == Some(FLOW_QUERY) => {
            let card = card(asked).map_err(|why| (Said::status(400), why))?;
            state.cards.push(card);
            Ok(said(202, ""))
        }
        path => Err((Said::status(404), format!("nothing is at {path}"))),
    }
}

fn said(status: u16, text: &str) -> Said {
    Said {
        status,
        body: text.to_owned(),
        headers: Vec::new(),
    }
}

fn refuse(error: &str, why: String) -> Answer {
    Err((Said::json(200, &json!({"ok": false, "error": error})), why))
}

/// Slack identifies the messages of a channel by timestamps.
fn stamp(index: usize) -> String {
    format!("1700000000.{index:06}")
}

fn post(state: &mut State, asked: &Asked) -> Answer {
    if asked.header("authorization") != format!("Bearer {TOKEN}") {
        return refuse("invalid_auth", "a wrong token".to_owned());
    }
    let message = match message(asked, &["channel", "text", "blocks"]) {
        Ok(message) => message,
        Err(why) => return refuse("invalid_arguments", why),
    };
    if message.body["channel"] != CHANNEL && message.body["channel"] != CHANNEL_ID {
        return refuse("channel_not_found", message.body["channel"].to_string());
    }
    let stamp = stamp(state.posted.len());
    let said = json!({"ok": true, "channel": CHANNEL_ID, "ts": stamp, "message": {"text": message.text}});
    state.posted.push(message);
    Ok(Said::json(200, &said))
}

fn update(state: &mut State, asked: &Asked) -> Answer {
    if asked.header("authorization") != format!("Bearer {TOKEN}") {
        return refuse("invalid_auth", "a wrong token".to_owned());
    }
    let message = match message(asked, &["channel", "ts", "text", "blocks"]) {
        Ok(message) => message,
        Err(why) => return refuse("invalid_arguments", why),
    };
    if message.body["channel"] != CHANNEL_ID {
        return refuse("channel_not_found", "an edit names the channel by its id".to_owned());
    }
    let known = (0..state.posted.len()).find(|index| message.body["ts"] == stamp(*index).as_str());
    let Some(known) = known else {
        return refuse(
            "message_not_found",
            format!("an edit of an unknown message: {}", message.body["ts"]),
        );
    };
    if state.posted[known].text.is_empty() {
        // The message was deleted. That is not a client's mistake.
        return Ok(Said::json(200, &json!({"ok": false, "error": "message_not_found"})));
    }
    let edits = state.posted[known].edits + 1;
    state.posted[known] = Message { edits, ..message };
    Ok(Said::json(
        200,
        &json!({"ok": true, "channel": CHANNEL_ID, "ts": stamp(known), "text": ""}),
    ))
}

fn message(asked: &Asked, fields: &[&str]) -> Result<Message, String> {
    let body = asked.object(fields)?;
    let text = body
        .get("text")
        .and_then(Value::as_str)
        .filter(|text| !text.is_empty())
        .ok_or("no text")?
        .to_owned();
    for block in body.get("blocks").and_then(Value::as_array).into_iter().flatten() {
        let section = only(block, &["type", "text"])?;
        let inner = only(&section["text"], &["type", "text"])?;
        let shown = inner.get("text").and_then(Value::as_str).unwrap_or_default();
        if section["type"] != "section" || inner["type"] != "mrkdwn" || shown.is_empty() {
            return Err(format!("no section: {block}"));
        }
        if shown.chars().count() > MAX_TEXT {
            return Err("a section that is too long".to_owned());
        }
    }
    Ok(Message {
        text,
        body: Value::Object(body),
        edits: 0,
    })
}

fn card(asked: &Asked) -> Result<Message, String> {
    let body = asked.object(&["type", "attachments"])?;
    let attachments = body["attachments"].as_array().ok_or("no attachments")?;
    let [attachment] = &attachments[..] else {
        return Err("several attachments".to_owned());
    };
    let attachment = only(attachment, &["contentType", "contentUrl", "content"])?;
    let is_card = attachment["contentType"] == "application/vnd.microsoft.card.adaptive";
    if body["type"] != "message" || !is_card || !attachment["contentUrl"].is_null() {
        return Err("no message with a card".to_owned());
    }
    let content = only(&attachment["content"], &["$schema", "type", "version", "body"])?;
    if content["type"] != "AdaptiveCard" || content["version"] != "1.4" {
        return Err(format!("no card: {}", content["type"]));
    }
    let mut texts = Vec::new();
    for block in content["body"].as_array().ok_or("no body")? {
        let block = only(block, &["type", "text", "weight", "color", "wrap", "spacing"])?;
        if block["type"] != "TextBlock" {
            return Err(format!("no text: {}", block["type"]));
        }
        texts.push(block["text"].as_str().ok_or("no text")?.to_owned());
    }
    Ok(Message {
        text: texts.join("\n"),
        body: Value::Object(body.clone()),
        edits: 0,
    })
}
