"""Sorts, joins, scans and reductions for JAX that are fast on ragged data, on CUDA and CPUs."""

import pkgutil as _pkgutil

# In a clone's root, Python finds this folder before the installed package, which has the libraries of kernels.
__path__ = _pkgutil.extend_path(__path__, __name__)

# A family's public names are `__all__` of its module.
from jax_mgpu._src.arguments.preconditions import checks as checks
from jax_mgpu._src.core.explain import *
from jax_mgpu._src.core.library import backends as backends
from jax_mgpu._src.core.library import export_checks as export_checks
from jax_mgpu._src.core.library import has_cuda as has_cuda
from jax_mgpu._src.core.operation import expect_compiled_names as _expect_compiled_names
from jax_mgpu._src.core.publish import publish as _publish
from jax_mgpu._src.core.version import __version__ as __version__
from jax_mgpu._src.ops.align import *
from jax_mgpu._src.ops.bulk import *
from jax_mgpu._src.ops.experts import *
from jax_mgpu._src.ops.groups import *
from jax_mgpu._src.ops.histograms import *
from jax_mgpu._src.ops.interval_reduce import *
from jax_mgpu._src.ops.intervals import *
from jax_mgpu._src.ops.join import *
from jax_mgpu._src.ops.load_balance import *
from jax_mgpu._src.ops.merge import *
from jax_mgpu._src.ops.mergesort import *
from jax_mgpu._src.ops.ragged import *
from jax_mgpu._src.ops.ragged_type import *
from jax_mgpu._src.ops.ranks import *
from jax_mgpu._src.ops.reduce import *
from jax_mgpu._src.ops.reduce_by_id import *
from jax_mgpu._src.ops.samples import *
from jax_mgpu._src.ops.scan import *
from jax_mgpu._src.ops.scan_by_key import *
from jax_mgpu._src.ops.segmented_softmax import *
from jax_mgpu._src.ops.segmented_sort import *
from jax_mgpu._src.ops.segments import *
from jax_mgpu._src.ops.select import *
from jax_mgpu._src.ops.sets import *
from jax_mgpu._src.ops.softmax_by_id import *
from jax_mgpu._src.ops.sort import *
from jax_mgpu._src.ops.sorted_search import *
from jax_mgpu._src.ops.sparse import *
from jax_mgpu._src.ops.tables import *

__all__ = [name for name in sorted(globals()) if not name.startswith("_")]

_expect_compiled_names()
for _name in __all__:
    _publish(globals()[_name])


def __dir__() -> list[str]:
    """Hides the modules that Python puts beside the public names."""
    return __all__
