#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Reads what ptxas said of each kernel in a build log, prints the register table, and fails if a kernel spills. Where
# the log has a kernel more than once, the last build counts.
set -euo pipefail

awk '
    /Compiling entry function/ { split($0, part, "\047"); kernel = part[2]; arch = part[4]; next }
    kernel != "" && /bytes stack frame/ {
        for (i = 2; i <= NF; i++) {
            if ($i == "bytes" && $(i + 1) == "stack") stack[kernel, arch] = $(i - 1)
            if ($i == "bytes" && $(i + 1) == "spill") spill[kernel, arch] = $(i + 2) ~ /stores/ ? $(i - 1) + 0 : spill[kernel, arch] + $(i - 1)
        }
    }
    kernel != "" && / Used [0-9]+ registers/ {
        for (i = 2; i <= NF; i++) if ($i ~ /^registers/) registers[kernel, arch] = $(i - 1)
        kernel = ""
    }
    END {
        for (key in registers) {
            split(key, part, SUBSEP)
            printf "%-8s %4d registers, stack %d, spilled %d  %s\n", part[2], registers[key], stack[key], spill[key], part[1] | "sort -k 8 -k 1"
            n++
            n_bad += spill[key] != 0
        }
        close("sort -k 8 -k 1")
        if (n == 0) { print "spills: no kernel in the log"; exit 1 }
        printf "spills: %d kernels, %d of them spill\n", n, n_bad
        exit n_bad != 0
    }' "$1"
