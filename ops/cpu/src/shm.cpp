// Collectives between the ranks of one machine through a file in shared memory that each of them has mapped.
//
// The file holds, for each rank, a counter of its arrivals and two slots for what it contributes, used in turn: a rank writes
// its part of a chunk, arrives, waits for the others to arrive, and reads theirs. By the time it writes to a slot again every
// rank has arrived once more, hence read what was there. And for each rank a ring of slots to the next rank, for messages
// that nobody waits for. A waiting rank spins briefly, then sleeps on the counter; every now and then it looks whether the
// one it waits for still holds its lock on the file, which the kernel drops with the last of its process, and whether the
// group was aborted.
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>

#include "api.h"
#include "simd.h"

namespace squadron {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t SLOT_BYTES = 1 << 18, RING_SLOTS = 32, PAGE = 4096;
constexpr int MAX_RANKS = 64, SPINS = 4000;
constexpr auto LOOK_AROUND = std::chrono::milliseconds(50);  // between two looks at the peer's lock and at `is_aborted`

// Counts up; a rank that waits for it to pass a number may sleep.
struct alignas(64) Counter {
    std::atomic<uint32_t> value, sleepers;

    void add_one() {
        value.fetch_add(1);
        if (sleepers.load() > 0) syscall(SYS_futex, &value, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
    }
    bool has_reached(uint32_t target) const { return (int32_t)(value.load(std::memory_order_acquire) - target) >= 0; }

    // Until it has reached the target, or about LOOK_AROUND has passed.
    bool wait(uint32_t target) {
        for (int i = 0; i < SPINS; i++) {
            if (has_reached(target)) return true;
#if defined(__x86_64__)
            _mm_pause();
#endif
        }
        sleepers.fetch_add(1);
        const uint32_t seen = value.load();
        const timespec limit{0, std::chrono::nanoseconds(LOOK_AROUND).count()};
        if ((int32_t)(seen - target) < 0) syscall(SYS_futex, &value, FUTEX_WAIT, seen, &limit, nullptr, 0);
        sleepers.fetch_sub(1);
        return has_reached(target);
    }
};

struct RankCounters {
    Counter arrived, written, read;  // written, read: slots of the ring to the next rank
    alignas(64) std::atomic<bool> is_aborted;  // rank 0's stands for the group
};

int64_t counters_bytes(int size) { return (size * (int64_t)sizeof(RankCounters) + PAGE - 1) / PAGE * PAGE; }
int64_t slots_end(int size) { return counters_bytes(size) + 2 * size * SLOT_BYTES; }
int64_t file_bytes(int size) { return slots_end(size) + size * RING_SLOTS * SLOT_BYTES; }

// What a call returns: 0, or what failed it.
constexpr int32_t NO_ROOM = INT32_MIN, ABORTED = INT32_MIN + 1;
int32_t died(int rank) { return 1 + rank; }
int32_t silent(int rank) { return -1 - rank; }

}  // namespace

class SharedMemory {
   public:
    const int rank, size;

    SharedMemory(char* memory, int file, int rank, int size) : rank(rank), size(size), memory(memory), file(file) {}
    ~SharedMemory() { munmap(memory, file_bytes(size)); }

    // fill(slot) makes this rank's part of a chunk; read(slot), slot(peer) being a rank's part, once all have made theirs.
    template <class Fill, class Read>
    int32_t exchange(Clock::time_point deadline, Fill fill, Read read) {
        const uint32_t parity = arrivals & 1;
        fill(slot(parity, rank));
        counters(rank).arrived.add_one();
        arrivals++;
        for (int peer = 0; peer < size; peer++)
            if (const int32_t failure = wait(counters(peer).arrived, arrivals, peer, deadline)) return failure;
        read([&](int peer) { return slot(parity, peer); });
        return 0;
    }

    void abort() { counters(0).is_aborted.store(true); }

    int32_t send(const char* x, int64_t bytes, Clock::time_point deadline) {
        const int next = (rank + 1) % size;
        for (int64_t done = 0; done < bytes; done += SLOT_BYTES, sent++) {
            const int64_t part = std::min(SLOT_BYTES, bytes - done);
            if (!reserve(sent, part)) return NO_ROOM;
            if (const int32_t failure = wait(counters(rank).read, sent + 1 - RING_SLOTS, next, deadline)) return failure;
            std::memcpy(ring(rank, sent), x + done, part);
            counters(rank).written.add_one();
        }
        return 0;
    }

    int32_t receive(char* x, int64_t bytes, Clock::time_point deadline) {
        const int previous = (rank + size - 1) % size;
        for (int64_t done = 0; done < bytes; done += SLOT_BYTES, received++) {
            if (const int32_t failure = wait(counters(previous).written, received + 1, previous, deadline)) return failure;
            std::memcpy(x + done, ring(previous, received), std::min(SLOT_BYTES, bytes - done));
            counters(previous).read.add_one();
        }
        return 0;
    }

   private:
    RankCounters& counters(int of) { return ((RankCounters*)memory)[of]; }
    char* slot(uint32_t parity, int of) { return memory + counters_bytes(size) + (parity * size + of) * SLOT_BYTES; }
    char* ring(int from, uint32_t index) {
        return memory + slots_end(size) + (from * RING_SLOTS + index % RING_SLOTS) * SLOT_BYTES;
    }

    // The memory of a part of a message: without, the write to it could be the process's last.
    bool reserve(uint32_t index, int64_t bytes) {
        int64_t& reserved = ring_reserved[index % RING_SLOTS];
        if (bytes > reserved && posix_fallocate(file, ring(rank, index) - memory, bytes) != 0) return false;
        reserved = std::max(reserved, bytes);
        return true;
    }

    int32_t wait(Counter& counter, uint32_t target, int peer, Clock::time_point deadline) {
        while (!counter.wait(target)) {
            if (counter.has_reached(target)) return 0;
            if (counters(0).is_aborted.load()) return ABORTED;
            if (!is_alive(peer)) return counter.has_reached(target) ? 0 : died(peer);
            if (Clock::now() >= deadline) return silent(peer);
        }
        return 0;
    }

    bool is_alive(int peer) const {
        struct flock lock = {};
        lock.l_type = F_WRLCK;
        lock.l_start = peer;
        lock.l_len = 1;
        return peer == rank || fcntl(file, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
    }

    char* const memory;
    const int file;
    uint32_t arrivals = 0, sent = 0, received = 0;
    int64_t ring_reserved[RING_SLOTS] = {};  // bytes of each of this rank's
};

namespace {

Clock::time_point deadline_in(int64_t milliseconds) { return Clock::now() + std::chrono::milliseconds(milliseconds); }

// The ranks' values of one vector added as a balanced tree.
template <class Slot>
void add_tree(Slot slot, int size, float* out, int64_t count) {
    const float* parts[MAX_RANKS];
    for (int peer = 0; peer < size; peer++) parts[peer] = (const float*)slot(peer);
    for (int64_t i = 0; i < count; i += LANES) {
        Vec values[MAX_RANKS];
        for (int peer = 0; peer < size; peer++) values[peer] = load(parts[peer] + i);  // slots are whole vectors
        for (int left = size; left > 1; left /= 2)
            for (int pair = 0; pair < left / 2; pair++) values[pair] = values[2 * pair] + values[2 * pair + 1];
        store(out + i, values[0], count - i);
    }
}

// Bytes [begin, end) of a rank's x, [outer, inner], to their places in out [outer, ranks, inner].
void scatter(const char* x, int64_t begin, int64_t end, char* out, int64_t inner, int rank, int size) {
    for (int64_t at = begin; at < end;) {
        const int64_t row = at / inner, column = at % inner, count = std::min(inner - column, end - at);
        std::memcpy(out + (row * size + rank) * inner + column, x + (at - begin), count);
        at += count;
    }
}

}  // namespace
}  // namespace squadron

using namespace squadron;

SQUADRON_API int64_t squadron_shm_bytes(int32_t size) { return file_bytes(size); }

SQUADRON_API int64_t squadron_shm_reserved_bytes(int32_t size) { return slots_end(size); }

SQUADRON_API int32_t squadron_shm_max_ranks() { return MAX_RANKS; }

SQUADRON_API SharedMemory* squadron_shm_join(int32_t file, int32_t rank, int32_t size) {
    struct flock lock = {};
    lock.l_type = F_WRLCK;
    lock.l_start = rank;
    lock.l_len = 1;
    if (fcntl(file, F_OFD_SETLK, &lock) != 0) return nullptr;
    void* memory = mmap(nullptr, file_bytes(size), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    return memory == MAP_FAILED ? nullptr : new SharedMemory((char*)memory, file, rank, size);
}

SQUADRON_API void squadron_shm_leave(SharedMemory* shared) { delete shared; }

SQUADRON_API void squadron_shm_abort(SharedMemory* shared) { shared->abort(); }

SQUADRON_API int32_t squadron_shm_barrier(SharedMemory* shared, int64_t milliseconds) {
    return shared->exchange(deadline_in(milliseconds), [](char*) {}, [](auto) {});
}

SQUADRON_API int32_t squadron_shm_all_reduce(SharedMemory* shared, const float* x, float* out, int64_t count,
                                             int64_t milliseconds) {
    const PlainArithmetic arithmetic;
    const auto deadline = deadline_in(milliseconds);
    constexpr int64_t CHUNK = SLOT_BYTES / sizeof(float);
    for (int64_t begin = 0; begin < count; begin += CHUNK) {
        const int64_t length = std::min(CHUNK, count - begin);
        const int32_t failure = shared->exchange(
            deadline, [&](char* slot) { std::memcpy(slot, x + begin, length * sizeof(float)); },
            [&](auto slot) { add_tree(slot, shared->size, out + begin, length); });
        if (failure) return failure;
    }
    return 0;
}

SQUADRON_API int32_t squadron_shm_all_gather(SharedMemory* shared, const char* x, char* out, int64_t outer, int64_t inner,
                                             int64_t milliseconds) {
    const auto deadline = deadline_in(milliseconds);
    for (int64_t begin = 0; begin < outer * inner; begin += SLOT_BYTES) {
        const int64_t end = std::min(outer * inner, begin + SLOT_BYTES);
        const int32_t failure = shared->exchange(
            deadline, [&](char* slot) { std::memcpy(slot, x + begin, end - begin); },
            [&](auto slot) {
                for (int peer = 0; peer < shared->size; peer++)
                    scatter(slot(peer), begin, end, out, inner, peer, shared->size);
            });
        if (failure) return failure;
    }
    return 0;
}

SQUADRON_API int32_t squadron_shm_send(SharedMemory* shared, const char* x, int64_t bytes, int64_t milliseconds) {
    return shared->send(x, bytes, deadline_in(milliseconds));
}

SQUADRON_API int32_t squadron_shm_receive(SharedMemory* shared, char* x, int64_t bytes, int64_t milliseconds) {
    return shared->receive(x, bytes, deadline_in(milliseconds));
}
