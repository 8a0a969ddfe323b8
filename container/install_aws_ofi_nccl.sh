#!/usr/bin/env bash
# Build aws-ofi-nccl into an image of NVIDIA's, which has libfabric for EFA in /opt/amazon/efa:
#   install_aws_ofi_nccl.sh VERSION SHA512
# An older plugin of the base is removed: two of them under one name leave to chance which one runs.
set -euo pipefail

version=$1
sha512=$2
prefix=/opt/amazon/ofi-nccl
name=aws-ofi-nccl-$version
folder=$(mktemp --directory)

apt-get update
apt-get install --yes --no-install-recommends libhwloc-dev
rm -rf /var/lib/apt/lists/* /opt/amazon/aws-ofi-nccl "$prefix"

cd "$folder"
curl --fail --silent --show-error --location --output "$name.tar.gz" \
  "https://github.com/aws/aws-ofi-nccl/releases/download/v$version/$name.tar.gz"
sha512sum --check --strict <<<"$sha512  $name.tar.gz"
tar --extract --file "$name.tar.gz"
cd "$name"
./configure --prefix="$prefix" --with-libfabric=/opt/amazon/efa --with-cuda=/usr/local/cuda \
  --enable-platform-aws --disable-tests
make --jobs="$(nproc)"
make install
cd /
rm -rf "$folder"
