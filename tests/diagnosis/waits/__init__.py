"""Every way to wait for another rank, one that sleeps in each: who is found, where, how soon."""
