// Log probabilities of given tokens, their ranks, and the most likely tokens.
#include <cmath>

#include "api.h"
#include "scan.h"
#include "threads.h"

namespace squadron {
namespace {

// 1 = the largest; equal ones by id.
int32_t rank(const float* logits, int64_t size, int64_t id) {
    const float chosen = logits[id];
    int32_t before = 0;
    for (int64_t i = 0; i < id; i++) before += logits[i] >= chosen;
    for (int64_t i = id + 1; i < size; i++) before += logits[i] > chosen;
    return 1 + before;
}

}  // namespace
}  // namespace squadron

using namespace squadron;

SQUADRON_API void squadron_token_logprobs(const float* logits, int64_t rows, int64_t size, const int32_t* token_ids,
                                          int64_t num_top, float* logprobs, int32_t* ranks, int32_t* top_ids,
                                          float* top_logprobs, int32_t threads) {
    for_each(rows, 1, threads, [&](int64_t r) {
        static thread_local ScannedRow row;
        static thread_local Mass mass;
        static thread_local std::vector<int32_t> ids;
        const float* values = logits + r * size;
        row.scan(values, size);
        const float largest = row.largest_value();
        mass.exponentiate(values, size, largest, 1.0f);
        const double total = (double)largest + std::log(mass.total());
        logprobs[r] = (float)((double)values[token_ids[r]] - total);
        ranks[r] = rank(values, size, token_ids[r]);
        if (num_top == 0) return;
        if (std::isnan(largest)) {
            ids.resize(num_top);
            for (int64_t i = 0; i < num_top; i++) ids[i] = (int32_t)i;
        } else {
            row.top(num_top, ids);
        }
        for (int64_t i = 0; i < num_top; i++) {
            top_ids[r * num_top + i] = ids[i];
            top_logprobs[r * num_top + i] = (float)((double)values[ids[i]] - total);
        }
    });
}
