// A weight as the linear kernels read it.
#pragma once

#include <cstdint>

#include "dtype.h"
#include "tile.h"

namespace squadron {

// weight [out_features, in_features], its k cut into `leaves` equal parts of whole steps, as
// data [panels][leaves][steps][TILE_COLUMNS][STEP], missing columns of the last panel zero.
//
// If gated, the weight has 2 * out_features rows, gate's first: the first half of a panel's columns are gate's and the
// second half the same columns of up.
struct PackedWeight {
    void* data;
    int64_t out_features, in_features, leaves;
    int32_t dtype, gated;

    int64_t columns_per_panel() const { return gated ? TILE_COLUMNS / 2 : TILE_COLUMNS; }
    int64_t panels() const { return (out_features + columns_per_panel() - 1) / columns_per_panel(); }
    int64_t panel_size() const { return in_features * TILE_COLUMNS; }  // elements
};

}  // namespace squadron
