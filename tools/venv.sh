#!/usr/bin/env bash
# Builds .venv from requirements.lock (`install`), or makes sure that MuJoCo can render (`renders`).
# Prints a line or two; everything else goes to .venv/install.log, shown when something fails.
# PYTHON names the interpreter; without it, the one that .venv has, or the first that will do.
set -euo pipefail

fail() {
    echo "$1" >&2
    exit 1
}

built_by() {
    .venv/bin/python -c 'import sys; print(sys._base_executable)' 2>/dev/null || true
}

find_python() {
    local python
    for python in ${PYTHON:-"$(built_by)" python3.11 python3 python3.12 python3.13}; do
        if "$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null
        then
            echo "$python"
            return
        fi
    done
    fail "Python 3.11, 3.12 or 3.13 is needed; found $("${PYTHON:-python3}" --version 2>&1 || echo none). \
Install python3.11 and python3.11-venv, then run the same command again."
}

logged() {
    # pip repeats "Location ... is ignored" for every package: noise in the log of a failure.
    "$@" >>.venv/install.log 2>&1 || {
        grep -v 'is ignored' .venv/install.log | tail -n 40 >&2
        fail "failed: $* (the whole log is in .venv/install.log)"
    }
}

install() {
    local python
    python=$(find_python)
    "$python" -c 'import ensurepip, venv' 2>/dev/null ||
        fail "$python has no venv module: apt-get install $(basename "$python")-venv"
    mkdir -p .venv
    exec 9>.venv/.lock
    if command -v flock >/dev/null; then flock 9; fi
    : >.venv/install.log
    # Another lock or Python begins anew: pip may delete files that a package took over from another.
    local wanted
    wanted=$({ "$python" --version; cat requirements.lock; } | sha256sum)
    if [ "$wanted" != "$(cat .venv/.wanted 2>/dev/null)" ]; then
        find .venv -mindepth 1 -maxdepth 1 ! -name .lock ! -name install.log -exec rm -rf {} +
        local free_kb
        read -r _ _ _ free_kb _ < <(df -Pk .venv | tail -n 1) || fail "df -Pk . does not say how much \
of the disk is free."
        [ "$free_kb" -ge 12000000 ] || fail "The packages need 12 GB of disk, \
$((free_kb / 1000000)) GB are free: free some, then run the same command again."
        echo "$wanted" >.venv/.wanted
    fi
    if ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
        logged "$python" -m venv .venv
    fi
    echo "Installing $(grep -c '^[a-z].*==' requirements.lock) packages into .venv (minutes the first time)"
    logged .venv/bin/python -m pip install --no-deps --require-hashes --requirement requirements.lock
    logged .venv/bin/python -m pip install --no-deps --no-build-isolation --editable .
    # Without them everything else works, so a machine without a compiler is no failure.
    .venv/bin/vla ros interfaces >>.venv/install.log 2>&1 ||
        echo "The nodes' ROS 2 actions are not built: $(tail -n 1 .venv/install.log)"
}

can_render() {
    .venv/bin/python -c 'import mujoco; mujoco.GLContext(16, 16).make_current()' \
        >>.venv/install.log 2>&1
}

renders() {
    local packages="libegl1 libegl-mesa0 libgl1-mesa-dri"
    if can_render; then return; fi
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "Installing $packages for rendering without a display"
        logged apt-get update
        # shellcheck disable=SC2086  # a list of words on purpose
        logged env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $packages
        if can_render; then return; fi
    fi
    fail "MuJoCo cannot render with MUJOCO_GL=${MUJOCO_GL:-}: as root, apt-get install $packages, \
then run the same command again. Reason: $(tail -n 1 .venv/install.log)"
}

cd "$(dirname "$0")/.."
case "${1:-}" in
install) install ;;
renders) renders ;;
*) fail "usage: tools/venv.sh install|renders" ;;
esac
