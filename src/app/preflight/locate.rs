//! Finds the kubelet of this node: its process and its unit. Blocking, and only reads.

use super::{
    UNIT,
    target::{Found, KubeletProcess, is_node_agent, is_proxy},
    unit::{EnvironmentFile, Service, UnitCommand, UnitFile},
};
use crate::{app::Finding, base::if_exists, host::ProcDir};
use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

/// Where systemd looks for units, first match first.
const UNIT_DIRECTORIES: [&str; 5] = [
    "etc/systemd/system",
    "run/systemd/system",
    "usr/local/lib/systemd/system",
    "usr/lib/systemd/system",
    "lib/systemd/system",
];
/// Limit of a unit file that is read, bytes.
const MAX_UNIT: usize = 1 << 20;

/// Finds the kubelets in `proc`, or the process `id` alone, and the unit in the file system at `root`.
pub(super) fn find(proc: &ProcDir, root: &Path, id: Option<u32>, hostname: &str) -> Found {
    let mut found = Found::default();
    match processes(proc, id) {
        Ok((processes, unreadable)) => {
            found.processes = processes;
            found.unit_problems.extend(unreadable);
        }
        Err(why) => found.unit_problems.push(Finding::unknown("process", why)),
    }
    let (unit, problems) = unit(root, hostname);
    found.unit = unit;
    found.unit_problems.extend(problems);
    found
}

fn processes(
    proc: &ProcDir,
    id: Option<u32>,
) -> Result<(Vec<KubeletProcess>, Vec<Finding>), String> {
    let listed = match id {
        Some(id) => vec![id],
        None => proc
            .processes()
            .map_err(|error| format!("/proc: {error}"))?,
    };
    let (mut found, mut unreadable) = (Vec::new(), Vec::new());
    for process in listed {
        let line = match proc.command_line(process) {
            Ok(line) if !line.is_empty() => line,
            // It has ended, or it is a kernel thread.
            Ok(_) if id.is_none() => continue,
            Err(error) if id.is_none() && is_gone(&error) => continue,
            Ok(_) => return Err(format!("process {process} has no command line")),
            Err(error) => return Err(format!("process {process}: {error}")),
        };
        let program = proc.program(process);
        if process == std::process::id() {
            continue;
        }
        if id.is_none() && !is_node_agent(program.as_deref().ok(), &line) {
            continue;
        }
        match proc.has_own_mounts(process) {
            Ok(true) => found.push(read(proc, process, line)),
            Ok(false) if id.is_some() => {
                return Err(format!(
                    "process {process} has other mounts than this one; run \"nsenter -t {process} -m -n kubelet preflight --pid {process}\""
                ));
            }
            // The kubelet of a node in a container.
            Ok(false) => {}
            Err(error) => {
                let message = format!("process {process}: {error}; run this as root");
                unreadable.push(Finding::unknown("process", message));
                found.push(read(proc, process, line));
            }
        }
    }
    Ok((found, unreadable))
}

fn is_gone(error: &io::Error) -> bool {
    // ESRCH, of a process that ends during the read.
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(3)
}

fn read(proc: &ProcDir, id: u32, line: Vec<String>) -> KubeletProcess {
    let mut unreadable = Vec::new();
    let mut note = |what: &str, error: io::Error| {
        unreadable.push(format!(
            "its {what} cannot be read: {error}; run this as root"
        ));
    };
    let program = proc
        .program(id)
        .map_err(|error| note("program", error))
        .ok();
    let directory = proc
        .directory(id)
        .map_err(|error| note("directory", error))
        .ok();
    let proxies = proc.variables(id, is_proxy);
    let proxies = proxies.map_err(|error| note("environment", error));
    KubeletProcess {
        id,
        args: line.into_iter().skip(1).collect(),
        program,
        directory,
        proxies: proxies.unwrap_or_default(),
        unreadable,
    }
}

/// The command line of the unit, and what is wrong with it.
fn unit(root: &Path, hostname: &str) -> (Option<UnitCommand>, Vec<Finding>) {
    let mut problems = Vec::new();
    let files = match unit_files(root) {
        Ok(files) => files,
        Err(why) => return (None, vec![Finding::unknown("unit", why)]),
    };
    if files.is_empty() {
        return (None, problems);
    }
    let mut service = Service::of(&files);
    for wanted in std::mem::take(&mut service.environment_files) {
        match environment_file(root, &wanted) {
            Ok(Some(file)) => service.add_environment_file(&file),
            Ok(None) => {}
            Err(finding) => problems.push(finding),
        }
    }
    let warnings = service.problems.iter();
    problems.extend(warnings.map(|why| Finding::warning("unit", why)));
    match service.command(hostname) {
        Some(Ok(command)) => (Some(command), problems),
        Some(Err(why)) => {
            problems.push(Finding::unknown("unit", why));
            (None, problems)
        }
        None => (None, problems),
    }
}

/// The unit file, which is the first of its name, and all drop-ins by name; of drop-ins of one name the first counts.
fn unit_files(root: &Path) -> Result<Vec<UnitFile>, String> {
    let directories = UNIT_DIRECTORIES.map(|directory| root.join(directory));
    let mut unit = None;
    let mut drop_ins: BTreeMap<std::ffi::OsString, PathBuf> = BTreeMap::new();
    for directory in &directories {
        let path = directory.join(UNIT);
        if unit.is_none() && path.exists() {
            unit = Some(path);
        }
        let directory = directory.join(format!("{UNIT}.d"));
        let listed = if_exists(fs::read_dir(&directory));
        let listed = listed.map_err(|error| format!("{}: {error}", directory.display()))?;
        for entry in listed.into_iter().flatten() {
            let path = entry
                .map_err(|error| format!("{}: {error}", directory.display()))?
                .path();
            let name = path.file_name().unwrap_or_default().to_owned();
            if path
                .extension()
                .is_some_and(|extension| extension == "conf")
            {
                drop_ins.entry(name).or_insert(path);
            }
        }
    }
    unit.into_iter()
        .chain(drop_ins.into_values())
        .map(|path| read_unit(&path))
        .collect()
}

fn read_unit(path: &Path) -> Result<UnitFile, String> {
    let text = read_text(path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(UnitFile {
        path: path.to_owned(),
        text,
    })
}

fn read_text(path: &Path) -> io::Result<String> {
    let bytes = crate::host::files::read_head_or_empty(path, MAX_UNIT)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn environment_file(root: &Path, wanted: &EnvironmentFile) -> Result<Option<UnitFile>, Finding> {
    let path = root.join(wanted.path.trim_start_matches('/'));
    let at = |error: &dyn std::fmt::Display| {
        format!("{}: EnvironmentFile={}: {error}", wanted.place, wanted.path)
    };
    match fs::metadata(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && wanted.is_optional => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(Finding::error("unit", at(&error)))
        }
        Err(error) => Err(Finding::unknown("unit", at(&error))),
        Ok(_) => match read_text(&path) {
            Ok(text) => Ok(Some(UnitFile { path, text })),
            Err(error) => Err(Finding::unknown("unit", at(&error))),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app::Level;
    use std::os::unix::fs::symlink;

    fn put(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn add_process(proc: &Path, id: &str, mounts: &str, line: &str, environment: &str) {
        put(proc, &format!("{id}/cmdline"), &line.replace(' ', "\0"));
        put(
            proc,
            &format!("{id}/environ"),
            &environment.replace(' ', "\0"),
        );
        fs::create_dir_all(proc.join(id).join("ns")).unwrap();
        symlink(mounts, proc.join(id).join("ns/mnt")).unwrap();
        symlink("/usr/bin/kubelet", proc.join(id).join("exe")).unwrap();
        symlink("/", proc.join(id).join("cwd")).unwrap();
    }

    #[test]
    fn the_kubelet_of_this_node_is_found_among_those_of_nodes_in_containers() {
        let directory = tempfile::tempdir().unwrap();
        let proc = directory.path();
        add_process(proc, "self", "mnt:[1]", "x ", "");
        fs::remove_file(proc.join("self/cmdline")).unwrap();
        add_process(
            proc,
            "10",
            "mnt:[1]",
            "/usr/bin/kubelet --v=2 --a= ",
            "HTTPS_PROXY=p A=b ",
        );
        add_process(proc, "11", "mnt:[2]", "/usr/bin/kubelet --v=3 ", "");
        add_process(proc, "12", "mnt:[1]", "", "");
        let proc = ProcDir::from(proc.to_owned());
        let none = directory.path().join("none");
        let found = find(&proc, &none, None, "h");
        let [own] = found.processes.as_slice() else {
            panic!("{found:?}");
        };
        assert_eq!((own.id, own.args.join(" ").as_str()), (10, "--v=2 --a="));
        assert_eq!(own.proxies, ["HTTPS_PROXY"]);
        assert_eq!((own.unreadable.len(), found.unit_problems.len()), (0, 0));
        let other = find(&proc, &none, Some(11), "h");
        assert_eq!(other.processes, []);
        assert!(
            other.unit_problems[0].message.contains("nsenter -t 11"),
            "{other:?}"
        );
        assert_eq!(
            find(&proc, &none, Some(13), "h").unit_problems[0].level,
            Level::Unknown
        );
        // What may not be read is not taken for something that is not there.
        fs::remove_file(directory.path().join("10/environ")).unwrap();
        fs::remove_file(directory.path().join("10/ns/mnt")).unwrap();
        let hidden = find(&proc, &none, None, "h");
        assert_eq!(hidden.processes[0].unreadable.len(), 1);
        assert_eq!(hidden.unit_problems[0].level, Level::Unknown);
    }

    #[test]
    fn the_unit_is_read_with_the_drop_ins_and_environment_files_that_count() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        put(
            root,
            "usr/lib/systemd/system/kubelet.service",
            "[Service]\nExecStart=/old\n",
        );
        put(
            root,
            "etc/systemd/system/kubelet.service",
            "[Service]\nEnvironmentFile=/etc/default/kubelet\nExecStart=/usr/bin/kubelet $A $B $C\n",
        );
        let drop_in = |value: &str| format!("[Service]\nEnvironment=A=--a={value}\n");
        put(
            root,
            "usr/lib/systemd/system/kubelet.service.d/10.conf",
            &drop_in("hidden"),
        );
        put(
            root,
            "etc/systemd/system/kubelet.service.d/10.conf",
            &drop_in("1"),
        );
        put(
            root,
            "usr/lib/systemd/system/kubelet.service.d/20.conf",
            "[Service]\nEnvironment=B=--b\n",
        );
        put(
            root,
            "etc/systemd/system/kubelet.service.d/readme",
            "nothing",
        );
        put(root, "etc/default/kubelet", "C=\"--c --d\"\n");
        let (command, problems) = unit(root, "h");
        assert_eq!(problems, []);
        assert_eq!(command.unwrap().args, ["--a=1", "--b", "--c", "--d"]);

        fs::remove_file(root.join("etc/default/kubelet")).unwrap();
        let (_, problems) = unit(root, "h");
        assert_eq!(problems[0].level, Level::Error);
        assert!(
            problems[0]
                .message
                .contains("kubelet.service:2: EnvironmentFile="),
            "{problems:?}"
        );
        // A directory in place of a file, as something that cannot be read.
        fs::create_dir(root.join("etc/default/kubelet")).unwrap();
        assert_eq!(unit(root, "h").1[0].level, Level::Unknown);
        assert!(unit(&root.join("none"), "h").0.is_none());
    }
}
