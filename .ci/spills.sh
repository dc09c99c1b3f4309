#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Reads what ptxas said of each kernel in a build log, prints the register table, and fails if a kernel spills. Where
# the log has a kernel more than once, the last build counts.
set -euo pipefail

c++filt <"$1" | awk '
    /Compiling entry function/ { split($0, part, "\047"); kernel = part[2]; arch = part[4]; next }
    kernel != "" && /bytes stack frame/ {
        for (i = 2; i <= NF; i++) {
            if ($i != "bytes") continue
            if ($(i + 1) == "stack") stack[kernel, arch] = $(i - 1)
            if ($(i + 2) ~ /stores/) spill[kernel, arch] = $(i - 1)
        }
    }
    kernel != "" && / Used [0-9]+ registers/ {
        for (i = 2; i <= NF; i++) if ($i ~ /^registers/) registers[kernel, arch] = $(i - 1)
        kernel = ""
    }
    END {
        for (key in registers) {
            split(key, part, SUBSEP)
            printf "%-7s %4d registers, stack %2d, spilled %2d  %s\n", part[2], registers[key], stack[key], spill[key],
                   part[1] | "sort -k 8 -k 1"
            n++
            n_spill += spill[key] != 0
        }
        close("sort -k 8 -k 1")
        if (n == 0) { print "spills: no kernel in the log"; exit 1 }
        printf "spills: %d kernels, %d of them spill\n", n, n_spill
        exit n_spill != 0
    }'
