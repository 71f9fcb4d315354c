"""Sweeps: one function over a grid of settings and many seeds, resumable.

A setting is an instance of a frozen dataclass. Fields named as traced become inputs of the compiled
program, so that settings which differ in numbers of these fields alone share one program and run
side by side, settings × seeds; all other fields are static and are looped over. The runs come in
chunks that bound memory and are kept as `chunks` keeps them.

Every setting has noise of its own: its key is folded with the digest of the setting, so that
results of different settings are independent and do not depend on what else is in the grid.
"""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from dd_jax import checks
from dd_jax.errors import InputError
from dd_jax.sweeps import chunks, store
from dd_jax.sweeps.chunks import Stream

# Words of 32 bits of a setting's digest that go into its key.
_WORDS = 2


def grid(base: Any, **axes: Sequence[Any]) -> list[Any]:
    """Every combination of the axes' values, as copies of a frozen dataclass.

    Args:
        base: the dataclass instance whose other fields are kept.
        **axes: field name = values; those of the last axis vary fastest.

    Raises:
        InputError: a name that is no field's, an axis without values or with one of them twice.
    """
    names = {field.name for field in dataclasses.fields(base)}
    for name, values in axes.items():
        if name not in names:
            raise InputError(
                f"{name!r} is no field of {type(base).__name__}; "
                f"choose one of {', '.join(sorted(names))}."
            )
        if not values or len(set(values)) < len(values):
            raise InputError(
                f"{name} = {list(values)}; give at least one value, none of them twice."
            )
    return [
        dataclasses.replace(base, **dict(zip(axes, values, strict=True)))
        for values in itertools.product(*axes.values())
    ]


class Group(NamedTuple):
    """Settings that share one program.

    Attributes:
        places: their numbers in the list of settings.
        static: one of them, whose static fields are those of all.
        traced: traced fields of the group, in the order of `values`.
    """

    places: list[int]
    static: Any
    traced: tuple[str, ...]


def groups(settings: Sequence[Any], traced: Sequence[str]) -> list[Group]:
    """The settings by their static part; a traced field without a number (None) is static there."""
    found: dict[str, Group] = {}
    for place, setting in enumerate(settings):
        numbers = tuple(name for name in traced if _is_number(getattr(setting, name)))
        fixed = {k: v for k, v in dataclasses.asdict(setting).items() if k not in numbers}
        group = found.setdefault(store.digest_of_json(fixed), Group([], setting, numbers))
        group.places.append(place)
    return list(found.values())


def run(
    stream: Stream,
    fn: Callable[..., PyTree],
    key: Array,
    num_seeds: int,
    settings: Sequence[Any],
    *,
    traced: Sequence[str],
    arguments: Callable[[Any], tuple] = lambda setting: (),
    at_once: int | None = None,
    progress: chunks.Progress | None = None,
) -> list[PyTree]:
    """`fn(key, setting, *arguments(setting))` for every setting and seed.

    Args:
        stream: where chunks are kept; `stream.chunk` is how many runs (settings × seeds) are in
            memory at once.
        fn: pure; its `setting` has arrays in the traced fields, so a check of these fields in the
            dataclass must let tracers pass.
        key: base key. num_seeds: of every setting.
        settings: see `grid`; instances of one frozen dataclass of JSON values.
        traced: fields whose numbers become inputs of the compiled program.
        arguments: pytrees that depend on static fields alone (a database, …), made once per group;
            where the stream has a mesh, split a database's rows with `dd.sharding.spread`.
        at_once: settings side by side, as many as the chunk holds by default. With loops whose
            length is traced all of them run as long as the longest: 1 avoids that.
        progress: called with (runs done, all runs) after each chunk.

    Returns:
        For every setting its outputs as NumPy arrays, with a leading axis of seeds.

    Raises:
        InputError: no settings or one of them twice, a traced name that is no field's, or what
            `chunks.over_seeds` refuses.
    """
    _check(settings, traced, stream.chunk, at_once)
    results: list[PyTree] = [None] * len(settings)
    done = 0
    for group in groups(settings, traced):
        batched, args = _batched(fn, group), arguments(group.static)
        for block in _blocks(group.places, min(at_once or stream.chunk, stream.chunk)):
            fresh = len(set(block))

            def report(seeds, _, before=done, fresh=fresh):
                if progress is not None:
                    progress(before + fresh * seeds, len(settings) * num_seeds)

            chosen = [settings[place] for place in block]
            outputs = chunks.over_seeds(
                _stream_of(stream, group, chosen, num_seeds),
                batched,
                key,
                num_seeds,
                _words(chosen),
                {name: _column(chosen, name, settings) for name in group.traced},
                *args,
                progress=report,
            )
            for number, place in enumerate(block):
                results[place] = jax.tree.map(lambda leaf, k=number: leaf[:, k], outputs)
            done += fresh * num_seeds
    return results


def _batched(fn: Callable[..., PyTree], group: Group) -> Callable[..., PyTree]:
    """`fn` over a block of settings, for one seed; numbers that depend on no seed stay shared."""

    def one(key, words, values, *args):
        for word in words:
            key = jax.random.fold_in(key, word)
        return fn(key, dataclasses.replace(group.static, **values), *args)

    def block(key, words, values, *args):
        axes = (None, 0, 0) + (None,) * len(args)
        return jax.vmap(one, in_axes=axes)(key, words, values, *args)

    return block


def _blocks(places: list[int], size: int) -> list[list[int]]:
    """Blocks of one length, at most `size`: the last one is filled up with the last place."""
    count = -(-len(places) // size)
    length = -(-len(places) // count)
    padded = places + places[-1:] * (count * length - len(places))
    return [padded[first : first + length] for first in range(0, count * length, length)]


def _stream_of(stream: Stream, group: Group, chosen: list, num_seeds: int) -> Stream:
    """The stream of one block: its settings are part of what the manifest says."""
    described = {"settings": [dataclasses.asdict(setting) for setting in chosen]}
    return stream._replace(
        config={**stream.config, **described, "traced": list(group.traced)},
        chunk=min(max(1, stream.chunk // len(chosen)), num_seeds),
    )


def _words(chosen: list) -> Array:
    """Two words of every setting's digest, (settings, 2)."""
    digests = [store.digest_of_json(dataclasses.asdict(setting)) for setting in chosen]
    words = [[int(found[8 * k : 8 * k + 8], 16) for k in range(_WORDS)] for found in digests]
    return jnp.asarray(np.array(words, np.uint32))


def _column(chosen: list, name: str, settings: Sequence[Any]) -> Array:
    """A traced field of the chosen settings; whole numbers only if they are so in all settings."""
    whole = all(isinstance(getattr(setting, name), int | None) for setting in settings)
    kind = int if whole else float
    return jnp.asarray([kind(getattr(setting, name)) for setting in chosen])


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check(settings, traced, chunk, at_once) -> None:
    if not settings:
        raise InputError("there is no setting to run; give at least one.")
    names = {field.name for field in dataclasses.fields(settings[0])}
    for name in traced:
        if name not in names:
            raise InputError(f"{name!r} cannot be traced: it is no field of the settings.")
    if len({store.digest_of_json(dataclasses.asdict(setting)) for setting in settings}) < len(
        settings
    ):
        raise InputError("a setting is given twice; its runs would be the same, so drop one.")
    checks.whole("chunk", chunk, least=1)
    if at_once is not None:
        checks.whole("at_once", at_once, least=1)
