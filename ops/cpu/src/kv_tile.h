// A tile of keys and values of one head, gathered from the paged cache into the panels that multiply_tile reads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "simd.h"
#include "tile.h"

namespace squadron {

constexpr int KEYS = 64;  // of a tile

// One head of one sequence in a cache [num_blocks, kv_heads, block_size, head_dim]; block_size is a multiple of LANES.
template <class T>
struct HeadCache {
    const T *keys, *values;
    const int32_t* block_table;
    int64_t kv_heads, head, block_size, head_dim;

    int64_t offset(int64_t position) const {
        const int64_t block = block_table[position / block_size];
        return ((block * kv_heads + head) * block_size + position % block_size) * head_dim;
    }
};

// LANES rows of head_dim / STEP words each become columns of `keys`; of rows there are `count`, the others are zero.
template <bool whole, class T>
void gather_keys(const T* rows, int64_t head_dim, int64_t count, int group, T* keys) {
    const int64_t words = head_dim / STEP<T>;
    uint32_t* target = (uint32_t*)keys + group / TILE_COLUMNS * words * TILE_COLUMNS + group % TILE_COLUMNS;
    for (int64_t word = 0; word < words; word += LANES) {
        Words columns[LANES];
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++)
            columns[i] = whole || i < count ? load_bits<Words>(rows + i * head_dim + word * STEP<T>) : Words{};
        transpose(columns);
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++) store_bits(target + (word + i) * TILE_COLUMNS, columns[i]);
    }
}

template <bool whole>
void gather_values(const float* rows, int64_t head_dim, int64_t count, int group, float* values) {
    for (int64_t column = 0; column < head_dim; column += LANES) {
        float* target = values + (column / TILE_COLUMNS * KEYS + group) * TILE_COLUMNS + column % TILE_COLUMNS;
        for (int i = 0; i < LANES; i++)
            store(target + i * TILE_COLUMNS, whole || i < count ? load(rows + i * head_dim + column) : Vec{});
    }
}

// Rows two by two, their elements alternating.
template <bool whole>
void gather_values(const bfloat16* rows, int64_t head_dim, int64_t count, int group, bfloat16* values) {
    for (int64_t column = 0; column < head_dim; column += TILE_COLUMNS) {
        bfloat16* target = values + (column * KEYS + group * TILE_COLUMNS);
        for (int i = 0; i < LANES; i += 2) {
            const bfloat16* row = rows + i * head_dim + column;
            const HalfWords first = whole || i < count ? load_bits<HalfWords>(row) : HalfWords{};
            const HalfWords second = whole || i + 1 < count ? load_bits<HalfWords>(row + head_dim) : HalfWords{};
            store_bits(target + i * TILE_COLUMNS, zip_low(first, second));
            store_bits(target + i * TILE_COLUMNS + TILE_COLUMNS, zip_high(first, second));
        }
    }
}

template <bool whole, class T>
void gather_group(const HeadCache<T>& cache, int64_t position, int64_t count, int group, T* keys, T* values) {
    const int64_t offset = count > 0 ? cache.offset(position) : 0;
    gather_keys<whole>(cache.keys + offset, cache.head_dim, count, group, keys);
    gather_values<whole>(cache.values + offset, cache.head_dim, count, group, values);
}

template <class T>
void prefetch_group(const HeadCache<T>& cache, int64_t position) {
    const int64_t offset = cache.offset(position), bytes = LANES * cache.head_dim * (int64_t)sizeof(T);
    for (int64_t byte = 0; byte < bytes; byte += 64) {
        __builtin_prefetch((const char*)(cache.keys + offset) + byte, 0, 2);
        __builtin_prefetch((const char*)(cache.values + offset) + byte, 0, 2);
    }
}

// Into `keys` [KEYS / TILE_COLUMNS][head_dim / STEP][TILE_COLUMNS][STEP] and `values` [head_dim / TILE_COLUMNS]
// [KEYS / STEP][TILE_COLUMNS][STEP]: positions [begin, end), zeros after them up to KEYS. Meanwhile asks the memory for the
// positions from `end` on that are below `ahead_end`.
template <class T>
void gather_tile(const HeadCache<T>& cache, int64_t begin, int64_t end, int64_t ahead_end, T* keys, T* values) {
    for (int group = 0; group < KEYS; group += LANES) {
        const int64_t position = begin + group, count = std::clamp<int64_t>(end - position, 0, LANES);
        if (count == LANES)
            gather_group<true>(cache, position, count, group, keys, values);
        else
            gather_group<false>(cache, position, count, group, keys, values);
        if (position + KEYS < ahead_end) prefetch_group(cache, position + KEYS);
    }
}

}  // namespace squadron
