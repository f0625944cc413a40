// Bans the tokens whose bits are 0.
#include <algorithm>
#include <limits>

#include "api.h"
#include "threads.h"

using namespace squadron;

SQUADRON_API void squadron_apply_mask(float* logits, int64_t rows, int64_t size, const int32_t* starts,
                                      const int32_t* words, int32_t threads) {
    constexpr float banned = -std::numeric_limits<float>::infinity();
    for_each(rows, 1, threads, [&](int64_t r) {
        float* row = logits + r * size;
        for (int64_t w = starts[r]; w < starts[r + 1]; w++) {
            const int64_t first = (w - starts[r]) * 32;
            const uint32_t word = (uint32_t)words[w];
            const int64_t count = std::min<int64_t>(32, size - first);
            if (word == 0) {
                std::fill_n(row + first, count, banned);
            } else if (word != ~0u) {
                for (int64_t bit = 0; bit < count; bit++) {
                    row[first + bit] = word >> bit & 1 ? row[first + bit] : banned;
                }
            }
        }
    });
}
