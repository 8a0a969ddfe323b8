"""The rules, by what they look at; each module has `check(manifest)`, and yields findings. Pure."""
