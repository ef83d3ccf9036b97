//! Finds the kubelet of this node: its process and its unit. Blocking, and only reads.

use super::target::{Found, KubeletProcess, is_node_agent};
use super::unit::{EnvironmentFile, Service, UNIT, UnitCommand, UnitFile};
use crate::app::Finding;
use crate::base::proxy::ProxyEnvironment;
use crate::base::{SecretUrl, if_exists};
use crate::host::ProcDir;
use crate::host::files::read_head_or_empty;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// Where systemd looks for units, first match first.
const UNIT_DIRECTORIES: [&str; 8] = [
    "etc/systemd/system.control",
    "run/systemd/system.control",
    "run/systemd/transient",
    "etc/systemd/system",
    "run/systemd/system",
    "usr/local/lib/systemd/system",
    "usr/lib/systemd/system",
    "lib/systemd/system",
];
/// Limit of a unit file that is read, bytes.
const MAX_UNIT: usize = 1 << 20;

/// Finds the kubelets in `proc`, or the process `id` and beside it all others, and the unit in the file system at `root`.
pub(super) fn find(proc: &ProcDir, root: &Path, id: Option<u32>, hostname: &str) -> Found {
    let mut found = Found::default();
    if let Err(why) = processes(proc, id, &mut found) {
        found.problems.push(Finding::unknown("process", why));
    }
    let (unit, problems) = unit(root, hostname);
    found.unit = unit;
    found.problems.extend(problems);
    found
}

fn processes(proc: &ProcDir, id: Option<u32>, found: &mut Found) -> Result<(), String> {
    let mut listed = proc.processes().map_err(|error| format!("/proc: {error}"))?;
    listed.retain(|process| *process != std::process::id());
    if let Some(id) = id.filter(|id| !listed.contains(id)) {
        return Err(format!("there is no process {id}"));
    }
    for process in listed {
        let is_chosen = id == Some(process);
        let line = match proc.command_line(process) {
            Ok(line) if !line.is_empty() => line,
            // It has ended, or it is a kernel thread.
            Ok(_) if !is_chosen => continue,
            Err(error) if !is_chosen && is_gone(&error) => continue,
            Ok(_) => return Err(format!("process {process} has no command line")),
            Err(error) => return Err(format!("process {process}: {error}")),
        };
        if !is_chosen && !is_node_agent(proc.program(process).ok().as_deref(), &line) {
            continue;
        }
        // The flags of another user's process would have root read files and run credential plugins for that user.
        if !proc.is_of_root_or_own_user(process).unwrap_or_default() {
            let message =
                format!("process {process} is named as a kubelet and runs as another user");
            if is_chosen {
                return Err(message);
            }
            let message = format!("{message}: it is ignored");
            found.problems.push(Finding::warning("process", message));
            continue;
        }
        match proc.has_own_mounts(process) {
            Ok(true) => {}
            Ok(false) if is_chosen => {
                return Err(format!(
                    "process {process} has other mounts than this one; run \"nsenter -t {process} -m -n kubelet preflight --pid {process}\""
                ));
            }
            // The kubelet of a node in a container.
            Ok(false) => continue,
            Err(error) => {
                let message = format!("process {process}: {error}; run this as root");
                found.problems.push(Finding::unknown("process", message));
            }
        }
        let read = read(proc, process, line);
        if id.is_none() || is_chosen {
            found.processes.push(read);
        } else {
            found.others.push(read);
        }
    }
    Ok(())
}

fn is_gone(error: &io::Error) -> bool {
    // ESRCH, of a process that ends during the read.
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(3)
}

fn read(proc: &ProcDir, id: u32, line: Vec<String>) -> KubeletProcess {
    let mut unreadable = Vec::new();
    let mut note = |what: &str, error: io::Error| {
        unreadable.push(format!("its {what} cannot be read: {error}; run this as root"));
    };
    let program = proc.program(id).map_err(|error| note("program", error)).ok();
    let directory = proc.directory(id).map_err(|error| note("directory", error)).ok();
    let proxies = proc.variables(id, ProxyEnvironment::has);
    let proxies = proxies.map_err(|error| note("environment", error)).unwrap_or_default();
    KubeletProcess {
        id,
        args: line.into_iter().skip(1).collect(),
        program,
        directory,
        proxies: proxies.into_iter().map(|(name, value)| (name, SecretUrl::from(value))).collect(),
        unreadable,
    }
}

/// The command line of the unit, and what is wrong with it.
fn unit(root: &Path, hostname: &str) -> (Option<UnitCommand>, Vec<Finding>) {
    let mut problems = Vec::new();
    let files = match unit_files(root) {
        Ok(files) => files,
        Err(finding) => return (None, vec![finding]),
    };
    let Some(main) = files.first() else {
        return (None, problems);
    };
    let mut service = Service::of(&files);
    for wanted in std::mem::take(&mut service.environment_files) {
        match environment_file(root, &wanted) {
            Ok(Some(file)) => service.add_environment_file(&file),
            Ok(None) => {}
            Err(finding) => problems.push(finding),
        }
    }
    problems.append(&mut service.problems);
    match service.command(hostname) {
        Some(Ok(mut command)) => {
            // A process shows the target of links.
            let program = fs::canonicalize(&command.program);
            command.program = program.map_or(command.program, |path| path.display().to_string());
            (Some(command), problems)
        }
        Some(Err(why)) => {
            problems.push(Finding::unknown("unit", why));
            (None, problems)
        }
        None => {
            let message = format!("{}: there is no ExecStart=", main.path.display());
            problems.push(Finding::error("unit", message));
            (None, problems)
        }
    }
}

/// Whether a unit or a drop-in is masked.
fn is_masked(path: &Path) -> bool {
    fs::canonicalize(path).is_ok_and(|target| target == Path::new("/dev/null"))
}

/// The unit file, which is the first of its name, and all drop-ins by name; of drop-ins of one name the first counts.
/// Nothing if there is no unit file.
fn unit_files(root: &Path) -> Result<Vec<UnitFile>, Finding> {
    let not_read = |path: &Path, error: io::Error| {
        Finding::unknown("unit", format!("{}: {error}", path.display()))
    };
    let directories = UNIT_DIRECTORIES.map(|directory| root.join(directory));
    let units = directories.iter().map(|directory| directory.join(UNIT));
    let Some(unit) = units.into_iter().find(|path| path.exists()) else {
        return Ok(Vec::new());
    };
    if is_masked(&unit) {
        let message = format!("{}: the unit is masked and cannot be started", unit.display());
        return Err(Finding::error("unit", message));
    }
    let mut drop_ins: BTreeMap<std::ffi::OsString, PathBuf> = BTreeMap::new();
    // Drop-ins of the unit count more than those of all services.
    for (name, directory) in [UNIT, "service"]
        .iter()
        .flat_map(|name| directories.iter().map(move |directory| (name, directory)))
    {
        let directory = directory.join(format!("{name}.d"));
        let listed = if_exists(fs::read_dir(&directory));
        let listed = listed.map_err(|error| not_read(&directory, error))?;
        for entry in listed.into_iter().flatten() {
            let path = entry.map_err(|error| not_read(&directory, error))?.path();
            let name = path.file_name().unwrap_or_default().to_owned();
            if path.extension().is_some_and(|extension| extension == "conf") {
                drop_ins.entry(name).or_insert(path);
            }
        }
    }
    let drop_ins = drop_ins.into_values().filter(|path| !is_masked(path));
    let read = |path: PathBuf| {
        let text = read_text(&path).map_err(|error| not_read(&path, error))?;
        Ok(UnitFile { path, text })
    };
    [unit].into_iter().chain(drop_ins).map(read).collect()
}

fn read_text(path: &Path) -> io::Result<String> {
    let bytes = read_head_or_empty(path, MAX_UNIT)?;
    if bytes.len() == MAX_UNIT {
        let message = format!("it has {MAX_UNIT} bytes or more");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
    }
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
        put(proc, &format!("{id}/environ"), &environment.replace(' ', "\0"));
        put(proc, &format!("{id}/status"), "Name:\tx\nUid:\t9\t0\t0\t0\n");
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
        add_process(proc, "10", "mnt:[1]", "/usr/bin/kubelet --v=2 --a= ", "HTTPS_PROXY=p A=b ");
        add_process(proc, "11", "mnt:[2]", "/usr/bin/kubelet --v=3 ", "");
        add_process(proc, "12", "mnt:[1]", "", "");
        add_process(proc, "14", "mnt:[1]", "kubelet --kubeconfig=/home/u/k ", "");
        put(proc, "14/status", "Uid:\t1000\t1000\t0\t0\n");
        let proc = ProcDir::from(proc.to_owned());
        let none = directory.path().join("none");
        let found = find(&proc, &none, None, "h");
        let [own] = found.processes.as_slice() else {
            panic!("{found:?}");
        };
        assert_eq!((own.id, own.args.join(" ").as_str()), (10, "--v=2 --a="));
        assert_eq!(own.proxies.keys().collect::<Vec<_>>(), ["HTTPS_PROXY"]);
        assert_eq!(own.unreadable, [""; 0]);
        let [ignored] = found.problems.as_slice() else {
            panic!("{found:?}");
        };
        assert_eq!(ignored.level, Level::Warning);
        assert!(
            ignored.message.starts_with("process 14 "),
            "only the process of another user is reported: {ignored:?}"
        );
        let chosen = find(&proc, &none, Some(10), "h");
        assert_eq!((chosen.processes.len(), chosen.others.len()), (1, 0));
        let foreign = find(&proc, &none, Some(14), "h");
        assert_eq!(foreign.processes, []);
        assert!(foreign.problems.iter().any(|one| one.level == Level::Unknown));
        let other = find(&proc, &none, Some(11), "h");
        assert_eq!(other.processes, []);
        assert!(other.problems[0].message.contains("nsenter -t 11"), "{other:?}");
        assert_eq!(find(&proc, &none, Some(13), "h").problems[0].level, Level::Unknown);
        // What may not be read is not taken for something that is not there.
        fs::remove_file(directory.path().join("10/environ")).unwrap();
        fs::remove_file(directory.path().join("10/ns/mnt")).unwrap();
        let hidden = find(&proc, &none, None, "h");
        assert_eq!(hidden.processes[0].unreadable.len(), 1);
        assert_eq!(hidden.problems[0].level, Level::Unknown);
    }

    #[test]
    fn the_unit_is_read_with_the_drop_ins_and_environment_files_that_count() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        put(root, "usr/lib/systemd/system/kubelet.service", "[Service]\nExecStart=/old\n");
        put(
            root,
            "etc/systemd/system/kubelet.service",
            "[Service]\nEnvironmentFile=/etc/default/kubelet\nExecStart=/usr/bin/kubelet $A $B $C $D\n",
        );
        let drop_in = |value: &str| format!("[Service]\nEnvironment=A=--a={value}\n");
        put(root, "usr/lib/systemd/system/kubelet.service.d/10.conf", &drop_in("hidden"));
        put(root, "etc/systemd/system/kubelet.service.d/10.conf", &drop_in("1"));
        put(
            root,
            "usr/lib/systemd/system/kubelet.service.d/20.conf",
            "[Service]\nEnvironment=B=--b\n",
        );
        put(root, "etc/systemd/system/kubelet.service.d/readme", "nothing");
        // A drop-in of all services, which one of the same name hides, and a masked one.
        put(root, "etc/systemd/system/service.d/10.conf", &drop_in("x"));
        put(root, "etc/systemd/system/service.d/30.conf", "[Service]\nEnvironment=D=--e\n");
        put(root, "usr/lib/systemd/system/kubelet.service.d/40.conf", "[Service]\nExecStart=\n");
        symlink("/dev/null", root.join("etc/systemd/system/kubelet.service.d/40.conf")).unwrap();
        put(root, "etc/default/kubelet", "C=\"--c --d\"\n");
        let (command, problems) = unit(root, "h");
        assert_eq!(problems, []);
        assert_eq!(command.unwrap().args, ["--a=1", "--b", "--c", "--d", "--e"]);

        fs::remove_file(root.join("etc/default/kubelet")).unwrap();
        let (_, problems) = unit(root, "h");
        assert_eq!(problems[0].level, Level::Error);
        assert!(
            problems[0].message.contains("kubelet.service:2: EnvironmentFile="),
            "{problems:?}"
        );
        // A directory in place of a file, as something that cannot be read.
        fs::create_dir(root.join("etc/default/kubelet")).unwrap();
        assert_eq!(unit(root, "h").1[0].level, Level::Unknown);
        assert!(unit(&root.join("none"), "h").0.is_none());
        // What cannot be started.
        let path = root.join("etc/systemd/system/kubelet.service");
        fs::write(&path, "[Service]\n").unwrap();
        let (_, problems) = unit(root, "h");
        assert_eq!(problems[0].level, Level::Error);
        assert!(problems[0].message.ends_with("no ExecStart="), "{problems:?}");
        fs::remove_file(&path).unwrap();
        symlink("/dev/null", &path).unwrap();
        let (_, problems) = unit(root, "h");
        assert_eq!(problems[0].level, Level::Error);
        assert!(problems[0].message.contains("masked"), "{problems:?}");
        fs::remove_file(&path).unwrap();
        fs::write(&path, vec![b'x'; MAX_UNIT]).unwrap();
        assert_eq!(unit(root, "h").1[0].level, Level::Unknown);
    }
}
