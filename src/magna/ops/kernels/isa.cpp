// Which of the two builds of each kernel this machine can run.

extern "C" __attribute__((visibility("default"))) int magna_has_avx2() {
#if defined(MAGNA_WITH_AVX2)
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
    return 0;
#endif
}
