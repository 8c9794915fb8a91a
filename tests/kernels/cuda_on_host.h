// CUDA's words for a C++ compiler that knows none of them: a .cu file of plain C++ becomes functions of this processor.
// A launch is a loop over its threads, so only what needs no other thread of the launch runs right: all that is here.

#include <utility>

#define __global__
#define __device__
#define __launch_bounds__(threads)

struct uint2 {
    unsigned x, y;
} __attribute__((aligned(8)));

struct uint4 {
    unsigned x, y, z, w;
} __attribute__((aligned(16)));

struct Dimension {
    unsigned x;
};
static thread_local Dimension blockIdx, blockDim, threadIdx;

// Built with -ffp-contract=off, an operation is rounded by itself.
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dsub_rn(double a, double b) { return a - b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __ddiv_rn(double a, double b) { return a / b; }

template <class... Parameters, std::size_t... I>
void run_thread(void (*kernel)(Parameters...), const long long* arguments, std::index_sequence<I...>) {
    kernel((Parameters)arguments[I]...);
}

// The number of parameters, all of 8 bytes; with another `count` of arguments nothing is run.
template <class... Parameters>
long long run_on_host(void (*kernel)(Parameters...), const long long* arguments, long long count, long long blocks,
                      long long threads) {
    static_assert(((sizeof(Parameters) == 8) && ...), "a launch passes int64 only");
    if (count != sizeof...(Parameters)) return sizeof...(Parameters);
    blockDim.x = (unsigned)threads;
    for (long long block = 0; block < blocks; block++)
        for (long long thread = 0; thread < threads; thread++) {
            blockIdx.x = (unsigned)block;
            threadIdx.x = (unsigned)thread;
            run_thread(kernel, arguments, std::index_sequence_for<Parameters...>());
        }
    return count;
}
