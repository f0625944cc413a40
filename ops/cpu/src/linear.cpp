// Linears on packed weights: x [rows, in] times weight.T, with what follows it fused.
//
// An element is the sum of its leaves, added pairwise as a balanced binary tree; a leaf is one chain over its part of k.
// Neither depends on the other rows, on how columns are sharded, or on which thread does what.
#include <algorithm>

#include "api.h"
#include "linear.h"
#include "threads.h"

namespace squadron {
namespace {

enum Output : int32_t { SAME_DTYPE = 0, SUM_FLOAT32 = 1, SILU_MUL = 2 };

constexpr int64_t CACHED_BYTES = 512 << 10;  // of x, kept in a core's second-level cache while all panels pass by
constexpr int MAX_TREE_DEPTH = 8;            // 128 leaves

template <class T>
struct Linear {
    const PackedWeight& weight;
    const T* x;
    int64_t rows;
    const T* bias;  // or null
    void* out;
    Output output;

    const T* panel_data(int64_t panel) const { return (const T*)weight.data + panel * weight.panel_size(); }
    int64_t block_rows() const;
    void multiply_panel(int64_t panel, int64_t row_begin, int64_t row_end, int64_t next_panel) const;
    const float* sum_leaves(const T* panel, int64_t row, int64_t rows, const T* next,
                            float (*sums)[TILE_ROWS<T> * TILE_COLUMNS]) const;
    void finish(const float* sums, int64_t panel, int64_t row, int64_t rows) const;
};

template <class T>
int64_t Linear<T>::block_rows() const {
    const int64_t fitting = CACHED_BYTES / (weight.in_features * (int64_t)sizeof(T));
    return std::max<int64_t>(1, fitting / TILE_ROWS<T>) * TILE_ROWS<T>;
}

// Rows [row_begin, row_end) of one panel's columns, in tiles of nearly equal height.
template <class T>
void Linear<T>::multiply_panel(int64_t panel, int64_t row_begin, int64_t row_end, int64_t next_panel) const {
    alignas(64) float sums[MAX_TREE_DEPTH][TILE_ROWS<T> * TILE_COLUMNS];
    const int64_t count = row_end - row_begin, tiles = (count + TILE_ROWS<T> - 1) / TILE_ROWS<T>;
    for (int64_t tile = 0; tile < tiles; tile++) {
        const Range range = share(count, (int)tile, (int)tiles);
        const int64_t row = row_begin + range.begin, tile_rows = range.end - range.begin;
        // The first of several tiles fetches the next panel; a single one leaves that to the hardware.
        const T* next = tile == 0 && tiles > 1 && next_panel >= 0 ? panel_data(next_panel) : nullptr;
        finish(sum_leaves(panel_data(panel), row, tile_rows, next, sums), panel, row, tile_rows);
    }
}

// The balanced tree as a stack: leaf n closes as many subtrees as n has trailing ones.
template <class T>
const float* Linear<T>::sum_leaves(const T* panel, int64_t row, int64_t tile_rows, const T* next,
                                   float (*sums)[TILE_ROWS<T> * TILE_COLUMNS]) const {
    const int64_t length = weight.in_features / weight.leaves;
    int depth = 0;
    for (int64_t leaf = 0; leaf < weight.leaves; leaf++) {
        const int64_t offset = leaf * length * TILE_COLUMNS;
        multiply_tile(tile_rows, x + row * weight.in_features + leaf * length, weight.in_features, panel + offset,
                      length / STEP<T>, sums[depth], TILE_COLUMNS, false,
                      next != nullptr ? (const char*)(next + offset) : nullptr);
        for (int64_t n = leaf; n & 1; n >>= 1, depth--)
            for (int64_t i = 0; i < tile_rows * TILE_COLUMNS; i += LANES)
                store(sums[depth - 1] + i, load(sums[depth - 1] + i) + load(sums[depth] + i));
        depth++;
    }
    return sums[0];
}

template <class T>
void Linear<T>::finish(const float* sums, int64_t panel, int64_t row, int64_t tile_rows) const {
    const int64_t width = weight.out_features, first = panel * weight.columns_per_panel();
    for (int64_t m = 0; m < tile_rows; m++, sums += TILE_COLUMNS) {
        if (output == SILU_MUL) {
            T* target = (T*)out + (row + m) * width + first;
            store(target, silu(load(sums)) * load(sums + LANES), width - first);
            continue;
        }
        for (int64_t column = first; column < std::min(width, first + TILE_COLUMNS); column += LANES) {
            Vec value = load(sums + column - first);
            if (bias != nullptr) value += load(bias + column, width - column);
            if (output == SAME_DTYPE)
                store((T*)out + (row + m) * width + column, value, width - column);
            else
                store((float*)out + (row + m) * width + column, value, width - column);
        }
    }
}

template <class T>
void run(const Linear<T>& linear, int threads) {
    const int64_t panels = linear.weight.panels(), block = linear.block_rows();
    const int64_t blocks = (linear.rows + block - 1) / block, items = blocks * panels;
    on_each_thread((int)std::min<int64_t>(threads, items), [&](int thread, int actual) {
        const Range mine = share(items, thread, actual);
        for (int64_t item = mine.begin; item < mine.end; item++) {
            const Range range = share(linear.rows, (int)(item / panels), (int)blocks);
            const int64_t next = item + 1 < mine.end ? (item + 1) % panels : -1;
            linear.multiply_panel(item % panels, range.begin, range.end, next);
        }
    });
}

}  // namespace
}  // namespace squadron

using namespace squadron;

SQUADRON_API void squadron_linear(const PackedWeight* weight, const void* x, int64_t rows, const void* bias, void* out,
                                  int32_t output, int32_t threads) {
    if (rows == 0) return;
    with_dtype(weight->dtype, [&](auto type) {
        using T = decltype(type);
        run(Linear<T>{*weight, (const T*)x, rows, (const T*)bias, out, (Output)output}, threads);
    });
}
