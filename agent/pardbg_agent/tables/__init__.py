"""Facts as data that agent, C++ and viewer share. Standard library only."""
