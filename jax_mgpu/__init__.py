"""Sorting, merging, searching and load balancing of ragged data in JAX, on CPU and CUDA."""

import pkgutil

__version__ = "0.1.0"

# In the root of a clone Python finds this folder first; the libraries of an installed package lie in site-packages.
__path__ = pkgutil.extend_path(__path__, __name__)

from jax_mgpu._src.align import Aligned, align
from jax_mgpu._src.annotations import document_fields
from jax_mgpu._src.bulk import bulk_insert, bulk_remove
from jax_mgpu._src.counts import bincount, histogram
from jax_mgpu._src.groups import group_by, rank, segmented_shift
from jax_mgpu._src.intervals import interval_expand, interval_gather, interval_move, interval_scatter
from jax_mgpu._src.join import JoinedColumns, JoinResult, join, join_columns
from jax_mgpu._src.library import backends, has_cuda
from jax_mgpu._src.load_balance import load_balance_search
from jax_mgpu._src.merge import merge
from jax_mgpu._src.mergesort import locality_sort, locality_sort_indices, mergesort, mergesort_indices
from jax_mgpu._src.preconditions import checks
from jax_mgpu._src.primitive import expect_compiled_names
from jax_mgpu._src.ragged import (
    from_dense,
    segment_ids,
    take_segments,
    to_dense,
)
from jax_mgpu._src.ragged_type import Ragged
from jax_mgpu._src.ranks import TopK, quantile, segmented_quantile, segmented_top_k, top_k
from jax_mgpu._src.reduce import reduce, reduce_by_key, segmented_reduce
from jax_mgpu._src.reduce_by_id import reduce_by_id
from jax_mgpu._src.scan import scan, segmented_scan
from jax_mgpu._src.segmented_softmax import segmented_log_softmax, segmented_softmax
from jax_mgpu._src.segmented_sort import segmented_sort, segmented_sort_indices
from jax_mgpu._src.select import Runs, Selection, partition, run_starts, select, select_indices, unique
from jax_mgpu._src.sets import SetResult, set_difference, set_intersection, set_symmetric_difference, set_union
from jax_mgpu._src.sort import argsort, sort
from jax_mgpu._src.sorted_search import SortedMatch, sorted_equal_count, sorted_match, sorted_search
from jax_mgpu._src.tables import asof_join, lookup

__all__ = [
    "Aligned",
    "JoinResult",
    "JoinedColumns",
    "Ragged",
    "Runs",
    "Selection",
    "SetResult",
    "SortedMatch",
    "TopK",
    "align",
    "argsort",
    "asof_join",
    "backends",
    "bincount",
    "bulk_insert",
    "bulk_remove",
    "checks",
    "from_dense",
    "group_by",
    "has_cuda",
    "histogram",
    "interval_expand",
    "interval_gather",
    "interval_move",
    "interval_scatter",
    "join",
    "join_columns",
    "load_balance_search",
    "locality_sort",
    "locality_sort_indices",
    "lookup",
    "merge",
    "mergesort",
    "mergesort_indices",
    "partition",
    "quantile",
    "rank",
    "reduce",
    "reduce_by_id",
    "reduce_by_key",
    "run_starts",
    "scan",
    "segment_ids",
    "segmented_log_softmax",
    "segmented_quantile",
    "segmented_reduce",
    "segmented_scan",
    "segmented_shift",
    "segmented_softmax",
    "segmented_sort",
    "segmented_sort_indices",
    "segmented_top_k",
    "select",
    "select_indices",
    "set_difference",
    "set_intersection",
    "set_symmetric_difference",
    "set_union",
    "sort",
    "sorted_equal_count",
    "sorted_match",
    "sorted_search",
    "take_segments",
    "to_dense",
    "top_k",
    "unique",
]

expect_compiled_names()
for _result in (Aligned, JoinResult, JoinedColumns, Runs, Selection, SetResult, SortedMatch, TopK):
    document_fields(_result)


def __dir__() -> list[str]:
    """The public names alone: the modules that Python puts beside them are not part of the interface."""
    return __all__
