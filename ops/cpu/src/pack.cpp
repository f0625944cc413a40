// Weights into the layout that multiply_tile reads: done once, when a model is loaded.
#include <algorithm>
#include <atomic>

#include "api.h"
#include "linear.h"
#include "threads.h"

namespace squadron {
namespace {

// Rows of 4-byte steps become columns, LANES by LANES.
template <class T>
void pack_panel(const PackedWeight& weight, const T* source, int64_t panel, uint32_t* target) {
    const int64_t leaf_steps = weight.in_features / weight.leaves / STEP<T>;
    const int64_t steps = leaf_steps * weight.leaves;  // leaves are whole steps, so they follow on one another
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

// False if it cannot be compact.
bool compact_panel(const PackedWeight& weight, const bfloat16* source, int64_t panel) {
    if constexpr (CAN_COMPACT) {
        const int64_t length = weight.leaf_length();
        bfloat16* plain = (bfloat16*)scratch(weight.panel_size() * (int64_t)sizeof(bfloat16) / sizeof(float));
        pack_panel(weight, source, panel, (uint32_t*)plain);
        char* leaf = (char*)weight.data + panel * weight.panel_bytes();
        for (int64_t i = 0; i < weight.leaves; i++, leaf += compact_leaf_bytes(length))
            if (!compact_leaf(plain + i * length * TILE_COLUMNS, length, leaf)) return false;
        return true;
    }
    return false;
}

void unpack_compact_row(const PackedWeight& weight, int64_t row, float* target) {
    if constexpr (CAN_COMPACT) {
        const int64_t length = weight.leaf_length();
        const char* leaf = (const char*)weight.data + row / TILE_COLUMNS * weight.panel_bytes();
        for (int64_t i = 0; i < weight.leaves; i++, leaf += compact_leaf_bytes(length))
            unpack_compact_column(leaf, length, (int)(row % TILE_COLUMNS), target + i * length);
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

SQUADRON_API int32_t squadron_pack(const PackedWeight* weight, const void* source, int32_t threads) {
    if (weight->codes == COMPACT && !(weight->dtype == BFLOAT16 && can_compact(weight->leaf_length()))) return -1;
    std::atomic<int32_t> result{0};
    with_dtype(weight->dtype, [&](auto type) {
        using T = decltype(type);
        for_each(weight->panels(), 1, threads, [&](int64_t panel) {
            const T* rows = (const T*)source;
            if (weight->codes == PLAIN)
                pack_panel(*weight, rows, panel, (uint32_t*)((T*)weight->data + panel * weight->panel_size()));
            else if (weight->codes != COMPACT)
                quantize_panel(*weight, rows, panel);
            else if (result == 0 && !compact_panel(*weight, (const bfloat16*)source, panel))
                result = -1;
        });
    });
    return result;
}

SQUADRON_API int64_t squadron_unpack_rows(const PackedWeight* weight, const int32_t* ids, int64_t count, float* out,
                                          int32_t threads) {
    for (int64_t i = 0; i < count; i++)
        if (ids[i] < 0 || ids[i] >= weight->out_features) return i;
    with_dtype(weight->dtype, [&](auto type) {
        for_each(count, 8, threads, [&](int64_t i) {
            float* row = out + i * weight->in_features;
            if (weight->codes == PLAIN)
                unpack_row<decltype(type)>(*weight, ids[i], row);
            else if (weight->codes == COMPACT)
                unpack_compact_row(*weight, ids[i], row);
            else
                dequantize_row(*weight, ids[i], row);
        });
    });
    return -1;
}
