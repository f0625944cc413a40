// The bandwidth probe of bench_cpu_kernels.py: reads an array and does nothing else.
#include <cstdint>

extern "C" uint64_t read_array(const uint64_t* array, int64_t size, int32_t threads) {
    uint64_t sum = 0;
#pragma omp parallel for num_threads(threads) reduction(+ : sum)
    for (int64_t i = 0; i < size; i++) sum += array[i];
    return sum;
}
