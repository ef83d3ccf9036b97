//! tmp
#![allow(missing_docs)]
use crate::{base::Tasks, events::EventRecorder, model::{PodSource, PodUpdate}};
use std::{path::PathBuf, time::Duration};
use tokio::sync::mpsc;
#[derive(Clone, Debug)]
pub struct SourcesReady;
pub struct AllReady(());
impl SourcesReady {
    pub fn mark_seen(&self, _s: PodSource) {}
    pub fn ready(&self, _s: PodSource) -> bool { false }
    pub fn all_ready(&self) -> Option<AllReady> { None }
}
pub struct PodConfig { pub updates: mpsc::Receiver<PodUpdate>, pub sources: SourcesReady }
pub struct Config { pub node_name: String, pub file: Option<PathBuf>, pub file_check_frequency: Duration, pub url: Option<String>, pub http_check_frequency: Duration, pub headers: Vec<(String,String)> }
pub fn start(_c: Config, _e: EventRecorder, _t: &mut Tasks) -> PodConfig { let (_tx, updates) = mpsc::channel(50); PodConfig { updates, sources: SourcesReady } }
