#!/bin/sh
# Prints the Python that the Makefile uses: that of .venv, else the system's own, else the first on
# the PATH that is new enough, else python3, which then says itself what is wrong with it.
#
# The system's comes first because distributions compile theirs with all optimisations. Pythons that
# pyenv compiles are without, and take a quarter longer for the tests.

is_new_enough='import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))'

# Distributions leave parts out: ensurepip makes .venv, and torch compiles with Python.h.
is_complete='import ensurepip, sysconfig; open(sysconfig.get_path("include") + "/Python.h").close()'

fits() {
    "$@" 2>/dev/null
}

if fits .venv/bin/python -c "$is_new_enough"; then
    echo .venv/bin/python
elif fits /usr/bin/python3 -c "$is_new_enough" && fits /usr/bin/python3 -c "$is_complete"; then
    echo /usr/bin/python3
else
    for python in python3 python3.13 python3.12 python3.11; do
        fits "$python" -c "$is_new_enough" && echo "$python" && exit
    done
    echo python3
fi
