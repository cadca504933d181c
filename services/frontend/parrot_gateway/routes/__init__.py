"""The paths of the HTTP API, one module a kind of resource."""
