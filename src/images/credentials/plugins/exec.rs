//! Executes a credential provider plugin: the request on its standard input, the response on its standard output.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use serde::Serialize;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::account::PodAccount;
use super::config::Provider;
use crate::host::program::read_head;

/// Timeout of one execution (upstream's value too).
const EXEC_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum size of a response, in bytes.
const MAX_RESPONSE: usize = 1 << 20;
/// Maximum number of bytes of a plugin's standard error in error messages.
const MAX_STDERR: u64 = 2048;

/// A plugin's executable.
pub(super) struct Program {
    path: PathBuf,
    timeout: Duration,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ProviderRequest<'a> {
    kind: &'static str,
    api_version: &'a str,
    image: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    service_account_token: &'a str,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    service_account_annotations: &'a BTreeMap<String, String>,
}

/// Why a plugin has not responded.
#[derive(Debug, thiserror::Error)]
pub(super) enum ExecError {
    #[error("it cannot be run: {0}")]
    Spawn(std::io::Error),
    #[error("timed out after {} s and was killed", .0.as_secs())]
    TimedOut(Duration),
    #[error("the response is longer than {MAX_RESPONSE} bytes")]
    TooLong,
    #[error("its output cannot be read: {0}")]
    Pipe(std::io::Error),
    #[error("{0}: {1}")]
    Failed(ExitStatus, String),
}

impl Program {
    /// Finds the plugin's executable. Blocking.
    pub(super) fn find(bin_dir: &Path, name: &str) -> anyhow::Result<Program> {
        use std::os::unix::fs::PermissionsExt as _;
        let path = bin_dir.join(name);
        let metadata = path.metadata();
        let runs = |m: &std::fs::Metadata| m.is_file() && m.permissions().mode() & 0o111 != 0;
        anyhow::ensure!(
            metadata.as_ref().is_ok_and(runs),
            "plugin binary executable {} did not exist",
            path.display()
        );
        Ok(Program { path, timeout: EXEC_TIMEOUT })
    }

    #[cfg(test)]
    pub(super) fn with_deadline(self, timeout: Duration) -> Program {
        Program { timeout, ..self }
    }

    /// Executes the plugin for an image and returns its output. Dropping the future kills the plugin and its process
    /// group.
    pub(super) async fn run(
        &self,
        provider: &Provider,
        image: &str,
        account: Option<&PodAccount>,
    ) -> Result<Vec<u8>, ExecError> {
        tracing::debug!(plugin = provider.name, image, "Running an image credential provider");
        let none = BTreeMap::new();
        let request = ProviderRequest {
            kind: "CredentialProviderRequest",
            api_version: &provider.api_version,
            image,
            service_account_token: account.map_or("", PodAccount::token),
            service_account_annotations: account.map_or(&none, |account| &account.annotations),
        };
        let mut request = serde_json::to_vec(&request).unwrap_or_default();
        request.push(b'\n');
        let child = Command::new(&self.path)
            .args(&provider.args)
            .envs(provider.env.iter().map(|var| (&var.name, &var.value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(ExecError::Spawn)?;
        let mut running = RunningProgram { child };
        match timeout(self.timeout, running.exchange(&request)).await {
            Ok(response) => response,
            Err(_) => Err(ExecError::TimedOut(self.timeout)),
        }
    }
}

/// A running plugin; dropping it kills its process group.
struct RunningProgram {
    child: Child,
}

impl RunningProgram {
    async fn exchange(&mut self, request: &[u8]) -> Result<Vec<u8>, ExecError> {
        let child = &mut self.child;
        let (input, output, stderr) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let run = async {
            if let Some(mut input) = input {
                // A plugin that does not read its request may have closed its standard input.
                let _ = input.write_all(request).await;
            }
            Ok(())
        };
        let (response, message, ()) =
            tokio::try_join!(read_all(output), read_message(stderr), run)?;
        let status = child.wait().await.map_err(ExecError::Pipe)?;
        if status.success() { Ok(response) } else { Err(ExecError::Failed(status, message)) }
    }
}

impl Drop for RunningProgram {
    fn drop(&mut self) {
        // `id` is `None` once the process was reaped; its PID may be reused by then.
        let id = self.child.id().and_then(|id| i32::try_from(id).ok());
        if let Some(group) = id.and_then(Pid::from_raw) {
            // The process may just have exited.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

async fn read_all(output: Option<impl AsyncRead + Unpin>) -> Result<Vec<u8>, ExecError> {
    let mut bytes = Vec::new();
    if let Some(output) = output {
        let mut output = output.take(MAX_RESPONSE as u64 + 1);
        let read = output.read_to_end(&mut bytes).await;
        read.map_err(ExecError::Pipe)?;
    }
    if bytes.len() > MAX_RESPONSE { Err(ExecError::TooLong) } else { Ok(bytes) }
}

/// The beginning of the standard error of a plugin.
async fn read_message(output: Option<impl AsyncRead + Unpin>) -> Result<String, ExecError> {
    let mut bytes = Vec::new();
    let read = read_head(output, MAX_STDERR, &mut bytes).await;
    read.map_err(ExecError::Pipe)?;
    Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::config::EnvVar;
    use super::super::tests::{V1, provider, script};
    use super::*;
    use crate::base::clock;

    fn program(dir: &Path, body: &str) -> Program {
        script(dir, "plugin", body);
        Program::find(dir, "plugin").unwrap()
    }

    async fn run(body: &str) -> Result<String, String> {
        let dir = tempfile::tempdir().unwrap();
        let program = program(dir.path(), body);
        let response = program.run(&provider("plugin"), "r.io/x", None).await;
        let text = response.map(|bytes| String::from_utf8(bytes).unwrap());
        text.map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn the_question_is_json_on_standard_input_with_arguments_and_environment() {
        let dir = tempfile::tempdir().unwrap();
        script(dir.path(), "plugin", "cat; echo \"$1 $2 $OWN $HOME\"");
        let var = |name: &str, value: &str| EnvVar { name: name.into(), value: value.into() };
        let own = Provider {
            args: vec!["one".into(), "two words".into()],
            env: vec![var("OWN", "value"), var("HOME", "/other")],
            ..provider("plugin")
        };
        let response = Program::find(dir.path(), "plugin").unwrap().run(&own, "r.io/x", None).await;
        let text = String::from_utf8(response.unwrap()).unwrap();
        let request = format!(
            "{{\"kind\":\"CredentialProviderRequest\",\"apiVersion\":\"{V1}\",\"image\":\"r.io/x\"}}\n"
        );
        assert_eq!(text, format!("{request}one two words value /other\n"));
    }

    #[tokio::test]
    async fn a_program_that_fails_tells_why_on_its_standard_error() {
        let error = run("echo no network >&2; exit 3").await.unwrap_err();
        assert_eq!(error, "exit status: 3: no network");
        let error = run("yes complaint | head -c 1000000 >&2; exit 1").await;
        assert!(error.unwrap_err().len() < 3000);
        assert_eq!(run("exec <&-; echo fine").await.unwrap(), "fine\n");
    }

    #[tokio::test]
    async fn an_endless_answer_is_cut_off() {
        let error = run("yes").await.unwrap_err();
        assert!(error.contains("longer than"), "{error}");
    }

    #[tokio::test]
    async fn a_program_that_hangs_is_killed_with_all_it_started() {
        let dir = tempfile::tempdir().unwrap();
        let pid = dir.path().join("pid");
        let body = format!("sleep 1000 & echo $! > {}; wait", pid.display());
        let slow = program(dir.path(), &body).with_deadline(Duration::from_secs(2));
        let begin = clock::instant();
        let error = slow.run(&provider("plugin"), "r.io/x", None).await.unwrap_err();
        assert!(matches!(error, ExecError::TimedOut(_)), "{error}");
        assert!(clock::since(begin) < Duration::from_secs(60));
        let grandchild = std::fs::read_to_string(&pid).unwrap();
        let process = PathBuf::from("/proc").join(grandchild.trim()).join("stat");
        let is_gone = || match std::fs::read_to_string(&process) {
            // Its new parent may take a while to reap it.
            Ok(stat) => stat.contains(") Z "),
            Err(_) => true,
        };
        while !is_gone() {
            assert!(clock::since(begin) < Duration::from_secs(60), "the child lives");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    #[tokio::test]
    async fn what_is_no_program_is_found_out_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let missing = |name: &str| Program::find(dir.path(), name).is_err();
        assert!(missing("plugin"));
        std::fs::write(dir.path().join("text"), "").unwrap();
        assert!(missing("text"));
        std::fs::create_dir(dir.path().join("dir")).unwrap();
        assert!(missing("dir"));
    }
}
