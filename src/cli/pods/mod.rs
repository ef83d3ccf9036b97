//! `kubelet pods`: lists the pods of the running kubelet.

mod render;

use super::args::{Output, Pods};
use super::client::{ClientError, Kubelet};
use super::term::{Term, json, print};
use crate::base::{clock, error_chain};
use crate::server::explain::Overview;
use render::{RenderOptions, changed_lines, screen, text};
use std::process::ExitCode;
use std::time::Duration;

/// Minimum interval between two redraws.
const REDRAW_INTERVAL: Duration = Duration::from_millis(200);
/// Delay after a failed request.
const AGAIN: Duration = Duration::from_secs(1);
/// The escape sequence that clears the screen.
const CLEAR: &str = "\x1b[2J";

pub(super) async fn run(args: Pods) -> anyhow::Result<ExitCode> {
    let kubelet = Kubelet::at(args.socket.clone());
    let term = Term::of_stdout();
    let mut shown = fetch(&kubelet, &args, None).await?;
    if !print(&first(&args, term, &shown)?)? || !args.watch {
        return Ok(ExitCode::SUCCESS);
    }
    loop {
        tokio::time::sleep(REDRAW_INTERVAL).await;
        let new = match fetch(&kubelet, &args, Some(&shown.version)).await {
            Ok(new) => new,
            Err(error @ ClientError::NotFound(_)) => return Err(error.into()),
            Err(error) => {
                print_error_above(&args, term, &mut shown, &error)?;
                tokio::time::sleep(AGAIN).await;
                continue;
            }
        };
        if !print(&next(&args, term, &shown, &new)?)? {
            return Ok(ExitCode::SUCCESS);
        }
        shown = new;
    }
}

async fn fetch(
    kubelet: &Kubelet,
    args: &Pods,
    after: Option<&str>,
) -> Result<Overview, ClientError> {
    let query = after.map_or_else(String::new, |version| format!("?after={version}"));
    let mut overview: Overview = kubelet.get(&format!("/explain{query}")).await?;
    if let Some(namespace) = &args.namespace {
        overview.pods.retain(|pod| pod.namespace == *namespace);
    }
    Ok(overview)
}

fn options(args: &Pods, term: Term) -> RenderOptions {
    RenderOptions { wide: args.output == Output::Wide, paint: term.paint, now: clock::timestamp() }
}

fn first(args: &Pods, term: Term, overview: &Overview) -> anyhow::Result<String> {
    Ok(match (args.output, args.watch, term.size) {
        (Output::Json, watch, _) => json(overview, !watch)?,
        (_, true, Some(size)) => CLEAR.to_owned() + &screen(overview, options(args, term), size),
        (..) => text(overview, options(args, term)),
    })
}

fn next(args: &Pods, term: Term, old: &Overview, new: &Overview) -> anyhow::Result<String> {
    Ok(match (args.output, term.size) {
        (Output::Json, _) if (&old.pods, &old.warnings) == (&new.pods, &new.warnings) => {
            String::new()
        }
        (Output::Json, _) => json(new, false)?,
        (_, Some(size)) => screen(new, options(args, term), size),
        (_, None) => changed_lines(old, new, options(args, term)),
    })
}

/// Keeps the rows on the screen and prints the error above them, because they are outdated.
fn print_error_above(
    args: &Pods,
    term: Term,
    shown: &mut Overview,
    error: &ClientError,
) -> anyhow::Result<()> {
    let warning = format!("{}; trying again", error_chain(error));
    if shown.warnings.first() == Some(&warning) {
        return Ok(());
    }
    let mut troubled = shown.clone();
    troubled.warnings.insert(0, warning);
    print(&next(args, term, shown, &troubled)?)?;
    shown.warnings = troubled.warnings;
    Ok(())
}
