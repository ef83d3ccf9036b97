//! A Prometheus (Debian's) for a test, and its `promtool`.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::scripts::printed;

/// Scrapes and evaluates every second. It is killed when dropped.
pub struct Prometheus<Wrap: Fn(&str) -> Command> {
    process: Child,
    address: String,
    log: PathBuf,
    /// A command of that program, where the Prometheus runs.
    wrap: Wrap,
}

impl<Wrap: Fn(&str) -> Command> Prometheus<Wrap> {
    /// `jobs`: entries of `scrape_configs`. `rules`: a file of rules, if any.
    pub fn start(dir: &Path, port: u16, jobs: &str, rules: Option<&Path>, wrap: Wrap) -> Self {
        std::fs::create_dir_all(dir).unwrap();
        let files =
            rules.map_or(String::new(), |path| format!("rule_files: [\"{}\"]\n", path.display()));
        let config = format!(
            "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\n{files}scrape_configs:\n{jobs}"
        );
        let config_file = dir.join("prometheus.yml");
        std::fs::write(&config_file, config).unwrap();
        let address = format!("127.0.0.1:{port}");
        let log = dir.join("prometheus.log");
        let output = std::fs::File::create(&log).unwrap();
        let mut command = wrap("prometheus");
        command.arg(format!("--config.file={}", config_file.display()));
        command.arg(format!("--storage.tsdb.path={}", dir.join("data").display()));
        command.arg(format!("--web.listen-address={address}"));
        command.stdin(Stdio::null());
        command.stdout(output.try_clone().unwrap()).stderr(output);
        let process = command.spawn().expect("prometheus (Debian: prometheus)");
        Self { process, address, log, wrap }
    }

    /// The series that an expression returns now.
    pub fn query(&self, expression: &str) -> Result<Vec<String>, String> {
        let mut command = (self.wrap)("promtool");
        command.args(["query", "instant"]);
        command.arg(format!("http://{}", self.address));
        let text = printed(command.arg(expression))?;
        let lines = text.lines().filter(|line| !line.trim().is_empty());
        Ok(lines.map(str::to_owned).collect())
    }

    /// Those of the expressions that return nothing, or are wrong.
    pub fn without_data<'a>(&self, expressions: impl IntoIterator<Item = &'a str>) -> Vec<String> {
        let mut empty = Vec::new();
        for expression in expressions {
            match self.query(expression) {
                Ok(series) if series.is_empty() => empty.push(expression.to_owned()),
                Ok(_) => {}
                Err(error) => empty.push(format!("{expression}: {error}")),
            }
        }
        empty
    }

    /// What it logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl<Wrap: Fn(&str) -> Command> Drop for Prometheus<Wrap> {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// What `promtool` says to these arguments; its complaint is the error.
pub fn promtool(args: &[&str]) -> Result<String, String> {
    printed(Command::new("promtool").args(args))
}
