#!/bin/bash
# Measures one data-parallel step in ringtree and in PyTorch, with each rank in its own network
# namespace.
#
#   [variables] step.sh TABLE.csv NAMESPACE...
#
# The namespaces must exist and be connected. The ranks in all namespaces must be able to reach the
# first namespace at MASTER. Rows are appended to TABLE.csv; `step_time summary TABLE.csv` prints
# their medians. Needs root, and the program (cargo build --release --example step_time). Variables:
#   MASTER     address of the first namespace                 default 10.77.0.1
#   INTERFACE  Gloo's interface in every namespace            default eth0
#   PYTHON     Python interpreter with torch                  default none: ringtree only
#   ROUNDS     number of interleaved rounds                   default 3
#   TUNING     tuning table for additional runs of ringtree   default none
#   MEASURE    more options for `step_time measure`           default none
#   ALGORITHMS algorithms of ringtree to measure              default auto
#   SIZES      bucket sizes of ringtree to measure            default auto
#   NICE       niceness of the ranks                          default 0
#   LIMIT      seconds after which a rank is stopped          default 120
#   PROGRAM    step_time program                              default the one in target/release
set -u
table=$1
shift
hosts=("$@")
here=$(cd "$(dirname "$0")" && pwd)
program=${PROGRAM:-$here/../../target/release/examples/step_time}
port=$((20000 + RANDOM % 9000))
secret=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')

# Runs "$@" as one rank in every namespace. Only rank 0 prints a result.
everywhere() {
  port=$((port + 7))
  local rank pids=()
  for rank in "${!hosts[@]}"; do
    timeout "${LIMIT:-120}" nice -n "${NICE:-0}" ip netns exec "${hosts[$rank]}" env \
      RANK="$rank" WORLD_SIZE="${#hosts[@]}" LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 \
      MASTER_ADDR="${MASTER:-10.77.0.1}" MASTER_PORT="$port" \
      RINGTREE_SECRET="$secret" GLOO_SOCKET_IFNAME="${INTERFACE:-eth0}" "$@" &
    pids+=($!)
  done
  wait "${pids[@]}"
}

# shellcheck disable=SC2086
ours() { everywhere "$program" measure ${MEASURE:-} "$@"; }

[ -s "$table" ] || "$program" header >"$table"
for _ in $(seq "${ROUNDS:-3}"); do
  for size in ${SIZES:-auto}; do
    for algorithm in ${ALGORITHMS:-auto}; do
      [ "$algorithm" = auto ] && chosen="" || chosen="--algorithm $algorithm"
      # shellcheck disable=SC2086
      ours --bucket "$size" $chosen
    done
  done
  [ -n "${TUNING:-}" ] && RINGTREE_TUNING=$TUNING ours --label ringtree-tuned
  [ -n "${PYTHON:-}" ] && everywhere "$PYTHON" "$here/torch_step.py"
done >>"$table"
