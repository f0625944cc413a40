// Linears on packed weights: x [rows, in] times weight.T, with what follows it fused.
//
// An element is the sum of its leaves, added pairwise as a balanced binary tree; a leaf is one chain over its part of k, or a
// chain of its groups' sums where the weight is quantized.
// Neither depends on the other rows, on how columns are sharded, or on which thread does what.
#include <algorithm>
#include <type_traits>

#include "api.h"
#include "linear.h"
#include "threads.h"

namespace squadron {
namespace {

enum Output : int32_t { SAME_DTYPE = 0, SUM_FLOAT32 = 1, SILU_MUL = 2 };

constexpr int64_t CACHED_BYTES = 512 << 10;  // of x, kept in a core's second-level cache while all panels pass by
// How long another thread takes for a panel, at the most.
constexpr int64_t PATIENCE_NS = 10'000, BYTES_PER_NS = 5;
constexpr int MAX_TREE_DEPTH = 8;            // 128 leaves

template <class T>
constexpr bool IS_COMPACTED = CAN_COMPACT && std::is_same_v<T, bfloat16>;

template <class T>
struct Linear {
    const PackedWeight& weight;
    const T* x;
    int64_t rows;
    const T* bias;  // or null
    void* out;
    Output output;

    const char* panel_data(int64_t panel) const { return (const char*)weight.data + panel * weight.panel_bytes(); }
    // Of a leaf: what one step over k takes is tile.h's, or a pair of codes.
    int64_t steps() const { return weight.leaf_length() / (weight.codes == PLAIN ? STEP<T> : 2); }
    int64_t tile_height() const { return weight.codes == PLAIN ? TILE_ROWS<T> : QUANTIZED_ROWS; }
    int64_t unpacked_leaf_bytes() const {
        const int64_t length = weight.leaf_length();
        return weight.codes == COMPACT ? length * TILE_COLUMNS * (int64_t)sizeof(T) : leaf_bytes<UNPACKED, T>(length);
    }
    int64_t row_blocks() const;
    bool is_one_tile() const { return rows <= tile_height(); }
    void multiply_panel(int64_t panel, Range block, int64_t next_panel, Piece& piece) const;
    Ahead part_of(int64_t panel, int64_t i, int64_t parts) const;
    void unpack(int64_t panel, char* target) const;
    void sum_leaves(int64_t panel, Range tile, char* unpacked, bool is_unpacked, Ahead ahead, Piece& piece) const;
    void multiply(const T* a, int64_t rows, const char* leaf, char* unpacked, bool is_unpacked, float* sums, Ahead ahead) const;
    void finish(const float* sums, int64_t panel, Range tile) const;
};

// As many as it takes for one of them to stay in the cache.
template <class T>
int64_t Linear<T>::row_blocks() const {
    const int64_t fitting = CACHED_BYTES / (weight.in_features * (int64_t)sizeof(T));
    const int64_t block = std::max<int64_t>(1, fitting / tile_height()) * tile_height();
    return (rows + block - 1) / block;
}

// One panel's columns of a block of rows, in tiles of nearly equal height. Each of several tiles fetches its part of the next
// panel, so that the memory is busy all the time and no tile waits for it; a single one leaves that to the hardware, or to
// multiply_leaf. Several share the work of unpacking: of int8, 11 % less time at 16 rows, 15 % at 64; of compact weights the first one
// leaves what it has unpacked to the others. (Of int4 that is a table look-up, and cheaper than to read what is unpacked.)
template <class T>
void Linear<T>::multiply_panel(int64_t panel, Range block, int64_t next_panel, Piece& piece) const {
    const int64_t count = block.end - block.begin, tiles = (count + tile_height() - 1) / tile_height();
    char* unpacked = nullptr;
    if ((weight.codes == INT8 || weight.codes == COMPACT) && tiles > 1)
        unpacked = (char*)scratch(weight.leaves * unpacked_leaf_bytes() / sizeof(float));
    if (weight.codes == INT8 && tiles > 1) unpack(panel, unpacked);
    for (int64_t i = 0; i < tiles; i++) {
        const Range part = share(count, (int)i, (int)tiles);
        const bool fetches = tiles > 1 && next_panel >= 0, is_unpacked = unpacked != nullptr && (weight.codes == INT8 || i > 0);
        sum_leaves(panel, {block.begin + part.begin, block.begin + part.end}, unpacked, is_unpacked,
                   fetches ? part_of(next_panel, i, tiles) : Ahead{}, piece);
    }
}

template <class T>
Ahead Linear<T>::part_of(int64_t panel, int64_t i, int64_t parts) const {
    const int64_t steps_of_part = weight.leaves * steps();
    const int64_t step_bytes = (weight.panel_bytes() + parts * steps_of_part - 1) / (parts * steps_of_part);
    return {panel_data(panel) + i * steps_of_part * step_bytes, step_bytes};
}

template <class T>
void Linear<T>::unpack(int64_t panel, char* target) const {
    const int64_t length = weight.leaf_length(), bytes = weight.panel_bytes() / weight.leaves;
    for (int64_t leaf = 0; leaf < weight.leaves; leaf++, target += unpacked_leaf_bytes())
        unpack_leaf<T>(panel_data(panel) + leaf * bytes, length, target);
}

// The balanced tree as a stack: leaf n closes as many subtrees as n has trailing ones.
template <class T>
void Linear<T>::sum_leaves(int64_t panel, Range tile, char* unpacked, bool is_unpacked, Ahead ahead, Piece& piece) const {
    alignas(64) float sums[MAX_TREE_DEPTH][std::max(TILE_ROWS<T>, QUANTIZED_ROWS) * TILE_COLUMNS];
    const int64_t length = weight.leaf_length(), tile_rows = tile.end - tile.begin;
    const int64_t bytes = weight.panel_bytes() / weight.leaves, unpacked_bytes = unpacked != nullptr ? unpacked_leaf_bytes() : 0;
    int depth = 0;
    for (int64_t leaf = 0; leaf < weight.leaves; leaf++, unpacked += unpacked_bytes, ahead.data += steps() * ahead.step_bytes) {
        const T* a = x + tile.begin * weight.in_features + leaf * length;
        multiply(a, tile_rows, panel_data(panel) + leaf * bytes, unpacked, is_unpacked, sums[depth], ahead);
        for (int64_t n = leaf; n & 1; n >>= 1, depth--)
            for (int64_t i = 0; i < tile_rows * TILE_COLUMNS; i += LANES)
                store(sums[depth - 1] + i, load(sums[depth - 1] + i) + load(sums[depth] + i));
        depth++;
    }
    if (piece.may_write()) finish(sums[0], panel, tile);
}

// Rows of a leaf. unpacked: null, what others have unpacked, or where a compact leaf is left as plain for others.
template <class T>
void Linear<T>::multiply(const T* a, int64_t rows, const char* leaf, char* unpacked, bool is_unpacked, float* sums,
                         Ahead ahead) const {
    const int64_t lda = weight.in_features, length = weight.leaf_length();
    if constexpr (IS_COMPACTED<T>)
        if (weight.codes == COMPACT && !is_unpacked)
            return multiply_compact(rows, a, lda, leaf, length, sums, (bfloat16*)unpacked, ahead);
    if (weight.codes == PLAIN || weight.codes == COMPACT)
        multiply_tile(rows, a, lda, (const T*)(is_unpacked ? unpacked : leaf), steps(), sums, TILE_COLUMNS, false, ahead);
    else if (is_unpacked)
        multiply_leaf(UNPACKED, rows, a, lda, unpacked, length, sums, ahead);
    else
        multiply_leaf((Codes)weight.codes, rows, a, lda, leaf, length, sums, ahead);
}

template <class T>
void Linear<T>::finish(const float* sums, int64_t panel, Range tile) const {
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

// A piece is a panel of a row block, in order of blocks.
template <class T>
void run(const Linear<T>& linear, int threads) {
    const int64_t panels = linear.weight.panels(), blocks = linear.row_blocks();
    perform({blocks * panels, threads, [=](Piece& piece) {
                 const Range block = share(linear.rows, piece.number / panels, blocks);
                 linear.multiply_panel(piece.number % panels, block, piece.next >= 0 ? piece.next % panels : -1, piece);
             }, false, linear.is_one_tile() ? PATIENCE_NS + linear.weight.panel_bytes() / BYTES_PER_NS : 0});
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
