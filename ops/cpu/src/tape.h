// A call on a tape.
#pragma once

#include "api.h"

namespace squadron {

constexpr int MAX_ARGUMENTS = 18;

struct TapeCall {
    int64_t kernel;                 // its number
    uint64_t words[MAX_ARGUMENTS];  // an argument each, in its first bytes
};

}  // namespace squadron
