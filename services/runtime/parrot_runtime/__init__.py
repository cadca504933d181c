"""What every Parrot service stands on: settings, errors, telemetry, RPC, value streams, life cycle."""
