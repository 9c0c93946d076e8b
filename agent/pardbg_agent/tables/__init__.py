"""Tables that agent, C++ and viewer share. Standard library only."""
