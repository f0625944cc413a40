// Rotary embedding of queries and keys, and the write of keys and values to their slots of the cache.
#include "api.h"
#include "dtype.h"
#include "kv_cache.h"
#include "threads.h"

namespace squadron {
namespace {

// NeoX halves: (a, b) -> (a cos - b sin, b cos + a sin). cos_sin [head_dim], cosines first.
template <class T>
void rotate(const T* x, const float* cos_sin, T* out, int64_t head_dim) {
    const int64_t half = head_dim / 2;
    for (int64_t i = 0; i < half; i += LANES) {
        const int64_t count = half - i;
        const Vec a = load(x + i, count), b = load(x + half + i, count);
        const Vec cosine = load(cos_sin + i, count), sine = load(cos_sin + half + i, count);
        store(out + i, fmadd(a, cosine, -(b * sine)), count);
        store(out + half + i, fmadd(b, cosine, a * sine), count);
    }
}

}  // namespace
}  // namespace squadron

using namespace squadron;

SQUADRON_API int64_t squadron_rotary_and_cache(const void* qkv, const int32_t* positions, const float* cos_sin,
                                               const int32_t* slots, void* key_cache, void* value_cache, void* queries,
                                               int64_t rows, int64_t heads, int64_t kv_heads, int64_t head_dim,
                                               int64_t block_size, int64_t num_blocks, int64_t max_positions,
                                               int32_t dtype, int32_t threads) {
    for (int64_t row = 0; row < rows; row++)
        if (positions[row] < 0 || positions[row] >= max_positions || slots[row] < 0 ||
            slots[row] >= num_blocks * block_size)
            return row;
    with_dtype(dtype, [&](auto type) {
        using T = decltype(type);
        for_each(rows, 8, threads, [=](int64_t row) {
            const T* x = (const T*)qkv + row * (heads + 2 * kv_heads) * head_dim;
            const float* angles = cos_sin + positions[row] * head_dim;
            for (int64_t head = 0; head < heads; head++)
                rotate(x + head * head_dim, angles, (T*)queries + (row * heads + head) * head_dim, head_dim);
            const T *keys = x + heads * head_dim, *values = keys + kv_heads * head_dim;
            for (int64_t head = 0; head < kv_heads; head++) {
                const int64_t block = slots[row] / block_size, offset = slots[row] % block_size, place = offset % LANES;
                const int64_t group = ((block * kv_heads + head) * block_size + offset - place) * head_dim;
                T* key = (T*)scratch(head_dim);
                rotate(keys + head * head_dim, angles, key, head_dim);
                store_key(key, head_dim, place, (T*)key_cache + group);
                store_value(values + head * head_dim, head_dim, place, (T*)value_cache + group);
            }
        });
    });
    return -1;
}
