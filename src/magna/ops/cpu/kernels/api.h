// Exported functions: KERNEL(hop, f32, arguments…) is hop_f32_avx2 in the objects compiled for AVX2. The text of its
// arguments is exported beside it, and `bindings.py` reads the types of a call from there.
#pragma once

#define EXPORTED __attribute__((visibility("default")))
#define MAGNA_JOIN(name, type, isa) name##_##type##_##isa
#define MAGNA_NAME(name, type, isa) MAGNA_JOIN(name, type, isa)
#define MAGNA_TEXT(...) #__VA_ARGS__
#define KERNEL(name, type, ...)                                                                                 \
    extern "C" {                                                                                                \
    EXPORTED extern const char MAGNA_NAME(name##_arguments, type, MAGNA_ISA)[] = MAGNA_TEXT(__VA_ARGS__);       \
    }                                                                                                           \
    extern "C" EXPORTED void MAGNA_NAME(name, type, MAGNA_ISA)(__VA_ARGS__)
