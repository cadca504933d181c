"""The manager: keeps the graph of calls, decides what runs where, records what was promised and done."""
