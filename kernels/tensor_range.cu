// The range of a whole tensor, and what follows from it: the tensor scale of a two-level scheme, or the
// scale, zero point and step of a scheme with one block.
//
// Bytes: each element once in. The end of the tensor is left in the L2 cache, and the kernel that encodes
// begins there. -D: ELEMENT, RUN (elements a thread), CODEC, MAPPING, SCALE, SCALE_RULE, SMALLEST_SCALE,
// RANGE, REFIT.
#include "blocks.cuh"
#include "dependent.cuh"
#include "extent.cuh"
#include "settle.cuh"

using T = ELEMENT;

// Words of memory that are zero before and after: the largest -x and x as the bits of floats, or the double
// sum of |x| as Extent scales it, and how many thread blocks have added theirs.
struct Gathered {
    union {
        int largest[2];
        unsigned long long sum;
    };
    unsigned int blocks;

    // Non-negative floats are ordered as their bits are, so that an integer atomic takes their maximum.
    // True in the last thread block, which then holds the tensor's extent.
    __device__ __forceinline__ bool add(Extent& extent) {
        if constexpr (kMean) {
            atomicAdd(reinterpret_cast<double*>(&sum), extent.sum);
        } else {
            atomicMax(largest + 1, __float_as_int(extent.high));
            if constexpr (kBothEnds) atomicMax(largest, __float_as_int(extent.low));
        }
        __threadfence();
        if (atomicAdd(&blocks, 1) + 1 < gridDim.x) return false;
        __threadfence();
        if constexpr (kMean) {
            extent.sum = __longlong_as_double(static_cast<long long>(atomicExch(&sum, 0ull)));
        } else {
            extent.high = __int_as_float(atomicExch(largest + 1, 0));
            if constexpr (kBothEnds) extent.low = __int_as_float(atomicExch(largest, 0));
        }
        blocks = 0;
        return true;
    }
};

// Thread blocks of a multiprocessor. From Blackwell on, sums in double need more registers than six leave.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
constexpr int kThreadBlocks = kMean ? 4 : 6;
#else
constexpr int kThreadBlocks = 6;
#endif

// Two runs are loaded before either is used: more bytes in flight. Elements from ``kept`` on stay in the L2
// cache. ``amax``, of two-level schemes: settle.cuh's ``tensor_scale_from``. ``scales``, ``zeros`` and
// ``steps`` have one entry, or are null where the scheme has more blocks. ``sums`` are cleared.
extern "C" __global__ void __launch_bounds__(256, kThreadBlocks)
    tensor_range(const T* x, Gathered* gathered, int* unusable, uint64_t elements, uint64_t kept, float* amax,
                 void* scales, int8_t* zeros, float* steps, double* sums) {
    follow();
    uint64_t first = thread_index(), stride = thread_count();
    uint64_t runs = reinterpret_cast<uintptr_t>(x) % 16 == 0 ? elements / RUN : 0, run = first;
    Extent extent;
    extent.clear();
    for (; run + stride < runs; run += 2 * stride) {
        Run<T, RUN> a, b;
        a.load_from(x, run * RUN, kept);
        b.load_from(x, (run + stride) * RUN, kept);
        extent.add_run(a);
        extent.add_run(b);
    }
    if (run < runs) {
        Run<T, RUN> a;
        a.load_from(x, run * RUN, kept);
        extent.add_run(a);
    }
    for (uint64_t i = runs * RUN + first; i < elements; i += stride) extent.add(to_float(x[i]));
    extent.report(unusable);
    extent.merge_block();
    if (threadIdx.x || !gathered->add(extent)) return;
    float lo, hi, zero;
    extent.range(double(elements), lo, hi);
    TensorScale tensor_scale = {};
    if constexpr (SCALE_RULE == TWO_LEVEL) {
        tensor_scale = tensor_scale_of<Q, ScaleCodec>(fmaxf(-lo, hi));
        amax[0] = -lo, amax[1] = hi, amax[2] = tensor_scale.value, amax[3] = tensor_scale.inverse;
    }
    if (steps) steps[0] = settle(lo, hi, tensor_scale, scales, zeros, 0, true, zero);
    if constexpr (REFIT) sums[0] = sums[1] = 0.0;
}
