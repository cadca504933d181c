"""The HTTP edge: checks what comes in, asks the manager, and reads variables from the bus. Keeps no state."""
