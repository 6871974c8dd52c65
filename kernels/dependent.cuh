// Programmatic dependent launch (Hopper and later): a kernel that is launched early starts while the one
// before it on the stream ends, and waits here before it reads or writes what that one does. In a kernel that
// was launched as usual the wait is over at once; its successor may still start early.
#pragma once

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

// The first step of a kernel of which nothing can be done before the last one has ended. The kernel after it
// may then start before the last one has ended, so it has to wait as well before it reads anything but
// constants: all of ours do. torch's wait for what the kernel just before them writes alone. A kernel that
// one of torch's may follow waits first and lets dependents launch then, as attend.cu and gemm_swap_ab.cu do.
__device__ __forceinline__ void follow() {
    let_dependents_launch();
    dependency_wait();
}
