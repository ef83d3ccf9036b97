#!/usr/bin/env python3
"""Compares the cgroups that two kubelets make for the same pods.

Runs this kubelet and the Go kubelet (hack/build-kubernetes.sh --kubelet) one after the other, each with a private
containerd and a cgroup root of its own, gives them the same static pods, prints the tree of cgroups with its values
and what differs, and ends with 1 if something does. Needs root. With --vm it does so in a virtual machine with cgroup
v2 (hack/vm.sh), and only there with the driver systemd, whose slices have one place for all, and with swap and
exclusive CPUs.

With --takeover, the Go kubelet then makes the pods once more, this one takes the node over, and the Go one has it back:
every container must go on, with the values that it had.
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
    "burstable-cpu": ['{requests: {cpu: 3m}, limits: {cpu: 15m}}'],
    "burstable-three": ['{}', '{limits: {cpu: 20m}}', '{requests: {memory: 8Mi}}'],
}
# Resources of the pod, and those of its containers.
POD_LEVEL = {
    "level-guaranteed": ('{limits: {cpu: 100m, memory: 64Mi}}', ['{}', '{limits: {cpu: 20m, memory: 16Mi}}']),
    "level-burstable": ('{requests: {cpu: 30m, memory: 16Mi}, limits: {cpu: 300m, memory: 64Mi}}', ['{}']),
    "level-requests": ('{requests: {cpu: 40m, memory: 24Mi}}', ['{requests: {memory: 16Mi}, limits: {memory: 32Mi}}', '{}']),
    "level-memory": ('{limits: {memory: 48Mi}}', ['{requests: {cpu: 10m}}']),
}
# With static policies of the CPU and memory managers, one after the other: who comes first has the first CPUs.
EXCLUSIVE = {
    "exclusive": ['{limits: {cpu: "1", memory: 32Mi}}'],
    "exclusive-two": ['{limits: {cpu: "2", memory: 64Mi}}', '{limits: {cpu: 100m, memory: 16Mi}}'],
    "exclusive-last": ['{limits: {cpu: "1", memory: 16Mi}}', '{limits: {cpu: "1", memory: 16Mi}}'],
}
MANAGERS = """
cpuManagerPolicy: static
memoryManagerPolicy: Static
topologyManagerPolicy: best-effort
reservedMemory: [{numaNode: 0, limits: {memory: 96Mi}}]
"""
SWAP = """
memorySwap: {swapBehavior: LimitedSwap}
"""
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
# Seconds until the values of the classes follow the pods; after a start the Go kubelet takes a minute for that. With
# managers it gives shared CPUs to containers every ten seconds, and an emulated machine is slow at it.
SETTLED = 2
SETTLED_WITH_MANAGERS = 30
TAKEN_OVER = 70
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
    command = [found, "-c", "/dev/null", "-t", "60s", "-r", endpoint, *args]
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


def manifest(name, whole, first, containers):
    """The text of a pod, and how many of its containers go on."""
    text = POD.format(name=name)
    text += f"  resources: {whole}\n" if whole else ""
    stays = False
    if first:
        resources, stays = first
        command = 'sleep, "100000"' if stays else '"true"'
        text += "  initContainers:" + CONTAINER.format(name="first", command=command, resources=resources)
        text += "    restartPolicy: Always\n" if stays else ""
    text += "  containers:"
    for index, resources in enumerate(containers):
        text += CONTAINER.format(name=f"c{index}", command='sleep, "100000"', resources=resources)
    return text, len(containers) + stays


def pods(managers):
    """Groups of pods that are added together, each as name, resources of the pod, (resources, whether it stays) of the
    init container, resources of the containers."""
    together = [(name, None, None, containers) for name, containers in PODS.items()]
    together += [(name, whole, None, containers) for name, (whole, containers) in POD_LEVEL.items()]
    together += [(name, None, (resources, stays), containers) for name, (resources, stays, containers) in INIT.items()]
    if huge_pages():
        together.append(("huge-pages", None, None, ["{limits: {cpu: 100m, memory: 32Mi, hugepages-2Mi: 4Mi}}"]))
    return [together, *([(name, None, None, containers)] for name, containers in EXCLUSIVE.items() if managers)]


class Node:
    """A directory with a private containerd, for one kubelet after the other."""

    def __init__(self, arguments):
        self.arguments = arguments
        self.kubelet = None
        self.wanted = 0

    def __enter__(self):
        self.work = pathlib.Path(tempfile.mkdtemp(prefix="cgroup-golden."))
        self.directory = self.work / "kubelet"
        driver = self.arguments.driver
        environment = {**os.environ, "CGROUP_DRIVER": driver}
        self.containerd("start", str(os.getpid()), env=environment)
        self.endpoint = self.containerd("endpoint").strip()
        self.root = "" if driver == "systemd" else self.endpoint.split("/")[-2]
        for name in ["manifests", "logs", "root"]:
            (self.directory / name).mkdir(parents=True)
        text = CONFIG.format(dir=self.directory, endpoint=self.endpoint, root=self.root, driver=driver)
        text += (MANAGERS if self.arguments.managers else "") + (SWAP if self.arguments.swap else "")
        (self.directory / "config.yaml").write_text(text)
        return self

    def containerd(self, verb, *args, **options):
        command = [str(REPO / "hack/containerd.sh"), verb, self.work, *args]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, **options).stdout

    def start(self, program):
        command = [program, "--config", self.directory / "config.yaml", "--root-dir", self.directory / "root",
                   "--hostname-override", "node1", "--node-ip", "127.0.0.1", "--cert-dir", self.directory / "pki"]
        log = open(self.directory / "kubelet.log", "a")
        self.kubelet = subprocess.Popen(command, stdout=log, stderr=log)

    def stop(self):
        if self.kubelet:
            self.kubelet.kill()
            self.kubelet.wait()
            self.kubelet = None

    def add_pods(self):
        for group in pods(self.arguments.managers):
            for name, *resources in group:
                text, stay = manifest(name, *resources)
                (self.directory / "manifests" / f"{name}.yaml").write_text(text)
                self.wanted += stay
            self.names = self.started()

    def started(self):
        try:
            return started(self.endpoint, self.wanted)
        except SystemExit:
            print((self.directory / "kubelet.log").read_text()[-4000:])
            raise

    def values(self):
        return tree(self.root, self.names) + self.states()

    def states(self):
        """What the managers have given, with names in the place of UIDs. Without managers the Go kubelet writes that."""
        lines = []
        for file in ["cpu_manager_state", "memory_manager_state"] if self.arguments.managers else []:
            with contextlib.suppress(FileNotFoundError):
                state = json.loads((self.directory / "root" / file).read_text())
                state.pop("checksum")
                text = json.dumps(state)
                for old, new in self.names.items():
                    text = text.replace(old, new)
                text = json.dumps(json.loads(text), sort_keys=True, indent=1)
                lines += [f"{file} {line}" for line in text.splitlines()]
        return lines

    def remove_pods(self):
        """Returns the cgroups of pods that stay."""
        for file in (self.directory / "manifests").iterdir():
            file.unlink()
        deadline = time.monotonic() + 90
        while any(POD_CGROUP.search(line) for line in tree(self.root, {})) and time.monotonic() < deadline:
            time.sleep(0.5)
        return [line for line in tree(self.root, self.names) if POD_CGROUP.search(line)]

    def __exit__(self, *_):
        self.stop()
        with contextlib.suppress(subprocess.CalledProcessError):
            self.containerd("stop")
        shutil.rmtree(self.work, ignore_errors=True)


def run(label, program, arguments):
    with Node(arguments) as node:
        node.start(program)
        node.add_pods()
        # The first update of the classes' limits after the last pod.
        time.sleep(SETTLED_WITH_MANAGERS if arguments.managers else SETTLED)
        lines = node.values()
        left = node.remove_pods()
        print(f"# {label}: {len(lines)} lines, {len(left)} cgroups of pods left after their removal")
        return lines


def take_over(arguments):
    """Both ways on one node; returns what differs from what the Go kubelet made."""
    difference = []
    with Node(arguments) as node:
        node.start(arguments.go_kubelet)
        node.add_pods()
        time.sleep(SETTLED_WITH_MANAGERS if arguments.managers else SETTLED)
        before, containers = node.values(), set(node.names)
        print(*before, sep="\n")
        for label, program in [("this kubelet", arguments.kubelet), ("the Go kubelet again", arguments.go_kubelet)]:
            node.stop()
            node.start(program)
            time.sleep(TAKEN_OVER)
            now = node.started()
            for id in sorted(containers ^ set(now)):
                difference.append(f"{label}: {node.names.get(id) or now[id]} is {'new' if id in now else 'gone'}")
            after = node.values()
            difference += difflib.unified_diff(before, after, "before", label, lineterm="", n=0)
            print(f"# {label}: {len(after)} lines, {len(containers & set(now))} of {len(containers)} ids as before")
    return difference


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
        command = f"python3 -u hack/cgroup-golden.py --kubelet ./kubelet --go-kubelet ./go-kubelet --driver {arguments.driver}"
        command += "".join(f" --{name}" for name in ["managers", "swap", "takeover"] if getattr(arguments, name))
        if arguments.swap:
            command = f"fallocate -l 512M /swap && chmod 600 /swap && mkswap /swap && swapon /swap && {command}"
        machine = ["--append", "hugepages=16"]
        machine += ["--cpus", "8,sockets=2,cores=2,threads=2"] if arguments.managers else []
        machine += ["--cgroup-v1"] if arguments.cgroup_v1 else []
        return subprocess.run([REPO / "hack/vm.sh", "run", "--timeout", "2400", *machine, stage, "--", command], check=False).returncode
    finally:
        shutil.rmtree(stage)


@contextlib.contextmanager
def sysctls_kept():
    """The Go kubelet changes some of the machine's."""
    saved = [subprocess.run(["sysctl", "-n", name], capture_output=True, text=True).stdout.strip() for name in SYSCTLS]
    try:
        yield
    finally:
        for name, value in zip(SYSCTLS, saved):
            subprocess.run(["sysctl", "-q", "-w", f"{name}={value}"], check=False)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kubelet", default=REPO / "target/debug/kubelet")
    parser.add_argument("--go-kubelet", default=REPO / "target/tools/kubernetes/kubelet")
    parser.add_argument("--driver", choices=["cgroupfs", "systemd"], default="cgroupfs")
    parser.add_argument("--managers", action="store_true", help="static policies of the CPU and memory managers")
    parser.add_argument("--swap", action="store_true", help="LimitedSwap")
    parser.add_argument("--takeover", action="store_true", help="also one node for both")
    parser.add_argument("--vm", action="store_true", help="in a virtual machine with cgroup v2, eight CPUs and swap")
    parser.add_argument("--cgroup-v1", action="store_true", help="the machine has version 1")
    arguments = parser.parse_args()
    if arguments.vm:
        return in_machine(arguments)
    with sysctls_kept():
        go = run("the Go kubelet", arguments.go_kubelet, arguments)
    ours = run("this kubelet", arguments.kubelet, arguments)
    print(*ours, sep="\n")
    difference = list(difflib.unified_diff(go, ours, "Go", "this", lineterm="", n=0))
    if arguments.takeover:
        with sysctls_kept():
            difference += take_over(arguments)
    print(*(difference or ["# no difference"]), sep="\n")
    return 1 if difference else 0


if __name__ == "__main__":
    sys.exit(main())
