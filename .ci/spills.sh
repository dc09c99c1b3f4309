#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Reads what ptxas said of each kernel in a build log, prints the register table, and fails if a kernel spills. Where
# the log has a kernel more than once, the last build counts.
set -euo pipefail

# Bytes that ptxas of CUDA 13.0 spills where kvx has never run. Anything more, or anywhere else, is a breach.
allowed="sm_100=8"

c++filt <"$1" | awk -v allowed="$allowed" '
    BEGIN {
        n_allowed = split(allowed, pair, " ")
        for (i = 1; i <= n_allowed; i++) { split(pair[i], part, "="); limit[part[1]] = part[2] }
    }
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
            n_bad += spill[key] > limit[part[2]] + 0
        }
        close("sort -k 8 -k 1")
        if (n == 0) { print "spills: no kernel in the log"; exit 1 }
        printf "spills: %d kernels, %d of them spill, %d more than allowed (%s)\n", n, n_spill, n_bad, allowed
        exit n_bad != 0
    }'
