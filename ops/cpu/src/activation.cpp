// silu(gate) * up, on a product that was not fused with it.
#include "api.h"
#include "dtype.h"
#include "threads.h"

using namespace squadron;

SQUADRON_API void squadron_silu_and_mul(const void* x, void* out, int64_t rows, int64_t size, int32_t dtype,
                                        int32_t threads) {
    with_dtype(dtype, [&](auto type) {
        using T = decltype(type);
        for_each(rows, 4, threads, [=](int64_t row) {
            const T *gate = (const T*)x + row * 2 * size, *up = gate + size;
            T* target = (T*)out + row * size;
            for (int64_t i = 0; i < size; i += LANES)
                store(target + i, silu(load(gate + i, size - i)) * load(up + i, size - i), size - i);
        });
    });
}
