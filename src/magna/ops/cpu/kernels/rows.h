// Rows of edges shared between threads. A row is summed by one thread from its first edge to its last; a row of more
// than CUT edges as pieces of CUT edges, whose sums are added in order. So the number of threads changes no bit.
#pragma once
#include <cstdint>
#include <cstdlib>

#include "vectors.h"

namespace {

constexpr int64_t CUT = 2048;    // edges
constexpr int64_t BLOCK = 1024;  // edges and rows that a thread takes at a time

// One thread must not enter an OpenMP region: a forked worker process would wait for its parent's threads.
template <class Body> void share(int64_t items, int64_t threads, const Body& body) {
    if (threads <= 1 || items <= 1) {
        for (int64_t item = 0; item < items; ++item) body(item);
        return;
    }
#pragma omp parallel for num_threads(int(threads)) schedule(dynamic, 1)
    for (int64_t item = 0; item < items; ++item) body(item);
}

// Shares the numbers 0 .. count in ranges of `step`.
template <class Body> void share_ranges(int64_t count, int64_t step, int64_t threads, const Body& body) {
    share((count + step - 1) / step, threads, [&](int64_t item) {
        const int64_t end = (item + 1) * step;
        body(item * step, end < count ? end : count);
    });
}

struct Rows {
    const int32_t *ptr, *order, *hubs;  // as in `magna.graph.Segments`
    int64_t count, num_hubs;

    int64_t edges() const { return ptr[count]; }
    int64_t blocks() const { return (edges() + count + BLOCK - 1) / BLOCK; }

    // Blocks hold about as many edges each: a row weighs its edges and one more.
    int64_t first_of(int64_t block) const {
        int64_t low = 0, high = count;
        while (low < high) {
            const int64_t middle = (low + high) / 2;
            if (ptr[middle] + middle < block * BLOCK) low = middle + 1;
            else high = middle;
        }
        return low;
    }
};

template <class Body> void share_rows(const Rows& rows, int64_t threads, const Body& body) {
    share(rows.blocks(), threads, [&](int64_t block) {
        const int64_t end = rows.first_of(block + 1);
        for (int64_t row = rows.first_of(block); row < end; ++row) body(row);
    });
}

struct Piece {
    int64_t row, begin, end;
};

// The rows first .. end, or one piece of the row `first`. Not inlined: a kernel's loops are to be compiled only once.
template <class Kernel>
NOINLINE void sum_edges(const Kernel& kernel, const Rows& rows, int64_t first, int64_t end, int64_t first_tile,
                        int64_t end_tile, const Piece* piece, typename Kernel::Sum* into) {
    for (int64_t row = first; row < end; ++row) {
        const int64_t from = piece ? piece->begin : rows.ptr[row], to = piece ? piece->end : rows.ptr[row + 1];
        if (to - from > CUT) continue;
        for (int64_t tile = first_tile; tile < end_tile; ++tile) {
            typename Kernel::Sum sum = kernel.none();
            kernel.walk(sum, tile, row, from, to);
            if (piece) *into = sum;
            else kernel.finish(sum, tile, row);
        }
    }
}

template <class Kernel>
NOINLINE void add_pieces(const Kernel& kernel, const Piece* pieces, int64_t count, int64_t tile,
                         const typename Kernel::Sum* sums) {
    typename Kernel::Sum sum = kernel.none();
    for (int64_t i = 0; i < count; ++i) {
        kernel.add(sum, sums[i]);
        if (i + 1 < count && pieces[i + 1].row == pieces[i].row) continue;
        kernel.finish(sum, tile, pieces[i].row);
        sum = kernel.none();
    }
}

// The pieces of all rows above CUT edges; only counted where `pieces` is null.
inline int64_t cut_rows(const Rows& rows, Piece* pieces) {
    int64_t count = 0;
    for (int64_t hub = 0; hub < rows.num_hubs; ++hub) {
        const int64_t row = rows.hubs[3 * hub];
        if (row < 0 || rows.ptr[row + 1] - rows.ptr[row] <= CUT) continue;
        const int64_t end = rows.ptr[row + 1];
        for (int64_t begin = rows.ptr[row]; begin < end; begin += CUT, ++count)
            if (pieces) pieces[count] = {row, begin, begin + CUT < end ? begin + CUT : end};
    }
    return count;
}

// A Sum over each row and tile (a slice of the columns), where Kernel has
//     Sum none(); void walk(Sum&, tile, row, begin, end); void add(Sum&, const Sum&); void finish(Sum&, tile, row)
// All tiles of a row come before the next row: its neighbours' columns are fetched together.
template <class Kernel> void sum_rows(const Kernel& kernel, const Rows& rows, int64_t tiles, int64_t threads) {
    using Sum = typename Kernel::Sum;
    share(rows.blocks(), threads, [&](int64_t block) {
        sum_edges<Kernel>(kernel, rows, rows.first_of(block), rows.first_of(block + 1), 0, tiles, nullptr, nullptr);
    });

    const int64_t count = cut_rows(rows, nullptr);
    if (count == 0) return;
    Piece* pieces = static_cast<Piece*>(malloc(size_t(count) * sizeof(Piece)));
    Sum* sums = static_cast<Sum*>(aligned_alloc(64, (size_t(count * tiles) * sizeof(Sum) + 63) / 64 * 64));
    cut_rows(rows, pieces);
    share(count * tiles, threads, [&](int64_t item) {
        const Piece& piece = pieces[item % count];
        const int64_t tile = item / count;
        sum_edges(kernel, rows, piece.row, piece.row + 1, tile, tile + 1, &piece, sums + item);
    });
    share(tiles, threads, [&](int64_t tile) { add_pieces(kernel, pieces, count, tile, sums + tile * count); });
    free(sums);
    free(pieces);
}

}  // namespace
