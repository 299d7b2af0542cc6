//! The demo's keys. Each does one thing to the scene and says what to watch.

use std::time::Duration;

use anyhow::Result;
use tokio::sync::mpsc;

use super::{scene::Scene, screen::Screen, short};

const REFRESH: Duration = Duration::from_millis(700);

/// Two lines of less than 80 columns.
const MENU: &str = concat!(
    " d delete a Deployment   b push a broken commit   g stop or start Git     q end\n",
    " e empty the services    f push what was good     h kill or start the hub",
);

/// Until `q`, or the end of the input.
pub async fn play(scene: &mut Scene, screen: &mut Screen) -> Result<()> {
    screen.set_menu(format!("{}{MENU}", scene.how_to_reach()?));
    let mut keys = read_keys();
    loop {
        screen.redraw(scene).await;
        let key = match tokio::time::timeout(REFRESH, keys.recv()).await {
            Err(_) => continue,
            Ok(None | Some('q')) => return Ok(()),
            Ok(Some(key)) => key,
        };
        match act(key, scene).await {
            Ok(None) => {}
            Ok(Some(note)) => screen.note(note),
            Err(error) => screen.note(format!("that did not work: {error:#}")),
        }
    }
}

/// Does what the key stands for; says what happened and what to watch. None: the key means nothing.
async fn act(key: char, scene: &mut Scene) -> Result<Option<String>> {
    let note = match key {
        'd' => match scene.delete_deployment().await? {
            Some(time) => {
                format!(
                    "deleted the Deployment web in east: its agent had made it again after {:.1} s",
                    time.as_secs_f64()
                )
            }
            None => "deleted the Deployment web in east, and it has not come back: see web-east".to_owned(),
        },
        'e' => {
            let commit = scene.push_empty()?;
            let watch = "no manifest is left; watch nothing go: every prune is held, and so many at once stop all deletions of the \
                         fleet. f brings them back";
            pushed(scene, &commit, watch).await
        }
        'b' => {
            let commit = scene.push_broken()?;
            pushed(scene, &commit, "replicas is no number; watch web name the refused object. f mends it").await
        }
        'f' => {
            let commit = scene.push_good()?;
            pushed(scene, &commit, "the last good state; watch everything become healthy").await
        }
        'g' => {
            let runs = scene.toggle_git().await?;
            // Otherwise the source is as fresh as its last poll for some seconds.
            let _ = scene.ask_now().await;
            if runs {
                "the Git server is back: watch the source become fresh".to_owned()
            } else {
                "stopped the Git server: watch the source go stale and the services stay. g starts it again".to_owned()
            }
        }
        'h' if scene.toggle_hub().await? => {
            "the hub is back with all that it acknowledged: watch the agents return".to_owned()
        }
        'h' => "killed the hub (SIGKILL): the clusters run on, and d still heals there. h starts it again".to_owned(),
        _ => return Ok(None),
    };
    Ok(Some(note))
}

/// The hub is asked to look at once; where it can't be asked, it looks at its next poll.
async fn pushed(scene: &Scene, commit: &str, watch: &str) -> String {
    let delay = if scene.ask_now().await.is_ok() { "" } else { " (seen at the hub's next poll)" };
    format!("pushed {}{delay}: {watch}", short(commit))
}

/// Single keys, from a thread: there is no other way to wait for a terminal without blocking the rest.
fn read_keys() -> mpsc::Receiver<char> {
    let (sender, receiver) = mpsc::channel(8);
    std::thread::spawn(move || {
        let terminal = console::Term::stdout();
        while let Ok(key) = terminal.read_char() {
            if sender.blocking_send(key).is_err() {
                break;
            }
        }
    });
    receiver
}
