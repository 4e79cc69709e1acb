#!/bin/bash
# Installs this build, moves the prefix, reaches it through a symbolic link, uses it from outside projects, uninstalls it.
# Usage: install_test.sh SOURCE_DIR BUILD_DIR LIBDIR (relative)
set -euo pipefail
# A checkpoint refuses pipes that lead outside the job; whoever runs the tests may have left one open.
for fd in /proc/$$/fd/*; do
  n=${fd##*/}
  if [ "$n" -gt 2 ] && [ "$n" -ne 255 ]; then eval "exec $n>&-"; fi
done
source_dir=$1 build_dir=$2 libdir=$3
work=$(mktemp -d)
manifest=$build_dir/install_manifest.txt
[ -e "$manifest" ] && cp "$manifest" "$work/manifest.before"
cleanup() {
  status=$?
  if [ -e "$work/manifest.before" ]; then mv "$work/manifest.before" "$manifest"; else rm -f "$manifest"; fi
  if [ $status -eq 0 ] || [ $status -eq 77 ]; then rm -rf "$work"; else echo "kept: $work"; fi
}
trap cleanup EXIT
fail() { echo "FAILED: $*" >&2; exit 1; }

cmake --install "$build_dir" --prefix "$work/first" >"$work/install.log" || fail "install: $(tail -3 "$work/install.log")"
for path in bin/shadowib include/shadowib/shadowib.h "$libdir/libshadowib.so" "$libdir/libshadowib.so.0" \
    "$libdir/pkgconfig/shadowib.pc" "$libdir/shadowib/dropin/libibverbs.so" "$libdir/shadowib/dropin/libibverbs.so.1" \
    "$libdir/shadowib/libshadowib-ib2tcp.so" "$libdir/cmake/shadowib/shadowib-config.cmake"; do
  [ -e "$work/first/$path" ] || fail "$path is not installed"
done
for path in bin/topcc bin/topc++ bin/topc-config include/topc.h include/shadowib/masterworker.h "$libdir/libshadowib-mw.so" \
    "$libdir/libshadowib-mw-seq.so" "$libdir/pkgconfig/topc.pc"; do
  [ -e "$work/first/$path" ] || fail "$path is not installed"
done
grep -rIl "$build_dir" "$work/first" && fail "installed text files name the build tree"
readelf -d "$work/first/$libdir/libshadowib.so" | grep -q 'SONAME.*\[libshadowib.so.0\]' || fail "SONAME"

# Moved, and reached through a link.
mkdir "$work/elsewhere"
mv "$work/first" "$work/elsewhere/moved"
ln -s "elsewhere/moved" "$work/link"
for prefix in "$work/elsewhere/moved" "$work/link"; do
  version=$("$prefix/bin/shadowib" --version) || fail "$prefix/bin/shadowib --version"
  grep -q "^$(sed -n 's/^Version: //p' "$prefix/$libdir/pkgconfig/shadowib.pc")$" <<<"${version##* }" || fail "version $version"
done
prefix=$work/link
dropin=$prefix/$libdir/shadowib/dropin
LD_LIBRARY_PATH=$dropin ldd "$(command -v ibv_devinfo)" >"$work/ldd" || fail "ldd"
grep -q "libibverbs.so.1 => $dropin/libibverbs.so.1" "$work/ldd" || fail "the drop-in directory is not used"
grep -q "libshadowib.so.0 => .*$libdir" "$work/ldd" || fail "the drop-in library does not find libshadowib.so.0"

if [ -n "${SHADOWIB_SANITIZE:-}" ]; then
  echo "SKIPPED the rest: outside programs would have to be built with sanitizers, too"
  exit 77
fi

# An outside project, by pkg-config and by CMake.
example=$source_dir/examples/self_checkpoint
export PKG_CONFIG_PATH=$prefix/$libdir/pkgconfig
mkdir "$work/by-pkg-config"
eval "cc -Wall -Wextra -Werror -o '$work/by-pkg-config/self_checkpoint' '$example/self_checkpoint.c' \
  $(pkg-config --cflags --libs shadowib)" || fail "build by pkg-config"
cmake -S "$example" -B "$work/by-cmake" -DCMAKE_PREFIX_PATH="$prefix" >"$work/cmake.log" 2>&1 || fail "$(cat "$work/cmake.log")"
cmake --build "$work/by-cmake" >"$work/cmake.log" 2>&1 || fail "$(cat "$work/cmake.log")"

# Task farms by topcc, topc++ and topc-config. In one process: the farm itself has tests of its own.
for kind in "" --seq; do
  "$prefix/bin/topcc" $kind -std=c17 -o "$work/trivial$kind" "$source_dir/examples/masterworker/trivial.c" || fail "topcc $kind"
  "$prefix/bin/topc++" $kind -std=c++20 -o "$work/typed$kind" "$source_dir/examples/masterworker/typed.cc" || fail "topc++ $kind"
done
eval "cc -o '$work/by-topc-config' '$source_dir/examples/masterworker/trivial.c' $("$prefix/bin/topc-config" --seq --cflags --libs)" ||
  fail "build by topc-config"
eval "cc -o '$work/by-topc-pc' '$source_dir/examples/masterworker/trivial.c' $(pkg-config --cflags --libs topc)" || fail "build by topc.pc"
"$work/trivial--seq" 1000 4 | grep -q "^168 primes below 1000$" || fail "a farm built by topcc --seq"
# Two programs over libraries of others, as their READMEs build them. built_farm NAME HEADER PACKAGE LIBRARY...
built_farm() {
  name=$1 package=$3
  if [ ! -e "/usr/include/$2" ]; then
    echo "SKIPPED $name: $package is not installed"
    return 1
  fi
  shift 3
  mkdir "$work/$name.o"
  cp "$source_dir/examples/masterworker/$name"/*.cc "$source_dir/examples/masterworker/$name"/*.h "$work/$name.o"
  rm "$work/$name.o/${name}_test.cc"
  (cd "$work/$name.o" && "$prefix/bin/topc++" -std=c++20 -c *.cc) || fail "topc++ -c $name"
  "$prefix/bin/topc++" -o "$work/$name" "$work/$name.o"/*.o "$@" || fail "topc++ $name"
  "$prefix/bin/topc++" --seq -o "$work/$name--seq" "$work/$name.o"/*.o "$@" || fail "topc++ --seq $name"
  "$work/$name" --help >/dev/null || fail "$name --help"
}
if built_farm ecm ecm.h libecm-dev -lecm -lgmpxx -lgmp; then
  "$work/ecm--seq" -q "2^128+1" | grep -qx "2^128+1 = 59649589127497217 \* 5704689200685129054721" || fail "ecm built by topc++ --seq"
fi
if built_farm cubes cadical.hpp libcadical-dev -lcadical; then
  printf 'p cnf 2 3\n1 2 0\n-1 2 0\n-2 0\n' | "$work/cubes--seq" --exit-zero - | grep -qx "s UNSATISFIABLE" ||
    fail "cubes built by topc++ --seq"
fi
"$work/typed--seq" 10000 | grep -q "^6171 has a sequence of 262," || fail "a farm built by topc++ --seq"

# Portable programs of every architecture that this build has the library of.
if [ -e "$prefix/bin/shadowib-cc" ]; then
  printf '#include <shadowib/portable.h>\nint main(void) { return 0; }\n' >"$work/portable.c"
  printf '#include <shadowib/portable.h>\n#include <string>\nint main() { std::string s(99, 0); shadowib_portable_site(); return s[98]; }\n' >"$work/portable.cc"
  for library in "" "$build_dir"/lib/shadowib/portable/*/libshadowib-portable.so; do
    [ -z "$library" ] || [ -e "$library" ] || continue
    target=$(basename "$(dirname "$library")")
    "$prefix/bin/shadowib-cc" ${library:+--target="$target"} -o "$work/portable.$target" "$work/portable.c" || fail "shadowib-cc $library"
    readelf -d "$work/portable.$target" | grep -q "RUNPATH.*\[$(readlink -f "$prefix")/$libdir\(/shadowib/portable/$target\)\?\]" ||
      fail "shadowib-cc $library: $(readelf -d "$work/portable.$target" | grep RUNPATH)"
    "$prefix/bin/shadowib-c++" ${library:+--target="$target"} -o "$work/portable.cc.$target" "$work/portable.cc" || fail "shadowib-c++ $library"
  done
fi

# Output goes through a pipe: to a file, the restarted program would go on writing where it was.
for built in by-pkg-config by-cmake; do
  mkdir "$work/$built/run"
  for command in "run --job self -- ../self_checkpoint" "restart shadowib-ckpt/sets/self.0001"; do
    (cd "$work/$built/run" && LD_LIBRARY_PATH=$prefix/$libdir timeout 60 "$prefix/bin/shadowib" $command 2>&1) |
      cat >"$work/$built/${command%% *}.out" || fail "$built: $command: $(cat "$work/$built/${command%% *}.out")"
  done
  grep -q "^resumed from .*/sets/self\.0001; hooks: 1 before, 1 resume, 0 restart" "$work/$built/run.out" ||
    fail "$built: $(cat "$work/$built/run.out")"
  grep -q "^restarted.* hooks: 1 before, 0 resume, 1 restart" "$work/$built/restart.out" ||
    fail "$built: restart: $(cat "$work/$built/restart.out")"
done

# Uninstall removes what the manifest names, and our directories.
cmake --install "$build_dir" --prefix "$work/second" >/dev/null
touch "$work/second/$libdir/not-ours"
cmake -DMANIFEST="$manifest" -P "$source_dir/cmake/uninstall.cmake" >/dev/null 2>&1 || fail "uninstall"
left=$(cd "$work/second" && find . ! -type d)
[ "$left" = "./$libdir/not-ours" ] || fail "left behind: $left"
echo "ok"
