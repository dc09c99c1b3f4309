/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVX_TESTS_POOL_PEER_H
#define KVX_TESTS_POOL_PEER_H
/* Another process, for the tests of shared memory. */
#include "cmocka_door.h"

#include <sys/types.h>

/* What a child is told and tells, one byte each. */
typedef struct peer {
    pid_t pid;
    int link;
} peer;

void peer_tell(int link, char byte);
char peer_hear(int link); /* 0: the other side has gone */
/* The child runs `run` with its end of the link, and exits with status 0 unless `run` does otherwise. */
peer peer_start(void (*run)(int link, const int fds[2]), const int fds[2]);
/* Waits for it: killed, or ended with status 0. */
void peer_end(peer p, int killed);

#endif
