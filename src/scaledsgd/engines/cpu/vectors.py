"""Numbers side by side in a register, as a type of Numba's: rows are loaded, combined and stored a
register at a time, which a compiler does by itself only where no two rows can be the same.

A width is a number of columns. LLVM makes of it as many of the machine's registers as it takes.
"""

from __future__ import annotations

import operator
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.datamodel import models
from numba.extending import overload, register_model

from .prefetch import address, known

# Sums over the rank may be reordered and fused, and 0 x is 0: that removes the absent terms of a
# loss. A NaN still spreads through X, where the next Gram finds it.
FAST: tuple[str, ...] = ("contract", "reassoc", "nsz", "arcp", "nnan")


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


load: Any = known(_load)
store: Any = known(_store)
zeros: Any = known(_zeros)
total: Any = known(_total)
totals: Any = known(_totals)
