// Splits a stable merge of four sorted runs at position `rank` of its output: finds the number of items of each run
// among the first `rank` items. Each run's answer lies in a window. Comparing samples of all windows bounds the
// samples' positions in the merge, and so narrows the windows (after Varman, Scheufler, Iyer, Ricard, "Merging multiple
// lists on hierarchical-memory multiprocessors", 1991).
#pragma once

#include "algorithm/common.h"

namespace mgpu {

constexpr int kRuns = 4;

// In one step, every sample of every window with several possible answers is judged, then `narrow` is called. Among
// equal items, an earlier run comes first. If runs are not sorted, the answers still lie within the runs and add up to
// `rank`.
template <typename Index, int kSamples>
struct RunSplit {
  Index begin[kRuns], end[kRuns];  // the answer of run j lies in [begin[j], end[j]]
  Index rank;

  MGPU_HOST_DEVICE RunSplit(const Index (&lengths)[kRuns], Index rank) : rank(rank) {
    Index total = 0;
    MGPU_UNROLL
    for (int j = 0; j < kRuns; ++j) total += lengths[j];
    MGPU_UNROLL
    for (int j = 0; j < kRuns; ++j) {
      begin[j] = maximum<Index>(0, rank - (total - lengths[j]));
      end[j] = minimum(rank, lengths[j]);
    }
  }

  // In a window of few items, the first ones are the samples.
  MGPU_HOST_DEVICE static Index sample(Index begin, Index end, int s) {
    const Index width = end - begin;
    const Index step = kSamples == 4 ? (width >> 3) + (width >> 4) + (width >> 6) : width / (kSamples + 1);
    return minimum(begin + (step > 0 ? (s + 1) * step : Index{s}), end - 1);
  }

  // The verdict on the s-th sample of an open window: 1 if it is among the first `rank` items, -1 if it is not, 0 if
  // that is not known yet. `before(j)` is the number of samples of run j that come before this one; for the sample's
  // own run, and in a closed window, it may be any number.
  template <typename Before>
  MGPU_HOST_DEVICE int judge(int run, int s, Before before) const {
    Index inside = 0;   // at least this many items come up to the sample, itself included
    Index outside = 0;  // at most this many items come before the sample
    MGPU_UNROLL
    for (int j = 0; j < kRuns; ++j) {
      const bool own = j == run;
      const int others = before(j);  // by all threads: it may be a shuffle
      const int first = own ? s : others;
      const int through = first + own;
      inside += through == 0 ? begin[j] : sample(begin[j], end[j], through - 1) + 1;
      outside += first == kSamples ? end[j] : maximum(sample(begin[j], end[j], first), begin[j]);
    }
    return inside > rank ? -1 : outside < rank ? 1 : 0;
  }

  // `keys(j, s)` gives the key of sample s of run j. All threads ask for the keys in the same order.
  template <typename Key, typename Keys, typename Less>
  MGPU_HOST_DEVICE int judge(int run, int s, const Key& key, Keys keys, Less less) const {
    return judge(run, s, [&](int j) {
      int before = 0;
      MGPU_UNROLL
      for (int other = 0; other < kSamples; ++other) {
        const Key other_key = keys(j, other);
        const bool first = j < run;  // then an equal sample comes before
        before += less(first ? key : other_key, first ? other_key : key) != first;
      }
      return before;
    });
  }

  MGPU_HOST_DEVICE void narrow(int j, int in, int out) {
    const Index low = in > 0 ? sample(begin[j], end[j], in - 1) + 1 : begin[j];
    const Index high = out > 0 ? sample(begin[j], end[j], kSamples - out) : end[j];
    begin[j] = low;
    end[j] = maximum(low, high);
  }

  // Completes the answers, in `begin`. A window is still open only if some run is not sorted.
  MGPU_HOST_DEVICE void finish(const Index (&lengths)[kRuns]) {
    Index missing = rank;
    MGPU_UNROLL
    for (int j = 0; j < kRuns; ++j) missing -= begin[j];
    MGPU_UNROLL
    for (int j = 0; j < kRuns; ++j) {
      const Index more = clamp<Index>(missing, -begin[j], lengths[j] - begin[j]);
      begin[j] += more;
      missing -= more;
    }
  }
};

}  // namespace mgpu
