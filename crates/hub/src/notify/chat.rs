//! Slack and compatible services. With a token, a thread is one message that is edited; a webhook can't edit.

use farwater_api::notification_rule::EventSeverity;
use farwater_sources::{SecretData, Web};
use serde_json::{Value, json};
use zeroize::Zeroizing;

use super::{
    channel::{Letter, Sent, Words},
    line::{Fault, Line, Trouble},
};

const SLACK: &str = "https://slack.com/api";
const POST: &str = "chat.postMessage";
const UPDATE: &str = "chat.update";
/// Characters of a text in a block: Slack accepts 3000.
const MAX_TEXT: usize = 2900;
/// Errors of an edit after which a new message is sent.
const GONE: [&str; 4] = [
    "message_not_found",
    "edit_window_closed",
    "cant_update_message",
    "thread_not_found",
];
/// Errors caused by the message itself.
const OF_MESSAGE: [&str; 5] = [
    "msg_too_long",
    "no_text",
    "invalid_blocks",
    "invalid_blocks_format",
    "msg_blocks_too_long",
];

pub struct Chat {
    line: Line,
    channel: String,
}

impl Chat {
    /// `address`: of the API, or of its method that posts. None: Slack's own.
    pub fn open(
        web: &Web,
        address: Option<&str>,
        token: &Zeroizing<String>,
        tls: Option<&SecretData>,
        channel: String,
    ) -> Result<Self, Trouble> {
        let address = address.unwrap_or(SLACK);
        let address = address.strip_suffix(POST).unwrap_or(address).trim_end_matches('/');
        Ok(Self {
            line: Line::open(web, &format!("{address}/"), Some(token), tls)?,
            channel,
        })
    }

    pub async fn send(&self, letter: &Letter<'_>) -> Result<Sent, Fault> {
        if let Some((channel, stamp)) = letter.remote.split_once(' ') {
            let mut body = message(&letter.content.words());
            (body["channel"], body["ts"]) = (channel.into(), stamp.into());
            match self.call(UPDATE, &body).await? {
                Ok(_) => {
                    return Ok(Sent::Taken {
                        remote: letter.remote.clone(),
                    });
                }
                // A person has deleted the message.
                Err(error) if GONE.contains(&error.as_str()) => {}
                Err(error) => return Err(self.refused(&error)),
            }
        }
        let mut body = message(&letter.content.words());
        body["channel"] = self.channel.as_str().into();
        match self.call(POST, &body).await? {
            Ok(said) => {
                // An edit names the channel by its id.
                let (channel, stamp) = (said["channel"].as_str(), said["ts"].as_str());
                let (Some(channel), Some(stamp)) = (channel, stamp) else {
                    return Err(self.line.fault("neither channel nor ts", false));
                };
                Ok(Sent::Taken {
                    remote: format!("{channel} {stamp}"),
                })
            }
            Err(error) => Err(self.refused(&error)),
        }
    }

    fn refused(&self, error: &str) -> Fault {
        self.line.fault(error, OF_MESSAGE.contains(&error))
    }

    /// The answer, or the name of the error.
    async fn call(&self, method: &str, body: &Value) -> Result<Result<Value, String>, Fault> {
        let url = self
            .line
            .url()
            .join(method)
            .map_err(|_| Fault::new("its address can't be read"))?;
        let reply = self.line.post(url, &[], body.to_string().into_bytes()).await?;
        let said: Value =
            serde_json::from_slice(&reply.body).map_err(|_| self.line.fault("something that is no JSON", false))?;
        match said["ok"].as_bool() {
            Some(true) => Ok(Ok(said)),
            _ => Ok(Err(said["error"].as_str().unwrap_or("nothing").to_owned())),
        }
    }
}

/// An address that accepts messages for one channel.
pub struct ChatHook(pub Line);

impl ChatHook {
    pub async fn send(&self, letter: &Letter<'_>) -> Result<Sent, Fault> {
        self.0.post_once(letter, message).await
    }
}

fn message(words: &Words) -> Value {
    let mark = match words.severity {
        EventSeverity::Error => ":red_circle:",
        EventSeverity::Info if words.is_good => ":large_green_circle:",
        EventSeverity::Info => ":large_blue_circle:",
    };
    let title = escape(&words.title);
    let mut text = format!("{mark} *{title}*");
    for line in &words.details {
        text.push('\n');
        text.push_str(&escape(line));
    }
    let text: String = text.chars().take(MAX_TEXT).collect();
    // Shown where there is no room for blocks.
    let plain: String = title.chars().take(MAX_TEXT).collect();
    json!({"text": plain, "blocks": [{"type": "section", "text": {"type": "mrkdwn", "text": text}}]})
}

/// Escapes Slack's markup; otherwise the name of a cluster could notify everybody in the channel.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
