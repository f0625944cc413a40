// Weights into the layout that multiply_tile reads: done once, when a model is loaded.
#include <algorithm>

#include "api.h"
#include "linear.h"
#include "threads.h"

namespace squadron {
namespace {

// Rows of 4-byte steps become columns, LANES by LANES.
template <class T>
void pack_panel(const PackedWeight& weight, const T* source, int64_t panel) {
    const int64_t leaf_steps = weight.in_features / weight.leaves / STEP<T>;
    const int64_t steps = leaf_steps * weight.leaves;  // leaves are whole steps, so they follow on one another
    uint32_t* target = (uint32_t*)((T*)weight.data + panel * weight.panel_size());
    for (int half = 0; half < 2; half++)
        for (int64_t step = 0; step < steps; step += LANES) {
            const int64_t count = std::min<int64_t>(LANES, steps - step);
            Words words[LANES] = {};
            for (int lane = 0; lane < LANES; lane++) {
                const int64_t row = weight.source_row(panel, half * LANES + lane);
                if (row >= 0) words[lane] = (Words)load((const float*)(source + row * weight.in_features) + step, count);
            }
            transpose(words);
            for (int64_t i = 0; i < count; i++)
                store_bits(target + (step + i) * TILE_COLUMNS + half * LANES, words[i]);
        }
}

// Its words lie TILE_COLUMNS apart.
template <class T>
void unpack_row(const PackedWeight& weight, int64_t row, float* target) {
    const T* source = (const T*)weight.data + row / TILE_COLUMNS * weight.panel_size() + row % TILE_COLUMNS * STEP<T>;
    for (int64_t k = 0; k < weight.in_features; k += STEP<T>, source += TILE_COLUMNS * STEP<T>)
        for (int i = 0; i < STEP<T>; i++) target[k + i] = to_float(source[i]);
}

}  // namespace
}  // namespace squadron

using namespace squadron;

SQUADRON_API int64_t squadron_packed_bytes(const PackedWeight* weight) {
    return weight->panels() * weight->panel_bytes();
}

SQUADRON_API void squadron_pack(const PackedWeight* weight, const void* source, int32_t threads) {
    with_dtype(weight->dtype, [&](auto type) {
        for_each(weight->panels(), 1, threads, [&](int64_t panel) {
            const auto* rows = (const decltype(type)*)source;
            weight->codes == PLAIN ? pack_panel(*weight, rows, panel) : quantize_panel(*weight, rows, panel);
        });
    });
}

SQUADRON_API int64_t squadron_unpack_rows(const PackedWeight* weight, const int32_t* ids, int64_t count, float* out,
                                          int32_t threads) {
    for (int64_t i = 0; i < count; i++)
        if (ids[i] < 0 || ids[i] >= weight->out_features) return i;
    with_dtype(weight->dtype, [&](auto type) {
        for_each(count, 8, threads, [&](int64_t i) {
            float* row = out + i * weight->in_features;
            weight->codes == PLAIN ? unpack_row<decltype(type)>(*weight, ids[i], row) : dequantize_row(*weight, ids[i], row);
        });
    });
    return -1;
}
