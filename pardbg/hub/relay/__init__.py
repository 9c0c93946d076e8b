"""On every node but the hub's: what collects there and passes it on."""
