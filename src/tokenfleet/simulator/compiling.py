"""Compiles the kernel. Only :mod:`tokenfleet.simulator.machine_code` asks for it, when there is nothing to load."""

from collections.abc import Callable
from importlib import import_module
from typing import TypeVar

Function = TypeVar("Function", bound=Callable[..., object])

COMPILED: set[Callable[..., object]] = set()
"""Functions that compiled code may call."""
APART: set[Callable[..., object]] = set()
"""Those of them that are not written into their callers."""
WITHIN: set[Callable[..., object]] = set()
"""Those of them that always are; of the others the compiler decides."""


def compiled(function: Function) -> Function:
    """Mark a function as part of what is compiled; it stays plain Python for whoever calls it from there."""
    COMPILED.add(function)
    return function


def compiled_apart(function: Function) -> Function:
    """The same, for what is rare: it stays a call of its own, out of the way of those who make it."""
    APART.add(function)
    return compiled(function)


def compiled_within(function: Function) -> Function:
    """The same, for what nearly every request comes by: it is written into all its callers, long as it may be."""
    WITHIN.add(function)
    return compiled(function)


def machine_code(module: str, name: str, known: str | None = None) -> bytes:
    """Compile an entry point with all it calls.

    All of it is optimised as one program, in which nothing else can be called from outside.

    Args:
        module: Where the function is defined.
        name: A function marked as :func:`compiled`; its symbol is ``module.name``.
        known: Name in the module of a mapping from functions to what they always answer.

    Returns:
        The object file, for processors such as this one.
    """
    import llvmlite.binding as llvm

    found = import_module(module)
    function = getattr(found, name)
    from tokenfleet.simulator.translating import translated

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    program = llvm.parse_assembly(translated(function, {} if known is None else getattr(found, known)))
    program.verify()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=3, jit=True
    )
    passes = llvm.create_pass_builder(machine, llvm.PipelineTuningOptions(speed_level=3))
    passes.getModulePassManager().run(program, passes)
    return bytes(machine.emit_object(program))
