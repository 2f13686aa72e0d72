#!/usr/bin/env bash
# Container images from ordinary Dockerfiles, without Docker and without an image registry.
#
#   images.sh all                  the same as build
#   images.sh base                 make python:3.11-slim from Debian and this machine's CPython 3.11
#   images.sh build [NAME...]      broker, operator, telemetry (default all): archives in the cache,
#                                  for node.sh load; the paths are printed, one a line
#   images.sh push REGISTRY TAG [NAME...]  build, and push under this tag to REGISTRY (host[:port][/path]);
#                                  each image's name with its digest is printed, one a line
#   images.sh clean                drop the build's layers and archives
#
# Nothing is built whose sources have not changed since; a change of sources does not install the
# dependencies again. Root; needs setup.sh node. apt and pip in a build use the host's network and
# settings (mirror, CA bundle), and nothing of those stays in an image.
#   CLUSTER_PYTHON  prefix of the CPython to pack (default: that of python3.11 or python3 on PATH)
# shellcheck source=env.sh
. "$(cd "$(dirname "$0")" && pwd)/env.sh"
BASE=python:3.11-slim
IMAGES=$CLUSTER_CACHE/images
RUNROOT=/run/brokerdk-build-$(printf %s "$CLUSTER_CACHE" | cksum | cut -d' ' -f1)  # two caches, two builds at once
BUILDAH=(buildah --root "$CLUSTER_CACHE/containers" --runroot "$RUNROOT" --storage-driver overlay)
CA=/etc/ssl/certs/ca-certificates.crt
# The shared libraries that CPython's own modules use.
BASE_PACKAGES=ca-certificates,libbz2-1.0,libexpat1,libffi8,liblzma5,libreadline8,libsqlite3-0,libssl3,libuuid1,netbase,tzdata,zlib1g
declare -A TAGS=([broker]=localhost/brokerd:dev [operator]=localhost/brokerd-operator:dev
  [telemetry]=localhost/brokerd-telemetry:dev)
declare -A DOCKERFILES=([broker]=Dockerfile [operator]=operator/Dockerfile [telemetry]=telemetry/Dockerfile)

# Working containers, and the bind mount of the store, would outlive a failed build.
clean_up() {
  "${BUILDAH[@]}" rm --all >/dev/null 2>&1 || true
  umount "$CLUSTER_CACHE/containers/overlay" 2>/dev/null || true
  [ -z "${scratch:-}" ] || rm -rf "$scratch" "$scratch.tar"
  rm -rf --one-file-system "$RUNROOT"
}

find_python() {
  local candidate
  for candidate in "${CLUSTER_PYTHON:+$CLUSTER_PYTHON/bin/python3}" python3.11 python3; do
    [ -n "$candidate" ] || continue
    if "$candidate" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
      "$candidate" -c 'import sys; print(sys.base_prefix)'
      return
    fi
  done
  die "no Python 3.11 found: set CLUSTER_PYTHON to its prefix"
}

debian() {  # debian FOLDER: Debian's minimum, from the mirror apt is configured with
  local suite mirror log=$IMAGES/debootstrap.log
  suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
  # shellcheck disable=SC2016
  mirror=$(apt-get indextargets --format '$(SITE) $(CODENAME)' 'Created-By: Packages' |
    awk -v suite="$suite" '$2 == suite {print $1; exit}')
  [ -n "$mirror" ] || die "apt knows no mirror for $suite"
  debootstrap --variant=minbase --include="$BASE_PACKAGES" "$suite" "$1" "$mirror" >"$log" 2>&1 ||
    die "debootstrap failed: $(tail -n 3 "$log")"
  rm -rf "$1"/var/cache/apt/{archives/*.deb,*.bin} "$1"/var/cache/debconf/*-old "$1"/var/lib/apt/lists/* \
    "$1"/usr/share/{doc,man,locale,info,zoneinfo/right,zoneinfo/posix} "$1"/var/log/*
}

base() {
  local prefix stamp
  prefix=$(find_python)
  stamp=$( (sed -n '/^BASE/,/^declare/p; /^debian/,/^}/p; /^base/,/^}/p' "$0"; "$prefix/bin/python3.11" -VV; cat "$CLUSTER_HOME/mkimage.py") | sha256sum | cut -c1-16)
  [ ! -e "$IMAGES/.base-$stamp" ] || return 0
  say "making the base image $BASE (about a minute)"
  scratch=$(mktemp -d -p "$IMAGES")
  debian "$scratch"
  # CPython finds its library from where its binary lies: a copy under /usr/local works as it is.
  tar -C "$prefix" --exclude=__pycache__ --exclude='*.a' --exclude=test --exclude=tests --exclude=idlelib \
    --exclude=tkinter --exclude=turtledemo --exclude=lib2to3 --exclude=pydoc_data --exclude=pkgconfig \
    --exclude=share --exclude='site-packages/*' --exclude='bin/*' -cf - bin lib | tar -C "$scratch/usr/local" --no-same-owner -xf -
  cp "$prefix/bin/python3.11" "$scratch/usr/local/bin/"
  ln -s python3.11 "$scratch/usr/local/bin/python3"
  ln -s python3.11 "$scratch/usr/local/bin/python"
  chroot "$scratch" ldconfig
  chroot "$scratch" python3 -B -m ensurepip --default-pip >/dev/null 2>&1
  rm -r "$scratch"/usr/local/lib/python3.11/ensurepip
  find "$scratch/usr/local/lib" -name __pycache__ -prune -exec rm -r {} +
  # As in the image of this name: without debugging symbols, which are three quarters of the library.
  ! command -v strip >/dev/null ||
    find "$scratch/usr/local/lib" -name '*.so*' -type f -exec strip --strip-unneeded {} +
  chroot "$scratch" python3 -B -c 'import bz2, ctypes, lzma, sqlite3, ssl, uuid' ||
    die "CPython of $prefix does not work on Debian's minimum"
  python3 "$CLUSTER_HOME/mkimage.py" --rootfs "$scratch" --name "$BASE" --out "$scratch.tar" --keep-owner \
    --cmd '["python3"]' --env LANG=C.UTF-8
  "${BUILDAH[@]}" pull -q "docker-archive:$scratch.tar" >/dev/null
  rm -f "$IMAGES"/.base-* "$IMAGES"/.built-*
  touch "$IMAGES/.base-$stamp"
}

host_pip_config() {  # pip's index and CA reach the build as mounted files, not as image content
  echo '[global]'
  python3 -m pip config list 2>/dev/null |
    sed -nE "s/^(global|:env:)\.(index-url|extra-index-url|trusted-host|timeout|default-timeout)='(.*)'\$/\2 = \3/p" |
    sort -u -t= -k1,1
  [ ! -f "$CA" ] || echo "cert = /run/host-ca.crt"
}

sources_stamp() {  # sources_stamp DOCKERFILE: over the base, the recipe and everything the context lets in
  (
    cd "$CLUSTER_REPO"
    ls "$IMAGES"/.base-*
    find "$1" .dockerignore pyproject.toml LICENSE requirements brokerd operator telemetry crds \
      tools/compiled.py tools/hatch_build.py \
      -type f ! -name '*.pyc' -print0 2>/dev/null | sort -z | xargs -0 sha256sum
  ) | sha256sum | cut -c1-16
}

build_one() {
  local name=$1 file tag stamp out=$IMAGES/$1.tar mounts config=$IMAGES/pip.conf
  file=${DOCKERFILES[$name]:-} tag=${TAGS[$name]:-}
  [ -n "$file" ] || die "no image is called $name: there are ${!TAGS[*]}"
  stamp=$(sources_stamp "$file")
  if [ ! -e "$IMAGES/.built-$name-$stamp" ] || [ ! -e "$out" ]; then
    say "building $tag (log: $IMAGES/$name.log)"
    host_pip_config >"$config"
    mounts=(--volume "$config:/etc/pip.conf:ro")
    # The headers of C that the base of this name has; only builds need them.
    mounts+=(--volume "$(find_python)/include:/usr/local/include:ro")
    # Not over /etc/ssl/certs: a Java runtime writes there while it is installed.
    [ ! -f "$CA" ] || mounts+=(--volume "$CA:/run/host-ca.crt:ro")
    "${BUILDAH[@]}" bud --isolation chroot --network host --pull-never --layers --format docker \
      "${mounts[@]}" -f "$CLUSTER_REPO/$file" -t "$tag" "$CLUSTER_REPO" >"$IMAGES/$name.log" 2>&1 ||
      { tail -n 20 "$IMAGES/$name.log" >&2; die "$tag does not build"; }
    rm -f "$out" "$config"
    "${BUILDAH[@]}" push -q "$tag" "docker-archive:$out:$tag" >>"$IMAGES/$name.log" 2>&1 ||
      die "$tag cannot be written to $out"
    rm -f "$IMAGES/.built-$name-"*
    touch "$IMAGES/.built-$name-$stamp"
    say "built $tag: $(($(stat -c %s "$out") / 1000000)) MB"
  fi
  echo "$out"
}

push_one() {  # push_one NAME REGISTRY TAG; a registry on loopback may speak plain HTTP
  local name=$1 target digests=$IMAGES/$1.digest verify=true
  target=$2/$(basename "${TAGS[$name]%:*}")
  case $2 in 127.0.0.1:* | localhost:*) verify=false ;; esac
  "${BUILDAH[@]}" push -q --tls-verify="$verify" --digestfile "$digests" "${TAGS[$name]}" "docker://$target:$3" >&2 ||
    die "$target:$3 cannot be pushed"
  echo "$target@$(cat "$digests")"
  rm -f "$digests"
}

[ "${1:-}" != all ] || set -- build
usage="images.sh base | build [broker|operator|telemetry]... | push REGISTRY TAG [NAME...] | clean"
case "${1:-}" in base | build | clean) ;; push) [ $# -ge 3 ] || die "usage: $usage" ;; *) die "usage: $usage" ;; esac
[ "$(id -u)" = 0 ] || die "must be root"
"$CLUSTER_HOME/setup.sh" check node || exit 1
mkdir -p "$IMAGES"
exec 9>"$IMAGES/lock"            # buildah's store takes one build at a time
flock 9
trap clean_up EXIT
case $1 in
  base) base ;;
  build)
    shift
    base
    [ "$#" -gt 0 ] || set -- broker operator telemetry
    for name in "$@"; do build_one "$name"; done
    ;;
  push)
    registry=$2 tag=$3
    shift 3
    base
    [ "$#" -gt 0 ] || set -- broker operator telemetry
    for name in "$@"; do
      build_one "$name" >/dev/null
      push_one "$name" "$registry" "$tag"
    done
    ;;
  clean)
    "${BUILDAH[@]}" rmi --all --force >/dev/null 2>&1 || true
    rm -rf "$IMAGES"
    ;;
esac
