//! The demo's keys. Each key changes the scene and tells what to watch.

use std::time::Duration;

use anyhow::Result;
use tokio::sync::mpsc;

use super::{scene::Scene, screen::Screen, short};

const REFRESH: Duration = Duration::from_millis(700);

/// The menu, in two lines of less than 80 columns.
const MENU: &str = concat!(
    " d delete a Deployment   b push a broken commit   g stop or start Git    q quit\n",
    " e empty the services    f push a good commit     h kill or start the hub",
);

/// Handles keys until `q` or the end of the input.
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
            Err(error) => screen.note(format!("the action failed: {error:#}")),
        }
    }
}

/// Does the key's action. Returns what happened and what to watch. None: the key has no action.
async fn act(key: char, scene: &mut Scene) -> Result<Option<String>> {
    let note = match key {
        'd' => match scene.delete_deployment().await? {
            Some(time) => {
                format!(
                    "deleted the Deployment web in east: the agent recreated it after {:.1} s",
                    time.as_secs_f64()
                )
            }
            None => "deleted the Deployment web in east, but it was not recreated: see web-east".to_owned(),
        },
        'e' => {
            let commit = scene.push_empty()?;
            let watch = "the repository has no manifests left, but no object is deleted: every prune is held, and so \
                         many held prunes pause all deletions in the fleet. Press f to restore the manifests";
            pushed(scene, &commit, watch).await
        }
        'b' => {
            let commit = scene.push_broken()?;
            let watch = "`replicas` is not a number; watch web report the refused Deployment. Press f to fix it";
            pushed(scene, &commit, watch).await
        }
        'f' => {
            let commit = scene.push_good()?;
            pushed(
                scene,
                &commit,
                "the last good manifests; watch everything become healthy",
            )
            .await
        }
        'g' => {
            let runs = scene.toggle_git().await?;
            // Otherwise the source would show its last state until the next poll.
            let _ = scene.ask_now().await;
            if runs {
                "started the Git server: watch the source become fresh".to_owned()
            } else {
                "stopped the Git server: the source becomes stale, the services stay. Press g to start it".to_owned()
            }
        }
        'h' if scene.toggle_hub().await? => {
            "started the hub, which has all acknowledged writes: watch the agents return".to_owned()
        }
        'h' => "killed the hub (SIGKILL): services keep running, and agents still correct drift. Press h to start it"
            .to_owned(),
        _ => return Ok(None),
    };
    Ok(Some(note))
}

/// Requests a fetch now, and describes the push. If the request fails, the hub fetches at its next poll.
async fn pushed(scene: &Scene, commit: &str, watch: &str) -> String {
    let delay = if scene.ask_now().await.is_ok() {
        ""
    } else {
        " (the hub will see it at its next poll)"
    };
    format!("pushed {}{delay}: {watch}", short(commit))
}

/// Reads single keys in a thread, because a read from the terminal blocks.
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
