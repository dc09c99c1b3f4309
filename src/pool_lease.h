/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVX_SRC_POOL_LEASE_H
#define KVX_SRC_POOL_LEASE_H
/*
 * Memory shared between processes: one memfd holds it, cut into units, another the table of who leases which. Only
 * memory is shared; slots, books and keys are each process's own. The table is ordinary private memory of the guest: it
 * is never part of the pool. Nothing in it is followed or used as an index, and nobody waits for anybody.
 */
#include "kvx_pool.h"

#define KVX_LEASES_MAX 65536u

typedef struct kvx_lease kvx_lease;

/* Makes both files, of n_units units, with this process as their owner. */
kvx_status kvx_lease_create(uint64_t unit_bytes, uint32_t n_units, kvx_lease **lease);
/* Opens what another made. Checks everything that is in the files. KVX_UNSUPPORTED: the owner has ended. */
kvx_status kvx_lease_open(const int fds[2], kvx_lease **lease);
/* Gives back all units and the files. */
void kvx_lease_close(kvx_lease *lease);

uint64_t kvx_lease_unit_bytes(const kvx_lease *lease);
uint32_t kvx_lease_n_units(const kvx_lease *lease);
int kvx_lease_file(const kvx_lease *lease);
/* Leases n units, all or none (KVX_AGAIN), once an object; sets their offsets in the file. Takes back from the dead if
 * need be. */
kvx_status kvx_lease_take(kvx_lease *lease, uint32_t n, uint64_t *offsets, size_t stride);
/* Takes back the units of processes that have ended. Returns how many. */
uint32_t kvx_lease_reclaim(kvx_lease *lease);
/* Two new descriptors. */
kvx_status kvx_lease_export(const kvx_lease *lease, int fds[2]);
void kvx_lease_report(kvx_lease *lease, kvx_pool_stats *stats);

#endif
