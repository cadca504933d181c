"""The bus, measured by itself."""
