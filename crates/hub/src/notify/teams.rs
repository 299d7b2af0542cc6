//! Microsoft Teams: a workflow's webhook, which accepts adaptive cards and can't edit them.

use farwater_api::notification_rule::EventSeverity;
use serde_json::{Value, json};

use super::{
    channel::{Letter, Sent, Words},
    line::{Fault, Line},
};

pub struct Teams(pub Line);

impl Teams {
    pub async fn send(&self, letter: &Letter<'_>) -> Result<Sent, Fault> {
        self.0.post_once(letter, message).await
    }
}

fn message(words: &Words) -> Value {
    let color = match words.severity {
        EventSeverity::Error => "Attention",
        EventSeverity::Info if words.is_good => "Good",
        EventSeverity::Info => "Default",
    };
    let title = json!({
        "type": "TextBlock", "text": escape(&words.title), "weight": "Bolder", "color": color, "wrap": true,
    });
    let detail = |line: &String| json!({"type": "TextBlock", "text": escape(line), "wrap": true, "spacing": "Small"});
    let body: Vec<Value> = std::iter::once(title).chain(words.details.iter().map(detail)).collect();
    let card = json!({
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard", "version": "1.4", "body": body,
    });
    json!({"type": "message", "attachments": [
        {"contentType": "application/vnd.microsoft.card.adaptive", "contentUrl": null, "content": card},
    ]})
}

/// A card's text is Markdown. Escape it, so that the name of a cluster can't contain links or emphasis.
fn escape(text: &str) -> String {
    text.chars()
        .flat_map(|one| ['\\', one].into_iter().skip(usize::from(!"\\`*_[]<>#".contains(one))))
        .collect()
}
