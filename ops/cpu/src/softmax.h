// Softmax-weighted sums of values, built up a tile of keys at a time, and the folding of one such sum into another.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kv_cache.h"
#include "parts.h"
#include "simd.h"

namespace squadron {

// Of rows: the largest score so far, the sum of 2^(score - largest) lane by lane, and the values weighted by that.
struct Weighted {
    float *sums, *totals, *largest;  // [rows, head_dim], [rows, LANES], [rows]
    int64_t head_dim;

    static int64_t size(int64_t rows, int64_t head_dim) { return rows * (head_dim + LANES + 1); }  // floats
    static Weighted at(float* memory, int64_t rows, int64_t head_dim) {
        return {memory, memory + rows * head_dim, memory + rows * (head_dim + LANES), head_dim};
    }
    void clear(int64_t rows) const {
        std::fill_n(sums, rows * head_dim, 0.0f);
        std::fill_n(totals, rows * LANES, 0.0f);
        std::fill_n(largest, rows, -INFINITY);
    }
    void scale(int64_t row, Vec factor) const {
        float *row_sums = sums + row * head_dim, *row_totals = totals + row * LANES;
        for (int64_t i = 0; i < head_dim; i += LANES) store(row_sums + i, load(row_sums + i) * factor);
        store(row_totals, load(row_totals) * factor);
    }
    void add_scaled(int64_t row, const Weighted& other, Vec factor) const {
        float *row_sums = sums + row * head_dim, *row_totals = totals + row * LANES;
        const float *added_sums = other.sums + row * head_dim, *added_totals = other.totals + row * LANES;
        for (int64_t i = 0; i < head_dim; i += LANES)
            store(row_sums + i, fmadd(load(added_sums + i), factor, load(row_sums + i)));
        store(row_totals, fmadd(load(added_totals), factor, load(row_totals)));
    }
};

// Products of a row's query with a tile's keys, [KEYS], of which the row sees the first `count`, times `scale` (log2(e)
// included) are its scores. Gives weights [KEYS], as T has them, zero for keys that are not seen, and brings the row of `so_far` to the
// largest score there is now; the caller adds the weighted values.
template <class T, bool all_seen>
inline void weigh_tile(const float* products, int64_t count, float scale, RowOf<T>* weights, const Weighted& so_far, int64_t row) {
    Vec lane_numbers;
    for (int i = 0; i < LANES; i++) lane_numbers[i] = (float)i;
    const auto where_seen = [&](int key, Vec value, float otherwise) {
        return all_seen || lane_numbers < broadcast((float)(count - key)) ? value : broadcast(otherwise);
    };

    Vec tops[KEYS / LANES];
#pragma GCC unroll 16
    for (int i = 0; i < KEYS / LANES; i++) tops[i] = where_seen(i * LANES, load(products + i * LANES), -INFINITY);
#pragma GCC unroll 4
    for (int half = KEYS / LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) tops[i] = largest(tops[i + half], tops[i]);
    const float before = so_far.largest[row], now = std::max(before, lane_max(tops[0]) * scale);
    if (now > before) {
        so_far.scale(row, exp2(broadcast(before - now)));
        so_far.largest[row] = now;
    }
    Vec total = load(so_far.totals + row * LANES);
#pragma GCC unroll 16
    for (int i = 0; i < KEYS / LANES; i++) {
        const Vec score = fmadd(load(products + i * LANES), broadcast(scale), broadcast(-now));
        const Vec weight = where_seen(i * LANES, exp2(score), 0.0f);
        total += weight;
        store_row(weights + i * LANES, weight, T{});
    }
    store(so_far.totals + row * LANES, total);
}

// `whole` takes in `part`, whose keys come after its own: rows [first, last).
inline void fold(const Weighted& whole, const Weighted& part, int64_t first, int64_t last) {
    for (int64_t row = first; row < last; row++) {
        const float now = std::max(whole.largest[row], part.largest[row]);
        whole.scale(row, exp2(broadcast(whole.largest[row] - now)));
        whole.add_scaled(row, part, exp2(broadcast(part.largest[row] - now)));
        whole.largest[row] = now;
    }
}

}  // namespace squadron
