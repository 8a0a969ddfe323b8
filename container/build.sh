#!/usr/bin/env bash
# Build container images, and push them to the repositories of the images stack:
#   container/build.sh TAG [REGISTRY [IMAGE...]]
#   container/build.sh 0.1.0 123456789012.dkr.ecr.us-west-2.amazonaws.com
#   container/build.sh 0.1.0 '' cpu
# IMAGE is a folder here; without one those are built that every deployment needs, training and relay.
# With a registry the images of container/copied.txt are copied there, too; without one the images
# stay on this machine. It takes Docker with buildx, and about 100 GiB of
# disk for each image with CUDA.
set -euo pipefail

tag=${1:?usage: container/build.sh TAG [REGISTRY [IMAGE...]]}
registry=${2:-}
images=("${@:3}")
if [[ ${#images[@]} == 0 ]]; then
  images=(training relay)
fi
deployment=${STATIONMASTER_DEPLOYMENT:-stationmaster}
cd "$(dirname "$0")/.."

for image in "${images[@]}"; do
  if [[ ! -f container/$image/Dockerfile ]]; then
    known=$(cd container && echo */Dockerfile)
    echo "build.sh: there is no image \"$image\"; expected one of: ${known//\/Dockerfile/}" >&2
    exit 2
  fi
done

# --build-arg for each value of versions.env that a Dockerfile has an ARG for. Images get their digests
# where their registry answers, so that what is built is what the log and the image's label say.
build_arguments() {
  local name value digest
  while IFS='=' read -r name value; do
    grep -q "^ARG $name$" "container/$1/Dockerfile" || continue
    if [[ $value == */*:* ]]; then
      digest=$(docker buildx imagetools inspect --format '{{.Manifest.Digest}}' "$value" </dev/null) || digest=
      if [[ $digest == sha256:* ]]; then
        value=$value@$digest
      else
        echo "build.sh: no digest was found for $value; its tag decides" >&2
      fi
      echo "--label=stationmaster.$name=$value"
    fi
    echo "--build-arg=$name=$value"
  done < <(grep '^[A-Z]' container/versions.env)
}

# build IMAGE PLATFORM NAME
build() {
  local arguments
  arguments=$(build_arguments "$1")
  echo "build.sh: building $3 for $2 from"
  echo "$arguments"
  # shellcheck disable=SC2086 # one word for each argument: none of them has spaces
  docker buildx build --load --provenance=false --platform "$2" $arguments \
    --file "container/$1/Dockerfile" --tag "$3" .
}

# build_and_push IMAGE PLATFORM NAME
build_and_push() {
  build "$@"
  docker push "$3"
}

# log_in REGISTRY
log_in() {
  aws ecr get-login-password --region "$(cut -d. -f4 <<<"$1")" |
    docker login --username AWS --password-stdin "$1"
}

# copy IMAGE: all machines of it, under a tag that has its name; a tag cannot be pushed twice.
copy() {
  local name=${1##*/}
  local to=$registry/$deployment/copies:${name/:/-}
  if docker buildx imagetools inspect "$to" >/dev/null 2>&1; then
    return
  fi
  if [[ ${1%%/*} == *.dkr.ecr.* ]]; then
    log_in "${1%%/*}"
  fi
  docker buildx imagetools create --tag "$to" "$1"
}

if [[ -n $registry ]]; then
  log_in "$registry"
  for image in $(grep -v '^#' container/copied.txt); do
    copy "$image"
  done
fi

for image in "${images[@]}"; do
  name=$deployment/$image:$tag
  if [[ -z $registry ]]; then
    build "$image" linux/amd64 "$name"
  elif [[ $image == relay ]]; then
    # System nodes may be Graviton. One name for both: an index of the two images.
    build_and_push "$image" linux/amd64 "$registry/$name-amd64"
    build_and_push "$image" linux/arm64 "$registry/$name-arm64"
    docker buildx imagetools create --tag "$registry/$name" \
      "$registry/$name-amd64" "$registry/$name-arm64"
  else
    build_and_push "$image" linux/amd64 "$registry/$name"
  fi
done
