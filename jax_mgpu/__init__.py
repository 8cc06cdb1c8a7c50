"""Sorting, merging, searching and load balancing of ragged data in JAX, on CPU and CUDA."""

import pkgutil as _pkgutil

__version__ = "0.1.0"

# In the root of a clone Python finds this folder first; the libraries of an installed package lie in site-packages.
__path__ = _pkgutil.extend_path(__path__, __name__)

# The public names of a family are `__all__` of its module; all public names are those imported here.
from jax_mgpu._src.align import *
from jax_mgpu._src.bulk import *
from jax_mgpu._src.counts import *
from jax_mgpu._src.explain import *
from jax_mgpu._src.groups import *
from jax_mgpu._src.intervals import *
from jax_mgpu._src.join import *
from jax_mgpu._src.library import backends as backends
from jax_mgpu._src.library import has_cuda as has_cuda
from jax_mgpu._src.load_balance import *
from jax_mgpu._src.merge import *
from jax_mgpu._src.mergesort import *
from jax_mgpu._src.preconditions import checks as checks
from jax_mgpu._src.primitive import expect_compiled_names as _expect_compiled_names
from jax_mgpu._src.publish import publish as _publish
from jax_mgpu._src.ragged import *
from jax_mgpu._src.ragged_type import *
from jax_mgpu._src.ranks import *
from jax_mgpu._src.reduce import *
from jax_mgpu._src.reduce_by_id import *
from jax_mgpu._src.scan import *
from jax_mgpu._src.segmented_softmax import *
from jax_mgpu._src.segmented_sort import *
from jax_mgpu._src.select import *
from jax_mgpu._src.sets import *
from jax_mgpu._src.sort import *
from jax_mgpu._src.sorted_search import *
from jax_mgpu._src.tables import *

__all__ = [name for name in sorted(globals()) if not name.startswith("_")]

_expect_compiled_names()
for _name in __all__:
    _publish(globals()[_name])


def __dir__() -> list[str]:
    """The public names alone: the modules that Python puts beside them are not part of the interface."""
    return __all__
