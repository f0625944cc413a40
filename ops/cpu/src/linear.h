// A weight as the linear kernels read it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "compact.h"
#include "digits.h"
#include "dtype.h"
#include "quantized.h"
#include "tile.h"

namespace squadron {

// weight [out_features, in_features], its k cut into `leaves` equal parts of whole steps, as
// data [panels][leaves][steps][TILE_COLUMNS][STEP], missing columns of the last panel zero; quantized.h and compact.h have the other codes.
//
// If gated, the weight has 2 * out_features rows, gate's first: the first half of a panel's columns are gate's and the
// second half the same columns of up.
struct PackedWeight {
    void* data;
    int64_t out_features, in_features, leaves;
    int32_t dtype;  // of x, and of the weight itself if it is not quantized
    int32_t gated, codes;
    // Of published codes (published.h): the lengths of all runs, the first run of each leaf and the end, and where in a panel
    // the leaves' bytes begin.
    const int32_t *runs, *leaf_runs;
    const int64_t* leaf_offsets;

    int64_t columns_per_panel() const { return gated ? TILE_COLUMNS / 2 : TILE_COLUMNS; }
    int64_t panels() const { return (out_features + columns_per_panel() - 1) / columns_per_panel(); }
    int64_t panel_size() const { return in_features * TILE_COLUMNS; }  // elements
    int64_t leaf_length() const { return in_features / leaves; }
    int64_t panel_bytes() const {
        if (leaf_offsets != nullptr) return leaf_offsets[leaves];
        if (codes == COMPACT) return leaves * compact_leaf_bytes(leaf_length());
        if (codes != PLAIN) return leaves * leaf_bytes((Codes)codes, leaf_length());
        return panel_size() * (dtype == BFLOAT16 ? 2 : 4);
    }

    // Runs of the leaf that has most.
    int64_t most_runs() const {
        int64_t most = 0;
        for (int64_t leaf = 0; leaf < leaves; leaf++) most = std::max<int64_t>(most, leaf_runs[leaf + 1] - leaf_runs[leaf]);
        return most;
    }
    int64_t leaf_digits_bytes() const { return digits_bytes(leaf_length(), most_runs()); }  // of a row

    int64_t leaf_offset(int64_t leaf) const {
        return leaf_offsets != nullptr ? leaf_offsets[leaf] : leaf * (panel_bytes() / leaves);
    }

    // Which row of the weight stands in a panel's column; -1: none.
    int64_t source_row(int64_t panel, int column) const {
        const bool is_up = gated && column >= LANES;
        const int64_t row = panel * columns_per_panel() + (is_up ? column - LANES : column);
        if (row >= out_features) return -1;
        return is_up ? out_features + row : row;
    }
};

}  // namespace squadron
