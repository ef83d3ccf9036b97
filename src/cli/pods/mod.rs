//! `kubelet pods`: the pods of the running kubelet.

mod render;

use super::{
    args::{Output, Pods},
    client::{ClientError, Kubelet},
    term::{Term, json, print},
};
use crate::{base::chain, server::explain::Overview};
use jiff::Timestamp;
use render::{Look, changed_lines, screen, text};
use std::{process::ExitCode, time::Duration};

/// Shortest time between two redraws.
const REDRAW_INTERVAL: Duration = Duration::from_millis(200);
/// Delay after a failed request.
const AGAIN: Duration = Duration::from_secs(1);
/// Clears the screen.
const CLEAR: &str = "\x1b[2J";

pub(super) async fn run(asked: Pods) -> anyhow::Result<ExitCode> {
    let kubelet = Kubelet::at(asked.socket.clone());
    let term = Term::of_stdout();
    let mut shown = fetch(&kubelet, &asked, None).await?;
    if !print(&first(&asked, term, &shown)?)? || !asked.watch {
        return Ok(ExitCode::SUCCESS);
    }
    loop {
        tokio::time::sleep(REDRAW_INTERVAL).await;
        let new = match fetch(&kubelet, &asked, Some(&shown.version)).await {
            Ok(new) => new,
            Err(error @ ClientError::NotFound(_)) => return Err(error.into()),
            Err(error) => {
                tell_trouble(&asked, term, &mut shown, &error)?;
                tokio::time::sleep(AGAIN).await;
                continue;
            }
        };
        if !print(&next(&asked, term, &shown, &new)?)? {
            return Ok(ExitCode::SUCCESS);
        }
        shown = new;
    }
}

async fn fetch(
    kubelet: &Kubelet,
    asked: &Pods,
    after: Option<&str>,
) -> Result<Overview, ClientError> {
    let query = after.map_or_else(String::new, |version| format!("?after={version}"));
    let mut overview: Overview = kubelet.get(&format!("/explain{query}")).await?;
    if let Some(namespace) = &asked.namespace {
        overview.pods.retain(|pod| pod.namespace == *namespace);
    }
    Ok(overview)
}

fn look(asked: &Pods, term: Term) -> Look {
    Look {
        wide: asked.output == Output::Wide,
        paint: term.paint,
        now: Timestamp::now(),
    }
}

fn first(asked: &Pods, term: Term, overview: &Overview) -> anyhow::Result<String> {
    Ok(match (asked.output, asked.watch, term.size) {
        (Output::Json, watch, _) => json(overview, !watch)?,
        (_, true, Some(size)) => CLEAR.to_owned() + &screen(overview, look(asked, term), size),
        (..) => text(overview, look(asked, term)),
    })
}

fn next(asked: &Pods, term: Term, old: &Overview, new: &Overview) -> anyhow::Result<String> {
    Ok(match (asked.output, term.size) {
        (Output::Json, _) if (&old.pods, &old.remarks) == (&new.pods, &new.remarks) => {
            String::new()
        }
        (Output::Json, _) => json(new, false)?,
        (_, Some(size)) => screen(new, look(asked, term), size),
        (_, None) => changed_lines(old, new, look(asked, term)),
    })
}

/// The rows stay on the screen; a line above says that they are old.
fn tell_trouble(
    asked: &Pods,
    term: Term,
    shown: &mut Overview,
    error: &ClientError,
) -> anyhow::Result<()> {
    let remark = format!("{}; trying again", chain(error));
    if shown.remarks.first() == Some(&remark) {
        return Ok(());
    }
    let mut troubled = shown.clone();
    troubled.remarks.insert(0, remark);
    print(&next(asked, term, shown, &troubled)?)?;
    shown.remarks = troubled.remarks;
    Ok(())
}
