//! `kubelet explain`: explains the state of a pod.

mod choose;
mod render;

use super::args::{Explain, Output};
use super::client::Kubelet;
use super::term::{Term, json, print};
use crate::server::explain::{Explanation, Overview};
use choose::choose;
use jiff::tz::TimeZone;
use std::process::ExitCode;

pub(super) async fn run(args: Explain) -> anyhow::Result<ExitCode> {
    let kubelet = Kubelet::at(args.socket);
    let overview: Overview = kubelet.get("/explain").await?;
    let chosen = choose(&overview, &args.pod, args.namespace.as_deref());
    let pod = chosen.map_err(anyhow::Error::msg)?;
    let path = format!("/explain/{}/{}?uid={}", pod.namespace, pod.name, pod.uid);
    let explanation: Explanation = kubelet.get(&path).await?;
    print(&match args.output {
        Output::Json => json(&explanation, true)?,
        Output::Text | Output::Wide => {
            render::text(&explanation, Term::of_stdout().paint, &TimeZone::system())
        }
    })?;
    Ok(ExitCode::SUCCESS)
}
