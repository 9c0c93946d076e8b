"""``python -m pardbg_agent.hooks``: print, as JSON, the hooked names that this torch lacks."""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
import warnings

from pardbg_agent.hooks.installed import Installed


def missing() -> list[str]:
    """Install all torch hooks in this process; return the names that were not found."""
    installed = Installed()
    installed.install()
    warnings.simplefilter("ignore")  # torch's about itself
    for module in installed.awaited:
        if module.startswith("torch."):
            with contextlib.suppress(ImportError):  # another release's
                importlib.import_module(module)
    installed.uninstall()
    return installed.missing


def main() -> None:
    sys.stdout.write(json.dumps(missing()) + "\n")


if __name__ == "__main__":
    main()
