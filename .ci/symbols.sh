#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What libkvx.so exports is what the headers mark with KVX_API is what src/kvx.map lists. Also prints SONAME and NEEDED.
set -euo pipefail
cd "$(dirname "$0")/.."
library=$1/libkvx.so

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
nm -D --defined-only "$library" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }' | sort >"$scratch/exported"
cat include/*.h | perl -0ne 'while (/^KVX_API\s[^;(]*?\b(kvx_[a-z0-9_]+)\s*\(/mg) { print "$1\n" }' | sort >"$scratch/declared"
grep -oE '^ +kvx_[a-z0-9_]+;' src/kvx.map | tr -d ' ;' | sort >"$scratch/listed"
status=0
diff -u "$scratch/declared" "$scratch/listed" || { echo "symbols: KVX_API in include/ and src/kvx.map differ"; status=1; }
diff -u "$scratch/listed" "$scratch/exported" || { echo "symbols: src/kvx.map and $library differ"; status=1; }
readelf -d "$library" | sed -n 's/.*(\(SONAME\|NEEDED\)).*\[\(.*\)\]/symbols: \1 \2/p'
[ $status -ne 0 ] || echo "symbols: $(wc -l <"$scratch/exported") exported, as declared"
exit $status
