#!/bin/bash
# Makes an arm64 Python with numpy and onnxruntime in a folder, for `edgedecode selftest` under qemu-user 10 or later.
# Run it as root on Debian 12, x86-64: bash docs/arm64_sysroot.sh DIR
set -euo pipefail
root=$(realpath -m "${1:?give the folder to make}")
onnxruntime=${2:-1.31.1}
packages="python3.11-minimal libpython3.11-minimal libpython3.11-stdlib libc6 libstdc++6 libgcc-s1 zlib1g libexpat1
  libffi8 libssl3 libbz2-1.0 liblzma5 libsqlite3-0 libuuid1 libncursesw6 libtinfo6 libreadline8 libcrypt1 libdb5.3 libnsl2"
mkdir -p "$root/debs" "$root/site"
dpkg --print-foreign-architectures | grep -qx arm64 || { dpkg --add-architecture arm64; apt-get update -q; }
cd "$root/debs"
for package in $packages; do
  ls "${package}"_*_arm64.deb >/dev/null 2>&1 || apt-get download -q "$package:arm64"
done
for file in *.deb; do dpkg -x "$file" "$root"; done
platforms="--platform manylinux_2_28_aarch64 --platform manylinux_2_27_aarch64 --platform manylinux2014_aarch64"
python3 -m pip download -q --only-binary :all: --python-version 3.11 $platforms -d "$root/debs" --no-deps \
  "onnxruntime==$onnxruntime" numpy flatbuffers protobuf packaging
for file in *.whl; do python3 -m zipfile -e "$file" "$root/site"; done
rm -rf "$root/debs"
python=$root/usr/bin/python3.11
PYTHONHOME=$root/usr PYTHONPATH=$root/site qemu-aarch64 -L "$root" "$python" -c \
  'import platform, numpy, onnxruntime; print(platform.machine(), "numpy", numpy.__version__, "onnxruntime", onnxruntime.__version__)'
