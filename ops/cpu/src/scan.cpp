// The passes of scan.h.
#include "scan.h"

#include <algorithm>
#include <functional>

namespace squadron {
namespace {

// function(block, its 64 values), the last ones of the row followed by -infinity.
template <class Function>
void for_each_block(const float* values, int64_t size, Function function) {
    const int64_t whole = size / SCAN_BLOCK;
    for (int64_t block = 0; block < whole; block++) function(block, values + block * SCAN_BLOCK);
    if (whole * SCAN_BLOCK == size) return;
    float rest[SCAN_BLOCK];
    std::fill_n(rest, SCAN_BLOCK, -INFINITY);
    std::copy(values + whole * SCAN_BLOCK, values + size, rest);
    function(whole, rest);
}

float block_sum(const float* values) {
    constexpr int COUNT = SCAN_BLOCK / LANES;
    Vec sums[COUNT];
    for (int i = 0; i < COUNT; i++) sums[i] = load(values + i * LANES);
    for (int half = COUNT / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) sums[i] += sums[i + half];
    return lane_sum(sums[0]);
}

}  // namespace

void ScannedRow::scan(const float* row, int64_t row_size) {
    values = row;
    size = row_size;
    maxima.resize(num_blocks(size));
    Vec not_numbers = broadcast(0.0f);
    for_each_block(values, size, [&](int64_t block, const float* part) {
        Vec top = load(part);
        for (int i = 0; i < SCAN_BLOCK; i += LANES) {
            top = squadron::largest(top, load(part + i));
            const Vec value = load(part + i);
            not_numbers = value != value ? broadcast(1.0f) : not_numbers;
        }
        maxima[block] = lane_max(top);
    });
    largest = lane_sum(not_numbers) > 0 ? NAN : *std::max_element(maxima.begin(), maxima.end());
}

int64_t ScannedRow::argmax() const {
    if (std::isnan(largest)) return std::find_if(values, values + size, [](float x) { return std::isnan(x); }) - values;
    const int64_t block = std::find(maxima.begin(), maxima.end(), largest) - maxima.begin();
    return std::find(values + block * SCAN_BLOCK, values + size, largest) - values;
}

void ScannedRow::ids_from(float threshold, std::vector<int32_t>& ids) const {
    ids.clear();
    for (int64_t block = 0; block < (int64_t)maxima.size(); block++) {
        if (maxima[block] < threshold) continue;
        const int64_t end = std::min(size, (block + 1) * SCAN_BLOCK);
        for (int64_t id = block * SCAN_BLOCK; id < end; id++)
            if (values[id] >= threshold) ids.push_back((int32_t)id);
    }
}

void ScannedRow::top(int64_t count, std::vector<int32_t>& ids) const {
    // The count-th largest of the blocks' maxima is no larger than the count-th largest value.
    float threshold = -INFINITY;
    if (count <= (int64_t)maxima.size() && count > 0) {
        std::vector<float> sorted = maxima;
        std::nth_element(sorted.begin(), sorted.begin() + count - 1, sorted.end(), std::greater<>());
        threshold = sorted[count - 1];
    }
    ids_from(threshold, ids);
    count = std::min<int64_t>(count, ids.size());
    std::partial_sort(ids.begin(), ids.begin() + count, ids.end(), [&](int32_t a, int32_t b) {
        return values[a] != values[b] ? values[a] > values[b] : a < b;
    });
    ids.resize(count);
}

void Mass::exponentiate(const float* logits, int64_t size, float largest, float temperature) {
    values.resize(num_blocks(size) * SCAN_BLOCK);
    for_each_block(logits, size, [&](int64_t block, const float* part) {
        for (int i = 0; i < SCAN_BLOCK; i += LANES) {
            const Vec x = (load(part + i) - broadcast(largest)) / broadcast(temperature);
            store(&values[block * SCAN_BLOCK + i], x < broadcast(-87.0f) ? broadcast(0.0f) : exponential(x));
        }
    });
    add_up();
}

void Mass::add_up() {
    running.resize(values.size() / SCAN_BLOCK);
    double sum = 0;
    for (int64_t block = 0; block < (int64_t)running.size(); block++)
        running[block] = sum += block_sum(&values[block * SCAN_BLOCK]);
}

}  // namespace squadron
