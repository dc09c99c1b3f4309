#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what is missing, builds kvx with its tests, and runs them. Without a GPU the GPU's cases are skipped.
set -euo pipefail
cd "$(dirname "$0")/.."
. ./tests/setup.sh

usage() {
    cat <<'TEXT'
usage: ./tests/run.sh [--sanitize address|thread] [--no-cuda] [-- CTEST-ARGUMENTS]

Builds in build/ (build-asan/, build-tsan/ with a sanitizer) and runs the tests there with ctest.
  --sanitize address  AddressSanitizer and UndefinedBehaviorSanitizer; implies --no-cuda
  --sanitize thread   ThreadSanitizer; implies --no-cuda
  --no-cuda           without the CUDA engine, in build-nocuda/, even where nvcc is
  --help              print this
Missing packages are installed with apt, as root or through sudo; otherwise the command to run is printed (status 3).
With KVX_REQUIRE_GPU=1 in the environment a missing GPU is a failure.
TEXT
}

dir=build
sanitize=
cuda=AUTO
while [ $# -gt 0 ]; do
    case $1 in
        --help) usage; exit 0 ;;
        --no-cuda) cuda=OFF; shift ;;
        --sanitize)
            case ${2-} in
                address) dir=build-asan ;;
                thread) dir=build-tsan ;;
                *) usage >&2; exit 2 ;;
            esac
            sanitize=$2
            cuda=OFF
            shift 2 ;;
        --) shift; break ;;
        *) usage >&2; exit 2 ;;
    esac
done
if [ $cuda = OFF ] && [ -z "$sanitize" ]; then
    dir=build-nocuda
fi

need_packages tests
build "$dir" -DKVX_CUDA=$cuda -DKVX_SANITIZE=$sanitize -DKVX_TESTS=ON

# ThreadSanitizer cannot place its shadow memory under some settings of address-space randomisation.
launcher=
if [ "$sanitize" = thread ] && setarch -R true 2>/dev/null; then
    launcher="setarch -R"
fi
export ASAN_OPTIONS="${ASAN_OPTIONS-detect_stack_use_after_return=1:strict_string_checks=1}"
export UBSAN_OPTIONS="${UBSAN_OPTIONS-print_stacktrace=1}"
export TSAN_OPTIONS="${TSAN_OPTIONS-halt_on_error=1}"

say "running the tests (logs: $dir/Testing/Temporary/LastTest.log)"
status=0
$launcher ctest --test-dir "$dir" --output-on-failure --no-tests=error -j "$(nproc)" "$@" | tee "$dir/ctest.log" || status=$?
if [ "${KVX_REQUIRE_GPU-}" = 1 ] && grep -qF '***Skipped' "$dir/ctest.log"; then
    say "KVX_REQUIRE_GPU=1, and tests were skipped"
    status=1
fi
if [ $status -eq 0 ]; then
    say "all tests passed; logs: $dir/Testing/Temporary/LastTest.log, build log: $dir/build.log"
else
    say "TESTS FAILED; logs: $dir/Testing/Temporary/LastTest.log, build log: $dir/build.log"
fi
exit $status
