/* SPDX-License-Identifier: Apache-2.0 */
/* The portable GCM of kernels/gcm.h on the GPU, one thread per request: proof that the shared arithmetic gives the same
 * answers when nvcc compiles it. All bytes travel in one arena, in which requests are offsets. */
#include "kat_gpu.h"

#include <cuda_runtime.h>

#include <cstdio>
#include <cstring>
#include <vector>

#include "kernels/gcm.h"

namespace
{

struct job {
    size_t key, iv, aad, in, out; /* offsets in the arena */
    size_t aad_bytes, bytes;
    uint8_t tag[16];
    int opens, result;
};

char note[256] = "not used";

/* True if the call succeeded; otherwise writes the note. */
bool worked(cudaError_t error, const char *what)
{
    if (error != cudaSuccess)
        snprintf(note, sizeof note, "%s: %s", what, cudaGetErrorString(error));
    return error == cudaSuccess;
}

__global__ void run_jobs(uint8_t *arena, job *jobs, size_t n_jobs)
{
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n_jobs)
        return;
    job *j = &jobs[i];
    kvx_gcm_key gcm;
    kvx_gcm_message message;
    message.iv = arena + j->iv;
    message.aad = arena + j->aad;
    message.aad_bytes = j->aad_bytes;
    message.in = arena + j->in;
    message.out = arena + j->out;
    message.bytes = j->bytes;
    kvx_gcm_key_init(&gcm, arena + j->key);
    j->result = j->opens ? kvx_gcm_open(&gcm, &message, j->tag) : kvx_gcm_seal(&gcm, &message, j->tag);
    kvx_gcm_key_wipe(&gcm);
}

size_t append(std::vector<uint8_t> &arena, const uint8_t *bytes, size_t n_bytes)
{
    const size_t at = arena.size();
    if (n_bytes > 0)
        arena.insert(arena.end(), bytes, bytes + n_bytes);
    return at;
}

job pack(std::vector<uint8_t> &arena, const kat_request &r)
{
    job j = {};
    j.key = append(arena, r.key, 32);
    j.iv = append(arena, r.iv, 12);
    j.aad = append(arena, r.aad, r.aad_bytes);
    j.in = append(arena, r.in, r.bytes);
    j.out = append(arena, r.out, r.bytes); /* so that an output never written keeps the caller's filling */
    j.aad_bytes = r.aad_bytes;
    j.bytes = r.bytes;
    memcpy(j.tag, r.tag, sizeof j.tag);
    j.opens = r.opens;
    j.result = -1;
    return j;
}

void unpack(const std::vector<uint8_t> &arena, const job &j, kat_request *r)
{
    if (r->bytes > 0)
        memcpy(r->out, arena.data() + j.out, r->bytes);
    memcpy(r->tag, j.tag, sizeof j.tag);
    r->result = j.result;
}

bool run_on_device(std::vector<uint8_t> &arena, std::vector<job> &jobs)
{
    const unsigned n_threads = 128, n_blocks = (unsigned)((jobs.size() + n_threads - 1) / n_threads);
    const size_t jobs_bytes = jobs.size() * sizeof(job);
    uint8_t *dev_arena = nullptr;
    job *dev_jobs = nullptr;
    bool good = worked(cudaMalloc(&dev_arena, arena.size()), "cudaMalloc") &&
                worked(cudaMalloc(&dev_jobs, jobs_bytes), "cudaMalloc") &&
                worked(cudaMemcpy(dev_arena, arena.data(), arena.size(), cudaMemcpyHostToDevice), "upload") &&
                worked(cudaMemcpy(dev_jobs, jobs.data(), jobs_bytes, cudaMemcpyHostToDevice), "upload");
    if (good) {
        run_jobs<<<n_blocks, n_threads>>>(dev_arena, dev_jobs, jobs.size());
        good = worked(cudaGetLastError(), "launch") && worked(cudaDeviceSynchronize(), "run") &&
               worked(cudaMemcpy(arena.data(), dev_arena, arena.size(), cudaMemcpyDeviceToHost), "download") &&
               worked(cudaMemcpy(jobs.data(), dev_jobs, jobs_bytes, cudaMemcpyDeviceToHost), "download");
    }
    cudaFree(dev_jobs);
    cudaFree(dev_arena);
    return good;
}

/* 1 present, 0 absent; the note gets its name or the reason. */
int find_device()
{
    int n_devices = 0;
    cudaDeviceProp properties;
    if (!worked(cudaGetDeviceCount(&n_devices), "no device") || n_devices == 0)
        return 0;
    if (!worked(cudaGetDeviceProperties(&properties, 0), "no device"))
        return 0;
    snprintf(note, sizeof note, "%s", properties.name);
    return 1;
}

} // namespace

extern "C" const char *kvx_kat_gpu_note(void)
{
    return note;
}

extern "C" int kvx_kat_gpu(struct kat_request *requests, size_t n_requests)
{
    if (!find_device())
        return 0;
    if (n_requests == 0)
        return 1;
    std::vector<uint8_t> arena;
    std::vector<job> jobs;
    for (size_t i = 0; i < n_requests; i++)
        jobs.push_back(pack(arena, requests[i]));
    if (!run_on_device(arena, jobs))
        return -1;
    for (size_t i = 0; i < n_requests; i++)
        unpack(arena, jobs[i], &requests[i]);
    return 1;
}
