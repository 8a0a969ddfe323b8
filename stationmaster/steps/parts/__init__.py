"""What the steps are made of: things that more than one of them reads, writes or removes.

Steps import parts, and no part imports a step.
"""
