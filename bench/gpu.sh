#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures on a machine with a GPU and leaves the figures as JSON, with the machine that they belong to.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
    cat <<'TEXT'
usage: ./bench/gpu.sh DIRECTORY [OPTIONS OF kvx-bench]

Runs kvx-demo and every sub-bench of kvx-bench, both of $BUILD (default: build/, which is built if absent), on the GPU
and writes to DIRECTORY:
  demo.json       the figures of kvx-demo, with machine and command
  demo.txt        what it printed
  bench.json      the figures of kvx-bench, with machine and command
  bench.txt       what it printed
  bench-SUB.svg   pictures of those sub-benches that draw
  machine.txt     GPU, driver, link, CPU, kernel
OPTIONS: --quick for a run of about a minute, --full for one of many minutes; see kvx-bench --help.
TEXT
}

case ${1-} in
    --help) usage; exit 0 ;;
    '' | -*) usage >&2; exit 2 ;;
esac
out=$1
shift
dir=${BUILD-build}
if [ ! -x "$dir/bench/kvx-bench" ]; then
    . ./tests/setup.sh
    need_packages
    build "$dir" -DKVX_CUDA=ON -DKVX_BENCH=ON $([ -f "$dir/CMakeCache.txt" ] || echo -DKVX_TESTS=OFF)
fi
if ! command -v nvidia-smi >/dev/null; then
    echo "nvidia-smi was not found: this script measures on a GPU; without one run ./bench/demo.sh or kvx-bench itself"
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
status=0
"$dir/bench/kvx-demo" --engine cuda --json "$out/demo.json" | tee "$out/demo.txt" || status=1
"$dir/bench/kvx-bench" all --engine cuda --json "$out/bench.json" --plot "$out/bench.svg" "$@" |
    tee "$out/bench.txt" || status=1
exit $status
