#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures on a machine with a GPU and leaves the figures as JSON, with the machine that they belong to.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
    cat <<'TEXT'
usage: ./bench/gpu.sh DIRECTORY [ARGUMENTS OF kvx-demo]

Runs kvx-demo of $BUILD (default: build/, which is built if absent) on the GPU and writes to DIRECTORY:
  demo.json    every figure, with machine and command
  demo.txt     what the program printed
  machine.txt  GPU, driver, link, CPU, kernel
TEXT
}

case ${1-} in
    --help) usage; exit 0 ;;
    '' | -*) usage >&2; exit 2 ;;
esac
out=$1
shift
dir=${BUILD-build}
if [ ! -x "$dir/bench/kvx-demo" ]; then
    . ./tests/setup.sh
    need_packages
    build "$dir" -DKVX_CUDA=ON -DKVX_BENCH=ON $([ -f "$dir/CMakeCache.txt" ] || echo -DKVX_TESTS=OFF)
fi
if ! command -v nvidia-smi >/dev/null; then
    echo "nvidia-smi was not found: this script measures on a GPU; without one run ./bench/demo.sh"
    exit 1
fi
mkdir -p "$out"
{
    nvidia-smi --query-gpu=name,driver_version,pcie.link.gen.current,pcie.link.width.current,clocks.max.sm \
        --format=csv,noheader
    nvidia-smi conf-compute -f 2>&1 | head -n 1 || true
    sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo | head -n 1
    uname -sr
} | tee "$out/machine.txt"
"$dir/bench/kvx-demo" --engine cuda --json "$out/demo.json" "$@" | tee "$out/demo.txt"
