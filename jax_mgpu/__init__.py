"""Sorting, merging, searching and load balancing of ragged data in JAX, on CPU and CUDA."""

import pkgutil

__version__ = "0.1.0"

# In the root of a clone Python finds this folder first; the compiled modules of an installed package lie in
# site-packages.
__path__ = pkgutil.extend_path(__path__, __name__)

from jax_mgpu._src.bulk import bulk_insert, bulk_remove
from jax_mgpu._src.intervals import interval_expand, interval_gather, interval_move, interval_scatter
from jax_mgpu._src.join import JoinedColumns, JoinResult, join, join_columns
from jax_mgpu._src.library import backends, has_cuda
from jax_mgpu._src.load_balance import load_balance_search
from jax_mgpu._src.merge import merge
from jax_mgpu._src.mergesort import locality_sort, locality_sort_indices, mergesort, mergesort_indices
from jax_mgpu._src.preconditions import checks
from jax_mgpu._src.primitive import expect_compiled_names
from jax_mgpu._src.reduce import reduce, reduce_by_key, segmented_reduce
from jax_mgpu._src.scan import scan, segmented_scan
from jax_mgpu._src.segmented_sort import segmented_sort, segmented_sort_indices
from jax_mgpu._src.sets import SetResult, set_difference, set_intersection, set_symmetric_difference, set_union
from jax_mgpu._src.sorted_search import SortedMatch, sorted_equal_count, sorted_match, sorted_search

__all__ = [
    "JoinResult",
    "JoinedColumns",
    "SetResult",
    "SortedMatch",
    "backends",
    "bulk_insert",
    "bulk_remove",
    "checks",
    "has_cuda",
    "interval_expand",
    "interval_gather",
    "interval_move",
    "interval_scatter",
    "join",
    "join_columns",
    "load_balance_search",
    "locality_sort",
    "locality_sort_indices",
    "merge",
    "mergesort",
    "mergesort_indices",
    "reduce",
    "reduce_by_key",
    "scan",
    "segmented_reduce",
    "segmented_scan",
    "segmented_sort",
    "segmented_sort_indices",
    "set_difference",
    "set_intersection",
    "set_symmetric_difference",
    "set_union",
    "sorted_equal_count",
    "sorted_match",
    "sorted_search",
]

expect_compiled_names()


def __dir__() -> list[str]:
    """The public names alone: the modules that Python puts beside them are no part of the interface."""
    return __all__
