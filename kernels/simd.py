"""Vectors for kernels that LLVM does not vectorise by itself: arithmetic on LLVM IR, written like NumPy's.

LLVM may not assume that two arrays don't overlap, so most loops over pixels stay scalar. A function under
`vector_code` receives its arrays as `Memory` and its integers as IR values, and emits straight-line vector code
through `Vector`'s operators; it becomes an intrinsic that kernels call with plain arrays and offsets. The same IR
becomes AVX2, AVX-512 or NEON. Lanes are signed integers of 8, 16 or 32 bits and wrap around.

Nothing here checks bounds: the calling kernel proves that every offset lies inside its array. Owns the emitters;
what is computed is the business of the files that call them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

inner: Any = numba.njit(nogil=True, error_model="numpy", _nrt=False)
"""For functions around vector code, called a row at a time: no reference counts, which are atomic, for their views."""


class Vector:
    """Lanes of signed integers, computed with by operators; an int beside a vector stands for a vector of it."""

    def __init__(self, builder: ir.IRBuilder, value: ir.Value):
        self.builder, self.value = builder, value
        self.lanes, self.bits = value.type.count, value.type.element.width

    def _new(self, value: ir.Value) -> Vector:
        return Vector(self.builder, value)

    def all(self, number: int) -> Vector:
        """A vector of this one's type with `number` in every lane."""
        return self._new(ir.Constant(self.value.type, [number] * self.lanes))

    def _operand(self, other: Vector | int) -> ir.Value:
        return self.all(other).value if isinstance(other, int) else other.value

    def __add__(self, other: Vector | int) -> Vector:
        return self._new(self.builder.add(self.value, self._operand(other)))

    def __sub__(self, other: Vector | int) -> Vector:
        return self._new(self.builder.sub(self.value, self._operand(other)))

    def __mul__(self, other: Vector | int) -> Vector:
        return self._new(self.builder.mul(self.value, self._operand(other)))

    def __or__(self, other: Vector | int) -> Vector:
        return self._new(self.builder.or_(self.value, self._operand(other)))

    def __lshift__(self, count: int) -> Vector:
        return self._new(self.builder.shl(self.value, self._operand(count)))

    def __rshift__(self, count: int) -> Vector:
        return self._new(self.builder.ashr(self.value, self._operand(count)))

    def clamp(self, low: int, high: int) -> Vector:
        """Every lane forced into low..high: with `narrow`, a saturating conversion."""
        value = self.value
        for comparison, bound in ((">", low), ("<", high)):
            limit = self._operand(bound)
            value = self.builder.select(self.builder.icmp_signed(comparison, value, limit), value, limit)
        return self._new(value)

    def widen(self, bits: int, *, signed: bool) -> Vector:
        """The same lanes, of more bits."""
        extend = self.builder.sext if signed else self.builder.zext
        return self._new(extend(self.value, ir.VectorType(ir.IntType(bits), self.lanes)))

    def narrow(self, bits: int) -> Vector:
        """The low bits of every lane."""
        return self._new(self.builder.trunc(self.value, ir.VectorType(ir.IntType(bits), self.lanes)))

    def split(self) -> Vector:
        """Every lane as two of half the bits, the low half first, as it lies in (little-endian) memory."""
        kind = ir.VectorType(ir.IntType(self.bits // 2), 2 * self.lanes)
        return self._new(self.builder.bitcast(self.value, kind))

    def pick(self, other: Vector, lanes: Sequence[int]) -> Vector:
        """These lanes of the two vectors laid end to end."""
        mask = ir.Constant(ir.VectorType(ir.IntType(32), len(lanes)), list(lanes))
        return self._new(self.builder.shuffle_vector(self.value, other.value, mask))

    def zip(self, other: Vector) -> Vector:
        """Lanes of the two in turn: a vector of twice the length."""
        return self.pick(other, [lane + self.lanes * which for lane in range(self.lanes) for which in (0, 1)])

    def halves(self) -> list[Vector]:
        """The first half of the lanes, and the second."""
        half = self.lanes // 2
        return [self.pick(self, range(half)), self.pick(self, range(half, self.lanes))]

    def where_zero(self, test: Vector, other: Vector) -> Vector:
        """This vector if every lane of `test` is zero, else the other one."""
        whole = self.builder.bitcast(test.value, ir.IntType(test.lanes * test.bits))
        is_zero = self.builder.icmp_unsigned("==", whole, ir.Constant(whole.type, 0))
        return self._new(self.builder.select(is_zero, self.value, other.value))


def splat(builder: ir.IRBuilder, number: ir.Value, lanes: int, bits: int) -> Vector:
    """A vector of the low bits of an integer known at run time."""
    kind = ir.VectorType(ir.IntType(bits), lanes)
    low = builder.trunc(number, kind.element)
    one = Vector(builder, builder.insert_element(ir.Constant(kind, ir.Undefined), low, ir.IntType(32)(0)))
    return one.pick(one, [0] * lanes)


class Memory:
    """The elements of a C-contiguous array, by flat offset."""

    def __init__(self, builder: ir.IRBuilder, data: ir.Value):
        self.builder, self.data = builder, data

    def _pointer(self, offset: ir.Value, ahead: int, kind: ir.VectorType) -> ir.Value:
        at = self.builder.add(offset, ir.Constant(offset.type, ahead))
        return self.builder.bitcast(self.builder.gep(self.data, [at]), kind.as_pointer())

    def load(self, offset: ir.Value, lanes: int, bits: int, ahead: int = 0) -> Vector:
        """`lanes` elements of `bits` bits from `offset + ahead` on."""
        kind = ir.VectorType(ir.IntType(bits), lanes)
        return Vector(self.builder, self.builder.load(self._pointer(offset, ahead, kind), align=bits // 8))

    def store(self, offset: ir.Value, vector: Vector, ahead: int = 0) -> None:
        """The vector's lanes to `offset + ahead` and on."""
        self.builder.store(vector.value, self._pointer(offset, ahead, vector.value.type), align=vector.bits // 8)


def vector_code(emit: Callable[..., None]) -> Any:
    """Make an intrinsic of a function that emits IR: its arrays come as `Memory`, its integers as int64 values."""
    parameters = inspect.signature(emit).parameters.values()

    def define(typingctx: Any, *arguments: Any) -> Any:
        given = [kind if isinstance(kind, types.Array) else types.int64 for kind in arguments]

        def generate(context: Any, builder: ir.IRBuilder, signature: Any, values: Sequence[ir.Value]) -> Any:
            emit(
                *(
                    Memory(builder, context.make_array(kind)(context, builder, value).data)
                    if isinstance(kind, types.Array)
                    else value
                    for kind, value in zip(signature.args, values, strict=True)
                )
            )
            return context.get_dummy_value()

        return types.void(*given), generate

    define.__name__ = emit.__name__
    typingctx = inspect.Parameter("typingctx", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    named = [inspect.Parameter(p.name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for p in parameters]
    define.__signature__ = inspect.Signature([typingctx, *named])  # type: ignore[attr-defined]
    return intrinsic(define)
