"""What Numba does not offer, in LLVM's own terms: numbers side by side in a register, to fetch
ahead, and to copy a few bytes at once. Rows are loaded, combined and stored a register at a time,
which a compiler does by itself only where no two rows can be the same.

Nobody else imports what Numba and llvmlite keep to themselves: engines/__init__.py has the list.
Where one of them has changed, plain.py takes over.
"""

from __future__ import annotations

import operator
from platform import machine
from typing import Any

import numba
import numpy as np
from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, overload, register_model

from ...core.compiled import njit
from .plain import FAST

# Of the machine that is compiled for, unless Numba was told another one.
_TOLD: Any = numba.config  # pyright: ignore[reportPrivateImportUsage]
_TOLD = _TOLD.CPU_NAME, _TOLD.CPU_FEATURES
_HAS = {} if any(_TOLD) else binding.get_host_cpu_features()

# Columns that are worked on at once: sixteen floats are a line of the cache. Rows that fit a width
# get the smallest that holds them, and are not loaded twice: at 17 to 64 columns a step takes half
# to two thirds of the time. A width is a number of columns: LLVM makes of it as many of the
# machine's registers as it takes, and of those only AVX-512 has enough for 64. Wider rows are taken
# a PIECE at a time.
WIDTHS = (4, 8, 16, 32, 64) if _HAS.get("avx512f") else (4, 8, 16, 32)
PIECE = 16

_MOMENT = 20  # microseconds
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


class Lanes(types.Type):
    """So many numbers of a type."""

    def __init__(self, dtype: types.Float, width: int):
        self.dtype, self.width = dtype, width
        super().__init__(name=f"Lanes({dtype}, {width})")

    @property
    def real(self) -> ir.Type:
        return ir.FloatType() if self.dtype.bitwidth == 32 else ir.DoubleType()

    @property
    def vector(self) -> ir.VectorType:
        return ir.VectorType(self.real, self.width)

    def named(self, operation: str) -> str:
        """What LLVM calls an operation on this type."""
        return f"llvm.{operation}.v{self.width}f{self.dtype.bitwidth}"


@register_model(Lanes)
class _Model(models.PrimitiveModel):
    def __init__(self, manager, lanes: Lanes):
        super().__init__(manager, lanes, lanes.vector)


def _spread(builder, value, vector: ir.VectorType):
    """A number in all places."""
    nowhere, first = ir.Constant(vector, ir.Undefined), cgutils.int32_t(0)
    one = builder.insert_element(nowhere, value, first)
    zeros = ir.Constant(ir.VectorType(cgutils.int32_t, vector.count), [0] * vector.count)
    return builder.shuffle_vector(one, nowhere, zeros)


def _arithmetic(function, instruction: str) -> None:
    """Make an operator work on lanes, and on lanes and a number."""

    def emit(typing_context, a, b):
        lanes = a if isinstance(a, Lanes) else b

        def generate(context, builder, signature, arguments):
            both = []
            for kind, value in zip(signature.args, arguments, strict=True):
                if not isinstance(kind, Lanes):
                    number = context.cast(builder, value, kind, lanes.dtype)
                    value = _spread(builder, number, lanes.vector)
                both.append(value)
            return getattr(builder, instruction)(*both, flags=FAST)

        return lanes(a, b), generate

    compiled: Any = known(emit, instruction)

    @overload(function)
    def operate(a, b):
        if isinstance(a, Lanes) or isinstance(b, Lanes):
            return lambda a, b: compiled(a, b)
        return None


_arithmetic(operator.add, "fadd")
_arithmetic(operator.sub, "fsub")
_arithmetic(operator.mul, "fmul")
_arithmetic(operator.truediv, "fdiv")


def _first(context, builder, left, kind, width: int):
    """A mask of the places before `left`."""
    mask = ir.VectorType(cgutils.int32_t, width)
    limit = _spread(builder, context.cast(builder, left, kind, types.int32), mask)
    return builder.icmp_signed("<", ir.Constant(mask, list(range(width))), limit)


def _pointer(context, builder, signature, arguments, lanes: Lanes):
    """Where the columns of the row that arguments 1 and 2 name begin."""
    place = address(context, builder, signature, arguments, 0, range(1, 3))
    return builder.bitcast(place, lanes.vector.as_pointer())


def _load(typing_context, array, row, column, left, width):
    """array[row, column : column + width], of which those from `left` on are 0 and not read."""
    if not isinstance(array, types.Array) or not isinstance(width, types.IntegerLiteral):
        return None
    lanes = Lanes(array.dtype, width.literal_value)

    def generate(context, builder, signature, arguments):
        pointer = _pointer(context, builder, signature, arguments, lanes)
        mask = _first(context, builder, arguments[3], signature.args[3], lanes.width)
        align, zero = cgutils.int32_t, ir.Constant(lanes.vector, [0.0] * lanes.width)
        kind = ir.FunctionType(lanes.vector, [pointer.type, align, mask.type, lanes.vector])
        name = lanes.named("masked.load") + ".p0"
        function = cgutils.get_or_insert_function(builder.module, kind, name)
        return builder.call(function, [pointer, align(lanes.dtype.bitwidth // 8), mask, zero])

    return lanes(array, row, column, left, width), generate


def _store(typing_context, array, row, column, left, value):
    """array[row, column : column + width] = value, before `left`."""
    if not isinstance(array, types.Array) or not isinstance(value, Lanes):
        return None

    def generate(context, builder, signature, arguments):
        pointer = _pointer(context, builder, signature, arguments, value)
        mask = _first(context, builder, arguments[3], signature.args[3], value.width)
        align = cgutils.int32_t
        kind = ir.FunctionType(ir.VoidType(), [value.vector, pointer.type, align, mask.type])
        name = value.named("masked.store") + ".p0"
        function = cgutils.get_or_insert_function(builder.module, kind, name)
        builder.call(function, [arguments[4], pointer, align(value.dtype.bitwidth // 8), mask])
        return context.get_dummy_value()

    return types.void(array, row, column, left, value), generate


def _zeros(typing_context, array, width):
    """Zeros of an array's type."""
    if not isinstance(width, types.IntegerLiteral):
        return None
    lanes = Lanes(array.dtype, width.literal_value)

    def generate(context, builder, signature, arguments):
        return ir.Constant(lanes.vector, [0.0] * lanes.width)

    return lanes(array, width), generate


def _total(typing_context, value):
    """The sum over all places."""
    if not isinstance(value, Lanes):
        return None

    def generate(context, builder, signature, arguments):
        kind = ir.FunctionType(value.real, [value.real, value.vector])
        name = value.named("vector.reduce.fadd")
        function = cgutils.get_or_insert_function(builder.module, kind, name)
        return builder.call(function, [value.real(-0.0), arguments[0]], fastmath=FAST)

    return value.dtype(value), generate


def _totals(typing_context, a, b):
    """The sums over all places of two, which take little longer than that of one: after the first
    addition both are in one register."""
    if not isinstance(a, Lanes) or a != b:
        return None

    def generate(context, builder, signature, arguments):
        width, half = a.width, a.width // 2

        def shuffled(both, places):
            numbers = ir.Constant(ir.VectorType(cgutils.int32_t, width), places)
            return builder.shuffle_vector(*both, numbers)

        front = [*range(half), *range(width, width + half)]
        parts = [shuffled(arguments, [at + by for at in front]) for by in (0, half)]
        held = builder.fadd(*parts, flags=FAST)
        while half > 1:
            half //= 2
            turned = shuffled((held, held), [at ^ half for at in range(width)])
            held = builder.fadd(held, turned, flags=FAST)
        sums = [builder.extract_element(held, cgutils.int32_t(at)) for at in (0, width // 2)]
        return context.make_tuple(builder, signature.return_type, sums)

    return types.UniTuple(a.dtype, 2)(a, b), generate


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


def _counter(context, builder, signature, arguments):
    """Where the counter that arguments 0 and 1 name lies."""
    place = address(context, builder, signature, arguments, 0, range(1, 2))
    return builder.bitcast(place, cgutils.intp_t.as_pointer())


def _arrive(typing_context, counters, at):
    """Add 1 to counters[at], which other threads see with all that was written before."""

    def generate(context, builder, signature, arguments):
        pointer = _counter(context, builder, signature, arguments)
        builder.atomic_rmw("add", pointer, cgutils.intp_t(1), "seq_cst")
        return context.get_dummy_value()

    return types.void(counters, at), generate


def _arrived(typing_context, counters, at):
    """counters[at] as other threads have left it."""

    def generate(context, builder, signature, arguments):
        pointer = _counter(context, builder, signature, arguments)
        return builder.load_atomic(pointer, "seq_cst", cgutils.intp_t.width // 8)

    return types.intp(counters, at), generate


def _claim(typing_context, counters, at, count):
    """Add 1 to counters[at] if it is `count`. Returns whether it was: of all threads one is told
    so."""

    def generate(context, builder, signature, arguments):
        pointer = _counter(context, builder, signature, arguments)
        old = context.cast(builder, arguments[2], signature.args[2], types.intp)
        new = builder.add(old, cgutils.intp_t(1))
        return builder.extract_value(builder.cmpxchg(pointer, old, new, "seq_cst"), 1)

    return types.boolean(counters, at, count), generate


def _pause(typing_context):
    """Look around less eagerly: another thread may share this core's units. (Elsewhere than on x86
    nothing.)"""

    def generate(context, builder, signature, arguments):
        if machine() in ("x86_64", "AMD64"):
            kind = ir.FunctionType(ir.VoidType(), [])
            name = "llvm.x86.sse2.pause"
            builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [])
        return context.get_dummy_value()

    return types.void(), generate


def _give_way(typing_context):
    """Sleep for a moment, in which another thread has this core. (Who only yields it may wait for
    milliseconds to have it back.)"""

    def generate(context, builder, signature, arguments):
        kind = ir.FunctionType(cgutils.int32_t, [cgutils.int32_t])
        function = cgutils.get_or_insert_function(builder.module, kind, "usleep")
        builder.call(function, [cgutils.int32_t(_MOMENT)])
        return context.get_dummy_value()

    return types.void(), generate


def _exceed(typing_context, table, row, offsets, queries, least):
    """Which of four rows, from `row` on, are at or above what each of sixteen queries asks for: bit
    16 j + q says that offsets[row + j] + table[row + j] . queries[:, q] >= least[q].

    table : (rows, words) int32, each of them four signed bytes.
    offsets : (rows,) int32; least : (16,) int32.
    queries : (words, 16) int32, each of them four unsigned bytes.
    """

    def generate(context, builder, signature, arguments):
        word, vector = cgutils.int32_t, ir.VectorType(cgutils.int32_t, 16)
        kind = ir.FunctionType(vector, [vector, vector, vector])
        name = "llvm.x86.avx512.vpdpbusd.512"
        products = cgutils.get_or_insert_function(builder.module, kind, name)
        begin = address(context, builder, signature, arguments, 0, range(1, 2))
        first = address(context, builder, signature, arguments, 2, range(1, 2))
        asked, wanted = (
            address(context, builder, signature, arguments, n, range(0)) for n in (3, 4)
        )
        shape = context.make_array(table)(context, builder, arguments[0]).shape
        words = cgutils.unpack_tuple(builder, shape)[1]
        begin, first = (builder.bitcast(at, word.as_pointer()) for at in (begin, first))
        asked, wanted = (builder.bitcast(at, vector.as_pointer()) for at in (asked, wanted))
        sums = []
        for j in range(4):
            sums.append(cgutils.alloca_once(builder, vector))
            offset = builder.load(builder.gep(first, [cgutils.intp_t(j)]))
            builder.store(_spread(builder, offset, vector), sums[j])
        with cgutils.for_range(builder, words) as loop:
            query = builder.load(builder.gep(asked, [loop.index]), align=4)
            for j in range(4):
                at = builder.add(loop.index, builder.mul(words, cgutils.intp_t(j)))
                own = _spread(builder, builder.load(builder.gep(begin, [at])), vector)
                builder.store(builder.call(products, [builder.load(sums[j]), query, own]), sums[j])
        limits, found = builder.load(wanted, align=4), ir.Constant(ir.IntType(64), 0)
        for j in range(4):
            above = builder.icmp_signed(">=", builder.load(sums[j]), limits)
            bits = builder.zext(builder.bitcast(above, ir.IntType(16)), ir.IntType(64))
            found = builder.or_(found, builder.shl(bits, ir.Constant(ir.IntType(64), 16 * j)))
        return found

    return types.uint64(table, row, offsets, queries, least), generate


load: Any = known(_load)
store: Any = known(_store)
zeros: Any = known(_zeros)
total: Any = known(_total)
totals: Any = known(_totals)
prefetch: Any = known(_prefetch)
move: Any = known(_move)
arrive: Any = known(_arrive)
arrived: Any = known(_arrived)
claim: Any = known(_claim)
pause: Any = known(_pause)
give_way: Any = known(_give_way)
exceed: Any = known(_exceed)
# Whether `exceed` can be compiled: LLVM ends the process where it cannot.
BYTES = all(_HAS.get(name) for name in ("avx512f", "avx512vnni"))


@njit(cache=True)
def _all(X, out, counter):
    """Every operation once."""
    arrive(counter, 1)
    if claim(counter, 1, 0) or not claim(counter, 1, 1):
        return 0.0
    pause()
    give_way()
    prefetch(X, 0, 0, 0)
    move(out, 0, X, 0, 4)
    a, b = load(X, 0, 0, 3, 4), load(X, 1, 0, 4, 4)
    first, second = totals(a * b, b - a)
    store(out, 1, 0, 4, first * a + zeros(X, 4))
    return total(b) + second + arrived(counter, 1)


def check() -> None:
    """Raise unless this Numba compiles all of them, and to what they should be."""
    X, out = np.arange(8.0).reshape(2, 4), np.zeros((2, 4))
    right = [[0, 1, 2, 3], [0, 17, 34, 0]]  # 0 4 + 1 5 + 2 6 = 17
    if _all(X, out, np.zeros(2, np.intp)) != 22 + 19 + 2 or out.tolist() != right:
        raise RuntimeError("vector instructions give wrong results")
