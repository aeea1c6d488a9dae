// Vectors of the instruction set this file is compiled for, with the loads and stores of each feature type.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#define INLINED __attribute__((always_inline))
#define INLINE inline INLINED
#define NOINLINE __attribute__((noinline))

namespace {

struct bfloat16 {
    uint16_t bits;
};

// The type that sums of a feature type are kept in.
template <class T> struct Accumulator { using type = T; };
template <> struct Accumulator<bfloat16> { using type = float; };
template <class T> using accumulator = typename Accumulator<T>::type;

#if defined(__AVX2__)
constexpr int VECTOR_BYTES = 32;
#else
constexpr int VECTOR_BYTES = 16;
#endif

template <class A> struct Vectors {
    typedef A type __attribute__((vector_size(VECTOR_BYTES)));
    typedef A unaligned __attribute__((vector_size(VECTOR_BYTES), aligned(alignof(A)), may_alias));
};
template <class A> using vec = typename Vectors<A>::type;
template <class A> constexpr int LANES = VECTOR_BYTES / int(sizeof(A));

typedef uint32_t words __attribute__((vector_size(VECTOR_BYTES)));
typedef int32_t signed_words __attribute__((vector_size(VECTOR_BYTES)));
typedef uint16_t half_words __attribute__((vector_size(VECTOR_BYTES / 2)));

INLINE float widen(float value) { return value; }
INLINE double widen(double value) { return value; }
INLINE float widen(bfloat16 value) {
    const uint32_t bits = uint32_t(value.bits) << 16;
    float wide;
    memcpy(&wide, &bits, sizeof wide);
    return wide;
}

INLINE void narrow(float value, float* to) { *to = value; }
INLINE void narrow(double value, double* to) { *to = value; }
INLINE void narrow(float value, bfloat16* to) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    // Round to nearest even; a NaN stays one.
    to->bits = value == value ? uint16_t((bits + 0x7FFFu + ((bits >> 16) & 1)) >> 16) : uint16_t(0x7FC0);
}

template <class A> INLINE vec<A> splat(A value) { return value - vec<A>{}; }

template <class A> INLINE vec<A> load(const A* from) {
    return *reinterpret_cast<const typename Vectors<A>::unaligned*>(from);
}
INLINE vec<float> load(const bfloat16* from) {
    half_words bits;
    memcpy(&bits, from, sizeof bits);
    return (vec<float>)(__builtin_convertvector(bits, words) << 16);
}

template <class A> INLINE void store(vec<A> value, A* to) {
    *reinterpret_cast<typename Vectors<A>::unaligned*>(to) = value;
}
INLINE void store(vec<float> value, bfloat16* to) {
    words bits = (words)value;
    bits = (bits + 0x7FFFu + ((bits >> 16) & 1)) >> 16;
    bits = value == value ? bits : words{} + 0x7FC0u;
    const half_words half = __builtin_convertvector(bits, half_words);
    memcpy(to, &half, sizeof half);
}

// The first `count` lanes, the others 0.
template <class T> INLINE vec<accumulator<T>> load_some(const T* from, int count) {
    vec<accumulator<T>> value = {};
    for (int lane = 0; lane < count; ++lane) value[lane] = widen(from[lane]);
    return value;
}
#if defined(__AVX2__)
template <> INLINE vec<float> load_some(const float* from, int count) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_maskload_ps(from, _mm256_cmpgt_epi32(_mm256_set1_epi32(count), lane));
}
template <> INLINE vec<double> load_some(const double* from, int count) {
    const __m256i lane = _mm256_setr_epi64x(0, 1, 2, 3);
    return _mm256_maskload_pd(from, _mm256_cmpgt_epi64(_mm256_set1_epi64x(count), lane));
}
#endif

template <class T> INLINE void store_some(vec<accumulator<T>> value, T* to, int count) {
    for (int lane = 0; lane < count; ++lane) narrow(value[lane], to + lane);
}

// All lanes, or the first of them.
template <class T> INLINE vec<accumulator<T>> get(const T* from, int lanes) {
    return lanes == LANES<accumulator<T>> ? load(from) : load_some(from, lanes);
}
template <class T> INLINE void put(vec<accumulator<T>> value, T* to, int lanes) {
    if (lanes == LANES<accumulator<T>>) store(value, to);
    else store_some(value, to, lanes);
}

// The sums over the lanes of COUNT vectors.
template <int COUNT, class A> INLINE void lane_sums(const vec<A>* values, A* sums) {
    for (int i = 0; i < COUNT; ++i) {
        A sum = 0;
        for (int lane = 0; lane < LANES<A>; ++lane) sum += values[i][lane];
        sums[i] = sum;
    }
}
#if defined(__AVX2__)
INLINE __m128 four_sums(__m256 a, __m256 b, __m256 c, __m256 d) {
    const __m256 pairs = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
    return _mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps(pairs, 1));
}
template <> INLINE void lane_sums<1, float>(const vec<float>* v, float* sums) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(v[0]), _mm256_extractf128_ps(v[0], 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    _mm_store_ss(sums, _mm_add_ss(two, _mm_movehdup_ps(two)));
}
template <> INLINE void lane_sums<2, float>(const vec<float>* v, float* sums) {
    const __m256 pairs = _mm256_hadd_ps(v[0], v[1]);
    const __m128 halves = _mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps(pairs, 1));
    _mm_storel_pi(reinterpret_cast<__m64*>(sums), _mm_hadd_ps(halves, halves));
}
template <> INLINE void lane_sums<4, float>(const vec<float>* v, float* sums) {
    _mm_storeu_ps(sums, four_sums(v[0], v[1], v[2], v[3]));
}
template <> INLINE void lane_sums<8, float>(const vec<float>* v, float* sums) {
    _mm_storeu_ps(sums, four_sums(v[0], v[1], v[2], v[3]));
    _mm_storeu_ps(sums + 4, four_sums(v[4], v[5], v[6], v[7]));
}
#endif

INLINE vec<double> exponential(vec<double> x) {
    for (int lane = 0; lane < LANES<double>; ++lane) x[lane] = __builtin_exp(x[lane]);
    return x;
}

// e^x for x <= 0: e^x = 2^n e^r with |r| <= ln 2 / 2 and e^r by its series; 0 where float32 would be subnormal.
INLINE vec<float> exponential(vec<float> x) {
    const vec<float> lowest = splat(-87.0f);
    const vec<float> bounded = x < lowest ? lowest : x;
    // Adding 1.5 * 2^23 leaves the nearest integer in the lowest bits.
    const vec<float> shifted = bounded * 1.44269504f + 12582912.0f;
    const vec<float> n = shifted - 12582912.0f;
    const vec<float> r = (bounded - n * 0.693359375f) + n * 2.12194440e-4f;
    vec<float> series = splat(1.0f / 5040.0f);
    series = series * r + 1.0f / 720.0f;
    series = series * r + 1.0f / 120.0f;
    series = series * r + 1.0f / 24.0f;
    series = series * r + 1.0f / 6.0f;
    series = series * r + 0.5f;
    series = (series * r) * r + r;
    const signed_words power = (((signed_words)shifted - 0x4B400000) + 127) << 23;
    const vec<float> result = (series + 1.0f) * (vec<float>)power;
    return x < lowest ? vec<float>{} : result;
}

}  // namespace
