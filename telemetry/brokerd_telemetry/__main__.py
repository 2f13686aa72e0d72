"""`python -m brokerd_telemetry run|serve|report|tables`: what the job's image runs."""

from __future__ import annotations

from brokerd_telemetry.commands import telemetry

if __name__ == "__main__":
    telemetry(prog_name="python -m brokerd_telemetry")
