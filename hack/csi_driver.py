"""The CSI driver of the tests, for the scripts beside this file: the test binary of tests/cluster with other arguments."""

import json
import os
import subprocess

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
NAME = "csi.example.com"
# For its socket, its volumes and its journal.
BASE = "/var/lib/kubelet/plugins/" + NAME
JOURNAL = BASE + "/journal"


def build():
    """Returns the program's path."""
    line = ["cargo", "test", "--test", "cluster", "--no-run", "--message-format=json-render-diagnostics"]
    printed = subprocess.run(line, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    messages = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    return next(one["executable"] for one in messages if one.get("target", {}).get("name") == "cluster" and one.get("executable"))


def command(program, *more):
    """The command line of a driver that the kubelet of its node finds; the flags are those of `tests/cluster/csi_driver.rs`."""
    return [program, "serve-csi-driver", "--node-id", "node-1", "--base", BASE, "--registry", "/var/lib/kubelet/plugins_registry", *more]
