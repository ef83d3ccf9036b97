#!/usr/bin/env python3
"""Measures kubelets as the only node of a real cluster, alternating, and writes target/bench/cluster.md.

    hack/bench-cluster.py [--rounds N] [--rest SECONDS] [--absence SECONDS] [MODE] NAME=KUBELET...

Each kubelet gets a new control plane and containerd in namespaces of its own, and the same pods. Times are those of a
watch of the API server; memory and processor time are what the kernel counts for the kubelet's process; requests are
those of the audit log. With several rounds a figure is the median of them, for "slowest" the largest. With --pressure,
pods fill the memory of an otherwise empty node, and nothing else is measured. With --volumes, pods have a claim each, which
is bound to a volume of the CSI driver of the tests; a kubelet's own time is then that in which neither that driver nor
containerd works on a call, by the journal and the log of these two.
"""

import argparse
import base64
import calendar
import collections
import concurrent.futures
import http.client
import json
import os
import re
import shutil
import signal
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import csi_driver

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TARGET = os.path.abspath(os.environ.get("CARGO_TARGET_DIR", ROOT + "/target"))
ADDRESS = "10.88.0.1"
NODE = "node1"
IMAGE = "localhost/busybox:dev"
# How long anything may take before the run is given up.
DEADLINE = 600
SINGLE_PODS = 10
UNLIMITED = [("memory", "available"), ("nodefs", "available"), ("nodefs", "inodesFree"), ("imagefs", "available"), ("imagefs", "inodesFree")]
SIZES = (100, 200)
# The driver's flags in programmes of CSI volumes.
VOLUMES = {"volumes": ["--expand", "false"], "expandable-volumes": ["--expand", "true"]}
# Pods with a claim each are created so many at once.
BURSTS = (50, 50)
# What kubelets read for a claim.
CLAIM_OBJECTS = ("persistentvolumeclaims/", "persistentvolumes/", "volumeattachments/", "csidrivers/")
# Wall-clock time, which others log, minus that of the clock here.
EPOCH = time.time() - time.monotonic()
# A pod that fills memory passes the threshold after so many MiB, and stops as many beyond it.
HEADROOM = 2048
FILLS = 3
# The managers of exclusive resources, reservations, evictions and shutdowns, all on.
MANAGERS = {
    "cpuManagerPolicy": "static",
    "reservedSystemCPUs": "0",
    "memoryManagerPolicy": "Static",
    "kubeReserved": {"memory": "256Mi"},
    "reservedMemory": [{"numaNode": 0, "limits": {"memory": "356Mi"}}],
    "topologyManagerPolicy": "best-effort",
    "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%", "nodefs.inodesFree": "1%"},
    "evictionSoft": {"memory.available": "200Mi"},
    "evictionSoftGracePeriod": {"memory.available": "30s"},
    "shutdownGracePeriod": "30s",
    "shutdownGracePeriodCriticalPods": "10s",
}


# -- outside: one cluster per kubelet ---------------------------------------------------------------------------


def script(name, *arguments, **more):
    return subprocess.run([f"{ROOT}/hack/{name}", *arguments], check=True, **more)


def measure(kubelet, driver, chosen):
    """Runs one kubelet through the whole programme, and returns its figures by name."""
    directory = tempfile.mkdtemp(prefix="bench-cluster")
    environment = {**os.environ, "CARGO_TARGET_DIR": TARGET}
    try:
        script("control-plane.sh", "start", directory, str(os.getpid()), env=environment)
        containerd = directory + "/private/containerd"
        inside = ("control-plane.sh", "exec", directory)
        script(*inside, f"{ROOT}/hack/containerd.sh", "start", containerd, env=environment)
        endpoint = script(*inside, f"{ROOT}/hack/containerd.sh", "endpoint", containerd, env=environment, stdout=subprocess.PIPE, text=True)
        with open(directory + "/private/kubelet.conf", "w") as file:
            script("control-plane.sh", "kubeconfig", directory, NODE, env=environment, stdout=file)
        arguments = [directory, kubelet, endpoint.stdout.strip(), str(chosen.rest), str(chosen.absence), chosen.programme, driver]
        printed = script(*inside, sys.executable, os.path.abspath(__file__), "--inside", *arguments, env=environment, stdout=subprocess.PIPE, text=True)
        return json.loads(printed.stdout)
    finally:
        script("control-plane.sh", "stop", directory, env=environment)
        shutil.rmtree(directory)


def report(names, results):
    """A table: a line per figure, a column per kubelet, and of two also the first one's share of the second."""
    columns = names + ["share"] if len(names) == 2 else names
    lines = ["| | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for figure in results[names[0]][0]:
        combine = max if "slowest" in figure else statistics.median
        values = [combine([one[figure] for one in results[name]]) for name in names]
        cells = [f"{value:.4g}" for value in values]
        if len(values) == 2:
            cells.append(f"{values[0] / values[1]:.2g}" if values[1] else "")
        lines.append(f"| {figure} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kubelets", nargs="+", metavar="NAME=KUBELET")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--rest", type=int, default=120, help="seconds over which a node at rest is measured")
    parser.add_argument("--absence", type=int, default=120, help="seconds that the API server is away")
    parser.set_defaults(programme="plain")
    programme = parser.add_mutually_exclusive_group()
    programme.add_argument("--managers", dest="programme", action="store_const", const="managers", help="with static CPU and memory managers, evictions and shutdowns")
    programme.add_argument("--pressure", dest="programme", action="store_const", const="pressure", help="only how soon a pod that fills memory is evicted")
    programme.add_argument("--volumes", dest="programme", action="store_const", const="volumes", help="only pods with CSI volumes; cargo builds the driver")
    programme.add_argument("--expandable-volumes", dest="programme", action="store_const", const="expandable-volumes", help="the same with a driver that expands volumes")
    chosen = parser.parse_args()
    # Whatever stops this script stops its clusters.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    programs = dict(one.split("=", 1) for one in chosen.kubelets)
    driver = csi_driver.build() if chosen.programme in VOLUMES else ""
    results = collections.defaultdict(list)
    for number in range(chosen.rounds):
        for name, program in programs.items():
            print(f"==> round {number + 1}: {name}", file=sys.stderr, flush=True)
            results[name].append(measure(os.path.abspath(program), driver, chosen))
    table = report(list(programs), results)
    path = TARGET + "/bench/cluster.md"
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write(table)
    print(table, end="")


# -- inside: requests to the API server -------------------------------------------------------------------------


class Api:
    """The API server, as its administrator."""

    def __init__(self, directory):
        with open(directory + "/admin.conf") as file:
            words = dict(line.strip().split(": ", 1) for line in file if ": " in line)
        self.tls = ssl.create_default_context(cafile=directory + "/pki/ca.crt")
        certificate = directory + "/private/bench.pem"
        with open(certificate, "wb") as file:
            for name in ("client-certificate-data", "client-key-data"):
                file.write(base64.b64decode(words[name]))
        self.tls.load_cert_chain(certificate)

    def connection(self):
        return http.client.HTTPSConnection(ADDRESS, 6443, context=self.tls, timeout=DEADLINE)

    def call(self, method, path, body=None):
        connection = self.connection()
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        connection.request(method, path, body and json.dumps(body), {"Content-Type": kind})
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        if answer.status >= 300 and answer.status != 404:
            raise RuntimeError(f"{method} {path}: {answer.status} {text[:300]}")
        return json.loads(text)


class Watched:
    """The newest version of each object of a list, and the moment at which this process saw it."""

    def __init__(self, api, path):
        self.api, self.path = api, path
        self.objects = {}
        # When each name came.
        self.seen = {}
        self.changed = threading.Condition()
        threading.Thread(target=self.follow, daemon=True).start()

    def follow(self):
        while True:
            try:
                self.watch_once()
            except (OSError, ValueError, http.client.HTTPException):
                time.sleep(0.01)

    def watch_once(self):
        """A watch without a version begins with what is there."""
        connection = self.api.connection()
        connection.request("GET", self.path + "?watch=true")
        answer = connection.getresponse()
        while line := answer.readline():
            event = json.loads(line)
            name = event["object"].get("metadata", {}).get("name")
            with self.changed:
                if event["type"] == "DELETED":
                    self.objects.pop(name, None)
                elif event["type"] in ("ADDED", "MODIFIED"):
                    self.seen.setdefault(name, time.monotonic())
                    self.objects[name] = event["object"]
                self.changed.notify_all()
        connection.close()

    def wait(self, what, holds):
        """Waits until `holds` of all objects, and returns the moment."""
        with self.changed:
            if not self.changed.wait_for(lambda: holds(self.objects), DEADLINE):
                raise RuntimeError(f"after {DEADLINE} s not seen: {what}")
            return time.monotonic()


def is_ready(thing):
    conditions = thing.get("status", {}).get("conditions", [])
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def spec():
    command = ["sh", "-c", "trap exit TERM; while :; do sleep 1000 & wait; done"]
    return {"terminationGracePeriodSeconds": 1, "containers": [{"name": "main", "image": IMAGE, "imagePullPolicy": "Never", "command": command}]}


# -- inside: the kubelet ----------------------------------------------------------------------------------------


class Kubelet:
    def __init__(self, program, directory, endpoint, more):
        self.directory = directory
        manifests = directory + "/manifests"
        os.makedirs(manifests, exist_ok=True)
        config = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": ADDRESS,
            "authentication": {"anonymous": {"enabled": False}, "webhook": {"enabled": True}, "x509": {"clientCAFile": directory + "/pki/ca.crt"}},
            "authorization": {"mode": "Webhook"},
            "cgroupDriver": "cgroupfs",
            "containerRuntimeEndpoint": endpoint,
            "staticPodPath": manifests,
            "maxPods": SIZES[-1] + SINGLE_PODS + 40,
            "failSwapOn": False,
            "failCgroupV1": False,
            "makeIPTablesUtilChains": False,
            # A machine that is nearly full may not change what is measured.
            "imageGCHighThresholdPercent": 100,
            "evictionHard": {f"{what}.{of}": "0%" for what, of in UNLIMITED},
            **more,
        }
        with open(directory + "/kubelet.json", "w") as file:
            json.dump(config, file)
        flags = ["--config", directory + "/kubelet.json", "--kubeconfig", directory + "/private/kubelet.conf", "--hostname-override", NODE, "--node-ip", ADDRESS]
        with open(directory + "/kubelet.log", "w") as log:
            self.process = subprocess.Popen([program, *flags], stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def processor_seconds(self):
        with open(f"/proc/{self.process.pid}/stat") as file:
            words = file.read().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self):
        """Resident MiB: all, and what belongs to no file."""
        with open(f"/proc/{self.process.pid}/status") as file:
            words = dict(line.split(":", 1) for line in file)
        return [int(words[name].split()[0]) / 1024 for name in ("VmRSS", "RssAnon")]

    def requests(self):
        """The requests of the node that ended so far, a name for each."""
        found = []
        with open(self.directory + "/audit.log") as file:
            for line in file:
                event = json.loads(line)
                if event["stage"] == "ResponseComplete" and event["user"]["username"] == "system:node:" + NODE:
                    reference = event.get("objectRef", {})
                    found.append(f"{event['verb']} {reference.get('resource')}/{reference.get('subresource', '')}")
        return found


def settle():
    """Waits until the last change is over."""
    time.sleep(30)


def rest(kubelet, seconds, pods, figures):
    """Measures a node at rest, and returns its requests a minute by name."""
    requests, used, since = len(kubelet.requests()), kubelet.processor_seconds(), time.monotonic()
    time.sleep(seconds)
    minutes = (time.monotonic() - since) / 60
    figures[f"CPU seconds a minute at rest, {pods} pods"] = (kubelet.processor_seconds() - used) / minutes
    figures[f"resident memory, {pods} pods, MiB"], figures[f"of it anonymous, {pods} pods, MiB"] = kubelet.memory()
    made = kubelet.requests()[requests:]
    figures[f"requests a minute at rest, {pods} pods"] = len(made) / minutes
    print(f"    {pods} pods at rest: {dict(collections.Counter(made))}", file=sys.stderr, flush=True)
    return {name: number / minutes for name, number in collections.Counter(made).items()}


def one_by_one(api, pods, figures):
    """Each pod is created when the last one runs."""
    path = "/api/v1/namespaces/default/pods"
    running, gone = [], []
    for number in range(SINGLE_PODS):
        name = f"single-{number}"
        since = time.monotonic()
        api.call("POST", path, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec()})
        seen = pods.wait(name, lambda all: all.get(name, {}).get("status", {}).get("phase") == "Running")
        running.append((seen - since) * 1000)
    for number in range(SINGLE_PODS):
        name = f"single-{number}"
        since = time.monotonic()
        api.call("DELETE", f"{path}/{name}")
        gone.append((pods.wait(name + " gone", lambda all: name not in all) - since) * 1000)
    figures["create to Running, median, ms"] = statistics.median(running)
    figures["create to Running, slowest, ms"] = max(running)
    figures["delete to gone, median, ms"] = statistics.median(gone)


def scale(api, pods, size, figures):
    """Scales the Deployment and waits until all of its pods are Ready."""
    path = "/apis/apps/v1/namespaces/default/deployments"
    before, since = len(pods.objects), time.monotonic()
    if before == 0:
        template = {"metadata": {"labels": {"app": "many"}}, "spec": spec()}
        body = {"replicas": size, "selector": {"matchLabels": {"app": "many"}}, "template": template}
        api.call("POST", path, {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "many"}, "spec": body})
    else:
        api.call("PATCH", path + "/many", {"spec": {"replicas": size}})
    seen = pods.wait(f"{size} Ready pods", lambda all: sum(map(is_ready, all.values())) == size)
    figures[f"from {before} to {size} Ready pods of a Deployment, s"] = seen - since


def absence(api, pods, nodes, kubelet, endpoint, seconds, figures):
    """What happened while the API server was away, and how soon it shows that."""
    server = int(subprocess.check_output(["pgrep", "-x", "kube-apiserver"]).split()[0])
    requests = len(kubelet.requests())
    os.kill(server, signal.SIGSTOP)
    used, since = kubelet.processor_seconds(), time.monotonic()
    time.sleep(seconds / 2)
    victim = next(iter(pods.objects))
    kill_container(endpoint, victim)
    static_pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "late"}, "spec": spec()}
    with open(kubelet.directory + "/manifests/.late", "w") as file:
        json.dump(static_pod, file)
    os.rename(kubelet.directory + "/manifests/.late", kubelet.directory + "/manifests/late.json")
    time.sleep(seconds / 2)
    figures[f"CPU seconds in {seconds} s without an API server"] = kubelet.processor_seconds() - used
    since = time.monotonic()
    os.kill(server, signal.SIGCONT)
    shown = pods.wait("the restart", lambda all: restarts(all.get(victim)) > 0 and is_ready(all[victim]))
    figures["API server back to: restart of a container shown, s"] = shown - since
    mirror = "late-" + NODE
    figures["API server back to: static pod shown as Running, s"] = pods.wait("the mirror", lambda all: is_ready(all.get(mirror, {}))) - since
    figures["API server back to: node Ready, s"] = nodes.wait("Ready", lambda all: is_ready(all[NODE])) - since
    time.sleep(20)
    print(f"    after the absence: {dict(collections.Counter(kubelet.requests()[requests:]))}", file=sys.stderr, flush=True)
    figures["pods restarted by the absence"] = sum(restarts(pod) for pod in pods.objects.values()) - 1


def available_memory():
    """MiB by which kubelets measure memory.available on cgroup v1: all but what the kernel would keep under pressure."""
    root = "/sys/fs/cgroup/memory/memory."
    with open("/proc/meminfo") as file:
        total = int(file.readline().split()[1]) << 10
    with open(root + "usage_in_bytes") as file:
        used = int(file.read())
    with open(root + "stat") as file:
        inactive = next(int(line.split()[1]) for line in file if line.startswith("total_inactive_file "))
    return (total - max(used - inactive, 0)) >> 20


def pressure(api, nodes, pods, threshold, figures):
    """Pods that write into memory as fast as they can, one after the other; each stops by itself beyond the threshold."""
    def has_pressure(all):
        return any(one["type"] == "MemoryPressure" and one["status"] == "True" for one in all[NODE]["status"]["conditions"])

    path = "/api/v1/namespaces/default/pods"
    script = f"dd if=/dev/zero of=/scratch/file bs=1M count={2 * HEADROOM}; while :; do sleep 1000; done"
    shown, gone, number = [], [], 0
    while len(gone) < FILLS:
        name = f"greedy-{number}"
        number += 1
        greedy = spec()
        greedy["containers"][0].update(command=["sh", "-c", script], volumeMounts=[{"name": "scratch", "mountPath": "/scratch"}])
        greedy["volumes"] = [{"name": "scratch", "emptyDir": {"medium": "Memory"}}]
        api.call("POST", path, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": greedy})
        is_evicted = lambda all: all.get(name, {}).get("status", {}).get("reason") == "Evicted"
        while available_memory() >= threshold and not is_evicted(pods.objects):
            time.sleep(0.001)
        crossed = time.monotonic()
        # A pod that comes while the node still has the last pressure is refused, and fills nothing.
        if not is_evicted(pods.objects):
            shown.append(pods.wait("an eviction", is_evicted) - crossed)
            while available_memory() < threshold:
                time.sleep(0.001)
            gone.append(time.monotonic() - crossed)
        api.call("DELETE", f"{path}/{name}")
        pods.wait(name + " gone", lambda all: name not in all)
        nodes.wait("no pressure", lambda all: not has_pressure(all))
        time.sleep(1)
    figures["threshold crossed to pod shown as Evicted, median, s"] = statistics.median(shown)
    figures["threshold crossed to pod shown as Evicted, slowest, s"] = max(shown)
    figures["threshold crossed to memory free again, median, s"] = statistics.median(gone)
    figures["threshold crossed to memory free again, slowest, s"] = max(gone)


def restarts(pod):
    statuses = (pod or {}).get("status", {}).get("containerStatuses", [])
    return sum(status["restartCount"] for status in statuses)


def kill_container(endpoint, pod):
    own = TARGET + "/tools/crictl"
    crictl = [own if os.path.exists(own) else "crictl", "-r", endpoint]
    sandbox = subprocess.check_output([*crictl, "pods", "--name", pod, "-q"], text=True).split()[0]
    container = subprocess.check_output([*crictl, "ps", "--pod", sandbox, "-q"], text=True).split()[0]
    facts = json.loads(subprocess.check_output([*crictl, "inspect", container]))
    os.kill(facts["info"]["pid"], signal.SIGKILL)


# -- inside: pods with CSI volumes ------------------------------------------------------------------------------


class Driver:
    """The CSI driver, with a volume for each pod that is to come."""

    def __init__(self, program, flags, directory, volumes):
        line = csi_driver.command(program, "--backend", "Bind", "--volumes", str(volumes), *flags)
        with open(directory + "/driver.log", "w") as log:
            self.process = subprocess.Popen(line, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def calls(self):
        """The calls that have ended: method, volume, and when each began and ended."""
        found = []
        with open(csi_driver.JOURNAL) as file:
            # The last line may not be whole.
            for line in file.read().split("\n")[:-1]:
                if line.startswith("violation: ") or not line.endswith(" Ok"):
                    raise RuntimeError(f"the driver refused a call: {line}")
                words = line.split(" ")
                found.append((words[0], words[1], *(int(word) / 1e6 - EPOCH for word in words[-3:-1])))
        return found

    def unstaged(self, volume):
        """Waits until the volume is unstaged, and returns when it was."""
        end = time.monotonic() + DEADLINE
        while time.monotonic() < end:
            for method, handle, _, ended in self.calls():
                if (method, handle) == ("NodeUnstageVolume", volume):
                    return ended
            time.sleep(0.02)
        raise RuntimeError(f"after {DEADLINE} s not seen: {volume} unstaged")


def runtime_calls(directory):
    """When each of containerd's calls that start and stop something began and ended, by its log."""
    began, found = {}, []
    methods = "RunPodSandbox|CreateContainer|StartContainer|StopContainer|StopPodSandbox"
    line = re.compile(rf'time="(.+)\.(\d+)Z" level=\w+ msg="({methods}) (?:for|within sandbox) (\\"\w+|&\w+{{[^}}]*}})(.*)')
    with open(directory + "/private/containerd/containerd.log") as file:
        for whole, fraction, *call, rest_of_line in line.findall(file.read()):
            at = calendar.timegm(time.strptime(whole, "%Y-%m-%dT%H:%M:%S")) + float("0." + fraction) - EPOCH
            if " returns " in rest_of_line or " failed" in rest_of_line:
                found.append((began.pop(tuple(call), at), at))
            else:
                began.setdefault(tuple(call), at)
    return found


def time_without(calls, began, ended):
    """Seconds of a period in which none of the calls was in progress, which are pairs of a beginning and an end."""
    spent, until = 0, began
    for call_began, call_ended in sorted(calls):
        spent += max(min(call_began, ended) - until, 0)
        until = max(until, call_ended)
    return spent + max(ended - until, 0)


def create_claims(api, volumes):
    """Claims of the volumes, and waits until they are bound."""
    api.call("POST", "/apis/storage.k8s.io/v1/csidrivers", {"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": csi_driver.NAME}, "spec": {"attachRequired": False}})
    path = "/api/v1/namespaces/default/persistentvolumeclaims"
    claims = Watched(api, path)
    for volume in volumes:
        common = {"accessModes": ["ReadWriteOnce"], "storageClassName": ""}
        source = {"csi": {"driver": csi_driver.NAME, "volumeHandle": volume}, "claimRef": {"namespace": "default", "name": volume}}
        whole = {**common, **source, "capacity": {"storage": "1Gi"}}
        api.call("POST", "/api/v1/persistentvolumes", {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": volume}, "spec": whole})
        claim = {**common, "volumeName": volume, "resources": {"requests": {"storage": "1Gi"}}}
        api.call("POST", path, {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": volume}, "spec": claim})
    claims.wait("bound claims", lambda all: sum(one["status"].get("phase") == "Bound" for one in all.values()) == len(volumes))


def create_user(api, volume):
    """A pod that has the claim of the same name; no scheduler is in its way."""
    using = {**spec(), "nodeName": NODE, "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": volume}}]}
    using["containers"][0]["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
    api.call("POST", "/api/v1/namespaces/default/pods", {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": volume}, "spec": using})


def is_running(pod):
    return pod.get("status", {}).get("phase") == "Running"


def users_one_by_one(api, pods, driver, volumes, directory, figures):
    """Each pod is created when the last one and its volume are gone."""
    starts, ends = [], []
    for volume in volumes:
        create_user(api, volume)
        running = pods.wait(volume, lambda all: is_running(all.get(volume, {})))
        starts.append((pods.seen[volume], running))
        since = time.monotonic()
        api.call("DELETE", f"/api/v1/namespaces/default/pods/{volume}")
        ends.append((since, driver.unstaged(volume)))
        pods.wait(volume + " gone", lambda all: volume not in all)
    calls = [call[2:] for call in driver.calls()]
    published = {volume: ended for method, volume, _, ended in driver.calls() if method == "NodePublishVolume"}
    mounts = [(began, published[volume]) for volume, (began, _) in zip(volumes, starts)]
    of_others = calls + runtime_calls(directory)
    for name, periods, outside in (
        ("pod to volume published, the kubelet's own", mounts, calls),
        ("pod to Running", starts, []),
        ("pod to Running, the kubelet's own", starts, of_others),
        ("delete to volume unstaged", ends, []),
        ("delete to volume unstaged, the kubelet's own", ends, of_others),
    ):
        taken = [time_without(outside, *period) * 1000 for period in periods]
        figures[name + ", median, ms"], figures[name + ", slowest, ms"] = statistics.median(taken), max(taken)


def of_claims(requests):
    """How many requests, of numbers by name, are for claims and their volumes."""
    return sum(number for name, number in requests.items() if name.split(" ")[1].startswith(CLAIM_OBJECTS))


def volumes(api, kubelet, pods, directory, program, flags, seconds, figures):
    names = [f"vol-{number + 1}" for number in range(SINGLE_PODS + sum(BURSTS))]
    nodes = Watched(api, "/apis/storage.k8s.io/v1/csinodes")
    driver = Driver(program, flags, directory, len(names))
    create_claims(api, names)
    nodes.wait("the driver", lambda all: all.get(NODE, {}).get("spec", {}).get("drivers"))
    users_one_by_one(api, pods, driver, names[:SINGLE_PODS], directory, figures)
    left = names[SINGLE_PODS:]
    for burst in BURSTS:
        requests, before, since = len(kubelet.requests()), len(pods.objects), time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda volume: create_user(api, volume), left[:burst]))
        left = left[burst:]
        seen = pods.wait(f"{burst} more pods", lambda all: sum(map(is_running, all.values())) == before + burst)
        figures[f"{burst} pods with a claim each at once beside {before}, all Running, s"] = seen - since
        made = collections.Counter(kubelet.requests()[requests:])
        print(f"    {burst} pods started: {dict(made)}", file=sys.stderr, flush=True)
        if before == 0:
            figures["requests for claims and volumes until then, a pod"] = of_claims(made) / burst
        settle()
    calls = len(driver.calls())
    made = rest(kubelet, seconds, len(pods.objects), figures)
    figures["of them for claims and volumes"] = of_claims(made)
    figures["calls of the driver a minute at rest"] = (len(driver.calls()) - calls) / seconds * 60
    driver.process.kill()


def inside(directory, program, endpoint, seconds, away, programme, driver):
    api = Api(directory)
    figures = {}
    nodes, pods = Watched(api, "/api/v1/nodes"), Watched(api, "/api/v1/namespaces/default/pods")
    threshold = available_memory() - HEADROOM
    more = {"managers": MANAGERS, "pressure": {"evictionHard": {"memory.available": f"{threshold}Mi"}, "evictionPressureTransitionPeriod": "1s"}}
    since = time.monotonic()
    kubelet = Kubelet(program, directory, endpoint, more.get(programme, {}))
    figures["start to node Ready, s"] = nodes.wait("Ready", lambda all: any(map(is_ready, all.values()))) - since
    if programme == "pressure":
        pressure(api, nodes, pods, threshold, figures)
    elif programme in VOLUMES:
        volumes(api, kubelet, pods, directory, driver, VOLUMES[programme], seconds, figures)
    else:
        settle()
        rest(kubelet, seconds, 0, figures)
        one_by_one(api, pods, figures)
        for size in SIZES:
            scale(api, pods, size, figures)
            settle()
            rest(kubelet, seconds, size, figures)
        absence(api, pods, nodes, kubelet, endpoint, away, figures)
    kubelet.process.kill()
    print(json.dumps(figures))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--inside"]:
        inside(*sys.argv[2:5], int(sys.argv[5]), int(sys.argv[6]), *sys.argv[7:])
    else:
        main()
