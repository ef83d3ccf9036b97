#!/bin/sh
# Stops the kubelet when it is removed; the unit's containers run on. An upgrade leaves it to postinstall.sh.
set -e
# dpkg: remove, upgrade and others; rpm: how many versions remain.
case "$1" in
remove | 0) ;;
*) exit 0 ;;
esac
[ -d /run/systemd/system ] || exit 0
# Neither may keep the package from being removed, a masked unit for example.
systemctl stop kubelet.service || echo "kubelet.service was not stopped" >&2
systemctl --quiet disable kubelet.service || true
