// The first half of an adapter's product: scale * A x of every row that has one.
#include "adapter.h"

#include "api.h"
#include "threads.h"

namespace squadron {
namespace {

// A piece: one leaf of one panel of A, for a tile of a run's rows.
struct Part {
    const Adapter* adapter;
    Range rows;
    int64_t panel, leaf;
};

template <class T>
int64_t tiles_of(const AdapterRun& run) {
    return (run.end - run.first + TILE_ROWS<T> - 1) / TILE_ROWS<T>;
}

template <class T>
int64_t num_parts(const AdaptedRows& adapted, const AdapterRun& run) {
    const Adapter* adapter = adapted.slots[run.slot];
    return adapter == nullptr ? 0 : tiles_of<T>(run) * adapter->down.panels() * adapter->down.leaves;
}

template <class T>
Part part_of(const AdaptedRows& adapted, int64_t number) {
    const AdapterRun* run = adapted.runs;
    for (int64_t count; number >= (count = num_parts<T>(adapted, *run)); run++) number -= count;
    const Adapter* adapter = adapted.slots[run->slot];
    const int64_t leaves = adapter->down.leaves, panels = adapter->down.panels();
    const Range tile = share(run->end - run->first, number / leaves / panels, tiles_of<T>(*run));
    return {adapter, {run->first + tile.begin, run->first + tile.end}, number / leaves % panels, number % leaves};
}

template <class T>
void multiply_part(const AdaptedRows& adapted, const T* x, const Part& part) {
    alignas(64) float sums[TILE_ROWS<T> * TILE_COLUMNS];
    const PackedWeight& down = part.adapter->down;
    const int64_t count = part.rows.end - part.rows.begin, length = down.leaf_length(), first = part.panel * TILE_COLUMNS;
    const T* panel = (const T*)down.data + part.panel * down.panel_size() + part.leaf * length * TILE_COLUMNS;
    multiply_tile(count, x + part.rows.begin * down.in_features + part.leaf * length, down.in_features, panel,
                  length / STEP<T>, sums, TILE_COLUMNS, false);
    T* inner = (T*)adapted.inner + (part.rows.begin * down.leaves + part.leaf) * adapted.width;
    for (int64_t row = 0; row < count; row++)
        for (int64_t column = first; column < std::min(down.out_features, first + TILE_COLUMNS); column += LANES) {
            const int64_t width = down.out_features - column;
            const Vec sum = load(sums + row * TILE_COLUMNS + column - first);
            store(inner + row * down.leaves * adapted.width + column, sum * load(part.adapter->scales + column, width), width);
        }
}

}  // namespace
}  // namespace squadron

using namespace squadron;

SQUADRON_API int32_t squadron_lanes() { return LANES; }

SQUADRON_API void squadron_adapter_down(const AdaptedRows* adapted, const void* x, int32_t dtype, int32_t threads) {
    with_dtype(dtype, [&](auto type) {
        using T = decltype(type);
        int64_t count = 0;
        for (int64_t i = 0; i < adapted->num_runs; i++) count += num_parts<T>(*adapted, adapted->runs[i]);
        for_each_dynamic(count, threads, [=](int64_t i) {
            multiply_part(*adapted, (const T*)x, part_of<T>(*adapted, i));
        });
    });
}
