"""Translates the functions of the kernel into the language of LLVM, all that one of them calls at once.

They are written in a small part of Python, chosen so that a line means the same in both: integers and truth values go
in and come out, floats live in between, one buffer holds everything; ``if``, ``while``, ``for`` over a range, calls of
each other. Whatever else is written there is refused, with its file and line. Two things differ: an integer has 64 bits
and wraps around, and what is divided by zero gives 0.

A general compiler takes ten times as long for it, nearly all of that to find out what the annotations say already.
"""

import ast
import inspect
import sys
from collections.abc import Mapping
from functools import cache, singledispatchmethod
from typing import get_type_hints

from llvmlite import ir

from tokenfleet.simulator.compiling import APART, WITHIN
from tokenfleet.simulator.expressions import BUFFER, INTEGER, TRUTH, Expressions, Plain
from tokenfleet.simulator.memory import Memory

NOTHING = ir.VoidType()
KINDS = {int: INTEGER, bool: TRUTH, Memory: BUFFER, type(None): NOTHING}
"""What parameters and results may be."""


def translated(entry: Plain, known: Mapping[Plain, int]) -> str:
    """The program of a function and all that it calls, as text; only the function itself can be called from outside.

    Args:
        entry: The function.
        known: What some of the others always answer, in place of their lines.

    Returns:
        Text in LLVM's language.

    Raises:
        TypeError: Something is written in a way that is not translated: where, and what.
    """
    program = Program()
    program.declare(entry).linkage = "external"
    for function in program.functions:
        Translation(program, function).write(known.get(function))
    return str(program.module)


@cache
def definitions(module: str) -> dict[str, ast.FunctionDef]:
    """The functions that a module defines, by name."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}


def attributes(function: Plain) -> tuple[str, ...]:
    """What the compiler is told about where the lines of a function go."""
    if function in APART:
        return ("noinline", "cold")
    return ("alwaysinline",) if function in WITHIN else ()


class Program:
    """Functions that call each other."""

    def __init__(self) -> None:
        self.module = ir.Module("kernel")
        self.functions: list[Plain] = []
        """All that are called, in the order of their first call."""
        self._declared: dict[Plain, ir.Function] = {}

    def declare(self, function: Plain) -> ir.Function:
        """A function as those see it that call it."""
        if function not in self._declared:
            name = f"{function.__module__}.{function.__name__}"
            hints = get_type_hints(function)
            if not KINDS.keys() >= {*hints.values()}:
                raise TypeError(f"{name}: only {', '.join(kind.__name__ for kind in KINDS)} go in and come out")
            result = KINDS[hints.pop("return")]
            declared = ir.Function(self.module, ir.FunctionType(result, [KINDS[kind] for kind in hints.values()]), name)
            declared.linkage = "internal"
            for attribute in ("nounwind", *attributes(function)):
                declared.attributes.add(attribute)
            for value in (declared.return_value, *declared.args):
                if value.type == TRUTH:
                    value.add_attribute("zeroext")
            self._declared[function] = declared
            self.functions.append(function)
        return self._declared[function]


class Translation(Expressions):
    """One function on its way from one language to the other, line by line."""

    def __init__(self, program: Program, function: Plain) -> None:
        super().__init__(function, program.declare)
        self._result = self._function.function_type.return_type
        self._definition = definitions(function.__module__)[function.__name__]
        self._loops: list[tuple[ir.Block, ir.Block]] = []
        """Of each loop around the line: where it goes on, and where it ends."""

    def write(self, answer: int | None = None) -> None:
        """Write the body, or nothing but its answer."""
        if answer is not None:
            self._build.ret(self._result(answer))
            return
        for parameter, argument in zip(self._definition.args.args, self._function.args, strict=True):
            if argument.type == BUFFER:
                self._buffers[parameter.arg] = argument
            else:
                self._set(parameter, parameter.arg, argument)
        self._do_all(self._definition.body)
        if self._build.block.is_terminated:
            return
        if self._result == NOTHING:
            self._build.ret_void()
        else:
            self._build.unreachable()

    def _do_all(self, statements: list[ast.stmt]) -> None:
        for statement in statements:
            if self._build.block.is_terminated:
                break
            self._do(statement)

    @singledispatchmethod
    def _do(self, node: ast.stmt) -> None:
        raise self._refused(node, "no such statement")

    @_do.register
    def _(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):
            self._value(node.value)

    @_do.register
    def _(self, node: ast.Assign) -> None:
        for target in node.targets:
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                values = [self._value(each) for each in node.value.elts]
                for each, value in zip(target.elts, values, strict=True):
                    self._assign(each, value)
            else:
                self._assign(target, self._value(node.value))

    def _assign(self, target: ast.expr, value: ir.Value) -> None:
        if isinstance(target, ast.Name):
            self._set(target, target.id, value)
        else:
            self._build.store(self._as(target, value, INTEGER), self._place(target))

    @_do.register
    def _(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            before = self._value(ast.copy_location(ast.Name(node.target.id, ast.Load()), node))
            self._set(node, node.target.id, self._computed(node, node.op, before, self._value(node.value)))
            return
        place = self._place(node.target)
        before = self._build.load(place)
        value = self._computed(node, node.op, before, self._value(node.value))
        self._build.store(self._as(node, value, INTEGER), place)

    @_do.register
    def _(self, node: ast.If) -> None:
        yes, no, after = self._block(), self._block(), self._block()
        self._decide(node.test, yes, no)
        for block, statements in ((yes, node.body), (no, node.orelse)):
            self._build.position_at_end(block)
            self._do_all(statements)
            self._lead_to(after)
        self._build.position_at_end(after)

    @_do.register
    def _(self, node: ast.While) -> None:
        test, body, end = self._block(), self._block(), self._block()
        self._lead_to(test)
        self._build.position_at_end(test)
        self._decide(node.test, body, end)
        self._repeat(node, body, test, end)

    @_do.register
    def _(self, node: ast.For) -> None:
        if not isinstance(node.target, ast.Name):
            raise self._refused(node.target, "one variable counts")
        start, stop, step = self._range(node.iter)
        with self._build.goto_entry_block():
            counter = self._build.alloca(INTEGER)
        self._build.store(start, counter)
        test, body, further, end = self._block(), self._block(), self._block(), self._block()
        self._lead_to(test)
        self._build.position_at_end(test)
        count = self._build.load(counter)
        order = "<" if step.constant > 0 else ">"
        self._build.cbranch(self._build.icmp_signed(order, count, stop), body, end)
        self._build.position_at_end(further)
        self._build.store(self._build.add(self._build.load(counter), step), counter)
        self._build.branch(test)
        self._build.position_at_end(body)
        self._set(node, node.target.id, count)
        self._repeat(node, self._build.block, further, end)

    def _range(self, node: ast.expr) -> tuple[ir.Value, ir.Value, ir.Constant]:
        """First number, the one at which to stop, and the constant between two."""
        if not isinstance(node, ast.Call) or self._global(node.func) is not range:
            raise self._refused(node, "a loop goes over a range")
        bounds = [self._number(self._value(argument)) for argument in node.args]
        step = bounds.pop() if len(bounds) == 3 else INTEGER(1)
        if not isinstance(step, ir.Constant):
            raise self._refused(node, "the step is a constant")
        return (INTEGER(0) if len(bounds) == 1 else bounds[0]), bounds[-1], step

    def _repeat(self, node: ast.While | ast.For, body: ir.Block, further: ir.Block, end: ir.Block) -> None:
        """Write the body of a loop, which goes on in ``further``, and then what follows it."""
        if node.orelse:
            raise self._refused(node.orelse[0], "nothing hangs on the end of a loop")
        self._loops.append((further, end))
        self._build.position_at_end(body)
        self._do_all(node.body)
        self._lead_to(further)
        self._loops.pop()
        self._build.position_at_end(end)

    @_do.register
    def _(self, _: ast.Continue) -> None:
        self._build.branch(self._loops[-1][0])

    @_do.register
    def _(self, _: ast.Break) -> None:
        self._build.branch(self._loops[-1][1])

    @_do.register
    def _(self, node: ast.Return) -> None:
        if node.value is None:
            self._build.ret_void()
        else:
            self._build.ret(self._as(node, self._value(node.value), self._result))
