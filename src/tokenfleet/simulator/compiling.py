"""Compiles the kernel. Only :mod:`tokenfleet.simulator.machine_code` imports this, when there is nothing to load."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, TypeVar, cast
from unittest.mock import patch

import llvmlite.binding as llvm
import numba
from numba.core import codegen

Function = TypeVar("Function", bound=Callable[..., object])

OPTIONS: dict[str, Any] = {
    "nogil": True,
    "error_model": "numpy",
    "_nrt": False,
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
}
"""``_nrt`` off: nothing in the kernel allocates, and without it calls carry no reference counting. No wrappers: only
compiled code calls the helpers, and entry points are called as they are."""


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
    signature = (numba.int64[::1], *([numba.int64] * integer_count))
    with helpers_without_machine_code():
        function.compile(signature)
    linked = llvm.parse_assembly(function.inspect_llvm(signature))
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=3, jit=True
    )
    return function.overloads[signature].fndesc.llvm_func_name, machine.emit_object(linked)


@contextmanager
def helpers_without_machine_code() -> Iterator[None]:
    """Spare the time in which numba makes each helper runnable on its own: a fifth of the whole."""

    def finalized(library: codegen.JITCodeLibrary, _name: str) -> int:
        library._ensure_finalized()  # type: ignore[no-untyped-call]
        return 0

    with (
        patch.object(codegen.JITCodeLibrary, "_finalize_specific", lambda _library: None),
        patch.object(codegen.JITCodeLibrary, "get_pointer_to_function", finalized),
    ):
        yield
