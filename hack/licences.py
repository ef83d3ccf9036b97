#!/usr/bin/env python3
"""Prints the licence texts of the crates that are linked into the kubelet for a target: licences.py TARGET.

A crate without a text has that of another crate of its repository, or of the Apache License if it may be had by that;
otherwise it is an error.
"""

import json
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def linked_crates(target):
    """The packages of `cargo metadata` that normal dependencies lead to, sorted."""
    command = ["cargo", "metadata", "--locked", "--format-version=1", "--filter-platform", target]
    metadata = json.loads(subprocess.check_output(command, cwd=ROOT))
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    root = metadata["resolve"]["root"]
    seen, left = set(), [root]
    while left:
        crate = left.pop()
        if crate in seen:
            continue
        seen.add(crate)
        for dependency in nodes[crate]["deps"]:
            # Dependencies of tests have the kind "dev", those of build scripts the kind "build".
            if any(kind["kind"] is None for kind in dependency["dep_kinds"]):
                left.append(dependency["pkg"])
    return sorted((packages[crate] for crate in seen - {root}), key=lambda crate: (crate["name"], crate["version"]))


def texts(directory):
    """The contents of the licence files in a directory, by name."""
    names = sorted(name for name in os.listdir(directory) if re.match(r"(?i)(un)?licen[cs]e|copying|copyright|notice", name))
    found = []
    for name in names:
        path = os.path.join(directory, name)
        if os.path.isfile(path):
            with open(path, encoding="utf-8", errors="replace") as file:
                found.append((name, file.read().strip()))
    return found


def main():
    crates = linked_crates(sys.argv[1])
    own = {crate["id"]: texts(os.path.dirname(crate["manifest_path"])) for crate in crates}
    # Each text is printed once, with all the crates that have it.
    owners = {}
    for crate in crates:
        found = own[crate["id"]]
        if not found:
            same = [own[other["id"]] for other in crates if crate["repository"] and other["repository"] == crate["repository"]]
            found = next((texts for texts in same if texts), None)
        if not found and "Apache-2.0" in (crate["license"] or ""):
            found = texts(ROOT)
        if not found:
            sys.exit(f"{crate['name']} {crate['version']} ({crate['license']}) has no licence text")
        for _, text in found:
            owners.setdefault(text, []).append(f"{crate['name']} {crate['version']} ({crate['license']})")
    print("The kubelet contains these crates, by their licences.")
    for text, names in owners.items():
        print("\n" + "=" * 100 + "\n" + "\n".join(names) + "\n" + "-" * 100 + "\n" + text)


main()
