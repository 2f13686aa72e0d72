# shellcheck shell=bash
# Cgroup subtrees of the node level, for cgroup v1 (a folder per controller) and v2 (one folder).
# Sourced by node.sh; ID is the top folder of everything it makes.

cgroup_roots() {
  if [ -e /sys/fs/cgroup/cgroup.controllers ]; then echo /sys/fs/cgroup; return; fi
  local controller
  for controller in cpu cpuacct cpuset memory pids blkio devices freezer hugetlb systemd unified; do
    [ ! -d "/sys/fs/cgroup/$controller" ] || readlink -f "/sys/fs/cgroup/$controller"
  done | sort -u
}

cgroup_make() {  # cgroup_make PATH: in every hierarchy
  local root folder part
  for root in $(cgroup_roots); do
    folder=$root
    for part in ${1//\// }; do
      folder=$folder/$part
      mkdir -p "$folder"
      # v1: a cpuset without cpus and mems takes no process, and a new one has none
      if [ -e "$folder/cpuset.cpus" ] && [ ! -e "$folder/cgroup.controllers" ]; then
        cat "$folder/../cpuset.cpus" >"$folder/cpuset.cpus"
        cat "$folder/../cpuset.mems" >"$folder/cpuset.mems"
      fi
      # v2: controllers reach a folder only if its parent hands them on
      if [ -e "$folder/../cgroup.subtree_control" ]; then
        sed 's/^/+/; s/ / +/g' "$folder/../cgroup.controllers" >"$folder/../cgroup.subtree_control" 2>/dev/null || true
      fi
    done
  done
}

cgroup_join() {  # cgroup_join PATH: this (sub)shell and what it starts, so that cgroup_end finds them
  echo "$BASHPID" >"$(cgroup_tracking "$1")/cgroup.procs"
}

cgroup_pids() {  # every process below our subtree, on one line
  local root
  for root in $(cgroup_roots); do
    [ ! -d "$root/$ID" ] || find "$root/$ID" -name cgroup.procs -exec cat {} + 2>/dev/null
  done | sort -u | tr '\n' ' '
}

cgroup_end() {  # every process below our subtree by pid, then the folders
  local root pid any
  for _ in 1 2 3 4 5 6 7 8 9 10; do
    any=
    for pid in $(cgroup_pids); do
      if kill -9 "$pid" 2>/dev/null; then any=1; fi
    done
    [ -n "$any" ] || break
    sleep 0.3
  done
  for root in $(cgroup_roots); do
    [ ! -d "$root/$ID" ] || find "$root/$ID" -depth -type d -exec rmdir {} + 2>/dev/null || true
  done
}

# The hierarchy in which the daemons are tracked.
cgroup_tracking() {
  if [ -d /sys/fs/cgroup/pids ]; then echo "/sys/fs/cgroup/pids/$1"; else echo "/sys/fs/cgroup/$1"; fi
}
