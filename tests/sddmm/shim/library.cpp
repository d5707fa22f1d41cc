// One SDDMM kernel as a library: run(blocks, threads, arguments) takes the struct of its parameters.
#include "cuda_on_cpu.h"

#include SDDMM_SOURCE

#ifndef SHIM_CLUSTER_BLOCKS
#define SHIM_CLUSTER_BLOCKS 1
#endif

template <class Arguments>
static void run_kernel(void (*kernel)(Arguments), int blocks, int threads, const void* arguments) {
  alignas(Arguments) unsigned char aligned[sizeof(Arguments)];
  std::memcpy(aligned, arguments, sizeof(Arguments));
  shim::cluster_blocks = SHIM_CLUSTER_BLOCKS;
  shim::run(blocks, threads, [&] { kernel(*reinterpret_cast<const Arguments*>(aligned)); });
}

extern "C" void run(int blocks, int threads, const void* arguments) {
  run_kernel(sddmm_kernel, blocks, threads, arguments);
}
