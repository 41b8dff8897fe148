"""kdelta: inference and operators for Kimi Delta Attention models.

    import kdelta
    llm = kdelta.LLM("models/tiny-k3")
    print(llm.generate("In the beginning", max_tokens=16).text)

Importing touches no GPU and starts no thread.
"""

from kdelta import _core
from kdelta.llm import LLM, Completion, Delta, Stream

__version__ = _core.version().split(" ", 1)[0]
__all__ = ["LLM", "Completion", "Delta", "Stream", "ops", "__version__"]


def __getattr__(name):
    if name == "ops":
        import importlib

        return importlib.import_module("kdelta.ops")
    raise AttributeError(f"module 'kdelta' has no attribute {name!r}")
