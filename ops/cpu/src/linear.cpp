// Linears on packed weights: x [rows, in] times weight.T, with what follows it fused.
//
// An element is the sum of its leaves, added pairwise as a balanced binary tree; a leaf is what multiply_tile makes of its part of
// k, or a chain of its groups' sums where the weight is quantized.
// Neither depends on the other rows, on how columns are sharded, or on which thread does what.
#include <algorithm>
#include <type_traits>

#include "adapter.h"
#include "api.h"
#include "finish.h"
#include "linear.h"
#include "published.h"
#include "threads.h"

namespace squadron {
namespace {

// Of x, kept in a core's second-level cache while all panels pass by: that of processors with tile registers has two megabytes, and
// the more rows a panel is unpacked for the better.
#if defined(__AMX_BF16__)
constexpr int64_t CACHED_BYTES = 1280 << 10;
#else
constexpr int64_t CACHED_BYTES = 512 << 10;
#endif
// How long another thread takes for a panel, at the most.
constexpr int64_t PATIENCE_NS = 10'000, BYTES_PER_NS = 5;

template <class T>
constexpr bool IS_COMPACTED = CAN_COMPACT && std::is_same_v<T, bfloat16>;

template <class T>
struct Linear {
    const PackedWeight& weight;
    const T* x;
    int64_t rows;
    Result<T> result;
    AdaptedRows adapted;
    const char* digits;         // of x: [rows, leaves, leaf_digits] bytes; null if x is multiplied as it is
    const int64_t leaf_digits;  // bytes

    const char* panel_data(int64_t panel) const { return (const char*)weight.data + panel * weight.panel_bytes(); }
    // Of a leaf: what one step over k takes is tile.h's, or a pair of codes.
    int64_t steps() const { return weight.leaf_length() / (digits != nullptr ? QUAD : weight.codes == PLAIN ? STEP<T> : 2); }
    int64_t tile_height() const { return digits != nullptr ? DIGIT_ROWS : weight.codes == PLAIN ? TILE_ROWS<T> : QUANTIZED_ROWS<T>; }
    // Of the leaf that takes most.
    int64_t unpacked_leaf_bytes() const {
        const int64_t length = weight.leaf_length();
        if (is_published(weight.codes)) return weight.most_runs() * HEADER_BYTES + length / 2 * (int64_t)sizeof(PairColumns<T>);
        return weight.codes == COMPACT ? length * TILE_COLUMNS * (int64_t)sizeof(T) : leaf_bytes<UNPACKED, T>(length);
    }
    // Of int4 that is a table look-up, and cheaper than to read what is unpacked, but where two products are one instruction.
    bool is_unpacked_by_first() const {
        return digits == nullptr && weight.codes != PLAIN && (weight.codes != INT4 || IS_ONE_PRODUCT<T>);
    }
    int64_t row_blocks() const;
    bool is_one_tile() const { return rows <= tile_height(); }
    void multiply_panel(int64_t panel, Range block, int64_t next_panel, Piece& piece) const;
    Ahead part_of(int64_t panel, int64_t i, int64_t parts) const;
    // Two panels at a time: of few rows, and where there are enough for all threads.
    bool by_two(int threads) const { return weight.codes == PLAIN && rows <= FEW_ROWS<T> && weight.panels() >= 4 * threads; }
    void multiply_two_panels(int64_t panel, Piece& piece) const;
    void sum_leaves(int64_t panel, Range tile, char* unpacked, bool is_unpacked, Ahead ahead, Piece& piece) const;
    void multiply_digits_of(Range tile, int64_t leaf, const char* data, float* sums, Ahead ahead) const;
    void multiply(const T* a, int64_t rows, int64_t leaf, const char* data, char* unpacked, bool is_unpacked, float* sums, Ahead ahead) const;
};

// As many as it takes for one of them to stay in the cache.
template <class T>
int64_t Linear<T>::row_blocks() const {
    const int64_t row_bytes = digits != nullptr ? weight.leaves * leaf_digits : weight.in_features * (int64_t)sizeof(T);
    const int64_t fitting = CACHED_BYTES / row_bytes;
    const int64_t block = std::max<int64_t>(1, fitting / tile_height()) * tile_height();
    return (rows + block - 1) / block;
}

// One panel's columns of a block of rows, in tiles of nearly equal height. Each of several tiles fetches its part of the next
// panel, so that the memory is busy all the time and no tile waits for it; a single one leaves that to the hardware, or to
// multiply_leaf. The first of several leaves the codes that it has unpacked to the others.
template <class T>
void Linear<T>::multiply_panel(int64_t panel, Range block, int64_t next_panel, Piece& piece) const {
    const int64_t count = block.end - block.begin, tiles = (count + tile_height() - 1) / tile_height();
    char* unpacked = nullptr;
    if (is_unpacked_by_first() && tiles > 1) unpacked = (char*)scratch(weight.leaves * unpacked_leaf_bytes() / sizeof(float));
    for (int64_t i = 0; i < tiles; i++) {
        const Range part = share_of_wholes(count, WHOLE_ROWS<T>, i, tiles);
        const bool fetches = tiles > 1 && next_panel >= 0, is_unpacked = unpacked != nullptr && i > 0;
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
void Linear<T>::sum_leaves(int64_t panel, Range tile, char* unpacked, bool is_unpacked, Ahead ahead, Piece& piece) const {
    alignas(64) float sums[MAX_TREE_DEPTH][std::max(TILE_ROWS<T>, QUANTIZED_ROWS<T>) * TILE_COLUMNS];
    const int64_t length = weight.leaf_length(), tile_rows = tile.end - tile.begin;
    const int64_t unpacked_bytes = unpacked != nullptr ? unpacked_leaf_bytes() : 0;
    static_assert(std::max(TILE_ROWS<T>, QUANTIZED_ROWS<T>) <= TileAdapters::MOST);
    const TileAdapters adapters(adapted, tile.begin, tile.end);
    adapters.fetch<T>(panel);
    int depth = 0;
    for (int64_t leaf = 0; leaf < weight.leaves; leaf++, unpacked += unpacked_bytes, ahead.data += steps() * ahead.step_bytes) {
        const char* data = panel_data(panel) + weight.leaf_offset(leaf);
        if (digits != nullptr)
            multiply_digits_of(tile, leaf, data, sums[depth], ahead);
        else
            multiply(x + tile.begin * weight.in_features + leaf * length, tile_rows, leaf, data, unpacked, is_unpacked, sums[depth], ahead);
        if (adapters.count > 0) add_adapters<T>(adapted, adapters, weight.leaves, leaf, panel, tile.begin, sums[depth]);
        close_subtrees(sums, leaf, tile_rows, depth);
    }
    if (piece.may_write()) result.finish(weight, sums[0], panel, tile);
}

// The last one may be alone.
template <class T>
void Linear<T>::multiply_two_panels(int64_t panel, Piece& piece) const {
    const Range tile{0, rows};
    if constexpr (FEW_ROWS<T> > 0)
        if (panel + 1 < weight.panels()) {
            constexpr int64_t SIZE = FEW_ROWS<T> * TILE_COLUMNS;
            alignas(64) float sums[2][MAX_TREE_DEPTH][SIZE];
            const TileAdapters adapters(adapted, 0, rows);
            for (int i = 0; i < 2; i++) adapters.fetch<T>(panel + i);
            int depths[2] = {0, 0};
            for (int64_t leaf = 0; leaf < weight.leaves; leaf++) {
                multiply_two_tiles(rows, x + leaf * weight.leaf_length(), weight.in_features,
                                   (const T*)(panel_data(panel) + weight.leaf_offset(leaf)), weight.panel_bytes() / sizeof(T),
                                   steps(), sums[0][depths[0]], MAX_TREE_DEPTH * SIZE);
                for (int i = 0; i < 2; i++) {
                    if (adapters.count > 0)
                        add_adapters<T>(adapted, adapters, weight.leaves, leaf, panel + i, 0, sums[i][depths[i]]);
                    close_subtrees(sums[i], leaf, rows, depths[i]);
                }
            }
            if (piece.may_write())
                for (int i = 0; i < 2; i++) result.finish(weight, sums[i][0], panel + i, tile);
            return;
        }
    sum_leaves(panel, tile, nullptr, false, {}, piece);
}

template <class T>
void Linear<T>::multiply_digits_of(Range tile, int64_t leaf, const char* data, float* sums, Ahead ahead) const {
    const int64_t first = weight.leaf_runs[leaf], count = weight.leaf_runs[leaf + 1] - first, stride = weight.leaves * leaf_digits;
    multiply_digits((Codes)weight.codes, tile.end - tile.begin, digits + tile.begin * stride + leaf * leaf_digits, stride, data,
                    weight.runs + first, count, sums, ahead);
}

// Rows of a leaf. unpacked: null, what others have unpacked, or where it is left for others (a compact leaf as plain).
template <class T>
void Linear<T>::multiply(const T* a, int64_t rows, int64_t leaf, const char* data, char* unpacked, bool is_unpacked,
                         float* sums, Ahead ahead) const {
    const int64_t lda = weight.in_features, length = weight.leaf_length();
    if (is_published(weight.codes)) {
        const int64_t first = weight.leaf_runs[leaf], count = weight.leaf_runs[leaf + 1] - first;
        return multiply_runs(is_unpacked ? UNPACKED : (Codes)weight.codes, rows, a, lda, is_unpacked ? unpacked : data,
                             weight.runs + first, count, sums, is_unpacked ? nullptr : unpacked, ahead);
    }
    if constexpr (IS_COMPACTED<T>)
        if (weight.codes == COMPACT && !is_unpacked)
            return multiply_compact(rows, a, lda, data, length, sums, (bfloat16*)unpacked, ahead);
    if (weight.codes == PLAIN || weight.codes == COMPACT)
        multiply_tile(rows, a, lda, (const T*)(is_unpacked ? unpacked : data), steps(), sums, ahead);
    else
        multiply_leaf((Codes)weight.codes, is_unpacked, rows, a, lda, is_unpacked ? unpacked : data, length, sums,
                      is_unpacked ? nullptr : unpacked, ahead);
}

// A piece is a panel of a row block, in order of blocks.
template <class T>
void run(const Linear<T>& linear, int threads) {
    const int64_t panels = linear.weight.panels(), blocks = linear.row_blocks();
    if (linear.by_two(threads))
        return perform({(panels + 1) / 2, threads, [=](Piece& piece) { linear.multiply_two_panels(2 * piece.number, piece); },
                        false, PATIENCE_NS + 2 * linear.weight.panel_bytes() / BYTES_PER_NS});
    perform({blocks * panels, threads, [=](Piece& piece) {
                 const Range block = share_of_wholes(linear.rows, WHOLE_ROWS<T>, piece.number / panels, blocks);
                 linear.multiply_panel(piece.number % panels, block, piece.next >= 0 ? piece.next % panels : -1, piece);
             }, false, linear.is_one_tile() ? PATIENCE_NS + linear.weight.panel_bytes() / BYTES_PER_NS : 0});
}

}  // namespace
}  // namespace squadron

using namespace squadron;

SQUADRON_API void squadron_linear(const PackedWeight* weight, const void* x, int64_t rows, const void* bias, void* out,
                                  int32_t output, int32_t threads, const Adapter* const* slots, const AdapterRun* runs,
                                  int64_t num_runs, void* inner, int64_t width, const char* digits) {
    if (rows == 0) return;
    AdaptedRows adapted{slots, runs, num_runs, inner, width};
    if (!adapted.are_any()) adapted.slots = nullptr;
    with_dtype(weight->dtype, [&](auto type) {
        using T = decltype(type);
        run(Linear<T>{*weight, (const T*)x, rows, {(const T*)bias, out, (Output)output}, adapted, digits,
                      digits != nullptr ? weight->leaf_digits_bytes() : 0}, threads);
    });
}
