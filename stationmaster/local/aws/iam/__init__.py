"""IAM of the emulated account: who asks, what their policies allow, what services ask for them.

`policies` reads statements and decides, `needs` says what a request takes, `on_behalf` what
services check in the caller's name, `identities` has the principals and answers for the front.
"""
