#!/usr/bin/env python3
"""Compares the statistics that two kubelets serve for the same pods.

The Go kubelet (hack/build-kubernetes.sh --kubelet) runs pods of every kind on a private containerd, then this kubelet
takes them over. From each it reads /stats/summary, /metrics/cadvisor and /metrics/resource, and prints what differs:
fields, series and labels that only one of them has, counters that go back, other values of what does not change, and
amounts of pods that are far from each other. Ends with 1 if something differs. Needs root.
"""

import argparse
import importlib.machinery
import importlib.util
import json
import pathlib
import re
import sys
import time
import urllib.error
import urllib.request

REPO = pathlib.Path(__file__).resolve().parent.parent
READ_ONLY = "http://127.0.0.1:10298"
# Seconds until the Go kubelet has read all cgroups twice, for rates; this one reads them when it is asked, and has rates
# from one reading to another that is ten seconds later.
SETTLED, BETWEEN = 35, 12
# What counts up for as long as a container or the machine runs.
COUNTERS = re.compile(r"(usageCoreNanoSeconds|[rt]x(Bytes|Errors)|[pP]ageFaults|psi\..*\.total|_total)$")
# What does not change while nothing else is started.
FIXED = re.compile(r"(startTime|capacityBytes|inodes|\.name|container_spec_.*|container_start_time_seconds|"
                   r"container_threads_max|container_ulimits_soft|machine_cpu_.*|machine_memory_bytes|"
                   r"[pc]o[dn].*_start_time_seconds|(logs|rootfs|ephemeral-storage|volume\[.*)\.(usedBytes|inodesUsed))$")
# Others use the machine, too; and what is now.
OF_THE_MACHINE = re.compile(r'^(node\.|node_|machine_)|id="/"|(^|\.)time$|container_last_seen|nanoCores|NanoCores|avg\d+$')
MEMBERS = re.compile(r"\[[^]]*\]")
# In docs/deviations.md; families of machines that are not made any more; the cgroup above those of pods; and file systems
# that the Go kubelet does not know where it serves no summary.
DOCUMENTED = re.compile(r'^(container_(cpu_load_|file_descriptors|sockets|tasks_state|ulimits_soft|health_state)|'
                        r'machine_(cpu_books|cpu_drawers|nvm_)|container_pressure_.*id="/"|container_fs_.*id="/")|id="/[^/"]*"')
TOLERANCE, LEAST = 0.25, 8 << 20


def cgroup_golden():
    path = REPO / "hack/cgroup-golden.py"
    loader = importlib.machinery.SourceFileLoader("cgroup_golden", str(path))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


def get(path):
    with urllib.request.urlopen(READ_ONLY + path, timeout=30) as answer:
        return answer.read().decode()


def fields(value, path=""):
    """Pairs of a path and a leaf; the members of lists by their names."""
    if isinstance(value, dict):
        for name, member in value.items():
            yield from fields(member, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for member in value:
            name = member.get("podRef", member).get("name", "?")
            yield from fields(member, f"{path}[{name}]")
    else:
        yield path, value


SERIES = re.compile(r'^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)(?: \d+)?$')
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def series(text):
    for line in text.splitlines():
        if found := SERIES.match(line):
            name, labels, value = found.groups()
            labels = ",".join(f'{key}="{text}"' for key, text in sorted(LABEL.findall(labels or "")))
            yield f"{name}{{{labels}}}", float(value)


def read():
    """What each path serves."""
    summary = lambda text: fields(json.loads(text))
    readers = {"/stats/summary": summary, "/metrics/cadvisor": series, "/metrics/resource": series}
    found = {}
    for path, reader in readers.items():
        try:
            found[path] = dict(reader(get(path)))
        except urllib.error.HTTPError as error:
            print(f"# {path}: {error.code} {error.read().decode().strip()}")
    return found


def compare_values(name, go, ours):
    """Why two values of one name differ, if they do."""
    bare = name.split("{")[0]
    if bare.endswith("start_time_seconds"):
        return None if abs(go - ours) <= 1 else "differs"
    if FIXED.search(bare):
        return None if go == ours else "differs"
    if COUNTERS.search(bare):
        return None if go <= ours else "goes back"
    if OF_THE_MACHINE.search(name) or isinstance(go, str):
        return None
    return None if abs(go - ours) <= max(LEAST, TOLERANCE * max(go, ours)) else "is far off"


def compare(go, ours):
    for path, before in go.items():
        after = ours.get(path, {})
        for label, names in [("the Go kubelet", before.keys() - after.keys()), ("this kubelet", after.keys() - before.keys())]:
            groups = {}
            for name in sorted(name for name in names if not DOCUMENTED.search(name)):
                groups.setdefault(MEMBERS.sub("[]", name.split("{")[0]), []).append(name)
            for group, names in groups.items():
                yield f"{path}: only {label} has {len(names)} of {group}, such as {names[0]}"
        for name in sorted(before.keys() & after.keys()):
            if why := compare_values(name, before[name], after[name]):
                yield f"{path}: {name} {why}: {before[name]} before, {after[name]} now"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kubelet", default=REPO / "target/debug/kubelet")
    parser.add_argument("--go-kubelet", default=REPO / "target/tools/kubernetes/kubelet")
    parser.add_argument("--keep", type=pathlib.Path, help="a directory for what both served")
    arguments = parser.parse_args()
    arguments.driver, arguments.managers, arguments.swap = "cgroupfs", False, False
    golden = cgroup_golden()
    # Without it the Go kubelet measures no disks, and has no /stats/summary.
    golden.CONFIG = golden.CONFIG.replace("localStorageCapacityIsolation: false", "localStorageCapacityIsolation: true")
    found = {}
    with golden.sysctls_kept(), golden.Node(arguments) as node:
        # Without the socket it knows no container by its name.
        go = node.work / "go-kubelet"
        socket = node.endpoint.removeprefix("unix://")
        go.write_text(f'#!/bin/sh\nexec {arguments.go_kubelet} --containerd {socket} "$@"\n')
        go.chmod(0o755)
        for label, program in [("go", go), ("this", arguments.kubelet)]:
            node.stop()
            node.start(program)
            if label == "go":
                node.add_pods()
            time.sleep(SETTLED)
            read()
            time.sleep(BETWEEN)
            found[label] = read()
            node.started()
            if arguments.keep:
                arguments.keep.mkdir(parents=True, exist_ok=True)
                (arguments.keep / f"{label}.json").write_text(json.dumps(found[label], indent=1))
    for path, names in found["go"].items():
        print(f"# {path}: {len(names)} of the Go kubelet, {len(found['this'].get(path, {}))} of this one")
    differences = list(compare(found["go"], found["this"]))
    print(*(differences or ["# no difference"]), sep="\n")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
