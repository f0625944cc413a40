// From a dtype's number to its type.
#pragma once

#include <cstdint>

#include "simd.h"

namespace squadron {

enum DType : int32_t { FLOAT32 = 0, BFLOAT16 = 1 };

// function(T{}) with the type that `dtype` stands for.
template <class Function>
void with_dtype(int32_t dtype, Function function) {
    if (dtype == BFLOAT16)
        function(bfloat16{});
    else
        function(float{});
}

}  // namespace squadron
