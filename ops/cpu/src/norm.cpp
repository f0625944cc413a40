// RMS norm of rows and of heads, the addition to the residual stream, and norm and addition at once. A row is summed in one order, by one thread.
#include <cmath>

#include "api.h"
#include "dtype.h"
#include "threads.h"

namespace squadron {
namespace {

constexpr int64_t GRAIN = 8;  // rows worth waking a thread for

template <class T>
void norm_row(const T* x, const T* weight, T* out, int64_t size, float eps) {
    Vec squares = broadcast(0.0f);
    for (int64_t i = 0; i < size; i += LANES) {
        const Vec value = load(x + i, size - i);
        squares = fmadd(value, value, squares);
    }
    const Vec factor = broadcast(1.0f / std::sqrt(lane_sum(squares) / (float)size + eps));
    for (int64_t i = 0; i < size; i += LANES)
        store(out + i, load(x + i, size - i) * factor * load(weight + i, size - i), size - i);
}

template <class T>
void add_row(const float* update, T* residual, int64_t size) {
    for (int64_t i = 0; i < size; i += LANES)
        store(residual + i, load(residual + i, size - i) + load(update + i, size - i), size - i);
}

}  // namespace
}  // namespace squadron

using namespace squadron;

SQUADRON_API void squadron_rms_norm(const void* x, const void* weight, void* out, int64_t rows, int64_t size, float eps,
                                    int32_t dtype, int32_t threads) {
    with_dtype(dtype, [&](auto type) {
        using T = decltype(type);
        for_each(rows, GRAIN, threads, [=](int64_t row) {
            norm_row((const T*)x + row * size, (const T*)weight, (T*)out + row * size, size, eps);
        });
    });
}

SQUADRON_API void squadron_add(const float* update, void* residual, int64_t rows, int64_t size, int32_t dtype,
                               int32_t threads) {
    with_dtype(dtype, [&](auto type) {
        using T = decltype(type);
        for_each(rows, GRAIN, threads, [=](int64_t row) { add_row(update + row * size, (T*)residual + row * size, size); });
    });
}

SQUADRON_API void squadron_add_rms_norm(const float* update, void* residual, const void* weight, void* out, int64_t rows,
                                        int64_t size, float eps, int32_t dtype, int32_t threads) {
    with_dtype(dtype, [&](auto type) {
        using T = decltype(type);
        for_each(rows, GRAIN, threads, [=](int64_t row) {
            add_row(update + row * size, (T*)residual + row * size, size);
            norm_row((const T*)residual + row * size, (const T*)weight, (T*)out + row * size, size, eps);
        });
    });
}

SQUADRON_API void squadron_qk_norm(void* qkv, const void* query_weight, const void* key_weight, int64_t rows, int64_t heads,
                                   int64_t kv_heads, int64_t head_dim, float eps, int32_t dtype, int32_t threads) {
    with_dtype(dtype, [&](auto type) {
        using T = decltype(type);
        for_each(rows, GRAIN, threads, [=](int64_t row) {
            T* head = (T*)qkv + row * (heads + 2 * kv_heads) * head_dim;
            for (int64_t i = 0; i < heads + kv_heads; i++, head += head_dim)
                norm_row(head, (const T*)(i < heads ? query_weight : key_weight), head, head_dim, eps);
        });
    });
}
