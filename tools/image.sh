#!/usr/bin/env bash
# Builds the image of Dockerfile without Docker and without a registry, and leaves its root file system to be run.
#
#   tools/image.sh                    # build/image: rootfs, config.json, sliceplane.tar (docker load), oci (a layout)
#   BASE=docker.io/... tools/image.sh      # on another base: the one of Dockerfile, for example
#   ARCH=arm64 tools/image.sh              # for another architecture, under qemu-user (Debian's qemu-user-static)
#
# The base is a Debian 12 that mmdebstrap makes; SNAPSHOT=20260901T000000Z takes the packages of that moment from
# snapshot.debian.org.  Needs root and Debian's mmdebstrap and buildah; nothing runs as a service.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${OUT:-build/image}
host=$(dpkg --print-architecture)
arch=${ARCH:-$host}
name=${NAME:-localhost/sliceplane:0.1.0}

die() { printf 'image: %s\n' "$*" >&2; exit 1; }
say() { printf 'image: %s\n' "$*" >&2; }

[ "$(id -u)" = 0 ] || die "needs root, to make a root file system"
missing=()
for tool in mmdebstrap buildah; do command -v $tool >/dev/null || missing+=($tool); done
[ "$arch" = "$host" ] || { [ -x /usr/bin/qemu-aarch64-static ] && command -v arch-test >/dev/null; } || missing+=(qemu-user-static arch-test)
if [ ${#missing[@]} -gt 0 ]; then
    command -v apt-get >/dev/null || die "missing: ${missing[*]}"
    say "apt-get install ${missing[*]}"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi

if [ "$arch" != "$host" ]; then
    [ "$arch" = arm64 ] || die "$host cannot build for $arch: only arm64 is emulated; build on an $arch machine"
    # The kernel starts aarch64 programs with qemu from now on, also in a root file system that has none (flag F).
    formats=/proc/sys/fs/binfmt_misc
    [ -e $formats/register ] || mount -t binfmt_misc none $formats ||
        die "the kernel cannot be told to run $arch programs: build where binfmt_misc can be mounted (docker run --privileged), or on an $arch machine"
    [ -e $formats/qemu-aarch64 ] || printf '%s' ':qemu-aarch64:M::\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00:\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff:/usr/bin/qemu-aarch64-static:F' >$formats/register
fi

mkdir -p "$out"
out=$(cd "$out" && pwd)
# Images and containers of this build alone; vfs works on every file system, in a container too.
buildah=(buildah --root "$out/storage" --runroot "$out/run" --storage-driver vfs)

if [ -z "${BASE:-}" ]; then
    if [ ! -s "$out/base.tar" ]; then
        say "mmdebstrap: a Debian 12 with Python"
        mirror=${SNAPSHOT:+https://snapshot.debian.org/archive/debian/$SNAPSHOT}
        mmdebstrap --quiet --architectures="$arch" --variant=minbase --include=ca-certificates,python3,python3-venv \
            ${SNAPSHOT:+--aptopt='Acquire::Check-Valid-Until "false"'} bookworm "$out/base.part.tar" $mirror
        mv "$out/base.part.tar" "$out/base.tar"
    fi
    BASE=localhost/sliceplane-base:bookworm
    scratch=$("${buildah[@]}" from scratch)
    "${buildah[@]}" config --arch "$arch" "$scratch"
    "${buildah[@]}" add -q "$scratch" "$out/base.tar" / >/dev/null
    "${buildah[@]}" commit -q --rm "$scratch" "$BASE" >/dev/null
fi

say "buildah: $name for $arch on $BASE"
# chroot: no namespaces of network or processes are needed, so it works where containers do not.  A HEALTHCHECK is part of
# Docker's format alone.  The machine's certificates, where a proxy signs what is fetched.
"${buildah[@]}" bud --isolation chroot --format docker --layers=false --arch "$arch" \
    --build-arg BASE="$BASE" --build-arg REVISION="$(git rev-parse HEAD 2>/dev/null || echo unknown)" \
    --volume /etc/ssl/certs:/etc/ssl/certs:ro -t "$name" .

rm -rf "$out/rootfs" "$out/sliceplane.tar" "$out/oci"
"${buildah[@]}" inspect --type image "$name" >"$out/config.json"
container=$("${buildah[@]}" from --arch "$arch" "$name")
cp -a "$("${buildah[@]}" mount "$container")" "$out/rootfs"
"${buildah[@]}" umount "$container" >/dev/null
"${buildah[@]}" rm "$container" >/dev/null
"${buildah[@]}" push -q "$name" "docker-archive:$out/sliceplane.tar:$name"
"${buildah[@]}" push -q --format oci "$name" "oci:$out/oci:${name##*:}"
rm -rf "$out/storage" "$out/run"
say "$(du -sh "$out/rootfs" | cut -f1) in $out/rootfs; docker load -i $out/sliceplane.tar"
