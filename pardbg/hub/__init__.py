from typing import Final

MAX_CTRL_BYTES: Final = 4 << 20
MAX_MESSAGE_BYTES: Final = 16 << 20
"""Maximum bytes of one message, CTRL or DATA."""
