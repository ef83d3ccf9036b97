# shellcheck shell=bash disable=SC2154 # the script that sources this sets them
# Stand-ins for the images of Kubernetes' node test suite, for hack/build-images.sh: the machine's busybox with what
# its version lacks, agnhost from its source, and programs of the machine.

# The names under which the suite requests them.
suite_registry=registry.k8s.io
suite_images=$suite_registry/e2e-test-images
suite_env='"Env":["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]'

compile_into() { gcc -static -Os -s -Wall -Wextra -Werror -Wl,--build-id=none -o "$2" "$repo_root/hack/images/$1.c"; }

# suite_image NAME ROOTFS RUN_CONFIG: the label makes two names of the same files two images.
suite_image() {
    local file=${1##*/}
    make_image "$1" "$2" "{$suite_env,\"Labels\":{\"stands-in-for\":\"$1\"},$3}" "$outdir/e2e-${file/:/-}.tar"
}

# Programs of the machine in place of busybox' own; those that it does not have are left out.
add_machine_programs() {
    local rootfs=$1 name found
    shift
    for name in "$@"; do
        found=$(type -P "$name") || continue
        rm -f "$rootfs/bin/${name%%.*}"
        add_program "$rootfs" "$found" "/bin/${name%%.*}"
    done
}

# What agnhost's own registry server has: the pause image with the tag `testing`, in the layout of its directory.
add_registry_content() {
    local rootfs=$1/var/registry/pause layout=$work/layout-e2e-pause-3.10.2.tar manifest path
    manifest=$(sed -n 's/.*"digest":"sha256:\([0-9a-f]*\)".*/\1/p' "$layout/index.json")
    for path in "$layout"/blobs/sha256/*; do
        local digest kind=blobs
        digest=$(basename "$path")
        [[ $digest != "$manifest" ]] || kind=manifests
        install -D -m 644 "$path" "$rootfs/$kind/sha256/${digest:0:2}/$digest/data"
    done
    printf 'sha256:%s\n' "$manifest" >"$rootfs/manifests/testing"
}

add_certificate() {
    openssl req -x509 -newkey rsa:2048 -nodes -days 3650 -subj /CN=localhost \
        -addext subjectAltName=DNS:localhost,IP:127.0.0.1 -keyout "$1/localhost.key" -out "$1/localhost.crt" 2>/dev/null
    chmod 644 "$1"/localhost.{key,crt}
}

build_e2e_images() {
    local rootfs=$work/busybox version
    suite_image "$suite_registry/pause:3.10.2" "$work/pause" '"Entrypoint":["/pause"],"User":"65535:65535"'

    [[ -e $rootfs/bin/nmeter ]] || compile_into nmeter "$rootfs/bin/nmeter"
    rm "$rootfs/bin/sh"
    compile_into sh "$rootfs/bin/sh"
    mkdir -p "$rootfs"/{lib,mnt,usr/local/bin,var/log}
    # Specs read group IDs from `ls -l`, which shows names where there are some.
    sed -i '/^app:/d; /^extra:/d' "$rootfs"/etc/{passwd,group}
    for version in 1.36.1-1 1.37.0-1; do
        suite_image "$suite_images/busybox:$version" "$rootfs" '"Cmd":["sh"]'
    done
    # Some specs do not take theirs from the suite's registry.
    suite_image docker.io/library/busybox:1.36 "$rootfs" '"Cmd":["sh"]'
    suite_image "$suite_images/nonroot:1.5" "$rootfs" '"Cmd":["sh"],"User":"1234"'

    cp -a "$rootfs" "$work/nonewprivs"
    compile_into effective-uid "$work/nonewprivs/usr/local/bin/nnp"
    chmod 6755 "$work/nonewprivs/usr/local/bin/nnp"
    suite_image "$suite_images/nonewprivs:1.4" "$work/nonewprivs" '"Cmd":["nnp"]'

    cp -a "$rootfs" "$work/nginx"
    install -d "$work/nginx/usr/share/nginx/html" "$work/nginx/var/run"
    printf '<html><head><title>Welcome to nginx!</title></head></html>\n' >"$work/nginx/usr/share/nginx/html/index.html"
    # The shell stays, so that there is a process named nginx.
    printf '%s\n' '#!/bin/ash' 'trap "exit 0" TERM' 'echo $$ >/var/run/nginx.pid' \
        'httpd -f -p 80 -h /usr/share/nginx/html &' wait >"$work/nginx/bin/nginx"
    chmod 755 "$work/nginx/bin/nginx"
    for version in 1.15-4 1.27-0; do
        suite_image "$suite_images/nginx:$version" "$work/nginx" \
            '"Cmd":["nginx","-g","daemon off;"],"ExposedPorts":{"80/tcp":{}}'
    done

    cp -a "$rootfs" "$work/kitten"
    printf '{"image":"kitten.jpg"}\n' >"$work/kitten/data.json"
    printf 'NAME="Alpine Linux"\n' >"$work/kitten/etc/os-release"
    suite_image "$suite_images/kitten:1.8" "$work/kitten" '"Cmd":["sh"]'

    cp -a "$rootfs" "$work/ipc-utils"
    add_machine_programs "$work/ipc-utils" ipcs ipcmk
    suite_image "$suite_images/ipc-utils:1.4" "$work/ipc-utils" '"Cmd":["sh"]'

    cp -a "$rootfs" "$work/glibc-dns-testing"
    add_machine_programs "$work/glibc-dns-testing" hostname dig
    printf 'hosts: files dns\n' >"$work/glibc-dns-testing/etc/nsswitch.conf"
    suite_image "$suite_images/glibc-dns-testing:2.0.0" "$work/glibc-dns-testing" '"Cmd":["sh"]'

    # It writes files for its devices.
    mkdir -p "$work/sample-device-plugin/tmp"
    cp "$kubernetes_dir/sample-device-plugin" "$work/sample-device-plugin/sampledeviceplugin"
    suite_image "$suite_images/sample-device-plugin:1.7" "$work/sample-device-plugin" '"Entrypoint":["/sampledeviceplugin"]'

    cp -a "$rootfs" "$work/agnhost"
    rootfs=$work/agnhost
    cp "$kubernetes_dir/agnhost" "$rootfs/agnhost"
    ln -s agnhost "$rootfs/agnhost-2"
    mkdir "$rootfs/uploads"
    # busybox' shell runs its own nc, whatever is on PATH.
    add_machine_programs "$rootfs" bash curl ss dig ipcs ipcmk nc.openbsd
    ln -sf bash "$rootfs/bin/sh"
    printf 'user-defined-in-image:x:1000:1000::/home/user-defined-in-image:/bin/sh\n' >>"$rootfs/etc/passwd"
    printf 'user-defined-in-image:x:1000:\ngroup-defined-in-image:x:50000:user-defined-in-image\n' >>"$rootfs/etc/group"
    add_certificate "$rootfs"
    add_registry_content "$rootfs"
    for version in 2.55 2.63.0; do
        suite_image "$suite_images/agnhost:$version" "$rootfs" '"Entrypoint":["/agnhost"],"Cmd":["pause"]'
    done
}

# What runs beside a CSI driver, in the versions that the suite names. The programs are of other ones.
build_e2e_storage_images() {
    local name program rootfs entry
    build_e2e_images
    for name in hostpathplugin:v1.17.1 csi-node-driver-registrar:v2.16.0 csi-provisioner:v6.1.1 csi-attacher:v4.11.0 \
        csi-resizer:v2.1.0; do
        program=${name%%:*}
        entry="\"/$program\""
        case $program in hostpathplugin | csi-node-driver-registrar)
            entry="\"/csi-stand-ins\",\"$program\""
            program=csi-stand-ins
            ;;
        esac
        rootfs=$work/e2e-${name%%:*}
        install -D -m 755 "$kubernetes_dir/$program" "$rootfs/$program"
        mkdir -p "$rootfs/tmp"
        suite_image "$suite_registry/sig-storage/$name" "$rootfs" "\"Entrypoint\":[$entry]"
    done
}
