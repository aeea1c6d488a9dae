// The counter-based generator of `magna/ops/random.py`, bit for bit: a draw is a function of (seed, stream, index).
#pragma once
#include <cstdint>

namespace {

constexpr uint64_t TWO_32 = uint64_t(1) << 32;

inline uint32_t mix(uint32_t h) {
    h ^= h >> 16;
    h *= 0x7FEB352Du;
    h ^= h >> 15;
    h *= 0x846CA68Bu;
    return h ^ (h >> 16);
}

struct Stream {
    uint32_t key0, key1;

    Stream(int64_t seed, int64_t stream) {
        key0 = mix(uint32_t(seed) + 0x9E3779B9u * uint32_t(stream + 1));
        key1 = mix(uint32_t(uint64_t(seed) >> 32) + (key0 ^ 0x5BF03635u));
    }

    // `high` is the upper half of the index times its multiplier, 0 for indices below 2^32.
    uint32_t bits(uint32_t low, uint32_t high) const { return mix(mix(low ^ key0) ^ key1 ^ high); }
};

inline uint32_t high_part(uint64_t index) { return uint32_t(index >> 32) * 0x85EBCA6Bu; }

// An element is dropped where its bits are below `limit`, and multiplied by `kept` where they are not.
template <class A> struct Rate {
    uint32_t limit;
    A kept;

    explicit Rate(float rate) : limit(uint32_t(double(rate) * 4294967296.0)), kept(A(1) / (A(1) - A(rate))) {}

    A factor(uint32_t bits) const { return bits >= limit ? kept : A(0); }
};

// Factors of the indices first, first + 1, ...; the upper half of the index changes only between two runs.
// By value, so that the compiler sees that writing factors changes neither stream nor rate.
template <class A>
__attribute__((noinline)) void draw_run(Stream stream, Rate<A> rate, uint64_t first, int64_t count, A* factors) {
    while (count > 0) {
        const uint64_t left = TWO_32 - (first & (TWO_32 - 1));
        const int64_t run = uint64_t(count) < left ? count : int64_t(left);
        const uint32_t low = uint32_t(first), high = high_part(first);
        for (int64_t i = 0; i < run; ++i) factors[i] = rate.factor(stream.bits(low + uint32_t(i), high));
        first += uint64_t(run), factors += run, count -= run;
    }
}

}  // namespace
