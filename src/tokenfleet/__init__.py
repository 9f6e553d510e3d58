"""tokenfleet plans the capacity and cost of LLM inference.

Data walks one road: trace -> workload -> plan -> contract -> proof. Each room of the package owns one stretch
of it and says so in the first lines of its own ``__init__``; imports go down the floors only.
"""

from importlib.metadata import version

__version__ = version("tokenfleet")
