#!/usr/bin/env bash
# Make or update .venv: torch first and apart, then requirements.txt, at the versions in constraints.txt.
#
#   PYTHON=python3.12       the Python to use (default: python3, else the newest python3.x that is new enough)
#   TORCH_INDEX_URL=https://…/whl/cpu    a package index with torch builds, asked besides the usual one
#
# The stamp .venv/.ready is written last, so an interrupted run is taken up again by the next one.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
trap 'exit 130' INT TERM # pip turns Ctrl-C into a plain failure, and a step whose failure is expected would go on

VENV=.venv
STAMP=$VENV/.ready
CONSTRAINTS=.ci/constraints.txt
TORCH_CPU_INDEX=https://download.pytorch.org/whl/cpu

say() { printf '%s\n' "$*" >&2; }
fail() { printf 'error: %s\n' "$@" >&2; exit 1; }

version_of() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null; }

new_enough() { # VERSION, as in 3.12
    case $1 in
        3.*) [ "${1#3.}" -ge 11 ] ;;
        *) false ;;
    esac
}

find_python() {
    local candidate version seen=""
    for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
        version=$(version_of "$candidate") || version="not found"
        if new_enough "$version"; then
            echo "$candidate"
            return
        fi
        seen+="${seen:+, }$candidate ($version)"
    done
    fail "Python 3.11 or newer is needed; looked at: $seen" \
        "install one and name it: make env PYTHON=/path/to/python3.12"
}

# CI's machines are CI's to change; on a user's, Debian's packages are the user's to install.
ci_install() { # PACKAGE...
    [ "${CI:-}" = true ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || return 0
    say "Installing $* (CI)"
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$@" >/dev/null || true
}

has_venv() { "$1" -c 'import ensurepip, venv' 2>/dev/null; }

need_venv() { # PYTHON
    has_venv "$1" && return
    # Debian and Ubuntu package ensurepip apart.
    local package
    package=python$(version_of "$1")-venv
    ci_install "$package"
    has_venv "$1" && return
    fail "$1 cannot make virtual environments: its module venv or ensurepip is missing" \
        "on Debian or Ubuntu: sudo apt install python3-venv   (or $package), then run make again"
}

reachable() { # URL; the alarm also ends a name lookup that hangs
    "$VENV/bin/python" - "$1" <<'PY' 2>/dev/null
import signal, sys, urllib.request
signal.alarm(6)
urllib.request.urlopen(urllib.request.Request(sys.argv[1], method="HEAD"), timeout=5)
PY
}

pip_install() { "$VENV/bin/python" -m pip install --quiet --no-input --disable-pip-version-check "$@"; }

install_torch() {
    local index=${TORCH_INDEX_URL:-} args=()
    # Nothing to ask for when the environment has the right version already.
    pip_install --no-index -c "$CONSTRAINTS" torch >/dev/null 2>&1 && return
    # Only PyPI's Linux builds bring CUDA along; elsewhere the usual index is right.
    if [ -z "$index" ] && [ "$(uname -s)" = Linux ]; then
        if reachable "$TORCH_CPU_INDEX/"; then
            index=$TORCH_CPU_INDEX
        else
            say "note: $TORCH_CPU_INDEX cannot be reached, so torch comes from pip's own index;"
            say "note: on Linux that may be a CUDA build of several GB. For the CPU build from a mirror:"
            say "note:   make env TORCH_INDEX_URL=https://mirror.nju.edu.cn/pytorch/whl/cpu"
        fi
    fi
    [ -z "$index" ] || args=(--extra-index-url "$index")
    say "Installing torch${index:+ from $index}"
    pip_install ${args[@]+"${args[@]}"} -c "$CONSTRAINTS" torch
}

# A .venv that was moved, or whose Python is gone, is made anew; a sound one is updated.
version=$(version_of "$VENV/bin/python") || version=none
if ! new_enough "$version" || ! "$VENV/bin/python" -m pip --version >/dev/null 2>&1; then
    python=$(find_python)
    need_venv "$python"
    say "Making $VENV with $python ($(version_of "$python"))"
    "$python" -m venv --clear "$VENV"
fi
rm -f "$STAMP"
install_torch
say "Installing requirements.txt"
pip_install -r requirements.txt -c "$CONSTRAINTS"
# What only tests need: a PostgreSQL server as gradebook, a browser and glyphs for its pages. Elsewhere those tests say
# that they were skipped.
ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || ci_install postgresql
command -v chromium chromium-browser google-chrome >/dev/null || ci_install chromium fonts-noto-cjk
touch "$STAMP"
say "Environment ready: $VENV"
