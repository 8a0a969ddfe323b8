#!/usr/bin/env bash
# See whether everything that the images install from PyPI exists for their Pythons and machines:
#   container/resolve.sh [UV]
# It asks the package index, downloads nothing but metadata, and takes about a minute. Run it after a
# change of constraints.txt, pyproject.toml or a requirements.txt below container/.
set -euo pipefail

uv=${1:-uv}
cd "$(dirname "$0")/.."

# resolve PYTHON MACHINE ARGUMENTS...: from wheels alone
resolve() {
  local count
  count=$("$uv" pip compile --quiet --no-header --no-annotate --only-binary :all: \
    --python-version "$1" --python-platform "$2-unknown-linux-gnu" "${@:3}" | wc -l)
  echo "Python $1 on $2: $count packages for ${*: -1}"
}

# python-etcd is published as source alone; building it takes no compiler.
trainer=(--no-binary python-etcd --constraint constraints.txt --extra training --extra metrics --extra float8)
resolve 3.12 x86_64 "${trainer[@]}" pyproject.toml
resolve 3.13 x86_64 --constraint constraints.txt --extra relay pyproject.toml
resolve 3.13 aarch64 --constraint constraints.txt --extra relay pyproject.toml
resolve 3.12 x86_64 container/megatron/requirements.txt
resolve 3.12 x86_64 container/torchtitan/requirements.txt
