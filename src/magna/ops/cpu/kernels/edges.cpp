// Scores, softmax and top-k of edges. Per-edge tensors are [E, H] in the caller's order.
#include "api.h"
#include "rows.h"

namespace {

constexpr int64_t EDGES = 1024;  // that a thread takes at a time
constexpr int64_t AHEAD = 16;    // edges between a row's prefetch and its use

// A tile is as many heads as a vector has lanes.
template <class A> int64_t head_tiles(int64_t heads) { return (heads + LANES<A> - 1) / LANES<A>; }
template <class A> INLINE int lanes_of(int64_t tile, int64_t heads) {
    const int64_t left = heads - tile * LANES<A>;
    return left < LANES<A> ? int(left) : LANES<A>;
}

// Fetches what position p + AHEAD of a permutation will need; the last positions only fetch the last.
template <class T> INLINE void prefetch(const T* values, const int32_t* order, int64_t p, int64_t last, int64_t heads) {
    __builtin_prefetch(values + order[p + AHEAD < last ? p + AHEAD : last] * heads);
}

// body(edge, offset of its heads from a row's start, lanes) for every edge and tile.
template <class A, class Body> void share_edges(int64_t edges, int64_t heads, int64_t threads, const Body& body) {
    share_ranges(edges, EDGES, threads, [&](int64_t first, int64_t end) {
        for (int64_t edge = first; edge < end; ++edge)
            for (int64_t tile = 0; tile < head_tiles<A>(heads); ++tile)
                body(edge, tile * LANES<A>, lanes_of<A>(tile, heads));
    });
}

template <class A>
void edge_scores(const A* source, const A* target, const A* relation, const int64_t* edge_index,
                 const int64_t* edge_type, A* out, int64_t edges, int64_t heads, double negative_slope,
                 int64_t threads) {
    const vec<A> slope = splat(A(negative_slope));
    share_edges<A>(edges, heads, threads, [&](int64_t edge, int64_t head, int lanes) {
        vec<A> score = get(source + edge_index[edge] * heads + head, lanes) +
                       get(target + edge_index[edges + edge] * heads + head, lanes);
        if (relation) score += get(relation + edge_type[edge] * heads + head, lanes);
        put(score > 0 ? score : score * slope, out + edge * heads + head, lanes);
    });
}

// The sum over a row's edges of term(entry of `a`, entry of `b`).
template <class A, class Term> struct RowSum {
    using Sum = vec<A>;
    const A *a, *b;
    const int32_t* order;
    A* out;
    int64_t heads, last;
    Term term;

    Sum none() const { return Sum{}; }
    INLINE void add(Sum& sum, const Sum& other) const { sum += other; }

    INLINE void walk(Sum& sum, int64_t tile, int64_t, int64_t begin, int64_t end) const {
        const int lanes = lanes_of<A>(tile, heads);
        for (int64_t p = begin; p < end; ++p) {
            const int64_t at = order[p] * heads + tile * LANES<A>;
            prefetch(a, order, p, last, heads);
            prefetch(b, order, p, last, heads);
            sum += term(get(a + at, lanes), get(b + at, lanes));
        }
    }
    INLINE void finish(Sum& sum, int64_t tile, int64_t row) const {
        put(sum, out + row * heads + tile * LANES<A>, lanes_of<A>(tile, heads));
    }
};

template <class A, class Term>
void row_sums(const A* a, const A* b, const Rows& rows, A* out, int64_t heads, int64_t threads, const Term& term) {
    const RowSum<A, Term> kernel{a, b, rows.order, out, heads, rows.edges() - 1, term};
    sum_rows(kernel, rows, head_tiles<A>(heads), threads);
}

template <class A>
void segment_sum(const A* grad, const A* scores, const Rows& rows, A* out, int64_t heads, double negative_slope,
                 int64_t threads) {
    const vec<A> slope = splat(A(negative_slope));
    row_sums(grad, scores, rows, out, heads, threads,
             [slope](vec<A> g, vec<A> score) INLINED { return score > 0 ? g : g * slope; });
}

// Largest score of a row and the sum of e^(score - largest): all that a softmax needs to know of the other edges.
template <class A> struct SoftmaxRow {
    struct Sum {
        vec<A> top, total;
    };
    const A* scores;
    const int32_t* order;
    A* stats;  // [N, 2, H]: largest, sum
    int64_t heads, last;

    Sum none() const { return {splat(-A(INFINITY)), vec<A>{}}; }

    // A row of -inf alone: any finite number will do.
    static INLINE vec<A> finite(vec<A> top) { return top > splat(-A(INFINITY)) ? top : vec<A>{}; }

    INLINE void add(Sum& sum, const Sum& other) const {
        const vec<A> top = other.top > sum.top ? other.top : sum.top, base = finite(top);
        sum.total = sum.total * exponential(sum.top - base) + other.total * exponential(other.top - base);
        sum.top = top;
    }

    INLINE void walk(Sum& sum, int64_t tile, int64_t, int64_t begin, int64_t end) const {
        const int lanes = lanes_of<A>(tile, heads);
        const A* from = scores + tile * LANES<A>;
        for (int64_t p = begin; p < end; ++p) {
            prefetch(from, order, p, last, heads);
            const vec<A> score = get(from + order[p] * heads, lanes);
            sum.top = score > sum.top ? score : sum.top;
        }
        const vec<A> base = finite(sum.top);
        for (int64_t p = begin; p < end; ++p) sum.total += exponential(get(from + order[p] * heads, lanes) - base);
    }

    INLINE void finish(Sum& sum, int64_t tile, int64_t row) const {
        const int lanes = lanes_of<A>(tile, heads);
        A* to = stats + 2 * row * heads + tile * LANES<A>;
        put(finite(sum.top), to, lanes);
        put(sum.total > 0 ? sum.total : splat(A(1)), to + heads, lanes);
    }
};

template <class A>
void edge_softmax(const A* scores, const Rows& rows, const int64_t* target, A* stats, A* out, int64_t heads,
                  int64_t threads) {
    const SoftmaxRow<A> kernel{scores, rows.order, stats, heads, rows.edges() - 1};
    sum_rows(kernel, rows, head_tiles<A>(heads), threads);
    share_edges<A>(rows.edges(), heads, threads, [&](int64_t edge, int64_t head, int lanes) {
        const int64_t at = edge * heads + head;
        const A* stat = stats + 2 * target[edge] * heads + head;
        const vec<A> weight = exponential(get(scores + at, lanes) - get(stat, lanes));
        put(weight / get(stat + heads, lanes), out + at, lanes);
    });
}

template <class A>
void edge_softmax_backward(const A* grad, const A* attention, const Rows& rows, const int64_t* target, A* dots, A* out,
                           int64_t heads, int64_t threads) {
    row_sums(grad, attention, rows, dots, heads, threads, [](vec<A> g, vec<A> weight) INLINED { return g * weight; });
    share_edges<A>(rows.edges(), heads, threads, [&](int64_t edge, int64_t head, int lanes) {
        const int64_t at = edge * heads + head;
        const vec<A> dot = get(dots + target[edge] * heads + head, lanes);
        put(get(attention + at, lanes) * (get(grad + at, lanes) - dot), out + at, lanes);
    });
}

// The smallest of the k values seen so far that are largest, at the top of a heap.
template <class A> struct Largest {
    A* heap;
    int64_t k, size = 0;

    void see(A value) {
        if (size < k) {
            int64_t at = size++;
            for (; at > 0 && heap[(at - 1) / 2] > value; at = (at - 1) / 2) heap[at] = heap[(at - 1) / 2];
            heap[at] = value;
        } else if (value > heap[0]) {
            int64_t at = 0;
            for (int64_t child = 1; child < k; child = 2 * at + 1) {
                if (child + 1 < k && heap[child + 1] < heap[child]) ++child;
                if (heap[child] >= value) break;
                heap[at] = heap[child];
                at = child;
            }
            heap[at] = value;
        }
    }
};

template <class A>
void top_k_mask(const A* scores, const Rows& rows, bool* out, int64_t k, int64_t heads, int64_t threads) {
    share(rows.blocks(), threads, [&](int64_t block) {
        const int64_t first = rows.first_of(block), end = rows.first_of(block + 1);
        int64_t most = 0;
        for (int64_t row = first; row < end; ++row)
            if (rows.ptr[row + 1] - rows.ptr[row] > most) most = rows.ptr[row + 1] - rows.ptr[row];
        A* heap = most > k ? static_cast<A*>(malloc(size_t(k) * sizeof(A))) : nullptr;
        for (int64_t row = first; row < end; ++row)
            for (int64_t head = 0; head < heads; ++head) {
                A threshold = -A(INFINITY);
                if (rows.ptr[row + 1] - rows.ptr[row] > k) {
                    Largest<A> largest{heap, k};
                    for (int64_t p = rows.ptr[row]; p < rows.ptr[row + 1]; ++p)
                        largest.see(scores[rows.order[p] * heads + head]);
                    threshold = heap[0];
                }
                for (int64_t p = rows.ptr[row]; p < rows.ptr[row + 1]; ++p) {
                    const int64_t at = rows.order[p] * heads + head;
                    out[at] = scores[at] >= threshold;
                }
            }
        free(heap);
    });
}

}  // namespace

#define ROWS const int32_t *ptr, const int32_t *order, const int32_t *hubs, int64_t rows, int64_t num_hubs
#define AS_ROWS Rows{ptr, order, hubs, rows, num_hubs}

#define EXPORT(A, name)                                                                                              \
    KERNEL(edge_scores, name, const A* source, const A* target, const A* relation, const int64_t* edge_index,        \
           const int64_t* edge_type, A* out, int64_t edges, int64_t heads, double negative_slope, int64_t threads) { \
        edge_scores<A>(source, target, relation, edge_index, edge_type, out, edges, heads, negative_slope, threads); \
    }                                                                                                                \
    KERNEL(segment_sum, name, const A* grad, const A* scores, ROWS, A* out, int64_t heads, double negative_slope,    \
           int64_t threads) {                                                                                        \
        segment_sum<A>(grad, scores, AS_ROWS, out, heads, negative_slope, threads);                                  \
    }                                                                                                                \
    KERNEL(edge_softmax, name, const A* scores, ROWS, const int64_t* target, A* stats, A* out, int64_t heads,        \
           int64_t threads) {                                                                                        \
        edge_softmax<A>(scores, AS_ROWS, target, stats, out, heads, threads);                                        \
    }                                                                                                                \
    KERNEL(edge_softmax_backward, name, const A* grad, const A* attention, ROWS, const int64_t* target, A* dots,     \
           A* out, int64_t heads, int64_t threads) {                                                                 \
        edge_softmax_backward<A>(grad, attention, AS_ROWS, target, dots, out, heads, threads);                       \
    }                                                                                                                \
    KERNEL(top_k_mask, name, const A* scores, ROWS, bool* out, int64_t k, int64_t heads, int64_t threads) {          \
        top_k_mask<A>(scores, AS_ROWS, out, k, heads, threads);                                                      \
    }                                                                                                                \
    KERNEL(take_rows, name, const A* values, const int32_t* order, A* out, int64_t edges, int64_t heads,             \
           int64_t threads) {                                                                                        \
        share_edges<A>(edges, heads, threads, [&](int64_t edge, int64_t head, int lanes) {                           \
            prefetch(values, order, edge, edges - 1, heads);                                                         \
            put(get(values + order[edge] * heads + head, lanes), out + edge * heads + head, lanes);                  \
        });                                                                                                          \
    }

EXPORT(float, f32)
EXPORT(double, f64)
