"""Runs the kernel from machine code on disk, without the compiler; the first call on a machine makes it.

The compiler costs a process half a second before it does anything, so it is imported only when there is nothing to
load. The folder of the machine code carries a digest of every source that is compiled: an edited rule is never
answered by the code of yesterday's.
"""

import contextlib
import ctypes
import fcntl
import hashlib
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from functools import cache, cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from llvmlite.binding import ExecutionEngine

SOURCES = ("simulator", "control", "domain/run.py", "domain/world.py")
"""Rooms and files that end up in the machine code, as functions or as constants."""
KEPT_FOLDERS = 8
"""Versions of the sources whose machine code is kept."""


def source_digest(package: Path) -> str:
    """Digest of all sources that may be compiled, and of the versions that compile them.

    Args:
        package: Folder of the package, the one that holds the rooms.

    Returns:
        16 hexadecimal digits.
    """
    compilers = f"{sys.version} {version('llvmlite')}"
    digest = hashlib.sha256(compilers.encode())
    for source in SOURCES:
        for path in sorted([package / source, *(package / source).rglob("*.py")]):
            if path.is_dir():
                continue
            digest.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


@cache
def kernel_digest() -> str:
    """Digest of the sources of this very package."""
    return source_digest(Path(__file__).parents[1])


@cache
def cache_directory() -> Path:
    """The folder that holds the machine code of exactly these sources, created if need be.

    ``NUMBA_CACHE_DIR`` wins, then ``XDG_CACHE_HOME``, then ``~/.cache``. Where that cannot be written, a warning
    says so and a temporary folder is used, so that each process compiles anew.
    """
    if "NUMBA_CACHE_DIR" in os.environ:
        base = Path(os.environ["NUMBA_CACHE_DIR"])
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tokenfleet"
    folder = base / f"kernel-{kernel_digest()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
        os.utime(folder)
    except OSError as error:
        folder = Path(tempfile.mkdtemp(prefix="tokenfleet-kernel-"))
        warnings.warn(
            f"cannot write {base} ({error.strerror}): the replay kernel is compiled anew in each process",
            RuntimeWarning,
            stacklevel=2,
        )
    else:
        prune(base)
    return folder


def prune(base: Path) -> None:
    """Delete the machine code of those sources that were used longest ago; each use makes a folder young again.

    A process that still loads from a folder deleted under it compiles anew, so a few more than one are kept.
    """
    used: list[tuple[float, Path]] = []
    for folder in base.glob("kernel-*"):
        with contextlib.suppress(FileNotFoundError):  # another process prunes at the same time
            used.append((folder.stat().st_mtime, folder))
    for _, folder in sorted(used, reverse=True)[KEPT_FOLDERS:]:
        shutil.rmtree(folder, ignore_errors=True)


class EntryPoint:
    """A compiled function that plain Python calls with the buffer and integers, and that returns an integer.

    The function is not imported before it must be compiled: its module brings the compiler along.
    """

    def __init__(self, module: str, name: str, integer_count: int, *, known: str | None = None) -> None:
        """Name the function.

        Args:
            module: Where it is defined, in full.
            name: What it is called there.
            integer_count: How many integers it takes behind the buffer.
            known: Name in that module of what some functions always answer where this code is used.
        """
        self._module = module
        self._name = name
        self._integer_count = integer_count
        self._known = known

    @property
    def path(self) -> Path:
        """The file of its machine code, for processors such as this one."""
        import llvmlite.binding as llvm

        processor = f"{llvm.get_host_cpu_name()} {llvm.get_host_cpu_features().flatten()}"
        name = self._name if self._known is None else f"{self._name}-{self._known.lower()}"
        return cache_directory() / f"{name}-{hashlib.sha256(processor.encode()).hexdigest()[:8]}.o"

    @property
    def is_cached(self) -> bool:
        """Whether its machine code is on disk."""
        return self.path.exists()

    def __call__(self, memory: npt.NDArray[np.int64], *integers: int) -> int:
        """Call it; the first call loads it, or compiles it. Other threads run meanwhile."""
        return self._function(memory.ctypes.data, *integers)

    @cached_property
    def _function(self) -> Callable[..., int]:
        path = self.path
        if not path.exists():
            with alone(path):
                self._make(path)
        prototype = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, *([ctypes.c_int64] * self._integer_count))
        self._engine = linked(path.read_bytes())
        return prototype(self._engine.get_function_address(f"{self._module}.{self._name}"))

    def _make(self, path: Path) -> None:
        """Compile it, where nobody else has meanwhile."""
        if not path.exists():
            from tokenfleet.simulator.compiling import machine_code

            write(path, machine_code(self._module, self._name, self._known))


@contextlib.contextmanager
def alone(path: Path) -> Iterator[None]:
    """Let one process at a time make a file; who waited finds it made."""
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def write(path: Path, code: bytes) -> None:
    """Keep machine code; another process sees all of it or nothing."""
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(code)
    Path(file.name).replace(path)


def linked(code: bytes) -> "ExecutionEngine":
    """Machine code in memory, ready to run as long as the engine lives."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return engine
