// What follows a linear's sums: a bias, silu(gate) * up, the cast.
#pragma once

#include <algorithm>

#include "linear.h"
#include "threads.h"

namespace squadron {

enum Output : int32_t { SAME_DTYPE = 0, SUM_FLOAT32 = 1, SILU_MUL = 2 };

constexpr int MAX_TREE_DEPTH = 8;  // 128 leaves

// Where a product goes, [rows, out_features] of T or float; bias may be null.
template <class T>
struct Result {
    const T* bias;
    void* out;
    Output output;

    // sums [rows of the tile, TILE_COLUMNS] of a panel's columns.
    void finish(const PackedWeight& weight, const float* sums, int64_t panel, Range tile) const {
        const int64_t width = weight.out_features, first = panel * weight.columns_per_panel();
        for (int64_t row = tile.begin; row < tile.end; row++, sums += TILE_COLUMNS) {
            if (output == SILU_MUL) {
                store((T*)out + row * width + first, silu(load(sums)) * load(sums + LANES), width - first);
                continue;
            }
            for (int64_t column = first; column < std::min(width, first + TILE_COLUMNS); column += LANES) {
                Vec value = load(sums + column - first);
                if (bias != nullptr) value += load(bias + column, width - column);
                if (output == SAME_DTYPE)
                    store((T*)out + row * width + column, value, width - column);
                else
                    store((float*)out + row * width + column, value, width - column);
            }
        }
    }
};

// The balanced tree as a stack: sums[depth] is leaf n's, which closes as many subtrees as n has trailing ones.
template <size_t size>
void close_subtrees(float (&sums)[MAX_TREE_DEPTH][size], int64_t leaf, int64_t rows, int& depth) {
    for (int64_t n = leaf; n & 1; n >>= 1, depth--)
        for (int64_t i = 0; i < rows * TILE_COLUMNS; i += LANES)
            store(sums[depth - 1] + i, load(sums[depth - 1] + i) + load(sums[depth] + i));
    depth++;
}

}  // namespace squadron
