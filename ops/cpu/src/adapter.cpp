// The first half of an adapter's product: scale * A x of every row that has one.
//
// Rows of one adapter are multiplied together, wherever in the step they are: A is read once for all of them, and no chain of
// multiply-adds is waited for. A row's own chain is the same with others and alone.
#include "adapter.h"

#include <memory>
#include <vector>

#include "api.h"
#include "threads.h"

namespace squadron {
namespace {

constexpr int TILE_HEIGHT = 8;

// Rows that have the same adapter.
struct Tile {
    const Adapter* adapter;
    int64_t first_piece = 0;  // of all tiles'; a piece is LANES inner columns of one leaf
    int count = 0;
    int32_t rows[TILE_HEIGHT] = {};

    int64_t pieces() const { return adapter->halves() * adapter->leaves; }
    bool is_contiguous() const { return rows[count - 1] - rows[0] == count - 1; }
};

std::vector<Tile> tiles_of(const AdaptedRows& adapted) {
    std::vector<Tile> tiles;
    std::vector<size_t> last;  // of each adapter, the tile that is being filled
    for (const AdapterRun* run = adapted.runs; run < adapted.end_run(); run++) {
        if (run->first >= run->end || adapted.slots[run->slot] == nullptr) continue;
        const Adapter* adapter = adapted.slots[run->slot];
        auto mine = std::find_if(last.begin(), last.end(), [&](size_t tile) { return tiles[tile].adapter == adapter; });
        for (int32_t row = run->first; row < run->end; row++) {
            if (mine == last.end() || tiles[*mine].count == TILE_HEIGHT) {
                if (mine == last.end()) mine = last.insert(last.end(), 0);
                *mine = tiles.size();
                tiles.push_back({adapter});
            }
            Tile& tile = tiles[*mine];
            tile.rows[tile.count++] = row;
        }
    }
    int64_t count = 0;
    for (Tile& tile : tiles) {
        tile.first_piece = count;
        count += tile.pieces();
    }
    return tiles;
}

template <class T, int rows>
void kernel(const T* x, int64_t stride, const T* down, int64_t steps, Vec* sums) {
    constexpr int POINTERS = (rows + 2) / 3;  // three rows to a pointer, as in tile.cpp
    const T* pointers[POINTERS];
#pragma GCC unroll 3
    for (int i = 0; i < POINTERS; i++) pointers[i] = x + 3 * i * stride;
    Vec values[rows] = {};
    for (int64_t step = 0; step < steps; step++, down += LANES * STEP<T>) {
        const StepColumns<T> columns(down);
#pragma GCC unroll 8
        for (int row = 0; row < rows; row++) values[row] = columns.multiply_add(values[row], pointers[row / 3] + row % 3 * stride);
#pragma GCC unroll 3
        for (int i = 0; i < POINTERS; i++) {
            pointers[i] += STEP<T>;
            asm("" : "+r"(pointers[i]));
        }
    }
#pragma GCC unroll 8
    for (int row = 0; row < rows; row++) sums[row] = values[row];
}

template <class T, int... row>
auto select(int rows, std::integer_sequence<int, row...>) {
    static constexpr decltype(&kernel<T, 1>) kernels[] = {kernel<T, row + 1>...};
    return kernels[rows - 1];
}

// The tile's inputs of a leaf, one row after the other.
template <class T>
const T* gathered(const Tile& tile, const T* x, int64_t stride, int64_t length) {
    T* target = (T*)scratch(TILE_HEIGHT * length);
    for (int i = 0; i < tile.count; i++) std::copy_n(x + tile.rows[i] * stride, length, target + i * length);
    return target;
}

template <class T>
void multiply_piece(const AdaptedRows& adapted, const Tile& tile, const T* x, int64_t number) {
    const Adapter& adapter = *tile.adapter;
    const int64_t half = number / adapter.leaves, leaf = number % adapter.leaves, length = adapter.in_features / adapter.leaves;
    const T* down = (const T*)adapter.down + (half * adapter.in_features + leaf * length) * LANES;
    const T *inputs = x + leaf * length, *first = inputs + tile.rows[0] * adapter.in_features;
    int64_t stride = adapter.in_features;
    if (!tile.is_contiguous()) {
        first = gathered(tile, inputs, adapter.in_features, length);
        stride = length;
    }
    Vec sums[TILE_HEIGHT];
    select<T>(tile.count, std::make_integer_sequence<int, TILE_HEIGHT>())(first, stride, down, length / STEP<T>, sums);
    const int64_t column = half * LANES, width = adapter.width - column;
    const Vec scales = load(adapter.scales + column, width);
    for (int i = 0; i < tile.count; i++) {
        T* inner = (T*)adapted.inner + (tile.rows[i] * adapter.leaves + leaf) * adapted.width + column;
        store(inner, sums[i] * scales, width);
    }
}

}  // namespace
}  // namespace squadron

using namespace squadron;

SQUADRON_API int32_t squadron_lanes() { return LANES; }

SQUADRON_API void squadron_adapter_down(const Adapter* const* slots, const AdapterRun* runs, int64_t num_runs, void* inner,
                                        int64_t width, const void* x, int32_t dtype, int32_t threads) {
    const AdaptedRows adapted{slots, runs, num_runs, inner, width};
    const auto tiles = std::make_shared<const std::vector<Tile>>(tiles_of(adapted));
    if (tiles->empty()) return;
    const int64_t count = tiles->back().first_piece + tiles->back().pieces();
    with_dtype(dtype, [&](auto type) {
        using T = decltype(type);
        for_each_dynamic(count, threads, [=](int64_t i) {
            const auto next = std::partition_point(tiles->begin(), tiles->end(), [=](const Tile& tile) { return tile.first_piece <= i; });
            const Tile& tile = *(next - 1);
            multiply_piece(adapted, tile, (const T*)x, i - tile.first_piece);
        });
    });
}
