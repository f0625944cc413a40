// Calls of kernels, noted down once and made again, one after the other, without a step of Python between them.
#include "tape.h"

#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "threads.h"

namespace squadron {
namespace {

using Replay = int64_t (*)(const uint64_t* words);

template <class Argument>
Argument from_word(uint64_t word) {
    static_assert(sizeof(Argument) <= sizeof word);
    Argument argument;
    std::memcpy(&argument, &word, sizeof argument);
    return argument;
}

template <class Result, class... Arguments, size_t... I>
int64_t call(Result (*kernel)(Arguments...), const uint64_t* words, std::index_sequence<I...>) {
    static_assert(sizeof...(Arguments) <= MAX_ARGUMENTS);
    if constexpr (std::is_void_v<Result>)
        return kernel(from_word<Arguments>(words[I])...), 0;
    else
        return kernel(from_word<Arguments>(words[I])...);
}

template <class Result, class... Arguments>
int64_t call(Result (*kernel)(Arguments...), const uint64_t* words) {
    return call(kernel, words, std::index_sequence_for<Arguments...>{});
}

struct Kernel {
    std::string_view name;
    Replay replay;
    int64_t success;     // what it returns if all went well
    bool is_noted_down;  // its jobs can be done later: it looks at no result of those before it
};

#define KERNEL(name, success, is_noted_down) \
    {#name, [](const uint64_t* words) { return call(name, words); }, success, is_noted_down}

// Those that a forward pass is made of.
constexpr Kernel KERNELS[] = {
    KERNEL(squadron_linear, 0, true),
    KERNEL(squadron_adapter_down, 0, true),
    KERNEL(squadron_gather, 0, true),
    KERNEL(squadron_encode_digits, 0, true),
    KERNEL(squadron_encode_rows, 0, true),
    KERNEL(squadron_int8_linear, 0, true),
    KERNEL(squadron_silu_and_mul, 0, true),
    KERNEL(squadron_rms_norm, 0, true),
    KERNEL(squadron_add, 0, true),
    KERNEL(squadron_add_rms_norm, 0, true),
    KERNEL(squadron_qk_norm, 0, true),
    KERNEL(squadron_route, 0, true),
    KERNEL(squadron_experts, 0, false),
    KERNEL(squadron_add_gated, 0, true),
    KERNEL(squadron_rotary_and_cache, -1, true),
    KERNEL(squadron_paged_attention, -1, true),
    KERNEL(squadron_shm_all_reduce, 0, false),
};

}  // namespace
}  // namespace squadron

using namespace squadron;

SQUADRON_API int32_t squadron_tape_kernel(const char* name, int64_t* success) {
    int32_t number = 0;
    for (const Kernel& kernel : KERNELS) {
        if (kernel.name == name) {
            *success = kernel.success;
            return number;
        }
        number++;
    }
    return -1;
}

SQUADRON_API int64_t squadron_tape_call_bytes() { return sizeof(TapeCall); }

// As many calls as can be are one program, so that a thread need not come back in time for each.
SQUADRON_API int64_t squadron_tape_replay(const TapeCall* calls, int64_t count, int64_t* result) {
    for (int64_t i = 0; i < count;) {
        int64_t failed = -1;
        std::vector<Job> jobs;
        {
            Recording recording;
            for (; failed < 0 && i < count && KERNELS[calls[i].kernel].is_noted_down; i++) {
                const Kernel& kernel = KERNELS[calls[i].kernel];
                *result = kernel.replay(calls[i].words);
                if (*result != kernel.success) failed = i;
            }
            jobs = std::move(recording.jobs);
        }
        run(jobs.data(), (int64_t)jobs.size());
        if (failed >= 0) return failed;
        if (i == count) break;
        const Kernel& kernel = KERNELS[calls[i].kernel];
        *result = kernel.replay(calls[i].words);
        if (*result != kernel.success) return i;
        i++;
    }
    return -1;
}
