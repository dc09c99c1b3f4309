#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Publishes facts of the machine code of the unit kernels: registers and spills as the compiler left them in the objects,
# and, for the tensor variant, what the inner loops do for one block. Needs cuobjdump (CUDA toolkit), no GPU.
set -euo pipefail

usage() {
    cat <<'TEXT'
usage: ./bench/machine_code.sh FILE...

FILE: objects, cubins, libraries or programs with device code, such as build/libkvx.a. Prints one line per kernel:
architecture, registers, bytes of stack, bytes spilled to it within the kernel (LDL/STL instructions), instructions; then
one line per loop that does look-ups or tensor products, with its instructions per block.
  --help  print this
TEXT
}

[ $# -gt 0 ] || { usage >&2; exit 2; }
[ "$1" != --help ] || { usage; exit 0; }
tool=$(command -v cuobjdump || ls /usr/local/cuda/bin/cuobjdump 2>/dev/null || true)
[ -n "$tool" ] || { echo "machine_code.sh: cuobjdump is not installed" >&2; exit 1; }

for file in "$@"; do
    echo "== $file"
    "$tool" -res-usage "$file" 2>&1 | c++filt | awk '
        /^arch = / { arch = $3 }
        /Function / { name = $0; sub(/^ *Function /, "", name); sub(/:$/, "", name) }
        / REG:/ {
            match($0, /REG:[0-9]+/); registers = substr($0, RSTART + 4, RLENGTH - 4)
            match($0, /STACK:[0-9]+/); stack = substr($0, RSTART + 6, RLENGTH - 6)
            printf "registers %3d  stack %3d  %s  %s\n", registers, stack, arch, name
        }'
    "$tool" -sass "$file" 2>/dev/null | c++filt | awk '
        # An instruction is a line "/*address*/ text ;"; a loop is a branch backwards. 64 blocks pass through a warp in
        # each turn of a cipher loop of the tensor variant, 64 in each step of other loops with look-ups.
        function flush(   i, j, from, n, count, op) {
            for (i = 0; i < n_code; i++) {
                if (code[i] !~ /(^| )BRA/) continue
                if (!match(code[i], /0x[0-9a-f]+ *$/)) continue
                from = at[substr(code[i], RSTART, RLENGTH)]
                if (from == "" || from >= i) continue
                delete count
                n = 0
                for (j = from; j <= i; j++) {
                    op = code[j]
                    sub(/^@!?U?P[0-9T]+ +/, "", op)
                    sub(/[ .].*/, "", op)
                    count[op]++
                    n++
                }
                if (n > 2000 || (count["LDS"] < 100 && count["BGMMA"] == 0)) continue
                printf "loop of %4d instructions: LDS %d, BGMMA %d, LOP3 %d, PRMT %d, IMAD %d, LDL+STL %d  %s\n", n,
                       count["LDS"], count["BGMMA"], count["LOP3"], count["PRMT"], count["IMAD"],
                       count["LDL"] + count["STL"], name
                if (count["LDS"] >= 100)
                    printf "     a block of 16 bytes: look-ups %.1f, LOP3 %.1f, PRMT %.1f\n", count["LDS"] / 2,
                           count["LOP3"] / 2, count["PRMT"] / 2
                else
                    printf "     512 blocks a turn of a warpgroup, %d products\n", count["BGMMA"]
            }
            n_code = 0
            delete at
        }
        /Function :/ { flush(); name = $0; sub(/.*Function : /, "", name) }
        match($0, /^ +\/\*[0-9a-f]+\*\/ /) {
            address = $1
            gsub(/[\/*]/, "", address)
            sub(/^0+/, "", address)
            text = $0
            sub(/^ +\/\*[0-9a-f]+\*\/ +/, "", text)
            sub(/ *;.*/, "", text)
            at["0x" address] = n_code
            code[n_code++] = text
        }
        END { flush() }'
done
