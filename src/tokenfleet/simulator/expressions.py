"""Expressions of the kernel's functions in the language of LLVM; see :mod:`tokenfleet.simulator.translating`."""

import ast
import builtins
import math
import sys
from collections.abc import Callable
from functools import singledispatchmethod

from llvmlite import ir

from tokenfleet.simulator.compiling import COMPILED
from tokenfleet.simulator.memory import fetch_ahead, float_bits, lowest_bit

INTEGER = ir.IntType(64)
TRUTH = ir.IntType(1)
FLOAT = ir.DoubleType()
BUFFER = INTEGER.as_pointer()
SHORT = ir.IntType(32)
BYTES = ir.IntType(8).as_pointer()

OF_INTEGERS: dict[type[ast.operator], str] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.BitAnd: "and_",
    ast.BitOr: "or_",
    ast.BitXor: "xor",
    ast.LShift: "shl",
    ast.RShift: "ashr",
}
OF_TRUTHS = (ast.BitAnd, ast.BitOr, ast.BitXor)
"""Operators that make a truth value of two."""
OF_FLOATS: dict[type[ast.operator], str] = {
    ast.Add: "fadd",
    ast.Sub: "fsub",
    ast.Mult: "fmul",
    ast.Div: "fdiv",
}
COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
}

Plain = Callable[..., object]


class Expressions:
    """What the expressions of one function are worth, written behind each other into the block that is at hand."""

    def __init__(self, function: Plain, declare: Callable[[Plain], ir.Function]) -> None:
        self._declare = declare
        self._function = declare(function)
        self._module = sys.modules[function.__module__]
        self._build = ir.IRBuilder(self._function.append_basic_block())
        self._buffers: dict[str, ir.Argument] = {}
        self._variables: dict[str, ir.AllocaInstr] = {}

    def _refused(self, node: ast.AST, why: str) -> TypeError:
        place = f"{self._module.__file__}:{getattr(node, 'lineno', 0)}"
        return TypeError(f"{place}: {ast.unparse(node)}: {why}; see {__doc__}")

    def _block(self) -> ir.Block:
        return self._function.append_basic_block()

    def _lead_to(self, block: ir.Block) -> None:
        """Let the block that is being written lead to another, unless it leads elsewhere."""
        if not self._build.block.is_terminated:
            self._build.branch(block)

    def _set(self, node: ast.AST, name: str, value: ir.Value) -> None:
        """Give a variable a value; its first one says what it holds."""
        if name not in self._variables:
            with self._build.goto_entry_block():
                self._variables[name] = self._build.alloca(value.type)
        variable = self._variables[name]
        self._build.store(self._as(node, value, variable.type.pointee), variable)

    # ---- what decides where to go on

    def _decide(self, node: ast.expr, yes: ir.Block, no: ir.Block, *, strictly: bool = False) -> None:
        """Go on in one of two blocks; what does not matter any more is not looked at.

        ``strictly``: everything that is looked at is a truth value, not a number that counts as one.
        """
        if isinstance(node, ast.BoolOp):
            for part in node.values[:-1]:
                further = self._block()
                both = isinstance(node.op, ast.And)
                self._decide(part, further if both else yes, no if both else further, strictly=strictly)
                self._build.position_at_end(further)
            self._decide(node.values[-1], yes, no, strictly=strictly)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            self._decide(node.operand, no, yes)
        elif isinstance(node, ast.Compare) and len(node.ops) > 1:
            self._decide_chain(node, yes, no)
        else:
            value = self._value(node)
            if strictly and value.type != TRUTH:
                raise self._refused(node, "a number here, where a truth value is needed")
            self._build.cbranch(self._truth(value), yes, no)

    def _decide_chain(self, node: ast.Compare, yes: ir.Block, no: ir.Block) -> None:
        left = self._value(node.left)
        for operator, operand in zip(node.ops, node.comparators, strict=True):
            right = self._value(operand)
            further = self._block()
            self._build.cbranch(self._compared(node, operator, left, right), further, no)
            self._build.position_at_end(further)
            left = right
        self._build.branch(yes)

    def _decided(self, node: ast.expr) -> ir.Value:
        """The truth value of what is looked at only as far as it matters."""
        yes, no, after = self._block(), self._block(), self._block()
        self._decide(node, yes, no, strictly=True)
        for block in (yes, no):
            self._build.position_at_end(block)
            self._build.branch(after)
        self._build.position_at_end(after)
        result = self._build.phi(TRUTH)
        result.add_incoming(TRUTH(1), yes)
        result.add_incoming(TRUTH(0), no)
        return result

    # ---- values

    @singledispatchmethod
    def _value(self, node: ast.expr) -> ir.Value:
        raise self._refused(node, "no such expression")

    @_value.register
    def _(self, node: ast.Constant) -> ir.Value:
        return self._constant(node, node.value)

    @_value.register
    def _(self, node: ast.Name) -> ir.Value:
        if node.id in self._buffers:
            return self._buffers[node.id]
        if node.id in self._variables:
            return self._build.load(self._variables[node.id])
        return self._constant(node, self._global(node))

    def _constant(self, node: ast.expr, value: object) -> ir.Constant:
        if isinstance(value, bool):
            return TRUTH(int(value))
        if isinstance(value, int) and -(2**63) <= value < 2**63:
            return INTEGER(int(value))
        if isinstance(value, float):
            return FLOAT(value)
        raise self._refused(node, "no number of 64 bits, and no variable that has a value by now")

    def _global(self, node: ast.expr) -> object:
        """What a name outside the function stands for; ``None`` for nothing."""
        if isinstance(node, ast.Attribute):
            return getattr(self._global(node.value), node.attr, None)
        if isinstance(node, ast.Name):
            return getattr(self._module, node.id, getattr(builtins, node.id, None))
        return None

    @_value.register
    def _(self, node: ast.Subscript) -> ir.Value:
        return self._build.load(self._place(node))

    def _place(self, node: ast.expr) -> ir.Value:
        """Where a word of the buffer lies."""
        if not isinstance(node, ast.Subscript):
            raise self._refused(node, "no such target")
        buffer = self._value(node.value)
        if buffer.type != BUFFER:
            raise self._refused(node, "only the buffer has an index")
        return self._build.gep(buffer, [self._number(self._value(node.slice))], inbounds=True)

    @_value.register
    def _(self, node: ast.IfExp) -> ir.Value:
        yes, no, after = self._block(), self._block(), self._block()
        self._decide(node.test, yes, no)
        ends = []
        for block, branch in ((yes, node.body), (no, node.orelse)):
            self._build.position_at_end(block)
            value = self._value(branch)
            ends.append((value, self._build.block))
        kind = TRUTH if all(value.type == TRUTH for value, _ in ends) else INTEGER
        incoming = []
        for value, block in ends:
            self._build.position_at_end(block)
            incoming.append((self._as(node, value, kind), block))
            self._build.branch(after)
        self._build.position_at_end(after)
        result = self._build.phi(kind)
        for value, block in incoming:
            result.add_incoming(value, block)
        return result

    @_value.register
    def _(self, node: ast.BoolOp) -> ir.Value:
        return self._decided(node)

    @_value.register
    def _(self, node: ast.Compare) -> ir.Value:
        if len(node.ops) > 1:
            return self._decided(node)
        left = self._value(node.left)
        if isinstance(node.comparators[0], ast.Tuple):
            return self._is_among(node, left, node.comparators[0].elts)
        return self._compared(node, node.ops[0], left, self._value(node.comparators[0]))

    def _is_among(self, node: ast.Compare, left: ir.Value, others: list[ast.expr]) -> ir.Value:
        found: ir.Value = TRUTH(0)
        for other in others:
            found = self._build.or_(found, self._compared(node, ast.Eq(), left, self._value(other)))
        if isinstance(node.ops[0], ast.In):
            return found
        if isinstance(node.ops[0], ast.NotIn):
            return self._build.not_(found)
        raise self._refused(node, "no such comparison")

    def _compared(self, node: ast.Compare, operator: ast.cmpop, left: ir.Value, right: ir.Value) -> ir.Value:
        if type(operator) not in COMPARISONS:
            raise self._refused(node, "no such comparison")
        left, right = self._alike(left, right)
        compare = self._build.icmp_signed if left.type == INTEGER else self._build.fcmp_ordered
        return compare(COMPARISONS[type(operator)], left, right)

    @_value.register
    def _(self, node: ast.UnaryOp) -> ir.Value:
        operand = self._value(node.operand)
        if isinstance(node.op, ast.Not):
            return self._build.not_(self._truth(operand))
        number = self._number(operand)
        if isinstance(number, ir.Constant) and isinstance(node.op, ast.USub):
            return number.type(-number.constant)
        if isinstance(node.op, ast.USub):
            return self._build.neg(number) if number.type == INTEGER else self._build.fneg(number)
        if isinstance(node.op, ast.Invert) and number.type == INTEGER:
            return self._build.not_(number)
        raise self._refused(node, "no such operator")

    @_value.register
    def _(self, node: ast.BinOp) -> ir.Value:
        return self._computed(node, node.op, self._value(node.left), self._value(node.right))

    def _computed(self, node: ast.AST, operator: ast.operator, left: ir.Value, right: ir.Value) -> ir.Value:
        kind = type(operator)
        if left.type == right.type == TRUTH and kind in OF_TRUTHS:
            return getattr(self._build, OF_INTEGERS[kind])(left, right)
        left, right = self._alike(left, right)
        if kind is ast.Div:
            left, right = self._real(left), self._real(right)
        if left.type == FLOAT and kind in OF_FLOATS:
            return getattr(self._build, OF_FLOATS[kind])(left, right)
        if left.type == INTEGER and kind in OF_INTEGERS:
            return getattr(self._build, OF_INTEGERS[kind])(left, right)
        if left.type == INTEGER and kind in (ast.FloorDiv, ast.Mod):
            return self._divided(left, right, rest=kind is ast.Mod)
        raise self._refused(node, "no such operator")

    def _divided(self, left: ir.Value, right: ir.Value, *, rest: bool) -> ir.Value:
        """Quotient rounded down, or the rest, which has the sign of the divisor; 0 where that is 0."""
        build = self._build
        if isinstance(right, ir.Constant) and right.constant.bit_count() == 1 and right.constant > 0:
            bits = right.constant.bit_length() - 1
            return build.and_(left, INTEGER(right.constant - 1)) if rest else build.ashr(left, INTEGER(bits))
        by_zero = build.icmp_signed("==", right, INTEGER(0))
        divisor = build.select(by_zero, INTEGER(1), right)
        remainder = build.srem(left, divisor)
        is_beyond = build.and_(
            build.icmp_signed("!=", remainder, INTEGER(0)),
            build.icmp_signed("<", build.xor(remainder, divisor), INTEGER(0)),
        )
        if rest:
            result = build.select(is_beyond, build.add(remainder, divisor), remainder)
        else:
            result = build.sub(build.sdiv(left, divisor), build.zext(is_beyond, INTEGER))
        return build.select(by_zero, INTEGER(0), result)

    # ---- calls

    @_value.register
    def _(self, node: ast.Call) -> ir.Value:
        called = self._global(node.func)
        if node.keywords:
            raise self._refused(node, "arguments go by their place")
        arguments = [self._value(argument) for argument in node.args]
        if called in (min, max):
            return self._extreme("<" if called is min else ">", arguments)
        if called in INSTRUCTIONS:
            return getattr(self, INSTRUCTIONS[called])(*arguments)
        if called not in COMPILED:
            raise self._refused(node, "not marked as compiled")
        function = self._declare(called)
        kinds = function.function_type.args
        return self._build.call(
            function, [self._as(node, value, kind) for value, kind in zip(arguments, kinds, strict=True)]
        )

    def _extreme(self, order: str, values: list[ir.Value]) -> ir.Value:
        best = self._number(values[0])
        for value in values[1:]:
            number = self._number(value)
            best = self._build.select(self._build.icmp_signed(order, number, best), number, best)
        return best

    def _real(self, value: ir.Value) -> ir.Value:
        number = self._number(value)
        return number if number.type == FLOAT else self._build.sitofp(number, FLOAT)

    def _whole(self, value: ir.Value) -> ir.Value:
        number = self._number(value)
        return number if number.type == INTEGER else self._build.fptosi(number, INTEGER)

    def _root(self, value: ir.Value) -> ir.Value:
        root = self._function.module.declare_intrinsic("llvm.sqrt", [FLOAT])
        return self._build.call(root, [self._real(value)])

    def _lowest_bit(self, value: ir.Value) -> ir.Value:
        return self._build.cttz(self._number(value), TRUTH(0))

    def _bits(self, value: ir.Value) -> ir.Value:
        return self._build.bitcast(self._real(value), INTEGER)

    def _fetch(self, buffer: ir.Value, index: ir.Value) -> ir.Value:
        line = self._build.bitcast(self._build.gep(buffer, [index], inbounds=True), BYTES)
        kind = ir.FunctionType(ir.VoidType(), [BYTES, *([SHORT] * 3)])
        fetch = self._function.module.declare_intrinsic("llvm.prefetch", [BYTES], kind)
        for_reading, most_local, data = SHORT(0), SHORT(3), SHORT(1)
        return self._build.call(fetch, [line, for_reading, most_local, data])

    # ---- kinds of values

    def _number(self, value: ir.Value) -> ir.Value:
        return self._build.zext(value, INTEGER) if value.type == TRUTH else value

    def _truth(self, value: ir.Value) -> ir.Value:
        return value if value.type == TRUTH else self._build.icmp_signed("!=", value, INTEGER(0))

    def _alike(self, left: ir.Value, right: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Two numbers as numbers of one kind."""
        left, right = self._number(left), self._number(right)
        if FLOAT in (left.type, right.type):
            return self._real(left), self._real(right)
        return left, right

    def _as(self, node: ast.AST, value: ir.Value, kind: ir.Type) -> ir.Value:
        """A value where one of a kind is needed: a truth value counts as a number, and nothing else as another."""
        if kind == INTEGER:
            value = self._number(value)
        if value.type != kind:
            raise self._refused(node, f"{value.type} where {kind} is needed")
        return value


INSTRUCTIONS: dict[object, str] = {
    int: "_whole",
    float: "_real",
    math.sqrt: "_root",
    float_bits: "_bits",
    lowest_bit: "_lowest_bit",
    fetch_ahead: "_fetch",
}
"""Calls for which the processor has an instruction or two."""
