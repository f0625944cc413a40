// Passes over one row of logits, in blocks of 64 whose sums are taken in halves (32 + 32, 16 + 16, ...), as ops.reference does.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "simd.h"

namespace squadron {

constexpr int SCAN_BLOCK = 64;

inline int64_t num_blocks(int64_t size) { return (size + SCAN_BLOCK - 1) / SCAN_BLOCK; }

// A row, with the largest value of each of its blocks.
class ScannedRow {
   public:
    void scan(const float* values, int64_t size);

    // The row's largest value; NaN if it has any NaN.
    float largest_value() const { return largest; }
    // Its id, the lowest of equals; the first NaN's if there is any.
    int64_t argmax() const;
    // Ids of the values that are at least `threshold`, in order.
    void ids_from(float threshold, std::vector<int32_t>& ids) const;
    // Ids of the `count` largest, in falling order, the lower id first where equal.
    void top(int64_t count, std::vector<int32_t>& ids) const;

   private:
    const float* values;
    int64_t size;
    float largest;
    std::vector<float> maxima;
};

// Unnormalised probabilities, [num_blocks * 64] with zeros at the end, and their running sum up to the end of each block.
struct Mass {
    std::vector<float> values;
    std::vector<double> running;

    // e^((logits - largest) / temperature); zero below e^-87.
    void exponentiate(const float* logits, int64_t size, float largest, float temperature);
    void add_up();
    double total() const { return running.back(); }
};

}  // namespace squadron
