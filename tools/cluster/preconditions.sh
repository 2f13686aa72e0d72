# shellcheck shell=bash
# What a machine must have left before nodes start on it, said at once: a full disk or a used-up limit
# shows later as pods that never run, without a word of why. Sourced by node.sh.

MIN_DISK_MB=6000      # two nodes with the project's images take 4700 (du -sm STATE/node*), volumes and logs the rest
MIN_INODES=150000     # the same take 70000
MIN_MEMORY_MB=2000
MIN_THREADS=4000
# kind's documentation asks for 512; one node takes about 30 and each pod with logs followed one more.
INOTIFY_INSTANCES=512
INOTIFY_WATCHES=524288
MIN_INOTIFY_FREE=96

check_machine() {  # everything that is missing, not only the first
  local missing=() folder=$CLUSTER_STATE free used limit
  while [ ! -d "$folder" ]; do folder=$(dirname "$folder"); done
  free=$(df -Pm "$folder" | awk 'NR == 2 {print $4}')
  [ "$free" -ge "$MIN_DISK_MB" ] ||
    missing+=("$free MB free on the disk of $folder, not $MIN_DISK_MB (CLUSTER_STATE names another; images.sh clean frees the builds' layers)")
  free=$(df -Pi "$folder" | awk 'NR == 2 {print $4}')
  # Some file systems count none and say 0 or -.
  case $free in '' | *[!0-9]* | 0) ;; *) [ "$free" -ge "$MIN_INODES" ] || missing+=("$free inodes free on the disk of $folder, not $MIN_INODES") ;; esac
  free=$(awk '/^MemAvailable:/ {print int($2 / 1024)}' /proc/meminfo)
  [ "$free" -ge "$MIN_MEMORY_MB" ] || missing+=("$free MB of memory available, not $MIN_MEMORY_MB")
  used=$(awk '{split($4, part, "/"); print part[2]}' /proc/loadavg)
  for limit in "$(cat /proc/sys/kernel/pid_max)" "$(cat /proc/sys/kernel/threads-max)"; do
    [ $((limit - used)) -ge "$MIN_THREADS" ] || missing+=("$used threads of at most $limit, and nodes take $MIN_THREADS more")
  done
  used=$(inotify_used) limit=$(cat /proc/sys/fs/inotify/max_user_instances)
  [ $((limit - used)) -ge "$MIN_INOTIFY_FREE" ] ||
    missing+=("$used inotify instances of root's in use of at most $limit, and nodes take $MIN_INOTIFY_FREE more (sysctl fs.inotify.max_user_instances)")
  [ "${#missing[@]}" = 0 ] || { printf 'cluster: this machine lacks: %s\n' "${missing[@]}" >&2; exit 1; }
}

check_no_leftovers() {
  local pids; pids=$(cgroup_pids)
  [ -z "$pids" ] || die "processes of an earlier cluster run still (${pids% }): node.sh down ends them"
}

inotify_used() {  # instances of root's: the limit is per user
  find /proc/[0-9]*/fd -lname anon_inode:inotify -user 0 2>/dev/null | wc -l
}

raise_inotify() {  # as kind's documentation asks; down puts it back. A machine that refuses has what it has.
  local name wanted
  for name in max_user_instances=$INOTIFY_INSTANCES max_user_watches=$INOTIFY_WATCHES; do
    wanted=${name#*=} name=fs.inotify.${name%=*}
    [ "$(sysctl -n "$name")" -ge "$wanted" ] || sysctl -qw "$name=$wanted" 2>/dev/null || true
  done
}
