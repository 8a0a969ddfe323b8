"""What a person can add to a start as key=value: a module a key, or a family of keys.

A module has KEYS (each with its name, help and meanings), the class Option of what it keeps, and
four verbs: `read` makes an Option of the words, `refuse` holds the rules between its keys and
others, `note` says in the plan what it means, and `typed` writes it again. `make generate` puts
them all into `registry`; a new key is a module here, and nothing else.
"""
