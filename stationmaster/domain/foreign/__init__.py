"""Progress lines of other trainers, so that unmodified programs stream too. Pure.

`reader` reads lines in their order; `formats` knows what each says by itself.
"""
