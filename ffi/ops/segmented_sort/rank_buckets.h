// Distributes the keys of a long segment to buckets in the order of their ranks (unsigned words in the order of the
// keys).
#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include "algorithm/segments.h"
#include "cpu/entries.h"
#include "runtime/executor.h"

namespace mgpu {

// Ranks are counted in bins of equal width. Neighbouring bins are joined to buckets of about the same number of keys.
// Keys of one bin stay together, however many they are.
template <typename Order, typename Payload>
class RankBuckets {
  using Buffer = EntryBuffer<Order, Payload>;
  using Word = typename Order::Word;
  static constexpr int kBins = 1 << 12;  // 32 KB of counters
  // Smaller buckets are sorted no faster.
  static constexpr int64_t kMinKeys = 1 << 14;
  // If some bins have many more keys than others, there may be about twice as many buckets.
  static constexpr int kBuckets = 256;
  static constexpr int kSamples = 1 << 10;

 public:
  RankBuckets(const Buffer& from, Range<int64_t> segment) : from_(from), segment_(segment) {
    Word lowest = std::numeric_limits<Word>::max(), highest = 0;
    for (int64_t i = 0; i < kSamples; ++i) {
      const Word rank = this->rank(segment.begin + i * segment.size() / kSamples);
      lowest = std::min(lowest, rank);
      highest = std::max(highest, rank);
    }
    lowest_ = lowest;
    while (((uint64_t{highest} - lowest) >> shift_) >= kBins) ++shift_;
  }

  // Moves the keys to buckets, each in input order. Adds the starts of all buckets but the first to `heads`.
  void deal(cpu::Executor& executor, const Buffer& to, std::vector<int64_t>& heads) const {
    const int64_t tasks = 4 * executor.concurrency();
    std::vector<std::vector<int64_t>> next(tasks);  // the counts of bins, then the places of the buckets' next keys
    parallel_for(executor, tasks, [&](int64_t task) {
      next[task].assign(kBins, 0);
      const Range<int64_t> part = this->part(task, tasks);
      for (int64_t i = part.begin; i < part.end; ++i) ++next[task][bin(rank(i))];
    });
    const std::vector<uint16_t> buckets = join_bins(next, heads);
    parallel_for(executor, tasks, [&](int64_t task) {
      const Range<int64_t> part = this->part(task, tasks);
      int64_t* const places = next[task].data();
      for (int64_t i = part.begin; i < part.end; ++i) {
        const auto item = from_.load(i);
        to.store(places[buckets[bin(from_.order.rank(item.code))]]++, item);
      }
    });
  }

 private:
  Word rank(int64_t i) const { return from_.order.rank(from_.load(i).code); }

  // The first and the last bin take keys beyond the samples.
  int bin(Word rank) const {
    const uint64_t above = rank < lowest_ ? 0 : rank - lowest_;
    return static_cast<int>(std::min<uint64_t>(above >> shift_, kBins - 1));
  }

  Range<int64_t> part(int64_t task, int64_t tasks) const {
    return {segment_.begin + segment_.size() * task / tasks, segment_.begin + segment_.size() * (task + 1) / tasks};
  }

  // Replaces each task's counts of bins by its first places in buckets. Returns the bucket of each bin.
  std::vector<uint16_t> join_bins(std::vector<std::vector<int64_t>>& next, std::vector<int64_t>& heads) const {
    const int64_t keys = std::max(kMinKeys, ceil_div<int64_t>(segment_.size(), kBuckets));
    std::vector<uint16_t> buckets(kBins);
    std::vector<std::vector<int64_t>> counts(next.size(), std::vector<int64_t>(1));
    int64_t in_bucket = 0;
    for (int bin = 0; bin < kBins; ++bin) {
      int64_t in_bin = 0;
      for (const auto& count : next) in_bin += count[bin];
      if (in_bucket > 0 && in_bucket + in_bin > keys) {
        for (auto& count : counts) count.push_back(0);
        in_bucket = 0;
      }
      in_bucket += in_bin;
      for (size_t task = 0; task < next.size(); ++task) counts[task].back() += next[task][bin];
      buckets[bin] = static_cast<uint16_t>(counts[0].size() - 1);
    }
    int64_t place = segment_.begin;
    for (size_t bucket = 0; bucket < counts[0].size(); ++bucket) {
      if (bucket > 0) heads.push_back(place);
      for (size_t task = 0; task < next.size(); ++task) {
        next[task][bucket] = place;
        place += counts[task][bucket];
      }
    }
    return buckets;
  }

  const Buffer& from_;
  Range<int64_t> segment_;
  Word lowest_;
  int shift_ = 0;
};

}  // namespace mgpu
