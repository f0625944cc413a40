// The product at the bottom of the linears: a few rows times one panel of TILE_COLUMNS columns.
//
// An element is one chain of multiply-adds over k, or what tile registers make of it (tile_registers.h), whatever the number of
// rows beside it: its bits depend on its own row and column alone.
#pragma once

#include <cstdint>
#include <type_traits>

#include "simd.h"

namespace squadron {

constexpr int TILE_COLUMNS = 2 * LANES;

// What one step over k takes of a row or column: one float, or a pair of bfloat16, 4 bytes either way.
template <class T>
constexpr int STEP = 4 / sizeof(T);

// Whether rows of T are multiplied by tile registers (tile_registers.h), which have as many.
#if defined(__AMX_BF16__)
template <class T>
constexpr bool HAS_TILE_REGISTERS = std::is_same_v<T, bfloat16>;
#else
template <class T>
constexpr bool HAS_TILE_REGISTERS = false;
#endif
constexpr int REGISTER_ROWS = 16;

// As many rows as leave the accumulators in registers: vectors, or two tile registers of rows by two of columns.
#if defined(__AVX512BF16__)
template <class T>
constexpr int TILE_ROWS = HAS_TILE_REGISTERS<T> ? 2 * REGISTER_ROWS : 14;
#else
template <class T>
constexpr int TILE_ROWS = VECTOR_REGISTERS / 2 - (STEP<T> == 1 ? 2 : 3);
#endif

// Tiles begin at multiples of as many rows: a tile register that is not full takes as long as a full one.
template <class T>
constexpr int WHOLE_ROWS = HAS_TILE_REGISTERS<T> ? REGISTER_ROWS : 1;

// Rows so few that their chains do not keep the multipliers busy: two panels are multiplied side by side. Where a
// pair of bfloat16 is one instruction, a row alone reads faster than memory.
#if defined(__AVX512BF16__)
template <class T>
constexpr int FEW_ROWS = 0;
#else
template <class T>
constexpr int FEW_ROWS = STEP<T> == 1 ? 0 : 2;
#endif

// Memory to be read later: so many bytes from `data` on for each step, a cache line at most.
struct Ahead {
    const char* data = nullptr;
    int64_t step_bytes = 0;

    // For the next so many steps.
    void fetch(int64_t steps) {
        for (int64_t byte = 0; byte < steps * step_bytes; byte += 64) __builtin_prefetch(data + byte, 0, 2);
        data += steps * step_bytes;
    }
};

// c [rows, TILE_COLUMNS] = a [rows, steps * STEP] (row stride lda) x panel [steps, TILE_COLUMNS, STEP], contiguous.
// 1 <= rows <= TILE_ROWS. Meanwhile asks the memory for what lies ahead.
template <class T>
void multiply_tile(int64_t rows, const T* a, int64_t lda, const T* panel, int64_t steps, float* c, Ahead ahead = {});

// The same for two panels, one of which begins `apart` elements behind the other, to c [2][rows, TILE_COLUMNS] that begin
// `c_apart` elements apart; 1 <= rows <= FEW_ROWS.
template <class T>
void multiply_two_tiles(int64_t rows, const T* a, int64_t lda, const T* panel, int64_t apart, int64_t steps, float* c,
                        int64_t c_apart);

}  // namespace squadron
