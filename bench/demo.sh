#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what is missing, builds kvx, and runs the demonstration: blocks sealed into host memory, brought back, a
# tampered one refused, and rates. Arguments go to the program.
set -euo pipefail
cd "$(dirname "$0")/.."
. ./tests/setup.sh

program=build/bench/kvx-demo
if [ "${1-}" = --help ]; then
    cat <<'TEXT'
usage: ./bench/demo.sh [ARGUMENTS OF kvx-demo]

Builds in build/ and runs build/bench/kvx-demo, on the GPU where there is a usable one, else on the CPU engine.
Missing packages are installed with apt, as root or through sudo; otherwise the command to run is printed (status 3).
TEXT
    if [ -x $program ]; then
        echo
        exec $program --help
    fi
    exit 0
fi

need_packages
# Tests are built only where an earlier ./tests/run.sh asked for them.
build build -DKVX_BENCH=ON $([ -f build/CMakeCache.txt ] || echo -DKVX_TESTS=OFF)
say "running $program $*"
exec $program "$@"
