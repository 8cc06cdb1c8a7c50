// Each thread looks up several needles in lockstep, so that several
// reads are in flight. A search reads keys one by one until a
// sector, of 32 bytes, has all remaining keys, and then reads the
// sector. With a search tree (search_tree.h), it searches the top
// of the tree in shared memory, then reads sectors of lower levels.
#pragma once

#include "cuda/ptx.cuh"
#include "ops/segmented_search/search_tree.h"

namespace mgpu::cuda::segment_searching {

constexpr int kThreads = 256;
constexpr int kItems = 4;  // needles per thread
constexpr int kBlocks = 3;
constexpr int kTreeThreads = 1024;
constexpr int kTreeItems = 2;
constexpr int kMakeThreads = 256;
constexpr int64_t kMaxMakeBlocks = 1 << 12;

// Hides from the compiler how the items were computed, so that all reads come before the first use.
template <typename Item, int kCount>
__device__ __forceinline__ void hold(Item (&items)[kCount]) {
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    if constexpr (sizeof(Item) == 8) {
      asm volatile("" : "+l"(items[k]));
    } else {
      auto word = static_cast<unsigned>(items[k]);
      asm volatile("" : "+r"(word));
      items[k] = static_cast<Item>(word);
    }
  }
}

template <typename Word>
struct Node {
  static constexpr int kFanout = SearchTree::fanout(sizeof(Word));
  uint4 halves[2];

  __device__ __forceinline__ static Node load(const Word* from) {
    return {__ldg(reinterpret_cast<const uint4*>(from)), __ldg(reinterpret_cast<const uint4*>(from) + 1)};
  }
  __device__ __forceinline__ static Node load_once(const Word* from) {
    return {__ldcs(reinterpret_cast<const uint4*>(from)), __ldcs(reinterpret_cast<const uint4*>(from) + 1)};
  }
  // `i` must be known at compile time.
  __device__ __forceinline__ Word key(int i) const {
    Word keys[kFanout];
    memcpy(keys, halves, sizeof(halves));
    return keys[i];
  }
};

// The search for a needle's insertion point, which is in `range`. Positions count from the start of the sector that
// holds the row's first key.
template <typename Word, typename Position>
struct NeedleSearch {
  static constexpr int kFanout = SearchTree::fanout(sizeof(Word));
  static constexpr int kFanoutLog = ceil_log2(kFanout);
  Word bound;  // keys whose codes are below it come before the needle
  Range<Position> range;

  // The multiples of 2^shift in the range, divided by 2^shift. The keys at these positions are separators: they are in
  // the level of the tree with this shift.
  __device__ __forceinline__ Range<Position> separators(int shift) const {
    const Position rest = (Position{1} << shift) - 1;
    return {(range.begin + rest) >> shift, (range.end + rest) >> shift};
  }
  // `found` is the first separator that does not come before the needle.
  __device__ __forceinline__ void narrow(Range<Position> separators, Position found, int shift) {
    if (found > separators.begin) range.begin = ((found - 1) << shift) + 1;
    if (found < separators.end) range.end = found << shift;
  }
  template <typename Encode>
  __device__ __forceinline__ void narrow_by_node(const Node<Word>& node, int shift, Encode encode) {
    const Range<Position> separators = this->separators(shift);
    if (separators.begin >= separators.end) return;
    const Position first = separators.begin / kFanout * kFanout;
    unsigned before = 0;
#pragma unroll
    for (int i = 0; i < kFanout; ++i) before |= encode(node.key(i)) < bound ? 1u << i : 0u;
    before &= (~0u << (separators.begin - first)) & (~0u >> (32 - (separators.end - first)));
    narrow(separators, separators.begin + __popc(before), shift);
  }
};

template <typename Word, typename Position>
struct HaystackRow {
  static constexpr int kFanout = SearchTree::fanout(sizeof(Word));
  const Word* keys;
  int lead;                 // keys before the row in its first sector
  Range<Position> sectors;  // the positions whose sectors are inside the buffer

  __device__ HaystackRow(const SortedRows& rows, int64_t row) {
    const Word* const first = static_cast<const Word*>(rows.keys) + row * rows.stride;
    lead = static_cast<int>(reinterpret_cast<uintptr_t>(first) % SearchTree::kSectorBytes / sizeof(Word));
    keys = first - lead;
    const int64_t before = row * rows.stride - lead;
    constexpr int64_t kMost = std::numeric_limits<std::make_signed_t<Position>>::max();
    sectors = {before < 0 ? Position{kFanout} : Position{0},
               static_cast<Position>(minimum(rows.stored - before, kMost) / kFanout * kFanout)};
  }
};

template <typename Order, typename Index>
struct NeedleRow {
  using Word = typename Order::Word;
  using Position = std::make_unsigned_t<Index>;  // with the lead, positions may pass 2^31
  using Search = NeedleSearch<Word, Position>;
  const SegmentedSearchOperands& operands;
  Order order;
  int64_t row;
  HaystackRow<Word, Position> haystack{operands.pair.b, row};
  const Word* needles = static_cast<const Word*>(operands.pair.a.keys) + row * operands.pair.a.stride;
  const Index* ids = static_cast<const Index*>(operands.ids) + row * operands.ids_stride;
  const Index* heads = static_cast<const Index*>(operands.heads) + row * operands.heads_stride;
  const Index* ends = static_cast<const Index*>(operands.ends) + row * operands.ends_stride;
  Index* positions = static_cast<Index*>(operands.positions.data) + row * operands.pair.a.length;
  int64_t live = operands.pair.a.live(row);
  Index haystack_live = static_cast<Index>(operands.pair.b.live(row));

  __device__ Search search(Word needle, bool has_segment, Index begin, Index end) const {
    begin = clamp<Index>(begin, 0, haystack_live);
    end = has_segment ? clamp<Index>(end, begin, haystack_live) : begin;
    const Word code = order.encode(needle);
    Word bound = order.rank(code);
    if (operands.right) {
      bound = static_cast<Word>(order.last_equal(code) + 1);
      if (bound == 0) begin = end;  // no key comes after the needle
    }
    const auto lead = static_cast<Position>(haystack.lead);
    return {bound, {static_cast<Position>(begin) + lead, static_cast<Position>(end) + lead}};
  }
};

// Searches for kCount needles in lockstep: needle `first`, and others `stride` apart. Searches past the end of the row
// are for its last needle.
template <typename Order, typename Index, int kCount>
struct Searches {
  using Row = NeedleRow<Order, Index>;
  using Word = typename Row::Word;
  using Position = typename Row::Position;
  static constexpr int kFanout = Row::Search::kFanout;
  static constexpr int kFanoutLog = Row::Search::kFanoutLog;
  const Row* given;
  int64_t first;
  int64_t stride;
  Index segments[kCount];
  Word needles[kCount];
  typename Row::Search searches[kCount];
  Position ends[kCount];

  __device__ __forceinline__ int64_t needle(int k) const {
    return minimum(first + k * stride, given->operands.pair.a.length - 1);
  }

  __device__ __forceinline__ Searches(const Row& given, int64_t first, int64_t stride)
      : given(&given), first(first), stride(stride) {
#pragma unroll
    for (int k = 0; k < kCount; ++k) segments[k] = given.operands.ids ? __ldcs(given.ids + needle(k)) : Index{0};
#pragma unroll
    for (int k = 0; k < kCount; ++k) needles[k] = __ldcs(given.needles + needle(k));
  }

  __device__ __forceinline__ bool has_segment(int k) const { return segments[k] >= 0; }

  __device__ __forceinline__ void start() {
    const auto count = static_cast<Index>(given->operands.segments);
    const bool has_ends = given->operands.ends;
    Index begins[kCount], stops[kCount];
    hold(segments);
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      if (needle(k) >= given->live || segments[k] >= count) segments[k] = -1;
      const Index segment = maximum(segments[k], Index{0});
      begins[k] = given->heads[segment];
      // The last segment may have no end of its own. Then this value is not used.
      stops[k] = *(has_ends ? given->ends + segment : given->heads + segment + (segment + 1 < count));
    }
    hold(begins);
    hold(stops);
    hold(needles);
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const bool ends_last = !has_ends && segments[k] + 1 >= count;
      const Index stop = ends_last ? given->haystack_live : stops[k];
      searches[k] = given->search(needles[k], has_segment(k), begins[k], stop);
      ends[k] = searches[k].range.end;
    }
  }

  // Reads keys one by one until a sector has all remaining keys.
  __device__ __forceinline__ void narrow_to_sectors() {
    for (;;) {
      Position probes[kCount];
      Word keys[kCount];
      bool has_probes = false;
#pragma unroll
      for (int k = 0; k < kCount; ++k) {
        const auto [begin, end] = searches[k].separators(kFanoutLog);
        has_probes |= begin < end;
        probes[k] = (begin + (end - begin) / 2) * kFanout;
      }
      if (!has_probes) break;
#pragma unroll
      for (int k = 0; k < kCount; ++k) {
        const auto [begin, end] = searches[k].range;  // a search without a probe reads any key
        const bool has_probe = probes[k] >= begin && probes[k] < end;
        keys[k] = given->haystack.keys[has_probe ? probes[k] : static_cast<Position>(given->haystack.lead)];
      }
      hold(keys);
#pragma unroll
      for (int k = 0; k < kCount; ++k) {
        auto& [begin, end] = searches[k].range;
        if (probes[k] < begin || probes[k] >= end) continue;
        const bool is_before = given->order.encode(keys[k]) < searches[k].bound;
        begin = is_before ? probes[k] + 1 : begin;
        end = is_before ? end : probes[k];
      }
    }
  }

  __device__ __forceinline__ void narrow_by_level(const Word* level, int shift) {
    Node<Word> nodes[kCount];
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const auto [begin, end] = searches[k].separators(shift);
      if (begin < end) nodes[k] = Node<Word>::load(level + begin / kFanout * kFanout);
    }
#pragma unroll
    for (int k = 0; k < kCount; ++k) searches[k].narrow_by_node(nodes[k], shift, [](Word code) { return code; });
  }

  // Narrows the searches by nodes of prefixes, except at the ends of `whole`, the segment that all needles search.
  // There, and if keys agree with the needle in all bits of their prefixes, narrow_to_sectors has several sectors left.
  __device__ __forceinline__ void narrow_by_prefixes(const Word* level, Range<Position> whole) {
    static_assert(kFanout == 4, "a node of prefixes stands for 16 sectors");
    constexpr Position kSpan = 1 << (kFanoutLog * (SearchTree::kPrefixLevel + 1));
    Node<Word> nodes[kCount];
    bool has_node[kCount];
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const auto [begin, end] = searches[k].range;
      has_node[k] = begin > whole.begin && end < whole.end && begin % kSpan == 1 && end == begin - 1 + kSpan;
      if (has_node[k]) nodes[k] = Node<Word>::load(level + begin / kSpan * kFanout);
    }
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      if (!has_node[k]) continue;
      unsigned pairs[kSpan / kFanout / 2];
      memcpy(pairs, nodes[k].halves, sizeof(pairs));
      const unsigned shift = pairs[0] & 0xffff;
      const unsigned prefix = static_cast<unsigned>(searches[k].bound >> shift) & ((1u << SearchTree::kPrefixBits) - 1);
      unsigned before = kSpan / kFanout - 1, not_after = before;
#pragma unroll
      for (int i = 0; i < static_cast<int>(kSpan / kFanout / 2); ++i) {
        const unsigned signs = i == 0 ? 1u << 31 : 1u << 31 | 1u << 15;  // a sign stays if its half is not less
        const unsigned rest = (pairs[i] | 1u << 31 | 1u << 15) - prefix * 0x10001u;
        before -= __popc(rest & signs);
        not_after -= __popc((rest - 0x10001u) & signs);
      }
      auto& [begin, end] = searches[k].range;
      end = begin - 1 + ((shift == 0 ? before : not_after) + 1) * kFanout;
      begin += before * kFanout;
    }
  }

  __device__ __forceinline__ void finish() {
    const auto encode = [&](Word key) { return given->order.encode(key); };
    const auto is_inside = [&](Position position) {
      return position >= given->haystack.sectors.begin && position < given->haystack.sectors.end;
    };
    Node<Word> nodes[kCount];
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const auto [begin, end] = searches[k].range;
      if (begin >= end || !is_inside(begin)) continue;
      nodes[k] = Node<Word>::load_once(given->haystack.keys + begin / kFanout * kFanout);
    }
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      auto& [begin, end] = searches[k].range;
      if (begin < end && !is_inside(begin)) {
        const auto before = [&](Position i) { return encode(given->haystack.keys[i]) < searches[k].bound; };
        begin = end = partition_point(begin, end, before);
      }
      searches[k].narrow_by_node(nodes[k], 0, encode);
    }
  }

  __device__ __forceinline__ void store(int64_t last) const {
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const Position position = searches[k].range.begin;
      bool is_found = has_segment(k);
      if (given->operands.exact && is_found) {
        is_found = position < ends[k] &&
                   given->order.rank(given->order.encode(given->haystack.keys[position])) == searches[k].bound;
      }
      const auto found = static_cast<Index>(position - given->haystack.lead);
      if (first + k * stride < last) __stcs(given->positions + first + k * stride, is_found ? found : Index{-1});
    }
  }
};

// Looks up each needle by a single search, without a tree. `lanes` threads
// share a problem, and a thread's kItems needles are `lanes` apart.
template <typename Order, typename Index>
__global__ void __launch_bounds__(kThreads, kBlocks)
    search_segments(const __grid_constant__ SegmentedSearchOperands operands, Order order, int64_t lanes) {
  const int64_t thread = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  const int64_t row = operands.pair.rows == 1 ? 0 : thread / lanes;
  const int64_t lane = thread - row * lanes;
  if (lane >= lanes || row >= operands.pair.rows) return;
  const NeedleRow<Order, Index> given{operands, order, row};
  Searches<Order, Index, kItems> searches(given, lane, lanes);
  searches.start();
  searches.narrow_to_sectors();
  searches.finish();
  searches.store(operands.pair.a.length);
}

// ---- With a search tree

template <typename Order>
__global__ void __launch_bounds__(kMakeThreads) make_tree(const __grid_constant__ SegmentedSearchOperands operands,
                                                          Order order, const __grid_constant__ SearchTree tree) {
  using Word = typename Order::Word;
  constexpr int64_t kFanout = SearchTree::fanout(sizeof(Word));
  const SortedRows& rows = operands.pair.b;
  const int64_t blocks = gridDim.x / tree.rows;
  const int64_t row = blockIdx.x / blocks;
  const HaystackRow<Word, uint64_t> haystack(rows, row);
  Word* const keys = static_cast<Word*>(tree.keys) + row * tree.row_stride;
  const int64_t end = haystack.lead + rows.length;
  const int64_t nodes = (rows.length + kFanout - 1) / kFanout + 1;
  for (int64_t j = blockIdx.x % blocks * kMakeThreads + threadIdx.x; j < nodes; j += blocks * kMakeThreads) {
    const int64_t i = j * kFanout;
    const Word code = i >= haystack.lead && i < end ? order.encode(__ldcs(haystack.keys + i)) : Word{0};
    int64_t place = j;
    for (int level = 1; level <= tree.levels; ++level, place /= kFanout) {
      if (level > SearchTree::kPrefixLevel || !tree.has_prefixes) keys[tree.offsets[level] + place] = code;
      if (place % kFanout != 0) break;
    }
    if constexpr (sizeof(Word) == 8) {
      if (!tree.has_prefixes) continue;
      constexpr int64_t kSpan = kFanout * kFanout * kFanout;
      const auto rank_at = [&](int64_t i) { return order.rank(order.encode(haystack.keys[minimum(i, end - 1)])); };
      const int64_t first = i / kSpan * kSpan;
      const Word differs = rank_at(maximum<int64_t>(first, haystack.lead)) ^ rank_at(first + kSpan);
      const int shift = maximum(64 - __clzll(static_cast<long long>(differs)) - SearchTree::kPrefixBits, 0);
      const Word prefix = order.rank(code) >> shift & ((1 << SearchTree::kPrefixBits) - 1);
      auto* const prefixes = reinterpret_cast<uint16_t*>(keys + tree.offsets[SearchTree::kPrefixLevel]);
      prefixes[j] = static_cast<uint16_t>(i == first ? shift : prefix);
    }
  }
}

// The top may be the row itself.
template <typename Word, typename Order, typename Haystack>
__device__ void load_top(Word* top, const SearchTree& tree, const Word* levels, const Haystack& haystack, int64_t live,
                         const Order& order) {
  if (tree.levels > 0) {
    const Word* const from = levels + tree.offsets[tree.levels];
    for (int i = threadIdx.x; i < tree.top_keys; i += kTreeThreads) top[SearchTree::top_place(i)] = from[i];
  } else {
    for (int i = haystack.lead + threadIdx.x; i < haystack.lead + live; i += kTreeThreads) {
      top[SearchTree::top_place(i)] = order.encode(haystack.keys[i]);
    }
  }
}

template <typename Word, typename Position>
__device__ __forceinline__ void narrow_by_top(NeedleSearch<Word, Position>& search, const Word* top, int shift) {
  const auto is_before = [&](int i) { return top[SearchTree::top_place(i)] < search.bound; };
  const Range<Position> separators = search.separators(shift);
  auto found = static_cast<int>(separators.begin);
  int size = static_cast<int>(separators.size());
  for (; size > 1; size -= size / 2) found += is_before(found + size / 2 - 1) ? size / 2 : 0;
  if (size == 1 && is_before(found)) ++found;
  search.narrow(separators, static_cast<Position>(found), shift);
}

// `parts` blocks share a row; `part` is the most needles that a block looks up.
template <typename Order, typename Index>
__global__ void __launch_bounds__(kTreeThreads, 1)
    search_tree(const __grid_constant__ SegmentedSearchOperands operands, Order order,
                const __grid_constant__ SearchTree tree, int64_t parts, int64_t part) {
  using Word = typename Order::Word;
  using Batch = Searches<Order, Index, kTreeItems>;
  using Position = typename Batch::Position;
  extern __shared__ __align__(16) unsigned char memory[];
  Word* const top = reinterpret_cast<Word*>(memory);
  const NeedleRow<Order, Index> given{operands, order, blockIdx.x / parts};
  const int64_t begin = blockIdx.x % parts * part;
  const int64_t end = minimum(begin + part, operands.pair.a.length);
  const Word* const levels = static_cast<const Word*>(tree.keys) + given.row * tree.row_stride;
  load_top(top, tree, levels, given.haystack, given.haystack_live, order);
  __syncthreads();
  const int lowest = tree.has_prefixes ? SearchTree::kPrefixLevel : 0;
  const auto lead = static_cast<Position>(given.haystack.lead);
  const Range<int64_t> segment = operands.first_segment<Index>(given.row);
  const Range<Position> whole{static_cast<Position>(segment.begin) + lead, static_cast<Position>(segment.end) + lead};

  Batch next(given, begin + threadIdx.x, kTreeThreads);  // read while another batch is looked up
  for (int64_t i = begin + threadIdx.x; i < end; i += kTreeThreads * kTreeItems) {
    Batch searches = next;
    next = Batch(given, i + kTreeThreads * kTreeItems, kTreeThreads);
    searches.start();
#pragma unroll
    for (int k = 0; k < kTreeItems; ++k) narrow_by_top(searches.searches[k], top, Batch::kFanoutLog * tree.levels);
    for (int level = tree.levels - 1; level > lowest; --level) {
      searches.narrow_by_level(levels + tree.offsets[level], Batch::kFanoutLog * level);
    }
    if constexpr (sizeof(Word) == 8) {
      if (tree.has_prefixes) {
        searches.narrow_by_prefixes(levels + tree.offsets[lowest], whole);
        searches.narrow_to_sectors();
      }
    }
    searches.finish();
    searches.store(end);
  }
}

}  // namespace mgpu::cuda::segment_searching
