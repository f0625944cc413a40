// bfloat16 weights in twelve bits, and to the bit: of each its low byte as it is, and four bits that stand for its high byte.
//
// The high byte is the sign and all but the last bit of the exponent. What a network has learned (or was drawn at random) has few
// of them: the sixteen that a leaf has most of have codes, and what is not one of these, about one in ten thousand, is listed.
// A step over k (a pair) is what it is in a plain panel, so the sums have the bits of those of the weights themselves.
#pragma once

#include <cstdint>

#include "simd.h"
#include "tile.h"

namespace squadron {

constexpr int64_t STEP_WEIGHTS = 2 * TILE_COLUMNS;      // of a step: [LANES / 4][halves][4 columns][2 k]
constexpr int64_t PAIR_BYTES = 3 * STEP_WEIGHTS;        // of two steps: both ones' low bytes, then codes: four bits of each

// A leaf is a head, pairs of steps, and the others.
struct CompactHead {
    uint8_t high_bytes[16];
    char padding[48];
};

// The others are words: where (step * STEP_WEIGHTS + which of its weights), and in the lowest byte the high byte. They ascend;
// the last one is NO_OTHER.
constexpr uint32_t NO_OTHER = 0xffffffff;

constexpr int64_t compact_pairs(int64_t length) { return (length / 2 + 1) / 2; }
constexpr int64_t max_others(int64_t length) { return (compact_pairs(length) / 2 + 16) / 16 * 16; }
constexpr int64_t compact_leaf_bytes(int64_t length) {
    return (int64_t)sizeof(CompactHead) + compact_pairs(length) * PAIR_BYTES + max_others(length) * (int64_t)sizeof(uint32_t);
}

// Whether this level has the functions below, places in a leaf of that length fit in 24 bits, and it takes less than as it is.
#if defined(__AVX512BF16__)
constexpr bool CAN_COMPACT = true;
#else
constexpr bool CAN_COMPACT = false;
#endif
constexpr bool can_compact(int64_t length) {
    return CAN_COMPACT && (compact_pairs(length) + 1) * 2 * STEP_WEIGHTS <= NO_OTHER >> 8 &&
           compact_leaf_bytes(length) < length * TILE_COLUMNS * (int64_t)sizeof(bfloat16);
}

// leaf <- plain [length / 2, TILE_COLUMNS, 2]; false if there are too many others.
bool compact_leaf(const bfloat16* plain, int64_t length, char* leaf);

// target [length] <- one column.
void unpack_compact_column(const char* leaf, int64_t length, int column, float* target);

// As multiply_tile: c [rows, TILE_COLUMNS] = a [rows, length] (row stride lda) x leaf; 1 <= rows <= TILE_ROWS<bfloat16>. If plain is
// not null: plain [length / 2, TILE_COLUMNS, 2] <- leaf.
void multiply_compact(int64_t rows, const bfloat16* a, int64_t lda, const char* leaf, int64_t length, float* c, bfloat16* plain,
                      Ahead ahead);

}  // namespace squadron
