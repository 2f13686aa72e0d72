#!/bin/bash
# A Debian package of the broker and brokerctl in build/deb, of the wheel in build/wheel and the locked
# packages: for this processor, and Debian's Python 3.11. No root, nothing is installed.
#   PYTHON=.venv/bin/python tools/deb.sh
set -euo pipefail
cd "$(dirname "$0")/.."
python=$(realpath -s "${PYTHON:-.venv/bin/python}")
wheels=(build/wheel/*.whl)
root=build/deb/root
lib=$root/usr/lib/brokerd
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
[ "$("$python" -c 'import sys; print(*sys.version_info[:2], sep=".")')" = 3.11 ] ||
  { echo "deb: needs Python 3.11, as Debian 12 has it" >&2; exit 1; }

rm -rf build/deb
mkdir -p "$lib" "$root"/{DEBIAN,etc/brokerd,usr/bin,lib/systemd/system}
mkdir -p "$root"/usr/share/{doc/brokerd,man/man1,bash-completion/completions}
"$python" -m pip install --quiet --disable-pip-version-check --no-compile --require-hashes \
  --target "$lib" -r requirements/broker.txt
rm -r "$lib/bin"
"$python" -m pip install --quiet --disable-pip-version-check --no-compile --no-deps --no-index \
  --target "$lib" "${wheels[-1]}"
# The other parts need Kubernetes or Spark; the distribution names their commands.
rm -rf "$lib"/{bin,brokerd_operator,brokerd_telemetry} "$lib"/brokerd-*.dist-info/{entry_points.txt,RECORD,direct_url.json}

launcher() {  # NAME MODULE
  printf '#!/usr/bin/python3.11 -I\nimport sys\n\nsys.path.insert(0, "/usr/lib/brokerd")\nfrom %s import main  # noqa: E402\n\nmain()\n' \
    "$2" >"$root/usr/bin/$1"
  chmod 0755 "$root/usr/bin/$1"
}
launcher brokerd brokerd.cli
launcher brokerctl brokerd.ctl.main
ctl() { PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$lib "$python" -s -c 'from brokerd.ctl.main import main; main()' "$@"; }
ctl completion bash >"$root/usr/share/bash-completion/completions/brokerctl"
ctl man "$root/usr/share/man/man1" >/dev/null
find "$root/usr/share/man" -type f -exec gzip -9n {} +

# Debugging symbols are a fifth of it.
if command -v strip >/dev/null; then
  find "$lib" -type f -name '*.so' -exec strip --strip-unneeded {} +
fi
# Bytecode that is never looked at again: root's commands leave no file behind that dpkg does not know.
"$python" -m compileall -q -s "$root" --invalidation-mode unchecked-hash "$lib"
install -m 0644 packaging/brokerd.service "$root/lib/systemd/system/"
install -m 0640 packaging/brokerd.toml "$root/etc/brokerd/"
install -m 0644 LICENSE "$root/usr/share/doc/brokerd/copyright"
install -m 0755 packaging/deb/{postinst,prerm,postrm} "$root/DEBIAN/"
echo /etc/brokerd/brokerd.toml >"$root/DEBIAN/conffiles"

version=$(sed -n 's/^Version: //p' "$lib"/brokerd-*.dist-info/METADATA)
architecture=$(dpkg --print-architecture)
find "$root" -type d -exec chmod 0755 {} +
size=$(du -sk --exclude DEBIAN "$root" | cut -f1)
sed "s/@VERSION@/$version/; s/@ARCHITECTURE@/$architecture/; s/@SIZE@/$size/" packaging/deb/control >"$root/DEBIAN/control"
chmod 0644 "$root"/DEBIAN/{control,conffiles}
dpkg-deb --root-owner-group -Zxz --build "$root" "build/deb/brokerd_${version}_$architecture.deb" >/dev/null
ls build/deb/*.deb
