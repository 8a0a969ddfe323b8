"""The terminal: `stationmaster recipes|plan|render|local ...`.

`main` is the console script. The shell's words are read by the same grammar as the channel's;
everything that a terminal shows is built here. It starts the local mode, and nothing imports it.
"""
