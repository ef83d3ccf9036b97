#!/bin/sh
# A kubelet that runs is replaced; one that does not is not started: it would take the machine's containers for its
# own before anyone has seen to its configuration. Containers run on while the kubelet restarts. One that does not start
# again is no reason to leave the package half installed.
set -e
[ -d /run/systemd/system ] || exit 0
systemctl daemon-reload || true
systemctl try-restart kubelet.service || echo "kubelet.service did not start again: see journalctl -u kubelet" >&2
