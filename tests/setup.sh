# SPDX-License-Identifier: Apache-2.0
# Functions of the scripts that people run on a bare machine: install packages, configure, build. To be sourced by bash
# in the root of the checkout.

say() {
    printf '==> %s\n' "$*"
}

missing() {
    ! dpkg-query -W -f '${Status}\n' "$1" 2>/dev/null | grep -q 'ok installed'
}

# As root, directly or through sudo. Package lists can be stale or a mirror slow: one more try.
apt_install() {
    local run=()
    if [ "$(id -u)" -ne 0 ]; then
        run=(sudo)
    fi
    for try in 1 2; do
        if "${run[@]}" apt-get update -q &&
            "${run[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@"; then
            return 0
        fi
        say "apt-get failed (try $try of 2)"
        sleep 5
    done
    return 1
}

need_apt() {
    local absent=() package
    if ! command -v dpkg-query >/dev/null; then
        say "this is no Debian or Ubuntu system: make sure that these are installed: $*"
        return 0
    fi
    for package in "$@"; do
        if missing "$package"; then
            absent+=("$package")
        fi
    done
    [ ${#absent[@]} -eq 0 ] && return 0
    if [ "$(id -u)" -ne 0 ] && ! sudo -n true 2>/dev/null && ! { [ -t 0 ] && command -v sudo >/dev/null; }; then
        say "packages are missing, and neither root nor sudo is at hand. Run this, then start again:"
        printf '    apt-get update && apt-get install -y --no-install-recommends %s\n' "${absent[*]}"
        exit 3
    fi
    say "installing ${absent[*]}"
    if ! apt_install "${absent[@]}"; then
        say "could not install: ${absent[*]}"
        exit 3
    fi
}

# need_packages [tests]: what a build needs. Tools that are there, from wherever, are not installed again.
need_packages() {
    local packages=(libc6-dev libssl-dev libnuma-dev)
    command -v cmake >/dev/null || packages+=(cmake)
    command -v cc >/dev/null || packages+=(gcc)
    command -v make >/dev/null || command -v ninja >/dev/null || packages+=(make)
    command -v pkg-config >/dev/null || packages+=(pkg-config)
    if command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ]; then
        command -v g++ >/dev/null || packages+=(g++)
    fi
    if [ "${1-}" = tests ]; then
        packages+=(libcmocka-dev python3-cryptography-vectors)
    fi
    need_apt "${packages[@]}"
    local version
    version=$(cmake --version | sed -n 's/^cmake version \([0-9.]*\).*/\1/p')
    if [ "$(printf '3.25\n%s\n' "$version" | sort -V | head -n 1)" != 3.25 ]; then
        say "CMake $version at $(command -v cmake) is too old: 3.25 or newer is needed"
        exit 3
    fi
}

# build DIRECTORY CMAKE-ARGUMENTS...: configures and builds with all cores. The log grows, so that it keeps what the
# compilers said about objects that later builds did not compile again.
build() {
    local dir=$1
    shift
    local generator=()
    if [ ! -f "$dir/CMakeCache.txt" ] && command -v ninja >/dev/null; then
        generator=(-G Ninja)
    fi
    mkdir -p "$dir"
    say "configuring in $dir"
    if ! cmake -S . -B "$dir" "${generator[@]}" "$@" >"$dir/configure.log" 2>&1; then
        cat "$dir/configure.log"
        say "cmake failed; log: $dir/configure.log"
        exit 1
    fi
    grep -E '^-- kvx ' "$dir/configure.log"
    say "building in $dir with $(nproc) jobs (log: $dir/build.log)"
    local quiet='ptxas|bytes (stack|gmem|cmem)|^$' # for the log only
    if ! cmake --build "$dir" --parallel "$(nproc)" 2>&1 | tee -a "$dir/build.log" | { grep --line-buffered -vE "$quiet" || true; }; then
        say "the build failed; log: $dir/build.log"
        exit 1
    fi
}
