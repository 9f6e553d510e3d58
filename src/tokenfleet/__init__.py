"""tokenfleet plans the capacity and cost of LLM inference.

Data walks one road: trace -> workload -> plan -> contract -> proof. Each room of the package owns one stretch
of it and says so in the first lines of its own ``__init__``; imports go down the floors only.
"""


def __getattr__(name: str) -> str:
    """``__version__``, read when somebody asks: looking it up takes longer than most questions need."""
    if name != "__version__":
        raise AttributeError(f"module 'tokenfleet' has no attribute '{name}'")
    from importlib.metadata import version

    return version("tokenfleet")
