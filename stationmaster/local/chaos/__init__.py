"""`stationmaster local chaos`: random faults under several runs, and what must hold throughout.

`drawing` draws the faults of a seed, `hands` injects them, `runtime` disturbs the functions,
`invariants` looks at what came of it, and `playing` puts them together.
"""
