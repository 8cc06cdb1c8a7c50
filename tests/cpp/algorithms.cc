#ifdef __SSE__
#include <xmmintrin.h>
#endif

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "algorithm/exact_sum.h"
#include "algorithm/floats.h"
#include "algorithm/key_order.h"
#include "algorithm/merge_path.h"
#include "algorithm/partition_point.h"
#include "algorithm/quotient.h"
#include "algorithm/row_tiles.h"
#include "algorithm/segments.h"
#include "algorithm/serial_merge.h"
#include "algorithm/upper_rank.h"
#include "check.h"
#include "ops/common/dispatch.h"
#include "runtime/workspace.h"
#include "values.h"

namespace mgpu::testing {

namespace {

using Random = std::mt19937_64;

int64_t draw(Random& random, int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(random);
}

std::vector<int> sorted_keys(Random& random, int64_t count, int largest) {
  std::vector<int> keys(count);
  for (int& key : keys) key = static_cast<int>(draw(random, 0, largest));
  std::sort(keys.begin(), keys.end());
  return keys;
}

const auto kSerialFind = [](auto begin, auto end, auto before) { return partition_point(begin, end, before); };

}  // namespace

TEST(partition_point_finds_the_first_false) {
  for (int end = 0; end < 40; ++end) {
    for (int begin = 0; begin <= end; ++begin) {
      for (int cut = begin; cut <= end; ++cut) {
        const auto before = [&](int i) {
          CHECK(begin <= i && i < end);
          return i < cut;
        };
        CHECK(partition_point(begin, end, before) == cut);
        CHECK(galloping_partition_point(begin, end, before) == cut);
      }
    }
  }
}

TEST(partition_point_of_a_broken_predicate_stays_inside) {
  Random random(1);
  for (int repeat = 0; repeat < 1000; ++repeat) {
    const int64_t end = draw(random, 0, 200);
    int64_t calls = 0;
    const auto before = [&](int64_t i) {
      CHECK(0 <= i && i < end);
      ++calls;
      return draw(random, 0, 1) == 1;
    };
    const int64_t found = partition_point(int64_t{0}, end, before);
    CHECK(0 <= found && found <= end && calls <= 8);
    const int64_t galloped = galloping_partition_point(int64_t{0}, end, before);
    CHECK(0 <= galloped && galloped <= end);
  }
}

TEST(merges_are_those_of_the_standard_library) {
  using Item = std::pair<int, int>;  // a key, and where it came from
  const auto less = [](const Item& x, const Item& y) { return x.first < y.first; };
  Random random(2);
  for (int repeat = 0; repeat < 2000; ++repeat) {
    std::vector<Item> a, b, merged;
    for (const int key : sorted_keys(random, draw(random, 0, 20), 6)) a.push_back({key, static_cast<int>(a.size())});
    for (const int key : sorted_keys(random, draw(random, 0, 20), 6)) {
      b.push_back({key, 100 + static_cast<int>(b.size())});
    }
    std::merge(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(merged), less);
    const auto a_at = [&](int64_t i) { return a.at(i); };
    const auto b_at = [&](int64_t i) { return b.at(i); };
    const auto a_count = static_cast<int64_t>(a.size());
    const auto b_count = static_cast<int64_t>(b.size());

    int64_t from_a = 0;
    for (int64_t diagonal = 0; diagonal <= a_count + b_count; ++diagonal) {
      CHECK(merge_path(a_count, b_count, diagonal, a_at, b_at, less) == from_a);
      if (diagonal < a_count + b_count) from_a += merged[diagonal].second < 100;
    }

    std::vector<Item> out(merged.size());
    serial_merge(a.data(), a.data() + a_count, b.data(), b.data() + b_count, out.data(), less);
    CHECK(out == merged);

    std::vector<Item> walked(merged.size(), Item{-1, -1});
    walk_merge(
        a_count, b_count, a_at, b_at, less,
        [&](int64_t i, int64_t j, int64_t take_b) { walked.at(i + j) = take_b ? b.at(j) : a.at(i); },
        [&](int64_t i, int64_t end, int64_t j) {
          for (; i < end; ++i) walked.at(i + j) = a.at(i);
        },
        [&](int64_t j, int64_t end, int64_t i) {
          for (; j < end; ++j) walked.at(i + j) = b.at(j);
        });
    CHECK(walked == merged);
  }
}

TEST(merge_paths_by_secants_are_those_of_a_binary_search) {
  Random random(5);
  const auto less = [](auto x, auto y) { return x < y; };
  const auto check = [&](auto zero) {
    using Key = decltype(zero);
    for (int repeat = 0; repeat < 300; ++repeat) {
      const auto keys = [&] {
        std::vector<Key> result(draw(random, 0, 3000));
        const int64_t kind = draw(random, 0, 4);
        for (Key& key : result) {
          key = static_cast<Key>(random());
          if (kind == 1) key = static_cast<Key>(key >> draw(random, 0, 8 * sizeof(Key) - 1));
          if (kind == 2) key = static_cast<Key>(~(key >> draw(random, 0, 8 * sizeof(Key) - 1)));
          if (kind == 3) key %= 3;
        }
        if (repeat % 10 > 0) std::sort(result.begin(), result.end());
        return result;
      };
      const std::vector<Key> a = keys(), b = keys();
      const auto a_count = static_cast<int64_t>(a.size());
      const auto b_count = static_cast<int64_t>(b.size());
      const float rise = draw(random, 0, 1) ? 0.0f : static_cast<float>(draw(random, 0, 1000000));
      for (int64_t diagonal = 0; diagonal <= a_count + b_count; diagonal += draw(random, 1, 100)) {
        int probes = 0;
        const auto a_at = [&](int64_t i) { return ++probes, a.at(i); };
        const auto b_at = [&](int64_t i) { return b.at(i); };
        const int64_t begin = std::max<int64_t>(0, diagonal - b_count);
        const int64_t end = std::min(diagonal, a_count);
        const int64_t guess = draw(random, -10, a_count + 10);
        const int64_t split = merge_path_by_secants(begin, end, diagonal, guess, rise, a_at, b_at, less, kSerialFind);
        CHECK(begin <= split && split <= end);
        CHECK(probes <= 8 + ceil_log2(end - begin + 1));
        if (repeat % 10 > 0) CHECK(split == merge_path(a_count, b_count, diagonal, a_at, b_at, less));
      }
    }
  };
  check(uint8_t{});
  check(uint16_t{});
  check(uint32_t{});
  check(uint64_t{});
}

TEST(secants_find_splits_of_evenly_spread_keys_in_few_probes) {
  Random random(6);
  const auto keys = [&] {
    std::vector<uint32_t> result(1 << 20);
    for (uint32_t& key : result) key = static_cast<uint32_t>(random());
    std::sort(result.begin(), result.end());
    return result;
  };
  const std::vector<uint32_t> a = keys(), b = keys();
  const int64_t count = 1 << 20;
  const float rise = 2 * 4096.0f;
  int64_t probes = 0;
  int64_t splits = 0;
  for (int64_t diagonal = 5000; diagonal < 2 * count; diagonal += 5000, ++splits) {
    merge_path_by_secants(
        std::max<int64_t>(0, diagonal - count), std::min(diagonal, count), diagonal, diagonal / 2, rise,
        [&](int64_t i) { return ++probes, a.at(i); }, [&](int64_t i) { return b.at(i); },
        [](uint32_t x, uint32_t y) { return x < y; }, kSerialFind);
  }
  CHECK(probes < 8 * splits);  // a binary search takes 20 probes per split
}

namespace {

// Ranges that claim the order of integers must have it, and ranges between finite nonzero floats of one sign must claim
// it.
template <typename Order>
void check_integer_ranges(const Order& order, const std::vector<int64_t>& key_of_code,
                          const std::vector<long double>& values) {
  using Word = typename Order::Word;
  const auto code_count = static_cast<int64_t>(key_of_code.size());
  const auto value = [&](int64_t code) { return values[key_of_code[code]]; };
  const auto is_usual = [&](int64_t code) { return std::isfinite(value(code)) && value(code) != 0; };
  Random random(7);
  for (int64_t least = 0; least < code_count; ++least) {
    const int64_t greatest = std::min(code_count - 1, least + draw(random, 0, draw(random, 0, 1) ? 3 : code_count));
    const bool same_sign = std::signbit(value(least)) == std::signbit(value(greatest));
    const bool is_range = order.is_integer_range(static_cast<Word>(least), static_cast<Word>(greatest));
    if (is_usual(least) && is_usual(greatest)) CHECK(is_range == same_sign);
    if (!is_range) continue;
    CHECK(same_sign);
    const auto integers = order.integer_order(static_cast<Word>(key_of_code[least]));
    Word last{};
    for (int64_t code = least; code <= std::min(greatest, least + 20); ++code) {
      const Word integer = integers.encode(static_cast<Word>(key_of_code[code]));
      CHECK(value(code) != 0 && !std::isnan(value(code)) && (code == least || last < integer));
      last = integer;
    }
  }
}

// Codes must be a bijection and keep the order of values, for neighbours and for random pairs.
template <typename Word>
void check_order_of_all_keys(DType dtype) {
  constexpr int64_t kKeys = int64_t{1} << (8 * sizeof(Word));
  std::vector<Word> keys(kKeys);
  for (int64_t i = 0; i < kKeys; ++i) keys[i] = static_cast<Word>(i);
  const Array array{keys.data(), dtype, {kKeys}};
  std::vector<long double> values(kKeys);
  for (int64_t i = 0; i < kKeys; ++i) values[i] = value_of(array, i);

  for (const bool descending : {false, true}) {
    const auto check = [&](auto order) {
      std::vector<int64_t> key_of_code(kKeys, -1);
      for (const Word key : keys) {
        const Word code = order.encode(key);
        CHECK(order.decode(code) == key);
        CHECK(key_of_code[code] == -1);
        key_of_code[code] = key;
      }
      const auto agrees = [&](int64_t code_a, int64_t code_b) {
        const bool expected = value_less(values[key_of_code[code_a]], values[key_of_code[code_b]], descending);
        return order.less(static_cast<Word>(code_a), static_cast<Word>(code_b)) == expected;
      };
      for (int64_t code = 0; code < kKeys; ++code) {
        CHECK(agrees(code, code));
        if (code + 1 < kKeys) CHECK(agrees(code, code + 1) && agrees(code + 1, code));
      }
      const auto equals_next = [&](int64_t code) {
        return code >= 0 && code + 1 < kKeys && !order.less(static_cast<Word>(code), static_cast<Word>(code + 1));
      };
      for (int64_t code = 0; code < kKeys; ++code) {
        const Word word = static_cast<Word>(code);
        CHECK(order.has_equals(word) == (equals_next(code - 1) || equals_next(code)));
        CHECK(order.has_equals(word) || order.rank(word) == word);
        if constexpr (sizeof(Word) == 2) {
          CHECK(upper_rank(order, order.decode(word)) == uint32_t{order.rank(word)} << 16);
        }
        CHECK(!equals_next(code) || !order.is_plain(static_cast<Word>(key_of_code[code])) ||
              !order.is_plain(static_cast<Word>(key_of_code[code + 1])));
      }
      if constexpr (!decltype(order)::kTotal) check_integer_ranges(order, key_of_code, values);
      Random random(3);
      for (int i = 0; i < 500000; ++i) CHECK(agrees(draw(random, 0, kKeys - 1), draw(random, 0, kKeys - 1)));
    };
    if (key_kind(dtype) == KeyKind::kFloat) {
      check(FloatOrder<uint16_t>::make(key_kind(dtype), mantissa_bits(dtype), descending));
    } else {
      check(IntegerOrder<Word>::make(key_kind(dtype), 0, descending));
    }
  }
}

}  // namespace

TEST(order_of_all_narrow_keys) {
  check_order_of_all_keys<uint8_t>(DType::u8);
  check_order_of_all_keys<uint8_t>(DType::s8);
  check_order_of_all_keys<uint16_t>(DType::u16);
  check_order_of_all_keys<uint16_t>(DType::s16);
  check_order_of_all_keys<uint16_t>(DType::f16);
  check_order_of_all_keys<uint16_t>(DType::bf16);
}

TEST(order_of_wide_floats) {
  Random random(4);
  const float special[] = {0.0f, -0.0f, INFINITY, -INFINITY, NAN, -NAN, 1e-45f, -1e-45f, 1.0f, -1.0f};
  const auto any = [&] {
    return draw(random, 0, 1) ? special[draw(random, 0, 9)] : std::bit_cast<float>(static_cast<uint32_t>(random()));
  };
  for (const bool descending : {false, true}) {
    const auto order = FloatOrder<uint32_t>::make(KeyKind::kFloat, 23, descending);
    const auto wide = FloatOrder<uint64_t>::make(KeyKind::kFloat, 52, descending);
    for (int i = 0; i < 100000; ++i) {
      const float a = any(), b = any();
      const auto word_a = std::bit_cast<uint32_t>(a), word_b = std::bit_cast<uint32_t>(b);
      CHECK(order.decode(order.encode(word_a)) == word_a);
      CHECK(order.less(order.encode(word_a), order.encode(word_b)) == value_less(a, b, descending));
      const auto wide_a = std::bit_cast<uint64_t>(double{a}), wide_b = std::bit_cast<uint64_t>(double{b});
      CHECK(wide.decode(wide.encode(wide_a)) == wide_a);
      CHECK(wide.less(wide.encode(wide_a), wide.encode(wide_b)) == value_less(a, b, descending));
    }
  }
}

namespace {

// Makes this thread compute with denormal floats as zeros, as XLA's threads do.
struct FlushToZero {
#ifdef __SSE__
  unsigned before = _mm_getcsr();
  FlushToZero() { _mm_setcsr(before | 0x8040); }
  ~FlushToZero() { _mm_setcsr(before); }
#endif
};

}  // namespace

TEST(halfs_widen_and_round_where_denormal_floats_are_zero) {
  for (int bits = 0; bits < 0x7c00; ++bits) {
    const long double value = small_float(static_cast<uint16_t>(bits), 10);
    float wide;
    uint16_t narrow;
    {
      const FlushToZero flush;
      wide = widen(Half{static_cast<uint16_t>(bits)});
      narrow = narrow_to(wide, Half{}).bits;
    }
    CHECK(wide == value);
    CHECK(narrow == bits);
  }
}

TEST(narrow_floats_widen_and_round) {
  const auto check = [](auto zero, int mantissa_bits) {
    using Narrow = decltype(zero);
    for (int bits = 0; bits < 1 << 16; ++bits) {
      const Narrow narrow{static_cast<uint16_t>(bits)};
      const long double value = small_float(narrow.bits, mantissa_bits);
      const float wide = widen(narrow);
      CHECK(std::isnan(value) ? std::isnan(wide) : wide == value && std::signbit(wide) == std::signbit(value));
      if (std::isnan(value)) {
        CHECK(std::isnan(small_float(narrow_to(wide, Narrow{}).bits, mantissa_bits)));
        continue;
      }
      CHECK(narrow_to(wide, Narrow{}).bits == bits);
      const Narrow next{static_cast<uint16_t>(bits + 1)};
      const long double next_value = small_float(next.bits, mantissa_bits);
      if (!std::isfinite(value) || !std::isfinite(next_value)) continue;
      const auto half_way = static_cast<float>((value + next_value) / 2);
      CHECK(narrow_to(half_way, Narrow{}).bits == (bits & 1 ? next.bits : bits));
      CHECK(narrow_to(std::nextafter(half_way, 2 * wide + (bits & 0x8000 ? -1.0f : 1.0f)), Narrow{}).bits == next.bits);
    }
  };
  check(Half{}, 10);
  check(BFloat16{}, 7);
}

namespace {

struct Ragged {
  std::vector<int32_t> heads;
  std::vector<uint8_t> flag_bytes;
  std::vector<uint32_t> flag_words;
  std::vector<int64_t> counts;
  Segments segments;
  std::set<int64_t> starts;  // by brute force, for heads that are in order

  Ragged(Random& random, bool in_order) {
    const int64_t rows = segments.rows = draw(random, 1, 3);
    const int64_t length = segments.length = draw(random, 1, 70);
    for (int64_t row = 0; row < rows; ++row) starts.insert(row * length);
    const int form = static_cast<int>(draw(random, 0, 2));
    if (form == 0) {
      const int64_t count = segments.heads_count = draw(random, 0, 3) == 0 ? draw(random, 0, 400) : draw(random, 0, 12);
      const bool shared = draw(random, 0, 1);
      segments.heads_stride = shared ? 0 : count;
      for (int64_t row = 0; row < (shared ? 1 : rows); ++row) {
        std::vector<int32_t> of_row(count);
        for (int32_t& head : of_row) {
          head = static_cast<int32_t>(in_order ? draw(random, 0, length) : draw(random, -1000, 1000));
        }
        if (in_order) std::sort(of_row.begin(), of_row.end());
        heads.insert(heads.end(), of_row.begin(), of_row.end());
      }
      segments.heads = {heads.data(), false};
      for (int64_t row = 0; row < rows && in_order; ++row) {
        for (int64_t i = 0; i < count; ++i) {
          const int64_t head = heads[row * segments.heads_stride + i];
          if (head < length) starts.insert(row * length + head);
        }
      }
    } else {
      segments.flags_stride = form == 1 ? length : (length + 31) / 32;
      flag_bytes.resize(rows * length);
      flag_words.resize(rows * ((length + 31) / 32));
      for (int64_t i = 0; i < rows * length; ++i) {
        flag_bytes[i] = draw(random, 0, 4) == 0;
        if (!flag_bytes[i]) continue;
        starts.insert(i);
        flag_words[i / length * ((length + 31) / 32) + i % length / 32] |= 1u << (i % length % 32);
      }
      (form == 1 ? segments.flag_bytes : reinterpret_cast<const uint8_t*&>(segments.flag_words)) =
          form == 1 ? flag_bytes.data() : reinterpret_cast<const uint8_t*>(flag_words.data());
    }
    if (draw(random, 0, 1)) {
      for (int64_t row = 0; row < rows; ++row) {
        counts.push_back(in_order ? draw(random, 0, length) : draw(random, -100, 200));
        const int64_t live = std::clamp<int64_t>(counts.back(), 0, length);
        for (int64_t dead = live; dead < length; ++dead) starts.insert(row * length + dead);
      }
      segments.counts = {{counts.data(), true}, 1};
    }
  }
};

}  // namespace

TEST(heads_and_segments_are_those_of_a_brute_force) {
  Random random(5);
  for (int repeat = 0; repeat < 3000; ++repeat) {
    const bool in_order = repeat % 3 != 0;
    const Ragged ragged(random, in_order);
    const Segments& segments = ragged.segments;
    const int64_t total = segments.total();

    if (!segments.has_flags()) {
      for (int64_t position = 0; position <= total; ++position) {
        const int64_t listed = segments.listed_from(position, kSerialFind);
        CHECK(0 <= listed && listed <= segments.flat_heads_count());
        if (in_order) {
          CHECK(listed == segments.flat_heads_count() || segments.flat_head(listed) >= position);
          // At a row's start, the padding of the previous row is skipped.
          const bool at_row_start = position % segments.length == 0;
          CHECK(listed == 0 || segments.flat_head(listed - 1) < position + at_row_start);
        }
        if (position == total) continue;
        const Range<int64_t> segment = segments.segment_of(position, kSerialFind);
        const int64_t row = position / segments.length * segments.length;
        CHECK(row <= segment.begin && segment.begin <= position && position < segment.end &&
              segment.end <= row + segments.length);
        if (!in_order) continue;
        CHECK(segment.begin == *std::prev(ragged.starts.upper_bound(position)));
        const auto next = ragged.starts.upper_bound(position);
        CHECK(segment.end == (next == ragged.starts.end() ? total : *next));
      }
    }

    Range<int64_t> tile{draw(random, 0, total - 1), 0};
    tile.end = draw(random, tile.begin + 1, total);
    const Range<int64_t> listed = segments.has_flags() ? Range<int64_t>{0, 0}
                                                       : Range<int64_t>{segments.listed_from(tile.begin, kSerialFind),
                                                                        segments.listed_from(tile.end, kSerialFind)};
    std::set<int64_t> marked;
    const int lanes = static_cast<int>(draw(random, 1, 5));
    for (int lane = 0; lane < lanes; ++lane) {
      segments.mark_heads(tile, listed, lane, lanes, [&](int64_t position) {
        CHECK(tile.begin <= position && position < tile.end);
        marked.insert(position);
      });
    }
    if (!in_order) continue;
    CHECK(marked == std::set<int64_t>(ragged.starts.lower_bound(tile.begin), ragged.starts.lower_bound(tile.end)));
  }
}

TEST(merge_rounds_cover_a_segment) {
  Random random(6);
  for (int repeat = 0; repeat < 2000; ++repeat) {
    const int64_t width = draw(random, 1, 9);
    const int64_t begin = draw(random, 0, 200);
    const Range<int64_t> segment{begin, begin + draw(random, 1, 150)};
    const int64_t first_cell = segment.begin / width;
    const int64_t last_cell = (segment.end - 1) / width;
    const int rounds = merge_rounds(segment, width);
    int64_t longest_run = 0;
    for (int round = 0; round <= rounds; ++round) {
      int64_t covered = segment.begin;
      for (int64_t cell = first_cell; cell <= last_cell; ++cell) {
        const MergePair<int64_t> pair = merge_pair(segment, width, cell, round);
        CHECK(pair.begin <= pair.middle && pair.middle <= pair.end);
        CHECK(pair.begin <= std::max(segment.begin, cell * width) && cell * width < pair.end);
        if (pair.end == covered) continue;  // it is a cell of the same pair
        CHECK(pair.begin == covered);
        covered = pair.end;
        if (round > 0) CHECK(std::max(pair.middle - pair.begin, pair.end - pair.middle) <= longest_run);
      }
      CHECK(covered == segment.end);
      longest_run = width << (round + 1);
    }
    if (rounds > 0) {
      const MergePair<int64_t> last = merge_pair(segment, width, first_cell, rounds - 1);
      CHECK(last.begin == segment.begin && last.end == segment.end);
    } else {
      CHECK(first_cell == last_cell);
    }
  }
}

namespace {

// By the 0-1 principle a network that sorts every sequence of zeros and ones sorts everything (Knuth, The Art of
// Computer Programming, volume 3, 5.3.4).
template <int kItems>
void check_network() {
  for (uint32_t bits = 0; bits < 1u << kItems; ++bits) {
    uint8_t items[kItems];
    for (int i = 0; i < kItems; ++i) items[i] = bits >> i & 1;
    network_sort(items);
    for (int i = 1; i < kItems; ++i) CHECK(items[i - 1] <= items[i]);
    CHECK(std::count(items, items + kItems, 1) == std::popcount(bits));
  }
}

}  // namespace

TEST(networks_sort) {
  check_network<2>();
  check_network<8>();
  check_network<9>();
  check_network<11>();
  check_network<16>();
  check_network<17>();
}

template <bool kWrittenOut, int kItems>
void check_odd_even_sort() {
  using Item = std::pair<int, int>;
  const auto less = [](const Item& x, const Item& y) { return x.first < y.first; };
  Random random(7);
  for (int repeat = 0; repeat < 2000; ++repeat) {
    Item items[kItems];
    bool heads[kItems];
    for (int i = 0; i < kItems; ++i) {
      items[i] = {static_cast<int>(draw(random, 0, 5)), i};
      heads[i] = draw(random, 0, 5) == 0;
    }
    std::vector<Item> expected(items, items + kItems);
    for (int begin = 0, end; begin < kItems; begin = end) {
      for (end = begin + 1; end < kItems && !heads[end];) ++end;
      std::stable_sort(expected.begin() + begin, expected.begin() + end, less);
    }
    odd_even_sort<kWrittenOut>(items, less, [&](int i) { return heads[i]; });
    CHECK(std::equal(items, items + kItems, expected.begin()));
  }
}

TEST(odd_even_sort_stays_within_segments) {
  check_odd_even_sort<true, 17>();
  check_odd_even_sort<false, 17>();
  check_odd_even_sort<false, 8>();
}

TEST(divisor_divides_exactly) {
  Random random(17);
  for (unsigned divisor = 1; divisor <= 46340; divisor += divisor < 5000 ? 1 : 97) {
    const Divisor by(divisor);
    const unsigned most = ((1u << 31) - 1) / divisor;
    for (int repeat = 0; repeat < 200; ++repeat) {
      const unsigned x = static_cast<unsigned>(draw(random, 0, minimum(most, 1u << 20)));
      const unsigned multiple = x / divisor * divisor;
      CHECK(by.quotient(x) == x / divisor && by.quotient(multiple) == x / divisor);
      if (multiple > 0) CHECK(by.quotient(multiple - 1) == x / divisor - 1);
    }
    CHECK(by.quotient(most) == most / divisor);
  }
}

TEST(tiles_of_short_rows_have_a_thread_for_every_item) {
  for (int64_t slots = 1; slots <= RowTiles::kMostSlots; ++slots) {
    const RowTiles tiles(1000, slots);
    const int lanes = static_cast<int>(tiles.lanes.divisor);
    CHECK(tiles.tile_rows >= 1 && tiles.tile_rows * lanes <= RowTiles::kThreads);
    CHECK(tiles.tile_rows * slots <= RowTiles::kMostSlots);
    CHECK(tiles.share(slots) * lanes >= slots && tiles.share(slots) <= RowTiles::kMostSlots / RowTiles::kThreads);
    CHECK(tiles.tiles() * tiles.tile_rows >= 1000 && (tiles.tiles() - 1) * tiles.tile_rows < 1000);
  }
}

TEST(workspace_counts_what_it_hands_out) {
  const auto layout = [](Workspace& workspace) {
    return std::array<char*, 4>{workspace.take<char>(3), reinterpret_cast<char*>(workspace.take<int64_t>(0)),
                                reinterpret_cast<char*>(workspace.take<int64_t>(100)), workspace.take<char>(1)};
  };
  Workspace counting;
  for (const char* piece : layout(counting)) CHECK(piece == nullptr);
  std::vector<char> room(counting.used());
  Workspace workspace(room.data(), counting.used());
  const auto pieces = layout(workspace);
  CHECK(workspace.used() == counting.used());
  for (const char* piece : pieces) CHECK((piece - room.data()) % 256 == 0);
  CHECK(pieces[2] - pieces[0] >= 3 && pieces[3] - pieces[2] >= 800 && room.data() + room.size() - pieces[3] >= 1);

  Workspace small(room.data(), counting.used() - 1);
  bool refused = false;
  try {
    layout(small);
  } catch (const CallError&) {
    refused = true;
  }
  CHECK(refused);
}

TEST(quotients_are_those_of_division) {
  Random random(31);
  constexpr int64_t kMost = (int64_t{1} << 31) - 1;
  for (int round = 0; round < 20000; ++round) {
    const int64_t divisor = round < 40 ? round + 1 : draw(random, 1, kMost >> draw(random, 0, 30));
    const Quotient quotient(divisor);
    const int64_t multiple = divisor * draw(random, 1, kMost / divisor);
    for (const int64_t x : {int64_t{0}, divisor - 1, multiple - 1, multiple, draw(random, 0, kMost), kMost}) {
      CHECK(quotient(static_cast<unsigned>(x)) == x / divisor);
    }
  }
}

// The sign of the exact sum of numbers (Shewchuk, Adaptive precision floating-point arithmetic, 1997). The parts of the
// sum do not overlap, so the last one decides.
int sign_of_sum(const std::vector<double>& numbers) {
  std::vector<double> parts;
  for (double x : numbers) {
    std::vector<double> next;
    for (double y : parts) {
      if (std::abs(x) < std::abs(y)) std::swap(x, y);
      const double high = x + y, low = y - (high - x);
      if (low != 0) next.push_back(low);
      x = high;
    }
    if (x != 0) next.push_back(x);
    parts = next;
  }
  return parts.empty() ? 0 : (parts.back() > 0) - (parts.back() < 0);
}

// Adds items up as ExactSum does; its limbs have room for sums of `room` items.
float add_up(const std::vector<float>& items, int64_t room) {
  const ExactSum sum(room);
  uint32_t largest = 1, smallest = 254;
  for (const float x : items) {
    const uint32_t exponent = ExactSum::exponent(std::bit_cast<uint32_t>(x));
    largest = std::max(largest, exponent);
    smallest = std::min(smallest, exponent);
  }
  const int used = static_cast<int>(sum.limb(std::min(smallest, largest), largest)) + 1;
  CHECK(used <= sum.limbs());
  std::vector<uint64_t> limbs(used);
  for (const float x : items) {
    const ExactSum::Term term = sum.term(x, largest, 1000);
    limbs[term.limb] += term.value;
  }
  return sum.round([&](int i) -> uint64_t& { return limbs[i]; }, used, largest);
}

TEST(exact_sums_are_rounded_once) {
  Random random(32);
  constexpr uint32_t kSign = 1u << 31, kFraction = (1u << 23) - 1;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (int round = 0; round < 4000; ++round) {
    const int64_t n = draw(random, 1, round % 10 == 0 ? 2000 : 5);
    // Five kinds take turns: subnormal items, small ones, the largest, those of middle exponents, any items.
    const int64_t most = round % 5 == 4 ? 254 : round % 5 == 2 ? 254 : round % 5 == 3 ? 140 : 3 * (round % 5);
    const int64_t least = round % 5 == 2 ? 250 : round % 5 == 3 ? 100 : 0;
    std::vector<float> items(n);
    for (float& item : items) {
      const auto field = static_cast<uint32_t>(draw(random, least, most));
      const auto fraction = static_cast<uint32_t>(random()) & (round % 3 == 0 ? 7u << 20 : kFraction);  // makes ties
      item = std::bit_cast<float>((static_cast<uint32_t>(random()) & kSign) | fraction | field << 23);
    }
    if (round % 4 == 0) {  // adds items that cancel
      for (int64_t i = 0; i < n; i += 2) items.push_back(-items[i]);
    }
    const auto size = static_cast<int64_t>(items.size());
    const float got = add_up(items, draw(random, size, int64_t{1} << draw(random, 12, 40)));
    std::vector<double> parts(items.begin(), items.end());
    if (n == 1 && size == 1) CHECK(got == items[0]);
    if (std::isinf(got)) {
      parts.push_back(got > 0 ? -0x1.ffffffp127 : 0x1.ffffffp127);  // from here on, the nearest float is infinite
      CHECK(sign_of_sum(parts) == (got > 0 ? 1 : -1) || sign_of_sum(parts) == 0);
      continue;
    }
    // Twice the exact sum must lie between the two sums of `got` and one of its neighbours.
    parts.insert(parts.end(), items.begin(), items.end());
    for (const float direction : {-kInfinity, kInfinity}) {
      double neighbour = std::nextafter(got, direction);
      if (std::isinf(neighbour)) neighbour = neighbour > 0 ? 0x1p128 : -0x1p128;
      std::vector<double> beyond = parts;
      beyond.push_back(-double{got});
      beyond.push_back(-neighbour);
      CHECK(sign_of_sum(beyond) * (direction > 0 ? 1 : -1) <= 0);
    }
  }
}

TEST(multiples_of_units_are_added_like_items) {
  Random random(33);
  for (int round = 0; round < 4000; ++round) {
    const int64_t n = draw(random, 1, 50);
    const auto lowest = static_cast<uint32_t>(draw(random, 1, 241));
    std::vector<float> items(n);
    int64_t multiple = 0;
    for (float& item : items) {
      const auto above = static_cast<uint32_t>(draw(random, 0, 13)), fraction = static_cast<uint32_t>(random()) >> 9;
      item = std::bit_cast<float>((lowest + above) << 23 | fraction);
      if (round % 2) item = -item;
      multiple += int64_t{1 << 23 | fraction} * (round % 2 ? -1 : 1) * (int64_t{1} << above);
    }
    for (const int64_t room : {n, int64_t{1} << 24, int64_t{1} << 27}) {
      const ExactSum sum(room);
      std::vector<uint64_t> limbs(sum.limbs());
      sum.add_multiple(multiple, lowest, [&](unsigned limb, uint64_t value) { limbs[limb] += value; });
      const float got =
          sum.round([&](int i) -> uint64_t& { return limbs[i]; }, sum.limbs(), ExactSum::kLargestExponent);
      CHECK(got == add_up(items, n));
    }
  }
}

TEST(limbs_have_room_for_all_items_and_know_what_is_not_finite) {
  constexpr float kLargest = std::numeric_limits<float>::max(), kInfinity = std::numeric_limits<float>::infinity();
  for (const int64_t n : {int64_t{1}, int64_t{3}, int64_t{1} << 31, (int64_t{1} << 31) + 1}) {
    const ExactSum sum(n);
    CHECK(sum.term(kLargest, 254, 0).value <= static_cast<uint64_t>(INT64_MAX / n));
    CHECK(sum.term(-kLargest, 254, 0).value == uint64_t{0} - sum.term(kLargest, 254, 0).value);
    for (uint32_t exponent = 1; exponent < ExactSum::kSpecial; ++exponent) {
      CHECK(static_cast<int>(sum.limb(exponent, 254)) == (254 - static_cast<int>(exponent)) / sum.binades);
    }
  }
  const ExactSum sum(9);
  const auto special = [&](float x) {
    const ExactSum::Term term = sum.term(x, 254, 7);
    CHECK(term.limb == 7);
    return term.value;
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  CHECK(ExactSum::special(2 * special(kInfinity)) == kInfinity);
  CHECK(ExactSum::special(special(-kInfinity)) == -kInfinity);
  CHECK(std::isnan(ExactSum::special(special(kInfinity) + special(-kInfinity))));
  CHECK(std::isnan(ExactSum::special(special(kInfinity) + special(nan))));
}

}  // namespace mgpu::testing
