"""Pictures of a run and of a cluster, drawn from plain numbers; both faces show them.

Called where a picture is asked for, and imported only then, because Pillow is not everywhere.
"""
