"""The thread that ships a rank's records and answers the hub: the only part that knows ZeroMQ."""
