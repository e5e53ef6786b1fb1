#!/usr/bin/env bash
# Makes .venv ready: "runtime" (what `sliceplane` needs), "dev" (tests, demo and benchmarks too) or "floors" (the same
# with the oldest packages that we promise to work with).  VENV and PYTHON name another place and another interpreter.
# Needs Python 3.11 or newer; as root it also installs the Debian packages that are missing, but for PROGRAMS=no.
set -euo pipefail
cd "$(dirname "$0")/.."
what=${1:-runtime}
venv=${VENV:-.venv}

say() { printf '%s\n' "$*" >&2; }
die() { say "install: $*"; exit 1; }

apt_missing() { # command package, for each pair: install the package if the command is missing
    local wanted=()
    while [ $# -gt 1 ]; do
        command -v "$1" >/dev/null 2>&1 || [ -x "/usr/sbin/$1" ] || [ -x "/sbin/$1" ] || wanted+=("$2")
        shift 2
    done
    [ ${#wanted[@]} -eq 0 ] && return 0
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
        say "install: missing: ${wanted[*]} (needs root and apt; what depends on them says so when it runs)"
        return 0
    fi
    say "install: apt-get install ${wanted[*]}"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${wanted[@]}" >/dev/null
}

names=(python3.11 python3.12 python3.13 python3.14 python3)
[ -z "${PYTHON:-}" ] || names=("$PYTHON")
pythons=() # of the first version that is here, those first that were built with optimisation: a third is a lot
for name in "${names[@]}"; do
    [ ${#pythons[@]} -eq 0 ] || break
    slow=()
    while read -r candidate; do
        case $("$candidate" tools/python_build.py 2>/dev/null) in
            quick) pythons+=("$candidate") ;;
            slow) slow+=("$candidate") ;;
        esac
    done < <(if [[ $name == */* ]]; then echo "$name"; else type -aP "$name"; fi)
    pythons+=(${slow[@]+"${slow[@]}"})
done
[ ${#pythons[@]} -gt 0 ] || [ -z "${PYTHON:-}" ] || die "PYTHON=$PYTHON is no Python 3.11 or newer"
[ ${#pythons[@]} -gt 0 ] || die "no Python 3.11 or newer found; install one, or set PYTHON=/path/to/python3.11"

made_environment() {
    local python
    for python in "${pythons[@]}"; do
        rm -rf $venv
        "$python" -m venv $venv >/dev/null 2>&1 && return 0
    done
    return 1
}

if [ ! -x $venv/bin/python ] || ! $venv/bin/python -m pip --version >/dev/null 2>&1; then
    if ! made_environment; then
        # Debian splits ensurepip off into a package of its own.
        if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
            apt-get update -qq
            DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends python3-venv >/dev/null
        fi
        made_environment || die "cannot make a virtual environment with ${pythons[*]}; on Debian: apt install python3-venv"
    fi
fi

pip() { $venv/bin/python -m pip --disable-pip-version-check "$@"; }

unpacked() { # lock: installed by uv, in a sixth of the time that pip takes for what developers need; false: pip must
    [ "$what" != runtime ] || return 1
    # An index or a proxy that only pip was told of.
    if pip config list | grep -qE 'index|proxy'; then return 1; fi
    pip install -q --no-compile --require-hashes -r requirements-install.lock || return 1
    UV_HTTP_TIMEOUT=30 $venv/bin/uv pip install -q --system-certs --python $venv/bin/python --require-hashes -r "$1"
}

case $what in
    runtime) lock=requirements.lock ;;
    *) lock=requirements-$what.lock ;;
esac
[ -e "$lock" ] || die "there is no $lock"
stamp=$venv/.installed-$what
build=requirements-build.lock
if [ ! -e "$stamp" ] || [ $lock -nt "$stamp" ] || [ $build -nt "$stamp" ] || [ pyproject.toml -nt "$stamp" ]; then
    say "install: packages of $lock"
    # Whatever is fetched has a hash.  What builds ours comes first, so that of a package in both the other lock decides;
    # without isolation pip fetches nothing for the build.
    pip install -q --no-compile --require-hashes -r $build
    unpacked "$lock" || pip install -q --no-compile --require-hashes -r $lock
    # On every processor, which pip does not; what packages bring for other versions of Python cannot be compiled.
    $venv/bin/python -m compileall -q -j 0 -x 'site-packages/(kubernetes/aio|mypyc?|.*/tests)/' $venv/lib >/dev/null 2>&1 || true
    pip install -q --no-index --no-deps --no-build-isolation -e .
    touch "$stamp"
fi
# Start-up must not pay for compiling, wherever PYTHONDONTWRITEBYTECODE is set.
$venv/bin/python -m compileall -q -j 0 src

# A release runs none of them (PROGRAMS=no).
if [ "$what" = dev ] && [ "${PROGRAMS:-yes}" = yes ]; then
    apt_missing nft nftables ip iproute2 conntrack conntrack iptables iptables ipset ipset etcd etcd-server
    # The page is tested in it.
    apt_missing chromium chromium
    # What asks name servers.
    apt_missing dnsperf dnsperf dig bind9-dnsutils kdig knot-dnsutils
    # What docs/deploy.md shows, and what checks deploy/systemd.
    apt_missing etcdctl etcd-client haproxy haproxy curl curl jq jq systemd-analyze systemd
    # Programs whose clock is another.
    apt_missing faketime faketime
fi
