"""Zero-code start by PYTHONPATH, for environments where the agent's wheel is not installed.

With this file's directory on PYTHONPATH every interpreter runs it at start. It loads the agent
from where this file lies (without opening the rest of that directory to imports), then hands on
to the sitecustomize that would have run without it.
"""

import importlib.machinery
import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _load_agent() -> None:
    if "pardbg_agent" not in sys.modules and importlib.util.find_spec("pardbg_agent") is None:
        package = os.path.dirname(_HERE)
        spec = importlib.util.spec_from_file_location(
            "pardbg_agent",
            os.path.join(package, "__init__.py"),
            submodule_search_locations=[package],
        )
        if spec is None or spec.loader is None:
            return
        module = importlib.util.module_from_spec(spec)
        sys.modules["pardbg_agent"] = module
        spec.loader.exec_module(module)
    importlib.import_module("pardbg_agent.autostart")


def _chain() -> None:
    """Run the next sitecustomize on sys.path, in our place in sys.modules."""
    rest = [path for path in sys.path if os.path.abspath(path or os.curdir) != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", rest)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


if os.environ.get("PARDBG"):
    try:
        _load_agent()
    except Exception as error:  # noqa: BLE001 - the program must start whatever is wrong here
        print(f"pardbg: agent is off: {type(error).__name__}: {error}", file=sys.stderr)

_chain()
