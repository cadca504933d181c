"""Variable values on the bus: who writes them, who reads them, and where."""
