// Threads walk through the jobs together, each at its own pace; no job begins before the one before it is done.
//
// With a barrier after each, all would wait for a thread that has lost its core for as long as another process' turn lasts,
// four milliseconds or so, where a job takes a fifth of one. Here a thread that does not run holds at most the piece it was
// computing: the others take the rest of its share. If the piece is repeatable, one of them computes it again after a while,
// and whoever is first in may_write writes it; the late one finds that out, and that the next jobs are done as well. A thread
// is only waited for if it was stopped while taking a piece, while writing, or in a piece that is not repeatable, which are a
// few per cent of the time, and at the end, when the caller gets its memory back.
//
// libgomp is the one that torch has loaded: one pool of threads for both, so that neither waits for cores the other is spinning
// on.
#include "threads.h"

#include <cassert>
#include <cerrno>
#include <chrono>

#include <omp.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "api.h"
#include "simd.h"
#include "tile_registers.h"

namespace squadron {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int PIECE_BITS = 22;
constexpr int64_t MAX_PIECES = (1 << PIECE_BITS) - 1;
constexpr int SPINS = 32;                // between two looks at the clock
constexpr int SPINS_BEFORE_REST = 1000;  // some 50 microseconds
constexpr auto REST_AFTER = std::chrono::microseconds(50);

// Of a thread's piece. One that is being TAKEN is written by another thread.
enum Phase : uint64_t { DONE, CLAIMING, COMPUTING, WRITING, TAKEN };

// What a thread is at, in one word: a job's number (from 1 on, growing), the piece, the phase.
struct State {
    uint64_t job, piece;
    Phase phase;

    explicit State(uint64_t word) : job(word >> 32), piece(word >> 4 & MAX_PIECES), phase((Phase)(word & 15)) {}
    State(uint64_t job, uint64_t piece, Phase phase) : job(job), piece(piece), phase(phase) {}
    uint64_t word() const { return job << 32 | piece << 4 | phase; }
};

// What is left of a thread's share of a job's pieces, in one word.
struct Share {
    uint64_t job, begin, end;

    explicit Share(uint64_t word) : job(word >> 2 * PIECE_BITS), begin(word >> PIECE_BITS & MAX_PIECES), end(word & MAX_PIECES) {}
    Share(uint64_t job, Range pieces) : job(job), begin(pieces.begin), end(pieces.end) {}
    uint64_t word() const { return job << 2 * PIECE_BITS | begin << PIECE_BITS | end; }
};

struct alignas(64) Member {
    std::atomic<uint64_t> share{0}, state{0};
};

void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

// Leaves the core to others: to the thread that is waited for, if it stands in this core's queue or in another's.
void rest() {
    const timespec duration{0, 50'000};
    nanosleep(&duration, nullptr);
}

class Walk {
   public:
    Walk(const Job* jobs, int64_t count, Member* members) : jobs(jobs), count(count), members(members) {}

    void walk(int me, int threads) const {
        for (int64_t i = 0; i < count; i++) {
            while (compute_one(i, me, threads)) continue;
            for (int other = 0; other < threads; other++)
                if (other != me) wait_for(i, other);
        }
        members[me].state.store(State(count + 1, 0, DONE).word(), std::memory_order_release);
        for (int other = 0; other < threads; other++)
            if (other != me) wait_for_leaving(other);
    }

   private:
    // A piece of the job, of this thread's share or of another's. False if none is left: from then on nobody takes one.
    bool compute_one(int64_t i, int me, int threads) const {
        const Job& job = jobs[i];
        const uint64_t number = i + 1;
        std::atomic<uint64_t>& state = members[me].state;
        // Whoever sees that the piece was taken also sees this, and does not think the job done.
        state.store(State(number, 0, CLAIMING).word(), std::memory_order_release);
        Piece piece{};
        bool found = false;
        for (int k = 0; k < threads && !found; k++) found = claim(i, (me + k) % threads, k == 0, threads, piece);
        if (!found) {
            state.store(State(number, 0, DONE).word(), std::memory_order_release);
            return false;
        }
        piece.computing = State(number, piece.number, COMPUTING).word();
        piece.writing = State(number, piece.number, WRITING).word();
        piece.state = job.patience_ns > 0 ? &state : nullptr;
        state.store(piece.computing, std::memory_order_release);
        job.compute(piece);
        for (int spins = 0; State(state.load(std::memory_order_acquire)).phase == TAKEN; spins++)
            spins < SPINS_BEFORE_REST ? pause() : rest();
        return true;
    }

    // From the front of its own share, from the back of another's. A share that nobody has touched yet still has an
    // earlier job's number.
    bool claim(int64_t i, int owner, bool is_own, int threads, Piece& piece) const {
        const uint64_t number = i + 1;
        std::atomic<uint64_t>& share = members[owner].share;
        uint64_t seen = share.load(std::memory_order_acquire);
        while (true) {
            Share left(seen);
            if (left.job > number) return false;
            if (left.job < number) left = Share(number, first_share(jobs[i], owner, threads));
            if (left.begin == left.end) return false;
            const bool from_front = is_own || jobs[i].is_in_order;
            piece.number = from_front ? left.begin++ : --left.end;
            piece.next = is_own && left.begin < left.end ? left.begin : -1;
            if (share.compare_exchange_weak(seen, left.word(), std::memory_order_acq_rel, std::memory_order_acquire)) return true;
        }
    }

    static Range first_share(const Job& job, int owner, int threads) {
        if (job.is_in_order) return owner == 0 ? Range{0, job.pieces} : Range{0, 0};
        return squadron::share(job.pieces, owner, threads);
    }

    // No piece of the job is left to be taken: until the other thread computes none, or this one has done so in its place.
    void wait_for(int64_t i, int other) const {
        const Job& job = jobs[i];
        Clock::time_point started{};
        for (int spins = 1;; spins++) {
            const State state(members[other].state.load(std::memory_order_acquire));
            if (state.job != (uint64_t)i + 1 || state.phase == DONE) return;
            pause();
            if (spins % SPINS != 0) continue;
            const auto now = Clock::now();
            if (spins == SPINS) started = now;
            if (job.patience_ns > 0 && state.phase == COMPUTING && now - started >= std::chrono::nanoseconds(job.patience_ns))
                take_over(job, state, members[other].state);
            else if (now - started >= REST_AFTER)
                rest();
        }
    }

    // The barrier at the end would spin for one that does not run.
    void wait_for_leaving(int other) const {
        const auto is_leaving = [&] {
            return State(members[other].state.load(std::memory_order_acquire)).job > (uint64_t)count;
        };
        for (int spins = 0; !is_leaving(); spins++) spins < SPINS_BEFORE_REST ? pause() : rest();
    }

    static void take_over(const Job& job, State of_other, std::atomic<uint64_t>& state) {
        Piece piece{(int64_t)of_other.piece, -1, &state, of_other.word(), State(of_other.job, of_other.piece, TAKEN).word()};
        job.compute(piece);
        if (piece.has_written) state.store(State(of_other.job, 0, DONE).word(), std::memory_order_release);
    }

    const Job* jobs;
    int64_t count;
    Member* members;
};

thread_local Recording* recording = nullptr;

}  // namespace

Recording::Recording() { recording = this; }
Recording::~Recording() { recording = nullptr; }
Recording* Recording::current() { return recording; }

Job in_countable_pieces(Job job) {
    if (job.pieces <= MAX_PIECES) return job;
    const int64_t pieces = job.pieces, size = (pieces + MAX_PIECES - 1) / MAX_PIECES;
    const auto compute = [=, one_by_one = std::move(job.compute)](Piece& piece) {
        const int64_t end = std::min(pieces, (piece.number + 1) * size);
        for (Piece each{piece.number * size, 0}; each.number < end; each.number++) {
            each.next = each.number + 1 < end ? each.number + 1 : piece.next < 0 ? -1 : piece.next * size;
            one_by_one(each);
        }
    };
    return {(pieces + size - 1) / size, job.threads, compute, job.is_in_order};  // may_write is asked once: not repeatable
}

void run(const Job* jobs, int64_t count) {
    int threads = 1;
    for (int64_t i = 0; i < count; i++) assert(jobs[i].pieces <= MAX_PIECES);
    for (int64_t i = 0; i < count; i++)
        threads = std::max(threads, (int)std::min<int64_t>(jobs[i].threads, jobs[i].pieces));
    if (threads == 1) {
        const PlainArithmetic arithmetic;
        const TileRegisters registers;
        for (int64_t i = 0; i < count; i++)
            for (Piece piece{0, 0}; piece.number < jobs[i].pieces; piece.number++) {
                piece.next = piece.number + 1 < jobs[i].pieces ? piece.number + 1 : -1;
                jobs[i].compute(piece);
            }
        return;
    }
    const std::unique_ptr<Member[]> members(new Member[threads]);
    const Walk walk(jobs, count, members.get());
#pragma omp parallel num_threads(threads)
    {
        const PlainArithmetic arithmetic;
        const TileRegisters registers;
        walk.walk(omp_get_thread_num(), omp_get_num_threads());
    }
}

}  // namespace squadron

int32_t squadron_start() {
#if defined(__AMX_BF16__)
    constexpr int ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18;
    if (syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0) return 0;
    return errno == ENOSPC ? -1 : errno;
#else
    return 0;
#endif
}

void squadron_thread_ids(int32_t* ids, int32_t threads) {
    std::fill(ids, ids + threads, -1);
#pragma omp parallel num_threads(threads)
    ids[omp_get_thread_num()] = (int32_t)syscall(SYS_gettid);
}
