// The scores of nodes (Eq. 1): the sum over the channels of a head of vector * tanh(x), and its backward pass.
// x is [groups, nodes, heads, width]; each group has its own vector [heads, width]. A thread takes `chunk` nodes at a
// time.
#include "api.h"
#include "rows.h"

namespace {

template <class A> INLINE vec<A> hyperbolic_tangent(vec<A> x) {
    const vec<A> fading = exponential((x < 0 ? x : -x) * A(2));
    const vec<A> size = (A(1) - fading) / (A(1) + fading);
    return x < 0 ? -size : size;
}

// body(first channel of the tile, its lanes)
template <class A, class Body> INLINE void over_channels(int64_t width, const Body& body) {
    int64_t channel = 0;
    for (; channel + LANES<A> <= width; channel += LANES<A>) body(channel, LANES<A>);
    if (channel < width) body(channel, int(width - channel));
}

template <bool TANH, class T>
void head_scores(const T* x, const accumulator<T>* vector, accumulator<T>* out, int64_t groups, int64_t nodes,
                 int64_t heads, int64_t width, int64_t chunk, int64_t threads) {
    using A = accumulator<T>;
    share_ranges(groups * nodes, chunk, threads, [&](int64_t first, int64_t end) {
        for (int64_t node = first; node < end; ++node)
            for (int64_t head = 0; head < heads; ++head) {
                const T* from = x + (node * heads + head) * width;
                const A* weights = vector + ((node / nodes) * heads + head) * width;
                vec<A> sum = {};
                over_channels<A>(width, [&](int64_t channel, int lanes) {
                    const vec<A> value = get(from + channel, lanes);
                    sum += (TANH ? hyperbolic_tangent<A>(value) : value) * get(weights + channel, lanes);
                });
                lane_sums<1, A>(&sum, out + node * heads + head);
            }
    });
}

// `partial` is [groups, chunks, heads, width]: the gradient of the vector by each chunk of nodes.
template <bool TANH, class T>
void head_scores_backward(const accumulator<T>* grad, const T* x, const accumulator<T>* vector, T* grad_x,
                          accumulator<T>* partial, int64_t groups, int64_t nodes, int64_t heads, int64_t width,
                          int64_t chunk, int64_t threads) {
    using A = accumulator<T>;
    const int64_t chunks = (nodes + chunk - 1) / chunk;
    share(groups * chunks, threads, [&](int64_t item) {
        const int64_t group = item / chunks, begin = (item % chunks) * chunk;
        const int64_t end = begin + chunk < nodes ? begin + chunk : nodes;
        A* sums = partial + item * heads * width;
        memset(sums, 0, sizeof(A) * heads * width);
        for (int64_t node = group * nodes + begin; node < group * nodes + end; ++node)
            for (int64_t head = 0; head < heads; ++head) {
                const int64_t at = (node * heads + head) * width, own = head * width;
                const A* weights = vector + group * heads * width + own;
                const vec<A> g = splat(grad[node * heads + head]);
                over_channels<A>(width, [&](int64_t channel, int lanes) {
                    const vec<A> value = get(x + at + channel, lanes);
                    const vec<A> bent = TANH ? hyperbolic_tangent<A>(value) : value;
                    put(get(sums + own + channel, lanes) + g * bent, sums + own + channel, lanes);
                    const vec<A> slope = g * get(weights + channel, lanes);
                    put(TANH ? slope * (A(1) - bent * bent) : slope, grad_x + at + channel, lanes);
                });
            }
    });
}

}  // namespace

#define SIZES int64_t groups, int64_t nodes, int64_t heads, int64_t width, int64_t chunk, int64_t tanh, int64_t threads
#define AS_SIZES groups, nodes, heads, width, chunk, threads

#define EXPORT(T, A, name)                                                                                    \
    KERNEL(head_scores, name, const T* x, const A* vector, A* out, SIZES) {                                   \
        (tanh ? head_scores<true, T> : head_scores<false, T>)(x, vector, out, AS_SIZES);                      \
    }                                                                                                         \
    KERNEL(head_scores_backward, name, const T* x, const A* grad, const A* vector, T* grad_x, A* partial,     \
           SIZES) {                                                                                           \
        (tanh ? head_scores_backward<true, T> : head_scores_backward<false, T>)(grad, x, vector, grad_x,      \
                                                                                partial, AS_SIZES);           \
    }

EXPORT(float, float, f32)
EXPORT(double, double, f64)
EXPORT(bfloat16, float, bf16)
