#!/usr/bin/env python3
"""Compares the cgroups that two kubelets make for the same pods.

Runs this kubelet and the Go kubelet (hack/build-kubernetes.sh --kubelet) one after the other, each with a private
containerd and a cgroup root of its own, gives them the same static pods, prints the tree of cgroups with its values
and what differs, and ends with 1 if something does. Needs root. With --vm it does so in a virtual machine with cgroup
v2 (hack/vm.sh), and only there with the driver systemd, whose slices have one place for all.
"""

import argparse
import contextlib
import difflib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

REPO = pathlib.Path(__file__).resolve().parent.parent
ROOT = pathlib.Path("/sys/fs/cgroup")
FILES = {
    "cpu.shares", "cpu.cfs_quota_us", "cpu.cfs_period_us", "cpuset.cpus", "cpuset.mems", "memory.limit_in_bytes",
    "memory.memsw.limit_in_bytes", "memory.soft_limit_in_bytes", "pids.max", "cpu.weight", "cpu.max", "memory.max",
    "memory.min", "memory.low", "memory.high", "memory.swap.max", "cgroup.subtree_control",
}
HUGE_PAGES = re.compile(r"hugetlb\..*\.(max|limit_in_bytes)")
POD = """
apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: default}}
spec:
"""
CONTAINER = """
  - name: {name}
    image: localhost/busybox:dev
    command: [{command}]
    resources: {resources}
"""
# All of them together fit on two CPUs.
PODS = {
    "guaranteed": ['{requests: {cpu: 100m, memory: 32Mi}, limits: {cpu: 100m, memory: 32Mi}}'],
    "guaranteed-two": ['{limits: {cpu: 500m, memory: 32Mi}}', '{limits: {cpu: 5m, memory: 16Mi}}'],
    "burstable": ['{requests: {cpu: 50m}, limits: {cpu: 200m, memory: 64Mi}}'],
    "burstable-open": ['{requests: {cpu: 250m, memory: 16Mi}, limits: {memory: 64Mi}}', '{}'],
    "burstable-memory": ['{limits: {memory: 48Mi}}', '{requests: {cpu: 1m}, limits: {cpu: 100m, memory: 16Mi}}'],
    "best-effort": ['{}'],
    "no-request": ['{requests: {cpu: "0"}}'],
    "burstable-least": ['{requests: {cpu: 1m, memory: 1Mi}}'],
}
# Before the others: one that ends, and one that goes on.
INIT = {
    "with-init": ('{limits: {cpu: 200m, memory: 96Mi}}', False, ['{requests: {cpu: 20m}, limits: {memory: 32Mi}}']),
    "with-sidecar": ('{requests: {cpu: 30m}, limits: {cpu: 60m, memory: 24Mi}}', True, ['{limits: {cpu: 50m, memory: 8Mi}}']),
}
CONFIG = """
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
staticPodPath: {dir}/manifests
podLogsDir: {dir}/logs
containerRuntimeEndpoint: {endpoint}
address: 127.0.0.1
port: 10299
readOnlyPort: 10298
healthzPort: 10297
authentication: {{anonymous: {{enabled: true}}, webhook: {{enabled: false}}}}
authorization: {{mode: AlwaysAllow}}
cgroupDriver: {driver}
cgroupRoot: /{root}
failCgroupV1: false
failSwapOn: false
makeIPTablesUtilChains: false
localStorageCapacityIsolation: false
imageGCHighThresholdPercent: 100
evictionHard: {{memory.available: "0%", nodefs.available: "0%", nodefs.inodesFree: "0%", imagefs.available: "0%", imagefs.inodesFree: "0%"}}
podPidsLimit: 321
systemReserved: {{cpu: 100m, memory: 64Mi, pid: "1000"}}
kubeReserved: {{cpu: 50m, memory: 32Mi}}
"""
POD_CGROUP = re.compile(r"[/-]pod[^/]*/$")
SYSCTLS = ["vm.overcommit_memory", "vm.panic_on_oom", "kernel.panic", "kernel.panic_on_oops",
           "kernel.keys.root_maxkeys", "kernel.keys.root_maxbytes"]


def hierarchies():
    if (ROOT / "cgroup.controllers").exists():
        return {"": ROOT}
    return {path.name: path for path in sorted(ROOT.iterdir()) if path.is_dir() and not path.is_symlink()}


def tree(root, names):
    """Lines "hierarchy path file=value", with names in the place of ids."""
    lines = []
    for hierarchy, mount in hierarchies().items():
        top = mount / root / ("kubepods" if root else "kubepods.slice")
        for directory, _, files in sorted(os.walk(top)):
            path = os.path.relpath(directory, mount / root)
            for old, new in names.items():
                # Slices have underscores where names have dashes.
                path = path.replace(old, new).replace(old.replace("-", "_"), new)
            lines.append(f"{hierarchy} {path}/")
            for file in sorted(file for file in files if file in FILES or HUGE_PAGES.fullmatch(file)):
                # It may go while it is read.
                with contextlib.suppress(OSError):
                    value = (pathlib.Path(directory) / file).read_text().strip()
                    lines.append(f"{hierarchy} {path}/{file}={value}")
    return sorted(lines)


def crictl(endpoint, *args):
    found = shutil.which("crictl") or str(REPO / "target/tools/crictl")
    command = [found, "-c", "/dev/null", "-r", endpoint, *args]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def started(endpoint, wanted):
    """Names by id, once all containers run."""
    # Emulated machines are slow.
    deadline = time.monotonic() + 400
    while time.monotonic() < deadline:
        found = json.loads(crictl(endpoint, "ps", "-o", "json"))["containers"]
        if len(found) == wanted:
            break
        time.sleep(0.5)
    else:
        sys.exit(f"{len(found)} of {wanted} containers run")
    names = {}
    for container in found:
        pod = container["labels"]["io.kubernetes.pod.name"]
        names[container["id"]] = f"{pod}:{container['metadata']['name']}"
        names[container["podSandboxId"]] = f"{pod}:sandbox"
        names[container["labels"]["io.kubernetes.pod.uid"]] = f"<{pod}>"
    return names


def huge_pages():
    """Whether the machine has such pages to give."""
    file = pathlib.Path("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages")
    return file.exists() and int(file.read_text()) > 0


def write_manifests(directory):
    """Writes the pods; returns how many containers go on."""
    pods = {name: (None, containers) for name, containers in PODS.items()}
    pods |= {name: ((resources, stays), containers) for name, (resources, stays, containers) in INIT.items()}
    if huge_pages():
        pods["huge-pages"] = (None, ["{limits: {cpu: 100m, memory: 32Mi, hugepages-2Mi: 4Mi}}"])
    wanted = 0
    for name, (first, containers) in pods.items():
        text = POD.format(name=name)
        if first:
            resources, stays = first
            command = 'sleep, "100000"' if stays else '"true"'
            text += "  initContainers:" + CONTAINER.format(name="first", command=command, resources=resources)
            text += "    restartPolicy: Always\n" if stays else ""
            wanted += stays
        text += "  containers:"
        for index, resources in enumerate(containers):
            text += CONTAINER.format(name=f"c{index}", command='sleep, "100000"', resources=resources)
            wanted += 1
        (directory / f"{name}.yaml").write_text(text)
    return wanted


def run(label, program, driver):
    work = pathlib.Path(tempfile.mkdtemp(prefix="cgroup-golden."))
    script = str(REPO / "hack/containerd.sh")
    kubelet = None
    try:
        environment = {**os.environ, "CGROUP_DRIVER": driver}
        subprocess.run([script, "start", work, str(os.getpid())], check=True, stdout=subprocess.DEVNULL, env=environment)
        endpoint = subprocess.run([script, "endpoint", work], check=True, capture_output=True, text=True).stdout.strip()
        root = "" if driver == "systemd" else endpoint.split("/")[-2]
        directory = work / "kubelet"
        for name in ["manifests", "logs", "root"]:
            (directory / name).mkdir(parents=True)
        (directory / "config.yaml").write_text(CONFIG.format(dir=directory, endpoint=endpoint, root=root, driver=driver))
        wanted = write_manifests(directory / "manifests")
        command = [program, "--config", directory / "config.yaml", "--root-dir", directory / "root",
                   "--hostname-override", "node1", "--node-ip", "127.0.0.1", "--cert-dir", directory / "pki"]
        log = open(directory / "kubelet.log", "w")
        kubelet = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            names = started(endpoint, wanted)
        except SystemExit:
            print((directory / "kubelet.log").read_text()[-4000:])
            raise
        # The first update of the classes' limits after the last pod.
        time.sleep(2)
        lines = tree(root, names)
        for manifest in (directory / "manifests").iterdir():
            manifest.unlink()
        deadline = time.monotonic() + 90
        while any(POD_CGROUP.search(line) for line in tree(root, {})) and time.monotonic() < deadline:
            time.sleep(0.5)
        left = [line for line in tree(root, names) if POD_CGROUP.search(line)]
        print(f"# {label}: {len(lines)} lines, {len(left)} cgroups of pods left after their removal")
        return lines
    finally:
        if kubelet:
            kubelet.kill()
            kubelet.wait()
        subprocess.run([script, "stop", work], check=False, stdout=subprocess.DEVNULL)
        shutil.rmtree(work, ignore_errors=True)


def in_machine(arguments):
    """Runs this script in a virtual machine, with the programs and images that it needs."""
    stage = pathlib.Path(tempfile.mkdtemp(prefix="cgroup-golden."))
    try:
        images = (REPO / "target/images").glob("*.tar")
        for name in ["hack", "target/tools/crictl", *(image.relative_to(REPO) for image in images)]:
            (stage / name).parent.mkdir(parents=True, exist_ok=True)
            (stage / name).symlink_to(REPO / name)
        for name, program in [("kubelet", arguments.kubelet), ("go-kubelet", arguments.go_kubelet)]:
            (stage / name).symlink_to(pathlib.Path(program).resolve())
        command = f"python3 hack/cgroup-golden.py --kubelet ./kubelet --go-kubelet ./go-kubelet --driver {arguments.driver}"
        return subprocess.run([REPO / "hack/vm.sh", "run", "--append", "hugepages=16", stage, "--", command], check=False).returncode
    finally:
        shutil.rmtree(stage)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kubelet", default=REPO / "target/debug/kubelet")
    parser.add_argument("--go-kubelet", default=REPO / "target/tools/kubernetes/kubelet")
    parser.add_argument("--driver", choices=["cgroupfs", "systemd"], default="cgroupfs")
    parser.add_argument("--vm", action="store_true", help="in a virtual machine with cgroup v2")
    arguments = parser.parse_args()
    if arguments.vm:
        return in_machine(arguments)
    saved = [subprocess.run(["sysctl", "-n", name], capture_output=True, text=True).stdout.strip() for name in SYSCTLS]
    try:
        go = run("the Go kubelet", arguments.go_kubelet, arguments.driver)
    finally:
        for name, value in zip(SYSCTLS, saved):
            subprocess.run(["sysctl", "-q", "-w", f"{name}={value}"], check=False)
    ours = run("this kubelet", arguments.kubelet, arguments.driver)
    print(*ours, sep="\n")
    difference = list(difflib.unified_diff(go, ours, "Go", "this", lineterm="", n=0))
    print(*(difference or ["# no difference"]), sep="\n")
    return 1 if difference else 0


if __name__ == "__main__":
    sys.exit(main())
