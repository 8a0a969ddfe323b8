"""What a person can add to a start as key=value: a module a key, or a family of keys.

A module has the class Option of what it keeps, and FAMILY: its keys and what it does with them.
`registry` lists them; a new key is a module here, and its lines there.
"""
