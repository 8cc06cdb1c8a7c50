"""Splits a batched kernel call over the devices of an Auto or Explicit mesh.

XLA would gather the operands of an unknown custom call. A Shardy rule says how shardings spread through the call. An
attribute says how many leading axes of every operand are batch axes: XLA's partitioner gives each device its rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from jax_mgpu._src.core.compat import ir


def declare_batch(
    custom_call: ir.Operation, shapes_in: Sequence[Any], shapes_out: Sequence[Any], batch_rank: int
) -> None:
    """Declares the first `batch_rank` axes to be batch axes."""
    attributes: dict[str, Any] = {"num_batch_dims": ir.StringAttr.get(str(batch_rank))}
    custom_call.attributes["mhlo.frontend_attributes"] = ir.DictAttr.get(attributes)
    custom_call.attributes["sdy.sharding_rule"] = ir.Attribute.parse(sharding_rule(shapes_in, shapes_out, batch_rank))


def sharding_rule(shapes_in: Sequence[Any], shapes_out: Sequence[Any], batch_rank: int) -> str:
    """Returns the rule in Shardy's notation: a factor per batch axis, and a factor, never sharded, per other axis."""
    names = itertools.chain("ijklmnopqrstuvwxyz", (f"z_{i}" for i in itertools.count(1)))
    batch = list(itertools.islice(names, batch_rank))
    sizes = dict(zip(batch, shapes_out[0][:batch_rank], strict=True))

    def mapping(shape: Sequence[int]) -> str:
        own = list(itertools.islice(names, len(shape) - batch_rank))
        sizes.update(zip(own, shape[batch_rank:], strict=True))
        return f"[{', '.join([*batch, *own])}]"

    operands, results = (", ".join(map(mapping, shapes)) for shapes in (shapes_in, shapes_out))
    factors = ", ".join(f"{name}={size}" for name, size in sizes.items())
    whole = ", ".join(list(sizes)[batch_rank:])
    replicated = f" need_replication={{{whole}}}" if whole else ""
    return f"#sdy.op_sharding_rule<({operands})->({results}) {{{factors}}}{replicated}>"


def workspace_shape(batch: Sequence[int], devices: int, bytes_of: Callable[[int], int]) -> tuple[int, ...]:
    """Returns the shape of a workspace that suffices however the rows of a batch are split over devices.

    `bytes_of(rows)` is the scratch memory of a call on that many rows. Each row gets the most bytes per row
    that any split needs.
    """
    splits = {(1, devices)}  # rows of a device, and the devices for each part that further axes can be split over
    for size in batch:
        splits = {
            (rows * max(1, -(-size // parts)), left // parts)  # XLA pads an axis to parts of equal sizes
            for rows, left in splits
            for parts in range(1, left + 1)
            if left % parts == 0
        }
    shares = {rows for rows, _ in splits}
    return (*batch, max(-(-bytes_of(share) // share) for share in shares))
