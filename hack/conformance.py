#!/usr/bin/env python3
"""Runs Kubernetes' own node test suite (e2e_node.test) unchanged against a kubelet, on a node in namespaces of its
own, and writes spec by spec what passed into docs/conformance.md. With --storage these are the specs of CSI volumes of
the test suite of clusters (e2e.test).

The programs are those of hack/build-kubernetes.sh --e2e --kubelet, and --control-plane --storage --e2e-storage. What the suite does with systemd goes to
hack/units.sh. With --vm the node is a virtual machine (hack/vm.sh) with cgroup v2, systemd, swap, many CPUs and two NUMA
nodes, which software emulates: some ten times slower. A spec that this run did not choose keeps its line.
"""

import argparse
import contextlib
import glob
import itertools
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time

import csi_driver

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TARGET = os.path.abspath(os.environ.get("CARGO_TARGET_DIR", ROOT + "/target"))
PROGRAMS = TARGET + "/tools/kubernetes"
# Where the suite's images come from, and where this machine's stand-ins for them are served; 5000 is the suite's.
REGISTRY = "registry.k8s.io"
PORT = 5001
DOCUMENT = ROOT + "/docs/conformance.md"
HEAD = "| spec | result | seconds | kubelet | because |\n|---|---|---|---|---|\n"
STORAGE_HEAD = "| spec | result | seconds | Go kubelet | seconds | because |\n|---|---|---|---|---|---|\n"
# The results of a spec that are no failure.
FINE = ("passed", "skipped")
# What upstream's jobs give a node; the rest is for a machine that may lack cgroup v2 and disk space.
CONFIG = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "cgroupDriver": "cgroupfs",
    "cgroupRoot": "/",
    "podCIDR": "10.89.0.0/24",
    "failSwapOn": False,
    "failCgroupV1": False,
    "fileCheckFrequency": "10s",
    "volumeStatsAggPeriod": "10s",
    "serializeImagePulls": False,
    "evictionPressureTransitionPeriod": "30s",
    "imageGCHighThresholdPercent": 100,
    "evictionHard": {"memory.available": "250Mi", "nodefs.available": "1%", "nodefs.inodesFree": "1%"},
    "volumePluginDir": "/var/lib/kubelet/volumeplugins",
}
# What --storage runs: the suites of a driver from outside, which is that of tests/cluster, and those of a driver that the
# suite brings along. Left out is what this kubelet leaves to others or what no driver here can do.
STORAGE_FOCUS = r"External.Storage|CSI.Mock"
STORAGE_SKIP = r"[Ss]napshot|VolumeAttributesClass|SELinux|any volume data source|Disruptive|Windows|OffByDefault"
# What the driver can do. `tests/cluster/csi_driver.rs` says the same to the kubelet and to the sidecars.
TEST_DRIVER = {
    "ShortName": "tests",
    "StorageClass": {"FromExistingClassName": "tests"},
    "InlineVolumes": [{"Attributes": {}}],
    "ClientNodeName": "node1",
    "DriverInfo": {
        "Name": csi_driver.NAME,
        "SupportedSizeRange": {"Min": "16Mi"},
        "MaxFileSize": 1 << 20,
        "RequiredAccessModes": ["ReadWriteOnce"],
        "TopologyKeys": ["example.com/zone"],
        "Capabilities": {
            "persistence": True,
            "exec": True,
            "fsGroup": True,
            "multipods": True,
            "multiplePVsSameID": True,
            "RWX": True,
            "capReadOnlyMany": True,
            "readWriteOncePod": True,
            "topology": True,
            "singleNodeVolume": True,
            "volumeLimits": True,
            "block": True,
            "controllerExpansion": True,
            "nodeExpansion": True,
        },
    },
}
STORAGE_OBJECTS = [
    {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "CSIDriver",
        "metadata": {"name": csi_driver.NAME},
        "spec": {
            "attachRequired": True,
            "podInfoOnMount": True,
            "fsGroupPolicy": "File",
            "volumeLifecycleModes": ["Persistent", "Ephemeral"],
        },
    },
    {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": "tests"},
        "provisioner": csi_driver.NAME,
        "allowVolumeExpansion": True,
        "volumeBindingMode": "Immediate",
    },
]
SIDECARS = {
    "csi-provisioner": ["--feature-gates=Topology=true", "--strict-topology"],
    "csi-attacher": ["--retry-interval-max=2s"],
    "csi-resizer": ["--retry-interval-max=2s"],
}
# The machine of --vm: SMT, and the four cores a socket and eight CPUs for pods that specs want.
MACHINE = "--cpus 16,sockets=2,cores=4,threads=2 --numa 2 --memory 6144"
SWAP = "fallocate -l 512M /swap && chmod 600 /swap && mkswap -q /swap && swapon /swap"
RUNTIME_UNIT = """
[Service]
Type=notify
Environment=PATH={path}
ExecStart={program} --config {directory}/config.toml
ExecStartPost=/bin/sh -c 'echo $MAINPID >{directory}/daemon.pid'
Delegate=yes
KillMode=process
OOMScoreAdjust=-999
LimitNOFILE=infinity
"""
# What the machine needs beyond the time of the specs, in seconds, for its start and for the end of an interrupted suite.
MACHINE_SECONDS = 900


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kubelet", default=os.environ.get("KUBELET"), help="the kubelet (default: $KUBELET, or this one is built)")
    parser.add_argument("--label-filter", default="NodeConformance && !Serial && !Slow && !Flaky")
    parser.add_argument("--storage", action="store_true", help="the specs of CSI volumes, in a cluster of one node")
    parser.add_argument("--focus", default="", help="regular expression on the whole name of a spec")
    parser.add_argument("--skip", default="", help="the same, of specs to leave out")
    parser.add_argument("--procs", type=int, default=4, help="specs at a time; 1 for Serial ones")
    parser.add_argument("--timeout", default="2h", help="of the whole run, as 90m; what was not run by then is left out")
    parser.add_argument("--cri-proxy", action="store_true", help="the suite sits between the kubelet and the runtime (Feature:CriProxy)")
    parser.add_argument("--standalone", action="store_true", help="the kubelet gets no API server")
    parser.add_argument("--feature-gates", default="", help="of the suite, the API server and the kubelet, as NAME=true,…")
    parser.add_argument("--disk", type=int, metavar="GIB", help="a file system of its own for the node, which specs fill (Feature:Eviction)")
    parser.add_argument("--vm", nargs="?", const=MACHINE, metavar="OPTIONS", help=f"in a virtual machine, with options of hack/vm.sh ({MACHINE})")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--output", default=TARGET + "/conformance", help="directory for logs and ginkgo's report.json")
    parser.add_argument("--document", default=DOCUMENT)
    chosen = parser.parse_args()
    if chosen.storage:
        chosen.label_filter = ""
        chosen.focus = chosen.focus or STORAGE_FOCUS
        chosen.skip = chosen.skip or STORAGE_SKIP
    return chosen


def script(name, *arguments, **more):
    return subprocess.run([f"{ROOT}/hack/{name}", *arguments], check=True, **more)


class Node:
    """Namespaces with a container runtime, and the stand-in for systemd on PATH."""

    images = TARGET + "/images/e2e"
    start_script = "namespaces.sh"

    def __init__(self, directory, kubelet):
        self.directory = directory
        self.home = directory + "/private/e2e"
        self.kubelet = kubelet

    def __enter__(self):
        script(self.start_script, "start", self.directory, str(os.getpid()))
        try:
            self.prepare()
        except BaseException:
            self.__exit__()
            raise
        return self

    def prepare(self):
        shims = self.home + "/shims"
        os.makedirs(shims)
        for name in ("systemctl", "systemd-run", "sudo"):
            os.symlink(f"{ROOT}/hack/units.sh", f"{shims}/{name}")
        self.path = ":".join(filter(None, [shims, os.environ.get("CONTAINERD_DIR"), os.environ["PATH"]]))
        self.inside("mkdir", "-p", "/run/systemd/system")
        self.start_runtime(CONFIG["cgroupDriver"])

    def start_runtime(self, driver):
        # The suite takes the kubelet from its own directory, and its node's address from the default route.
        os.symlink(self.kubelet, self.home + "/kubelet")
        os.symlink(PROGRAMS + "/e2e_node.test", self.home + "/e2e_node.test")
        self.inside("ip", "route", "add", "default", "via", "10.88.0.254", "dev", "node0")
        settings = {"IMAGES": self.images, "REGISTRIES": self.serve(), "HANDLER": "test-handler", "CDI_DIR": "/var/run/cdi"}
        self.containerd("start", environment={**settings, "CGROUP_DRIVER": driver})
        self.endpoint = self.containerd("endpoint").stdout.strip()
        with open(self.home + "/config.yaml", "w") as file:
            json.dump({**CONFIG, "cgroupDriver": driver}, file)

    def containerd(self, verb, **more):
        return self.inside(f"{ROOT}/hack/containerd.sh", verb, self.home + "/containerd", stdout=subprocess.PIPE, text=True, **more)

    def serve(self):
        """Starts the registry for specs that always pull; ends with the namespaces. Returns containerd's setting."""
        hosts = f"{self.home}/registries/{REGISTRY}"
        os.makedirs(hosts)
        with open(hosts + "/hosts.toml", "w") as file:
            file.write(f'server = "http://127.0.0.1:{PORT}"\n[host."http://127.0.0.1:{PORT}"]\n  capabilities = ["pull", "resolve"]\n')
        self.background(self.home + "/registry.log", sys.executable, f"{ROOT}/hack/registry.py", str(PORT), *glob.glob(self.images + "/e2e-*.tar"))
        return os.path.dirname(hosts)

    def background(self, log, *command):
        """Starts a program that ends with the namespaces."""
        self.inside("sh", "-c", f'"$@" >"{log}" 2>&1 </dev/null &', "sh", "setsid", *command)

    def inside(self, *command, environment=None, check=True, **more):
        variables = {"PATH": self.path, "CARGO_TARGET_DIR": TARGET, **(environment or {})}
        given = [f"{name}={value}" for name, value in variables.items()]
        line = [f"{ROOT}/hack/namespaces.sh", "exec", self.directory, "env", *given, *command]
        return subprocess.run(line, check=check, **more)

    def __exit__(self, *_):
        subprocess.run([f"{ROOT}/hack/namespaces.sh", "stop", self.directory], check=False)


class StorageNode(Node):
    """The node of a cluster, with a CSI driver and what serves it as processes beside the control plane."""

    images = TARGET + "/images/e2e-storage"
    start_script = "control-plane.sh"

    def __init__(self, directory, kubelet, driver, output):
        super().__init__(directory, kubelet)
        self.driver = driver
        self.output = output
        self.admin = directory + "/admin.conf"

    def prepare(self):
        os.makedirs(self.home)
        self.path = ":".join(filter(None, [PROGRAMS, os.environ.get("CONTAINERD_DIR"), os.environ["PATH"]]))
        self.start_runtime(CONFIG["cgroupDriver"])
        # The one Service that pods need: their API server. There is no kube-proxy.
        for chain in ("PREROUTING", "OUTPUT"):
            self.inside("iptables", "-t", "nat", "-A", chain, "-d", "10.96.0.1", "-p", "tcp", "--dport", "443", "-j", "DNAT", "--to", "10.88.0.1:6443")
        self.start_kubelet()
        self.start_driver()
        with open(self.home + "/driver.json", "w") as file:
            json.dump(TEST_DRIVER, file)

    def start_kubelet(self):
        config = {
            **CONFIG,
            "address": "10.88.0.1",
            "authentication": {"anonymous": {"enabled": False}, "webhook": {"enabled": True}, "x509": {"clientCAFile": self.directory + "/pki/ca.crt"}},
            "authorization": {"mode": "Webhook"},
            "clusterDomain": "cluster.local",
            "containerRuntimeEndpoint": self.endpoint,
            "makeIPTablesUtilChains": False,
        }
        with open(self.home + "/kubelet.yaml", "w") as file:
            json.dump(config, file)
        with open(self.home + "/kubelet.conf", "w") as file:
            script("control-plane.sh", "kubeconfig", self.directory, "node1", stdout=file)
        flags = [f"--config={self.home}/kubelet.yaml", f"--kubeconfig={self.home}/kubelet.conf", "--hostname-override=node1", "--node-ip=10.88.0.1"]
        self.background(self.output + "/kubelet.log", self.kubelet, *flags)
        self.wait("create", "node/node1")
        self.wait("condition=Ready", "node/node1")

    def start_driver(self):
        self.kubectl("create", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "List", "items": STORAGE_OBJECTS}))
        self.background(self.output + "/driver.log", *csi_driver.command(self.driver, "--backend", "Tmpfs"))
        for program, flags in SIDECARS.items():
            log = f"{self.output}/{program}.log"
            self.background(log, program, f"--csi-address={csi_driver.BASE}/csi.sock", f"--kubeconfig={self.admin}", "--timeout=60s", *flags)
        self.wait("create", "csinode/node1")
        self.wait(f"jsonpath={{.spec.drivers[0].name}}={csi_driver.NAME}", "csinode/node1")

    def wait(self, condition, what):
        self.kubectl("wait", f"--for={condition}", what, "--timeout=120s")

    def kubectl(self, *words, **more):
        self.inside("kubectl", f"--kubeconfig={self.admin}", *words, text=True, **more)


class Machine(Node):
    """The machine as it is, with systemd and nothing else on it: the one that hack/vm.sh boots."""

    def __enter__(self):
        os.makedirs(self.home + "/shims")
        # root needs no sudo.
        with open(self.home + "/shims/sudo", "w") as file:
            file.write('#!/bin/sh\nexec "$@"\n')
        os.chmod(file.name, 0o755)
        self.path = f"{self.home}/shims:{TARGET}/tools/containerd2:{os.environ['PATH']}"
        self.inside("modprobe", "-a", "bridge", "br_netfilter", "nf_conntrack")
        self.inside("sh", "-c", "ip link add node0 type bridge && ip addr add 10.88.0.1/24 dev node0 && ip link set node0 up")
        self.inside("sh", "-c", SWAP)
        self.start_runtime("systemd")
        # Specs stop it through systemd, and it gives no process of a pod a lower oom_score_adj than it has.
        self.containerd("halt")
        with open("/run/systemd/system/containerd-e2e.service", "w") as file:
            file.write(RUNTIME_UNIT.format(path=self.path, program=TARGET + "/tools/containerd2/containerd", directory=self.home + "/containerd"))
        self.inside("systemctl", "daemon-reload")
        self.inside("systemctl", "start", "containerd-e2e")
        return self

    def inside(self, *command, environment=None, check=True, **more):
        return subprocess.run(command, check=check, env={**os.environ, "PATH": self.path, **(environment or {})}, **more)

    def __exit__(self, *_):
        pass


def run_in_machine(chosen, kubelet):
    """Boots a virtual machine with the programs and images, which runs this script once more; brings its output back."""
    stage = tempfile.mkdtemp(prefix="conformance-", dir="/tmp")
    try:
        tools = [f"tools/kubernetes/{name}" for name in ("e2e_node.test", "ginkgo")]
        for name in (*tools, "tools/containerd2", "tools/crictl", "images/e2e"):
            path = f"{stage}/target/{name}"
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.symlink(f"{TARGET}/{name}", path)
        os.symlink(ROOT + "/hack", stage + "/hack")
        os.symlink(kubelet, stage + "/kubelet")
        words = ["python3", "hack/conformance.py", "--inside", "--kubelet=./kubelet", "--output=out"]
        for name in ("label_filter", "focus", "skip", "procs", "timeout", "feature_gates"):
            words.append(f"--{name.replace('_', '-')}={getattr(chosen, name)}")
        words += [f"--{name.replace('_', '-')}" for name in ("standalone", "cri_proxy") if getattr(chosen, name)]
        numbers = re.findall(r"(\d+)([hms])", chosen.timeout)
        seconds = sum(int(number) * {"h": 3600, "m": 60, "s": 1}[unit] for number, unit in numbers) + MACHINE_SECONDS
        machine = ["run", *shlex.split(chosen.vm), "--timeout", str(seconds), "--out", chosen.output, stage, "--", shlex.join(words)]
        with open(chosen.output + "/machine.log", "w") as log:
            subprocess.run([ROOT + "/hack/vm.sh", *machine], check=False, stdout=log, stderr=log)
    finally:
        shutil.rmtree(stage)


@contextlib.contextmanager
def node_directory(gib):
    """An empty directory, if wanted on a file system of its own."""
    directory = tempfile.mkdtemp(prefix="conformance-", dir="/tmp")
    # Containers with a user namespace have to reach their files.
    os.chmod(directory, 0o711)
    disk = directory + ".ext4"
    try:
        if gib:
            with open(disk, "w") as file:
                file.truncate(gib << 30)
            subprocess.run(["mke2fs", "-q", "-t", "ext4", "-m", "0", disk], check=True)
            subprocess.run(["mount", "-o", "loop,discard", disk, directory], check=True)
        yield directory
    finally:
        if os.path.ismount(directory):
            subprocess.run(["umount", directory], check=False)
        shutil.rmtree(directory, ignore_errors=True)
        if os.path.exists(disk):
            os.unlink(disk)


def run_suite(node, chosen):
    """Runs the suite; ginkgo writes report.json. The exit code says only that a spec failed."""
    artifacts = chosen.output + "/artifacts"
    os.makedirs(artifacts, exist_ok=True)
    ginkgo = [
        PROGRAMS + "/ginkgo", f"--procs={chosen.procs}", f"--timeout={chosen.timeout}", "--no-color", "--silence-skips", "-v",
        "--json-report=report.json", f"--output-dir={chosen.output}", f"--label-filter={chosen.label_filter}",
    ]
    ginkgo += [f"--{word}={value}" for word, value in (("focus", chosen.focus), ("skip", chosen.skip)) if value]
    program = node.home + "/e2e_node.test"
    suite = [
        "--prepull-images=false", "--node-name=node1", f"--container-runtime-endpoint={node.endpoint}",
        f"--kubelet-config-file={node.home}/config.yaml", f"--report-dir={artifacts}",
        "--container-runtime-process-name=containerd", f"--container-runtime-pid-file={node.home}/containerd/daemon.pid",
    ]
    if chosen.standalone:
        suite.append("--standalone-mode")
    if chosen.feature_gates:
        suite.append(f"--feature-gates={chosen.feature_gates}")
    if chosen.cri_proxy:
        suite.append("--cri-proxy-enabled")
    if chosen.storage:
        program = PROGRAMS + "/e2e.test"
        suite = [
            "--provider=skeleton", f"--kubeconfig={node.admin}", f"--kubectl-path={PROGRAMS}/kubectl",
            f"--storage.testdriver={node.home}/driver.json", f"--report-dir={artifacts}", "--disable-log-dump",
        ]
    with open(chosen.output + "/run.log", "w") as log:
        line = ["sh", "-c", 'cd "$0" && exec "$@"', node.home, *ginkgo, program, "--", *suite]
        node.inside(*line, check=False, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    if chosen.storage:
        node.inside("cp", csi_driver.JOURNAL, chosen.output, check=False)
    node.inside("cp", "-rL", "/run/units", chosen.output, check=False, stderr=subprocess.DEVNULL)


def results(report):
    """Name of each spec that was run -> (state, seconds, message of the failure)."""
    found = {}
    with open(report) as file:
        specs = [spec for suite in json.load(file) for spec in suite["SpecReports"] or []]
    for spec in specs:
        if spec["LeafNodeType"] != "It" or (spec["State"] == "skipped" and not spec.get("NumAttempts")):
            continue
        name = " ".join(filter(None, [*(spec.get("ContainerHierarchyTexts") or []), spec["LeafNodeText"]]))
        message = (spec.get("Failure") or {}).get("Message", "").strip()
        found[name] = (spec["State"], round(spec["RunTime"] / 1e9), message)
    return found


def first_line(text):
    return text.partition("\n")[0]


def cell(text):
    return text.replace("|", "\\|").replace("\n", " ")


def read_document(path, head):
    """The text before the table, the rows of earlier runs (name of a spec -> its other cells), and the text after it."""
    if not os.path.exists(path):
        return "# Conformance\n\n", {}, ""
    with open(path) as file:
        text, _, table = file.read().partition(head)
    lines = table.splitlines(keepends=True)
    rows = list(itertools.takewhile(lambda line: line.startswith("| "), lines))
    cells = [row[2:].removesuffix(" |\n").split(" | ") for row in rows]
    return text, {name: rest for name, *rest in cells}, "".join(lines[len(rows):])


def write(path, found, version, storage):
    """Adds what was found to its table of the document; people write the text before the line with the counts."""
    head = STORAGE_HEAD if storage else HEAD
    text, rows, rest = read_document(path, head)
    for name, (state, seconds, message) in found.items():
        before = rows.get(cell(name), [""] * 5)
        because = cell(first_line(message))[:200]
        if not storage:
            # It passed on a machine that has what this one lacks.
            if state != "skipped" or before[0] != "passed":
                rows[cell(name)] = [state, str(seconds), version, because]
        # Ours names the version of Kubernetes and its own.
        elif "+" in version:
            rows[cell(name)] = [state, str(seconds), *before[2:4], because]
        else:
            rows[cell(name)] = [*before[:2], state, str(seconds), before[4] if before[0] else because]
    counts = f"{count(cells[0] for cells in rows.values())}"
    if storage:
        counts += f"; with the Go kubelet {count(cells[2] for cells in rows.values())}"
    text = re.sub(r"Specs: .*\n\n$", "", text)
    # What did not pass comes first.
    order = sorted(rows, key=lambda name: (rows[name][0] == "passed", name))
    with open(path + ".new", "w") as file:
        file.write(f"{text}Specs: {counts}.\n\n{head}" + "".join(f"| {' | '.join([name, *rows[name]])} |\n" for name in order) + rest)
    os.rename(path + ".new", path)
    return counts


def count(states):
    states = [state or "not run" for state in states]
    return ", ".join(f"{states.count(state)} {state}" for state in sorted(set(states)))


def main():
    chosen = options()
    # As Ctrl-C: the node is taken down.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if os.geteuid() != 0:
        sys.exit("root is needed: containers, mounts and network namespaces do")
    if chosen.inside:
        chosen.output = os.path.abspath(chosen.output)
        # If the machine does not come to its end, this is all that comes out of it.
        subprocess.Popen(["tail", "-n", "+1", "-F", chosen.output + "/run.log"], stderr=subprocess.DEVNULL)
        with Machine(tempfile.mkdtemp(dir="/var/lib"), os.path.abspath(chosen.kubelet)) as node:
            run_suite(node, chosen)
        return
    script("install-deps.sh", "--suite")
    if chosen.storage:
        script("build-kubernetes.sh", "--control-plane", "--storage", "--e2e", "--e2e-storage")
        script("build-images.sh", "--e2e-storage", StorageNode.images)
        driver = csi_driver.build()
    else:
        script("build-kubernetes.sh", "--e2e")
        script("build-images.sh", "--e2e", Node.images)
    if chosen.vm:
        script("build-containerd.sh")
    if not chosen.kubelet:
        subprocess.run(["cargo", "build", "--release", "--bin", "kubelet"], cwd=ROOT, check=True)
        chosen.kubelet = TARGET + "/release/kubelet"
    kubelet = os.path.abspath(chosen.kubelet)
    printed = subprocess.run([kubelet, "--version"], check=True, capture_output=True, text=True).stdout
    version = printed.split()[-1]
    shutil.rmtree(chosen.output, ignore_errors=True)
    os.makedirs(chosen.output)
    chosen.output = os.path.abspath(chosen.output)
    began = time.monotonic()
    try:
        if chosen.vm:
            version += " (vm)"
            run_in_machine(chosen, kubelet)
        else:
            with node_directory(chosen.disk) as directory:
                with StorageNode(directory, kubelet, driver, chosen.output) if chosen.storage else Node(directory, kubelet) as node:
                    run_suite(node, chosen)
    except KeyboardInterrupt:
        sys.exit("interrupted")
    report = chosen.output + "/report.json"
    if not os.path.exists(report):
        sys.exit(f"the suite did not run; see {chosen.output}/run.log")
    found = results(report)
    # What failed comes last and with its whole message: of a long log, often only the end is kept.
    for name, (state, seconds, message) in sorted(found.items(), key=lambda spec: (spec[1][0] not in FINE, spec[0])):
        shown = first_line(message)[:200] if state in FINE else message[:4000]
        print(f"{state:8} {seconds:5} s  {name}" + (textwrap.indent("\n" + shown, "    ") if shown else ""))
    print(f"{len(found)} specs in {time.monotonic() - began:.0f} s; logs are in {chosen.output}")
    if not found:
        sys.exit("no spec was run")
    print(write(chosen.document, found, version, chosen.storage), "in", chosen.document)
    if any(state not in FINE for state, _, _ in found.values()):
        sys.exit(1)


main()
