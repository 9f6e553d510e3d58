"""Compiles the kernel. Only :mod:`tokenfleet.simulator.machine_code` imports this, when there is nothing to load."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, TypeVar, cast
from unittest.mock import patch

import llvmlite.binding as llvm
import numba
from numba.core import codegen
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target

Function = TypeVar("Function", bound=Callable[..., object])

OPTIONS: dict[str, Any] = {
    "nogil": True,
    "error_model": "numpy",
    "_nrt": False,
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
    "no_rewrites": True,
}
"""``_nrt`` off: nothing in the kernel allocates, and without it calls carry no reference counting. No wrappers: only
compiled code calls the helpers, and entry points are called as they are. No rewrites: those are for arrays."""

MEMORY = numba.types.CPointer(numba.int64)  # type: ignore[no-untyped-call]
"""The buffer, as its bare address: an array would be seven machine words, and each index tested for its sign."""


def compiled(function: Function) -> Function:
    """Compile for use by another compiled function; it is inlined or linked there, so it needs no cache entry."""
    return cast("Function", numba.njit(function, **OPTIONS))


def machine_code(module: str, name: str, integer_count: int) -> tuple[str, bytes]:
    """Compile an entry point with all it calls.

    Args:
        module: Where the function is defined.
        name: A function marked as :func:`compiled`.
        integer_count: Integers it takes behind the buffer.

    Returns:
        Its symbol, and the object file.
    """
    function = getattr(import_module(module), name)
    signature = (MEMORY, *([numba.int64] * integer_count))
    with translation_only():
        function.compile(signature)
    entry = function.overloads[signature]
    symbol = entry.fndesc.llvm_func_name
    program = whole_program(entry.library, symbol)
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=3, jit=True
    )
    passes = llvm.create_pass_builder(machine, llvm.PipelineTuningOptions(speed_level=3))
    passes.getModulePassManager().run(program, passes)
    return symbol, machine.emit_object(program)


@contextmanager
def translation_only() -> Iterator[None]:
    """Have numba translate functions and neither optimise nor assemble them.

    It would do both for each function with all that it calls, over and over; one pass over the whole program takes a
    fifth of that time, and sees all callers of a function at once. No other thread may compile meanwhile, and the
    runtime that other compiled code of this process shares must be there before.
    """
    cpu_target.target_context.refresh()
    with (
        global_compiler_lock,
        patch.multiple(
            codegen.JITCodeLibrary,
            _optimize_functions=lambda _library, _module: None,
            finalize=lambda library: setattr(library, "_finalized", True),
            get_pointer_to_function=lambda _library, _name: 0,
        ),
        patch.object(codegen.JITCPUCodegen, "set_env", lambda _codegen, _name, _environment: None),
    ):
        yield


def whole_program(library: codegen.JITCodeLibrary, symbol: str) -> llvm.ModuleRef:
    """A function and all that it calls as one module, from which nothing else can be called."""
    program = llvm.parse_assembly("")
    libraries = [library]
    for caller in libraries:
        program.link_in(caller._final_module, preserve=True)
        libraries += [called for called in dict.fromkeys(caller._linking_libraries) if called not in libraries]
    program.verify()
    for function in program.functions:
        if not function.is_declaration and function.name != symbol:
            function.linkage = "internal"
    return program
