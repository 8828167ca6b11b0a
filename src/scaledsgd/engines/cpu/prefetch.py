"""What Numba does not offer: to fetch ahead, and to copy a few bytes at once."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, overload, register_jitable

from ...core.linalg import LINE

# So many lines of the cache are on their way at a time, a few more than a core has room for, and
# never those of more than so many samples: from 8 to 16 it makes no difference.
_UNDERWAY, _AHEAD = 48, 12

_LOCAL = 3  # of LLVM's degrees of locality the highest: bring it into all levels of the cache


def known(generate, kind: str = "") -> Any:
    """An intrinsic with the same identity in every process. With one of its own, what is compiled
    with it would never be found on disk again."""
    made: Any = intrinsic(generate)
    made._set_uuid(f"{generate.__module__}.{generate.__qualname__}{kind}")
    return made


def address(context, builder, signature, arguments, array: int, places: range):
    """Where an item of an argument lies: the arguments at `places` say which."""
    held = context.make_array(signature.args[array])(context, builder, arguments[array])
    begin = builder.ptrtoint(held.data, cgutils.intp_t)
    strides = cgutils.unpack_tuple(builder, held.strides)
    for place, stride in zip(places, strides, strict=False):
        at = context.cast(builder, arguments[place], signature.args[place], types.intp)
        begin = builder.add(begin, builder.mul(at, stride))
    return builder.inttoptr(begin, cgutils.voidptr_t)


def _prefetch(typing_context, array, row, column, write):
    """Begin to load array[row, column] (of a list, array[row]), for writing if `write`, a literal,
    is 1. Any place will do, whether or not it exists."""
    if not isinstance(array, types.Array) or not isinstance(write, types.IntegerLiteral):
        return None

    def generate(context, builder, signature, arguments):
        pointer = address(context, builder, signature, arguments, 0, range(1, 3))
        word, data = cgutils.int32_t, 1  # rather than instructions
        hint = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, word, word, word])
        function = cgutils.get_or_insert_function(builder.module, hint, "llvm.prefetch.p0")
        how = word(signature.args[3].literal_value), word(_LOCAL), word(data)
        builder.call(function, [pointer, *how])
        return context.get_dummy_value()

    return types.void(array, row, column, write), generate


def _move(typing_context, out, t, array, s, count):
    """out[t] = array[s], rows of `count`, a literal, items side by side."""
    if not isinstance(array, types.Array) or not isinstance(count, types.IntegerLiteral):
        return None
    if array.dtype != out.dtype:
        return None

    def generate(context, builder, signature, arguments):
        into = address(context, builder, signature, arguments, 0, range(1, 2))
        start = address(context, builder, signature, arguments, 2, range(3, 4))
        item = context.get_abi_sizeof(context.get_data_type(array.dtype))
        items = cgutils.intp_t(signature.args[4].literal_value)
        cgutils.raw_memcpy(builder, into, start, items, item)
        return context.get_dummy_value()

    return types.void(out, t, array, s, count), generate


prefetch: Any = known(_prefetch)
move: Any = known(_move)


def a_line(X):
    """Columns in a line of the cache."""
    return LINE // X.itemsize


@overload(a_line)
def _a_line(X):
    columns = LINE * 8 // X.dtype.bitwidth  # a constant: a division would cost more than a step
    return lambda X: columns


@register_jitable
def ahead(X, arity):
    """How many samples before their turn rows are fetched."""
    lines = arity * (1 + (X.shape[1] - 1) // a_line(X))
    return max(3, min(_AHEAD, _UNDERWAY // lines))


@register_jitable(forceinline=True)  # a call would take longer than what it does
def fetch(X, index, t, width, triplet):
    """Begin to load the rows that a sample names, of up to `width` columns if that is not 0."""
    for q in range(0, width or X.shape[1], a_line(X)):
        prefetch(X, index[t, 0], q, 0)
        prefetch(X, index[t, 1], q, 0)
        if triplet:
            prefetch(X, index[t, 2], q, 0)
