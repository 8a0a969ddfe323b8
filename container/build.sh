#!/usr/bin/env bash
# Build the container images, and push them to the repositories of the images stack:
#   container/build.sh TAG [REGISTRY]
#   container/build.sh 0.1.0 123456789012.dkr.ecr.us-west-2.amazonaws.com
# Without a registry the images stay on this machine. The training image needs about 100 GiB of disk.
set -euo pipefail

tag=${1:?usage: container/build.sh TAG [REGISTRY]}
registry=${2:-}
deployment=${STATIONMASTER_DEPLOYMENT:-stationmaster}
cd "$(dirname "$0")/.."

if [[ -n $registry ]]; then
  region=$(cut -d. -f4 <<<"$registry")
  aws ecr get-login-password --region "$region" |
    docker login --username AWS --password-stdin "$registry"
fi

for image in training relay; do
  name=$deployment/$image:$tag
  DOCKER_BUILDKIT=1 docker build --platform linux/amd64 \
    --file "container/$image/Dockerfile" --tag "$name" .
  if [[ -n $registry ]]; then
    docker tag "$name" "$registry/$name"
    docker push "$registry/$name"
  fi
done
