"""Sweeps of kills and faults over the three workflows, and the world that they are played in."""
