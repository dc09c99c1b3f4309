#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs everything that has cases for a GPU, on a machine that has one: a missing GPU is a failure here. Needs nothing
# but the built programs, so that they can be carried to a machine without compilers.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
    cat <<'TEXT'
usage: ./tests/gpu.sh [--sanitizer] [--pack DIRECTORY] [BUILD-DIRECTORY]

Runs the programs listed in BUILD-DIRECTORY/tests/gpu-tests.txt (default: $BUILD, else build/, which is built if absent).
  --sanitizer       afterwards run the short ones under compute-sanitizer (memcheck, racecheck)
  --pack DIRECTORY  run nothing: copy the programs, and the libraries beside libc that they load, to DIRECTORY/tests;
                    DIRECTORY then serves as BUILD-DIRECTORY elsewhere
  --help            print this
Logs: BUILD-DIRECTORY/tests/gpu-logs/, or $LOGS.
TEXT
}

sanitizer=
pack=
dir=${BUILD-build}
while [ $# -gt 0 ]; do
    case $1 in
        --help) usage; exit 0 ;;
        --sanitizer) sanitizer=1 ;;
        --pack) pack=${2?"--pack needs a directory"}; shift ;;
        -*) usage >&2; exit 2 ;;
        *) dir=$1 ;;
    esac
    shift
done

if [ ! -f "$dir/tests/gpu-tests.txt" ]; then
    . ./tests/setup.sh
    need_packages tests
    build "$dir" -DKVX_CUDA=ON -DKVX_TESTS=ON
fi
dir=$(cd "$dir" && pwd)
list=$dir/tests/gpu-tests.txt

if [ -n "$pack" ]; then
    mkdir -p "$pack/tests/vectors" "$pack/tests/lib"
    cp "$list" "$pack/tests/"
    cp "$dir"/tests/vectors/* "$pack/tests/vectors/"
    for program in $(cut -d ' ' -f 1 "$list" | sort -u); do
        cp "$dir/tests/$program" "$pack/tests/"
        ldd "$dir/tests/$program" | awk '/lib(cmocka|crypto|numa)\./ { print $3 }' | xargs -r -I{} cp -L {} "$pack/tests/lib/"
    done
    strip --strip-debug "$pack"/tests/test_* "$pack"/tests/kvx-kat
    du -sh "$pack"
    exit 0
fi

export KVX_REQUIRE_GPU=1
if [ -d "$dir/tests/lib" ]; then
    export LD_LIBRARY_PATH="$dir/tests/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
fi
logs=${LOGS-$dir/tests/gpu-logs}
mkdir -p "$logs"
logs=$(cd "$logs" && pwd)
cd "$dir/tests"

failed=()
# one NAME COMMAND...: runs, shows the last lines if it failed.
one() {
    local name=$1 begin=$SECONDS status=0
    shift
    "$@" >"$logs/$name.log" 2>&1 || status=$?
    if [ $status -eq 0 ]; then
        echo "pass  $name ($((SECONDS - begin)) s)"
    else
        echo "FAIL  $name (status $status)"
        tail -n 25 "$logs/$name.log" | sed 's/^/      /'
        failed+=("$name")
    fi
}

nvidia-smi --query-gpu=name,driver_version,pcie.link.gen.current,pcie.link.width.current --format=csv,noheader || true
while read -r program arguments; do
    # shellcheck disable=SC2086 # arguments are words
    one "$program${arguments:+-$(basename "$arguments")}" "./$program" $arguments
done <gpu-tests.txt
# No part of the library: what goes wrong here says nothing about it.
[ ! -x ./test_gpu_kernels ] || one measurement-kernels ./test_gpu_kernels --measure

if [ -n "$sanitizer" ]; then
    tool=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null || true)
    if [ -z "$tool" ]; then
        echo "compute-sanitizer is not on this machine: not run"
    else
        for program in test_gpu_kernels test_engine test_tamper; do
            [ -x "./$program" ] || continue
            for check in memcheck racecheck; do
                # The kernels' own test has a short form; of the others all cases run.
                one "$check-$program" "$tool" --tool $check --error-exitcode 9 --print-limit 20 "./$program" \
                    $([ $program = test_gpu_kernels ] && echo --short)
            done
        done
    fi
fi

if [ ${#failed[@]} -eq 0 ]; then
    echo "GPU: all passed; logs: $logs"
else
    echo "GPU: FAILED: ${failed[*]}; logs: $logs"
    exit 1
fi
