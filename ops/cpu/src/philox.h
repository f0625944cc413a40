// Philox-4x32-10, a counter-based random number generator (Salmon, Moraes, Dror, Shaw, SC 2011).
#pragma once

#include <cstdint>

namespace squadron {

// In [0, 1): the first word of key `seed` and counter (position, choice, 0, 0), over 2^32.
inline double uniform(uint64_t seed, uint32_t choice, uint32_t position) {
    uint32_t c0 = position, c1 = choice, c2 = 0, c3 = 0;
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        const uint64_t product0 = 0xD2511F53ull * c0, product1 = 0xCD9E8D57ull * c2;
        c0 = (uint32_t)(product1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)product1;
        c2 = (uint32_t)(product0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)product0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return c0 * 0x1p-32;
}

}  // namespace squadron
