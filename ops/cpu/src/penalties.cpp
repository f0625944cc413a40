// Repetition, frequency and presence penalties: a row's tokens are counted, then its logits changed where any were.
#include <algorithm>
#include <vector>

#include "api.h"
#include "threads.h"

using namespace squadron;

namespace {

// A thread's, kept from call to call: all 0 between rows. The lowest bit says that a token was in the prompt; the bits
// above count it in the output.
int32_t* zero_counts(int64_t size) {
    static thread_local std::vector<int32_t> counts;
    if ((int64_t)counts.size() < size) counts.resize(size);
    return counts.data();
}

}  // namespace

SQUADRON_API void squadron_apply_penalties(float* logits, int64_t rows, int64_t size, const int32_t* ids,
                                           const int32_t* starts, const int32_t* lengths, const int32_t* num_prompt,
                                           const float* presence, const float* frequency, const float* repetition,
                                           int32_t threads) {
    for_each_dynamic(rows, threads, [=](int64_t r) {
        const int32_t* history = ids + starts[r];
        float* row = logits + r * size;
        int32_t* counts = zero_counts(size);
        const auto is_token = [=](int32_t id) { return id >= 0 && id < size; };
        for (int64_t i = 0; i < lengths[r]; i++) {
            if (!is_token(history[i])) continue;
            int32_t& count = counts[history[i]];
            count = i < num_prompt[r] ? count | 1 : count + 2;
        }
        for (int64_t i = 0; i < lengths[r]; i++) {
            if (!is_token(history[i]) || counts[history[i]] == 0) continue;  // 0: changed already
            const float num_outputs = (float)(counts[history[i]] >> 1);
            counts[history[i]] = 0;
            float& value = row[history[i]];
            value = value > 0 ? value / repetition[r] : value * repetition[r];
            value -= frequency[r] * num_outputs + presence[r] * (num_outputs > 0 ? 1.0f : 0.0f);
        }
    });
}
