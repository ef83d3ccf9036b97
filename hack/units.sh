#!/usr/bin/env bash
# Stands in for systemctl, systemd-run and sudo where there is no systemd: links to it under these names go on
# PATH. It starts, stops and restarts services of unit files and their drop-ins in UNIT_PATH, and those of systemd-run;
# their output is in /run/units. Of a unit file it knows ExecStart, Environment, EnvironmentFile and Restart.
set -euo pipefail

state=/run/units
# Under its own name it runs a service, whichever name it was called by.
self=$(readlink -f "$0")
mkdir -p "$state"

service() { printf '%s\n' "${1%.service}"; }

# unit_files NAME: its own, then its drop-ins in order.
unit_files() {
    local file
    for file in "$state/$1.unit" "${UNIT_PATH:-/usr/lib/systemd/system}/$1.service" \
        "${UNIT_PATH:-/usr/lib/systemd/system}/$1.service.d"/*.conf; do
        [[ ! -e $file ]] || printf '%s\n' "$file"
    done
}

# run NAME: becomes the service's process.
run() {
    local line command='' files
    mapfile -t files < <(unit_files "$1")
    set -a
    while read -r line; do
        case $line in
        Environment=*) eval "${line#Environment=}" ;;
        EnvironmentFile=-*)
            # shellcheck source=/dev/null
            [[ ! -e ${line#*=-} ]] || source "${line#*=-}"
            ;;
        ExecStart=*) command=${line#ExecStart=} ;;
        esac
    done < <(cat "${files[@]}" | sed -E 's/^Environment="([^=]*)=(.*)"$/Environment=\1="\2"/')
    set +a
    # As systemd expands $NAME: split at spaces, and nothing where it is not set.
    set -f +u
    eval "exec $command"
}

main_pid() {
    local pid
    pid=$(cat "$state/$1.pid" 2>/dev/null) && [[ -n $pid && -d /proc/$pid ]] &&
        [[ $(cut -d' ' -f3 "/proc/$pid/stat" 2>/dev/null) != Z ]] && printf '%s\n' "$pid"
}

# supervise NAME: runs it until `stop`, and again when it ends if it says Restart=always.
supervise() {
    local name=$1 child=0 files
    mapfile -t files < <(unit_files "$name")
    trap 'kill -TERM "$child" 2>/dev/null; wait "$child"; exit 0' TERM
    while :; do
        log=$state/$name.log
        [[ ! -e $state/$name.stderr ]] || log=$(cat "$state/$name.stderr")
        "$self" run "$name" >>"$log" 2>&1 </dev/null &
        child=$!
        printf '%s\n' "$child" >"$state/$name.pid"
        wait "$child" || true
        grep -qx Restart=always "${files[@]}" || exit 0
        sleep 1
    done
}

supervisor_pid() {
    local pid
    pid=$(cat "$state/$1.supervisor" 2>/dev/null) && [[ -n $pid ]] &&
        grep -qzx supervise "/proc/$pid/cmdline" 2>/dev/null && printf '%s\n' "$pid"
}

start() {
    [[ -n $(unit_files "$1") ]] || return 5
    if ! supervisor_pid "$1" >/dev/null; then
        setsid "$self" supervise "$1" >/dev/null 2>&1 </dev/null &
        printf '%s\n' "$!" >"$state/$1.supervisor"
    fi
}

stop() {
    local pid
    pid=$(supervisor_pid "$1") || return 0
    kill -TERM "$pid"
    while [[ -d /proc/$pid ]] && supervisor_pid "$1" >/dev/null; do sleep 0.02; done
    rm -f "$state/$1.supervisor" "$state/$1.pid"
}

status() {
    if [[ -z $(unit_files "$1") ]]; then
        printf 'Unit %s.service could not be found.\n' "$1"
        return 4
    elif main_pid "$1" >/dev/null; then
        printf '%s.service\n     Loaded: loaded\n     Active: active (running)\n' "$1"
    else
        printf '%s.service\n     Loaded: loaded\n     Active: inactive (dead)\n' "$1"
        return 3
    fi
}

list_units() {
    local file name
    for file in "$state"/*.pid; do
        [[ -e $file ]] || continue
        name=$(basename "$file" .pid)
        # shellcheck disable=SC2053 # the argument is a pattern
        if [[ $name.service == ${1:-*} ]] && main_pid "$name" >/dev/null; then
            printf '  %s.service loaded active running %s\n' "$name" "$name"
        fi
    done
}

# systemctl [OPTION]... VERB [UNIT]...
systemctl() {
    local words=() word verb name signal=TERM
    for word in "$@"; do
        case $word in
        --signal=*) signal=${word#*=} ;;
        -*) ;;
        *) words+=("$word") ;;
        esac
    done
    verb=${words[0]:-}
    case $verb in
    list-units) list_units "${words[@]:1}" ;;
    daemon-reload | reset-failed | enable | disable | is-enabled) ;;
    start | stop | restart | status | kill | is-active)
        for name in "${words[@]:1}"; do
            name=$(service "$name")
            case $verb in
            restart) stop "$name" && start "$name" ;;
            kill) kill -s "${signal#SIG}" "$(main_pid "$name")" ;;
            is-active) status "$name" >/dev/null ;;
            *) "$verb" "$name" ;;
            esac
        done
        ;;
    *)
        printf 'this systemctl does not know: %s\n' "$*" >&2
        return 1
        ;;
    esac
}

# systemd-run [OPTION]... COMMAND...: as a service, or with --scope in the foreground.
systemd_run() {
    local name=run-$$ scope=false log=
    while [[ ${1:-} == -* ]]; do
        case $1 in
        --version)
            echo "systemd 252"
            return
            ;;
        --scope) scope=true ;;
        --unit=*) name=$(service "${1#*=}") ;;
        *StandardError=file:* | *StandardError=append:*) log=${1##*:} ;;
        -p)
            shift
            case $1 in StandardError=*:*) log=${1##*:} ;; esac
            ;;
        esac
        shift
    done
    ! $scope || exec "$@"
    # systemd reads %% and $$ as the characters themselves.
    local words=("${@//%%/%}")
    words=("${words[@]//\$\$/\$}")
    printf 'ExecStart=%s\n' "${words[*]@Q}" >"$state/$name.unit"
    [[ -z $log ]] || realpath -m "$log" >"$state/$name.stderr"
    start "$name"
    printf 'Running as unit: %s.service\n' "$name" >&2
}

case $(basename "$0") in
sudo)
    while [[ ${1:-} == -* ]]; do shift; done
    exec "$@"
    ;;
systemd-run) systemd_run "$@" ;;
*)
    case ${1:-} in
    run | supervise) "$@" ;;
    *) systemctl "$@" ;;
    esac
    ;;
esac
