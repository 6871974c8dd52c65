// Programmatic dependent launch (Hopper and later): a kernel that is launched early starts while the one
// before it on the stream ends, and waits here before it reads or writes what that one does. In a kernel that
// was launched as usual the wait is over at once; its successor may still start early.
#pragma once
#include <cstdint>

// Until the kernel before this one has ended and its writes are seen.
__device__ __forceinline__ void dependency_wait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;\n" ::: "memory");
#endif
}

// The next kernel may start, once every thread block of this one has come here or ended.
__device__ __forceinline__ void let_dependents_launch() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
#endif
}

// In a step kernels may count: ``before`` CTAs of the one before have written what they write when its counter
// says so, some time before that kernel has ended and dependency_wait() returns. Counters are zeroed by the
// step's first kernel, before it lets others launch. Without a counter it is dependency_wait(). By one thread.
struct Turn {
    const uint32_t* counter;  // of the kernel before; null: none
    uint32_t* own;
    int before;

    __device__ __forceinline__ void wait() const {
        if (!counter) return dependency_wait();
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
        uint32_t count;
        do asm volatile("ld.acquire.gpu.b32 %0, [%1];\n" : "=r"(count) : "l"(counter) : "memory");
        while (count < uint32_t(before));
        asm volatile("fence.proxy.async;\n" ::: "memory");
#endif
    }
    // After a barrier of all threads that wrote, each of which has fenced.
    __device__ __forceinline__ void done() const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
        if (own) asm volatile("red.release.gpu.global.add.u32 [%0], 1;\n" ::"l"(own) : "memory");
#endif
    }
};

// The first step of a kernel of which nothing can be done before the last one has ended. The kernel after it
// may then start before the last one has ended, so it has to wait as well before it reads anything but
// constants: all of ours do. torch's wait for what the kernel just before them writes alone. A kernel that
// one of torch's may follow waits first and lets dependents launch then, as attend.cu and gemm_swap_ab.cu do.
__device__ __forceinline__ void follow() {
    let_dependents_launch();
    dependency_wait();
}
