/* SPDX-License-Identifier: Apache-2.0 */
#include "bench.h"
static bool run(bench *b)
{
    (void)b;
    return true;
}
const bench_sub bench_transfer = {"transfer", "x", "x", NULL, run};
