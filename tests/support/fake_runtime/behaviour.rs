//! What a simulated container does once it is started.

use std::time::Duration;

use super::calls::Subject;

/// What the process does on the stop signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnTerm {
    /// Ends by itself after a while.
    Exit { after: Duration, code: i32 },
    /// Only a kill ends it (137).
    Ignore,
}

/// The life of one container.
#[derive(Debug, Clone)]
pub struct Behaviour {
    /// When it ends by itself, and how; None: it runs for ever.
    pub exit: Option<(Duration, i32)>,
    pub on_term: OnTerm,
    /// StartContainer fails with this text and the container is exited with code 128.
    pub start_error: Option<String>,
    /// Lines for its log: stdout.
    pub output: Vec<String>,
    /// Written to the host file behind its termination message path when it ends.
    pub termination_message: Option<String>,
    /// Reason of its end other than Completed and Error, such as OOMKilled.
    pub reason: Option<String>,
}

impl Default for Behaviour {
    fn default() -> Self {
        Behaviour {
            exit: None,
            on_term: OnTerm::Exit { after: Duration::ZERO, code: 0 },
            start_error: None,
            output: Vec::new(),
            termination_message: None,
            reason: None,
        }
    }
}

impl Behaviour {
    /// Runs until it is stopped; exits at once with 0 on the stop signal.
    pub fn runs() -> Self {
        Self::default()
    }

    /// Ends by itself.
    pub fn exits(after: Duration, code: i32) -> Self {
        Behaviour { exit: Some((after, code)), ..Self::default() }
    }

    /// Runs and does not listen to SIGTERM.
    pub fn ignores_term() -> Self {
        Behaviour { on_term: OnTerm::Ignore, ..Self::default() }
    }

    /// Exits some time after the stop signal.
    pub fn ends_slowly(after: Duration, code: i32) -> Self {
        Behaviour { on_term: OnTerm::Exit { after, code }, ..Self::default() }
    }

    /// Cannot be started.
    pub fn fails_to_start(message: &str) -> Self {
        Behaviour { start_error: Some(message.to_owned()), ..Self::default() }
    }

    pub fn with_output(mut self, lines: &[&str]) -> Self {
        self.output = lines.iter().map(|line| (*line).to_owned()).collect();
        self
    }

    pub fn with_termination_message(mut self, message: &str) -> Self {
        self.termination_message = Some(message.to_owned());
        self
    }

    pub fn with_reason(mut self, reason: &str) -> Self {
        self.reason = Some(reason.to_owned());
        self
    }

    /// A command `fake-exit SECONDS CODE` says by itself what it does; anything else runs.
    pub fn of_command(command: &[String]) -> Self {
        if let [word, seconds, code] = command
            && word == "fake-exit"
            && let (Ok(seconds), Ok(code)) = (seconds.parse(), code.parse())
        {
            return Self::exits(Duration::from_secs_f64(seconds), code);
        }
        Self::runs()
    }
}

/// Behaviours of one container's successive starts; the last repeats.
struct Rule {
    word: String,
    lives: Vec<Behaviour>,
    used: usize,
}

/// The rules, the newest first.
#[derive(Default)]
pub struct Behaviours {
    rules: Vec<Rule>,
}

impl Behaviours {
    /// `word` is a container, `pod/container`, a pod, or an image.
    pub fn set(&mut self, word: &str, lives: Vec<Behaviour>) {
        assert!(!lives.is_empty(), "a container needs a behaviour");
        self.rules.retain(|rule| rule.word != word);
        self.rules.insert(0, Rule { word: word.to_owned(), lives, used: 0 });
    }

    /// The behaviour of the container that is being started.
    pub fn next(&mut self, subject: &Subject, image: &str, command: &[String]) -> Behaviour {
        for rule in &mut self.rules {
            if subject.matches(&rule.word) || rule.word == image {
                let life = rule.used.min(rule.lives.len() - 1);
                rule.used += 1;
                return rule.lives[life].clone();
            }
        }
        Behaviour::of_command(command)
    }
}
