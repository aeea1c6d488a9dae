// Names of the exported functions: KERNEL(hop, f32) is hop_f32_avx2 in the objects compiled for AVX2.
#pragma once

#define MAGNA_JOIN(name, type, isa) name##_##type##_##isa
#define MAGNA_NAME(name, type, isa) MAGNA_JOIN(name, type, isa)
#define KERNEL(name, type) extern "C" __attribute__((visibility("default"))) void MAGNA_NAME(name, type, MAGNA_ISA)
