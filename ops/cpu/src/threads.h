// Work shared among threads, in pieces: each thread has a share of them, and takes from the others' when its own is done.
//
// Which thread computes a piece never enters into its value. A thread may lose its core at any time, to another process; the
// others then go on without it, see threads.cpp.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace squadron {

struct Range {
    int64_t begin, end;
};

inline Range share(int64_t count, int64_t part, int64_t parts) {
    return {count * part / parts, count * (part + 1) / parts};
}

// The same in wholes of `size`, but for the last of them.
inline Range share_of_wholes(int64_t count, int64_t size, int64_t part, int64_t parts) {
    const Range wholes = share((count + size - 1) / size, part, parts);
    return {wholes.begin * size, std::min(count, wholes.end * size)};
}

// A piece as a thread computes it.
struct Piece {
    int64_t number;
    int64_t next;  // the one that this thread means to compute after it; -1: none

    // Of a repeatable piece, to be asked once, after computing and before writing: false if another thread writes it.
    bool may_write() {
        if (state == nullptr) return true;
        uint64_t expected = computing;
        has_written = state->compare_exchange_strong(expected, writing, std::memory_order_acq_rel);
        return has_written;
    }

    std::atomic<uint64_t>* state = nullptr;  // of the thread that took the piece; null if it is not repeatable
    uint64_t computing = 0, writing = 0;     // what it is before may_write, and after
    bool has_written = false;
};

struct Job {
    int64_t pieces;
    int threads;  // how many to use at most
    std::function<void(Piece& piece)> compute;
    bool is_in_order = false;  // pieces are taken in order, by all threads: for those of uneven cost
    // If not 0, a piece may be computed twice at a time, and once more after the job was done, until may_write: a thread that
    // has waited so long for another computes the other's piece itself.
    int64_t patience_ns = 0;
};

// Jobs are done one after the other, each by all threads; none starts others.
void run(const Job* jobs, int64_t count);

// While one exists, this thread's jobs are not done but noted down, with copies of what they capture.
class Recording {
   public:
    Recording();
    ~Recording();
    Recording(const Recording&) = delete;
    static Recording* current();

    std::vector<Job> jobs;
};

// The same in no more pieces than threads can count: neighbours are one, where there are too many.
Job in_countable_pieces(Job job);

inline void perform(Job job) {
    job = in_countable_pieces(std::move(job));
    if (Recording* recording = Recording::current())
        recording->jobs.push_back(std::move(job));
    else
        run(&job, 1);
}

// body(i) for each i below count; `grain` is the least number of items that is worth waking a thread for.
template <class Body>
void for_each(int64_t count, int64_t grain, int threads, Body body) {
    constexpr int64_t PIECES_OF_A_THREAD = 8;
    if (count <= 0) return;
    if (count < 2 * grain) threads = 1;
    const int64_t pieces = threads == 1 ? 1 : std::min(count / grain, PIECES_OF_A_THREAD * threads);
    perform({pieces, threads, [=](Piece& piece) {
                 const Range items = share(count, piece.number, pieces);
                 for (int64_t i = items.begin; i < items.end; i++) body(i);
             }});
}

// As for_each, for items of uneven cost: they are taken in order, one at a time.
template <class Body>
void for_each_dynamic(int64_t count, int threads, Body body) {
    if (count > 0) perform({count, threads, [=](Piece& piece) { body(piece.number); }, true});
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
