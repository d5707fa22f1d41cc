// One kernel as a library: run(blocks, threads, arguments) takes the struct of its parameters.
#include "cuda_on_cpu.h"

#include EMULATED_SOURCE

#ifndef EMULATED_CLUSTER_BLOCKS
#define EMULATED_CLUSTER_BLOCKS 1
#endif

template <class Arguments>
static void run_kernel(void (*kernel)(Arguments), int blocks, int threads, const void* arguments) {
  alignas(Arguments) unsigned char aligned[sizeof(Arguments)];
  std::memcpy(aligned, arguments, sizeof(Arguments));
  emulation::cluster_blocks = EMULATED_CLUSTER_BLOCKS;
  emulation::run(blocks, threads, [&] { kernel(*reinterpret_cast<const Arguments*>(aligned)); });
}

extern "C" __attribute__((visibility("default"))) void run(int blocks, int threads,
                                                          const void* arguments) {
  run_kernel(EMULATED_KERNEL, blocks, threads, arguments);
}
