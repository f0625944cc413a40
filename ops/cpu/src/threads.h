// Work shared among OpenMP threads: in equal shares known beforehand, or item by item as threads come free.
//
// Which thread computes an element never enters into its value. libgomp is the one that torch has loaded: one pool of
// threads for both, so that neither waits for cores the other is spinning on.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include <omp.h>

namespace squadron {

struct Range {
    int64_t begin, end;
};

inline Range share(int64_t count, int thread, int threads) {
    return {count * thread / threads, count * (thread + 1) / threads};
}

// body(thread, threads) once on each thread.
template <class Body>
void on_each_thread(int threads, Body body) {
    if (threads == 1) return body(0, 1);
#pragma omp parallel num_threads(threads)
    body(omp_get_thread_num(), omp_get_num_threads());
}

// body(i) for each i below count; `grain` is the least number of items that is worth waking a thread for.
template <class Body>
void for_each(int64_t count, int64_t grain, int threads, Body body) {
    if (count < 2 * grain) threads = 1;
    on_each_thread(threads, [&](int thread, int actual) {
        const Range mine = share(count, thread, actual);
        for (int64_t i = mine.begin; i < mine.end; i++) body(i);
    });
}

// As for_each, for items of uneven cost: they are taken in order, one at a time.
template <class Body>
void for_each_dynamic(int64_t count, int threads, Body body) {
    if (count < threads) threads = count > 0 ? (int)count : 1;
    std::atomic<int64_t> next{0};
    on_each_thread(threads, [&](int, int) {
        for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) body(i);
    });
}

// A thread's working memory, aligned to a cache line, kept from call to call and only ever grown.
inline float* scratch(int64_t floats) {
    static thread_local std::unique_ptr<float[]> memory;
    static thread_local int64_t size = 0;
    if (size < floats + 16) {
        memory.reset(new float[floats + 16]);
        size = floats + 16;
    }
    return (float*)(((uintptr_t)memory.get() + 63) / 64 * 64);
}

}  // namespace squadron
