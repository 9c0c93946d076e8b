"""Thread that sends a rank's records and answers the hub: the only part that uses ZeroMQ."""
