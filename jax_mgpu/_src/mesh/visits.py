"""Searches among keys sorted over a mesh axis: needles stay in place, or visit the device of their place."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from jax_mgpu._src.arguments.counts import live_mask
from jax_mgpu._src.arguments.values import take_or_fill
from jax_mgpu._src.core.compat import fori_loop, stack
from jax_mgpu._src.mesh.axis import Axis
from jax_mgpu._src.mesh.exchange import Parts, by_platform, everywhere, send
from jax_mgpu._src.mesh.splitters import Sorted, Words, equal, order_codes, search
from jax_mgpu._src.ops.sorted_search import _search, search_in_any_order

# In the first round, a device receives at most about 1 / FEW as many visitors as it has slots; in others, 1 / SHARE.
FEW, SHARE = 128, 4


class SortedPair:
    """Two arrays, each sorted over all devices, and the place of each key of one among the other's.

    Devices that share their memory gather the other array and search in it; keys to look up may then have any order.
    Elsewhere, the keys with places on another device form a run. Each run visits that device in rounds of bounded size,
    and places come back.
    """

    def __init__(self, axis: Axis, keys: Sequence[jax.Array], live: Sequence[jax.Array]):
        self.axis, self.live, self.dtype = axis, live, live[0].dtype
        self.keys = [jax.lax.stop_gradient(x) for x in keys]
        self._counts = axis.gather(stack(live))  # [devices, 2]
        self._found: dict[int, list[jax.Array]] = {}

    def cut(self, side: int, right: bool) -> jax.Array:
        """Returns, for each key here, how many of the other array are less (if `right`, no greater); -1 if dead."""
        return self._places(side, [right])[0]

    def equals(self, side: int) -> list[jax.Array]:
        """Returns, for each key here, how many of the other array are less, -1 if dead, and how many equal it."""
        if side not in self._found:
            self._found[side] = self._places(side, [False, True])
        return self._found[side]

    def _places(self, side: int, rights: list[bool]) -> list[jax.Array]:
        (n,) = self.keys[side].shape
        is_live = live_mask(n, self.live[side].reshape(1))
        if n == 0 or self.keys[1 - side].shape[0] == 0:
            nothing = jnp.zeros((n,), self.dtype)
            return [jnp.where(is_live, nothing, -1), nothing][: len(rights)]
        forms = (functools.partial(form, side, rights, is_live) for form in (self._gathered, self._visiting))
        return by_platform(self.axis, *forms)()

    def _gathered(self, side: int, rights: list[bool], is_live: jax.Array) -> list[jax.Array]:
        """Where devices share their memory: gathers the other array on all devices."""
        axis = self.axis
        keys, _, total = everywhere(axis, self.keys[1 - side], self._counts[:, 1 - side])
        operands = self.keys[side], keys, self.live[side].reshape(1), total
        place, *upper = (search_in_any_order(operands, right=right).astype(self.dtype) for right in rights)
        found = [jnp.where(is_live, place, -1), *(jnp.where(is_live, x - place, 0) for x in upper)]
        return [axis.varying(x) for x in found]

    def _visiting(self, side: int, rights: list[bool], is_live: jax.Array) -> list[jax.Array]:
        axis, keys, (n,) = self.axis, self.keys[side], self.keys[side].shape
        counts, other_live = self._counts[:, 1 - side], self.live[1 - side]

        def bounds(keys: jax.Array, live: jax.Array) -> list[jax.Array]:
            operands = keys, self.keys[1 - side], live.reshape(1), self.live[1 - side].reshape(1)
            return [_search.run(operands, right=right)[0].astype(self.dtype) for right in rights]

        def answers_of(keys: jax.Array, place: jax.Array, *upper: jax.Array) -> list[jax.Array]:
            if later is None:
                return [place]
            return [place, upper[0] - place + jnp.where(equal(order_codes(keys, False), last), later, 0)]

        # The search among own keys comes first: meanwhile, the host launches the small steps that follow.
        other_live, *here = jax.lax.optimization_barrier((other_live, *bounds(keys, self.live[side])))
        last, ends, later = self._runs(side, rights, other_live)

        every = axis.gather(ends)  # [from, to]
        begins = jnp.concatenate([jnp.zeros_like(every[:, :1]), every[:, :-1]], axis=1)
        every = jnp.where(axis.devices[:, None] == axis.devices, begins, every)
        begin_here = axis.begin(counts)

        def visit(done: jax.Array | int, chunk: int, places: list[jax.Array]) -> list[jax.Array]:
            """Sends the next keys, `chunk` to each device, and puts their answers in their places."""
            begin = jnp.minimum(begins + done, every)
            parts = Parts(axis, begin, jnp.minimum(every - begin, chunk), axis.size * chunk)
            visitors = send(parts, keys, axis.varying(jnp.zeros((parts.slots,), keys.dtype)))
            place, *number = answers_of(visitors, *bounds(visitors, parts.total))
            back = parts.back(chunk)
            nothing = axis.varying(jnp.zeros((parts.slots,), self.dtype))
            answers = [send(back, x, nothing) for x in (place + begin_here, *number)]
            begin, size, slot = axis.own(begin), axis.own(parts.sizes), jnp.arange(n, dtype=self.dtype)
            source = axis.varying(jnp.full_like(slot, -1))
            for device in range(axis.size):
                rank = slot - begin[device]
                source = jnp.where((rank >= 0) & (rank < size[device]), rank + device * chunk, source)
            return [
                jnp.where(source >= 0, x.at[source].get(mode="clip"), y) for x, y in zip(answers, places, strict=True)
            ]

        slot = jnp.arange(n, dtype=self.dtype)
        passed: jax.Array | int = 0  # for each key, the keys on devices whose runs end before it
        for device in range(axis.size):
            is_behind = (slot >= ends[device]) & (axis.index != device)
            passed += jnp.where(is_behind, counts[device], 0)
        place, *number = answers_of(keys, *here)
        found = [jnp.where(is_live, place + passed, -1), *(jnp.where(is_live, x, 0) for x in number)]
        # The first round is outside of the loop, so that the host need not wait for it.
        few, chunk = (max(1, -(-n // (share * axis.size))) for share in (FEW, SHARE))
        found = [axis.varying(x) for x in visit(0, few, found)]
        # The number of rounds is equal on all devices, which must all enter a round or none.
        rounds = -(-jnp.maximum(jnp.max(every - begins) - few, 0) // chunk)
        return fori_loop(0, rounds, lambda done, x: visit(few + jnp.asarray(done, self.dtype) * chunk, chunk, x), found)

    def _runs(self, side: int, rights: list[bool], live: jax.Array) -> tuple[Words, jax.Array, jax.Array | None]:
        """Returns this device's last key of the other array, and where the run of keys with places on each device ends.

        The third result, None for one entry of `rights`, says how many items on later devices equal that last key.

        A run begins where the previous one ends. A key's place is on the first device whose last key is not less or, if
        `rights` is `[True]`, greater.
        """
        axis, other = self.axis, self.keys[1 - side]
        last = take_or_fill(other, live.reshape(1) - 1)  # without keys, any: its run is empty
        lasts = order_codes(axis.gather(last).reshape(1, -1), False)
        sequence = Sorted(self.keys[side], jnp.zeros_like(self.live[side]), self.live[side])
        found = search(sequence, lasts, after_equals=rights != [True])[0]
        is_there, earlier = self._counts[:, 1 - side] > 0, axis.devices <= axis.devices[:, None]
        ends = jnp.max(jnp.where(earlier & is_there, found, 0), axis=1)
        if len(rights) == 1:
            return order_codes(last, False), ends, None
        own = Sorted(other, jnp.zeros_like(live), live)
        low, high = (search(own, lasts, after_equals=after)[0] for after in (False, True))
        return order_codes(last, False), ends, axis.own(axis.sum(jnp.where(axis.devices < axis.index, high - low, 0)))


def code_at(codes: Words, live: jax.Array, position: jax.Array, missing: int = 0) -> list[jax.Array]:
    """Returns the code at a position; words of `missing` if no item is live."""
    words = [take_or_fill(x, position.reshape(1))[0] for x in codes]
    return [jnp.where(live > 0, x, jnp.asarray(missing & jnp.iinfo(x.dtype).max, x.dtype)) for x in words]
