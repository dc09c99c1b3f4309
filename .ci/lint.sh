#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Rules about the text of the sources: format, first line, length, who may include whom, one door per library, words
# that do not belong into the library. Prints every breach; status 1 if there was one.
set -u
cd "$(dirname "$0")/.." || exit 1

breaches=$(mktemp)
trap 'rm -f "$breaches"' EXIT

# check TITLE: breaches come on stdin; none is good.
check() {
    local found
    found=$(cat)
    [ -z "$found" ] || {
        echo "lint: $1:"
        echo "$found" | sed 's/^/    /'
    } >>"$breaches"
}
# uses PATTERN FILES...: lines with the pattern, once comments and strings are gone.
uses() {
    local pattern=$1 file
    shift
    for file in "$@"; do
        perl -0pe 's{("(?:\\.|[^"\\\n])*")|/\*.*?\*/|//[^\n]*}{defined $1 ? q("") : $& =~ tr/\n//cdr}gse' "$file" |
            grep -nE "$pattern" | sed "s|^|$file:|"
    done
}
# includes PATTERN FILES...: include lines that match.
includes() {
    local pattern=$1
    shift
    grep -nE "^ *# *include *[<\"]($pattern)" "$@" /dev/null
}

mapfile -t c_files < <(git ls-files -co --exclude-standard -- '*.c' '*.h' '*.cu' '*.cuh')
mapfile -t all_files < <(git ls-files -co --exclude-standard -- '*.c' '*.h' '*.cu' '*.cuh' '*.sh' '*.cmake' '*.in' '*.map' \
    '*CMakeLists.txt' .ci/run .gitignore)
mapfile -t src < <(printf '%s\n' "${c_files[@]}" | grep '^src/')
mapfile -t kernels < <(printf '%s\n' "${c_files[@]}" | grep '^kernels/')
others() { # others PATTERN: files of the library whose name does not match
    printf '%s\n' "${src[@]}" "${kernels[@]}" | grep -vE "$1"
}

# ---- format and shape ----
# Other versions format otherwise.
if command -v clang-format-14 >/dev/null; then
    clang-format-14 --dry-run -Werror "${c_files[@]}" 2>&1 | grep -E 'error:' | cut -d ' ' -f 1 | sort -u | head -n 50 |
        check "not as .clang-format says (run clang-format -i)"
else
    echo "clang-format-14 is not installed" | check "format"
fi
for file in "${all_files[@]}"; do
    head -n 2 "$file" | grep -q 'SPDX-License-Identifier: Apache-2.0' || echo "$file"
done | check "no SPDX line at the top"
for file in "${all_files[@]}"; do
    [ "$(wc -l <"$file")" -le 500 ] || echo "$file: $(wc -l <"$file") lines"
done | check "longer than 500 lines"
grep -nP '\t| +$' "${all_files[@]}" | check "tab or trailing blank"
git ls-files -co --exclude-standard | cut -d / -f 1 | sort -u |
    grep -vxE 'CMakeLists\.txt|include|src|kernels|tests|bench|docs|LICENSE|README\.md|\..*' |
    check "does not belong into the root of the repository"

# ---- who may include whom ----
includes '.*(src/|kvx[a-z_]*\.h|engine|pool|keyring|context)' "${kernels[@]}" | check "kernels/ includes src/ or include/"
includes '\.\./(src|include)' "${kernels[@]}" | check "kernels/ leaves its directory"
includes '(engine|keyring|context)[a-z_]*\.h' src/pool*.[ch] src/hostmem*.[ch] | check "the pool knows engine, keyring or context"
includes '(engine|pool|context)[a-z_]*\.h' src/keyring*.[ch] src/secmem*.[ch] | check "the keyring knows engine, pool or context"
includes '(keyring|context)[a-z_]*\.h' src/engine*.[ch] | check "an engine knows keyring or context"
includes 'engine_(cuda|cpu)[a-z_]*\.h' $(printf '%s\n' "${src[@]}" | grep -v '^src/engine_') | check "an engine's inside is seen outside"
includes 'engine_cpu' $(printf '%s\n' "${src[@]}" | grep '^src/engine_cuda') | check "engine_cuda knows engine_cpu"
includes 'engine_cuda' $(printf '%s\n' "${src[@]}" | grep '^src/engine_cpu') | check "engine_cpu knows engine_cuda"
includes '.*\.c"' "${src[@]}" "${kernels[@]}" | check "a .c file is included"
grep -nE '^# *include' include/*.h | grep -vE '<(stddef|stdint)\.h>|"kvx[a-z_]*\.h"' | check "a public header includes more than stddef.h and stdint.h"

# ---- one door for each library ----
uses '\bcuda[A-Z][A-Za-z]*\(|\bcu[A-Z][A-Za-z]*\(' $(others '^src/engine_cuda|^src/hostmem_cuda\.c|^kernels/.*\.cuh?$') |
    check "CUDA outside src/engine_cuda*.c, src/hostmem_cuda.c and kernels/*.cu"
includes 'cuda|cuda_runtime' $(others '^src/engine_cuda|^src/hostmem_cuda\.c|^kernels/.*\.cuh?$') | check "CUDA headers elsewhere"
uses '\b(EVP|RAND|OSSL|ERR|CRYPTO|OPENSSL)_[A-Za-z_]+\(' $(others '^src/keyring[a-z_]*\.c|^src/engine_cpu') |
    check "OpenSSL outside src/keyring*.c and src/engine_cpu*.c"
includes 'openssl/' $(others '^src/keyring[a-z_]*\.c|^src/engine_cpu') | check "OpenSSL headers elsewhere"
uses '(^|[^>_a-zA-Z])(dlopen|dlsym|dlclose|ioctl|syscall)\(' $(others '^src/platform\.c') |
    check "other libraries, devices or system calls outside src/platform.c"
grep -nE 'libnvidia-ml|"nvml[A-Z]' $(others '^src/posture_nvml\.c') | check "NVML outside src/posture_nvml.c"
uses '\b(numa|mbind|set_mempolicy)[a-z_]*\(' $(others '^src/hostmem_numa\.c') | check "libnuma outside src/hostmem_numa.c"
includes 'numa' $(others '^src/hostmem_numa\.c') | check "libnuma's header elsewhere"

# ---- words that do not belong into a library ----
uses '\b(printf|puts|putchar|perror|fputs|fprintf|vprintf|vfprintf|exit|_exit|abort|getenv|secure_getenv|assert)\(' \
    "${src[@]}" "${kernels[@]}" | check "printing, ending the process or reading the environment"
uses '\bmemcmp\([^;]*tag' "${src[@]}" "${kernels[@]}" | check "a tag is compared by memcmp"
uses '\b(strcpy|strcat|sprintf|vsprintf|gets|alloca|strtok)\(' "${src[@]}" "${kernels[@]}" | check "unbounded string functions"
grep -nE '\b(TODO|FIXME|XXX|HACK)\b' "${all_files[@]}" README.md docs/* | grep -v '^\.ci/lint\.sh' | check "unfinished"

if [ -s "$breaches" ]; then
    cat "$breaches"
    exit 1
fi
echo "lint: ${#all_files[@]} files, no breach"
