// Vectors of LANES floats, as wide as the instruction set this file is compiled for; the compiler's own vector types otherwise.
//
// Contraction is off (-ffp-contract=off): a multiply-add is fused where `fmadd` says so and nowhere else, so every
// instantiation of a kernel rounds alike.
#pragma once

#include <cfenv>
#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace squadron {

struct bfloat16 {
    uint16_t bits;
};

#if defined(__AVX512F__)
constexpr int LANES = 16;
constexpr int VECTOR_REGISTERS = 32;
#elif defined(__AVX2__)
constexpr int LANES = 8;
constexpr int VECTOR_REGISTERS = 16;
#else
constexpr int LANES = 4;
constexpr int VECTOR_REGISTERS = 16;
#endif

typedef float Vec __attribute__((vector_size(LANES * 4)));
typedef int32_t Ints __attribute__((vector_size(LANES * 4)));
typedef uint32_t Words __attribute__((vector_size(LANES * 4)));
typedef uint16_t HalfWords __attribute__((vector_size(LANES * 4)));  // twice as many lanes
typedef uint16_t Halves __attribute__((vector_size(LANES * 2)));     // LANES bfloat16

// While one exists, this thread keeps subnormal numbers and rounds to the nearest. Another may have been told otherwise, by
// torch.set_flush_denormal or a library that was compiled for speed: that holds for one thread, and not for those beside it.
class PlainArithmetic {
   public:
#if defined(__x86_64__)  // vectors' part of what follows: a tenth of its time
    PlainArithmetic() : before(_mm_getcsr()) { _mm_setcsr(_MM_MASK_MASK); }
    ~PlainArithmetic() { _mm_setcsr(before); }
#else
    PlainArithmetic() {
        std::fegetenv(&before);
        std::fesetenv(FE_DFL_ENV);
    }
    ~PlainArithmetic() { std::fesetenv(&before); }
#endif
    PlainArithmetic(const PlainArithmetic&) = delete;

   private:
#if defined(__x86_64__)
    const unsigned before;
#else
    std::fenv_t before;
#endif
};

template <class V>
inline V load_bits(const void* source) {
    V value;
    std::memcpy(&value, source, sizeof value);
    return value;
}

template <class V>
inline void store_bits(void* target, V value) {
    std::memcpy(target, &value, sizeof value);
}

// --- arithmetic --------------------------------------------------------------------------------------------------------

// largest(a, b) is a > b ? a : b, hence b where either is NaN; smallest likewise.
#if defined(__AVX512F__)
inline Vec broadcast(float x) { return _mm512_set1_ps(x); }
inline Words broadcast_word(uint32_t x) { return (Words)_mm512_set1_epi32((int)x); }
inline Vec fmadd(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
inline Vec largest(Vec a, Vec b) { return _mm512_max_ps(a, b); }
inline Vec smallest(Vec a, Vec b) { return _mm512_min_ps(a, b); }
inline float lane_sum(Vec v) { return _mm512_reduce_add_ps(v); }
inline float lane_max(Vec v) { return _mm512_reduce_max_ps(v); }
#else
#if defined(__AVX2__)
inline Vec broadcast(float x) { return _mm256_set1_ps(x); }
inline Words broadcast_word(uint32_t x) { return (Words)_mm256_set1_epi32((int)x); }
inline Vec fmadd(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
#else
inline Vec broadcast(float x) { return Vec{x, x, x, x}; }
inline Words broadcast_word(uint32_t x) { return Words{x, x, x, x}; }
#if defined(__aarch64__)
inline Vec fmadd(Vec a, Vec b, Vec c) { return (Vec)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b); }
#else
inline Vec fmadd(Vec a, Vec b, Vec c) { return a * b + c; }
#endif
#endif
inline Vec largest(Vec a, Vec b) { return a > b ? a : b; }
inline Vec smallest(Vec a, Vec b) { return a < b ? a : b; }
inline float lane_sum(Vec v) {
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) v[i] += v[i + half];
    return v[0];
}
inline float lane_max(Vec v) {
    float result = v[0];
    for (int i = 1; i < LANES; i++) result = v[i] > result ? v[i] : result;
    return result;
}
#endif

// The nearest integers, for |x| < 2^22, and x * 2^n for whole n that leave the result a normal number.
#if defined(__AVX512F__)
inline Vec round_to_integers(Vec x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline Vec times_power_of_two(Vec x, Vec n) { return _mm512_scalef_ps(x, n); }
#else
constexpr float LAST_BIT_IS_ONE = 12582912.0f;  // 1.5 * 2^23
inline Vec round_to_integers(Vec x) { return (x + broadcast(LAST_BIT_IS_ONE)) - broadcast(LAST_BIT_IS_ONE); }
inline Vec times_power_of_two(Vec x, Vec n) {
    const Words low_bits = (Words)(n + broadcast(LAST_BIT_IS_ONE));
    return x * (Vec)((low_bits + 127) << 23);
}
#endif

// 2^r to about 2e-7 of the result, for |r| <= 1/2; 2^0 is 1. (A minimax fit.)
inline Vec exp2_of_fraction(Vec r) {
    Vec p = broadcast(1.326472615e-3f);
    p = fmadd(p, r, broadcast(9.671512991e-3f));
    p = fmadd(p, r, broadcast(5.550733581e-2f));
    p = fmadd(p, r, broadcast(2.402224243e-1f));
    p = fmadd(p, r, broadcast(6.931470037e-1f));
    return fmadd(p, r, broadcast(1.0f));
}

// 2^x for x up to 127, x below -126 taken as that; NaN stays NaN.
inline Vec exp2(Vec x) {
    x = largest(broadcast(-126.0f), x);
    const Vec n = round_to_integers(x);
    return times_power_of_two(exp2_of_fraction(x - n), n);
}

// e^x for x cut to [-87, 88]; NaN stays NaN. ln 2 is taken off in two parts, the first with few bits.
inline Vec exponential(Vec x) {
    x = largest(broadcast(-87.0f), smallest(broadcast(88.0f), x));
    const Vec log2_e = broadcast(1.44269504f), n = round_to_integers(x * log2_e);
    const Vec r = fmadd(n, broadcast(2.12194440e-4f), fmadd(n, broadcast(-0.693359375f), x));
    return times_power_of_two(exp2_of_fraction(r * log2_e), n);
}

inline Vec silu(Vec x) { return x / (broadcast(1.0f) + exponential(-x)); }

// --- bfloat16 ----------------------------------------------------------------------------------------------------------

inline float to_float(float x) { return x; }
inline float to_float(bfloat16 x) {
    const uint32_t word = (uint32_t)x.bits << 16;
    return load_bits<float>(&word);
}

inline Vec widen(Halves x) { return (Vec)(__builtin_convertvector(x, Words) << 16); }

// Rounds to nearest, ties to even; NaN stays NaN.
inline Halves narrow(Vec x) {
#if defined(__AVX512BF16__)
    return (Halves)_mm512_cvtneps_pbh(x);
#else
    const Words bits = (Words)x;
    const Words rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    const Words is_nan = (Words)(x != x);
    return __builtin_convertvector((is_nan & 0x7fc0) | (~is_nan & rounded), Halves);
#endif
}

// --- memory: a vector, or its first `count` lanes (the others are loaded as zero, and not stored) ----------------------

inline Vec load(const float* p) { return load_bits<Vec>(p); }
inline Vec load(const bfloat16* p) { return widen(load_bits<Halves>(p)); }
inline void store(float* p, Vec v) { store_bits(p, v); }
inline void store(bfloat16* p, Vec v) { store_bits(p, narrow(v)); }

template <class T>
inline Vec load(const T* p, int64_t count) {
    if (count >= LANES) return load(p);
    T lanes[LANES] = {};
    std::memcpy(lanes, p, count * sizeof(T));
    return load(lanes);
}

template <class T>
inline void store(T* p, Vec v, int64_t count) {
    if (count >= LANES) return store(p, v);
    T lanes[LANES];
    store(lanes, v);
    std::memcpy(p, lanes, count * sizeof(T));
}

// --- shuffles ----------------------------------------------------------------------------------------------------------

// a0 b0 a1 b1 ... of the lower (upper) halves of a and b.
template <bool upper, class V, int... lane>
inline V zip_lanes(V a, V b, std::integer_sequence<int, lane...>) {
    constexpr int count = sizeof...(lane), start = upper ? count / 2 : 0;
#if defined(__clang__)
    return __builtin_shufflevector(a, b, (start + lane / 2 + lane % 2 * count)...);
#else
    return __builtin_shuffle(a, b, V{(start + lane / 2 + lane % 2 * count)...});
#endif
}

template <class V>
inline V zip_low(V a, V b) {
    return zip_lanes<false>(a, b, std::make_integer_sequence<int, sizeof(V) / sizeof(a[0])>());
}

template <class V>
inline V zip_high(V a, V b) {
    return zip_lanes<true>(a, b, std::make_integer_sequence<int, sizeof(V) / sizeof(a[0])>());
}

// rows[i][j] and rows[j][i] change places: log2(LANES) perfect shuffles.
inline void transpose(Words (&rows)[LANES]) {
    Words next[LANES];
    for (int stage = 1; stage < LANES; stage *= 2) {
#pragma GCC unroll 16
        for (int i = 0; i < LANES / 2; i++) {
            next[2 * i] = zip_low(rows[i], rows[i + LANES / 2]);
            next[2 * i + 1] = zip_high(rows[i], rows[i + LANES / 2]);
        }
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++) rows[i] = next[i];
    }
}

}  // namespace squadron
