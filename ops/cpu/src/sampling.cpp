// A token for each row of logits: the largest, or an inverse CDF at one counter-based random number.
//
// The same steps as ops.reference.logits.sampling, sums taken in the same order; tokens can differ from its only where
// e^x rounds differently.
#include <algorithm>
#include <functional>

#include "api.h"
#include "philox.h"
#include "scan.h"
#include "threads.h"

namespace squadron {
namespace {

struct Filters {
    float temperature;
    int32_t top_k;  // 0: all
    float top_p, min_p;
};

class Sampler {
   public:
    int32_t sample(const float* logits, int64_t size, const Filters& filters, double number) {
        row.scan(logits, size);
        const float largest = row.largest_value();
        // A row with a NaN or an infinity gives a token, but none that means anything.
        if (filters.temperature == 0 || !std::isfinite(largest)) return (int32_t)row.argmax();
        mass.exponentiate(logits, size, largest, filters.temperature);
        if (filters.top_k > 0 && filters.top_k < size) keep_top_k(logits, size, filters.top_k);
        if (filters.top_p < 1) keep_top_p(filters.top_p);
        if (filters.min_p > 0) keep_where([&](float value, int64_t) { return value >= filters.min_p; });
        return inverse_cdf(number);
    }

   private:
    template <class Predicate>
    void keep_where(Predicate predicate) {
        for (int64_t i = 0; i < (int64_t)mass.values.size(); i++)
            mass.values[i] = predicate(mass.values[i], i) ? mass.values[i] : 0.0f;
        mass.add_up();
    }

    // The k largest logits, and all that equal the k-th.
    void keep_top_k(const float* logits, int64_t size, int32_t k) {
        row.top(k, ids);
        const float threshold = logits[ids.back()];
        keep_where([&](float, int64_t i) { return i < size && logits[i] >= threshold; });
    }

    // The most likely tokens up to the one that fills top_p of the mass; of equal ones the lower ids.
    void keep_top_p(float top_p) {
        const double target = top_p * mass.total();
        masses.scan(mass.values.data(), mass.values.size());
        // What lies below the mean of the remaining (1 - top_p) cannot be needed, were it not for rounding.
        const int32_t last = last_to_fill(target, (float)((1 - (double)top_p) * mass.total() / mass.values.size() / 2));
        const float smallest = mass.values[last];
        keep_where([&](float value, int64_t i) { return value > smallest || (value == smallest && i <= last); });
    }

    // Of the masses from `threshold` on, in falling order, the one with which their sum reaches `target`.
    int32_t last_to_fill(double target, float threshold) {
        masses.ids_from(threshold, ids);
        double filled = 0;
        for (size_t begin = 0, end = 256; begin < ids.size(); begin = end, end *= 8) {
            end = std::min(end, ids.size());
            std::partial_sort(ids.begin() + begin, ids.begin() + end, ids.end(), [&](int32_t a, int32_t b) {
                return mass.values[a] != mass.values[b] ? mass.values[a] > mass.values[b] : a < b;
            });
            for (size_t i = begin; i < end; i++)
                if ((filled += mass.values[ids[i]]) >= target) return ids[i];
        }
        return threshold > 0 ? last_to_fill(target, 0) : ids.back();
    }

    // The first token, in order of id, whose running mass exceeds number * total: first its block, then within it. A block's
    // sum and the running sum inside it may differ in the last bit, so the search ends at the last token with any mass.
    int32_t inverse_cdf(double number) const {
        const double target = number * mass.total();
        const auto& running = mass.running;
        int64_t block = std::upper_bound(running.begin(), running.end(), target) - running.begin();
        block = std::min<int64_t>(block, running.size() - 1);
        const double rest = target - (block > 0 ? running[block - 1] : 0.0);
        double sum = 0;
        int64_t last = block * SCAN_BLOCK;
        for (int64_t i = block * SCAN_BLOCK; i < (block + 1) * SCAN_BLOCK; i++) {
            if (mass.values[i] == 0) continue;
            last = i;
            if ((sum += mass.values[i]) > rest) break;
        }
        return (int32_t)last;
    }

    ScannedRow row, masses;
    Mass mass;
    std::vector<int32_t> ids;
};

}  // namespace
}  // namespace squadron

using namespace squadron;

SQUADRON_API void squadron_sample(const float* logits, int64_t rows, int64_t size, const float* temperature,
                                  const int32_t* top_k, const float* top_p, const float* min_p, const int64_t* seed,
                                  const int32_t* choice, const int32_t* position, int32_t* tokens, int32_t threads) {
    for_each(rows, 1, threads, [&](int64_t r) {
        static thread_local Sampler sampler;
        const double number = uniform((uint64_t)seed[r], (uint32_t)choice[r], (uint32_t)position[r]);
        const Filters filters{temperature[r], top_k[r], top_p[r], min_p[r]};
        tokens[r] = sampler.sample(logits + r * size, size, filters, number);
    });
}
