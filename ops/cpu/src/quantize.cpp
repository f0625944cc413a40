// Weights into codes and scales. A group's codes depend on the numbers of its span (INT8) or on its own alone, and every level
// computes the same ones: those of ops/reference/matmul/quantization.py.
#include <algorithm>
#include <cfloat>
#include <cmath>
#include <limits>

#include "linear.h"
#include "published.h"

namespace squadron {
namespace {

constexpr int NUM_CANDIDATES = 8;  // scales that are tried for a group of INT4

float to_bfloat16(float x) {
    bfloat16 rounded;
    store(&rounded, broadcast(x), 1);
    return to_float(rounded);
}

// codes <- values / scale, to the nearest in [lowest, highest], as floats; returns the sum of the squared errors.
float encode(const float* values, float scale, float lowest, float highest, float* codes) {
    alignas(64) float squares[GROUP];
    const Vec inverse = broadcast(1.0f / scale);
    for (int64_t i = 0; i < GROUP; i += LANES) {
        const Vec value = load(values + i), nearest = round_to_integers(value * inverse);
        const Vec code = smallest(broadcast(highest), largest(broadcast(lowest), nearest));
        const Vec error = value - code * broadcast(scale);
        store(codes + i, code);
        store(squares + i, error * error);
    }
    for (int64_t i = 16; i < GROUP; i += 16)
        for (int j = 0; j < 16; j++) squares[j] += squares[i + j];
    for (int half = 8; half > 0; half /= 2)
        for (int j = 0; j < half; j++) squares[j] += squares[half + j];
    return squares[0];
}

// The extreme of greatest magnitude becomes -8, a little less, or is cut off: whatever makes the squared error least.
float encode_int4(const float* values, float peak, float* codes) {
    alignas(64) float candidate[GROUP];
    float best = 0.0f, best_scale = 0.0f;
    for (int i = 0; i < NUM_CANDIDATES; i++) {
        const float scale = to_bfloat16(peak / -(7.0f + 0.5f * (float)i));
        const float error = encode(values, scale, -8.0f, 7.0f, candidate);
        if (i > 0 && error >= best) continue;
        best = error, best_scale = scale;
        std::copy_n(candidate, GROUP, codes);
    }
    return best_scale;
}

struct Extremes {
    float high = 0.0f, low = 0.0f;
    bool is_finite = true;

    float peak() const { return high >= -low ? high : low; }
};

template <class T>
Extremes extremes(const T* numbers, int64_t count) {
    Extremes found;
    for (int64_t i = 0; i < count; i++) {
        const float number = to_float(numbers[i]);
        found.high = std::max(found.high, number);
        found.low = std::min(found.low, number);
        found.is_finite &= std::fabs(number) <= FLT_MAX;
    }
    return found;
}

// values [GROUP], codes [GROUP]; returns the scale. `of` are those of all that share it. All zero if the numbers are hardly more;
// NaN if they are not all finite.
float quantize_group(Codes kind, const Extremes& of, const float* values, float* codes) {
    const float peak = of.peak(), largest_code = kind == INT8 ? 127.0f : 16.0f;
    std::fill_n(codes, GROUP, 0.0f);
    if (!of.is_finite) return std::numeric_limits<float>::quiet_NaN();
    if (std::fabs(peak) < largest_code * FLT_MIN) return 0.0f;
    if (kind == INT4) return encode_int4(values, peak, codes);
    const float scale = to_bfloat16(std::fabs(peak) / 127.0f);
    encode(values, scale, -127.0f, 127.0f, codes);
    return scale;
}

// group <- the scale and the codes of a column's `count` numbers.
template <class T>
void quantize_column(Codes kind, bool is_for_digits, const Extremes& of, const T* numbers, int64_t count, int column, char* group) {
    alignas(64) float values[GROUP] = {}, codes[GROUP];
    for (int64_t k = 0; k < count; k++) values[k] = to_float(numbers[k]);
    store((bfloat16*)group + column, broadcast(quantize_group(kind, of, values, codes)), 1);
    const int zero = is_for_digits ? zero_point(kind) : 0;
    char* group_codes = group + SCALE_BYTES;
    for (int64_t k = 0; k < count; k++) {
        const Place place = is_for_digits ? digit_place_of(kind, k, column) : place_of(kind, k, column);
        const int code = (int)codes[k] + zero;
        group_codes[place.byte] = (char)(kind == INT8 ? code : group_codes[place.byte] | (code & 15) << place.shift);
    }
}

}  // namespace

template <class T>
void quantize_panel(const PackedWeight& weight, const T* source, int64_t panel) {
    const Codes kind = (Codes)weight.codes;
    const bool is_for_digits = in_digits(kind, weight.dtype);
    const int64_t length = weight.leaf_length(), span = kind == INT8 ? INT8_SPAN : GROUP;
    char* target = (char*)weight.data + panel * weight.panel_bytes();
    std::fill_n(target, weight.panel_bytes(), (char)0);
    for (int64_t leaf = 0; leaf < weight.leaves; leaf++, target += leaf_bytes(kind, length))
        for (int64_t begin = 0; begin < length; begin += span)
            for (int column = 0; column < TILE_COLUMNS; column++) {
                const int64_t row = weight.source_row(panel, column);
                if (row < 0) continue;
                const T* numbers = source + row * weight.in_features + leaf * length;
                const int64_t end = std::min(begin + span, length);
                const Extremes of = extremes(numbers + begin, end - begin);
                for (int64_t group = begin; group < end; group += GROUP)
                    quantize_column(kind, is_for_digits, of, numbers + group, std::min(GROUP, end - group), column,
                                    target + group / GROUP * group_bytes(kind, GROUP));
            }
}

template void quantize_panel(const PackedWeight&, const float*, int64_t);
template void quantize_panel(const PackedWeight&, const bfloat16*, int64_t);

void dequantize_row(const PackedWeight& weight, int64_t row, float* target) {
    const Codes kind = (Codes)weight.codes;
    const bool is_for_digits = in_digits(kind, weight.dtype);
    const int column = (int)(row % TILE_COLUMNS);
    const char* group = (const char*)weight.data + row / TILE_COLUMNS * weight.panel_bytes();
    for (int64_t leaf = 0; leaf < weight.leaves; leaf++)
        for (int64_t begin = 0; begin < weight.leaf_length(); begin += GROUP) {
            const int64_t count = std::min(GROUP, weight.leaf_length() - begin);
            const float scale = to_float(((const bfloat16*)group)[column]);
            for (int64_t k = 0; k < count; k++) {
                const Place place = is_for_digits ? digit_place_of(kind, k, column) : place_of(kind, k, column);
                const uint8_t byte = (uint8_t)group[SCALE_BYTES + place.byte];
                if (is_for_digits)
                    *target++ = scale * (float)((kind == INT8 ? byte : byte >> place.shift & 15) - zero_point(kind));
                else
                    *target++ = scale * (float)(kind == INT8 ? (int8_t)byte : (int8_t)(byte << (4 - place.shift)) >> 4);
            }
            group += group_bytes(kind, count);
        }
}

}  // namespace squadron
