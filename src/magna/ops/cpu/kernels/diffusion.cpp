// One hop of attention diffusion and its backward pass, and dropout of whole tensors.
//
// The columns are cut into tiles that stay in registers while a row's edges are walked: HEADS narrow heads of VECS
// vectors each, or a slice of one wide head, whose last vector is PARTIAL: it may have fewer lanes.
#include "api.h"
#include "draw.h"
#include "rows.h"

namespace {

constexpr int CHUNK = 32;  // edges whose dropout factors are drawn at a time
constexpr int AHEAD = 8;   // edges between a row's prefetch and its use

struct Draw {
    const int64_t* seed;
    const float *attention_rate, *feature_rate;  // one per head at hand, or null
    int64_t heads, width, first_head, first_column;
};

template <class A> struct Rates {
    Rate<A>* of = nullptr;

    Rates(const float* rate, int64_t heads) {
        if (!rate) return;
        of = static_cast<Rate<A>*>(malloc(size_t(heads) * sizeof(Rate<A>)));
        for (int64_t h = 0; h < heads; ++h) of[h] = Rate<A>(rate[h]);
    }
    ~Rates() { free(of); }
    Rates(const Rates&) = delete;
};

// Attention dropout of one hop.
template <class A> struct AttentionDrop {
    const Rate<A>* rates;
    const int32_t* order;
    Stream stream;
    uint64_t heads, first_head;

    AttentionDrop(const Rate<A>* rates, const Rows& rows, const Draw& draw, int64_t number)
        : rates(rates), order(rows.order), stream(rates ? *draw.seed : 0, 2 * number), heads(uint64_t(draw.heads)),
          first_head(uint64_t(draw.first_head)) {}

    // Factors of `count` edges from position `begin` and HEADS heads from `head`, and their products with `weight`.
    template <int HEADS>
    NOINLINE void draw(int64_t head, int64_t begin, int count, const A* weight, int64_t step, A* factor,
                       A* product) const {
        const Stream own = stream;  // copies, which no write to `factor` can change
        uint32_t limit[HEADS], index[CHUNK * HEADS], high[CHUNK * HEADS];
        A kept[HEADS];
        for (int h = 0; h < HEADS; ++h) limit[h] = rates[head + h].limit, kept[h] = rates[head + h].kept;
        for (int i = 0; i < count; ++i) {
            const uint64_t first = uint64_t(order[begin + i]) * heads + first_head + uint64_t(head);
            for (int h = 0; h < HEADS; ++h) {
                index[i * HEADS + h] = uint32_t(first) + uint32_t(h);
                high[i * HEADS + h] = high_part(first + uint64_t(h));
            }
        }
        for (int i = 0; i < count * HEADS; ++i) index[i] = own.bits(index[i], high[i]);
        for (int i = 0; i < count; ++i)
            for (int h = 0; h < HEADS; ++h) {
                factor[i * HEADS + h] = index[i * HEADS + h] >= limit[h] ? kept[h] : A(0);
                product[i * HEADS + h] = factor[i * HEADS + h] * weight[i * step + h];
            }
    }
};

// Feature dropout of one hop: factors of `count` columns from `column` of a row's head.
template <class A> struct FeatureDrop {
    const Rate<A>* rates;
    Stream stream;
    uint64_t heads, width, first_head, first_column;

    FeatureDrop(const Rate<A>* rates, const Draw& draw, int64_t number)
        : rates(rates), stream(rates ? *draw.seed : 0, 2 * number + 1), heads(uint64_t(draw.heads)),
          width(uint64_t(draw.width)), first_head(uint64_t(draw.first_head)),
          first_column(uint64_t(draw.first_column)) {}

    void factors(int64_t row, int64_t head, int64_t column, int64_t count, A* out) const {
        const uint64_t index = (uint64_t(row) * heads + first_head + uint64_t(head)) * width + first_column;
        draw_run(stream, rates[head], index + uint64_t(column), count, out);
    }
};

template <class T, int HEADS, int VECS, bool PARTIAL> struct Tile {
    using A = accumulator<T>;
    struct Sum {
        vec<A> of[HEADS * VECS];
    };

    int64_t heads, width, first_head, column;
    int last;  // lanes of the last vector

    Sum none() const { return {}; }

    INLINE void add(Sum& sum, const Sum& other) const {
        for (int i = 0; i < HEADS * VECS; ++i) sum.of[i] += other.of[i];
    }

    INLINE int64_t head_of(int64_t tile) const { return first_head + tile * HEADS; }
    INLINE int64_t offset(int64_t row, int64_t head) const { return (row * heads + head) * width + column; }

    // Several heads in a tile are its whole width, so their vectors follow each other.
    INLINE vec<A> get(const T* from, int i) const {
        if (PARTIAL && i == VECS - 1 && last < LANES<A>) return load_some(from + i * LANES<A>, last);
        return load(from + i * LANES<A>);
    }
    INLINE void put(vec<A> value, T* to, int i) const {
        if (PARTIAL && i == VECS - 1 && last < LANES<A>) store_some(value, to + i * LANES<A>, last);
        else store(value, to + i * LANES<A>);
    }
    INLINE void prefetch(const T* from) const {
        for (int byte = 0; byte < int(sizeof(T)) * HEADS * VECS * LANES<A>; byte += 64)
            __builtin_prefetch(reinterpret_cast<const char*>(from) + byte);
    }
};

template <class T> struct HopArguments {
    using A = accumulator<T>;
    const T *z, *x;
    const A* attention;
    const int32_t* col;
    const A *z_scale, *x_scale;
    T* out;
    int64_t edges;
    AttentionDrop<A> attention_drop;
    FeatureDrop<A> feature_drop;
};

template <class T, int HEADS, int VECS, bool PARTIAL> struct Hop : Tile<T, HEADS, VECS, PARTIAL> {
    using Base = Tile<T, HEADS, VECS, PARTIAL>;
    using Arguments = HopArguments<T>;
    using typename Base::A;
    using typename Base::Sum;
    const Arguments& to;

    Hop(const Base& tile, const Arguments& to) : Base(tile), to(to) {}

    INLINE void walk(Sum& total, int64_t tile, int64_t, int64_t begin, int64_t end) const {
        const int64_t head = this->head_of(tile);
        const T* z = to.z + this->offset(0, head);
        const int64_t stride = this->heads * this->width, last_edge = to.edges - 1;
        A factor[CHUNK * HEADS], dropped[CHUNK * HEADS];
        Sum sum = total;
        for (int64_t p = begin; p < end; p += CHUNK) {
            const int count = end - p < CHUNK ? int(end - p) : CHUNK;
            const A* weight = to.attention + p * this->heads + head;
            int64_t step = this->heads;
            if (to.attention_drop.rates) {
                to.attention_drop.template draw<HEADS>(head, p, count, weight, step, factor, dropped);
                weight = dropped;
                step = HEADS;
            }
            for (int i = 0; i < count; ++i) {
                const int64_t ahead = p + i + AHEAD < last_edge ? p + i + AHEAD : last_edge;
                this->prefetch(z + to.col[ahead] * stride);
                const T* from = z + to.col[p + i] * stride;
#pragma GCC unroll 8
                for (int j = 0; j < HEADS * VECS; ++j)
                    sum.of[j] += splat(weight[i * step + j / VECS]) * this->get(from, j);
            }
        }
        total = sum;
    }

    INLINE void finish(Sum& sum, int64_t tile, int64_t row) const {
        A factor[VECS * LANES<A>];
        for (int h = 0; h < HEADS; ++h) {
            const int64_t head = this->head_of(tile) + h, at = this->offset(row, head);
            const vec<A> z_scale = splat(to.z_scale ? to.z_scale[head] : A(1)), x_scale = splat(to.x_scale[head]);
            const bool drops = to.feature_drop.rates;
            if (drops) to.feature_drop.factors(row, head, this->column, VECS * LANES<A>, factor);
#pragma GCC unroll 8
            for (int v = 0; v < VECS; ++v) {
                vec<A> value = z_scale * sum.of[h * VECS + v] + x_scale * this->get(to.x + at, v);
                if (drops) value *= load(factor + v * LANES<A>);
                this->put(value, to.out + at, v);
            }
        }
    }
};

template <class A, int HEADS>
NOINLINE void put_dots(const A* dots, const A* factor, const A* scale, int count, bool add, A* to, int64_t step) {
    for (int i = 0; i < count; ++i)
        for (int h = 0; h < HEADS; ++h) {
            A value = dots[i * HEADS + h];
            if (factor) value *= factor[i * HEADS + h];
            if (scale) value *= scale[h];
            to[i * step + h] = add ? to[i * step + h] + value : value;
        }
}

template <class T> struct HopBackwardArguments {
    using A = accumulator<T>;
    const T *grad, *z;
    const A* attention;
    const int32_t* col;
    const A *z_scale, *first_scale, *scale;
    A* grad_attention;
    bool add;
    T *grad_x, *out;
    int64_t edges;
    AttentionDrop<A> attention_drop;
    FeatureDrop<A> feature_drop;  // of the hop before
};

template <class T, int HEADS, int VECS, bool PARTIAL> struct HopBackward : Tile<T, HEADS, VECS, PARTIAL> {
    using Base = Tile<T, HEADS, VECS, PARTIAL>;
    using Arguments = HopBackwardArguments<T>;
    using typename Base::A;
    using typename Base::Sum;
    const Arguments& to;

    HopBackward(const Base& tile, const Arguments& to) : Base(tile), to(to) {}

    // One gather of a neighbour's gradient serves both the sum and the dot product with this node's state.
    INLINE void walk(Sum& total, int64_t tile, int64_t row, int64_t begin, int64_t end) const {
        const int64_t head = this->head_of(tile);
        const T* grad = to.grad + this->offset(0, head);
        const int64_t stride = this->heads * this->width, last_edge = to.edges - 1;
        const bool drops = to.attention_drop.rates, add = to.add || this->column > 0;
        A factor[CHUNK * HEADS], dropped[CHUNK * HEADS], dots[CHUNK * HEADS];
        vec<A> z[HEADS * VECS];
        for (int j = 0; j < HEADS * VECS; ++j) z[j] = this->get(to.z + this->offset(row, head), j);
        Sum sum = total;
        for (int64_t p = begin; p < end; p += CHUNK) {
            const int count = end - p < CHUNK ? int(end - p) : CHUNK;
            const A* weight = to.attention + p * this->heads + head;
            int64_t step = this->heads;
            if (drops) {
                to.attention_drop.template draw<HEADS>(head, p, count, weight, step, factor, dropped);
                weight = dropped;
                step = HEADS;
            }
            for (int i = 0; i < count; ++i) {
                const int64_t ahead = p + i + AHEAD < last_edge ? p + i + AHEAD : last_edge;
                this->prefetch(grad + to.col[ahead] * stride);
                const T* from = grad + to.col[p + i] * stride;
                vec<A> dot[HEADS] = {};
#pragma GCC unroll 8
                for (int j = 0; j < HEADS * VECS; ++j) {
                    const vec<A> g = this->get(from, j);
                    sum.of[j] += splat(weight[i * step + j / VECS]) * g;
                    dot[j / VECS] += g * z[j];
                }
                lane_sums<HEADS, A>(dot, dots + i * HEADS);
            }
            put_dots<A, HEADS>(dots, drops ? factor : nullptr, to.z_scale ? to.z_scale + head : nullptr, count, add,
                               to.grad_attention + p * this->heads + head, this->heads);
        }
        total = sum;
    }

    INLINE void finish(Sum& sum, int64_t tile, int64_t row) const {
        A factor[VECS * LANES<A>];
        for (int h = 0; h < HEADS; ++h) {
            const int64_t head = this->head_of(tile) + h, at = this->offset(row, head);
            const vec<A> scale = splat(to.scale[head]);
            const bool drops = to.feature_drop.rates;
            if (drops) to.feature_drop.factors(row, head, this->column, VECS * LANES<A>, factor);
#pragma GCC unroll 8
            for (int v = 0; v < VECS; ++v) {
                vec<A> value = sum.of[h * VECS + v];
                if (drops) value *= load(factor + v * LANES<A>);
                const vec<A> before = to.first_scale ? splat(to.first_scale[head]) * this->get(to.grad + at, v)
                                                     : this->get(to.grad_x + at, v);
                this->put(before + scale * value, to.grad_x + at, v);
                if (to.out) this->put(value, to.out + at, v);
            }
        }
    }
};

// Covers all heads and columns with tiles.
template <template <class, int, int, bool> class Kernel, class T> struct Cover {
    using A = accumulator<T>;
    using Arguments = typename Kernel<T, 1, 1, false>::Arguments;
    static constexpr int64_t LANE = LANES<A>;
    const Arguments& arguments;
    const Rows& rows;
    int64_t heads, width, threads;

    // Tiles of HEADS heads as long as there are as many from `head` on; the first head that is left.
    template <int HEADS, int VECS, bool PARTIAL = false> int64_t tiles(int64_t head, int64_t column = 0) const {
        const int64_t count = (heads - head) / HEADS, left = width - column;
        if (count == 0) return head;
        const int last = left < VECS * LANE ? int(left % LANE) : int(LANE);
        const Kernel<T, HEADS, VECS, PARTIAL> kernel({heads, width, head, column, last}, arguments);
        sum_rows(kernel, rows, count, threads);
        return head + count * HEADS;
    }

    void wide_heads(int64_t head) const {
        int64_t column = 0;
        for (; width - column >= 8 * LANE; column += 8 * LANE) tiles<1, 8>(head, column);
        for (; width - column > 4 * LANE; column += 4 * LANE) tiles<1, 4, true>(head, column);
        switch ((width - column + LANE - 1) / LANE) {
            case 1: tiles<1, 1, true>(head, column); break;
            case 2: tiles<1, 2, true>(head, column); break;
            case 3: tiles<1, 3, true>(head, column); break;
            case 4: tiles<1, 4, true>(head, column); break;
        }
    }

    void run() const {
        int64_t head = 0;
        // float64 is for checks: its narrow heads go one by one.
        if constexpr (sizeof(T) < sizeof(double)) {
            if (width == LANE) head = tiles<2, 1>(tiles<4, 1>(tiles<8, 1>(0)));
            if (width == 2 * LANE) head = tiles<2, 2>(tiles<4, 2>(0));
            if (width == 3 * LANE) head = tiles<2, 3>(0);
            if (width == 4 * LANE) head = tiles<2, 4>(0);
        }
        wide_heads(head);
    }
};

template <class T>
void hop(const T* z, const T* x, const accumulator<T>* attention, const Rows& rows, const int32_t* col,
         const accumulator<T>* z_scale, const accumulator<T>* x_scale, T* out, int64_t heads, int64_t width,
         const Draw& draw, int64_t number, int64_t threads) {
    using A = accumulator<T>;
    const Rates<A> attention_rates(draw.attention_rate, heads), feature_rates(draw.feature_rate, heads);
    const HopArguments<T> arguments{z, x, attention, col, z_scale, x_scale, out, rows.edges(),
                                    AttentionDrop<A>(attention_rates.of, rows, draw, number),
                                    FeatureDrop<A>(feature_rates.of, draw, number)};
    Cover<Hop, T>{arguments, rows, heads, width, threads}.run();
}

template <class T>
void hop_backward(const T* grad, const T* z, const accumulator<T>* attention, const Rows& rows, const int32_t* col,
                  const accumulator<T>* z_scale, const accumulator<T>* first_scale, const accumulator<T>* scale,
                  accumulator<T>* grad_attention, bool add, T* grad_x, T* out, int64_t heads, int64_t width,
                  const Draw& draw, int64_t number, int64_t threads) {
    using A = accumulator<T>;
    const Rates<A> attention_rates(draw.attention_rate, heads);
    const Rates<A> feature_rates(number > 0 ? draw.feature_rate : nullptr, heads);
    const HopBackwardArguments<T> arguments{grad, z, attention, col, z_scale, first_scale, scale, grad_attention, add,
                                            grad_x, out, rows.edges(),
                                            AttentionDrop<A>(attention_rates.of, rows, draw, number),
                                            FeatureDrop<A>(feature_rates.of, draw, number - 1)};
    Cover<HopBackward, T>{arguments, rows, heads, width, threads}.run();
}

constexpr int64_t RUN = 256;  // elements whose factors are drawn at a time

template <class T> void multiply(const T* x, const accumulator<T>* factor, int64_t count, T* out) {
    for (int64_t i = 0; i < count; ++i) narrow(widen(x[i]) * factor[i], out + i);
}

template <class T> void hop_dropout(const T* x, T* out, int64_t rows, int64_t heads, int64_t width, const Draw& draw,
                                    int64_t number, int64_t threads) {
    using A = accumulator<T>;
    const Rates<A> rates(draw.feature_rate, heads);
    const FeatureDrop<A> drop(rates.of, draw, number);
    share_ranges(rows, 64, threads, [&](int64_t first, int64_t end) {
        A factor[RUN];
        for (int64_t i = first * heads; i < end * heads; ++i)
            for (int64_t column = 0; column < width; column += RUN) {
                const int64_t count = width - column < RUN ? width - column : RUN, at = i * width + column;
                drop.factors(i / heads, i % heads, column, count, factor);
                multiply(x + at, factor, count, out + at);
            }
    });
}

// Blocks of `block` elements, each with its own rate; they are copies of one x where it is shared.
template <class T> void dropout(const T* x, T* out, int64_t size, int64_t block, bool shared, const float* rate,
                                int64_t seed, int64_t number, int64_t threads) {
    using A = accumulator<T>;
    const Stream stream(seed, number);
    share_ranges(size, 64 * RUN, threads, [&](int64_t first, int64_t end) {
        A factor[RUN];
        for (int64_t at = first, count; at < end; at += count) {
            const int64_t inside = at % block, left = end - at < block - inside ? end - at : block - inside;
            count = left < RUN ? left : RUN;
            draw_run(stream, Rate<A>(rate[at / block]), uint64_t(at), count, factor);
            multiply(x + (shared ? inside : at), factor, count, out + at);
        }
    });
}

}  // namespace

#define ROWS const int32_t *ptr, const int32_t *order, const int32_t *hubs, int64_t rows, int64_t num_hubs
#define DRAW                                                                                                      \
    const int64_t *seed, const float *attention_rate, const float *feature_rate, int64_t draw_heads,              \
        int64_t draw_width, int64_t first_head, int64_t first_column, int64_t number
#define AS_ROWS Rows{ptr, order, hubs, rows, num_hubs}
#define AS_DRAW Draw{seed, attention_rate, feature_rate, draw_heads, draw_width, first_head, first_column}, number

#define EXPORT(T, A, name)                                                                                        \
    KERNEL(hop, name, const T* z, const T* x, const A* attention, ROWS, const int32_t* col, const A* z_scale,     \
           const A* x_scale, T* out, int64_t heads, int64_t width, DRAW, int64_t threads) {                       \
        hop<T>(z, x, attention, AS_ROWS, col, z_scale, x_scale, out, heads, width, AS_DRAW, threads);             \
    }                                                                                                             \
    KERNEL(hop_backward, name, const T* grad, const T* z, const A* attention, ROWS, const int32_t* col,           \
           const A* z_scale, const A* first_scale, const A* scale, A* grad_attention, int64_t add, T* grad_x,     \
           T* out, int64_t heads, int64_t width, DRAW, int64_t threads) {                                         \
        hop_backward<T>(grad, z, attention, AS_ROWS, col, z_scale, first_scale, scale, grad_attention, add != 0,  \
                        grad_x, out, heads, width, AS_DRAW, threads);                                             \
    }                                                                                                             \
    KERNEL(hop_dropout, name, const T* x, T* out, int64_t rows, int64_t heads, int64_t width, DRAW,               \
           int64_t threads) {                                                                                     \
        hop_dropout<T>(x, out, rows, heads, width, AS_DRAW, threads);                                             \
    }                                                                                                             \
    KERNEL(dropout, name, const T* x, T* out, int64_t size, int64_t block, int64_t shared, const float* rate,     \
           const int64_t* seed, int64_t stream, int64_t threads) {                                                \
        dropout<T>(x, out, size, block, shared != 0, rate, *seed, stream, threads);                               \
    }

EXPORT(float, float, f32)
EXPORT(double, double, f64)
EXPORT(bfloat16, float, bf16)
