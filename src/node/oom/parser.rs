//! Finds system OOM kills in the kernel log, as opposed to kills for a cgroup limit. Pure.

/// A process that the kernel killed because the machine ran out of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SystemOom {
    /// Name of the process (`comm`), at most 15 bytes.
    pub(super) process: String,
    pub(super) pid: i32,
}

impl SystemOom {
    /// The message of upstream's event.
    pub(super) fn message(&self) -> String {
        let Self { process, pid } = self;
        format!("System OOM encountered, victim process: {process}, pid: {pid}")
    }
}

/// Parses the kernel log by message. A report begins with the process that triggered the OOM killer and ends with the
/// killed process; the message in between names the limit that was reached.
#[derive(Debug, Default)]
pub(super) struct OomParser {
    in_report: bool,
}

impl OomParser {
    /// Parses the next message; returns an OOM kill when its report is complete.
    pub(super) fn parse(&mut self, message: &str) -> Option<SystemOom> {
        if message.contains("invoked oom-killer:") {
            self.in_report = true;
            return None;
        }
        if !self.in_report {
            return None;
        }
        if cgroup_limit(message).is_some_and(|cgroup| cgroup != "/") {
            self.in_report = false;
            return None;
        }
        let killed = killed(message)?;
        self.in_report = false;
        Some(killed)
    }
}

/// The cgroup whose limit was reached; `None` if the whole machine was out of memory.
fn cgroup_limit(message: &str) -> Option<&str> {
    if message.starts_with("oom-kill:constraint=") {
        let (_, rest) = message.split_once(",oom_memcg=")?;
        let (cgroup, _) = rest.rsplit_once(",task_memcg=")?;
        return Some(cgroup);
    }
    // Format before Linux 5.0.
    let (_, cgroup) = message.split_once(" killed as a result of limit of ")?;
    message.starts_with("Task in ").then_some(cgroup)
}

fn killed(message: &str) -> Option<SystemOom> {
    let (_, rest) = message.split_once("Killed process ")?;
    let (pid, rest) = rest.split_once(" (")?;
    let (process, _) = rest.rsplit_once(") total-vm:").or(rest.rsplit_once(')'))?;
    Some(SystemOom { process: process.to_owned(), pid: pid.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEGIN: &str =
        "python3 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0";
    const KILLED: &str = "Out of memory: Killed process 18254 (python3) total-vm:82092kB, anon-rss:8064kB, file-rss:6584kB, shmem-rss:0kB, UID:0 pgtables:80kB oom_score_adj:0";

    fn found(messages: &[&str]) -> Vec<String> {
        let mut parser = OomParser::default();
        let found = messages.iter().filter_map(|message| parser.parse(message));
        found.map(|oom| oom.message()).collect()
    }

    #[test]
    fn only_a_machine_without_memory_is_a_system_oom() {
        let said = ["System OOM encountered, victim process: python3, pid: 18254".to_owned()];
        let table: &[(&str, &[&str], bool)] = &[
            (
                "the machine, Linux 6",
                &[
                    BEGIN,
                    "Tasks state (memory values in pages):",
                    "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg=/kubepods/burstable/pod1/c1,task=python3,pid=18254,uid=0",
                    KILLED,
                ],
                true,
            ),
            (
                "a cgroup, Linux 6",
                &[
                    BEGIN,
                    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/kubepods/pod1,task_memcg=/kubepods/pod1/c1,task=python3,pid=18254,uid=0",
                    "Memory cgroup out of memory: Killed process 18254 (python3) total-vm:82092kB, anon-rss:8064kB, file-rss:6584kB, shmem-rss:0kB, UID:0 pgtables:80kB oom_score_adj:0",
                ],
                false,
            ),
            (
                "the root cgroup, named",
                &[
                    BEGIN,
                    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/,task_memcg=/a,task=python3,pid=18254,uid=0",
                    KILLED,
                ],
                true,
            ),
            (
                "the machine, Linux 4",
                &[
                    BEGIN,
                    "Out of memory: Kill process 18254 (python3) score 900 or sacrifice child",
                    "Killed process 18254 (python3) total-vm:82092kB, anon-rss:8064kB, file-rss:6584kB, shmem-rss:0kB",
                ],
                true,
            ),
            (
                "a cgroup, Linux 4",
                &[
                    BEGIN,
                    "Task in /kubepods/pod1/c1 killed as a result of limit of /kubepods/pod1",
                    "Memory cgroup out of memory: Kill process 18254 (python3) score 900 or sacrifice child",
                    "Killed process 18254 (python3) total-vm:82092kB, anon-rss:8064kB, file-rss:6584kB, shmem-rss:0kB",
                ],
                false,
            ),
            ("the end of a report that began earlier", &[KILLED], false),
            ("one report, of two processes", &[BEGIN, KILLED, KILLED], true),
            ("nothing was killed", &[BEGIN, "Mem-Info:"], false),
            ("no number", &[BEGIN, "Killed process x (python3) total-vm:1"], false),
        ];
        for (what, messages, is_system) in table {
            let expected = if *is_system { &said[..] } else { &[] };
            assert_eq!(found(messages), expected, "{what}");
        }
    }

    #[test]
    fn each_report_is_read_for_itself() {
        let of_cgroup = "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/a,task_memcg=/a,task=x,pid=1,uid=0";
        let messages = [BEGIN, of_cgroup, KILLED, BEGIN, KILLED, BEGIN, BEGIN, KILLED];
        assert_eq!(found(&messages).len(), 2);
    }

    #[test]
    fn a_process_is_named_as_it_names_itself() {
        for (name, expected) in
            [("(sd-pam)", "(sd-pam)"), ("a) total-vm:", "a) total-vm:"), ("a (b", "a (b")]
        {
            let message = format!("Out of memory: Killed process 7 ({name}) total-vm:1kB");
            let oom = killed(&message).unwrap();
            assert_eq!((oom.process.as_str(), oom.pid), (expected, 7));
        }
    }
}
