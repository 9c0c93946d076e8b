"""``python -m pardbg.cli``"""

from pardbg.cli import main

main()
