/* SPDX-License-Identifier: Apache-2.0 */
/* Child processes with a socket to talk over. */
#include "pool_peer.h"

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

void peer_tell(int link, char byte)
{
    if (write(link, &byte, 1) != 1)
        _exit(9);
}

char peer_hear(int link)
{
    char byte = 0;
    return read(link, &byte, 1) == 1 ? byte : 0;
}

peer peer_start(void (*run)(int link, const int fds[2]), const int fds[2])
{
    int ends[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    peer p = {fork(), ends[0]};
    assert_true(p.pid >= 0);
    if (p.pid == 0) {
        close(ends[0]);
        run(ends[1], fds);
        _exit(0);
    }
    close(ends[1]);
    return p;
}

void peer_end(peer p, int killed)
{
    int ended;
    assert_int_equal(waitpid(p.pid, &ended, 0), p.pid);
    if (killed)
        assert_true(WIFSIGNALED(ended));
    else
        assert_true(WIFEXITED(ended) && WEXITSTATUS(ended) == 0);
    close(p.link);
}
