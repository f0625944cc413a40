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

// Rows of x in tiles of nearly equal height, packed where so many panels will be multiplied with them that it pays.
template <class T>
class RowBlock {
   public:
    RowBlock(const T* x, int64_t width, Range rows) : x(x), width(width), rows(rows), packed(nullptr) {
        if (tiles() <= 2) return;
        packed = (T*)scratch((rows.end - rows.begin) * width * sizeof(T) / sizeof(float) + LANES);
        for (int64_t i = 0; i < tiles(); i++) {
            const Range tile_rows = tile(i);
            pack_rows(tile_rows.end - tile_rows.begin, x + tile_rows.begin * width, width, width / STEP<T>,
                      packed + (tile_rows.begin - rows.begin) * width);
        }
    }

    int64_t tiles() const { return (rows.end - rows.begin + TILE_ROWS<T> - 1) / TILE_ROWS<T>; }

    Range tile(int64_t i) const {
        const Range range = share(rows.end - rows.begin, (int)i, (int)tiles());
        return {rows.begin + range.begin, rows.begin + range.end};
    }

    // sums [tile_rows, TILE_COLUMNS] = the tile's columns [k, k + length) x panel.
    void multiply(Range tile_rows, int64_t k, int64_t length, const T* panel, float* sums, const char* ahead) const {
        const int64_t count = tile_rows.end - tile_rows.begin;
        if (packed != nullptr)
            multiply_packed_tile(count, packed + (tile_rows.begin - rows.begin) * width + k * count, panel,
                                 length / STEP<T>, sums, TILE_COLUMNS, ahead);
        else
            multiply_tile(count, x + tile_rows.begin * width + k, width, panel, length / STEP<T>, sums, TILE_COLUMNS, false,
                          ahead);
    }

   private:
    const T* x;
    const int64_t width;
    const Range rows;
    T* packed;
};

template <class T>
struct Linear {
    const PackedWeight& weight;
    const T* x;
    int64_t rows;
    const T* bias;  // or null
    void* out;
    Output output;

    const T* panel_data(int64_t panel) const { return (const T*)weight.data + panel * weight.panel_size(); }

    // As many row blocks as keep one in the cache.
    int64_t row_blocks() const {
        const int64_t fitting = CACHED_BYTES / (weight.in_features * (int64_t)sizeof(T));
        const int64_t block = std::max<int64_t>(1, fitting / TILE_ROWS<T>) * TILE_ROWS<T>;
        return (rows + block - 1) / block;
    }

    // next_panel is fetched meanwhile: by the first of several tiles; a single one leaves that to the hardware.
    void multiply_panel(const RowBlock<T>& block, int64_t panel, int64_t next_panel) const {
        for (int64_t tile = 0; tile < block.tiles(); tile++) {
            const bool fetches = tile == 0 && block.tiles() > 1 && next_panel >= 0;
            sum_leaves(block, block.tile(tile), panel, fetches ? panel_data(next_panel) : nullptr);
        }
    }

    void sum_leaves(const RowBlock<T>& block, Range tile_rows, int64_t panel, const T* next) const;
    void finish(const float* sums, int64_t panel, Range tile_rows) const;
};

// The balanced tree as a stack: leaf n closes as many subtrees as n has trailing ones.
template <class T>
void Linear<T>::sum_leaves(const RowBlock<T>& block, Range tile_rows, int64_t panel, const T* next) const {
    alignas(64) float sums[MAX_TREE_DEPTH][TILE_ROWS<T> * TILE_COLUMNS];
    const int64_t length = weight.in_features / weight.leaves;
    int depth = 0;
    for (int64_t leaf = 0; leaf < weight.leaves; leaf++) {
        const int64_t offset = leaf * length * TILE_COLUMNS;
        block.multiply(tile_rows, leaf * length, length, panel_data(panel) + offset, sums[depth],
                       next != nullptr ? (const char*)(next + offset) : nullptr);
        for (int64_t n = leaf; n & 1; n >>= 1, depth--)
            for (int64_t i = 0; i < (tile_rows.end - tile_rows.begin) * TILE_COLUMNS; i += LANES)
                store(sums[depth - 1] + i, load(sums[depth - 1] + i) + load(sums[depth] + i));
        depth++;
    }
    finish(sums[0], panel, tile_rows);
}

template <class T>
void Linear<T>::finish(const float* sums, int64_t panel, Range tile_rows) const {
    const int64_t width = weight.out_features, first = panel * weight.columns_per_panel();
    for (int64_t row = tile_rows.begin; row < tile_rows.end; row++, sums += TILE_COLUMNS) {
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

// A thread's share is some panels of some row blocks, in order of blocks.
template <class T>
void run(const Linear<T>& linear, int threads) {
    const int64_t panels = linear.weight.panels(), blocks = linear.row_blocks();
    on_each_thread((int)std::min<int64_t>(threads, blocks * panels), [&](int thread, int actual) {
        const Range mine = share(blocks * panels, thread, actual);
        for (int64_t item = mine.begin; item < mine.end;) {
            const int64_t index = item / panels, end = std::min(mine.end, (index + 1) * panels);
            const RowBlock<T> block(linear.x, linear.weight.in_features, share(linear.rows, (int)index, (int)blocks));
            for (; item < end; item++) {
                const int64_t next = item + 1 < mine.end ? (item + 1) % panels : -1;
                linear.multiply_panel(block, item % panels, next);
            }
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
