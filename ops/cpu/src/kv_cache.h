// The paged cache of keys and values, in the order in which attention multiplies them: so that next to nothing is moved at each read.
//
// A cache is [num_blocks, kv_heads, block_size, head_dim]; block_size is a multiple of LANES. The LANES positions of a group
// of a head lie together. Keys are turned: [head_dim / STEP][LANES][STEP], so that a vector has a number, or a pair of them, of
// each key. Values are interleaved by STEP positions: [LANES / STEP][head_dim][STEP].
#pragma once

#include <algorithm>
#include <cstdint>

#include "simd.h"
#include "tile.h"

namespace squadron {

constexpr int KEYS = 64;  // of a tile
constexpr int GROUPS = KEYS / LANES;

// One head of one sequence.
template <class T>
struct HeadCache {
    const T *keys, *values;
    const int32_t* block_table;
    int64_t kv_heads, head, block_size, head_dim;

    // Of the group that begins at a position.
    int64_t offset(int64_t position) const {
        const int64_t block = block_table[position / block_size];
        return ((block * kv_heads + head) * block_size + position % block_size) * head_dim;
    }
};

// The row of a position of a group, from it: of keys, and of values.
template <class T>
inline void store_key(const T* row, int64_t head_dim, int64_t place, T* group) {
    for (int64_t i = 0; i < head_dim; i += STEP<T>) std::copy_n(row + i, STEP<T>, group + i * LANES + place * STEP<T>);
}

template <class T>
inline void store_value(const T* row, int64_t head_dim, int64_t place, T* group) {
    T* target = group + place / STEP<T> * head_dim * STEP<T> + place % STEP<T>;
    for (int64_t i = 0; i < head_dim; i++) target[i * STEP<T>] = row[i];
}

// `target` <- a group's values: those of the first `count` positions, and zeros.
template <class T>
inline void copy_values(const T* group, int64_t head_dim, int64_t count, T* target) {
    for (int64_t place = 0; place < LANES; place++)
        for (int64_t i = 0; i < head_dim; i++) {
            const int64_t at = (place / STEP<T> * head_dim + i) * STEP<T> + place % STEP<T>;
            target[at] = place < count ? group[at] : T{};
        }
}

// Where the keys and values of the tile at a position are, group by group.
template <class T>
struct KeyValueTile {
    const T *keys[GROUPS], *values[GROUPS];
    int64_t groups;  // that have positions; the others' keys are those of the last one, and count for nothing

    KeyValueTile(const HeadCache<T>& cache, int64_t begin, int64_t end) : groups((end - begin + LANES - 1) / LANES) {
        for (int64_t i = 0; i < GROUPS; i++) {
            const int64_t offset = cache.offset(begin + std::min(i, groups - 1) * LANES);
            keys[i] = cache.keys + offset, values[i] = cache.values + offset;
        }
    }

    // Has a group that ends before its last position end with zeros, in `copy` [LANES, head_dim]: what lies behind may be anything,
    // and a weight of zero times that a NaN.
    void cut_values(int64_t end, int64_t head_dim, T* copy) {
        if (end % LANES == 0) return;
        copy_values(values[groups - 1], head_dim, end % LANES, copy);
        values[groups - 1] = copy;
    }

    // Of the groups from that of a place on.
    bool are_values_finite(int64_t place, int64_t head_dim) const {
        Vec zeros = broadcast(0.0f);
        for (int64_t i = place / LANES; i < groups; i++)
            for (int64_t k = 0; k < LANES * head_dim; k += LANES) zeros += load(values[i] + k) * broadcast(0.0f);
        return lane_sum(zeros) == 0.0f;
    }
};

}  // namespace squadron
