#!/bin/sh
# Volumes of pods may still be mounted in /var/lib/kubelet, so it stays, also when the package is purged.
set -e
[ ! -d /run/systemd/system ] || systemctl daemon-reload || true
