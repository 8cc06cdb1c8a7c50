// Keys with their payload, as the CPU sorts and merges them: loaded as codes, stored as the keys' own bits.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "algorithm/serial_merge.h"
#include "ops/common/payload.h"

namespace mgpu {

template <typename Word, typename Payload>
struct Entry {
  Word code;
  [[no_unique_address]] Payload payload;
};

template <typename Order>
struct EntryLess {
  Order order;
  template <typename Item>
  bool operator()(const Item& a, const Item& b) const {
    return order.less(a.code, b.code);
  }
};

template <typename Order, typename Payload>
struct EntryBuffer {
  using Word = typename Order::Word;
  using Item = Entry<Word, Payload>;

  Order order;
  const void* keys;
  const void* payload = nullptr;
  int64_t row_length = 0;  // above 0 if the payload of an item is its index in its row, which has this length

  Item load(int64_t i) const {
    Item item{order.encode(static_cast<const Word*>(keys)[i]), {}};
    if constexpr (!std::is_same_v<Payload, NoPayload>) {
      item.payload = row_length > 0 ? static_cast<Payload>(i % row_length) : static_cast<const Payload*>(payload)[i];
    }
    return item;
  }

  void store(int64_t i, const Item& item) const {
    static_cast<Word*>(const_cast<void*>(keys))[i] = order.decode(item.code);
    if constexpr (!std::is_same_v<Payload, NoPayload>) {
      static_cast<Payload*>(const_cast<void*>(payload))[i] = item.payload;
    }
  }
};

template <typename Order, typename Payload>
struct TemporaryBuffer {
  TemporaryBuffer(int64_t size, Order order)
      : order(order), keys(std::make_unique_for_overwrite<typename Order::Word[]>(size)) {
    if constexpr (!std::is_same_v<Payload, NoPayload>) payload = std::make_unique_for_overwrite<Payload[]>(size);
  }
  EntryBuffer<Order, Payload> buffer() const { return {order, keys.get(), payload.get()}; }

  Order order;
  std::unique_ptr<typename Order::Word[]> keys;  // not zeroed
  std::unique_ptr<Payload[]> payload;
};

struct ThreadRoom {
  std::unique_ptr<std::byte[]> data;
  size_t bytes = 0;
};
inline ThreadRoom& kept_room() {
  thread_local ThreadRoom room;
  return room;
}

// Two arrays for a task, in memory that the calling thread reuses. A
// thread keeps one buffer for all types, of at most kMaxKept bytes.
template <typename First, typename Second>
class ThreadScratch {
 public:
  ThreadScratch(int64_t first_count, int64_t second_count)
      : first_count_(first_count), room_(std::exchange(kept_room(), {})) {
    const size_t bytes = first_count * sizeof(First) + second_count * sizeof(Second);
    if (room_.bytes < bytes) room_ = {std::make_unique_for_overwrite<std::byte[]>(bytes), bytes};
  }
  ~ThreadScratch() {
    constexpr size_t kMaxKept = 2 << 20;
    if (room_.bytes <= kMaxKept) kept_room() = std::move(room_);
  }
  ThreadScratch(const ThreadScratch&) = delete;
  ThreadScratch& operator=(const ThreadScratch&) = delete;

  First* first() const { return reinterpret_cast<First*>(room_.data.get()); }
  Second* second() const { return reinterpret_cast<Second*>(first() + first_count_); }

 private:
  static_assert(alignof(Second) <= alignof(First) && alignof(First) <= __STDCPP_DEFAULT_NEW_ALIGNMENT__);

  int64_t first_count_;
  ThreadRoom room_;
};

// Merges two runs from both ends at once. For as many steps as the shorter run
// has items, every pointer stays within its run, so no step checks for an end.
template <typename Item, typename Less>
void merge_runs(const Item* a, int64_t a_count, const Item* b, int64_t b_count, Item* out, Less less) {
  const Item* a_last = a + a_count - 1;
  const Item* b_last = b + b_count - 1;
  Item* out_last = out + a_count + b_count - 1;
  for (int64_t step = std::min(a_count, b_count); step > 0; --step) {
    const int64_t take_b = opaque(less(*b, *a));
    *out++ = *select(take_b, a, b);
    b += take_b;
    a += 1 - take_b;
    const int64_t take_a = opaque(less(*b_last, *a_last));
    *out_last-- = *select(take_a, b_last, a_last);
    a_last -= take_a;
    b_last -= 1 - take_a;
  }
  serial_merge(a, a_last + 1, b, b_last + 1, out, less);
}

template <typename Item, typename Less>
void insertion_sort(Item* items, int64_t count, Less less) {
  for (int64_t i = 1; i < count; ++i) {
    const Item item = items[i];
    int64_t j = i;
    for (; j > 0 && less(item, items[j - 1]); --j) items[j] = items[j - 1];
    items[j] = item;
  }
}

// The network is padded with the last code of the total order.
template <int kCount, typename Item>
void network_sort_few(Item* items, int64_t count) {
  using Word = decltype(Item::code);
  Word codes[kCount];
  for (int64_t i = 0; i < kCount; ++i) codes[i] = i < count ? items[i].code : static_cast<Word>(~Word{0});
  network_sort(codes);
  for (int64_t i = 0; i < count; ++i) items[i].code = codes[i];
}

// The result is in `items` or, if `into_scratch`, in `scratch`, which has room for as many.
template <bool kTotalOrder, typename Item, typename Less>
void merge_sort(Item* items, Item* scratch, int64_t count, bool into_scratch, Less less) {
  constexpr int kNetworkItems = kTotalOrder ? 16 : 8;
  if (count <= kNetworkItems) {
    if constexpr (kTotalOrder) {
      count <= kNetworkItems / 2 ? network_sort_few<kNetworkItems / 2>(items, count)
                                 : network_sort_few<kNetworkItems>(items, count);
    } else {
      insertion_sort(items, count, less);
    }
    if (into_scratch) std::copy(items, items + count, scratch);
    return;
  }
  const int64_t half = count / 2;
  merge_sort<kTotalOrder>(items, scratch, half, !into_scratch, less);
  merge_sort<kTotalOrder>(items + half, scratch + half, count - half, !into_scratch, less);
  const Item* from = into_scratch ? items : scratch;
  merge_runs(from, half, from + half, count - half, into_scratch ? scratch : items, less);
}

// Stable sort by the digits of each item's rank (the word that compares
// as its key does), the least significant digit first. The lowest rank is
// subtracted from all ranks, so that a narrow range takes fewer passes.
template <typename Item, typename Order>
void radix_sort(Item* items, Item* scratch, int64_t count, const Order& order) {
  using Word = typename Order::Word;
  constexpr int kMaxBits = 12;
  Word lowest = order.rank(items[0].code), highest = lowest;
  for (int64_t i = 1; i < count; ++i) {
    const Word rank = order.rank(items[i].code);
    lowest = std::min(lowest, rank);
    highest = std::max(highest, rank);
  }
  const int bits = std::bit_width(static_cast<Word>(highest - lowest));
  const int passes = ceil_div(bits, count < 1 << 9 ? 8 : count < 1 << 12 ? 11 : kMaxBits);
  std::array<int32_t, 1 << kMaxBits> counts;
  Item* from = items;
  Item* to = scratch;
  for (int pass = 0, shift = 0; pass < passes; ++pass) {
    const int digit_bits = ceil_div(bits - shift, passes - pass);
    const Word mask = static_cast<Word>((uint64_t{1} << digit_bits) - 1);
    const auto digit = [&](const Item& item) {
      return static_cast<Word>(static_cast<Word>(order.rank(item.code) - lowest) >> shift) & mask;
    };
    std::fill_n(counts.begin(), int64_t{1} << digit_bits, 0);
    for (int64_t i = 0; i < count; ++i) ++counts[digit(from[i])];
    int32_t next = 0;
    for (int64_t d = 0; d < int64_t{1} << digit_bits; ++d) next += std::exchange(counts[d], next);
    for (int64_t i = 0; i < count; ++i) to[counts[digit(from[i])]++] = from[i];
    std::swap(from, to);
    shift += digit_bits;
  }
  if (from != items) std::copy(from, from + count, items);
}

// A stable sort: by merges if there are few items, else by digits.
template <bool kTotalOrder, typename Item, typename Order>
void sort_entries(Item* items, Item* scratch, int64_t count, const Order& order) {
  if (count < 64 * static_cast<int64_t>(sizeof(typename Order::Word))) {
    merge_sort<kTotalOrder>(items, scratch, count, false, EntryLess<Order>{order});
  } else {
    radix_sort(items, scratch, count, order);
  }
}

}  // namespace mgpu
