#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs a build into a scratch prefix, builds the example there as a caller would (pkg-config with each library,
# find_package), runs it, and checks that the README shows exactly docs/example.c.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
awk '/^```c$/ { inside = 1; next } /^```$/ { inside = 0 } inside' README.md >"$scratch/readme.c"
sed '/SPDX-License-Identifier/d' docs/example.c | diff -u - "$scratch/readme.c" || {
    echo "example: README.md and docs/example.c differ"
    exit 1
}

cmake --install "$build" --prefix "$scratch/prefix" >/dev/null
libdir=$(dirname "$(find "$scratch/prefix" -name libkvx.so)")
export PKG_CONFIG_PATH=$libdir/pkgconfig
flags="-std=c11 -Wall -Wextra -Wpedantic -Werror"
# shellcheck disable=SC2046,SC2086 # flags are words
{
    cc $flags docs/example.c -o "$scratch/shared" $(pkg-config --cflags --libs kvx)
    cc $flags docs/example.c -o "$scratch/static" $(pkg-config --cflags kvx) "$libdir/libkvx.a" \
        $(pkg-config --static --libs kvx | sed 's/-lkvx//')
}
LD_LIBRARY_PATH=$libdir "$scratch/shared"
"$scratch/static"

mkdir "$scratch/caller"
cp docs/example.c "$scratch/caller/"
cat >"$scratch/caller/CMakeLists.txt" <<'TEXT'
cmake_minimum_required(VERSION 3.25)
project(caller C)
find_package(kvx 0.1 REQUIRED)
add_executable(example example.c)
target_link_libraries(example PRIVATE kvx::kvx)
add_executable(example_static example.c)
target_link_libraries(example_static PRIVATE kvx::kvx_static)
TEXT
cmake -S "$scratch/caller" -B "$scratch/caller/build" -DCMAKE_PREFIX_PATH="$scratch/prefix" >/dev/null
cmake --build "$scratch/caller/build" >/dev/null
"$scratch/caller/build/example"
"$scratch/caller/build/example_static"
echo "example: built four ways against the installed library, and ran"
