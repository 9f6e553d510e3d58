"""Functions as the kernel's compiler makes them, to be called from a test."""

import ctypes
from collections.abc import Callable
from typing import get_type_hints

import numpy as np

from tokenfleet.simulator.compiling import compiled, machine_code
from tokenfleet.simulator.machine_code import linked
from tokenfleet.simulator.memory import Memory

KINDS = {int: ctypes.c_int64, bool: ctypes.c_bool, float: ctypes.c_double, Memory: ctypes.c_void_p}


def as_compiled(plain: Callable) -> Callable:
    """The compiled function; it takes an array where the plain one takes the buffer."""
    hints = get_type_hints(compiled(plain))
    engine = linked(machine_code(plain.__module__, plain.__name__))
    result = KINDS[hints.pop("return")]
    address = engine.get_function_address(f"{plain.__module__}.{plain.__name__}")
    function = ctypes.CFUNCTYPE(result, *(KINDS[kind] for kind in hints.values()))(address)

    def call(*arguments: object) -> object:
        """``engine`` is named here because the machine code lives as long as it does."""
        bare = (each.ctypes.data if isinstance(each, np.ndarray) else each for each in arguments)
        return function(*bare) if engine else None

    return call
