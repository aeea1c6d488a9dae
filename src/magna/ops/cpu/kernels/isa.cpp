// Which of the builds of each kernel this machine can run: 0 the baseline, 1 AVX2, 2 AVX-512.

extern "C" __attribute__((visibility("default"))) int magna_best_isa() {
#if defined(MAGNA_X86)
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return 0;
    const bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw");
    return wide ? 2 : 1;
#else
    return 0;
#endif
}
